"""Queues by key, so that hook calls and commits of one pod or container keep their order (relay-rules C6).

Owns who waits for whom.
Must not know: what is done in a turn.
Invariant: different keys never wait for one another; nobody waits longer than its time, then it goes ahead.
"""

import asyncio
from functools import partial

from runtimeproxy.eventloop.batch import batch
from runtimeproxy.eventloop.deadlines import Deadlines
from runtimeproxy.eventloop.fiber import Pending


class Turn:
    """A place in the queue of a key.

    A turn waits until it is the first: if one in the middle gives up its place, those behind it do not pass those
    before it. It has no reference to its neighbours and is kept small, because each held call has one and ten thousand
    calls may be about one container.
    """

    __slots__ = ("first", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.first: Pending[None] | None = None
        """Done once the turn is the first; None if it was the first from the beginning, as most are."""


class KeyedQueue:
    """One queue per key; a key without turns takes no memory."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.queues: dict[str, dict[Turn, None]] = {}
        """The turns of each key, in order of arrival; keys without turns are absent."""

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
        if turn.first is None or seconds <= 0:
            return
        first = turn.first
        late = self._deadlines.add(first.get_loop().time() + seconds, partial(_done, first))
        try:
            await first
        finally:
            self._deadlines.cancel(late)

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
