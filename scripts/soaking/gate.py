"""What lets calls wait in a fake runtime: a gate that SIGUSR1 shuts and SIGUSR2 opens.

Owns the two signals.
Must not know: calls.
Invariant: it is open until a signal shuts it.
"""

import asyncio
import signal


class Gate:
    """A gate of the running event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._open.clear)
        loop.add_signal_handler(signal.SIGUSR2, self._open.set)

    async def passed(self) -> None:
        """Wait until it is open."""
        await self._open.wait()
