"""Coroutines without tasks: a fiber starts immediately, and resumes immediately when what it awaits is done.

Owns how such a coroutine is started, resumed, interrupted and cancelled.
Must not know: what is done in it.
Invariant: a fiber runs inside the call that starts or resumes it, never nested in itself; whoever awaits it gets its
result or error.

A task of asyncio starts, and resumes after each await, in a later iteration of the event loop: three iterations for a
call that asks one hook server. A fiber needs none. Code in it must not use what belongs to a task, such as
``asyncio.timeout``: that has to run in a task, which a fiber may await like anything else.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Pending(asyncio.Future[T]):
    """A future result: a fiber that awaits it resumes inside ``set_result``, a task in a later loop iteration."""

    fiber: "Fiber[Any] | None" = None

    def set_result(self, result: T, /) -> None:
        """Set the result and resume the fiber that waits for it."""
        super().set_result(result)
        if self.fiber is not None:
            self.fiber.resume()

    def set_exception(self, error: type | BaseException, /) -> None:
        """Set the error, which is raised in the fiber that waits for it."""
        super().set_exception(error)
        if self.fiber is not None:
            self.fiber.resume()
            error.__traceback__ = None  # type: ignore[union-attr] # see Fiber


class Fiber(asyncio.Future[T]):
    """A coroutine that runs without a task; the fiber's result or error is that of the coroutine.

    An error that was raised in the coroutine loses its traceback when the step ends. From Python 3.12 on, the frames in
    it refer to the frame that resumed the coroutine, and that one to the error: a cycle, hence memory freed late.
    """

    _go: Coroutine[Any, Any, T]
    _awaited: asyncio.Future[Any] | None = None
    _runs = False
    _interrupted: BaseException | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run a coroutine until it waits for the first time."""
        self._go = coroutine
        self._step(coroutine.send, None)

    def resume(self, awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Resume the coroutine, which takes the result or error from what it awaited. What it no longer awaits, since
        it was interrupted in between, does not resume it."""
        if awaited is not None and awaited is not self._awaited:
            return
        del awaited  # it refers to its error
        by, self._interrupted = self._interrupted, None
        if by is None:
            self._step(self._go.send, None)
        else:
            self._step(self._go.throw, by)

    def interrupt(self, by: BaseException) -> None:
        """Cancel what the coroutine waits for and raise an error there; if it is running, where it waits next."""
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
        """Raise CancelledError in the coroutine, as for a task; return False if it has ended already."""
        if self.done():
            return False
        self.interrupt(asyncio.CancelledError())
        return True

    def _step(self, go_on: Callable[[Any], Any], value: BaseException | None) -> None:
        """Run until the coroutine waits again or ends."""
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
            if value is not None:
                value.__traceback__ = None
        self._awaited = awaited
        if isinstance(awaited, Pending):
            awaited._asyncio_future_blocking = False  # asyncio's mark of an awaited future, not yielded by mistake
            awaited.fiber = self
        elif awaited is not None:
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.resume)
        else:  # asyncio.sleep(0)
            self.get_loop().call_soon(self.resume)
        if self._interrupted is not None:
            by, self._interrupted = self._interrupted, None
            self.interrupt(by)
