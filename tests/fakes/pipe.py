"""A bare pipe: only copies bytes between two unix sockets on uvloop, as the upper limit for a relay.

Run: ``python -m tests.fakes.pipe LISTEN BACKEND``.
"""

import asyncio
import sys
from typing import Any

import uvloop


class End(asyncio.Protocol):
    """One end of a pair: its bytes are written to the peer, once that is connected."""

    def __init__(self, peer: Any = None) -> None:
        self.peer = peer
        self.early = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            self.early += data
        else:
            self.peer.write(data)

    def pause_writing(self) -> None:
        """Pause the peer while too much is queued here, so that a big transfer is not buffered."""
        self.peer.pause_reading()

    def resume_writing(self) -> None:
        self.peer.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.peer is not None:
            self.peer.close()


class Client(End):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.dialling = asyncio.create_task(self.dial(transport))

    async def dial(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self.peer, _ = await loop.create_unix_connection(lambda: End(client), self.backend)
        self.peer.write(self.early)


async def main(listen: str, backend: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(lambda: Client(backend), listen)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
