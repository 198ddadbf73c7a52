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
        self._tails: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, key: str, seconds: float) -> AsyncIterator[None]:
        """Wait for the turn of ``key``, at most some seconds, and hold it for the block."""
        before = self._tails.get(key)
        mine = self._tails[key] = asyncio.Event()
        try:
            if before is not None:
                await _wait(before, seconds)
            yield
        finally:
            mine.set()
            if self._tails.get(key) is mine:
                del self._tails[key]

    def __len__(self) -> int:
        """Count the keys with somebody in them."""
        return len(self._tails)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        pass
