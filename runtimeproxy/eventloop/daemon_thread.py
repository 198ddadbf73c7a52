"""Run in a daemon thread what may block for ever, such as a path that leads into a mount whose server does not answer.

Owns one thread per call.
Must not know: what is done there.
Invariant: the process does not wait for such a thread at its end, as it would for those of asyncio.to_thread.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


async def run_in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run ``work`` in a thread of its own and return its result. Raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(end: Callable[[], None]) -> None:
        if not done.done():  # else the caller no longer waits
            end()

    def run() -> None:
        try:
            end = partial(done.set_result, work())
        except Exception as error:
            end = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, end)

    threading.Thread(target=run, name="run_in_daemon_thread", daemon=True).start()
    return await done
