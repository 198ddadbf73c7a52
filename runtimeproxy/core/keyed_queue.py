"""Turns: the hook calls and commits of one pod or container keep their order (relay-rules C6).

Owns who waits for whom.
Must not know: what is done in a turn.
Invariant: different keys never wait for one another; nobody waits longer than its time, then it goes ahead.
"""

import asyncio

from runtimeproxy.eventloop.deadlines import Deadlines


class Turn:
    """A place in the queue of a key: small, as each held call has one.

    Who waits does so until it is the first: one that gave up its place does not let those behind it pass those before
    it. It knows nobody else, as ten thousand calls may be about one container.
    """

    __slots__ = ("first", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.first: asyncio.Future[None] | None = None
        """Done once it is the first; None where it was from the beginning, as most are."""


class KeyedQueue:
    """One queue a key; a key without anybody in it takes no memory."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.queues: dict[str, dict[Turn, None]] = {}
        """Who is in the queue of each key that has one, in the order in which they came."""

    def take(self, key: str) -> Turn:
        """Stand behind everybody who came earlier for a key, until ``leave``; ``first`` says what is to be awaited."""
        turn = Turn(key)
        queue = self.queues.setdefault(key, {})
        if queue:
            turn.first = asyncio.get_running_loop().create_future()
        queue[turn] = None
        return turn

    async def wait(self, turn: Turn, seconds: float) -> None:
        """Wait until a turn is the first, at most so long."""
        if turn.first is None or seconds <= 0:
            return
        first = turn.first
        late = self._deadlines.add(asyncio.get_running_loop().time() + seconds, lambda: _done(first))
        try:
            await first
        finally:
            self._deadlines.over(late)

    def leave(self, turn: Turn) -> None:
        """Give up a place. The next one goes on in a later turn of the loop: thousands would run inside one another."""
        queue = self.queues[turn.key]
        del queue[turn]
        if not queue:
            del self.queues[turn.key]
        elif (first := next(iter(queue)).first) is not None:
            _done(first)


def _done(first: "asyncio.Future[None]") -> None:
    if not first.done():
        first.set_result(None)
