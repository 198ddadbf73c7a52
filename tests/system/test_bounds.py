"""Peers that break the protocol: their connection ends, what is kept of them is bounded, the others live.

That is promise 18 for HTTP/2, fault matrix X1. A kind goes beyond its bound with 30,000 frames of a client, 80,000 of
a runtime.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.cri.peer import (
    CREATE,
    PREFACE,
    VERSION,
    Ack,
    Credit,
    Data,
    GoAway,
    Ping,
    Raw,
    Reset,
    Settings,
    block,
    continuation,
    grpc,
    raw_headers,
    request,
)
from tests.engines import cri
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.h2client import H2Client
from tests.system.hostile import GREETING, TARGET_STREAM, HostileClient, HostileRuntime, Process, pieces
from tests.system.proxy import ProxyInside, ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = {"client": Amount(30_000, 100_000), "runtime": Amount(80_000, 200_000)}
UNREAD = Amount(400_000, 1_000_000)
GROWTH_BYTES = 16 << 20
UNREADING, UNREAD_BYTES = 100, 1 << 20
"""What each of so many clients that read nothing may cost."""
PATH = "/runtime.v1.RuntimeService/Version"

CALM, BROKEN = 0xB, 0x1
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
RUN_POD_BLOCK = block(request(b"/runtime.v1.RuntimeService/RunPodSandbox"))
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Goes to the dynamic table as its 62nd entry."""

Frames = Callable[[int], Iterator[bytes]]


def again(frame: bytes) -> Frames:
    return lambda count: repeat(frame, count)


def resets(fragment: bytes) -> Frames:
    """Open a stream and reset it."""

    def frames(count: int) -> Iterator[bytes]:
        for stream in range(101, 101 + 2 * count, 2):
            yield raw_headers(stream, fragment) + Reset(stream, 8).wire()

    return frames


def made_resets(count: int) -> Iterator[bytes]:
    """Open a stream and make the runtime reset it."""
    for stream in range(101, 101 + 2 * count, 2):
        yield raw_headers(stream, VERSION_BLOCK) + Credit(stream, 0).wire()


def unfinished(piece: bytes) -> Frames:
    """Begin a header block and never end it."""
    return lambda count: chain(
        [raw_headers(101, VERSION_BLOCK, whole=False)], repeat(continuation(101, piece, whole=False), count)
    )


def bomb(count: int) -> Iterator[bytes]:
    """Refer to a big field again and again."""
    yield raw_headers(101, VERSION_BLOCK + BIG_FIELD)
    for stream in range(103, 103 + 2 * count, 2):
        yield raw_headers(stream, b"\xbe" * 16_000)


def once(frame: bytes) -> Frames:
    return lambda _: iter([frame])


@dataclass(frozen=True)
class Attack:
    """``frames`` of a peer; ``kind`` is the bound that ends it, ``code`` what a client is told.

    None: that the runtime's SETTINGS have not come yet; then a frame of ours may not stand there.
    """

    frames: Frames
    kind: str
    code: int | None = CALM
    greeting: bytes = GREETING


LONG = ((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)

BY_CLIENT = {
    "bad preface": Attack(once(bytes(100)), "preface", None, greeting=b"PRI * HTTP/1.1\r\n\r\n"),
    "no SETTINGS": Attack(once(b""), "protocol", None, greeting=PREFACE + Ping(bytes(8)).wire()),
    "oversize frame": Attack(once(LONG), "frame_size", BROKEN),
    "HPACK bomb": Attack(bomb, "protocol", BROKEN, greeting=PREFACE + Settings().wire()),
    "CONTINUATION": Attack(unfinished(b"\x00\x01a\x01b" * 20), "header_block"),
    "empty CONTINUATION": Attack(unfinished(b""), "header_block"),
    "open streams": Attack(
        lambda count: (raw_headers(stream, VERSION_BLOCK) for stream in range(101, 101 + 2 * count, 2)), "open_streams"
    ),
}
BY_RUNTIME = {
    "oversize frame": Attack(once(LONG), "frame_size"),
    "no HTTP/2": Attack(once(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)), "frame_size"),
    "HPACK bomb": Attack(lambda count: chain([Ack().wire()], bomb(count)), "protocol"),
    "CONTINUATION": Attack(unfinished(b""), "header_block"),
    "DATA above every window": Attack(again(Data(TARGET_STREAM, bytes(16_384)).wire()), "protocol"),
}

