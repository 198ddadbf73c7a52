"""The registration file, which names the hook server's socket and its hook points.

Invariants: the file is written atomically, and removed only if it still has the content written here. The file of
another hook server that listens is never replaced. The writer owns the socket that the file names, so other files with
that socket are stale and are removed.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.settings.options import parse_endpoint

from .socket_path import listens

log = logging.getLogger(__name__)

FLAG = "--register-dir"
ORDER_FLAG = "--order"
UNREGISTER_FLAG = "--unregister"
POLICIES = IGNORE, FAIL = "Ignore", "Fail"
LAST_ORDER = 99
"""Two digits, because the proxy calls plugins in the order of their file names, in which 100 comes before 20."""

_MAX_BYTES = 64 * 1024
"""Largest number of bytes that are read of an existing file."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_ANY_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def file_name(name: str, order: int | None) -> str:
    """Return the file's name: ``NN-name.json``, or ``name.json`` without an order."""
    return f"{name}.json" if order is None else f"{order:02d}-{name}.json"


def entry(endpoint: str, hook_points: Sequence[HookPoint], policy: str, timeout: str | None) -> bytes:
    """Return the file's content; ``timeout`` as the proxy reads it ("500ms"), None for the proxy's default."""
    names = [hook_point.name for hook_point in hook_points]
    pairs = {"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": names}
    return (json.dumps(pairs | ({"timeout": timeout} if timeout else {}), indent=2) + "\n").encode()


def _endpoint(content: bytes) -> str:
    """Return the path of the socket that a registration file names; "" if it names none or cannot be read."""
    try:
        members = {key.casefold(): value for key, value in json.loads(content).items()}
        return parse_endpoint(members["remote-endpoint"], "")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, ConfigError):
        return ""


def _read(path: str, max_bytes: int) -> bytes | None:
    """Return a file's content; None if it does not exist, b"" if it cannot be read."""
    try:
        file = os.open(path, _ANY_FILE)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
    try:
        return os.read(file, max_bytes)
    except OSError:
        return b""
    finally:
        os.close(file)


class Registration:
    """One registration file; it has ``content`` between ``write`` and ``remove``."""

    def __init__(self, folder: str, name: str, content: bytes) -> None:
        self.path = os.path.join(folder, name)
        self._folder = folder
        self._sibling = os.path.join(folder, f".{name}.new")
        self._content = content
        self._endpoint = _endpoint(content)
        self._last_trouble = ""

    def write(self) -> None:
        """Write the file, creating its directory if missing, and remove other files with this server's socket. Raises
        ConfigError with what to do if that fails, or if the file belongs to another hook server that listens."""
        owner = self._other_endpoint(self._current_content())
        if owner and listens(owner):
            raise ConfigError(
                f"{self.path} is the registration of another hook server, which listens on {owner}; stop that one, or "
                f"remove the file if it has ended, or set {ORDER_FLAG} or {FLAG} so that this one has a file of its own"
            )
        try:
            self._replace()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: {error.strerror}; check the directory or set {FLAG}"
            ) from None
        if owner:
            log.warning("%s was the registration of another hook server, at %s: nobody listens there", self.path, owner)
        self._remove_older()  # only once the new file exists: under Fail no call may pass in between

    def watch(self) -> None:
        """Write the file again if it was removed or changed. A problem is logged once, and each call tries again. A
        file that now belongs to another hook server is not replaced while that server listens."""
        content = self._current_content()
        if content == self._content:
            return
        owner = self._other_endpoint(content)
        if owner and listens(owner):
            text = f"{self.path} is now the registration of another hook server, which listens on {owner}"
            self._report(
                f"{text}: the proxy does not know this one; start one of the two again with another {ORDER_FLAG}"
            )
            return
        try:
            self._replace()
            log.warning("%s %s: written again", self.path, "had vanished" if content is None else "was changed")
            self._last_trouble = ""
        except OSError as error:
            trouble = f"cannot write {self.path} again: {error.strerror}"
            self._report(f"{trouble}; the proxy may not know this server until it can be")

    def _report(self, trouble: str) -> None:
        if trouble != self._last_trouble:
            log.error("%s", trouble)
        self._last_trouble = trouble

    def remove(self) -> None:
        """Remove the file if it still has the content written here."""
        try:
            if self._current_content() == self._content:
                os.unlink(self.path)
        except OSError as error:
            log.error("cannot remove %s: %s; remove it by hand", self.path, error.strerror)

    def leave(self) -> None:
        """Keep the file, and log the effect if it still has the content written here."""
        if self._current_content() == self._content:
            log.warning(
                "%s stays, because its policy is %s: calls are refused until this server is back; "
                "to let them continue without it remove that file (with %s it is removed at the end)",
                self.path,
                FAIL,
                UNREGISTER_FLAG,
            )

    def _replace(self) -> None:
        for folder in (*reversed(Path(self._folder).parents), Path(self._folder)):
            folder.mkdir(mode=0o755, exist_ok=True)  # even under umask 0 only this user can write there
        # The proxy ignores the temporary file because of its leading dot. That of a killed process is removed, and a
        # link is never followed.
        with suppress(FileNotFoundError):
            os.unlink(self._sibling)
        try:
            with open(os.open(self._sibling, _NEW_FILE, 0o644), "wb") as file:
                file.write(self._content)
            os.replace(self._sibling, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(self._sibling)
            raise

    def _remove_older(self) -> None:
        """Remove other files with this server's socket, from a killed process with another order."""
        try:
            with os.scandir(self._folder) as entries:
                paths = [file.path for file in entries if file.name.endswith(".json") and not file.name.startswith(".")]
        except OSError as error:
            log.warning("cannot look for older registrations of this server in %s: %s", self._folder, error.strerror)
            return
        for path in sorted(paths):
            if path == self.path or not self._is_own(_read(path, _MAX_BYTES)):
                continue
            try:
                os.unlink(path)
                log.warning("%s named this server's socket, too, and was left over: removed", path)
            except OSError as error:
                twice = "names this server's socket, too, so each call would be made twice, and cannot be removed"
                log.error("%s %s: %s; remove it by hand", path, twice, error.strerror)

    def _is_own(self, content: bytes | None) -> bool:
        """Return whether a file's content names this server's socket, whose path may be spelt differently."""
        return os.path.realpath(_endpoint(content or b"")) == os.path.realpath(self._endpoint)

    def _other_endpoint(self, content: bytes | None) -> str:
        """Return the socket of another hook server in a registration; "" if none, or if it is this server's."""
        return "" if self._is_own(content) else _endpoint(content or b"")

    def _current_content(self) -> bytes | None:
        return _read(self.path, max(len(self._content) + 1, _MAX_BYTES))
