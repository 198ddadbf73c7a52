"""The table of what can be asked over HTTP, and the form of questions and answers.

Owns paths, methods, the names of parameters and members, and their forms.
Must not know: sockets, the channel, what the answers mean.
Invariant: whatever is wrong with a request is one line that says what there is, without the request's values.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtimeproxy.admin.channel import BAD_REQUEST, Refused
from runtimeproxy.observe.events import MOST_EVENTS, EventKind

SCHEMA_VERSION = 1
TEXT_CHARACTERS = 512
LONGEST_PAGE = 1000
"""Most records of the Store in an answer."""
KINDS = tuple(kind.value for kind in EventKind)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS or not value.isprintable():
        raise ValueError(f"is not a text of at most {TEXT_CHARACTERS} characters")
    return value


def _number(value: Any) -> int:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15):
        raise ValueError("is not a number")
    return int(value)


def _count(most: int) -> Callable[[Any], int]:
    def form(value: Any) -> int:
        number = _number(value)
        if not 1 <= number <= most:
            raise ValueError(f"is not from 1 to {most}")
        return number

    return form


def _kind(value: Any) -> str:
    if value not in KINDS:
        raise ValueError(f"is not one of {', '.join(KINDS)}")
    return str(value)


def _flag(value: Any) -> bool:
    if value not in ("", "0", "1", "true", "false"):
        raise ValueError("is not 1 or 0")
    return value not in ("0", "false")


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


Form = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Route:
    """One row: ``asks`` is the question's name; ``takes`` are the parameters of a GET, or the members of a POST's
    body, with their forms, of which ``needs`` must be there."""

    method: str
    path: str
    asks: str
    takes: Mapping[str, Form] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    on_metrics_socket: bool = False

    def question(self, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Return a question's arguments. Raises Refused for a name that is unknown or twice, and for a bad form."""
        arguments: dict[str, Any] = {}
        for name, value in given:
            if name not in self.takes:
                raise Refused(BAD_REQUEST, f"unknown parameter: {self.path} takes {', '.join(self.takes) or 'none'}")
            if name in arguments:
                raise Refused(BAD_REQUEST, f"{name} is there twice")
            try:
                arguments[name] = self.takes[name](value)
            except ValueError as error:
                raise Refused(BAD_REQUEST, f"{name} {error}") from None
        for name in self.needs:
            if name not in arguments:
                raise Refused(BAD_REQUEST, f"{name} is missing: {self.path} takes {', '.join(self.takes)}")
        return arguments


ROUTES = (
    Route("GET", "/livez", "livez", {"verbose": _flag}, on_metrics_socket=True),
    Route("GET", "/readyz", "readyz", {"verbose": _flag}, on_metrics_socket=True),
    Route("GET", "/metrics", "metrics", on_metrics_socket=True),
    Route("GET", "/version", "version"),
    Route("GET", "/configz", "configz"),
    Route("GET", "/hooks", "hooks"),
    Route("GET", "/store", "store", {"pod": _text, "id": _text, "limit": _count(LONGEST_PAGE), "after": _text}),
    Route(
        "GET",
        "/events",
        "events",
        {
            "since": _number,
            "limit": _count(MOST_EVENTS),
            "follow": _flag,
            "pod": _text,
            "hookServer": _text,
            "kind": _kind,
        },
    ),
    Route("POST", "/loglevel", "loglevel", {"level": _text, "for": _text}, ("level",)),
    Route(
        "POST",
        "/hooks/{name}/disable",
        "disable",
        {"reason": _text, "for": _text, "unregistered": _boolean},
        ("reason",),
    ),
    Route("POST", "/hooks/{name}/enable", "enable"),
)


def members(body: bytes) -> Iterable[tuple[str, Any]]:
    """Return the members of a request's body; none if it is empty. Raises Refused if it is not a JSON object."""
    if not body:
        return ()
    try:
        found = json.loads(body, object_pairs_hook=_Members)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, _Members):
        raise Refused(BAD_REQUEST, "the body is not a JSON object")
    return found


class _Members(list[tuple[str, Any]]):
    """A JSON object as it was written: a name that is there twice is told."""


def json_text(answer: Mapping[str, Any]) -> bytes:
    """Return an answer as a JSON object with its schema's version."""
    return json.dumps({"schemaVersion": SCHEMA_VERSION, **answer}, separators=(",", ":")).encode() + b"\n"


SIGNS = {"ok": "[+]", "failed": "[-]", "degraded": "[~]"}


def health(name: str, checks: Iterable[Mapping[str, str]]) -> tuple[bool, str]:
    """Return whether no check failed, and all of them as lines."""
    passed = not any(check["state"] == "failed" for check in checks)
    lines = [_check_line(check) for check in checks]
    return passed, "\n".join([*lines, f"{name} check {'passed' if passed else 'failed'}\n"])


def _check_line(check: Mapping[str, str]) -> str:
    line = f"{SIGNS[check['state']]}{check['name']} {check['state']}"
    return f"{line}: {check['reason']}" if check.get("reason") else line
