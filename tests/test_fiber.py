"""Fibers: begun and resumed at once, interrupted where they wait, seen by whoever awaits them."""

import asyncio
from typing import Any

import pytest

from runtimeproxy.fiber import Fiber, Pending
from tests.fakes.clock import virtual_time

Steps = list[object]


def fiber(coroutine: Any) -> Fiber[Any]:
    made: Fiber[Any] = Fiber(loop=asyncio.get_running_loop())
    made.start(coroutine)
    return made


def pending() -> Pending[Any]:
    return Pending(loop=asyncio.get_running_loop())


async def noted(steps: Steps, awaited: Any) -> str:
    """Note what comes of an awaited thing."""
    steps.append("begun")
    try:
        steps.append(await awaited)
    except BaseException as error:
        steps.append(type(error))
        raise
    return "ended"


async def test_a_fiber_runs_at_once_and_goes_on_within_what_it_awaits() -> None:
    steps: Steps = []
    first, second = pending(), pending()

    async def both() -> str:
        await noted(steps, first)
        return await noted(steps, second)

    made = fiber(both())
    assert steps == ["begun"]
    first.set_result(1)
    assert (steps, made.done()) == (["begun", 1, "begun"], False)
    second.set_result(2)
    assert (steps[-1], made.result()) == (2, "ended")


async def test_a_result_that_has_come_is_not_waited_for() -> None:
    steps: Steps = []
    come = pending()
    come.set_result(1)
    assert fiber(noted(steps, come)).result() == "ended"


async def test_an_error_is_raised_where_it_waits_and_is_its_own() -> None:
    steps: Steps = []
    awaited = pending()
    made = fiber(noted(steps, awaited))
    awaited.set_exception(KeyError("key"))
    assert steps == ["begun", KeyError]
    with pytest.raises(KeyError):
        await made


@pytest.mark.parametrize("awaits", ["task", "turn of the loop", "future"])
async def test_a_fiber_awaits_all_that_a_task_awaits(awaits: str) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, None)
    awaited = {"task": loop.create_task(asyncio.sleep(0)), "turn of the loop": asyncio.sleep(0), "future": future}
    made = fiber(noted([], awaited.pop(awaits)))
    assert not made.done()
    assert await made == "ended"
    for other in awaited.values():
        await other


async def test_a_task_may_wait_for_what_resumes_a_fiber() -> None:
    awaited = pending()
    task = asyncio.create_task(noted([], awaited))
    await asyncio.sleep(0)
    awaited.set_result(1)
    assert await task == "ended"


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
async def test_an_interruption_is_raised_where_it_waits(error: type[BaseException]) -> None:
    steps: Steps = []
    awaited = pending()
    made = fiber(noted(steps, awaited))
    made.interrupt(error())
    assert steps == ["begun", error]
    assert awaited.cancelled()
    with pytest.raises(error):
        await made
    made.interrupt(error())  # it has ended


@virtual_time
async def test_a_task_that_it_waits_for_ends_before_it_is_interrupted() -> None:
    """What a question to the runtime has to say of its own end comes first."""
    steps: Steps = []
    made = fiber(noted(steps, asyncio.create_task(noted(steps, asyncio.sleep(60)))))
    await asyncio.sleep(1)
    made.interrupt(TimeoutError())
    with pytest.raises(TimeoutError):
        await made
    assert steps == ["begun", "begun", asyncio.CancelledError, TimeoutError]


async def test_a_fiber_is_cancelled_as_a_task_is() -> None:
    steps: Steps = []
    made = fiber(noted(steps, pending()))
    assert made.cancel()
    assert made.cancelled()
    assert not made.cancel()
    assert steps == ["begun", asyncio.CancelledError]


async def test_an_interruption_from_inside_is_raised_where_it_waits_next() -> None:
    steps: Steps = []
    made: Fiber[Any] = Fiber(loop=asyncio.get_running_loop())

    async def itself() -> None:
        made.cancel()
        steps.append("goes on")
        await noted(steps, pending())

    made.start(itself())
    assert steps == ["goes on", "begun", asyncio.CancelledError]
    assert made.cancelled()
