"""Restarts, kills and second starts under load: no call is lost or disturbed unnecessarily, none waits for long.

That is fault matrix P1, P3, P5 and P7; promises 6, 15 and 19.
"""

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from tests.amounts import KILLS, RESTARTED_PODS, RESTARTS, SECOND_STARTS, SHARE_VARIABLE
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.load import DEAD_SECONDS, WORKERS, Dialler, Load, store_equals
from tests.system.proxy import ProxyProcess, waited_seconds
from tests.system.supervising import SUPERVISED, handed_over
from tests.system.test_process import refused

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 10
POINTS = ["PreRunPodSandbox", "PreCreateContainer", "PostStopContainer"]

IN_FULL = float(os.environ.get(SHARE_VARIABLE, "0")) >= 1
"""Whether this is a full soak."""
ANSWER_SECONDS = 1.0 if IN_FULL else DEAD_SECONDS
"""Most seconds from a start after a kill to the first good answer, without the time in which the proxy or the test,
which is its client and its runtime, could have run but had no processor."""
SILENCE_SECONDS = 2.0 if IN_FULL else DEAD_SECONDS
"""Most seconds between two good answers, without that time."""


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    path = tmp_path / "hooks.sock"
    async with HookServer(str(path), default=hookanswers.after(0.02), keep_calls=False) as server:
        yield server


@pytest.fixture(params=["own socket", "supervisor's socket"])
def proxy(request: pytest.FixtureRequest, front: Front, tmp_path: Path) -> Iterator[ProxyProcess]:
    """Return a proxy that makes its socket, and one whose socket is its supervisor's."""
    handing = handed_over(tmp_path / "proxy.sock") if request.param == "supervisor's socket" else nullcontext({})
    with handing as handed:
        yield front.process(tmp_path, **handed, drain_timeout=f"{DRAIN_SECONDS}s")


@asynccontextmanager
async def comparing(runtime: Runtime, proxy: ProxyProcess) -> AsyncIterator[None]:
    """Check after the block that the Store equals the runtime."""
    yield
    await store_equals(runtime, proxy)


async def test_restarts_under_load_lose_no_call(
    front: Front, proxy: ProxyProcess, runtime: Runtime, hooks: HookServer
) -> None:
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load = Load(front, proxy)
    pause = random.Random(0)
    async with proxy, load.going_on():
        for _ in range(RESTARTS.now):
            await load.each_kind_is_answered()
            await asyncio.sleep(pause.uniform(0, 0.1))
            await asyncio.to_thread(proxy.stop)
            await asyncio.to_thread(proxy.start)
        await load.each_kind_is_answered()
    assert load.lost == []
    drains = re.findall(r"drained in ([0-9.]+) s: ([^;\n]*)", proxy.output())
    assert len(drains) == RESTARTS.now + 1
    assert {reason for _, reason in drains} == {"every call is answered"}
    assert max(float(seconds) for seconds, _ in drains) < DRAIN_SECONDS
    assert load.cuts >= RESTARTS.now


async def test_kills_under_load_cost_only_the_calls_under_way(
    front: Front,
    proxy: ProxyProcess,
    runtime: Runtime,
    hooks: HookServer,
    record_property: Callable[[str, object], None],
) -> None:
    """No call concerns a pod that runs all the while."""
    async with front.caller(runtime.socket_path) as caller:
        for _ in range(RESTARTED_PODS.now):
            await caller.create(await caller.run_pod())
    ids = {*runtime.pod_ids(), *runtime.container_ids()}
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
    pause, took, waited = random.Random(0), [], []
    async with proxy, comparing(runtime, proxy), load.going_on(), asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(dialler.ask())
        for _ in range(KILLS.now):
            await load.each_kind_is_answered()
            await asyncio.sleep(pause.uniform(0, 0.1))
            proxy.kill()
            first = asyncio.create_task(dialler.answered())
            await asyncio.sleep(0.1)  # a supervisor waits before it restarts a dead process
            launched, before = time.monotonic(), waited_seconds(os.getpid())
            proxy.launch()
            took.append(await first - launched)
            waited.append(waited_seconds(proxy.pid) + waited_seconds(os.getpid()) - before)
        await load.each_kind_is_answered()
        dialler.end = True
    assert ids <= {*runtime.pod_ids(), *runtime.container_ids()}
    assert {error.status for _, error in load.lost} <= {front.lost}, load.lost
    starts = list(zip(took, waited, strict=True))
    slowest = max(seconds - others for seconds, others in starts)
    record_property("seconds from a start to the first answer, slowest", f"{slowest:.2f} of {max(took):.2f}")
    assert slowest < ANSWER_SECONDS, starts
    longest_silence = max(later - earlier for earlier, later in pairwise(dialler.answers))
    assert longest_silence - max(waited) < SILENCE_SECONDS, starts
    assert (dialler.refused == 0) == (SUPERVISED in proxy.command), dialler.refused


async def test_second_starts_under_load_disturb_no_call(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = front.process(tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load = Load(front, proxy)
    async with proxy, load.going_on():
        inode = proxy.socket.stat().st_ino
        for _ in range(SECOND_STARTS.now):
            await load.each_kind_is_answered()
            line = await refused(proxy)
            assert f"pid {proxy.pid}" in line
            assert str(proxy.socket) in line
        await load.each_kind_is_answered()
        assert proxy.socket.stat().st_ino == inode
        assert load.cuts == 0
    assert load.lost == []
