"""A runtime dies, is away, stops, talks nonsense: a call fails once, the next is fresh (fault matrix B1, B3 to B5)."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.amounts import SHARE_VARIABLE, Amount
from tests.fakes.faults import FaultRelay
from tests.system import mutations
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Failed, Front
from tests.system.hostile import Process
from tests.system.mutations import BrokenRuntime
from tests.system.proxy import ROOT, WAIT_SECONDS, answers, until
from tests.system.times import FEW_TIMES, judged, limit

pytestmark = pytest.mark.slow

KILLS = Amount(10, 1_000)
AWAY_SECONDS = (Amount(1, 1), Amount(1, 60), Amount(1, 600))
MUTATIONS = Amount(100, 10_000)
DEADLINE_SECONDS = 0.5
LOST_SECONDS = 0.100
BACK_SECONDS = 0.500
DIAL_SECONDS = 0.050
FOLLOWING = 1
"""Connections on which the proxy follows the runtime's state once a client has called."""
PROGRAMS = {"cri": "tests.fakes.runtime", "docker": "tests.fakes.dockerd"}


# ---- B1


@pytest.mark.parametrize("end", [FaultRelay.cut, FaultRelay.reset], ids=["end", "reset"])
async def test_calls_whose_runtime_dies_fail_at_once_and_are_never_sent_again(
    front: Front, tmp_path: Path, end: Callable[[FaultRelay], None]
) -> None:
    """A stream ends with them. The runtime is there again at once, so that a second try would reach it."""
    took: list[float] = []
    requests: list[bytes] = []
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))

    def came(request: bytes) -> int:
        """Count how often a request has begun to come."""
        return sum(request.startswith(asked) for asked in runtime.asked("create"))

    async with runtime, proxy, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay:
        for _ in range(KILLS.now):
            for subject_id in (*runtime.container_ids(), *runtime.pod_ids()):
                runtime.vanish(subject_id)
            async with front.caller(proxy.socket) as caller:
                runtime.upset("create", delay_seconds=0)
                stream = await caller.chat()
                requests.append(caller.create_request(await caller.run_pod()))
                runtime.upset("create", delay_seconds=60)
                calls: list[Awaitable[object]] = [caller.send("create", requests[-1]), stream.hear()]
                waiting = [asyncio.ensure_future(call) for call in calls]
                await until(lambda: came(requests[-1]) > 0, "it is at the runtime")
                begun = time.monotonic()
                end(relay)
                ends = await asyncio.gather(*waiting, return_exceptions=True)
                took.append(time.monotonic() - begun)
                assert [end.status for end in ends if isinstance(end, Failed)] == [front.lost] * 2, ends
        assert [came(request) for request in requests] == [1] * KILLS.now
    assert judged(took) < limit(took, LOST_SECONDS), took


# ---- B3


async def test_runtime_that_was_away_is_used_as_soon_as_it_is_back(front: Front, tmp_path: Path) -> None:
    """A client dials all the while: the proxy waits for nothing of its own, however long it was."""
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    took = []
    async with runtime, proxy:
        for away_seconds in sorted({amount.now for amount in AWAY_SECONDS}):
            async with FaultRelay(str(proxy.runtime), runtime.socket_path), front.caller(proxy.socket) as caller:
                await caller.run_pod()
            dialling = asyncio.create_task(_dial_until_answered(front, proxy.socket))
            await asyncio.sleep(away_seconds)
            assert not dialling.done()
            async with FaultRelay(str(proxy.runtime), runtime.socket_path):
                back = time.monotonic()
                took.append(await asyncio.wait_for(dialling, WAIT_SECONDS) - back)
    assert max(took) < BACK_SECONDS * (1 if SHARE_VARIABLE in os.environ else FEW_TIMES), took


async def _dial_until_answered(front: Front, socket: Path) -> float:
    while True:
        try:
            async with front.sent(socket) as answer:
                await answer
            return time.monotonic()
        except ConnectionError:
            await asyncio.sleep(DIAL_SECONDS)


# ---- B4


@asynccontextmanager
async def ended(process: subprocess.Popen[bytes]) -> AsyncIterator[subprocess.Popen[bytes]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


async def test_call_to_a_stopped_runtime_ends_by_its_deadline_alone(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    command = [sys.executable, "-m", PROGRAMS[front.name], f"--socket={proxy.runtime}"]
    async with proxy, ended(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)) as running:
        await until(lambda: answers(proxy.runtime), "the runtime listens")
        process = Process(proxy.pid)
        before = process.descriptors()
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
        async with front.caller(proxy.socket) as caller:
            running.send_signal(signal.SIGSTOP)
            for verb, request in (("list", caller.request("list")), ("create", caller.create_request(pod_id))):
                begun = time.monotonic()
                with pytest.raises(Failed):
                    await caller.send(verb, request, DEADLINE_SECONDS)
                assert time.monotonic() - begun > DEADLINE_SECONDS * 0.9
            waiting = [asyncio.ensure_future(call) for call in (caller.act("list"), caller.create(pod_id))]
            await asyncio.sleep(3 * DEADLINE_SECONDS)
            assert not any(call.done() for call in waiting)
            running.send_signal(signal.SIGCONT)
            await asyncio.gather(*waiting)
        await until(lambda: process.descriptors() <= before + FOLLOWING, "nothing is left of them")


# ---- B5


@pytest.mark.parametrize("name", ["cri", "cri-held", "docker", "docker-held"])
async def test_runtime_that_talks_nonsense_costs_its_own_call_only(name: str, tmp_path: Path) -> None:
    """The client has of the runtime's own bytes what came through, then the end; the next call is answered well."""
    call = mutations.calls()[name]
    proxy = call.front.process(tmp_path)  # its end finds tracebacks and errors in the log
    async with BrokenRuntime(proxy.runtime, call).serving() as runtime, proxy:
        process = Process(proxy.pid)
        for number in range(MUTATIONS.now):
            runtime.answer = call.answer(number)
            came = await asyncio.wait_for(mutations.ask(proxy.socket, call.request), 20)
            assert mutations.PASSED_ON[call.front.name](runtime.answer, came), (number, runtime.answer, came)
            if number % 10 == 0:
                runtime.answer = call.answers[0]
                assert call.good in await asyncio.wait_for(mutations.ask(proxy.socket, call.request), 20)
            if number == 10:
                before = process.descriptors()
        await until(lambda: process.descriptors() <= before + 2, "nothing is left of them")


# ---- the runtime of the other mode


@pytest.mark.parametrize(("other", "spoken"), [(DOCKER, "HTTP/1"), (CRI, "HTTP/2")], ids=["docker", "cri"])
async def test_runtime_of_the_other_mode_leads_to_the_flag(tmp_path: Path, other: Front, spoken: str) -> None:
    """CRI's own says what it is as soon as somebody connects; Docker's is asked in words that it does not know."""
    front = CRI if other is DOCKER else DOCKER
    told = f"the runtime broke the protocol: .*; it speaks {spoken}: is --backend-runtime-mode right\\?\n"
    async with (
        other.runtime(str(tmp_path / "runtime.sock")),
        front.process(tmp_path) as proxy,
        front.sent(proxy.socket),
    ):
        await until(lambda: bool(re.search(told, proxy.output())), "it is told", proxy.output)
