"""HTTP/2 peers that break the protocol: their memory is bounded, others are unaffected (promise 18, fault matrix X1).

30,000 frames of a client, or 80,000 of a runtime, exceed every bound. tests/cri/test_bounds.py tests each bound.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.cri import peer
from tests.cri.peer import CREATE, VERSION, Credit, Data, block, raw_headers
from tests.system.clients import Client
from tests.system.hostile import TARGET_STREAM, HostileRuntime, Process, hostile_client, joined
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = {"client": Amount(30_000, 100_000), "runtime": Amount(80_000, 200_000)}
GROWTH_BYTES = 16 << 20
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Enters the dynamic table as its 62nd entry."""

Frames = Callable[[int], Iterator[bytes]]


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
    "PING ACK": repeated(peer.Ping(bytes(8), ack=True).wire()),
    "SETTINGS": repeated(peer.Settings(((4, 1), (4, 2))).wire()),
    "PRIORITY": repeated(peer.Raw(2, 0, 1, bytes(5)).wire()),
    "WINDOW_UPDATE": repeated(Credit(0, 1).wire()),
    "unknown frames": repeated(peer.Raw(0xEE, 0, 0).wire()),
    "resets of no stream": repeated(peer.Reset(1, 8).wire()),
    "GOAWAY": repeated(peer.GoAway(0).wire()),
}
"""The frames of a peer: they pass, or its connection ends; none of them is stored."""


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("side", ["client", "runtime"])
async def test_attack_costs_little_and_fails_no_other_call(side: str, name: str, tmp_path: Path) -> None:
    runtime, over = HostileRuntime(), asyncio.Event()

    async def calls_of_another() -> None:
        """Make calls on another connection; each must be answered."""
        while not over.is_set():
            await another.call("Version")

    async with (
        await asyncio.start_unix_server(runtime.serve, str(tmp_path / "runtime.sock")),
        ProxyProcess(tmp_path, log_level="info") as proxy,
        Client(proxy.socket) as another,
    ):
        await another.call("Version")
        calling = asyncio.create_task(calls_of_another())
        process = Process(proxy.pid)
        descriptors, memory = process.descriptors(), process.start_peak()
        async with hostile_client(proxy.socket) as send:
            if side == "client":
                await send(joined(ATTACKS[name](FRAMES[side].now)))
            else:
                runtime.flood = joined(ATTACKS[name](FRAMES[side].now))
                await send(raw_headers(stream, VERSION_BLOCK, end=stream != 1) for stream in (1, TARGET_STREAM))
            await asyncio.sleep(0.2)
        await until(lambda: process.descriptors() <= descriptors + 1, "its descriptors are closed")
        assert process.peak() - memory <= GROWTH_BYTES
        over.set()
        await calling
        await another.call("Version")
    assert proxy.output().count("broke the protocol") <= 1
