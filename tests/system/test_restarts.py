"""Restarts and second starts under load: no call is lost, none is disturbed (P3, P5, promises 15 and 19)."""

import asyncio
import os
import random
import re
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.amounts import RESTARTS, SECOND_STARTS
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime
from tests.system.patient import PATIENT, Patient
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess
from tests.system.test_process import SUPERVISED

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 10
HOOK_SECONDS = 0.02
PAUSE_SECONDS = 0.005
WORKERS = 3
"""How many clients there are of a kind."""
POINTS = ["PreRunPodSandbox", "PreCreateContainer", "PostStopContainer"]


class Load:
    """Clients that ask one thing after another: some what passes, others for the lives of pods."""

    def __init__(self, front: Front, proxy: ProxyProcess) -> None:
        self.answered: Counter[str] = Counter()
        self.lost: list[str] = []
        self.cuts = 0
        """How often a followed stream has ended."""
        self._front = front
        self._path = proxy.socket
        self._ending = False

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Ask during the context; what was asked is answered at its end."""
        async with AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(self._caller()) for _ in range(WORKERS)]
            kinds = (self._asks_passing, self._asks_held)
            workers = [asyncio.create_task(kind(caller)) for caller in callers for kind in kinds]
            following = asyncio.create_task(self._follow(callers[0]))
            yield
            self._ending = True
            await asyncio.wait_for(asyncio.gather(*workers), WAIT_SECONDS)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def _caller(self) -> Patient:
        return PATIENT[self._front.name](self._path)

    async def _asks_passing(self, caller: Patient) -> None:
        while not self._ending:
            for verb in ("ping", "list"):
                await self._count(verb, caller.act(verb))

    async def _asks_held(self, caller: Patient) -> None:
        while not self._ending:
            with suppress(Failed):
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
            self.lost.append(f"{verb}: {error}")
            raise
        self.answered[verb] += 1
        await asyncio.sleep(PAUSE_SECONDS)
        return answer if isinstance(answer, str) else ""

    async def _follow(self, caller: Patient) -> None:
        while True:
            await caller.follow()
            self.cuts += 1

    async def each_kind_is_answered(self) -> None:
        """Wait until every kind of call was answered since now."""
        self.answered.clear()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.answered) < 9:
                await asyncio.sleep(PAUSE_SECONDS)


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    path = tmp_path / "hooks.sock"
    async with HookServer(str(path), default=hookanswers.after(HOOK_SECONDS), keep_calls=False) as server:
        yield server


def own(front: Front, folder: Path) -> ProxyProcess:
    """Return a proxy that makes its socket."""
    return front.process(folder, drain_timeout=f"{DRAIN_SECONDS}s")


@pytest.fixture(params=["own socket", "supervisor's socket"])
def proxy(request: pytest.FixtureRequest, front: Front, tmp_path: Path) -> Iterator[ProxyProcess]:
    """Return a proxy that makes its socket, and one whose socket is its supervisor's."""
    if request.param == "own socket":
        yield own(front, tmp_path)
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        yield front.process(tmp_path, program=program, pass_fds=[listener.fileno()], drain_timeout=f"{DRAIN_SECONDS}s")


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


async def test_second_starts_under_load_disturb_no_call(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = own(front, tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load = Load(front, proxy)
    async with proxy, load.going_on():
        inode = proxy.socket.stat().st_ino
        for _ in range(SECOND_STARTS.now):
            await load.each_kind_is_answered()
            second = await asyncio.to_thread(
                subprocess.run, proxy.command, capture_output=True, text=True, timeout=WAIT_SECONDS
            )
            assert second.returncode == 1
            assert f"pid {proxy.pid}" in second.stderr
        await load.each_kind_is_answered()
        assert proxy.socket.stat().st_ino == inode
        assert load.cuts == 0
    assert load.lost == []
