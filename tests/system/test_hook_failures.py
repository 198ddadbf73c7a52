"""Hook servers that hang, are unavailable or answer too much: what a call costs then.

hook-api, "Failures"; promises 1 and 21; fault matrix H1, H2, H6, H10. Every reason of a failure under both
policies is in test_policy_exact; the budget of a call: tests/core/test_lifecycle.py.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.plugins import client as hook_client
from tests.amounts import HANGS, Amount
from tests.fakes import hookanswers
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.fakes.server import StreamServer
from tests.system.fronts import POD, SKIP, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.times import in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
TIMEOUT_SECONDS = 0.2


async def seconds_of_a_create(caller: Caller, pod_id: str) -> float:
    begun = time.monotonic()
    await caller.create(pod_id)
    return time.monotonic() - begun


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
    """Listen and accept nothing, as a process that was stopped (SIGSTOP)."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield


@pytest.mark.parametrize("hanging", [silent, full_backlog, stopped])
async def test_hook_that_hangs_costs_its_timeout(
    front: Front, tmp_path: Path, runtime: Runtime, hanging: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_client, "FAILURES_IN_A_ROW", 10**9)  # the breaker stays closed
    inside, path = front.inside(tmp_path), str(tmp_path / "hooks.sock")
    inside.register("hangs.json", path, [POINT], timeout=f"{TIMEOUT_SECONDS}s")
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def some_together() -> Sequence[float]:
            took = await asyncio.gather(*(seconds_of_a_create(caller, pod_id) for _ in range(5)))
            return [seconds - TIMEOUT_SECONDS for seconds in took]

        await in_time(0.100, HANGS, some_together)
        passed = proxy.metrics.counted("hook_fail_open", hook_server="hangs", hook=POINT, reason="deadline")
    assert passed == len(runtime.arrived("create")) >= HANGS.now


COSTS = {
    "down": (0.005, ": unreachable: "),
    "missing": (0.005, ": unreachable: "),
    "open breaker": (0.001, "hook server bad keeps failing: calls suspended for 30 s"),
}
"""Why a hook server is not called -> most seconds that a call takes longer for it, and the log line."""


@pytest.mark.parametrize("why", COSTS)
async def test_hook_server_that_is_not_called_costs_little(
    front: Front, tmp_path: Path, runtime: Runtime, why: str
) -> None:
    """Compared with the creates of a pod that skips it."""
    path, (seconds, line) = str(tmp_path / "hooks.sock"), COSTS[why]
    hooks, proxy = HookServer(path, default=hookanswers.hang()), front.process(tmp_path)
    proxy.register("bad.json", path, [POINT], timeout="20ms")
    if why == "down":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    async with hooks if why == "open breaker" else nullcontext(), proxy, front.caller(proxy.socket) as caller:
        hooked, skipped = await caller.run_pod(), await caller.run_pod(replace(POD, labels=SKIP))

        async def median_of_creates(pod_id: str, calls: int = 40) -> float:
            return statistics.median([await seconds_of_a_create(caller, pod_id) for _ in range(calls)])

        async def more() -> list[float]:
            usual = await median_of_creates(skipped)
            return [await median_of_creates(hooked) - usual]

        await median_of_creates(hooked, calls=10)
        await in_time(seconds, Amount(1, 10), more)
        assert len(hooks.calls) <= 5, "none since the breaker is open"
    assert line in proxy.output()


async def test_huge_answer_costs_at_most_three_times_the_limit(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    cap, proxy = 2 << 20, front.process(tmp_path, hook_answer_limit="2MiB")
    proxy.register("huge.json", hooks.socket_path, [POINT])
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(40 << 20)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * cap
    assert f"bad_answer: the answer is longer than {cap} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls_of(POINT)) == len(runtime.arrived("create")) == 4
