"""Turns keep the order within a key, none between keys, and no turn waits longer than its time (relay-rules C6)."""

import asyncio
import tracemalloc

import pytest

from runtimeproxy.core.open_calls import KeyedQueue
from runtimeproxy.relay.eventloop import Deadlines
from tests.fakes.clock import virtual_time

pytestmark = virtual_time

Take = tuple[str, str, float, float]
"""Name, key, longest wait in seconds, and seconds for which the turn is held."""


class Log:
    """Records who held which turn when."""

    def __init__(self) -> None:
        self.turns = KeyedQueue(Deadlines())
        self.lines: list[tuple[float, str]] = []

    def start(self, *take: *Take) -> asyncio.Task[None]:
        """Start a task that takes a turn."""
        return asyncio.create_task(self._hold(*take))

    async def _hold(self, name: str, key: str, wait_seconds: float, hold_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        turn = self.turns.take(key)
        try:
            await self.turns.wait(turn, wait_seconds)
            self.lines.append((loop.time(), f"{name} in"))
            await asyncio.sleep(hold_seconds)
            self.lines.append((loop.time(), f"{name} out"))
        finally:
            self.turns.leave(turn)


@pytest.mark.parametrize(("wait_seconds", "begins"), [(2, 2), (0, 0)])
async def test_waiter_whose_time_has_ended_goes_ahead(wait_seconds: float, begins: float) -> None:
    log = Log()
    await asyncio.gather(log.start("a", "c1", 10, 5), log.start("b", "c1", wait_seconds, 4))
    expected = [(0, "a in"), (begins, "b in"), (begins + 4, "b out"), (5, "a out")]
    assert log.lines == sorted(expected)
    assert not log.turns.queues, "a key without waiters takes no memory"


async def test_abandoned_turn_lets_no_other_pass() -> None:
    log = Log()
    first, impatient, leaving, last = (
        log.start(name, "c1", wait, hold)
        for name, wait, hold in (("a", 10, 5), ("b", 1, 1), ("c", 10, 1), ("d", 10, 1))
    )
    await asyncio.sleep(3)
    leaving.cancel()
    await asyncio.gather(first, impatient, leaving, last, return_exceptions=True)
    assert log.lines == [(0, "a in"), (1, "b in"), (2, "b out"), (5, "a out"), (5, "d in"), (6, "d out")]


async def test_memory_of_waiters_is_linear() -> None:
    """Ten thousand calls may be about one container; otherwise each would hold ten thousand places."""
    log = Log()
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(2):
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(1_000):
                log.start("a", "c1", 10, 0)
            await asyncio.sleep(0)
            sizes.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert sizes[1] < 1.5 * sizes[0]
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert not log.turns.queues
