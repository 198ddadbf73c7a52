"""What runs on the event loop: batches of calls, deadlines, fibers, and work in daemon threads."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from runtimeproxy.relay.eventloop import Batch, Deadlines, Fiber, Pending, run_in_daemon_thread
from tests.fakes.clock import virtual_time


def test_writes_leave_with_the_last_call_then_followers_run() -> None:
    batch, done = Batch(), list[str]()

    def follow(name: str, waiting: str) -> None:
        done.append(name)
        if waiting and not batch.follows(partial(follow, waiting, "")):
            done.append(f"{waiting} later")

    def write(socket: str) -> None:
        done.append(f"write {socket}")

    writes = {socket: partial(write, socket) for socket in "xy"}

    for name, socket in batch.each(deque(["ax", "by", "cy"])):
        done.append(name)
        if not batch.defers(writes[socket]):
            writes[socket]()
        if name == "a":
            batch.follows(partial(follow, "d", "e"))
    assert done == ["a", "b", "c", "write y", "write x", "write y", "d", "e later"]
    assert not batch.follows(lambda: None)
    assert not batch.defers(writes["x"])


def test_error_of_a_call_loses_no_write_of_others() -> None:
    batch, done = Batch(), list[str]()

    def divide() -> None:
        for call in batch.each(deque([1, 0, 1])):
            batch.defers(partial(done.append, f"write of {1 / call:.0f}"))

    with pytest.raises(ZeroDivisionError):
        divide()
    assert done == ["write of 1"]
    assert not batch.defers(lambda: None)


Lines = list[tuple[float, str]]


def noting(lines: Lines, name: str) -> Callable[[], None]:
    """Return a callback that notes its name and time."""
    return lambda: lines.append((asyncio.get_running_loop().time(), name))


@virtual_time
async def test_late_callers_are_called_in_time_and_in_order() -> None:
    deadlines, lines = Deadlines(), Lines()
    for at, name in ((3, "c"), (1, "a"), (2, "b"), (3, "d")):
        deadlines.add(at, noting(lines, name))
    await asyncio.sleep(10)
    deadlines.add(21, noting(lines, "after a quiet time"))
    await asyncio.sleep(20)
    assert lines == [(1, "a"), (2, "b"), (3, "c"), (3, "d"), (21, "after a quiet time")]


@virtual_time
async def test_cancelled_deadline_calls_nothing() -> None:
    """Also if another callback cancels it, earlier or at the same time."""
    deadlines, lines = Deadlines(), Lines()
    first = deadlines.add(1, noting(lines, "cancelled immediately"))
    deadlines.add(1.5, lambda: setattr(earlier, "late", None))
    deadlines.add(2, lambda: setattr(same_time, "late", None))
    earlier, same_time = (deadlines.add(2, noting(lines, name)) for name in ("ended earlier", "ended at the same time"))
    deadlines.add(2, noting(lines, "late"))
    first.late = None
    await asyncio.sleep(10)
    assert lines == [(2, "late")]


@virtual_time
async def test_thousand_calls_take_one_timer() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    with patch.object(loop, "call_at", wraps=loop.call_at) as call_at:
        for number in range(1_000):
            deadlines.add(2 + number / 1_000, lambda: None).late = None
        assert call_at.call_count == 1
        await asyncio.sleep(10)
    assert call_at.call_count == 2, "the one of this test"


Steps = list[object]


def fiber(coroutine: Any) -> Fiber[Any]:
    made: Fiber[Any] = Fiber(loop=asyncio.get_running_loop())
    made.start(coroutine)
    return made


def pending() -> Pending[Any]:
    return Pending(loop=asyncio.get_running_loop())


async def noted(steps: Steps, awaited: Any) -> str:
    """Note the result of an awaitable."""
    steps.append("begun")
    try:
        steps.append(await awaited)
    except BaseException as error:
        steps.append(type(error))
        raise
    return "ended"


async def test_fiber_runs_at_once_and_resumes_within_its_awaitable() -> None:
    steps, first, second = Steps(), pending(), pending()

    async def both() -> str:
        await noted(steps, first)
        return await noted(steps, second)

    made = fiber(both())
    assert steps == ["begun"]
    first.set_result(1)
    assert (steps, made.done()) == (["begun", 1, "begun"], False)
    second.set_result(2)
    assert (steps[-1], made.result()) == (2, "ended")
    assert fiber(noted(steps, first)).result() == "ended", "a result that is set is not waited for"


async def test_error_is_raised_where_a_fiber_waits() -> None:
    steps, awaited = Steps(), pending()
    made = fiber(noted(steps, awaited))
    awaited.set_exception(KeyError("key"))
    assert steps == ["begun", KeyError]
    with pytest.raises(KeyError):
        await made


async def test_fiber_awaits_all_that_a_task_awaits() -> None:
    future = asyncio.get_running_loop().create_future()
    made = [fiber(noted([], one)) for one in (asyncio.create_task(asyncio.sleep(0)), asyncio.sleep(0), future)]
    assert not any(one.done() for one in made)
    future.set_result(None)
    assert await asyncio.gather(*made) == ["ended"] * 3
    awaited = pending()
    task = asyncio.create_task(noted([], awaited))
    await asyncio.sleep(0)
    awaited.set_result(1)
    assert await task == "ended", "a task may await what resumes a fiber"


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
async def test_interruption_is_raised_where_a_fiber_waits(error: type[BaseException]) -> None:
    steps, awaited = Steps(), pending()
    made = fiber(noted(steps, awaited))
    made.interrupt(error())
    assert steps == ["begun", error]
    assert awaited.cancelled()
    with pytest.raises(error):
        await made
    made.interrupt(error())  # it has ended
    made = fiber(noted([], pending()))
    assert (made.cancel(), made.cancelled(), made.cancel()) == (True, True, False), "as a task is"


@virtual_time
async def test_awaited_task_ends_before_the_fiber_is_interrupted() -> None:
    """The task that calls the runtime must handle its own cancellation first."""
    steps = Steps()
    made = fiber(noted(steps, asyncio.create_task(noted(steps, asyncio.sleep(60)))))
    await asyncio.sleep(1)
    made.interrupt(TimeoutError())
    with pytest.raises(TimeoutError):
        await made
    assert steps == ["begun", "begun", asyncio.CancelledError, TimeoutError]


async def test_fiber_is_not_resumed_by_what_it_no_longer_awaits() -> None:
    loop, faults = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    done = loop.create_future()
    interrupted = fiber(noted(Steps(), done))
    done.set_result("late")
    interrupted.interrupt(KeyError())
    await asyncio.sleep(0)
    assert isinstance(interrupted.exception(), KeyError)
    assert not faults


async def test_interruption_from_inside_is_raised_at_the_next_wait() -> None:
    steps = Steps()
    made: Fiber[Any] = Fiber(loop=asyncio.get_running_loop())

    async def itself() -> None:
        made.cancel()
        steps.append("continues")
        await noted(steps, pending())

    made.start(itself())
    assert steps == ["continues", "begun", asyncio.CancelledError]
    assert made.cancelled()


class Lost(Exception):
    """An error that nothing refers to once the fiber that it was raised in has ended."""


@pytest.mark.parametrize("way", ["set_exception", "interrupt", "awaited future"])
async def test_error_is_freed_when_its_fiber_ends(way: str) -> None:
    error = Lost()
    freed = weakref.ref(error)
    awaited = [asyncio.get_running_loop().create_future() if way == "awaited future" else pending()]

    async def ends() -> None:
        with suppress(Lost):
            await awaited.pop()

    gc.disable()
    fail = awaited[0].set_exception
    made = fiber(ends())
    (made.interrupt if way == "interrupt" else fail)(error)
    del error, fail
    await made
    await asyncio.sleep(0)
    gc.enable()
    assert freed() is None


PATIENCE_SECONDS = 20


async def test_result_or_error_comes_while_the_loop_runs() -> None:
    ran = threading.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    assert await run_in_daemon_thread(lambda: ran.wait(PATIENCE_SECONDS)) is True
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_daemon_thread(lambda: int("no number"))


async def test_abandoned_work_ends_without_a_report() -> None:
    gate = threading.Event()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(gate.wait)
    gate.set()
    await asyncio.sleep(0.05)
    assert faults == []


ENDS = """
import asyncio, threading, time
from runtimeproxy.relay.eventloop import run_in_daemon_thread

async def main():
    asyncio.create_task(run_in_daemon_thread(threading.Event().wait))
    asyncio.create_task(run_in_daemon_thread(after_the_end.wait))
    await asyncio.sleep(0.1)

after_the_end = threading.Event()
asyncio.run(main())
after_the_end.set()
time.sleep(0.1)
"""


def test_end_of_the_process_waits_for_no_work() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
