"""Runs beside the event loop what may block for ever: a path may lead into a mount whose server does not answer.

Owns one thread a call.
Must not know: what is done there.
Invariant: the end of the process waits for no such thread, as it does for those of asyncio.to_thread.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


async def aside(work: Callable[[], _T]) -> _T:
    """Do some work in a thread of its own and return what it returns. Raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(end: Callable[[], None]) -> None:
        if not done.done():  # else nobody waits any more
            end()

    def run() -> None:
        try:
            end = partial(done.set_result, work())
        except Exception as error:
            end = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, end)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
