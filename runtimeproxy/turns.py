"""Turns: the hook calls and commits of one pod or container keep their order (relay-rules C6).

Owns who waits for whom.
Must not know: what is done in a turn.
Invariant: different keys never wait for one another; nobody waits longer than its time, then it goes ahead.
"""

import asyncio


class Turns:
    """One queue a key; a key without anybody in it takes no memory."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def turn(self, key: str, seconds: float) -> "_Turn":
        """Wait for everybody who came earlier for ``key``, at most some seconds, and hold the turn for the block."""
        return _Turn(self._queues, key, seconds)

    def __len__(self) -> int:
        """Count the keys with somebody in them."""
        return len(self._queues)


class _Turn:
    """A place in the queue of a key, from the block's beginning to its end: small, as each held call has one.

    Who waits does so until it is the first: one that gave up its place does not let those behind it pass those before
    it. It knows nobody else, as ten thousand calls may be about one container.
    """

    __slots__ = ("_first", "_key", "_queues", "_seconds")

    def __init__(self, queues: "dict[str, _Queue]", key: str, seconds: float) -> None:
        self._queues = queues
        self._key = key
        self._seconds = seconds
        self._first: asyncio.Event | None = None
        """Set once it is the first; most turns need not wait for that."""

    async def __aenter__(self) -> None:
        queue = self._queues.setdefault(self._key, {})
        queue[self] = None
        if len(queue) > 1:
            try:
                await self._wait()
            except BaseException:
                self._leave()
                raise

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    async def _wait(self) -> None:
        self._first = asyncio.Event()
        try:
            async with asyncio.timeout(self._seconds):
                await self._first.wait()
        except TimeoutError:
            pass

    def _leave(self) -> None:
        queue = self._queues[self._key]
        del queue[self]
        first = next(iter(queue), None)
        if first is None:
            del self._queues[self._key]
        elif first._first is not None:
            first._first.set()


_Queue = dict[_Turn, None]
"""In the order in which they came."""
