"""HTTP/2 peers that break the protocol: their connection ends, their memory is bounded, others are unaffected.

That is promise 18, fault matrix X1. 30,000 frames of a client, or 80,000 of a runtime, exceed every bound. Each bound
by itself: tests/cri/test_bounds.py, tests/cri/test_reader_limits.py.
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
from tests.engines import cri
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.h2client import H2Client
from tests.system.hostile import GREETING, TARGET_STREAM, HostileClient, HostileRuntime, Process, pieces
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = {"client": Amount(30_000, 100_000), "runtime": Amount(80_000, 200_000)}
GROWTH_BYTES = 16 << 20
PATH = "/runtime.v1.RuntimeService/Version"

CALM, BROKEN = 0xB, 0x1
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
RUN_POD_BLOCK = block(peer.request(b"/runtime.v1.RuntimeService/RunPodSandbox"))
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Enters the dynamic table as its 62nd entry."""

Frames = Callable[[int], Iterator[bytes]]


def again(frame: bytes) -> Frames:
    return lambda count: repeat(frame, count)


def opened(count: int) -> range:
    """Return the numbers of so many streams of the client."""
    return range(101, 101 + 2 * count, 2)


def resets(fragment: bytes) -> Frames:
    """Open a stream and reset it."""
    return lambda count: (raw_headers(one, fragment) + peer.Reset(one, 8).wire() for one in opened(count))


def made_resets(count: int) -> Iterator[bytes]:
    """Open streams and make the runtime reset them."""
    return (raw_headers(stream, VERSION_BLOCK) + Credit(stream, 0).wire() for stream in opened(count))


def unfinished(piece: bytes) -> Frames:
    """Begin a header block and never end it."""
    return lambda count: chain(
        [raw_headers(101, VERSION_BLOCK, whole=False)], repeat(peer.continuation(101, piece, whole=False), count)
    )


def bomb(count: int) -> Iterator[bytes]:
    """Refer to a big field repeatedly."""
    yield raw_headers(99, VERSION_BLOCK + BIG_FIELD)
    yield from (raw_headers(stream, b"\xbe" * 16_000) for stream in opened(count))


def once(frame: bytes) -> Frames:
    return lambda _: iter([frame])


@dataclass(frozen=True)
class Attack:
    """``frames`` of a peer; ``kind`` is the bound that ends it, ``code`` the error that a client gets."""

    frames: Frames
    kind: str
    code: int = CALM
    greeting: bytes = GREETING


LONG = ((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)

ATTACKS: dict[tuple[str, str], Attack] = {
    ("client", "oversize frame"): Attack(once(LONG), "frame_size", BROKEN),
    ("client", "HPACK bomb"): Attack(bomb, "protocol", BROKEN, greeting=peer.PREFACE + peer.Settings().wire()),
    ("client", "CONTINUATION"): Attack(unfinished(b"\x00\x01a\x01b" * 20), "header_block"),
    ("client", "open streams"): Attack(
        lambda count: (raw_headers(stream, VERSION_BLOCK) for stream in opened(count)), "open_streams"
    ),
    ("runtime", "no HTTP/2"): Attack(once(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)), "frame_size"),
    ("runtime", "HPACK bomb"): Attack(lambda count: chain([peer.Ack().wire()], bomb(count)), "protocol"),
    ("runtime", "DATA above every window"): Attack(again(Data(TARGET_STREAM, bytes(16_384)).wire()), "protocol"),
}

FLOODS: dict[str, Frames] = {
    "rapid reset": resets(VERSION_BLOCK),
    "rapid reset of held calls": resets(CREATE_BLOCK),
    "MadeYouReset": made_resets,
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
"""Floods without any use: they pass, or that connection ends; nothing of them is kept."""

ASKED = raw_headers(TARGET_STREAM, VERSION_BLOCK, end=True)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[HostileRuntime]:
    async with HostileRuntime(tmp_path / "runtime.sock").serving() as serving:
        yield serving


@asynccontextmanager
async def calls_going_on(socket: Path) -> AsyncIterator[None]:
    """Make calls on a connection of their own all the while; each must be answered."""
    over, made = False, 0

    async def calls(client: H2Client) -> None:
        nonlocal made
        while not over:
            assert (await client.call(PATH, b"")).status == 0
            made += 1
            await asyncio.sleep(0.001)

    async with H2Client(socket) as client:
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
    async with calls_going_on(proxy.socket):
        process = Process(proxy.pid)
        descriptors, memory = process.descriptors(), process.start_peak()
        async with HostileClient.connected(proxy.socket, greeting) as client:
            yield client
        await until(lambda: process.descriptors() <= descriptors + 1, "its descriptors are closed")
        assert process.peak() - memory <= GROWTH_BYTES


async def send(client: HostileClient, runtime: HostileRuntime, side: str, frames: Iterator[bytes]) -> None:
    """Send frames from the client, or from the runtime on the client's request."""
    if side == "client":
        await client.send(pieces(frames))
    else:
        runtime.flood = pieces(frames)
        await client.send([raw_headers(1, VERSION_BLOCK), ASKED])


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


def run_pod(stream: int) -> bytes:
    """Return the frames that run a pod of its own."""
    config = cri.pod_config(f"pod-{stream}", f"uid-{stream}", cgroup_parent="/k", annotations={"note": "x"})
    asked = cri_pb2.RunPodSandboxRequest(config=config).SerializeToString()
    return raw_headers(stream, RUN_POD_BLOCK) + Data(stream, peer.grpc(asked), end=True).wire()


def begin(fragment: bytes) -> Callable[[int], bytes]:
    """Return the frames of a call that is not half-closed."""
    return lambda stream: raw_headers(stream, fragment) + Data(stream, b"\0\0\0\0\0").wire()


HEAVY: dict[str, tuple[Callable[[int], bytes], str]] = {
    "passing calls": (begin(VERSION_BLOCK), ""),
    "held calls": (begin(CREATE_BLOCK), ""),
    "calls whose hook hangs": (run_pod, "hang"),
    "calls that a hook refuses": (run_pod, "refuse"),
}
"""The client's request, and the answer of a hook server, if there is one."""


@pytest.mark.parametrize(("call", "answer"), HEAVY.values(), ids=HEAVY)
async def test_legal_use_that_is_heavy_costs_little_and_ends_nothing(
    call: Callable[[int], bytes], answer: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    """1,000 streams are opened and all cancelled, ten times without a pause; the call after them is answered."""
    proxy = ProxyProcess(tmp_path, log_level="info")
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.BY_NAME[answer or "hang"](), keep_calls=False)
    if answer:
        proxy.register("a.json", hooks.socket_path, ["PreRunPodSandbox"], policy="Fail", timeout="20s")
    async with hooks, proxy, attacker(proxy) as client:
        for turn in range(10):
            streams = range(1 + 2_000 * turn, 1 + 2_000 * (turn + 1), 2)
            await client.send(pieces(map(call, streams)))
            await client.send(pieces(peer.Reset(stream, 8).wire() for stream in streams))
        await client.send([raw_headers(20_001, VERSION_BLOCK) + Data(20_001, peer.grpc(b""), end=True).wire()])
        await until(lambda: b"\x01\x05\0\0\x4e\x21" in client.got, "the call after them is answered")
    assert "broke the protocol" not in proxy.output()
