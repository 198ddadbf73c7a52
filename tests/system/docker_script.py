"""A daemon whose every byte the test writes itself.

Nothing is answered, nothing ends, but by the test.
"""

import asyncio
import os
from pathlib import Path
from typing import Self

from tests.fakes.dockerd_client import Raw
from tests.system.docker_streams import SECONDS


class Scripted:
    """A daemon that does nothing by itself but listen; ``asked`` hands a test its end of a client's connection."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._asked: list[tuple[bytes, Raw]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._more = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        os.unlink(self._path)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        self._asked.append((head, Raw(reader, writer)))
        self._more.set()

    async def asked(self, line: str) -> tuple[bytes, Raw]:
        """Wait for a request that begins so; return its head, and the connection behind it."""
        async with asyncio.timeout(SECONDS):
            while True:
                for number, (head, _) in enumerate(self._asked):
                    if head.startswith(line.encode()):
                        return self._asked.pop(number)
                self._more.clear()
                await self._more.wait()
