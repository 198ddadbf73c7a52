"""Turns: the hook calls and commits of one pod or container keep their order (relay-rules C6).

Owns who waits for whom.
Must not know: what is done in a turn.
Invariant: different keys never wait for one another; nobody waits longer than its time, then it goes ahead.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """One queue a key; a key without anybody in it takes no memory."""

    def __init__(self) -> None:
        self._queues: dict[str, list[asyncio.Event]] = {}

    @asynccontextmanager
    async def turn(self, key: str, seconds: float) -> AsyncIterator[None]:
        """Wait for everybody who came earlier for ``key``, at most some seconds, and hold the turn for the block."""
        queue = self._queues.setdefault(key, [])
        earlier = tuple(queue)
        mine = asyncio.Event()
        queue.append(mine)
        try:
            if earlier:
                await _wait(earlier, seconds)
            yield
        finally:
            mine.set()
            queue.remove(mine)
            if not queue:
                del self._queues[key]

    def __len__(self) -> int:
        """Count the keys with somebody in them."""
        return len(self._queues)


async def _wait(events: tuple[asyncio.Event, ...], seconds: float) -> None:
    """Wait for all of them: one that gave up its place does not let those behind it pass those before it."""
    try:
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()
    except TimeoutError:
        pass
