"""A client of CRI that sends and reads frames: it goes on whatever it reads, as h2 does not behind GOAWAY.

What it sends leaves at once; nothing is waited for.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runtimeproxy.wire import grpc, headers, http2
from tests.system.proxy import until


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = http2.FrameBuffer()
        self.told: list[tuple[str, int]] = []
        """What came: GOAWAY and its last id, RST_STREAM of a stream with REFUSED_STREAM, the end of a stream."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while data := await self._reader.read(65536):
            for kind, flags, stream, payload in self._frames.feed(data):
                if kind == http2.SETTINGS and not flags & http2.ACK:
                    self._writer.write(http2.SETTINGS_ACK)
                elif kind == http2.GOAWAY:
                    self.told.append(("goaway", http2.read_u32(payload)))
                elif kind == http2.RST_STREAM and http2.read_u32(payload) == http2.REFUSED_STREAM:
                    self.told.append(("refused", stream))
                elif flags & http2.END_STREAM and kind in (http2.DATA, http2.HEADERS):
                    self.told.append(("answered", stream))
        self.told.append(("end", 0))

    def call(self, stream: int, method: str, message: bytes = b"") -> None:
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/runtime.v1.RuntimeService/{method}".encode()),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        self._writer.write(http2.header_frames(stream, headers.build(fields), False))
        self._writer.write(http2.frame(http2.DATA, http2.END_STREAM, stream, grpc.message(message)))

    def ping(self) -> None:
        """Send a PING at once. Raises BrokenPipeError if nobody reads any more."""
        os.write(self._writer.get_extra_info("socket").fileno(), http2.frame(http2.PING, 0, 0, bytes(8)))

    async def sees(self, what: str, number: int) -> None:
        await until(lambda: (what, number) in self.told, f"the client sees {what} {number}", lambda: str(self.told))

    def reset(self, stream: int) -> None:
        self._writer.write(http2.rst_stream(stream, http2.CANCEL))

    @classmethod
    @asynccontextmanager
    async def connected(cls, path: Path) -> AsyncIterator["RawClient"]:
        """Connect and exchange SETTINGS."""
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(http2.PREFACE + http2.settings({}))
        client = cls(reader, writer)
        try:
            yield client
        finally:
            client._reading.cancel()
            await asyncio.gather(client._reading, return_exceptions=True)
            writer.close()
