"""Peers that break the protocol and ignore all they read; and the cost of an attack."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from runtimeproxy.wire.http2 import FrameBuffer
from tests.cri import peer

TARGET_STREAM = 2
"""The stream that starts the runtime's flood: no sane client opens it."""
READ_BYTES = 1 << 16
PING, CREDIT = 0x6, 0x8


class HostileRuntime:
    """Answers each request with an empty message; sends ``flood`` to a client that opens ``TARGET_STREAM``.

    A stream whose credit is 0 is reset (RFC 9113, 6.9).
    """

    flood: Iterable[bytes] = ()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer(1 << 24)
        try:
            await reader.readexactly(len(peer.PREFACE))
            writer.write(peer.Settings().wire() + peer.Ack().wire())
            while data := await reader.read(READ_BYTES):
                length = 0
                for kind, flags, stream, payload in frames.feed(data):
                    length += len(payload) if kind == peer.DATA else 0
                    if kind == peer.HEADERS and stream == TARGET_STREAM:
                        for part in self.flood:
                            writer.write(part)
                            await writer.drain()
                    elif kind in (peer.DATA, peer.HEADERS) and flags & peer.END_STREAM:
                        writer.write(b"".join(frame.wire() for frame in answer(stream)))
                    elif kind == CREDIT and stream and payload == bytes(4):
                        writer.write(peer.Reset(stream, 1).wire())
                    elif kind == PING and not flags & peer.ACK:
                        writer.write(peer.Ping(bytes(8), ack=True).wire())
                if length:
                    writer.write(peer.Credit(0, length).wire())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the proxy ended it
        finally:
            writer.close()


def answer(stream: int) -> Sequence[peer.Frame]:
    response = peer.Headers(stream, peer.REPLY), peer.Data(stream, peer.grpc(b""))
    return (*response, peer.Headers(stream, peer.TRAILERS, end=True))


@asynccontextmanager
async def hostile_client(path: Path) -> AsyncIterator[Callable[[Iterable[bytes]], Awaitable[None]]]:
    """Connect, exchange SETTINGS and read all; yield a function that sends until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(peer.PREFACE + peer.Settings().wire() + peer.Ack().wire())
    await reader.read(1)  # the runtime's SETTINGS, or the end
    reading = asyncio.ensure_future(reader.read())

    async def send(parts: Iterable[bytes]) -> None:
        with suppress(OSError):
            for part in parts:
                if reading.done():
                    break
                writer.write(part)
                await writer.drain()

    try:
        yield send
    finally:
        writer.transport.abort()
        await asyncio.gather(reading, return_exceptions=True)


def joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join frames to a reasonable size for a write."""
    data = bytearray()
    for frame in frames:
        data += frame
        if len(data) >= READ_BYTES:
            yield bytes(data)
            data.clear()
    yield bytes(data)


class Process:
    """The resources of a process: memory in bytes, and descriptors."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid))

    def start_peak(self) -> int:
        """Reset the peak of its memory; return the present memory."""
        (self._folder / "clear_refs").write_text("5")
        return self._memory("VmRSS")

    def peak(self) -> int:
        return self._memory("VmHWM")

    def resident(self) -> int:
        """Return its private memory.

        Without pages of files: the kernel decides which pages of a program and its libraries are in memory, and one
        call of new code loads many (proc_pid_status(5), RssAnon).
        """
        return self._memory("RssAnon")

    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

    def _memory(self, figure: str) -> int:
        return int((self._folder / "status").read_text().partition(f"{figure}:")[2].split()[0]) * 1024
