"""Restarts, kills and second starts under load: no call is lost or disturbed unnecessarily, none waits for long.

That is fault matrix P1, P3, P5 and P7; promises 6, 15 and 19.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.amounts import RESTARTS, SECOND_STARTS, SHARE_VARIABLE, Amount
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime
from tests.system.patient import PATIENT, Patient
from tests.system.proxy import WAIT_SECONDS, ProxyProcess, waited_seconds
from tests.system.test_process import SUPERVISED, handed_over, refused

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 10
PAUSE_SECONDS = 0.005
WORKERS = 3
"""How many clients there are of a kind."""
POINTS = ["PreRunPodSandbox", "PreCreateContainer", "PostStopContainer"]

IN_FULL = float(os.environ.get(SHARE_VARIABLE, "0")) >= 1
"""Whether this is a full soak."""
DEAD_SECONDS = 30.0
"""Without a good answer for so long a kubelet considers its runtime dead; also the limit on a busy machine."""
ANSWER_SECONDS = 1.0 if IN_FULL else DEAD_SECONDS
"""Most seconds from a start after a kill to the first good answer, without the time in which the proxy or the test,
which is its client and its runtime, could have run but had no processor."""
SILENCE_SECONDS = 2.0 if IN_FULL else DEAD_SECONDS
"""Most seconds between two good answers, without that time."""


class Load:
    """Clients that make one call after another: calls that pass, and lifecycles of pods.

    ``cuts`` is how often a followed stream has ended.
    """

    def __init__(self, front: Front, proxy: ProxyProcess) -> None:
        self.answered: Counter[str] = Counter()
        self.lost: list[tuple[str, Failed]] = []
        self.cuts = 0
        self._front = front
        self._path = proxy.socket
        self._ending = False

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Make calls during the context; those made are answered at its end."""
        async with AsyncExitStack() as stack:
            made = (PATIENT[self._front.name](self._path) for _ in range(WORKERS))
            callers = [await stack.enter_async_context(caller) for caller in made]
            workers = [asyncio.create_task(self._ask(caller)) for caller in 2 * callers]
            following = asyncio.create_task(self._follow(callers[0]))
            yield
            self._ending = True
            await asyncio.wait_for(asyncio.gather(*workers), WAIT_SECONDS)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _ask(self, caller: Patient) -> None:
        while not self._ending:
            with suppress(Failed):
                for verb in ("ping", "list"):
                    await self._count(verb, caller.act(verb))
                pod_id = await self._count("run_pod", caller.run_pod())
                container_id = await self._count("create", caller.create(pod_id))
                for verb in ("start", "stop", "remove"):
                    await self._count(verb, caller.act(verb, container_id))
                for verb in ("stop_pod", "remove_pod"):
                    await self._count(verb, caller.act(verb, pod_id))

    async def _count(self, verb: str, call: Awaitable[str | bytes]) -> str:
        try:
            answer = await call
        except Failed as error:
            self.lost.append((verb, error))
            raise
        self.answered[verb] += 1
        await asyncio.sleep(PAUSE_SECONDS)
        return answer if isinstance(answer, str) else ""

    async def _follow(self, caller: Patient) -> None:
        while True:
            await caller.follow()
            self.cuts += 1

    async def each_kind_is_answered(self) -> None:
        """Wait until every kind of call was answered from now on."""
        self.answered.clear()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.answered) < 9:
                await asyncio.sleep(PAUSE_SECONDS)


class Dialler:
    """Asks for a sign of life, each time on a new connection.

    ``local_answer`` counts how often nothing listened, ``answers`` has the times of good answers (``time.monotonic``).
    """

    def __init__(self, front: Front, path: Path) -> None:
        self.refused = 0
        self.answers: list[float] = []
        self.end = False
        self._front = front
        self._path = path

    async def ask(self) -> None:
        """Ask until the ``end``."""
        while not self.end:
            await self.answered()
            await asyncio.sleep(PAUSE_SECONDS)

    async def answered(self) -> float:
        """Ask until there is a good answer; return when it came."""
        while True:
            try:
                async with asyncio.timeout(DEAD_SECONDS), self._front.sent(self._path) as answer:
                    await answer
                self.answers.append(time.monotonic())
                return self.answers[-1]
            except (FileNotFoundError, ConnectionRefusedError):
                self.refused += 1
            except ConnectionError:
                pass  # it was connected to the one that was killed
            await asyncio.sleep(PAUSE_SECONDS)


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
    drains = re.findall(r"drained after ([0-9.]+) s: (.*);", proxy.output())
    assert len(drains) == RESTARTS.now + 1
    assert {reason for _, reason in drains} == {"every call is answered"}
    assert max(float(seconds) for seconds, _ in drains) < DRAIN_SECONDS
    assert load.cuts >= RESTARTS.now


async def test_kills_under_load_cost_only_the_calls_under_way(
    front: Front, proxy: ProxyProcess, runtime: Runtime, hooks: HookServer
) -> None:
    """No call concerns a pod that runs all the while."""
    async with front.caller(runtime.socket_path) as caller:
        await caller.create(await caller.run_pod())
    ids = {*runtime.pod_ids(), *runtime.container_ids()}
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
    pause, took, waited = random.Random(0), [], []
    async with proxy, load.going_on(), asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(dialler.ask())
        for _ in range(Amount(1, 50).now):
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
    assert max(seconds - others for seconds, others in starts) < ANSWER_SECONDS, starts
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
