"""The drain of a front; batches, deadlines and fibers on the event loop, and work in daemon threads."""

import asyncio
import gc
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from runtimeproxy.relay import drain
from runtimeproxy.relay.drain import ANSWER_SECONDS, CLOSE_SECONDS, NOTICE_SECONDS, Drain, Unfinished, answers_ended
from runtimeproxy.relay.eventloop import Batch, Deadline, Deadlines, Fiber, Pending, run_in_daemon_thread
from tests.fakes.clock import virtual_time

POLLS_SECONDS = 5 * drain.POLL_SECONDS
"""Most seconds between the end of a drain and the event that ends it."""


class Connection:
    """A connection with some unfinished work; it closes at ``part`` unless its client stays."""

    def __init__(self, connections: set["Connection"], *, stays: bool = False, **unfinished: int) -> None:
        self.work, self.parted = Unfinished(**unfinished), 0
        self.refused: list[bool] = []
        """At each call of ``drain``: whether new calls were to be refused."""
        self.unfinished, self.drain, self.close = lambda: self.work, self.refused.append, lambda: None
        self._connections = set() if stays else connections
        connections.add(self)

    def finish(self) -> None:
        assert not self.parted, "a connection is parted after its last answer"
        self.work = Unfinished()

    def part(self) -> None:
        self.parted += 1
        self._connections.discard(self)


