"""Stalls of the event loop are logged with their place and counted, other work is not (fault matrix X7)."""

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from runtimeproxy.observe import loop_watchdog
from runtimeproxy.observe.loop_watchdog import STALL_SECONDS, LoopWatchdog
from runtimeproxy.observe.metrics import Metrics
from tests.observe.events import shown_of

pytestmark = pytest.mark.slow

LIMIT, SURELY, PATIENCE, CHECKS = 0.1, 0.5, 10.0, 8
"""``SURELY`` is longer than any stall that may be overlooked; on a busy machine a stall lasts until it is logged."""
SECRET = "a value of somebody's environment"

lines: list[str] = []


def hangs(place: str) -> list[int]:
    """Return the lines at which the loop hangs in a function of this file."""
    reported = re.compile(rf"the event loop hangs for more than {LIMIT} s at {re.escape(__file__)}:\d+ {place}( < |$)")
    return [number for number, line in enumerate(lines) if reported.match(line)]


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lines.clear()
    monkeypatch.setattr(loop_watchdog, "STALL_SECONDS", LIMIT)
    monkeypatch.setattr(loop_watchdog.log, "warning", lambda text, *values: lines.append(text % values))


def watched(body: Callable[[], Awaitable[object]], run: Callable[..., object] = uvloop.run) -> Metrics:
    """Run a coroutine on a watched loop, and wait until all stalls are counted; return the metrics.

    A busy machine may add stalls of its own, at other places.
    """

    async def main() -> Metrics:
        loop = asyncio.get_running_loop()
        metrics = Metrics(loop.time)
        watch = LoopWatchdog(loop, metrics)
        watch.start()
        await asyncio.sleep(0.01)
        await body()
        async with asyncio.timeout(PATIENCE):
            while metrics.counted("loop_stalls") < str(lines).count("hangs for"):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        watch.stop()
        assert threading.active_count() == threads
        return metrics

    threads = threading.active_count()
    metrics = run(main())
    assert isinstance(metrics, Metrics)
    return metrics


def stall_in_a_call(environment: str) -> None:
    begun, before = time.monotonic(), len(lines)
    while time.monotonic() < begun + SURELY or (len(lines) == before and time.monotonic() < begun + PATIENCE):
        time.sleep(SURELY)


async def stall(depth: int = 3 * loop_watchdog.FRAMES_LOGGED) -> None:
    """Hang in a call below more frames than are logged."""
    if depth:
        await stall(depth - 1)
    else:
        stall_in_a_call(SECRET)


async def stall_of_the_interpreter() -> None:
    """Hold the interpreter's lock without a pause: the watching thread runs afterwards."""
    numbers, begun = list(range(1_000_000)), time.monotonic()
    while time.monotonic() < begun + SURELY or (not lines and time.monotonic() < begun + PATIENCE):
        sorted(numbers, key=None)


@pytest.mark.parametrize("body", [stall, stall_of_the_interpreter])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_stall_is_logged_without_values(body: Callable[[], Awaitable[object]], run: Callable[..., object]) -> None:
    metrics, place = watched(body, run), "stall_in_a_call" if body is stall else "stall_of_the_interpreter"
    assert STALL_SECONDS + loop_watchdog.CHECK_SECONDS < 0.25, "a stall is found at the first look within it"
    assert metrics.counted("loop_stalls") == str(lines).count("hangs for")
    assert metrics.gauges[("loop_stalled_seconds", ())] > LIMIT
    (at,) = hangs(place)
    hangs_at, continues = lines[at : at + 2]
    assert body is not stall or len(hangs_at.split(" < ")) == loop_watchdog.FRAMES_LOGGED
    assert run is asyncio.run or "runners.py" not in hangs_at, "what runs the loop is no part of the place"
    assert re.fullmatch(r"the event loop continues after \d+\.\d\d s", continues)
    stalls = [event for event in shown_of(metrics.events) if event["kind"] == "stall"]
    assert [event for event in stalls if re.match(rf"\d\.\d\d s at {re.escape(__file__)}:\d+ {place}", event["text"])]
    assert SECRET not in "".join(lines) + str(stalls)


def test_busy_loop_without_stall_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs each callback that it is given, long before the limit."""
    monkeypatch.setattr(loop_watchdog, "STALL_SECONDS", 10 * PATIENCE)
    check_iteration, waited = LoopWatchdog._check_iteration, list[LoopWatchdog]()

    def waits(watch: LoopWatchdog) -> None:
        waited.append(watch)
        check_iteration(watch)

    monkeypatch.setattr(LoopWatchdog, "_check_iteration", waits)

    async def work() -> None:
        async with asyncio.timeout(PATIENCE):
            while len(waited) <= CHECKS:
                time.sleep(0.002)  # the other thread checks meanwhile, and finds the loop busy
                await asyncio.sleep(0)

    assert watched(work).counted("loop_stalls") == 0
    assert not lines


def test_watchdog_stops_before_start_and_within_stall() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        LoopWatchdog(loop, Metrics(loop.time)).stop()
        watch = LoopWatchdog(loop, Metrics(loop.time))
        watch.start()
        await asyncio.sleep(0.01)
        stall_in_a_call(SECRET)
        for _ in range(2):
            watch.stop()

    uvloop.run(main())
    (at,) = hangs("stall_in_a_call")
    assert lines[at + 1 :] == []
