"""Turns: the hook calls and commits of one pod or container keep their order (relay-rules C6).

Owns who waits for whom.
Must not know: what is done in a turn.
Invariant: different keys never wait for one another; nobody waits longer than its time, then it goes ahead.
"""

import asyncio


class Turns:
    """One queue a key; a key without anybody in it takes no memory."""

    def __init__(self) -> None:
        self._queues: dict[str, list[_Turn]] = {}

    def turn(self, key: str, seconds: float) -> "_Turn":
        """Wait for everybody who came earlier for ``key``, at most some seconds, and hold the turn for the block."""
        return _Turn(self._queues, key, seconds)

    def __len__(self) -> int:
        """Count the keys with somebody in them."""
        return len(self._queues)


class _Turn:
    """A place in the queue of a key, from the block's beginning to its end: small, as each held call has one."""

    __slots__ = ("_key", "_over", "_queues", "_seconds")

    def __init__(self, queues: "dict[str, list[_Turn]]", key: str, seconds: float) -> None:
        self._queues = queues
        self._key = key
        self._seconds = seconds
        self._over: asyncio.Event | None = None
        """Made by the first one that waits for it; most turns nobody waits for."""

    async def __aenter__(self) -> None:
        queue = self._queues.setdefault(self._key, [])
        earlier = tuple(queue)
        queue.append(self)
        if earlier:
            try:
                await _wait(earlier, self._seconds)
            except BaseException:
                self._leave()
                raise

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def over(self) -> asyncio.Event:
        """Return what is set at the end of the turn."""
        if self._over is None:
            self._over = asyncio.Event()
        return self._over

    def _leave(self) -> None:
        if self._over is not None:
            self._over.set()
        queue = self._queues[self._key]
        queue.remove(self)
        if not queue:
            del self._queues[self._key]


async def _wait(turns: tuple[_Turn, ...], seconds: float) -> None:
    """Wait for all of them: one that gave up its place does not let those behind it pass those before it."""
    events = [turn.over() for turn in turns]
    try:
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()
    except TimeoutError:
        pass
