"""Hook servers that hang, are away or answer too much: what a call costs then.

hook-api, "Failures"; promises 1 and 21; fault matrix H1, H2, H4, H6, H10. Every reason of a failure under both
policies is in test_policy_exact.
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from runtimeproxy.plugins import client as hook_client
from runtimeproxy.wire import http2
from runtimeproxy.wire.grpc import message
from tests.amounts import HANGS, Amount
from tests.fakes import hookanswers
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.fakes.server import StreamServer
from tests.relay.peers import HEAD, Connection
from tests.system.fronts import Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ROOT, answers, until
from tests.system.times import in_rounds, in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
Behaving = Callable[[str], AbstractAsyncContextManager[None]]
"""Does something at the socket's path."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "hooks.sock")


@pytest.fixture
def hooks(path: str) -> HookServer:
    """Return a hook server that does not listen yet."""
    return HookServer(path)


# ---- the time of a call whose hook server hangs (H1, H4)

TIMEOUT_SECONDS = 0.2
LATE_SECONDS = 0.100


@asynccontextmanager
async def silent(path: str) -> AsyncIterator[None]:
    """Accept connections and send nothing."""
    writers: list[asyncio.StreamWriter] = []
    async with StreamServer(path, lambda _, writer: writers.append(writer)):
        yield
        for writer in writers:
            writer.close()


@asynccontextmanager
async def stopped(path: str) -> AsyncIterator[None]:
    """Simulate a process that was stopped (SIGSTOP) while it served."""
    command, environment = [sys.executable, "-m", "tests.fakes.hookserver", "--socket", path], {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=os.environ | environment) as server:
        try:
            await until(lambda: answers(Path(path)), "the hook server listens")
            server.send_signal(signal.SIGSTOP)
            yield
        finally:
            server.kill()


@asynccontextmanager
async def half_an_answer(path: str) -> AsyncIterator[None]:
    """Send the head of a connection's first answer and half of its message, and pings for ever."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        await connection.begin({})
        stream = await connection.request()
        half = http2.frame(http2.DATA, 0, stream, message(bytes(1000))[:500])
        connection.send(http2.header_frames(stream, HEAD, False) + half)
        while not writer.is_closing():
            connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))
            await asyncio.sleep(TIMEOUT_SECONDS / 10)

    async with StreamServer(path, accept):
        yield


@pytest.mark.parametrize("hanging", [silent, full_backlog, stopped, half_an_answer])
async def test_hook_that_hangs_costs_its_timeout(
    front: Front, tmp_path: Path, runtime: Runtime, path: str, hanging: Behaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_client, "FAILURES_IN_A_ROW", 10**9)  # every call asks
    inside = front.inside(tmp_path)
    inside.register("hangs.json", path, [POINT], timeout=f"{TIMEOUT_SECONDS}s")
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def late() -> float:
            begun = time.monotonic()
            await caller.create(pod_id)
            return time.monotonic() - begun - TIMEOUT_SECONDS

        async def some_at_once() -> Sequence[float]:
            return await asyncio.gather(*(late() for _ in range(5)))

        await in_time(LATE_SECONDS, HANGS, some_at_once)
        passed = proxy.metrics.counted("hook_fail_open", hook_server="hangs", hook=POINT, reason="deadline")
    assert passed == len(runtime.asked("create")) >= HANGS.now


async def test_hooks_that_hang_cost_no_more_than_the_budget(
    front: Front, tmp_path: Path, runtime: Runtime, path: str
) -> None:
    """Each may take 400 ms, all of them 700 ms: each has its share, none of them all of it."""
    proxy = front.process(tmp_path, hook_budget="700ms")
    paths = [f"{path}.{number}" for number in range(3)]
    for number, socket_path in enumerate(paths):
        proxy.register(f"{number}.json", socket_path, [POINT], timeout="400ms")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def late() -> list[float]:
            # A new server is called at least once.
            hooks = [HookServer(each, default=hookanswers.hang()) for each in paths]
            async with AsyncExitStack() as stack:
                for server in hooks:
                    await stack.enter_async_context(server)
                begun = time.monotonic()
                await caller.create(pod_id)
                assert [len(server.calls) for server in hooks] == [1, 1, 1]
                return [time.monotonic() - begun - 0.7]

        await in_time(LATE_SECONDS, Amount(1, 100), late)


# ---- servers that are not called (H2, H10)


DOWN, MISSING, OPEN = "down", "missing", "open breaker"
COSTS = {
    DOWN: (0.005, ": unreachable: "),
    MISSING: (0.005, ": unreachable: "),
    OPEN: (0.001, "hook server bad keeps failing: calls suspended for 30 s"),
}
"""Why a hook server is not called -> most seconds that a call takes longer for it, and the log line."""


@pytest.mark.parametrize("why", COSTS)
async def test_hook_server_that_is_not_called_costs_little(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, why: str
) -> None:
    """Compared with a proxy without one."""
    seconds, line = COSTS[why]
    hooks.default = hookanswers.hang()
    without, with_one = front.process(tmp_path / "without"), front.process(tmp_path / "with")
    for proxy in (without, with_one):
        proxy.runtime.symlink_to(runtime.socket_path)
    with_one.register("bad.json", hooks.socket_path, [POINT], timeout="20ms")
    if why == DOWN:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(hooks.socket_path)
    async with (
        hooks if why == OPEN else nullcontext(),
        without,
        with_one,
        front.caller(without.socket) as plain,
        front.caller(with_one.socket) as hooked,
    ):
        pods = {caller: await caller.run_pod() for caller in (plain, hooked)}

        async def median_of_creates(caller: Caller, calls: int = 40) -> float:
            took = []
            for _ in range(calls):
                begun = time.monotonic()
                await caller.create(pods[caller])
                took.append(time.monotonic() - begun)
            return statistics.median(took)

        async def more() -> float:
            usual = await median_of_creates(plain)
            return await median_of_creates(hooked) - usual

        await median_of_creates(hooked, calls=10)
        await in_rounds(seconds, more)
        assert len(hooks.calls) <= 5  # none since it is open; late ones from before were not seen
    assert line in with_one.output()


# ---- the possible answers of a hook server (H6)


@pytest.mark.parametrize(("limit", "cap"), [("4MiB", 4 << 20), ("2MiB", 2 << 20)])
async def test_huge_answer_costs_at_most_three_times_the_limit(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, limit: str, cap: int
) -> None:
    proxy = front.process(tmp_path, hook_answer_limit=limit)
    proxy.register("huge.json", hooks.socket_path, [POINT])
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(40 << 20)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * cap
    assert f"bad_answer: the answer is longer than {cap} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls) == len(runtime.asked("create")) == 4
