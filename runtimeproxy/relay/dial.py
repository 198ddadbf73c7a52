"""Connecting to a unix socket without surprises.

Owns connect(2) on unix sockets.
Must not know: what is spoken on the connection.
Invariant: a connection that is returned is one. asyncio reports a connection where the backlog is full (EAGAIN) and
uvloop raises, so this stands on plain sockets (relay-rules A12).
"""

import asyncio
import socket

RETRY_SECONDS = 0.005


def dial_now(path: str) -> socket.socket | None:
    """Connect at once; None if the listener's backlog is full. Raises OSError if nobody listens."""
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
    """Connect, trying every 5 ms while the backlog is full, for a time.

    Raises OSError if nobody listens, TimeoutError if the backlog stays full.
    """
    async with asyncio.timeout(seconds):
        while (sock := dial_now(path)) is None:
            await asyncio.sleep(RETRY_SECONDS)
    return sock
