"""The calls under way, their order, and those that ended without the runtime's answer (relay-rules C3, C6).

The proxy queries the runtime for the outcome of starts and stops, ever more rarely, and for few calls at a time.
Between two queries there is no task, only a timer. The next create of the same name shows the outcome of a create.
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
class Ticket:
    """A position in the queue of a key. If a ticket leaves the middle of the queue, later ones do not overtake earlier
    ones. It has no reference to its neighbours: ten thousand calls may be about one container."""

    key: str
    first: Pending[None] | None = None
    """Done once the ticket is the first; None if it was the first from the beginning, as most are."""


class KeyedQueue:
    """One queue per key; ``queues`` has the tickets of each key in order of arrival, and no key without tickets."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.queues: dict[str, dict[Ticket, None]] = {}

    def enqueue(self, key: str) -> Ticket:
        """Append a ticket to a key's queue. ``wait`` waits until it is the first; ``leave`` removes it."""
        ticket = Ticket(key)
        queue = self.queues.setdefault(key, {})
        if queue:
            ticket.first = Pending(loop=asyncio.get_running_loop())
        queue[ticket] = None
        return ticket

    async def wait(self, ticket: Ticket, seconds: float) -> None:
        """Wait until the ticket is the first, ``seconds`` at most."""
        if (first := ticket.first) is None or seconds <= 0:
            return
        deadline = self._deadlines.add(first.get_loop().time() + seconds, partial(_done, first))
        try:
            await first
        finally:
            deadline.late = None

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket from its queue and wake the next call. That resumes after the current read, or in a later
        iteration of the event loop: otherwise thousands of calls would run nested."""
        queue = self.queues[ticket.key]
        del queue[ticket]
        if not queue:
            del self.queues[ticket.key]
        elif (first := next(iter(queue)).first) is not None and not batch.follows(wake := partial(_done, first)):
            first.get_loop().call_soon(wake)


def _done(first: Pending[None]) -> None:
    if not first.done():
        first.set_result(None)


QUERIED_AFTER_SECONDS = (0.1, 0.4, 0.9, 3.0, 10.0, 30.0, 60.0, 125.0)
"""The times of the queries, in seconds from the end of the call. The runtime completes most calls within a second. A
stop takes as long as its grace period; dockershim abandons it after 119 s."""
MAX_CALLS = 1000
"""Largest number of unsettled calls; beyond it the oldest is abandoned."""
MAX_QUERIES = 4
"""Largest number of concurrent queries."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: str
    call: HeldCall
    finish: Callable[[Reply], Awaitable[None]]
    ended: float
    timer: asyncio.TimerHandle = field(init=False)
    task: asyncio.Task[None] | None = None
    settled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OpenCalls:
    def __init__(self, metrics: Metrics, max_calls: int = MAX_CALLS) -> None:
        self._metrics = metrics
        self._max_calls = max_calls
        self.under_way: dict[HeldCall, asyncio.Future[None]] = {}
        """The calls under way, each with the fiber or task that runs it."""
        self.replies: dict[HeldCall, Pending[Reply]] = {}
        """The released calls that have no reply yet, each with what the call awaits."""
        self.creates: dict[str, None] = {}
        """The order keys of creates that the runtime may have carried out, or may still carry out."""
        self._entries: dict[_Entry, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._query_slots = asyncio.Semaphore(MAX_QUERIES)
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

    def unsettled(self, operation: Operation, key: str) -> list[asyncio.Future[None]]:
        """Return a future for each call of an operation on a subject without a known outcome; settling completes it."""
        unsettled = [entry.settled for entry in self._entries if (entry.key, entry.call.operation) == (key, operation)]
        return unsettled + self.running(operation, key)

    def _by_subject(self) -> Iterator[tuple[str, HeldCall]]:
        for call in self.under_way:
            with suppress(Unreadable):
                yield call.order_key(), call

    def add(self, key: str, call: HeldCall, finish: Callable[[Reply], Awaitable[None]]) -> None:
        """Query the outcome of a call that has just ended; ``finish`` is awaited if the runtime carried it out."""
        if self._stopped:
            return
        if len(self._entries) >= self._max_calls:
            self._remove(next(iter(self._entries)), "given_up")
        entry = _Entry(key, call, finish, asyncio.get_running_loop().time())
        self._entries[entry] = None
        self._schedule(entry)

    def add_create(self, key: str) -> None:
        self.creates[key] = None
        if len(self.creates) > self._max_calls:
            del self.creates[next(iter(self.creates))]

    def drop_repeated(self, key: str, operation: Operation) -> None:
        """Drop the calls that requested what the runtime has now agreed to: their outcome does not matter any more."""
        self.creates.pop(key, None)
        for entry in [entry for entry in self._entries if (entry.key, entry.call.operation) == (key, operation)]:
            self._remove(entry, "repeated")

    async def stop(self) -> None:
        self._stopped = True
        for entry in list(self._entries):
            self._remove(entry, "given_up")
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        at = next((at for after in QUERIED_AFTER_SECONDS if (at := entry.ended + after) > loop.time()), None)
        if at is None:
            self._remove(entry, "given_up")
        else:
            entry.timer = loop.call_at(at, self._start, entry)

    def _start(self, entry: _Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._query(entry), name=f"settle {entry.call.operation.value}")
        entry.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _query(self, entry: _Entry) -> None:
        operation = entry.call.operation
        async with self._query_slots:
            try:
                reply = await entry.call.settle()
            except (BackendError, Unreadable):
                reply = UNANSWERED  # at present
            except Exception as error:  # its text may hold values
                self._metrics.count("internal_errors", operation.value)
                extra = {"call": entry.call.call_id}
                log.error("internal error in settling %s", operation.value, exc_info=error, extra=extra)
                reply = Reply(agreed=False)
        # A call under way may have caused this state. If it succeeds it commits the result; else a later query sees it.
        if not reply.answered or self.running(operation, entry.key):
            self._schedule(entry)
            return
        self._remove(entry, "agreed" if reply.agreed else "failed")
        if reply.agreed:
            await entry.finish(reply)

    def _remove(self, entry: _Entry, result: str) -> None:
        del self._entries[entry]
        entry.settled.set_result(None)
        entry.timer.cancel()
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()  # else it keeps the call alive until it gets a query slot
        self._metrics.count("unknown_outcomes", entry.call.operation.value, result)
