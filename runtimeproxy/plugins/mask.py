"""The mask: the file with the hook servers that an operator has disabled (docs/operation.rst).

Invariant: the file is at every moment the old one or the new one as a whole, also if the machine fails. Nothing is
taken from a file that another user could have written. Without a file nothing is made but by a write.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.observe.times import EPOCH, rfc3339
from runtimeproxy.relay.listener import FOLDER_FLAGS, folder_fault, make_folder

SCHEMA_VERSION = 1
MAX_BYTES = 1 << 20
"""Longest file that is accepted, in bytes."""
MOST_NAMES = 100
"""Most hook servers that are disabled at once."""
LONGEST_NAME = 250
"""Most bytes of a hook server's name: a file's has 255 at most, .json included."""
LONGEST_REASON, LONGEST_BY = 200, 100
"""Most characters of a reason, and of who gave it."""
LONGEST_SECONDS = 365 * 86400

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class MaskError(RuntimeProxyError):
    """The file cannot be used: one line that names it."""


@dataclass(frozen=True, slots=True)
class Disabled:
    """Why a hook server is disabled, by whom, since and until when (None: until it is enabled), in seconds since 1970.

    Raises ConfigError for a text that could not be logged.
    """

    reason: str
    by: str
    since: float
    until: float | None = None

    def __post_init__(self) -> None:
        _check("reason", self.reason, LONGEST_REASON)
        _check("by", self.by, LONGEST_BY)

    def shown(self) -> dict[str, str | None]:
        """Return the object of the file, with times as in RFC 3339."""
        until = None if self.until is None else rfc3339(self.until)
        return {"reason": self.reason, "by": self.by, "since": rfc3339(self.since), "until": until}


def check_name(name: str) -> None:
    """Raise ConfigError if no registration file can be called so, with .json behind, or if it could not be logged."""
    can_be_logged = name.isprintable() and name.strip()
    if not can_be_logged or name.startswith(".") or "/" in name or len(name.encode()) > LONGEST_NAME:
        form = f"at most {LONGEST_NAME} printable bytes, without a / and with no dot at the beginning"
        what = "write that of its registration file without .json, as runtimeproxy hook ls shows it"
        raise ConfigError(f"no hook server can have this name: {what}: {form}")


def check_seconds(seconds: float) -> None:
    """Raise ConfigError if a hook server cannot be disabled for so many seconds."""
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise ConfigError(f"for: {seconds:g} s is not a time from 1 s to 365 days; leave it out for no end")


def _check(what: str, text: object, longest: int) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= longest or not text.isprintable() or not text.strip():
        raise ConfigError(f"{what}: write 1 to {longest} printable characters")


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - EPOCH).total_seconds()


def written(disabled: Mapping[str, Disabled]) -> bytes:
    """Return the content of the file."""
    entries = {name: entry.shown() for name, entry in sorted(disabled.items())}
    return json.dumps({"schemaVersion": SCHEMA_VERSION, "disabled": entries}, indent=2).encode() + b"\n"


def parse(content: bytes) -> dict[str, Disabled]:
    """Return what a file's content says. Raises MaskError, saying what is wrong and naming nothing."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        raise MaskError("is not JSON") from None
    try:
        if whole["schemaVersion"] != SCHEMA_VERSION:
            raise MaskError(f"does not have schemaVersion {SCHEMA_VERSION}")
        return dict(_entries(whole["disabled"]))
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError):
        raise MaskError("does not have the form that the proxy writes") from None


def _entries(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Disabled]]:
    for name, entry in entries.items():
        check_name(name)
        until = entry.get("until")
        yield (
            name,
            Disabled(
                entry["reason"], entry["by"], _seconds(entry["since"]), None if until is None else _seconds(until)
            ),
        )


def path_in(state_dir: str, listen_endpoint: str) -> str:
    """Return the path of a proxy's mask, of which each socket has its own."""
    return os.path.join(state_dir, f"{listen_endpoint.strip('/').replace('/', '-')}.disabled.json")


class MaskFile:
    """The file at a path, and its directory; both are made by the first write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder, self._name = os.path.split(path)

    def read(self) -> dict[str, Disabled]:
        """Return what is disabled: nothing without a file. Raises MaskError."""
        with self._failing("cannot be read"), suppress(FileNotFoundError), self._opened() as folder:
            file = os.open(self._name, _READ, dir_fd=folder)
            try:
                found = os.fstat(file)
                fault = folder_fault(found, None) if stat.S_ISREG(found.st_mode) else "is not a regular file"
                if fault:
                    raise MaskError(fault)
                if found.st_size > MAX_BYTES:
                    raise MaskError(f"is longer than {MAX_BYTES} bytes")
                with open(file, "rb", closefd=False) as content:
                    return parse(content.read(MAX_BYTES))
            finally:
                os.close(file)
        return {}

    def write(self, disabled: Mapping[str, Disabled]) -> None:
        """Replace the file, whatever is there. Raises MaskError."""
        with self._failing("cannot be written"):
            make_folder(self._folder)
            with self._opened() as folder:
                new = f".{self._name}.new"
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=folder)  # of a process that was killed, or of a full disk
                with open(os.open(new, _MAKE, 0o600, dir_fd=folder), "wb") as file:
                    os.fchmod(file.fileno(), 0o600)  # whatever the umask is
                    file.write(written(disabled))
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(new, self._name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory. Raises MaskError if another user can write there."""
        folder = os.open(self._folder, FOLDER_FLAGS)
        try:
            if fault := folder_fault(os.fstat(folder), None):
                raise MaskError(f"is in a directory that {fault}")
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Raise MaskError with the file's name for what goes wrong."""
        try:
            yield
        except MaskError as error:
            raise MaskError(f"{self.path} {error}") from None
        except OSError as error:
            raise MaskError(f"{self.path} {what} ({error.strerror})") from None
