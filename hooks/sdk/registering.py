"""The registration file: what tells the proxy where the hook server listens and what for.

Owns the file's name and content, that it is there as long as the server listens, and its removal.
Must not know: sockets, hooks beyond the names of their points.
Invariant: the file is written whole at once, and it is removed only if it still says what was written here.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookpoints import HookPoint

log = logging.getLogger(__name__)

FLAG = "--register-dir"
POLICIES = ("Ignore", "Fail")
LAST_ORDER = 99
"""Two digits: the proxy asks plugins in the order of their files' names, in which 100 comes before 20."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_ANY_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def file_name(name: str, order: int | None) -> str:
    """Return the file's name: ``NN-name.json``, or ``name.json`` without an order."""
    return f"{name}.json" if order is None else f"{order:02d}-{name}.json"


def entry(endpoint: str, points: Sequence[HookPoint], policy: str, timeout: str | None) -> bytes:
    """Return the file's content; ``timeout`` as the proxy reads it ("500ms"), None to leave it to the proxy."""
    pairs = {"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": [point.name for point in points]}
    return (json.dumps(pairs | ({"timeout": timeout} if timeout else {}), indent=2) + "\n").encode()


class Registration:
    """One registration file; ``content`` stands in it between ``write`` and ``remove``."""

    def __init__(self, folder: str, name: str, content: bytes) -> None:
        self.path = os.path.join(folder, name)
        self._folder = folder
        self._beside = os.path.join(folder, f".{name}.new")
        self._content = content
        self._trouble = ""

    def write(self) -> None:
        """Write the file; its directory is made if missing. Raises ConfigError with what to do if that cannot be."""
        try:
            self._replace()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: {error.strerror}; check the directory or set {FLAG}"
            ) from None

    def look_after(self) -> None:
        """Write the file again if it vanished or was changed; a trouble is logged once, and tried again next time."""
        try:
            found = self._found()
            if found == self._content:
                return
            self._replace()
            log.warning("%s %s: written again", self.path, "had vanished" if found is None else "was changed")
            self._trouble = ""
        except OSError as error:
            trouble = f"cannot write {self.path} again: {error.strerror}"
            if trouble != self._trouble:
                log.error("%s; the proxy may not know this server until it can be", trouble)
            self._trouble = trouble

    def remove(self) -> None:
        """Remove the file if it still says what was written."""
        try:
            if self._found() == self._content:
                os.unlink(self.path)
        except OSError as error:
            log.error("cannot remove %s: %s; remove it by hand", self.path, error.strerror)

    def _replace(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        # Beside it, with a dot, which the proxy passes over. What a kill left there is removed, a link never followed.
        with suppress(FileNotFoundError):
            os.unlink(self._beside)
        try:
            with open(os.open(self._beside, _NEW_FILE, 0o644), "wb") as file:
                file.write(self._content)
            os.replace(self._beside, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(self._beside)
            raise

    def _found(self) -> bytes | None:
        """Return what stands in the file, as far as it can be ours; None if there is none, b"" if it is no file."""
        try:
            file = os.open(self.path, _ANY_FILE)
        except FileNotFoundError:
            return None
        except OSError:
            return b""
        try:
            return os.read(file, len(self._content) + 1)
        except OSError:
            return b""
        finally:
            os.close(file)