ANSWERED, STREAMS, BUSY = "every call is answered", {"streams": 2}, {"calls": 1, "tasks": 1, "stays": True}
CUT_OFF = f"{ANSWERED}; cut off are streams: 2, connections: 2"
CUT_ONE = f"{ANSWERED}; cut off are connections: 1"
CUT_ANSWER = f"{ANSWERED}; cut off are answers that have begun: 1, connections: 2"
CUT_CALL = "cut off are calls: 1, held calls at work: 1, connections: 1"
PARTED, LATE = NOTICE_SECONDS + CLOSE_SECONDS, NOTICE_SECONDS + CLOSE_SECONDS / 2
DRAINS: dict[str, tuple[list[dict[str, int]], dict[str, float], float, str]] = {
    "no connection": ([], {}, 0, ANSWERED),
    "idle client": ([{}], {}, NOTICE_SECONDS, CUT_ONE),
    "call": ([{"calls": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "task": ([{"tasks": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "answer": ([{"answers": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "endless answer after a call": ([{"calls": 1}, {"answers": 1}], {"finish": 3}, 3 + ANSWER_SECONDS, CUT_ANSWER),
    "limit": ([BUSY], {"limit": 3}, 3, f"the drain timeout has expired (--drain-timeout); {CUT_CALL}"),
    "signal": ([BUSY], {"signal": 3}, 3, f"a second signal came; {CUT_CALL}"),
    "client that stays": ([{"stays": True}], {}, PARTED, CUT_ONE),
    "client that closes late": ([{"stays": True}], {"close": LATE}, LATE, CUT_ONE),
}
"""The unfinished work of each connection, what happens when, the seconds until the end, and its reason."""


@pytest.mark.parametrize("drained", DRAINS)
@virtual_time
async def test_drain_ends_with_reason(caplog: pytest.LogCaptureFixture, drained: str) -> None:
    work, events, seconds, reason = DRAINS[drained]
    caplog.set_level("INFO")
    loop, connections, signal = asyncio.get_running_loop(), set[Connection](), asyncio.Event()
    tasks: set[object] = {"a held call" for entry in work if "tasks" in entry}
    made = [Connection(connections, **{key: entry[key] for key in entry if key != "tasks"}) for entry in work]
    limit = events.get("limit", 60.0)
    do = {"signal": [signal.set], "close": [connections.clear], "finish": [entry.finish for entry in made[:1]]}
    do["finish"].append(tasks.clear)
    for event, at in events.items():
        for action in do.get(event, ()):
            loop.call_later(at, action)
    await Drain(connections, tasks).run(limit, signal)
    assert seconds <= loop.time() + 1e-6 < seconds + POLLS_SECONDS
    first, last = caplog.messages
    assert first.startswith(f"draining for at most {limit} s; waiting for ")
    assert first.endswith("nothing") == (not work)
    assert (last[:11], last.partition(" s: ")[2]) == ("drained in ", reason)
    for connection in made:
        assert connection.parted == 1
        assert connection.refused == sorted(connection.refused)
        assert (connection.refused[0], connection.refused[-1]) == (False, True), "clients are notified first"


@virtual_time
async def test_later_connection_is_drained_too() -> None:
    connections, loop = set[Connection](), asyncio.get_running_loop()
    first, late = Connection(connections, calls=1), Connection(connections, calls=1)
    connections.remove(late)
    loop.call_later(2, connections.remove, first)
    loop.call_later(2, connections.add, late)
    loop.call_later(5, late.finish)
    await Drain(connections, set()).run(60, asyncio.Event())
    assert loop.time() == pytest.approx(5, abs=POLLS_SECONDS)
    assert late.refused


@virtual_time
async def test_answers_in_progress_end_before_drain() -> None:
    """Calls, endless streams, and answers that begin later are not waited for."""
    loop, connections, signal = asyncio.get_running_loop(), set[Connection](), asyncio.Event()
    await answers_ended(connections, 60, signal)
    assert loop.time() == 0
    answer, closed = Connection(connections, answers=1), Connection(connections, answers=1)
    Connection(connections, calls=1, streams=1)
    loop.call_later(1, connections.discard, closed)
    loop.call_later(2, lambda: Connection(connections, answers=1))
    loop.call_later(3, answer.finish)
    await answers_ended(connections, 60, signal)
    assert loop.time() == pytest.approx(3, abs=POLLS_SECONDS)
    assert not any(connection.refused for connection in connections)
    for _ in ("its time", "a signal"):
        await answers_ended(connections, 2, signal)
        assert loop.time() == pytest.approx(5, abs=POLLS_SECONDS)
        signal.set()


def test_batch_defers_writes_and_then_followers() -> None:
    """The writes remain when a call raises."""
    batch, done = Batch(), list[str]()

    def follow(name: str, next_name: str) -> None:
        done.append(name)
        if next_name and not batch.follows(partial(follow, next_name, "")):
            done.append(f"{next_name} later")

    writes = {socket: partial(done.append, f"write {socket}") for socket in "xy"}
    for name, socket in batch.iterate(deque(["ax", "by", "cy"])):
        done.append(name)
        if not batch.defers(writes[socket]):
            writes[socket]()
        if name == "a":
            batch.follows(partial(follow, "d", "e"))
    assert done == ["a", "b", "c", "write y", "write x", "write y", "d", "e later"]
    assert not batch.follows(lambda: None)
    assert not batch.defers(writes["x"])
    done.clear()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for call in batch.iterate(deque([1, 0, 1])):
            batch.defers(partial(done.append, f"write of {1 / call:.0f}"))
    assert done == ["write of 1"]
    assert not batch.defers(lambda: None)


@virtual_time
async def test_deadlines_are_called_in_order_by_one_timer() -> None:
    """A cancelled one is not called, also if another callback cancels it, earlier or at the same time."""
    loop, deadlines, called = asyncio.get_running_loop(), Deadlines(), list[tuple[float, str]]()

    def add(at: float, name: str) -> Deadline:
        return deadlines.add(at, lambda: called.append((loop.time(), name)))

    with patch.object(loop, "call_at", wraps=loop.call_at) as call_at:
        for at, name in ((2, "a"), (2, "b"), (3, "c")):
            add(at, name)
        for number in range(1_000):
            deadlines.add(2 + number / 1_000, lambda: None).late = None
        assert call_at.call_count == 1
    add(1, "first")
    deadlines.add(1.5, lambda: setattr(earlier, "late", None))
    deadlines.add(3, lambda: setattr(same_time, "late", None))
    earlier, same_time = add(3, "cancelled earlier"), add(3, "cancelled at the same time")
    await asyncio.sleep(10)
    add(21, "after an idle time")
    await asyncio.sleep(20)
    assert called == [(1, "first"), (2, "a"), (2, "b"), (3, "c"), (21, "after an idle time")]


def fiber(coroutine: Any) -> Fiber[Any]:
    made: Fiber[Any] = Fiber(loop=asyncio.get_running_loop())
    made.start(coroutine)
    return made


async def noted(steps: list[object], awaited: Any) -> str:
    steps.append("begun")
    try:
        steps.append(await awaited)
    except BaseException as error:
        steps.append(type(error))
        raise
    return "ended"


async def test_fiber_resumes_inside_its_awaitable() -> None:
    steps, awaited = list[object](), [Pending[Any]() for _ in range(3)]

    async def all_three() -> None:
        for item in awaited:
            await noted(steps, item)

    made = fiber(all_three())
    assert steps == ["begun"]
    awaited[0].set_result(1)
    assert (steps, made.done()) == (["begun", 1, "begun"], False)
    awaited[1].set_result(2)
    awaited[2].set_exception(KeyError("key"))
    assert steps[3:] == [2, "begun", KeyError]
    with pytest.raises(KeyError):
        await made
    assert fiber(noted(steps, awaited[0])).result() == "ended", "an available result is not waited for"


async def test_fiber_awaits_same_awaitables_as_task() -> None:
    future = asyncio.get_running_loop().create_future()
    made = [fiber(noted([], item)) for item in (asyncio.create_task(asyncio.sleep(0)), asyncio.sleep(0), future)]
    assert not any(item.done() for item in made)
    future.set_result(None)
    assert await asyncio.gather(*made) == ["ended"] * 3
    failing = Pending[Any]()
    task = asyncio.create_task(noted([], failing))
    await asyncio.sleep(0)
    failing.set_exception(KeyError())
    with pytest.raises(KeyError):  # a task may await what resumes a fiber
        await task


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
async def test_interruption_is_raised_at_await_of_fiber(error: type[BaseException]) -> None:
    steps, awaited = list[object](), Pending[Any]()
    made = fiber(noted(steps, awaited))
    made.interrupt(error())
    assert steps == ["begun", error]
    assert awaited.cancelled()
    with pytest.raises(error):
        await made
    made.interrupt(error())  # it has ended
    made = fiber(noted([], Pending()))
    assert (made.cancel(), made.cancelled(), made.cancel()) == (True, True, False), "as a task is"
    faults, done = list[object](), asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    made = fiber(noted([], done))
    done.set_result("late")
    made.interrupt(KeyError())
    await asyncio.sleep(0)
    assert (type(made.exception()), faults) == (KeyError, []), "an awaitable from before it is ignored"


async def test_interruption_from_inside_is_raised_at_next_await() -> None:
    steps, made = list[object](), Fiber[Any](loop=asyncio.get_running_loop())

    async def itself() -> None:
        made.cancel()
        await noted(steps, Pending())

    made.start(itself())
    assert (steps, made.cancelled()) == (["begun", asyncio.CancelledError], True)


@virtual_time
class FreedError(Exception):
    """An error that supports weak references."""


@pytest.mark.parametrize("raised_by", ["set_exception", "interrupt", "awaited future"])
async def test_error_is_freed_when_its_fiber_ends(raised_by: str) -> None:
    error = FreedError()
    freed = weakref.ref(error)
    awaited: list[Any] = [Pending() if raised_by != "awaited future" else asyncio.get_running_loop().create_future()]

    async def main() -> None:
        with suppress(FreedError):
            await awaited.pop()

    gc.disable()
    fail = awaited[0].set_exception
    made = fiber(main())
    (made.interrupt if raised_by == "interrupt" else fail)(error)
    del error, fail
    await made
    await asyncio.sleep(0)
    gc.enable()
    assert freed() is None


async def test_awaited_task_ends_before_fiber_is_interrupted() -> None:
    """The task that calls the runtime must handle its own cancellation first."""
    steps = list[object]()
    made = fiber(noted(steps, asyncio.create_task(noted(steps, asyncio.sleep(60)))))
    await asyncio.sleep(1)
    made.interrupt(TimeoutError())
    with pytest.raises(TimeoutError):
        await made
    assert steps == ["begun", "begun", asyncio.CancelledError, TimeoutError]


def test_daemon_thread_returns_result_or_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the end of the loop nor that of the process waits for it."""
    ran, gates, faults = threading.Event(), [threading.Event() for _ in range(2)], list[object]()
    monkeypatch.setattr(threading, "excepthook", faults.append)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        loop.call_soon(ran.set)
        assert await run_in_daemon_thread(lambda: ran.wait(20)) is True
        with pytest.raises(ValueError, match="invalid literal"):
            await run_in_daemon_thread(lambda: int("no number"))
        for gate in gates:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run_in_daemon_thread(gate.wait), 0.01)
        gates[0].set()
        await asyncio.sleep(0.05)

    asyncio.run(main())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "run_in_daemon_thread"]
    assert thread.daemon
    gates[1].set()
    thread.join(20)
    assert faults == [], "the end of abandoned work is not reported"
