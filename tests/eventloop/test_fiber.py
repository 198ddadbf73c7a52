"""Fibers start and resume immediately, are interrupted where they wait, and pass on their results."""

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest

from runtimeproxy.relay.eventloop import Fiber, Pending
from tests.fakes.clock import virtual_time

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


async def test_fiber_runs_at_once_and_goes_on_within_what_it_awaits() -> None:
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
    assert fiber(noted(steps, first)).result() == "ended", "a result that has come is not waited for"


async def test_error_is_raised_where_a_fiber_waits_and_is_its_own() -> None:
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


async def test_task_may_wait_for_what_resumes_a_fiber() -> None:
    awaited = pending()
    task = asyncio.create_task(noted([], awaited))
    await asyncio.sleep(0)
    awaited.set_result(1)
    assert await task == "ended"


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
    """The task that asks the runtime must handle its own cancellation first."""
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
        steps.append("goes on")
        await noted(steps, pending())

    made.start(itself())
    assert steps == ["goes on", "begun", asyncio.CancelledError]
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
