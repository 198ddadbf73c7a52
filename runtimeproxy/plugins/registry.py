"""What is registered: file contents come in, changes go out (hook-api, "Registration files").

Owns the last good state of every file name, and what is worth telling about a file.
Must not know: directories, events, clients.
Invariant: a content that cannot be used never takes away the last good registration of its name; only the file's
absence does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins.registration import Registration, parse


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that is there and whose content could not be had; ``reason`` says why, naming the file."""

    reason: str


Content = bytes | UnreadableFile
"""What a file holds, as far as it could be read."""


class ChangeKind(Enum):
    """What became of a file name."""

    ADDED = "added"
    CHANGED = "changed"
    RESTORED = "good again, unchanged"
    REMOVED = "removed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to tell: ``registration`` is the one that counts from now on, None if there is none.

    ``reason`` says why a content was rejected.
    """

    kind: ChangeKind
    name: str
    registration: Registration | None
    reason: str = ""


class Registry:
    """The registrations by file name."""

    def __init__(self) -> None:
        self._good: dict[str, Registration] = {}
        self._seen: dict[str, Content] = {}
        self._rejected: set[str] = set()

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """List what is registered in file-name order, which is the order of the plugins."""
        return tuple(self._good[name] for name in sorted(self._good))

    @property
    def names(self) -> frozenset[str]:
        """Name the files that are there, good or not."""
        return frozenset(self._seen)

    @property
    def invalid(self) -> int:
        """Count the files whose present content is rejected."""
        return len(self._rejected)

    def replace(self, contents: Mapping[str, Content]) -> tuple[Change, ...]:
        """Take the whole directory as it is now and return what changed, in file-name order."""
        names = sorted(self._seen.keys() | contents.keys())
        changes = (self.update(name, contents.get(name)) for name in names)
        return tuple(change for change in changes if change is not None)

    def update(self, name: str, content: Content | None) -> Change | None:
        """Take the present content of one file, None if it is gone; return what changed, None if nothing did."""
        if content is None:
            self._seen.pop(name, None)
            self._rejected.discard(name)
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
            self._rejected.add(name)
            return Change(ChangeKind.REJECTED, name, before, str(error))
        kind = ChangeKind.ADDED if before is None else ChangeKind.CHANGED
        if registration == before:
            if name not in self._rejected:
                return None
            kind = ChangeKind.RESTORED  # the operator waits for that line
        self._good[name] = registration
        self._rejected.discard(name)
        return Change(kind, name, registration)
