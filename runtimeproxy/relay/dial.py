"""Connect to a unix socket.

Invariant: a returned socket is connected. With a full backlog (EAGAIN) asyncio reports a connection that is none and
uvloop raises, so plain sockets are used (relay-rules A12).
"""

import asyncio
import errno
import os
import socket
import stat

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.files import folder_fault, peer_credentials

RETRY_SECONDS = 0.005
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors that do not concern the listener: the proxy lacks descriptors or memory, and tries again (fault matrix P8)."""
SCARCE_RETRY_SECONDS = 0.1


class UntrustedSocket(RuntimeProxyError):
    """Another user than root or the proxy's own could answer at a socket; the text names that user and the remedy."""


def own_shortage(lacking: str) -> str:
    """Return the message that the proxy could not connect for want of ``lacking``, which is the system's own text."""
    return f"the proxy itself lacks what it needs: {lacking}"


def why(error: OSError) -> str:
    """Return why a connection could not be made; a shortage in the proxy is not blamed on the listener."""
    if isinstance(error, TimeoutError):
        return "it accepts no connection: its backlog stays full"
    reason = error.strerror or type(error).__name__
    return own_shortage(reason) if error.errno in SCARCE else reason


def dial_now(path: str) -> socket.socket | None:
    """Connect without waiting and return the socket; None if the backlog is full. Raises OSError if nobody listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
    except BlockingIOError:
        sock.close()
        return None
    except OSError:
        sock.close()
        raise
    return sock


async def dial(path: str, seconds: float) -> socket.socket:
    """Connect, trying every 5 ms while the backlog is full, for ``seconds`` at most. Raises OSError if nobody listens,
    TimeoutError if the backlog stays full.
    """
    async with asyncio.timeout(seconds):
        while (sock := dial_now(path)) is None:
            await asyncio.sleep(RETRY_SECONDS)
    return sock


def dial_trusted(path: str) -> socket.socket | None:
    """Connect as ``dial_now`` does, if only root or the proxy's own user can have made the socket (fault matrix X6).

    As for the proxy's own socket, its directory is checked; links are followed only above that. A sticky directory such
    as /tmp is not enough: the first process there may put a socket, or a link to another one, in the server's place.
    Raises OSError, UntrustedSocket.
    """
    _check_place(os.path.dirname(path), path)
    sock = dial_now(path)
    if sock is not None:
        try:
            _check_peer(sock, path)
        except UntrustedSocket:
            sock.close()
            raise
    return sock


def _check_place(folder: str, path: str) -> None:
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise UntrustedSocket(f"{folder} is a link: register the socket by the path of its real directory")
    if fault := folder_fault(found, None):
        raise UntrustedSocket(f"{folder} {fault}, who could replace the socket: chown it to root and chmod it to 0755")
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise UntrustedSocket(f"{path} is a link or no socket: register the path of the hook server's own socket")
    if not _ours(found.st_uid):
        raise UntrustedSocket(f"{path} belongs to user {found.st_uid}: {_RUN_AS}")


def _check_peer(sock: socket.socket, path: str) -> None:
    """Check the user who listens: another process than the file's owner may have called listen(2)."""
    _, uid, _ = peer_credentials(sock)
    if not _ours(uid):
        raise UntrustedSocket(f"user {uid} listens on {path}: {_RUN_AS}")


_RUN_AS = "run the hook server as root, or as the proxy's own user"


def _ours(uid: int) -> bool:
    return uid in (0, os.geteuid())
