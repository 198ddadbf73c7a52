"""The calls under way, their order, and those that ended without the runtime's answer (relay-rules C3, C6).

The runtime is queried for the outcome of starts and stops, about one call only so often, and about few calls at one
time; between two queries there is no task, only a timer. That of a create shows in the answer to the next create of
the same name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from runtimeproxy.core.call import UNANSWERED, HeldCall, Reply, Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.eventloop import Deadlines, Pending, batch

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """A position in the queue of a key.

    If one in the middle leaves its position, the following ones do not pass those before it. It is small, without a
    reference to its neighbours: each held call has one, and ten thousand calls may be about one container.
    """

    key: str
    first: Pending[None] | None = None
    """Done once the turn is the first; None if it was the first from the beginning, as most are."""


class KeyedQueue:
    """One queue per key; ``queues`` has the turns of each key in order of arrival, and no key without turns."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.queues: dict[str, dict[Turn, None]] = {}

    def take(self, key: str) -> Turn:
        """Append a turn to a key's queue and return it. ``wait`` waits until it is first; it stays until ``leave``."""
        turn = Turn(key)
        queue = self.queues.setdefault(key, {})
        if queue:
            turn.first = Pending(loop=asyncio.get_running_loop())
        queue[turn] = None
        return turn

    async def wait(self, turn: Turn, seconds: float) -> None:
        """Wait until the turn is the first, ``seconds`` at most."""
        if (first := turn.first) is None or seconds <= 0:
            return
        deadline = self._deadlines.add(first.get_loop().time() + seconds, partial(_done, first))
        try:
            await first
        finally:
            deadline.late = None

    def leave(self, turn: Turn) -> None:
        """Remove a turn from its queue and wake the next one. That continues after the read that is being handled, or
        in a later iteration of the event loop: otherwise thousands would run nested in one another."""
        queue = self.queues[turn.key]
        del queue[turn]
        if not queue:
            del self.queues[turn.key]
        elif (first := next(iter(queue)).first) is not None and not batch.follows(wake := partial(_done, first)):
            first.get_loop().call_soon(wake)


def _done(first: Pending[None]) -> None:
    if not first.done():
        first.set_result(None)


QUERIED_AFTER_SECONDS = (0.1, 0.4, 0.9, 3.0, 10.0, 30.0, 60.0, 125.0)
"""When the runtime is queried, in seconds from the end of the call. Most of what the runtime still carries out is done
within a second; a stop takes as long as its grace period, and dockershim gives one up after 119 s."""
MOST_CALLS = 1000
"""Most calls that are unsettled at one time; beyond that the oldest is given up."""
MOST_QUESTIONS = 4
"""Most calls that the runtime is queried about at one time."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: str
    call: HeldCall
    finish: Callable[[Reply], Awaitable[None]]
    ended: float
    timer: asyncio.TimerHandle = field(init=False)
    task: asyncio.Task[None] | None = None
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OpenCalls:
    def __init__(self, metrics: Metrics, most_calls: int = MOST_CALLS) -> None:
        self._metrics = metrics
        self._most_calls = most_calls
        self.under_way: dict[HeldCall, asyncio.Future[None]] = {}
        """The calls under way, each with the fiber or task that runs it."""
        self.replies: dict[HeldCall, Pending[Reply]] = {}
        """The released calls that have no reply yet, each with what the call awaits."""
        self.creates: dict[str, None] = {}
        """The order keys of creates that the runtime may have carried out, or may still carry out."""
        self._entries: dict[_Entry, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = asyncio.Semaphore(MOST_QUESTIONS)
        self._stopped = False

    def calls(self) -> list[HeldCall]:
        return [*self.under_way, *(entry.call for entry in self._entries)]

    def end(self, call: HeldCall) -> None:
        self.under_way.pop(call, None)
        self.replies.pop(call, None)

    def subjects(self) -> set[str]:
        """Return the subjects of the calls under way: ids, or full names where no id is known yet."""
        return {subject for subject, _ in self._by_subject()}

    def running(self, operation: Operation, key: str) -> list[asyncio.Future[None]]:
        desired = key, operation
        return [self.under_way[call] for subject, call in self._by_subject() if (subject, call.operation) == desired]

    def unknown(self, operation: Operation, key: str) -> list[asyncio.Future[None]]:
        """Return a future for each call of an operation on a subject whose outcome is unknown, done when it is not."""
        unsettled = [one.over for one in self._entries if (one.key, one.call.operation) == (key, operation)]
        return unsettled + self.running(operation, key)

    def _by_subject(self) -> Iterator[tuple[str, HeldCall]]:
        for call in self.under_way:
            with suppress(Unreadable):
                yield call.order_key(), call

    def add(self, key: str, call: HeldCall, finish: Callable[[Reply], Awaitable[None]]) -> None:
        """Query the outcome of a call that has just ended; ``finish`` is awaited if the runtime carried it out."""
        if self._stopped:
            return
        if len(self._entries) >= self._most_calls:
            self._end(next(iter(self._entries)), "given_up")
        entry = _Entry(key, call, finish, asyncio.get_running_loop().time())
        self._entries[entry] = None
        self._wait(entry)

    def add_create(self, key: str) -> None:
        self.creates[key] = None
        if len(self.creates) > self._most_calls:
            del self.creates[next(iter(self.creates))]

    def answered(self, key: str, operation: Operation) -> None:
        """Drop the calls that requested what the runtime has now agreed to: their outcome does not matter any more."""
        self.creates.pop(key, None)
        for entry in [entry for entry in self._entries if (entry.key, entry.call.operation) == (key, operation)]:
            self._end(entry, "repeated")

    async def stop(self) -> None:
        self._stopped = True
        for entry in list(self._entries):
            self._end(entry, "given_up")
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wait(self, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        at = next((at for after in QUERIED_AFTER_SECONDS if (at := entry.ended + after) > loop.time()), None)
        if at is None:
            self._end(entry, "given_up")
        else:
            entry.timer = loop.call_at(at, self._start, entry)

    def _start(self, entry: _Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._query(entry), name=f"settle {entry.call.operation.value}")
        entry.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _query(self, entry: _Entry) -> None:
        operation = entry.call.operation
        async with self._questions:
            try:
                reply = await entry.call.settle()
            except (BackendError, Unreadable):
                reply = UNANSWERED  # at present
            except Exception as error:  # its text may hold values
                self._metrics.count("internal_errors", operation.value)
                extra = {"call": entry.call.call_id}
                log.error("internal error in settling %s", operation.value, exc_info=error, extra=extra)
                reply = Reply(agreed=False)
        # What is seen now may be the work of a call under way, which does what follows itself; otherwise it is seen
        # again.
        if not reply.answered or self.running(operation, entry.key):
            self._wait(entry)
            return
        self._end(entry, "agreed" if reply.agreed else "failed")
        if reply.agreed:
            await entry.finish(reply)

    def _end(self, entry: _Entry, result: str) -> None:
        del self._entries[entry]
        entry.over.set_result(None)
        entry.timer.cancel()
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()  # it would keep the call alive until it has its place among the queries
        self._metrics.count("unknown_outcomes", entry.call.operation.value, result)
