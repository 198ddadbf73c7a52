"""Peers that break the protocol: their connection ends, what is kept of them is bounded, the others live.

That is promise 18 for HTTP/2.

That is fault matrix X1.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.cri.peer import (
    PREFACE,
    Ack,
    Credit,
    Data,
    Reset,
    Settings,
    block,
    grpc,
    raw_headers,
    request,
)
from tests.engines import cri
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.attacks import BY_CLIENT, BY_RUNTIME, CREATE_BLOCK, FLOODS, LONG, VERSION_BLOCK
from tests.system.h2client import H2Client
from tests.system.hostile import TARGET_STREAM, HostileClient, HostileRuntime, Process, pieces
from tests.system.proxy import ProxyInside, ProxyProcess, until

pytestmark = pytest.mark.slow

FRAMES = Amount(30_000, 100_000)
UNREAD = Amount(400_000, 1_000_000)
FROM_THE_RUNTIME = Amount(80_000, 200_000)
"""It may send twice as much."""
GROWTH_BYTES = 16 << 20
UNREADING = 100
UNREAD_BYTES = 1 << 20
"""What each of so many clients that read nothing may cost."""
PATH = "/runtime.v1.RuntimeService/Version"
RUN_POD_BLOCK = block(request(b"/runtime.v1.RuntimeService/RunPodSandbox"))


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[HostileRuntime]:
    async with HostileRuntime(tmp_path / "runtime.sock").serving() as serving:
        yield serving


@asynccontextmanager
async def calls_going_on(socket: Path) -> AsyncIterator[None]:
    """Make calls on a connection of their own all the while; each must be answered."""
    over = False
    made = 0

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
async def cheap(proxy: ProxyProcess, most_bytes: int = GROWTH_BYTES) -> AsyncIterator[None]:
    """Check at the end of the block that the proxy has taken no more memory than this meanwhile."""
    process = Process(proxy.pid)
    memory = process.start_peak()
    yield
    assert process.peak() - memory <= most_bytes


@asynccontextmanager
async def cheap_and_closed(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Check that, and wait at the end of the block until its descriptors are closed."""
    process = Process(proxy.pid)
    descriptors = process.descriptors()
    async with cheap(proxy):
        yield
        await until(lambda: process.descriptors() == descriptors, "its descriptors are closed")


@pytest.mark.parametrize("name", BY_CLIENT)
async def test_a_hostile_client_ends_its_own_connection(name: str, tmp_path: Path, runtime: HostileRuntime) -> None:
    attack = BY_CLIENT[name]
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        async with cheap_and_closed(proxy), HostileClient.connected(proxy.socket, attack.greeting) as client:
            await client.send(pieces(attack.frames(FRAMES.now)))
            assert await client.told() == attack.code
        await until(lambda: proxy.output().count("the client broke the protocol") == 1, "it is logged")


@pytest.mark.parametrize("name", BY_RUNTIME)
async def test_a_hostile_runtime_ends_that_connection_only(name: str, tmp_path: Path, runtime: HostileRuntime) -> None:
    runtime.flood = pieces(BY_RUNTIME[name].frames(FROM_THE_RUNTIME.now))
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        async with cheap_and_closed(proxy), HostileClient.connected(proxy.socket) as client:
            await client.send([raw_headers(1, VERSION_BLOCK), raw_headers(TARGET_STREAM, VERSION_BLOCK, end=True)])
            assert not await client.told()
        await until(lambda: proxy.output().count("the runtime broke the protocol") == 1, "it is logged")


