"""HTTP/2 peers that break the protocol: their memory is bounded, others are unaffected (promise 18, fault matrix X1).

30,000 frames of a client, or 80,000 of a runtime, exceed every bound. tests/cri/test_bounds.py tests each bound.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from runtimeproxy.wire.http2 import FrameBuffer
from tests.amounts import Amount
from tests.cri import peer
from tests.cri.peer import CREATE, VERSION, Credit, Data, block, raw_headers
from tests.system.clients import Client
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = {"client": Amount(30_000, 100_000), "runtime": Amount(80_000, 200_000)}
GROWTH_BYTES = 16 << 20
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Enters the dynamic table as its 62nd entry."""
TARGET_STREAM = 2
"""The stream that starts the runtime's flood: no sane client opens it."""
GREETING = peer.Settings().wire() + peer.Ack().wire()
PART_BYTES = 1 << 16
PING, CREDIT = 0x6, 0x8
Frames = Callable[[int], Iterator[bytes]]


class HostileRuntime:
    """Answers each request with an empty message; sends ``flood`` to a client that opens ``TARGET_STREAM``."""

    flood: Iterable[bytes] = ()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer(1 << 24)
        with suppress(OSError, asyncio.IncompleteReadError):  # the proxy ended it
            await reader.readexactly(len(peer.PREFACE))
            writer.write(GREETING)
            while data := await reader.read(PART_BYTES):
                received = list(frames.feed(data))
                for kind, flags, stream, payload in received:
                    if kind == peer.HEADERS and stream == TARGET_STREAM:
                        for part in self.flood:
                            writer.write(part)
                            await writer.drain()
                    elif kind in (peer.DATA, peer.HEADERS) and flags & peer.END_STREAM:
                        answer = peer.Headers(stream, peer.REPLY), peer.Data(stream, peer.grpc(b""))
                        end = peer.Headers(stream, peer.TRAILERS, end=True)
                        writer.write(b"".join(frame.wire() for frame in (*answer, end)))
                    elif kind == CREDIT and stream and payload == bytes(4):  # reset (RFC 9113, 6.9)
                        writer.write(peer.Reset(stream, 1).wire())
                    elif kind == PING and not flags & peer.ACK:
                        writer.write(peer.Ping(bytes(8), ack=True).wire())
                if length := sum(len(payload) for kind, _, _, payload in received if kind == peer.DATA):
                    writer.write(peer.Credit(0, length).wire())
                await writer.drain()
        writer.close()


async def attack(path: Path, parts: Iterable[bytes]) -> None:
    """Connect, exchange SETTINGS and read all; send until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(peer.PREFACE + GREETING)
    await reader.read(1)  # the runtime's SETTINGS, or the end
    reading = asyncio.ensure_future(reader.read())
    with suppress(OSError):
        for part in parts:
            if reading.done():
                break
            writer.write(part)
            await writer.drain()
    await asyncio.sleep(0.2)
    writer.transport.abort()
    await asyncio.gather(reading, return_exceptions=True)


def joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join frames to a reasonable size for a write."""
    data = bytearray()
    for frame in frames:
        data += frame
        if len(data) >= PART_BYTES:
            yield bytes(data)
            data.clear()
    yield bytes(data)


def repeated(frame: bytes) -> Frames:
    return lambda count: repeat(frame, count)


def on_streams(frames: Callable[[int], bytes]) -> Frames:
    """Send frames on many streams of the client."""
    return lambda count: map(frames, range(101, 101 + 2 * count, 2))


def unfinished(count: int) -> Iterator[bytes]:
    """Begin a header block and never end it."""
    fragment = peer.continuation(101, b"\x00\x01a\x01b" * 20, end_headers=False)
    return chain([raw_headers(101, VERSION_BLOCK, end_headers=False)], repeat(fragment, count))


def bomb(count: int) -> Iterator[bytes]:
    """Refer to a big field repeatedly."""
    yield raw_headers(99, VERSION_BLOCK + BIG_FIELD)
    yield from on_streams(lambda stream: raw_headers(stream, b"\xbe" * 16_000))(count)


ATTACKS: dict[str, Frames] = {
    "oversize frame": lambda _: iter([((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)]),
    "no HTTP/2": lambda _: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)]),
    "HPACK bomb": bomb,
    "CONTINUATION": unfinished,
    "open streams": on_streams(lambda stream: raw_headers(stream, VERSION_BLOCK)),
    "DATA above every window": repeated(Data(TARGET_STREAM, bytes(16_384)).wire()),
    "rapid reset": on_streams(lambda sid: raw_headers(sid, VERSION_BLOCK) + peer.Reset(sid, 8).wire()),
    "rapid reset of held calls": on_streams(lambda sid: raw_headers(sid, CREATE_BLOCK) + peer.Reset(sid, 8).wire()),
    "MadeYouReset": on_streams(lambda sid: raw_headers(sid, VERSION_BLOCK) + Credit(sid, 0).wire()),
    "empty DATA": lambda count: chain([raw_headers(1, VERSION_BLOCK)], repeat(Data(1, b"").wire(), count)),
    "PING": repeated(peer.Ping(bytes(8)).wire()),
    "SETTINGS": repeated(peer.Settings(((4, 1), (4, 2))).wire()),
    "WINDOW_UPDATE": repeated(Credit(0, 1).wire()),
    "unknown frames": repeated(peer.Raw(0xEE, 0, 0).wire()),
    "GOAWAY": repeated(peer.GoAway(0).wire()),
}
"""The frames of a peer: they pass, or its connection ends; none of them is stored."""


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("side", ["client", "runtime"])
async def test_attack_costs_little_and_fails_no_other_call(side: str, name: str, tmp_path: Path) -> None:
    runtime, over = HostileRuntime(), asyncio.Event()

    async def call_until_over() -> None:
        while not over.is_set():
            await another.call("Version")

    async with (
        await asyncio.start_unix_server(runtime.serve, str(tmp_path / "runtime.sock")),
        ProxyProcess(tmp_path, log_level="info") as proxy,
        Client(proxy.socket) as another,
    ):
        await another.call("Version")
        calling = asyncio.create_task(call_until_over())
        process = Process(proxy.pid)
        descriptors, memory = process.descriptors(), process.start_peak()
        parts = joined(ATTACKS[name](FRAMES[side].now))
        if side == "runtime":
            runtime.flood = parts
            parts = iter([raw_headers(stream, VERSION_BLOCK, end=stream != 1) for stream in (1, TARGET_STREAM)])
        await attack(proxy.socket, parts)
        await until(lambda: process.descriptors() <= descriptors + 1, "its descriptors are closed")
        assert process.peak() - memory <= GROWTH_BYTES
        over.set()
        await calling
        await another.call("Version")
    assert proxy.output().count("broke the protocol") <= 1
