"""A runtime that dies, is unavailable or sends broken answers fails a call once (fault matrix B1 to B3, B5; promise 8).

Without a runtime the proxy listens and logs it, and serves when one listens (relay-rules A12).
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.amounts import SHARE_VARIABLE, Amount
from tests.fakes.faults import FaultRelay
from tests.system.fronts import SECONDS, Failed, Front
from tests.system.hostile import Process
from tests.system.proxy import WAIT_SECONDS, until
from tests.system.times import FEW_TIMES, check_times

pytestmark = pytest.mark.slow

KILLS, STARTS, MUTATIONS = Amount(10, 1_000), Amount(3, 100), Amount(100, 10_000)
UNAVAILABLE_SECONDS = (Amount(1, 1), Amount(1, 60), Amount(1, 600))
BACK_SECONDS = 0.5 if SHARE_VARIABLE in os.environ else 0.5 * FEW_TIMES
DIAL_SECONDS = 0.05


@pytest.mark.parametrize("end", [FaultRelay.cut, FaultRelay.reset], ids=["end", "reset"])
async def test_calls_to_dead_runtime_fail_and_are_not_retried(
    front: Front, tmp_path: Path, end: Callable[[FaultRelay], None]
) -> None:
    """A stream ends with them. The runtime restarts immediately, so a retry would reach it."""
    seconds_taken: list[float] = []
    requests: list[bytes] = []
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))

    def arrivals(request: bytes) -> int:
        return sum(request.startswith(arrived) for arrived in runtime.arrived("create"))

    async with runtime, proxy, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay:
        for _ in range(KILLS.now):
            for subject_id in (*runtime.container_ids(), *runtime.pod_ids()):
                runtime.vanish(subject_id)
            async with front.caller(proxy.socket) as caller:
                runtime.set_fault("create")
                stream = await caller.open_stream()
                requests.append(caller.create_request(await caller.run_pod()))
                runtime.set_fault("create", delay_seconds=60)
                calls: list[Awaitable[object]] = [caller.send("create", requests[-1]), stream.read()]
                waiting = [asyncio.ensure_future(call) for call in calls]
                await until(lambda: arrivals(requests[-1]) > 0, "the create is at the runtime")
                started_at = time.monotonic()
                end(relay)
                ends = await asyncio.gather(*waiting, return_exceptions=True)
                seconds_taken.append(time.monotonic() - started_at)
                assert [end.status for end in ends if isinstance(end, Failed)] == [front.lost] * 2, ends
        assert [arrivals(request) for request in requests] == [1] * KILLS.now
    check_times(seconds_taken, 0.1)


async def test_runtime_is_used_as_soon_as_it_listens(front: Front, tmp_path: Path) -> None:
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    start_seconds, back_seconds = [], []
    for _ in range(STARTS.now):
        started_at = time.monotonic()
        async with proxy:
            start_seconds.append(time.monotonic() - started_at)
    check_times(start_seconds, 1.0)

    async def dial_until_answered() -> float:
        while True:
            try:
                await front.exchange(proxy.socket)
                return time.monotonic()
            except ConnectionError:
                await asyncio.sleep(DIAL_SECONDS)

    async with runtime, proxy:
        unreachable = f"container runtime at {proxy.runtime} is not reachable"
        await until(lambda: unreachable in proxy.output(), "it is logged before any client connects", proxy.output)
        for seconds in sorted({4 * DIAL_SECONDS, *(amount.now for amount in UNAVAILABLE_SECONDS)}):
            dialling = asyncio.create_task(dial_until_answered())
            await asyncio.sleep(seconds)
            assert not dialling.done()
            async with FaultRelay(str(proxy.runtime), runtime.socket_path):
                listens = time.monotonic()
                back_seconds.append(await asyncio.wait_for(dialling, WAIT_SECONDS) - listens)
    assert max(back_seconds) < BACK_SECONDS, back_seconds


def mutated(answer: bytes, chance: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(at + chance.choice((1, 2, 9, 100)), len(data))
        part, more = data[at:end], chance.choice((chance.randbytes(9), b"\r\n", b"\0" * 9, b"\xff" * 9))
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in part)
        data[at:end] = chance.choice((flipped, chance.randbytes(len(part)), more + part, part * 2, b""))
        if chance.random() < 0.1:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("verb", ["ping", "create"], ids=["passing", "held"])
async def test_broken_answer_fails_only_its_call(front: Front, verb: str, tmp_path: Path) -> None:
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    async with runtime, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay, proxy:
        process, chance = Process(proxy.pid), random.Random(front.name)
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()

        async def call(seconds: float = SECONDS) -> None:
            async with front.caller(proxy.socket) as caller:
                request = caller.create_request(pod_id) if verb == "create" else caller.request(verb)
                await caller.send(verb, request, seconds)

        for number in range(MUTATIONS.now):
            relay.to_client.mutate = lambda data: mutated(data, chance) if chance.random() < 0.5 else data
            with suppress(Exception):  # the client may fail in any way, or wait for an incomplete frame
                await call(seconds=1.0)
            relay.to_client.mutate = None
            if number % 10 == 0:
                await call()
            if number == 10:
                before = process.descriptors()
            relay.connections = [connection for connection in relay.connections if connection.is_open]
        await until(lambda: process.descriptors() <= before + 2, "every connection is closed")
