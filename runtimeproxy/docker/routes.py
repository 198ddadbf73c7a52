"""Decide which requests are held, and which may turn their connection into a tunnel.

Invariant: a request that dockerd's router hands to one of the five handlers has a route, and no other request has one,
but for absolute targets with a malformed authority, which dockerd refuses by itself.
Targets are as ``wire.http1`` reads them: bytes as latin-1, without control characters.
Source: Go's net/url (ParseRequestURI), gorilla/mux 1.8 (ServeHTTP, cleanPath) and moby's api/server, 20.10 to 28.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from runtimeproxy.observe.metric_table import OTHER, Key


class Action(Enum):
    """The operation that a held request asks for."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow

    CREATE = "create"
    START = "start"
    STOP = "stop"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Route:
    """A held request: what it asks for, and of which container. ``reference`` is the id, id prefix or name, decoded as
    dockerd looks it up ("" for create); ``name`` is the name that a create asks for ("" if it leaves that to dockerd).
    """

    action: Action
    reference: str = ""
    name: str = ""


_VERSION = r"(?:/v[0-9.]+)?"
_HELD = {
    "POST": re.compile(_VERSION + r"/containers/(?:create|(.*)/(start|stop|update))"),
    # Deleting a checkpoint is a route of its own, registered before the container's.
    "DELETE": re.compile(_VERSION + r"/containers/(?![^/]+/checkpoints/[^/]+\Z)(.+)"),
}
_UPGRADING = {
    "POST": re.compile(_VERSION + r"/(?:containers/.*/attach|exec/.*/start|session|grpc)"),
    "GET": re.compile(_VERSION + r"/containers/.*/attach/ws"),
}

_CACHED_LENGTH = 512
"""Longest target that is remembered, in characters."""

_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?]*)?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNCLEAN = re.compile(r"//|/\.\.?(?:/|\Z)")


def route(method: str, target: str) -> Route | None:
    """Return the route of a request to hold; None if it passes, like a DELETE of no reference: dockerd rejects it."""
    if method not in _HELD or ("containers/" not in target and "%" not in target):
        return None
    return _route(method, target) if len(target) <= _CACHED_LENGTH else _route.__wrapped__(method, target)


def without_authority(target: str) -> str:
    """Return an absolute target's path and query, which is all that dockerd routes by (RFC 9112, 3.2.2)."""
    return _ABSOLUTE.sub("", target)


def may_upgrade(method: str, target: str) -> bool:
    """Return whether the connection may become a tunnel without an Upgrade field (dockerd's old-style hijack)."""
    if method not in _UPGRADING or (method == "GET" and "/ws" not in target and "%" not in target):
        return False
    return (_upgrades if len(target) <= _CACHED_LENGTH else _upgrades.__wrapped__)(method, target)


@lru_cache(1024)
def _route(method: str, target: str) -> Route | None:
    path, query = _read_target(target)
    match = _HELD[method].fullmatch(path)
    if match is None:
        return None
    if method == "DELETE":
        return Route(Action.REMOVE, match[1])
    return Route(Action(match[2]), match[1]) if match[2] else Route(Action.CREATE, name=_name(query))


@lru_cache(1024)
def _upgrades(method: str, target: str) -> bool:
    path, _ = _read_target(target)
    return _UPGRADING[method].fullmatch(path) is not None


def _read_target(target: str) -> tuple[str, str]:
    """Return the decoded path, "" if Go's parser rejects the target or mux redirects it, and the raw query."""
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        path = without_authority(path)
    if "%" in path or not path.isascii():
        path = _decoded(path) if path.startswith("/") and not _BAD_ESCAPE.search(path) else ""
    return ("", "") if _UNCLEAN.search(path) else (path, query)


def _name(query: str) -> str:
    """Return the first value of ``name``, as Go's Form.Get does."""
    found = _NAMED.search(query)
    return _decoded((found[1] or "").replace("+", " ")) if found else ""


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.encode("latin-1")).decode(errors="replace")


_PASSING = """
    GET /_ping, HEAD /_ping, GET /version, GET /info, GET /events, GET /system/df, POST /auth, POST /session, POST /grpc
    GET /containers/json, POST /containers/create, POST /containers/prune, DELETE /containers/{id}
    GET /containers/{id}/json, GET /containers/{id}/top, GET /containers/{id}/logs, GET /containers/{id}/stats
    GET /containers/{id}/changes, GET /containers/{id}/export, GET /containers/{id}/attach/ws
    GET /containers/{id}/archive, HEAD /containers/{id}/archive, PUT /containers/{id}/archive
    POST /containers/{id}/start, POST /containers/{id}/stop, POST /containers/{id}/restart, POST /containers/{id}/kill
    POST /containers/{id}/update, POST /containers/{id}/rename, POST /containers/{id}/pause
    POST /containers/{id}/unpause, POST /containers/{id}/wait, POST /containers/{id}/resize
    POST /containers/{id}/attach, POST /containers/{id}/exec
    POST /exec/{id}/start, POST /exec/{id}/resize, GET /exec/{id}/json
    GET /images/json, GET /images/search, GET /images/get, POST /images/create, POST /images/load, POST /images/prune
    GET /images/{name}/json, GET /images/{name}/history, GET /images/{name}/get, POST /images/{name}/push
    POST /images/{name}/tag, DELETE /images/{name}, POST /build, POST /commit
    GET /networks, GET /networks/{id}, POST /networks/create, DELETE /networks/{id}
    GET /volumes, GET /volumes/{id}, POST /volumes/create, DELETE /volumes/{id}
"""
_TEMPLATES = [template for line in _PASSING.split("\n") for template in line.strip().split(", ") if template]


def _pattern(template: str) -> str:
    method, _, path = template.partition(" ")
    path = path.replace("{id}", "[^/?]{1,255}").replace("{name}", "[^?]{1,255}?")
    return f"({method} {_VERSION}{path}(?:\\?|\\Z))"


passing = re.compile("|".join(map(_pattern, _TEMPLATES))).match
"""Match "METHOD target" of a passing request; ``lastindex`` is the place of its series."""
PASSING: tuple[Key, ...] = tuple(("calls_passed", (template,)) for template in (OTHER, *_TEMPLATES))
"""The series that count passing requests; the first one is that of a request without a match."""
PASSING_CREATE = PASSING[1 + _TEMPLATES.index("POST /containers/create")]
EVENTS = PASSING[1 + _TEMPLATES.index("GET /events")]

_NAMED = re.compile(r"(?:\A|&)(?:n|%6[Ee])(?:a|%61)(?:m|%6[Dd])(?:e|%65)(?:=([^&]*))?(?=&|\Z)")
"""The ``name`` parameter, however it is percent-encoded. Nothing else is decoded: a long query would take long."""
