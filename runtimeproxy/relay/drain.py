"""The drain of a front: finish the calls of its clients, take no new ones, and cut streams off last.

Before it, answers in progress may be waited for while clients are still served: otherwise all other calls would wait,
too.
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
"""Seconds that a client is given to learn that it should send no more calls: later ones are refused."""
ANSWER_SECONDS = 1.0
"""Seconds that an answer in progress is given to end, once no client waits for one to begin. A list of 16 MiB takes a
tenth of that; what takes longer is a stream."""
PARTING_SECONDS = 0.2
"""Seconds that a client that has received everything is given to close its connection."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """How much clients still wait for."""

    calls: int = 0
    """Calls whose answers have not begun, or certainly come to an end."""
    answers: int = 0
    """Answers in progress and tunnels: nobody knows when they end."""
    streams: int = 0
    """Answers without an end, such as events; their clients follow them again."""

    def __bool__(self) -> bool:
        return bool(self.calls or self.answers or self.streams)


class Drainable(Protocol):
    """Interface of a connection that can be drained."""

    def drain(self, refusing: bool) -> None:
        """Called repeatedly: announce the end to the client, and close once it has received everything. From
        ``refusing`` on, new calls are refused.
        """

    def unfinished(self) -> Unfinished:
        """Called repeatedly: return what the client still waits for."""

    def part(self) -> None:
        """Called at the end: close the connection once the client has been sent what is queued. May be called again."""

    def close(self) -> None:
        """Called to close the connection immediately; what is queued is lost."""


async def answers_ended(connections: AbstractSet[Drainable], seconds: float, at_once: asyncio.Event) -> None:
    """Wait until each connection that has an answer in progress or a tunnel now was seen without one, for ``seconds``
    at most and until ``at_once`` is set. Those that begin later are not waited for, or there might be no end."""
    loop = asyncio.get_running_loop()
    left = {connection for connection in connections if connection.unfinished().answers}
    if not left:
        return
    end = loop.time() + seconds
    log.info("serving on for at most %s s, until answers and tunnels that have begun end: %d", seconds, len(left))
    while left and loop.time() < end and not at_once.is_set():
        await asyncio.sleep(LOOK_SECONDS)
        left = {connection for connection in left & connections if connection.unfinished().answers}
    log.info("answers and tunnels that have not ended: %d", len(left))


class Drain:
    """Drains the connections and tasks of one front; both sets change meanwhile."""

    def __init__(self, connections: AbstractSet[Drainable], tasks: AbstractSet[object]) -> None:
        self._connections = connections
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    async def run(self, seconds: float, at_once: asyncio.Event) -> str:
        """Drain for ``seconds`` at most, and no longer than until ``at_once`` is set; return why it ended."""
        began = self._loop.time()
        left = self._check(refusing=False)
        log.info("draining for at most %s s; waiting for %s", seconds, self._reported(left) or "nothing")
        reason = await self._wait(began, began + seconds, at_once)
        left = self._check(refusing=True)
        counts = self._reported(left)
        cut_off = f"; cut off are {counts}" if counts else ""
        log.info("drained in %.2f s: %s%s", self._loop.time() - began, reason, cut_off)
        for connection in tuple(self._connections):
            connection.part()
        end = min(began + seconds, self._loop.time() + PARTING_SECONDS)
        while self._connections and self._loop.time() < end and not at_once.is_set():
            await asyncio.sleep(LOOK_SECONDS)
        return reason

    async def _wait(self, began: float, end: float, at_once: asyncio.Event) -> str:
        """Wait until every call is answered; return the reason for the end of the wait, for the log."""
        # An answer's time counts from when it is seen to be alone, not from an earlier look: looks may come late.
        alone_since = math.inf
        while (now := self._loop.time()) < end:
            if at_once.is_set():
                return "a second signal came"
            refusing = now - began >= NOTICE_SECONDS
            left = self._check(refusing)
            alone_since = math.inf if left.calls or self._tasks else min(alone_since, now)
            over = alone_since + (ANSWER_SECONDS if left.answers else 0.0)
            if now >= over and (refusing or not self._connections):
                return "every call is answered"
            await asyncio.sleep(LOOK_SECONDS)
        return "the drain timeout has expired (--drain-timeout)"

    def _check(self, refusing: bool) -> Unfinished:
        """Call ``drain`` of every connection, and return what is left."""
        for connection in tuple(self._connections):
            connection.drain(refusing)
        return total(connection.unfinished() for connection in self._connections)

    def _reported(self, left: Unfinished) -> str:
        """Return the counts that are not 0."""
        counts = {
            "calls": left.calls,
            "answers that have begun": left.answers,
            "streams": left.streams,
            "held calls at work": len(self._tasks),
            "connections": len(self._connections),
        }
        return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


def total(each: Iterable[Unfinished]) -> Unfinished:
    calls = answers = streams = 0
    for one in each:
        calls, answers, streams = calls + one.calls, answers + one.answers, streams + one.streams
    return Unfinished(calls, answers, streams)
