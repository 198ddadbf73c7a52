"""http.client on a unix socket, and a wait on the event loop."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable
from itertools import count

TIMEOUT_SECONDS = 20.0
ITERATIONS = 100
"""Iterations of the event loop, in which most things happen that depend on this loop only."""


class UnixHttpConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None = TIMEOUT_SECONDS) -> None:
        super().__init__(path, timeout=timeout)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true. Raises TimeoutError."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for iteration in count():
            if condition():
                return
            await asyncio.sleep(0 if iteration < ITERATIONS else 0.002)
