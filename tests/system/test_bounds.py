"""HTTP/2 peers that break the protocol: their connection ends, their memory is bounded, others are unaffected.

That is promise 18, fault matrix X1. 30,000 frames of a client, or 80,000 of a runtime, exceed every bound. Each bound
by itself: tests/cri/test_bounds.py.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.cri import peer
from tests.cri.peer import CREATE, VERSION, Credit, Data, block, raw_headers
from tests.system.clients import Client
from tests.system.hostile import GREETING, TARGET_STREAM, HostileClient, HostileRuntime, Process, joined
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = {"client": Amount(30_000, 100_000), "runtime": Amount(80_000, 200_000)}
GROWTH_BYTES = 16 << 20
CALM, BROKEN = 0xB, 0x1
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Enters the dynamic table as its 62nd entry."""
TOO_LONG = ((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)

Frames = Callable[[int], Iterator[bytes]]


def again(frame: bytes) -> Frames:
    return lambda count: repeat(frame, count)


def once(frame: bytes) -> Frames:
    return lambda _: iter([frame])


def on_streams(frames: Callable[[int], bytes]) -> Frames:
    """Send frames on many streams of the client."""
    return lambda count: map(frames, range(101, 101 + 2 * count, 2))


def unfinished(count: int) -> Iterator[bytes]:
    """Begin a header block and never end it."""
    fragment = peer.continuation(101, b"\x00\x01a\x01b" * 20, whole=False)
    return chain([raw_headers(101, VERSION_BLOCK, whole=False)], repeat(fragment, count))


def bomb(count: int) -> Iterator[bytes]:
    """Refer to a big field repeatedly."""
    yield raw_headers(99, VERSION_BLOCK + BIG_FIELD)
    yield from on_streams(lambda stream: raw_headers(stream, b"\xbe" * 16_000))(count)


@dataclass(frozen=True)
class Attack:
    """``frames`` of a peer; ``kind`` is the bound that ends it, ``code`` the error that a client gets."""

    frames: Frames
    kind: str
    code: int = CALM
    greeting: bytes = GREETING


ATTACKS: dict[tuple[str, str], Attack] = {
    ("client", "oversize frame"): Attack(once(TOO_LONG), "frame_size", BROKEN),
    ("client", "HPACK bomb"): Attack(bomb, "protocol", BROKEN, greeting=peer.PREFACE + peer.Settings().wire()),
    ("client", "CONTINUATION"): Attack(unfinished, "header_block"),
    ("client", "open streams"): Attack(on_streams(lambda stream: raw_headers(stream, VERSION_BLOCK)), "open_streams"),
    ("runtime", "no HTTP/2"): Attack(once(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)), "frame_size"),
    ("runtime", "HPACK bomb"): Attack(lambda count: chain([peer.Ack().wire()], bomb(count)), "protocol"),
    ("runtime", "DATA above every window"): Attack(again(Data(TARGET_STREAM, bytes(16_384)).wire()), "protocol"),
}
FLOODS: dict[str, Frames] = {
    "rapid reset": on_streams(lambda one: raw_headers(one, VERSION_BLOCK) + peer.Reset(one, 8).wire()),
    "rapid reset of held calls": on_streams(lambda one: raw_headers(one, CREATE_BLOCK) + peer.Reset(one, 8).wire()),
    "MadeYouReset": on_streams(lambda one: raw_headers(one, VERSION_BLOCK) + Credit(one, 0).wire()),
    "empty DATA": lambda count: chain([raw_headers(1, VERSION_BLOCK)], repeat(Data(1, b"").wire(), count)),
    "PING": again(peer.Ping(bytes(8)).wire()),
    "PING ACK": again(peer.Ping(bytes(8), ack=True).wire()),
    "SETTINGS": again(peer.Settings(((4, 1), (4, 2))).wire()),
    "PRIORITY": again(peer.Raw(2, 0, 1, bytes(5)).wire()),
    "WINDOW_UPDATE": again(Credit(0, 1).wire()),
    "unknown frames": again(peer.Raw(0xEE, 0, 0).wire()),
    "resets of no stream": again(peer.Reset(1, 8).wire()),
    "GOAWAY": again(peer.GoAway(0).wire()),
}
"""Floods without any use: they pass, or that connection ends; nothing of them is stored."""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[HostileRuntime]:
    async with HostileRuntime(tmp_path / "runtime.sock").serving() as serving:
        yield serving


@asynccontextmanager
async def calls_of_another_client(socket: Path) -> AsyncIterator[None]:
    """Make calls on a connection of their own during the block; each must be answered."""
    over, made = False, 0

    async def calls(client: Client) -> None:
        nonlocal made
        while not over:
            await client.call("Version")
            made += 1
            await asyncio.sleep(0.001)

    async with Client(socket) as client:
        calling = asyncio.ensure_future(calls(client))
        await until(lambda: calling.done() or made > 2, "a call is answered")
        yield
        before = made
        await until(lambda: calling.done() or made > before + 2, "calls are answered still")
        over = True
        await calling


@asynccontextmanager
async def attacker(proxy: ProxyProcess, greeting: bytes = GREETING) -> AsyncIterator[HostileClient]:
    """Connect a client that costs no more memory than ``GROWTH_BYTES`` and no descriptor, while others make calls."""
    async with calls_of_another_client(proxy.socket):
        process = Process(proxy.pid)
        descriptors, memory = process.descriptors(), process.start_peak()
        async with HostileClient.connected(proxy.socket, greeting) as client:
            yield client
        await until(lambda: process.descriptors() <= descriptors + 1, "its descriptors are closed")
        assert process.peak() - memory <= GROWTH_BYTES


async def send(client: HostileClient, runtime: HostileRuntime, side: str, frames: Iterator[bytes]) -> None:
    """Send frames from the client, or from the runtime on the client's request."""
    if side == "client":
        await client.send(joined(frames))
    else:
        runtime.flood = joined(frames)
        await client.send([raw_headers(1, VERSION_BLOCK), raw_headers(TARGET_STREAM, VERSION_BLOCK, end=True)])


@pytest.mark.parametrize(("side", "name"), ATTACKS)
async def test_attack_ends_its_own_connection(side: str, name: str, tmp_path: Path, runtime: HostileRuntime) -> None:
    attack = ATTACKS[side, name]
    async with ProxyProcess(tmp_path, log_level="info") as proxy:
        async with attacker(proxy, attack.greeting) as client:
            await send(client, runtime, side, attack.frames(FRAMES[side].now))
            code = await client.end_code()
            assert code == attack.code if side == "client" else not code
        await until(lambda: proxy.output().count(f"the {side} broke the protocol") == 1, "it is logged")
        os.kill(proxy.pid, signal.SIGUSR1)
        counted = f'runtimeproxy_connections_broken_total{{side="{side}",kind="{attack.kind}"}} 1'
        await until(lambda: counted in proxy.output(), "it is counted", proxy.output)
    assert proxy.output().count("connections_broken_total{") == 1


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("side", ["client", "runtime"])
async def test_flood_costs_little(side: str, name: str, tmp_path: Path, runtime: HostileRuntime) -> None:
    async with ProxyProcess(tmp_path) as proxy, attacker(proxy) as client:
        await send(client, runtime, side, FLOODS[name](FRAMES["client"].now))
        await asyncio.sleep(0.2)