@pytest.mark.parametrize(
    ("side", "name"), [*(("client", name) for name in BY_CLIENT), *(("runtime", name) for name in BY_RUNTIME)]
)
async def test_each_kind_is_counted_and_nothing_is_left_behind(
    side: str, name: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    attack = (BY_CLIENT if side == "client" else BY_RUNTIME)[name]
    async with ProxyInside(tmp_path) as proxy, calls_going_on(proxy.socket):
        front = proxy.app.front
        tasks = len(asyncio.all_tasks())
        async with HostileClient.connected(proxy.socket, attack.greeting) as client:
            if side == "client":
                await client.send(pieces(attack.frames(FRAMES.usual)))
            else:
                runtime.flood = pieces(attack.frames(FROM_THE_RUNTIME.usual))
                await client.send([raw_headers(1, VERSION_BLOCK), raw_headers(TARGET_STREAM, VERSION_BLOCK, end=True)])
            await client.told()
        assert proxy.recorder.counted("connections_broken", side=side, kind=attack.kind) == 1
        assert proxy.recorder.total("connections_broken") == 1
        assert len(front.connections) == 1  # type: ignore[attr-defined]
        assert front.held_bytes.count == 0  # type: ignore[attr-defined]
        await until(lambda: len(asyncio.all_tasks()) == tasks, "its tasks have ended")


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("side", ["client", "runtime"])
async def test_a_flood_costs_little_and_the_others_live(
    side: str, name: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap_and_closed(proxy),
        HostileClient.connected(proxy.socket) as client,
    ):
        if side == "client":
            await client.send(pieces(FLOODS[name](FRAMES.now)))
        else:
            runtime.flood = pieces(FLOODS[name](FRAMES.now))
            await client.send([ASKED])
        await asyncio.sleep(0.2)


async def test_a_client_that_reads_nothing_and_makes_the_proxy_answer_is_ended(
    tmp_path: Path, runtime: HostileRuntime
) -> None:
    """Each byte of a long held request is credited by a frame of ours."""
    begun = raw_headers(1, CREATE_BLOCK) + Data(1, b"\0\0\xff\xff\xff").wire()
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        async with cheap(proxy), HostileClient.connected(proxy.socket, reads=False) as client:
            await client.send(chain([begun], pieces(repeat(Data(1, b"x").wire(), UNREAD.now))))
            await client.told()
        await until(lambda: "it reads nothing of what its own frames are answered" in proxy.output(), "it is logged")


EVERYTHING = PREFACE + Settings(((4, 2**31 - 1),)).wire() + Ack().wire() + Credit(0, 2**31 - 1 - 65_535).wire()
ASKED = raw_headers(TARGET_STREAM, VERSION_BLOCK, end=True)


async def test_a_client_that_reads_nothing_of_what_it_asked_for_costs_little(
    tmp_path: Path, runtime: HostileRuntime
) -> None:
    runtime.flood = pieces(repeat(Data(TARGET_STREAM, bytes(16_384)).wire(), 4_096))
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap(proxy),
        HostileClient.connected(proxy.socket, EVERYTHING, reads=False) as client,
    ):
        await client.send([ASKED])
        await asyncio.sleep(0.5)


async def test_a_hundred_clients_that_read_nothing_cost_little_each(tmp_path: Path, runtime: HostileRuntime) -> None:
    runtime.flood = [Data(TARGET_STREAM, bytes(16_384)).wire() * 4] * 64
    async with ProxyProcess(tmp_path) as proxy, calls_going_on(proxy.socket), AsyncExitStack() as stack:
        await stack.enter_async_context(cheap(proxy, UNREADING * UNREAD_BYTES))
        for _ in range(UNREADING):
            client = await stack.enter_async_context(HostileClient.connected(proxy.socket, EVERYTHING, reads=False))
            await client.send([ASKED])
        await asyncio.sleep(1)


async def test_a_client_that_opens_no_window_waits_as_long_as_it_likes_and_costs_little(
    tmp_path: Path, runtime: HostileRuntime
) -> None:
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


async def test_a_runtime_that_opens_no_window_costs_little(tmp_path: Path, runtime: HostileRuntime) -> None:
    runtime.credits = False
    data = Data(1, bytes(16_384)).wire()
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap(proxy),
        HostileClient.connected(proxy.socket) as client,
    ):
        await client.send([raw_headers(1, VERSION_BLOCK), *[data] * 64])
        await asyncio.sleep(0.5)
        assert not client.ended


