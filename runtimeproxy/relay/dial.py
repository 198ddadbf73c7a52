"""Connect to a unix socket.

Invariant: a returned socket is connected. With a full backlog (EAGAIN), asyncio reports an unconnected socket as
connected and uvloop raises, so plain sockets are used (relay-rules A12).
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
"""Errors of the proxy itself: it lacks descriptors or memory, and retries (fault matrix P8)."""
SCARCE_RETRY_SECONDS = 0.1


class UntrustedSocket(RuntimeProxyError):
    """A user other than root or the proxy's own could serve the socket; the text names that user and the remedy."""


def own_shortage(lacking: str) -> str:
    """Return the error text for a resource that the proxy lacks; ``lacking`` is the system's message."""
    return f"the proxy itself lacks what it needs: {lacking}"


def describe_error(error: OSError) -> str:
    """Return why connecting failed; a shortage in the proxy is not attributed to the listener."""
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

    The socket's directory is checked as that of the proxy's own socket; only links above it are followed. A sticky
    directory such as /tmp is not enough: any process may create a socket or a link there before the server does. Raises
    OSError, UntrustedSocket.
    """
    _check_location(os.path.dirname(path), path)
    sock = dial_now(path)
    if sock is not None:
        try:
            _check_peer(sock, path)
        except UntrustedSocket:
            sock.close()
            raise
    return sock


def _check_location(folder: str, path: str) -> None:
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedSocket(f"{folder} is a link: register the socket by the path of its real directory")
    if fault := folder_fault(status, None):
        raise UntrustedSocket(f"{folder} {fault}, who could replace the socket: chown it to root and chmod it to 0755")
    status = os.lstat(path)
    if not stat.S_ISSOCK(status.st_mode):
        raise UntrustedSocket(f"{path} is a link or no socket: register the path of the hook server's own socket")
    if not _is_trusted_user(status.st_uid):
        raise UntrustedSocket(f"{path} belongs to user {status.st_uid}: {_RUN_AS}")


def _check_peer(sock: socket.socket, path: str) -> None:
    """Check the user who listens: another process than the file's owner may have called listen(2)."""
    _, uid, _ = peer_credentials(sock)
    if not _is_trusted_user(uid):
        raise UntrustedSocket(f"user {uid} listens on {path}: {_RUN_AS}")


_RUN_AS = "run the hook server as root, or as the proxy's own user"


def _is_trusted_user(uid: int) -> bool:
    return uid in (0, os.geteuid())
