"""Deadlines: callbacks come in time and in order, with one timer for all."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

from runtimeproxy.relay.eventloop import Deadlines
from tests.fakes.clock import virtual_time

pytestmark = virtual_time

Lines = list[tuple[float, str]]


def noting(lines: Lines, name: str) -> Callable[[], None]:
    """Return a callback that notes its name and time."""
    return lambda: lines.append((asyncio.get_running_loop().time(), name))


async def test_late_callers_are_told_in_time_and_in_order() -> None:
    deadlines, lines = Deadlines(), Lines()
    for at, name in ((3, "c"), (1, "a"), (2, "b"), (3, "d")):
        deadlines.add(at, noting(lines, name))
    await asyncio.sleep(10)
    deadlines.add(21, noting(lines, "after a quiet time"))
    await asyncio.sleep(20)
    assert lines == [(1, "a"), (2, "b"), (3, "c"), (3, "d"), (21, "after a quiet time")]


async def test_deadline_that_is_over_tells_nobody() -> None:
    """Also if another callback cancels it, earlier or at the same time."""
    deadlines, lines = Deadlines(), Lines()
    first = deadlines.add(1, noting(lines, "over at once"))
    deadlines.add(1.5, lambda: setattr(earlier, "late", None))
    deadlines.add(2, lambda: setattr(beside, "late", None))
    earlier, beside = (deadlines.add(2, noting(lines, name)) for name in ("ended earlier", "ended beside"))
    deadlines.add(2, noting(lines, "late"))
    first.late = None
    await asyncio.sleep(10)
    assert lines == [(2, "late")]


async def test_thousand_calls_take_one_timer() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    with patch.object(loop, "call_at", wraps=loop.call_at) as call_at:
        for number in range(1_000):
            deadlines.add(2 + number / 1_000, lambda: None).late = None
        assert call_at.call_count == 1
        await asyncio.sleep(10)
    assert call_at.call_count == 2, "the one of this test"
