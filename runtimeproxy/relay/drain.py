"""Drain a front: finish the calls of its clients, refuse new ones, and close streams last.

Before it, ``answers_ended`` waits for answers in progress while clients are still served.
Invariant: a drain ends within its time limit, whatever clients, hook servers and the runtime do.
"""

import asyncio
import logging
import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

POLL_SECONDS = 0.01
NOTICE_SECONDS = 0.2
"""Seconds after the announcement of the end in which new calls are still accepted."""
ANSWER_SECONDS = 1.0
"""Seconds in which answers in progress must end once no call waits for its answer to begin. A list of 16 MiB takes a
tenth of that; a longer answer is a stream."""
CLOSE_SECONDS = 0.2
"""Seconds that a client has to close its connection after it has received everything."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The unfinished work of clients."""

    calls: int = 0
    """Calls whose answers have not begun, or will certainly end."""
    answers: int = 0
    """Answers in progress and tunnels, whose end is unknown."""
    streams: int = 0
    """Answers without an end, such as events; their clients reconnect."""

    def __bool__(self) -> bool:
        return bool(self.calls or self.answers or self.streams)


class Drainable(Protocol):
    """Interface of a connection that can be drained."""

    def drain(self, refusing: bool) -> None:
        """Called repeatedly: announce the end to the client, and close once it has received everything. New calls are
        refused if ``refusing``.
        """

    def unfinished(self) -> Unfinished:
        """Called repeatedly: return the unfinished work of the client."""

    def part(self) -> None:
        """Called at the end, perhaps repeatedly: close the connection after all queued bytes were sent."""

    def close(self) -> None:
        """Called to close the connection immediately; queued bytes are lost."""


async def answers_ended(connections: AbstractSet[Drainable], seconds: float, at_once: asyncio.Event) -> None:
    """Wait until the present answers and tunnels have ended, for ``seconds`` at most or until ``at_once`` is set. Later
    ones do not prolong the wait."""
    loop = asyncio.get_running_loop()
    busy = {connection for connection in connections if connection.unfinished().answers}
    if not busy:
        return
    end = loop.time() + seconds
    log.info(
        "continuing to serve for at most %s s, until answers and tunnels that have begun end: %d", seconds, len(busy)
    )
    while busy and loop.time() < end and not at_once.is_set():
        await asyncio.sleep(POLL_SECONDS)
        busy = {connection for connection in busy & connections if connection.unfinished().answers}
    log.info("answers and tunnels that have not ended: %d", len(busy))


class Drain:
    """Drains the connections and tasks of one front; both sets change meanwhile."""

    def __init__(self, connections: AbstractSet[Drainable], tasks: AbstractSet[object]) -> None:
        self._connections = connections
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    async def run(self, seconds: float, at_once: asyncio.Event) -> str:
        """Drain for ``seconds`` at most, and no longer than until ``at_once`` is set; return why it ended."""
        began = self._loop.time()
        unfinished = self._check(refusing=False)
        log.info("draining for at most %s s; waiting for %s", seconds, self._describe(unfinished) or "nothing")
        reason = await self._wait(began, began + seconds, at_once)
        unfinished = self._check(refusing=True)
        counts = self._describe(unfinished)
        cut_off = f"; cut off are {counts}" if counts else ""
        log.info("drained in %.2f s: %s%s", self._loop.time() - began, reason, cut_off)
        for connection in tuple(self._connections):
            connection.part()
        end = min(began + seconds, self._loop.time() + CLOSE_SECONDS)
        while self._connections and self._loop.time() < end and not at_once.is_set():
            await asyncio.sleep(POLL_SECONDS)
        return reason

    async def _wait(self, began: float, end: float, at_once: asyncio.Event) -> str:
        """Wait until every call is answered; return the reason for the end of the wait, for the log."""
        # The time of answers starts with the poll that finds no other calls, as polls may be delayed.
        alone_since = math.inf
        while (now := self._loop.time()) < end:
            if at_once.is_set():
                return "a second signal came"
            refusing = now - began >= NOTICE_SECONDS
            unfinished = self._check(refusing)
            alone_since = math.inf if unfinished.calls or self._tasks else min(alone_since, now)
            answered_at = alone_since + (ANSWER_SECONDS if unfinished.answers else 0.0)
            if now >= answered_at and (refusing or not self._connections):
                return "every call is answered"
            await asyncio.sleep(POLL_SECONDS)
        return "the drain timeout has expired (--drain-timeout)"

    def _check(self, refusing: bool) -> Unfinished:
        """Call ``drain`` of every connection, and return the unfinished work."""
        for connection in tuple(self._connections):
            connection.drain(refusing)
        return total(connection.unfinished() for connection in self._connections)

    def _describe(self, unfinished: Unfinished) -> str:
        """Return the counts that are not 0."""
        counts = {
            "calls": unfinished.calls,
            "answers that have begun": unfinished.answers,
            "streams": unfinished.streams,
            "held calls at work": len(self._tasks),
            "connections": len(self._connections),
        }
        return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


def total(parts: Iterable[Unfinished]) -> Unfinished:
    calls = answers = streams = 0
    for part in parts:
        calls, answers, streams = calls + part.calls, answers + part.answers, streams + part.streams
    return Unfinished(calls, answers, streams)
