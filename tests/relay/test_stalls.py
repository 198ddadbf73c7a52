"""Stalls of the event loop are told with their place, counted, and what is no stall is not (facts/reliability X7)."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from runtimeproxy.relay import stalls
from runtimeproxy.relay.stalls import STALL_SECONDS, StallWatch
from runtimeproxy.telemetry import Recorder

pytestmark = pytest.mark.slow

LIMIT = 0.1
SURELY = 0.5
"""Longer than any stall that may be overlooked, on a machine that has a lot to do."""
PATIENCE_SECONDS = 10.0
SECRET = "a value of somebody's environment"


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stalls, "STALL_SECONDS", LIMIT)
    caplog.set_level(logging.INFO)


def test_what_is_a_stall() -> None:
    assert STALL_SECONDS == 0.2


def watched(
    body: Callable[[], Awaitable[object]], run: Callable[..., object] = uvloop.run, *, stalls_seen: int = 0
) -> Recorder:
    """Run something on a loop that is watched, and wait until so many stalls were seen; return what was counted."""

    async def main() -> Recorder:
        loop = asyncio.get_running_loop()
        recorder = Recorder(loop.time)
        watch = StallWatch(loop, recorder)
        watch.start()
        await asyncio.sleep(0.01)
        await body()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while recorder.counted("loop_stalls") < stalls_seen:
                await asyncio.sleep(0.01)
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
    recorder = watched(body, run, stalls_seen=1)
    assert recorder.counted("loop_stalls") == 1
    assert recorder.gauges[("loop_stalled_seconds", ())] > LIMIT
    hangs, goes_on = (record.getMessage() for record in caplog.records)
    assert hangs.startswith(f"the event loop hangs for more than {LIMIT} s at {__file__}:")
    assert hangs.split(" < ")[0].endswith(f" {place}")
    assert run is asyncio.run or "runners.py" not in hangs, "what runs the loop is no part of the place"
    assert re.fullmatch(r"the event loop goes on after \d+\.\d\d s", goes_on)
    assert SECRET not in caplog.text


def test_a_line_has_a_bounded_number_of_places(caplog: pytest.LogCaptureFixture) -> None:
    async def deep(depth: int = 3 * stalls.FRAMES_TOLD) -> None:
        if depth:
            await deep(depth - 1)
        else:
            stall_in_a_call(SECRET)

    watched(deep)
    assert len(caplog.records[0].getMessage().split(" < ")) == stalls.FRAMES_TOLD


def test_each_stall_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def twice() -> None:
        for number in (1, 2):
            time.sleep(SURELY)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while caplog.text.count("goes on") < number:
                    await asyncio.sleep(0.01)

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


def test_a_stall_above_a_quarter_of_a_second_is_found_whenever_it_begins() -> None:
    """It is found at the first look within it, and told if it lasts for the limit from then on."""
    assert STALL_SECONDS + stalls.LOOK_SECONDS < 0.25


@pytest.mark.parametrize("frame", [None, object()], ids=["rests", "works"])
def test_looks_follow_one_another_at_once_whether_the_loop_rests_or_works(
    frame: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class GoingOn:
        def acquire(self, timeout: float) -> bool:
            pauses.append(timeout)
            return len(pauses) > 3

    monkeypatch.setattr(StallWatch, "_frame", lambda watch: frame)
    monkeypatch.setattr(StallWatch, "_wait_for_turn", lambda watch: None)
    with asyncio.Runner() as runner:
        watch = StallWatch(runner.get_loop(), Recorder(time.monotonic))
    monkeypatch.setattr(watch, "_going_on", GoingOn())
    watch._watch()
    assert pauses == [stalls.LOOK_SECONDS] * 4


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
