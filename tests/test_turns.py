"""Turns: order within a key, none between keys, and nobody waits longer than its time."""

import asyncio
import tracemalloc
from contextlib import suppress

from runtimeproxy.deadlines import Deadlines
from runtimeproxy.turns import Turns
from tests.fakes.clock import virtual_time


class Log:
    """Writes down who held which turn when."""

    def __init__(self) -> None:
        self.turns = Turns(Deadlines())
        self.lines: list[tuple[float, str]] = []

    def start(self, name: str, key: str, wait_seconds: float, hold_seconds: float) -> asyncio.Task[None]:
        """Take a turn of a key in a task."""
        return asyncio.create_task(self._hold(name, key, wait_seconds, hold_seconds))

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


@virtual_time
async def test_one_key_is_served_in_the_order_of_coming() -> None:
    log = Log()
    await asyncio.gather(*(log.start(name, "c1", 10, 1) for name in "abc"))
    assert log.lines == [(0, "a in"), (1, "a out"), (1, "b in"), (2, "b out"), (2, "c in"), (3, "c out")]


@virtual_time
async def test_different_keys_never_wait_for_one_another() -> None:
    log = Log()
    await asyncio.gather(log.start("a", "c1", 10, 3), log.start("b", "c2", 10, 1))
    assert log.lines == [(0, "a in"), (0, "b in"), (1, "b out"), (3, "a out")]


@virtual_time
async def test_a_waiter_whose_time_is_over_goes_ahead() -> None:
    log = Log()
    await asyncio.gather(log.start("a", "c1", 10, 5), log.start("b", "c1", 2, 4))
    assert log.lines == [(0, "a in"), (2, "b in"), (5, "a out"), (6, "b out")]


@virtual_time
async def test_no_time_at_all_does_not_wait() -> None:
    log = Log()
    await asyncio.gather(log.start("a", "c1", 10, 5), log.start("b", "c1", 0, 1))
    assert log.lines == [(0, "a in"), (0, "b in"), (1, "b out"), (5, "a out")]


@virtual_time
async def test_one_that_gives_up_or_goes_ahead_lets_nobody_else_pass() -> None:
    log = Log()
    first = log.start("a", "c1", 10, 5)
    impatient = log.start("b", "c1", 1, 1)
    leaving = log.start("c", "c1", 10, 1)
    last = log.start("d", "c1", 10, 1)
    await asyncio.sleep(3)
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    await asyncio.gather(first, impatient, last)
    assert log.lines == [(0, "a in"), (1, "b in"), (2, "b out"), (5, "a out"), (5, "d in"), (6, "d out")]


@virtual_time
async def test_a_key_without_anybody_takes_no_memory() -> None:
    turns = Turns(Deadlines())
    taken = [turns.take("c1"), turns.take("c2"), turns.take("c1")]
    assert len(turns.queues) == 2
    for turn in taken:
        turns.leave(turn)
    assert not turns.queues


@virtual_time
async def test_a_waiters_memory_does_not_grow_with_those_before_it() -> None:
    """Ten thousand calls may be about one container; each would hold ten thousand places else."""
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
