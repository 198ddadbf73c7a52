"""The path of the hook server's socket: it has one owner, and no other file at the path is changed.

Invariants: gRPC removes any file at the path that it binds, before and after, so it never gets the real path. The
socket has its mode and is served before it gets its real name.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from runtimeproxy.files import identity
from runtimeproxy.relay.listener import claimed

log = logging.getLogger(__name__)

FLAG = "--endpoint"
_NARROW = 0o177
"""The umask under which a socket is created with mode 0600."""


class SocketPath:
    """The path of a socket created here; ``lock`` is the file descriptor of the lock next to it."""

    def __init__(self, path: str, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock
        self._made = identity(path)

    def close(self) -> None:
        """Remove the socket if it is still the one created here, and release the lock. May be repeated. A socket that
        cannot be removed is logged."""
        if self._lock is None:
            return
        if identity(self.path) == self._made:
            try:
                os.unlink(self.path)
            except OSError as error:
                log.warning(
                    "%s stays: it cannot be removed (%s); the next start tries again", self.path, error.strerror
                )
        os.close(self._lock)
        self._lock = None


def place(path: str, serve: Callable[[str], None]) -> SocketPath:
    """Create a socket by ``serve`` and link it to ``path``; the directory is created if missing.

    ``serve`` is called with a temporary path to bind and listen at, and returns when connections are accepted. Raises
    ConfigError with what to do if the path cannot be used, and the exceptions of ``serve``.
    """
    with claimed(path, flag=FLAG, owner="hook server") as (folder, lock):
        # Named by the lock file's inode, so that no other server in the directory, in any PID namespace, has the same
        # name; reached through /proc, so that the path is short for any directory.
        name = f".{os.fstat(lock).st_ino}.sock"
        try:
            before = os.umask(_NARROW)
            try:
                serve(f"/proc/self/fd/{folder}/{name}")
            finally:
                os.umask(before)
            os.link(name, os.path.basename(path), src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            with suppress(OSError):  # usually because serve failed and there is none
                os.unlink(name, dir_fd=folder)
    return SocketPath(path, lock)


def listens(path: str) -> bool:
    """Return whether a server listens on a unix socket, as far as connecting shows it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (BlockingIOError, PermissionError):
            return True  # its backlog is full, or this user may not connect
        except (OSError, ValueError):
            return False  # there is no socket, nobody listens, or the path cannot be a socket's
    return True
