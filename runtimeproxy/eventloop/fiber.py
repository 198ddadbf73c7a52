"""Coroutines without tasks: one is begun at once, and resumed at once by what it awaits.

Owns how such a coroutine is begun, resumed, interrupted and cancelled.
Must not know: what is done in it.
Invariant: it runs within the call that begins or resumes it, never inside itself; whoever awaits it sees its end.

A task of asyncio is begun, and resumed behind each thing that it awaits, in a later turn of the event loop: three turns
for a call that asks one hook server. A fiber takes none. What it calls must not use what belongs to a task, such as
``asyncio.timeout``: that goes into a task, which a fiber may await like everything else.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Pending(asyncio.Future[T]):
    """A result that is to come: a fiber that awaits it goes on within ``set_result``, a task in a later turn."""

    fiber: "Fiber[Any] | None" = None

    def set_result(self, result: T, /) -> None:
        """Give the result."""
        super().set_result(result)
        if self.fiber is not None:
            self.fiber.resume()

    def set_exception(self, error: type | BaseException, /) -> None:
        """Give the error that is raised where it is awaited."""
        super().set_exception(error)
        if self.fiber is not None:
            self.fiber.resume()


class Fiber(asyncio.Future[T]):
    """A coroutine that runs without a task; its result, or error, is the coroutine's."""

    _go: Coroutine[Any, Any, T]
    _awaited: asyncio.Future[Any] | None = None
    _runs = False
    _interrupted: BaseException | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run a coroutine until it waits for the first time."""
        self._go = coroutine
        self._step(coroutine.send, None)

    def resume(self, awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Go on behind what it awaited, whose result or error it takes itself."""
        by, self._interrupted = self._interrupted, None
        if by is None:
            self._step(self._go.send, None)
        else:
            self._step(self._go.throw, by)

    def interrupt(self, by: BaseException) -> None:
        """Raise an error where it waits, once what it waits for was cancelled; while it runs, where it waits next."""
        if self._runs:
            self._interrupted = by
        elif not self.done():
            awaited = self._awaited
            if isinstance(awaited, Pending):
                awaited.fiber = None
                awaited.cancel()
            elif awaited is not None and awaited.cancel():
                self._interrupted = by
                return
            self._step(self._go.throw, by)

    def cancel(self, msg: Any = None) -> bool:
        """End it by CancelledError, as a task is."""
        if self.done():
            return False
        self.interrupt(asyncio.CancelledError())
        return True

    def _step(self, go_on: Callable[[Any], Any], value: object) -> None:
        """Run until the coroutine waits or ends."""
        self._runs, self._awaited = True, None
        try:
            awaited = go_on(value)
        except StopIteration as end:
            self.set_result(end.value)
            return
        except asyncio.CancelledError:
            super().cancel()
            return
        except Exception as error:
            self.set_exception(error)
            return
        finally:
            self._runs = False
        self._awaited = awaited
        if isinstance(awaited, Pending):
            awaited._asyncio_future_blocking = False  # asyncio's sign that it was awaited, and not yielded by chance
            awaited.fiber = self
        elif awaited is not None:
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.resume)
        else:  # asyncio.sleep(0)
            self.get_loop().call_soon(self.resume)
        if self._interrupted is not None:
            by, self._interrupted = self._interrupted, None
            self.interrupt(by)
