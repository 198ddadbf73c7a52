"""Plain clients for tests of Docker mode: http.client on a unix socket, and raw bytes on a stream.

They send exactly what the test wrote and return exactly what came.
"""

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


class Raw:
    """A raw connection. Every read fails after ``TIMEOUT_SECONDS``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, path: str) -> Raw:
        return cls(*await asyncio.open_unix_connection(path, limit=1 << 24))

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *details: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def end(self) -> None:
        """Shut down writing."""
        self.writer.write_eof()

    async def head(self) -> bytes:
        return await self.until(b"\r\n\r\n")

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), TIMEOUT_SECONDS)

    async def exactly(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), TIMEOUT_SECONDS)

    async def chunk(self) -> bytes:
        """Return the data of a chunk; b"" for the last one."""
        size = int(await self.until(b"\r\n"), 16)
        return (await self.exactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), TIMEOUT_SECONDS)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true. Raises TimeoutError."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for iteration in count():
            if condition():
                return
            await asyncio.sleep(0 if iteration < ITERATIONS else 0.002)