@pytest.mark.parametrize("answer", ["hang", "refuse"])
async def test_held_calls_that_a_hook_server_of_policy_fail_is_asked_about_cost_little(
    answer: str, tmp_path: Path, runtime: HostileRuntime
) -> None:
    """A thousand at once, all cancelled at once, ten times without a pause."""
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
        for turn in range(10):
            opened = range(1 + 2_000 * turn, 1 + 2_000 * (turn + 1), 2)
            await client.send(pieces(map(run_pod, opened)))
            await client.send(pieces(Reset(stream, 8).wire() for stream in opened))
        await client.send([raw_headers(20_001, VERSION_BLOCK) + Data(20_001, b"\0\0\0\0\0", end=True).wire()])
        await until(lambda: b"\x01\x05\0\0\x4e\x21" in client.got, "the call behind them is answered")


def run_pod(stream: int) -> bytes:
    """Return the frames that ask for a pod of its own."""
    config = cri.pod_config(f"pod-{stream}", f"uid-{stream}", cgroup_parent="/k", annotations={"note": "x"})
    message = cri_pb2.RunPodSandboxRequest(config=config).SerializeToString()
    return raw_headers(stream, RUN_POD_BLOCK) + Data(stream, grpc(message), end=True).wire()


async def test_a_long_header_of_a_held_call_is_not_kept(tmp_path: Path, runtime: HostileRuntime) -> None:
    """A thousand calls that wait for their message, each with a field of 15 KiB that the proxy reads."""
    long = block([*request(b"/runtime.v1.RuntimeService/RunPodSandbox"), (b"grpc-encoding", b"a" * 24_000)])
    async with (
        ProxyProcess(tmp_path) as proxy,
        calls_going_on(proxy.socket),
        cheap(proxy),
        HostileClient.connected(proxy.socket) as client,
    ):
        await client.send(raw_headers(stream, long) for stream in range(1, 2_001, 2))
        await client.send([raw_headers(2_001, VERSION_BLOCK) + Data(2_001, b"\0\0\0\0\0", end=True).wire()])
        await until(lambda: b"\x01\x05\0\0\x07\xd1" in client.got, "the call behind them is answered")


async def test_many_hostile_connections_write_few_lines(tmp_path: Path, runtime: HostileRuntime) -> None:
    async with ProxyProcess(tmp_path, log_level="info") as proxy, calls_going_on(proxy.socket):
        begun = asyncio.get_running_loop().time()
        for _ in range(200):
            async with HostileClient.connected(proxy.socket) as client:
                await client.send([LONG])
                await client.told()
        seconds = asyncio.get_running_loop().time() - begun
        assert 1 <= proxy.output().count("frame is longer") <= 1 + seconds


@pytest.mark.parametrize("fragment", [VERSION_BLOCK, CREATE_BLOCK], ids=["passing", "held"])
async def test_legal_use_that_is_heavy_ends_nothing(fragment: bytes, tmp_path: Path, runtime: HostileRuntime) -> None:
    """A kubelet that opens 1,000 streams at once, cancels them all, and does so ten times without a pause."""
    message = Data(1, b"\0\0\0\0\0").wire()
    async with ProxyProcess(tmp_path) as proxy, HostileClient.connected(proxy.socket) as client:
        for turn in range(10):
            opened = range(1 + 2_000 * turn, 1 + 2_000 * (turn + 1), 2)
            asked = (
                raw_headers(stream, fragment) + message[:5] + stream.to_bytes(4, "big") + message[9:]
                for stream in opened
            )
            await client.send(pieces(asked))
            await client.send(pieces(Reset(stream, 8).wire() for stream in opened))
        last = Data(20_001, b"\0\0\0\0\0", end=True).wire()
        await client.send([raw_headers(20_001, VERSION_BLOCK) + last])
        await until(lambda: b"\x01\x05\0\0\x4e\x21" in client.got, "the call behind them is answered")
    assert "broke the protocol" not in proxy.output()
