"""Parse registration files, and retain the registrations of all files (hook-api, "Registration files").

Invariants: files with the same content, in whatever order, give equal registrations. Content that cannot be used never
removes the last good registration of its name; only the file's absence does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.settings.config import parse_duration, parse_endpoint

MAX_BYTES = 1024 * 1024

ENDPOINT = "remote-endpoint"
POLICY = "failure-policy"
HOOKS = "runtime-hooks"
TIMEOUT = "timeout"
KEYS = frozenset({ENDPOINT, POLICY, HOOKS, TIMEOUT})
_FOLDED = {key.casefold(): key for key in KEYS}

_MAX_TEXT = 256  # longer than any endpoint or duration: such a text is not even shown
_MAX_SHOWN = 5
_MAX_NAME = 64


class Members(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order."""


class FailurePolicy(Enum):
    """The effect of a failing Pre hook: FAIL refuses the call, IGNORE continues it without the plugin."""

    FAIL = "Fail"
    IGNORE = "Ignore"


_POLICIES = {policy.value.lower(): policy for policy in FailurePolicy} | {"": FailurePolicy.IGNORE}


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of one file; ``name`` is the file's name, ``timeout_seconds`` is None where the file gives none."""

    name: str
    endpoint: str
    policy: FailurePolicy
    points: frozenset[str]
    timeout_seconds: float | None = None
    warnings: tuple[str, ...] = ()


def plugin_name(file_name: str) -> str:
    return file_name.removesuffix(".json")


def parse(name: str, content: bytes) -> Registration:
    """Parse the content of the file ``name``. Unknown keys and hook names are accepted with a warning. Raises
    ConfigError naming the file, the key and the rule."""
    members = _object(name, content)
    entry = dict(members)
    listed = [] if entry.get(HOOKS) is None else entry[HOOKS]
    if not isinstance(listed, list) or not all(isinstance(hook, str) for hook in listed):
        raise ConfigError(f"{name}: {HOOKS} must be a list of hook point names")
    hooks = set(listed)
    points = hooks & BY_NAME.keys()
    endpoint = parse_endpoint(_text(name, entry, ENDPOINT), f"{name}: {ENDPOINT}")
    policy = _POLICIES.get(_text(name, entry, POLICY).lower()) if POLICY in entry else FailurePolicy.IGNORE
    if policy is None:
        raise ConfigError(f"{name}: {POLICY} must be Fail or Ignore")
    seconds = parse_duration(_text(name, entry, TIMEOUT), f"{name}: {TIMEOUT}") if TIMEOUT in entry else None
    warnings = tuple(_warnings(name, [key for key, _ in members], hooks - points, points))
    return Registration(name, endpoint, policy, frozenset(points), seconds, warnings)


def _object(name: str, content: bytes) -> Members:
    """Return the members of the JSON object as Go's encoding/json reads them for koord-runtime-proxy: keys are compared
    without their letter case, and null changes no earlier text, but empties an earlier list."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{name}: longer than {MAX_BYTES} bytes; a registration is one small JSON object")
    try:
        entry = json.loads(content.decode(), object_pairs_hook=Members)
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: not UTF-8 text; write one JSON object") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: not JSON (yet?): {error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}: not JSON that can be read: a number too long or nesting too deep") from None
    if not isinstance(entry, Members):
        raise ConfigError(f"{name}: must be one JSON object with the key {ENDPOINT}")
    members = ((_FOLDED.get(key.casefold(), key), value) for key, value in entry)
    return Members((key, value) for key, value in members if value is not None or key == HOOKS)


def _text(name: str, entry: Mapping[str, Any], key: str) -> str:
    if key not in entry:
        raise ConfigError(f"{name}: {key} is missing; name the socket that the plugin listens on")
    value = entry[key]
    if not isinstance(value, str):
        raise ConfigError(f"{name}: {key} must be a text")
    if len(value) > _MAX_TEXT:
        raise ConfigError(f"{name}: {key} is longer than {_MAX_TEXT} characters")
    if not value.isprintable():
        raise ConfigError(f"{name}: {key} holds characters that cannot be printed")
    return value


def _warnings(name: str, keys: Sequence[str], hooks: Iterable[str], points: Iterable[str]) -> Iterable[str]:
    if unknown := set(keys) - KEYS:
        yield f"{name}: unknown keys are ignored: {_shown(unknown)}"
    if repeated := {key for key in KEYS if keys.count(key) > 1}:
        yield f"{name}: keys that occur more than once, of which the last value is used: {_shown(repeated)}"
    if hooks:
        yield f"{name}: unknown hook points are ignored: {_shown(hooks)}"
    if not points:
        yield f"{name}: {HOOKS} names no hook point, so this plugin is never called"


def _shown(names: Iterable[str]) -> str:
    """Return names for a log line, shortened: a hostile file must not fill the log."""
    shown = [ascii(name[:_MAX_NAME]) for name in sorted(names)]
    more = len(shown) - _MAX_SHOWN
    return ", ".join(shown[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that exists and whose content could not be read; ``reason`` is the cause, naming the file."""

    reason: str


Content = bytes | UnreadableFile


class ChangeKind(Enum):
    ADDED = "added"
    CHANGED = "changed"
    RESTORED = "good again, unchanged"
    REMOVED = "removed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Change:
    """One change to log; ``registration`` is the one in effect from now on, None if there is none. ``reason`` is why
    content was rejected."""

    kind: ChangeKind
    name: str
    registration: Registration | None
    reason: str = ""


class Registry:
    def __init__(self) -> None:
        self._good: dict[str, Registration] = {}
        self._contents: dict[str, Content] = {}
        self.rejected: dict[str, str] = {}
        """The files whose present content is rejected, each with the reason."""

    @property
    def registrations(self) -> tuple[Registration, ...]:
        return tuple(self._good[name] for name in sorted(self._good))

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the files, good or not."""
        return frozenset(self._contents)

    def replace(self, contents: Mapping[str, Content]) -> tuple[Change, ...]:
        """Replace the state by the directory's present contents; return the changes, in file-name order."""
        names = sorted(self._contents.keys() | contents.keys())
        changes = (self.update(name, contents.get(name)) for name in names)
        return tuple(change for change in changes if change is not None)

    def update(self, name: str, content: Content | None) -> Change | None:
        """Set the present content of one file, None if it does not exist; return the change, None if there is none."""
        if content is None:
            self._contents.pop(name, None)
            self.rejected.pop(name, None)
            return Change(ChangeKind.REMOVED, name, None) if self._good.pop(name, None) is not None else None
        if self._contents.get(name) == content:
            return None
        self._contents[name] = content
        current = self._good.get(name)
        try:
            if isinstance(content, UnreadableFile):
                raise ConfigError(content.reason)
            registration = parse(name, content)
        except ConfigError as error:
            self.rejected[name] = str(error)
            return Change(ChangeKind.REJECTED, name, current, str(error))
        kind = ChangeKind.ADDED if current is None else ChangeKind.CHANGED
        if registration == current:
            if name not in self.rejected:
                return None
            kind = ChangeKind.RESTORED  # the operator waits for this log line
        self._good[name] = registration
        self.rejected.pop(name, None)
        return Change(kind, name, registration)