FLOODS: dict[str, Frames] = {
    "rapid reset": resets(VERSION_BLOCK),
    "rapid reset of held calls": resets(CREATE_BLOCK),
    "MadeYouReset": made_resets,
    "empty DATA": lambda count: chain([raw_headers(1, VERSION_BLOCK)], repeat(Data(1, b"").wire(), count)),
    "PING": again(Ping(bytes(8)).wire()),
    "PING ACK": again(Ping(bytes(8), ack=True).wire()),
    "SETTINGS": again(Settings(((4, 1), (4, 2))).wire()),
    "PRIORITY": again(Raw(2, 0, 1, bytes(5)).wire()),
    "WINDOW_UPDATE": again(Credit(0, 1).wire()),
    "unknown frames": again(Raw(0xEE, 0, 0).wire()),
    "resets of no stream": again(Reset(1, 8).wire()),
    "GOAWAY": again(GoAway(0).wire()),
}
"""What serves nobody: it passes, or that connection ends; nothing of it is kept."""

ATTACKS = [*(("client", name) for name in BY_CLIENT), *(("runtime", name) for name in BY_RUNTIME)]
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
async def cheap(proxy: ProxyProcess, most_bytes: int = GROWTH_BYTES, *, closed: bool = False) -> AsyncIterator[None]:
    """Check that the block costs no more memory than this; wait until its descriptors are ``closed``."""
    process = Process(proxy.pid)
    descriptors, memory = process.descriptors(), process.start_peak()
    yield
    if closed:
        await until(lambda: process.descriptors() == descriptors, "its descriptors are closed")
    assert process.peak() - memory <= most_bytes


async def send(client: HostileClient, runtime: HostileRuntime, side: str, frames: Iterator[bytes]) -> None:
    """Let the client send frames, or the runtime where the client asks it to."""
    if side == "client":
        await client.send(pieces(frames))
    else:
        runtime.flood = pieces(frames)
        await client.send([raw_headers(1, VERSION_BLOCK), ASKED])


