"""Stalls of the event loop are told with their place, counted, and what is no stall is not (facts/reliability X7)."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from runtimeproxy.relay import stalls
from runtimeproxy.relay.stalls import StallWatch
from runtimeproxy.telemetry import Recorder

LIMIT = 0.1
SURELY = 0.5
"""Longer than any stall that may be overlooked, on a machine that has a lot to do."""
SECRET = "a value of somebody's environment"


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stalls, "STALL_SECONDS", LIMIT)
    monkeypatch.setattr(stalls, "RESTING_LOOK_SECONDS", LIMIT)
    caplog.set_level(logging.INFO)


def watched(body: Callable[[], Awaitable[object]], run: Callable[..., object] = uvloop.run) -> Recorder:
    """Run something on a loop that is watched; return what was counted."""

    async def main() -> Recorder:
        loop = asyncio.get_running_loop()
        recorder = Recorder(loop.time)
        watch = StallWatch(loop, recorder)
        watch.start()
        await asyncio.sleep(0.01)
        await body()
        await asyncio.sleep(0.05)
        watch.stop()
        assert threading.active_count() == threads
        return recorder

    threads = threading.active_count()
    recorder = run(main())
    assert isinstance(recorder, Recorder)
    return recorder


def stall_in_a_call(environment: str) -> None:
    time.sleep(SURELY)


async def stall() -> None:
    stall_in_a_call(SECRET)


async def stall_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(stall_in_a_call, SECRET)
    await asyncio.sleep(0.01)


async def stall_of_the_interpreter() -> None:
    """Hold the interpreter's lock without a pause: the watching thread runs behind it."""
    numbers = list(range(4_000_000))
    end = time.monotonic() + SURELY
    while time.monotonic() < end:
        sorted(numbers, key=None)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (stall, "stall_in_a_call"),
        (stall_in_a_callback, "stall_in_a_call"),
        (stall_of_the_interpreter, "stall_of_the_interpreter"),
    ],
)
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_stall_is_counted_and_its_place_is_told_without_values(
    body: Callable[[], Awaitable[object]],
    place: str,
    run: Callable[..., object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = watched(body, run)
    assert recorder.counted("loop_stalls") == 1
    assert recorder.gauges[("loop_stalled_seconds", ())] > LIMIT
    hangs, goes_on = (record.getMessage() for record in caplog.records)
    assert hangs.startswith(f"the event loop hangs for more than {LIMIT} s at {__file__}:")
    assert hangs.split(" < ")[0].endswith(f" {place}")
    assert run is asyncio.run or "runners.py" not in hangs, "what runs the loop is no part of the place"
    assert goes_on.startswith("the event loop goes on after 0.")
    assert SECRET not in caplog.text


def test_a_line_has_a_bounded_number_of_places(caplog: pytest.LogCaptureFixture) -> None:
    async def deep(depth: int = 3 * stalls.FRAMES_TOLD) -> None:
        if depth:
            await deep(depth - 1)
        else:
            stall_in_a_call(SECRET)

    watched(deep)
    assert len(caplog.records[0].getMessage().split(" < ")) == stalls.FRAMES_TOLD


def test_each_stall_is_counted() -> None:
    async def twice() -> None:
        for _ in range(2):
            time.sleep(SURELY)
            await asyncio.sleep(0.05)

    assert watched(twice).counted("loop_stalls") == 2


def test_a_loop_that_works_without_a_stall(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_SECONDS", 1.0)

    async def work() -> None:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            sum(range(1000))
            await asyncio.sleep(0)

    assert watched(work).counted("loop_stalls") == 0
    assert not caplog.records


def test_a_loop_that_rests_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(StallWatch, "_wait_for_turn", asked.append)
    watched(lambda: asyncio.sleep(0.5))
    assert asked == []


def test_a_watch_that_is_stopped_within_a_stall_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        watch = StallWatch(loop, Recorder(loop.time))
        watch.start()
        await asyncio.sleep(0.01)
        time.sleep(SURELY)
        watch.stop()
        watch.stop()

    uvloop.run(main())
    assert [record.getMessage().split(" for ")[0] for record in caplog.records] == ["the event loop hangs"]


def test_a_watch_that_never_began_ends() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        StallWatch(loop, Recorder(loop.time)).stop()

    uvloop.run(main())
