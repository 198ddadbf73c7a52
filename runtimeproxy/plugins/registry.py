"""The registered plugins: takes file contents, returns changes (hook-api, "Registration files").

Invariant: content that cannot be used never removes the last good registration of its name; only the file's absence
does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins.registration import Registration, parse


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that exists and whose content could not be read; ``reason`` says why, naming the file."""

    reason: str


Content = bytes | UnreadableFile
"""The content of a file, as far as it could be read."""


class ChangeKind(Enum):
    """Kind of a change of a registration file."""

    ADDED = "added"
    CHANGED = "changed"
    RESTORED = "good again, unchanged"
    REMOVED = "removed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Change:
    """One change to log; ``registration`` is the one in effect from now on, None if there is none. ``reason`` says why
    content was rejected."""

    kind: ChangeKind
    name: str
    registration: Registration | None
    reason: str = ""


class Registry:
    """The registrations by file name."""

    def __init__(self) -> None:
        self._good: dict[str, Registration] = {}
        self._seen: dict[str, Content] = {}
        self.rejected: dict[str, str] = {}
        """The files whose present content is rejected, each with the reason."""

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """Return the registrations in file-name order, which is the order of the plugins."""
        return tuple(self._good[name] for name in sorted(self._good))

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the existing files, good or not."""
        return frozenset(self._seen)

    def replace(self, contents: Mapping[str, Content]) -> tuple[Change, ...]:
        """Replace the state by the directory's present contents; return the changes, in file-name order."""
        names = sorted(self._seen.keys() | contents.keys())
        changes = (self.update(name, contents.get(name)) for name in names)
        return tuple(change for change in changes if change is not None)

    def update(self, name: str, content: Content | None) -> Change | None:
        """Set the present content of one file, None if it is gone; return the change, None if there is none."""
        if content is None:
            self._seen.pop(name, None)
            self.rejected.pop(name, None)
            return Change(ChangeKind.REMOVED, name, None) if self._good.pop(name, None) is not None else None
        if self._seen.get(name) == content:
            return None
        self._seen[name] = content
        before = self._good.get(name)
        try:
            if isinstance(content, UnreadableFile):
                raise ConfigError(content.reason)
            registration = parse(name, content)
        except ConfigError as error:
            self.rejected[name] = str(error)
            return Change(ChangeKind.REJECTED, name, before, str(error))
        kind = ChangeKind.ADDED if before is None else ChangeKind.CHANGED
        if registration == before:
            if name not in self.rejected:
                return None
            kind = ChangeKind.RESTORED  # the operator waits for this log line
        self._good[name] = registration
        self.rejected.pop(name, None)
        return Change(kind, name, registration)
