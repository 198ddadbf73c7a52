"""An event loop in a thread of its own, on which the ``async`` methods of hooks run.

Invariant: a waiting thread is always woken: when its awaitable ends or is cancelled, or when the loop ends.
"""

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from contextlib import suppress


class BackgroundLoop:
    """Runs from its construction until ``close``."""

    def __init__(self) -> None:
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._waited_for: set[Future[None]] = set()
        self._ended = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="hook-event-loop", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    async def _run(self) -> None:
        self._closing = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._closing.wait()  # asyncio.run cancels what still runs then

    def submit(self, awaitable: Awaitable[None]) -> Future[None]:
        """Run ``awaitable`` on the loop; the returned future can be waited for, and cancelled, from any thread."""
        finishing = _finish(awaitable)
        finishing.send(None)  # begun, so that a cancel before the loop runs it closes the awaitable
        future = asyncio.run_coroutine_threadsafe(finishing, self._loop)
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        if self._ended:  # the loop may have ended before it received it
            future.cancel()
        return future

    def close(self, timeout_seconds: float) -> None:
        """Cancel what runs and end the loop; wait at most this long for a method that blocks it. May be repeated."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout_seconds)
        self._ended = not self._thread.is_alive()
        if self._ended:
            for future in tuple(self._waited_for):
                future.cancel()


async def _finish(awaitable: Awaitable[None]) -> None:
    try:
        await asyncio.sleep(0)  # until the loop runs it
        await awaitable
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the whole loop for these two
        raise RuntimeError(f"{type(error).__name__} in an async method") from error
    finally:
        if isinstance(awaitable, Coroutine):
            awaitable.close()
