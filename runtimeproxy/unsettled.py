"""Calls that ended without the runtime's answer: the runtime is asked what became of them (relay-rules C3).

Owns which calls are unsettled, and when the runtime is asked about each.
Must not know: how a front asks, what is done with what comes out.
Invariant: a call is asked about a bounded number of times, and a bounded number of calls at one time; between two
questions there is no task, only a timer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from runtimeproxy.call import UNANSWERED, Call, Reply, Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.store import Store
from runtimeproxy.telemetry import Recorder

log = logging.getLogger(__name__)

ASKED_AFTER_SECONDS = (0.1, 0.4, 0.9, 3.0, 10.0, 30.0, 60.0, 125.0)
"""When the runtime is asked, from the end of the call on: most of what it goes on with it has done within a second; a
stop takes as long as its grace period, and dockershim gives one up after 119 s."""
MOST_CALLS = 1000
"""How many calls are unsettled at one time; then the oldest is given up. What it made is found by the next list."""
MOST_BYTES = 16 * 2**20
"""How much of their requests they may keep; the oldest are given up as well then."""
MOST_QUESTIONS = 4
"""How many calls the runtime is asked about at one time."""

_EACH_ANOTHER = frozenset({Operation.UPDATE_CONTAINER_RESOURCES, Operation.UPDATE_POD_SANDBOX_RESOURCES})
"""Two calls of these on one subject need not ask for the same."""

Finish = Callable[[Reply], Awaitable[None]]
"""Does what is owed for an answer that is known at last."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: str
    call: Call
    finish: Finish
    ended: float
    size: int
    timer: asyncio.TimerHandle = field(init=False)
    task: asyncio.Task[None] | None = None


def _nobody(key: str, operation: Operation) -> bool:
    """Know of no call that asks for the same."""
    return False


class Unsettled:
    """The calls whose answer never came.

    ``asked_again`` tells whether a call for the same is under way. ``on_unknown`` is called with the key of a container
    of which nobody will know whether it was updated.
    """

    def __init__(
        self,
        store: Store,
        recorder: Recorder,
        asked_again: Callable[[str, Operation], bool] = _nobody,
        on_unknown: Callable[[str], object] = str,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._asked_again = asked_again
        self._on_unknown = on_unknown
        self._entries: dict[_Entry, None] = {}
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = asyncio.Semaphore(MOST_QUESTIONS)
        self._stopped = False

    def __len__(self) -> int:
        """Count the calls of which it is not known yet what became of them."""
        return len(self._entries)

    def add(self, key: str, call: Call, finish: Finish) -> None:
        """Ask the runtime about a call that has just ended; ``finish`` is awaited if the runtime did it."""
        if self._stopped:
            return
        entry = _Entry(key, call, finish, asyncio.get_running_loop().time(), call.kept_bytes)
        while self._entries and (len(self._entries) >= MOST_CALLS or self._bytes + entry.size > MOST_BYTES):
            self._end(next(iter(self._entries)), "given_up")
        self._entries[entry] = None
        self._bytes += entry.size
        self._later(entry)

    def answered(self, key: str, later: Call) -> None:
        """Know that the runtime agreed to a later call: nothing is owed any more for one that asked for the same."""
        operation = later.operation
        for entry in [entry for entry in self._entries if (entry.key, entry.call.operation) == (key, operation)]:
            if operation in _EACH_ANOTHER and entry.call.number >= later.number:
                continue  # it is no later one
            if entry.call.superseded(later):
                self._end(entry, "repeated")

    def unsure(self, key: str) -> None:
        """Have nothing kept of a subject that nobody is sure of any more, whatever is found out."""
        for entry in self._entries:
            if entry.key == key:
                entry.call.unsure = True

    async def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        for entry in list(self._entries):
            self._end(entry, "given_up")
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _later(self, entry: _Entry) -> None:
        """Wait for the next time to ask, or give the call up."""
        loop = asyncio.get_running_loop()
        at = next((at for after in ASKED_AFTER_SECONDS if (at := entry.ended + after) > loop.time()), None)
        if at is None:
            self._end(entry, "given_up")
        else:
            entry.timer = loop.call_at(at, self._start, entry)

    def _start(self, entry: _Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(entry), name=f"settle {entry.call.operation.value}")
        entry.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, entry: _Entry) -> None:
        async with self._questions:
            if entry not in self._entries:
                return
            reply = await self._reply(entry)
        if entry not in self._entries:
            return
        # What is seen now may be the work of a call that will tell of it itself, or else leave it to be seen again.
        operation = entry.call.operation
        if not reply.answered or (operation not in _EACH_ANOTHER and self._asked_again(entry.key, operation)):
            self._later(entry)
            return
        if not reply.agreed or operation not in _EACH_ANOTHER:
            self._end(entry, "agreed" if reply.agreed else "failed")
        if reply.agreed:  # while one of those waits for its turn a later one may still have the runtime agree
            await entry.finish(reply)
        if entry in self._entries:
            self._end(entry, "agreed")

    async def _reply(self, entry: _Entry) -> Reply:
        """Ask the runtime; what cannot be asked or read now may be so later."""
        try:
            return await entry.call.settle(self._store)
        except (BackendError, Unreadable):
            return UNANSWERED
        except Exception as error:  # its text may hold values
            self._recorder.count("internal_errors", operation=entry.call.operation.value)
            log.error("internal error in settling %s", entry.call.operation.value, exc_info=error)
            return Reply(agreed=False)

    def _end(self, entry: _Entry, result: str) -> None:
        del self._entries[entry]
        self._bytes -= entry.size
        entry.timer.cancel()
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()  # it would keep the call until its question has its turn
        self._recorder.count("unsettled", operation=entry.call.operation.value, result=result)
        if result == "given_up" and entry.call.operation is Operation.UPDATE_CONTAINER_RESOURCES:
            self._on_unknown(entry.key)
