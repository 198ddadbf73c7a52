"""Deadlines: who is late is told in time and in order, with one timer for all."""

import asyncio
from typing import Any

from runtimeproxy.deadlines import Deadlines
from tests.fakes.clock import virtual_time


class Log:
    """Writes down who was late when."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.lines: list[tuple[float, str]] = []

    def late(self, name: str) -> None:
        self.lines.append((asyncio.get_running_loop().time(), name))


@virtual_time
async def test_late_callers_are_told_in_time_and_in_order() -> None:
    log = Log()
    for at, name in ((3, "c"), (1, "a"), (2, "b"), (3, "d")):
        log.deadlines.add(at, lambda name=name: log.late(name))
    await asyncio.sleep(10)
    assert log.lines == [(1, "a"), (2, "b"), (3, "c"), (3, "d")]
    log.deadlines.add(21, lambda: log.late("e"))
    await asyncio.sleep(20)
    assert log.lines[4:] == [(21, "e")], "also after a quiet time"


@virtual_time
async def test_a_deadline_that_is_over_tells_nobody() -> None:
    log = Log()
    first = log.deadlines.add(1, lambda: log.late("a"))
    last = log.deadlines.add(2, lambda: log.late("b"))
    log.deadlines.add(2, lambda: log.deadlines.over(last))
    beside = log.deadlines.add(2, lambda: log.late("c"))
    log.deadlines.add(1.5, lambda: log.deadlines.over(beside))
    log.deadlines.over(first)
    await asyncio.sleep(10)
    assert log.lines == [(2, "b")]


@virtual_time
async def test_one_that_is_told_may_end_another_of_the_same_time() -> None:
    log = Log()
    log.deadlines.add(1, lambda: log.deadlines.over(other))
    other = log.deadlines.add(1, lambda: log.late("other"))
    await asyncio.sleep(10)
    assert log.lines == []


@virtual_time
async def test_there_is_one_timer_however_many_calls_there_are() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines()
    timers = 0
    call_at = loop.call_at

    def counted(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return call_at(*arguments, **more)

    loop.call_at = counted  # type: ignore[assignment]
    for number in range(1_000):
        deadlines.over(deadlines.add(2 + number / 1_000, lambda: None))
    assert timers == 1
    await asyncio.sleep(10)
    assert timers == 2, "the one of this test"
