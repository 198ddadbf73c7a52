"""The end of a front: what clients have asked for is finished, nothing new is taken, streams are cut last.

Owns the order and the time of that, and the log lines that tell of it.
Must not know: what is spoken on a connection, signals, the listening socket.
Invariant: it ends within its time whatever clients, hook servers and the runtime do.
"""

import asyncio
import logging
import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.01
NOTICE_SECONDS = 0.2
"""How long a client may take to learn that it is to ask no more: what comes later is refused."""
ANSWER_SECONDS = 1.0
"""How long an answer that has begun may take to its end once nobody waits for one to begin: a list of 16 MiB takes a
tenth of that, and what takes longer is a stream."""
PARTING_SECONDS = 0.2
"""How long a client that has everything may take to close its connection."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """How much clients still wait for."""

    calls: int = 0
    """Calls whose answers have not begun, or whose end is known to come."""
    answers: int = 0
    """Answers that have begun: they end soon, or they are streams."""
    streams: int = 0
    """Tunnels, and answers without an end of their own."""

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.calls or self.answers or self.streams)


class Drainable(Protocol):
    """A connection that comes to its end."""

    def drain(self, refusing: bool) -> None:
        """Ask the client to ask no more, refuse what comes all the same once ``refusing``, and part if all is done.

        Called again and again.
        """

    def unfinished(self) -> Unfinished:
        """Tell what the client still waits for."""

    def part(self) -> None:
        """End the connection behind what the client has been given. Repeatable."""

    def close(self) -> None:
        """End the connection at once; what waits is lost."""


class Drain:
    """The end of the connections and tasks of one front; both change while it goes on."""

    def __init__(self, connections: AbstractSet[Drainable], tasks: AbstractSet[object]) -> None:
        self._connections = connections
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    async def run(self, seconds: float, at_once: asyncio.Event) -> None:
        """Drain for at most some seconds, and no longer than until ``at_once``."""
        began = self._loop.time()
        left = self._look(refusing=False)
        log.info("draining for at most %s s; waiting for %s", seconds, self._told(left))
        reason = await self._wait(began, began + seconds, at_once)
        left = self._look(refusing=True)
        log.info("drained after %.2f s: %s; cut off are %s", self._loop.time() - began, reason, self._told(left))
        for connection in tuple(self._connections):
            connection.part()
        end = min(began + seconds, self._loop.time() + PARTING_SECONDS)
        while self._connections and self._loop.time() < end and not at_once.is_set():
            await asyncio.sleep(LOOK_SECONDS)

    async def _wait(self, began: float, end: float, at_once: asyncio.Event) -> str:
        """Wait until every call is answered; return why no longer."""
        # An answer has its time from when it is seen to be alone, not from a look before that: looks may come late.
        alone_since = math.inf
        while (now := self._loop.time()) < end:
            if at_once.is_set():
                return "a second signal came"
            refusing = now - began >= NOTICE_SECONDS
            left = self._look(refusing)
            alone_since = math.inf if left.calls or self._tasks else min(alone_since, now)
            over = alone_since + (ANSWER_SECONDS if left.answers else 0.0)
            if now >= over and (refusing or not self._connections):
                return "every call is answered"
            await asyncio.sleep(LOOK_SECONDS)
        return "the time is over (--drain-timeout)"

    def _look(self, refusing: bool) -> Unfinished:
        """Go on with every connection, and tell what is left."""
        for connection in tuple(self._connections):
            connection.drain(refusing)
        return total(connection.unfinished() for connection in self._connections)

    def _told(self, left: Unfinished) -> str:
        return (
            f"calls: {left.calls}, answers that have begun: {left.answers}, streams: {left.streams}, "
            f"held calls at work: {len(self._tasks)}, connections: {len(self._connections)}"
        )


def total(each: Iterable[Unfinished]) -> Unfinished:
    """Return the sum."""
    calls = answers = streams = 0
    for one in each:
        calls, answers, streams = calls + one.calls, answers + one.answers, streams + one.streams
    return Unfinished(calls, answers, streams)
