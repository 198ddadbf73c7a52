"""A scripted HTTP/2 server on a unix socket: after its SETTINGS, a test controls it frame by frame."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from runtimeproxy.wire import grpc, headers, http2
from tests.fakes.server import StreamServer

Frame = tuple[int, int, int, bytes]

HEAD = headers.build([(b":status", b"200"), (b"content-type", b"application/grpc")])
GOOD_END = headers.build([(b"grpc-status", b"0")])


def answer(stream: int, message: bytes) -> bytes:
    body = http2.frame(http2.DATA, 0, stream, grpc.message(message))
    return http2.header_frames(stream, HEAD, False) + body + http2.header_frames(stream, GOOD_END, True)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = http2.FrameBuffer(2**24)
        self._pending: deque[Frame] = deque()

    async def begin(self, settings: dict[int, int]) -> None:
        """Read the preface, send SETTINGS and the ACK."""
        assert await self._reader.readexactly(len(http2.PREFACE)) == http2.PREFACE
        self.send(http2.settings(settings) + http2.SETTINGS_ACK)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def next(self, kind: int) -> Frame:
        """Return the next frame of a type; those before it are dropped. Raises EOFError at the end."""
        while True:
            while self._pending:
                frame = self._pending.popleft()
                if frame[0] == kind:
                    return frame
            try:
                data = await self._reader.read(2**16)
            except ConnectionResetError:  # closed with unread bytes of ours
                data = b""
            if not data:
                raise EOFError
            self._pending += self._frames.feed(data)

    async def request(self) -> int:
        return (await self.next(http2.HEADERS))[2]

    def close(self) -> None:
        self.writer.transport.abort()


class Server:
    def __init__(self, settings: dict[int, int] | None, begins: bool) -> None:
        self.accepted = 0
        self.open: list[Connection] = []
        self._settings = settings or {}
        self._begins = begins
        self._connections: asyncio.Queue[Connection] = asyncio.Queue()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = Connection(reader, writer)
        self.open.append(connection)
        with suppress(EOFError):  # it closed immediately
            if self._begins:
                await connection.begin(self._settings)
            self._connections.put_nowait(connection)

    async def connection(self) -> Connection:
        async with asyncio.timeout(20):
            return await self._connections.get()


@asynccontextmanager
async def serve(path: str, settings: dict[int, int] | None = None, *, begins: bool = True) -> AsyncIterator[Server]:
    """Serve at a path; ``begins`` is False for a server that sends nothing by itself."""
    made = Server(settings, begins)
    async with StreamServer(path, made.accept):
        yield made
    for connection in made.open:
        connection.close()
    if os.path.exists(path):
        os.unlink(path)