@pytest.mark.parametrize(("side", "name"), ATTACKS)
async def test_hostile_peer_ends_its_own_connection(
    side: str, name: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    attack = (BY_CLIENT if side == "client" else BY_RUNTIME)[name]
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        async with cheap(proxy, closed=True), HostileClient.connected(proxy.socket, attack.greeting) as client:
            await send(client, runtime, side, attack.frames(FRAMES[side].now))
            told = await client.told()
            assert told == attack.code if side == "client" else not told
        await until(lambda: proxy.output().count(f"the {side} broke the protocol") == 1, "it is logged")


@pytest.mark.parametrize(("side", "name"), ATTACKS)
async def test_each_kind_is_counted_and_nothing_is_left(
    side: str, name: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    attack = (BY_CLIENT if side == "client" else BY_RUNTIME)[name]
    async with ProxyInside(tmp_path) as proxy, calls_going_on(proxy.socket):
        front, tasks = proxy.app.front, len(asyncio.all_tasks())
        async with HostileClient.connected(proxy.socket, attack.greeting) as client:
            await send(client, runtime, side, attack.frames(FRAMES[side].usual))
            await client.told()
        assert proxy.recorder.counted("connections_broken", side=side, kind=attack.kind) == 1
        assert proxy.recorder.total("connections_broken") == 1
        assert len(front.connections) == 1  # type: ignore[attr-defined]
        assert front.held_bytes.count == 0  # type: ignore[attr-defined]
        await until(lambda: len(asyncio.all_tasks()) == tasks, "its tasks have ended")


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("side", ["client", "runtime"])
async def test_flood_costs_little_and_the_others_live(
    side: str, name: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap(proxy, closed=True),
        HostileClient.connected(proxy.socket) as client,
    ):
        await send(client, runtime, side, FLOODS[name](FRAMES["client"].now))
        await asyncio.sleep(0.2)


async def test_client_that_reads_nothing_of_the_answers_to_its_frames_is_ended(
    tmp_path: Path, runtime: HostileRuntime
) -> None:
    """Each byte of a long held request is credited by a frame of ours."""
    begun = raw_headers(1, CREATE_BLOCK) + Data(1, b"\0\0\xff\xff\xff").wire()
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        async with cheap(proxy), HostileClient.connected(proxy.socket, reads=False) as client:
            await client.send(chain([begun], pieces(repeat(Data(1, b"x").wire(), UNREAD.now))))
            await client.told()
        await until(lambda: "it reads nothing of what its own frames are answered" in proxy.output(), "it is logged")


async def test_hundred_clients_that_read_nothing_cost_little_each(tmp_path: Path, runtime: HostileRuntime) -> None:
    everything = PREFACE + Settings(((4, 2**31 - 1),)).wire() + Ack().wire() + Credit(0, 2**31 - 1 - 65_535).wire()
    runtime.flood = [Data(TARGET_STREAM, bytes(16_384)).wire() * 4] * 64
    async with ProxyProcess(tmp_path) as proxy, calls_going_on(proxy.socket), AsyncExitStack() as stack:
        await stack.enter_async_context(cheap(proxy, UNREADING * UNREAD_BYTES))
        for _ in range(UNREADING):
            client = await stack.enter_async_context(HostileClient.connected(proxy.socket, everything, reads=False))
            await client.send([ASKED])
        await asyncio.sleep(1)


async def test_client_that_opens_no_window_may_wait_and_costs_little(tmp_path: Path, runtime: HostileRuntime) -> None:
    """The runtime sends all that the pair's window allows, byte by byte: of that 65,535 are the client's own."""
    count = 2**20
    runtime.flood = pieces(repeat(Data(TARGET_STREAM, b"x").wire(), count))
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap(proxy),
        HostileClient.connected(proxy.socket) as client,
    ):
        await client.send([ASKED])
        await until(lambda: client.came > 65_535 * 10, "the first window is used up")
        await asyncio.sleep(2)
        assert not client.ended
        before = client.came
        await client.send([Credit(0, count).wire()])
        await until(lambda: client.came > before + count - 65_535, "the rest has come")


def run_pod(stream: int) -> bytes:
    """Return the frames that ask for a pod of its own."""
    config = cri.pod_config(f"pod-{stream}", f"uid-{stream}", cgroup_parent="/k", annotations={"note": "x"})
    asked = cri_pb2.RunPodSandboxRequest(config=config).SerializeToString()
    return raw_headers(stream, RUN_POD_BLOCK) + Data(stream, grpc(asked), end=True).wire()


def begin(fragment: bytes) -> Callable[[int], bytes]:
    """Return the frames of a call that is not half-closed."""
    return lambda stream: raw_headers(stream, fragment) + Data(stream, b"\0\0\0\0\0").wire()


async def cancel_thousands(client: HostileClient, call: Callable[[int], bytes]) -> None:
    """Open 1,000 streams at once and cancel them all, ten times without a pause; the call behind is answered."""
    for turn in range(10):
        opened = range(1 + 2_000 * turn, 1 + 2_000 * (turn + 1), 2)
        await client.send(pieces(map(call, opened)))
        await client.send(pieces(Reset(stream, 8).wire() for stream in opened))
    await client.send([raw_headers(20_001, VERSION_BLOCK) + Data(20_001, b"\0\0\0\0\0", end=True).wire()])
    await until(lambda: b"\x01\x05\0\0\x4e\x21" in client.got, "the call behind them is answered")


@pytest.mark.parametrize("call", [begin(VERSION_BLOCK), begin(CREATE_BLOCK)], ids=["passing", "held"])
async def test_legal_use_that_is_heavy_ends_nothing(
    call: Callable[[int], bytes], tmp_path: Path, runtime: HostileRuntime
) -> None:
    async with ProxyProcess(tmp_path) as proxy, HostileClient.connected(proxy.socket) as client:
        await cancel_thousands(client, call)
    assert "broke the protocol" not in proxy.output()


@pytest.mark.parametrize("answer", ["hang", "refuse"])
async def test_cancelled_calls_that_a_hook_server_is_asked_about_cost_little(
    answer: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    proxy = ProxyProcess(tmp_path, log_level="info")
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.BY_NAME[answer](), keep_calls=False)
    proxy.register("a.json", hooks.socket_path, ["PreRunPodSandbox"], policy="Fail", timeout="20s")
    async with (
        hooks,
        proxy,
        calls_going_on(proxy.socket),
        HostileClient.connected(proxy.socket) as client,
        cheap(proxy),
    ):
        await cancel_thousands(client, run_pod)


async def test_many_hostile_connections_write_few_lines(tmp_path: Path, runtime: HostileRuntime) -> None:
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        begun = asyncio.get_running_loop().time()
        for _ in range(200):
            async with HostileClient.connected(proxy.socket) as client:
                await client.send([LONG])
                await client.told()
        seconds = asyncio.get_running_loop().time() - begun
        assert 1 <= proxy.output().count("frame is longer") <= 1 + seconds
