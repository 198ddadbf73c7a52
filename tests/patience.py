"""Waiting for what must come true, however busy the machine is."""

import asyncio
from collections.abc import Callable

SECONDS = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so. Raises TimeoutError if it does not come."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
