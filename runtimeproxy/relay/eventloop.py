"""Coroutines without tasks, deadlines with one timer, batches of calls, and threads that may block.

Invariant: a fiber runs inside the call that starts or resumes it, never nested in itself.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own and return its result. Raises its exceptions."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

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


Callback = Callable[[], object]


class Deadline:
    """A deadline; ``late`` is its callback. Setting that to None cancels the deadline."""

    late: Callback | None = None


class Deadlines:
    """Deadlines on the event loop's clock, in seconds."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Deadline]] = []
        """A heap, ordered by time and then by arrival; a cancelled deadline stays in it until it is due."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def add(self, at: float, callback: Callback) -> Deadline:
        """Call ``callback`` at a time; return the deadline."""
        deadline = Deadline()
        deadline.late = callback
        heappush(self._due, (at, next(self._numbers), deadline))
        if at < self._timer_at:
            self._wait_until(at)
        return deadline

    def _wait_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(at, self._check), at

    def _check(self) -> None:
        """Call the deadlines that are due, and set the timer to the next one that is not cancelled."""
        now = asyncio.get_running_loop().time()
        self._timer, self._timer_at = None, inf
        due: list[Deadline] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].late is None):
            due.append(heappop(self._due)[2])
        if self._due:
            self._wait_until(self._due[0][0])
        for deadline in due:
            if deadline.late is not None:  # an earlier callback may have cancelled it
                deadline.late()


class Pending(asyncio.Future[T]):
    """A future result: a fiber that awaits it resumes inside ``set_result``, a task in a later loop iteration."""

    fiber: "Fiber[Any] | None" = None

    def set_result(self, result: T, /) -> None:
        super().set_result(result)
        if self.fiber is not None:
            self.fiber.resume()

    def set_exception(self, error: type | BaseException, /) -> None:
        super().set_exception(error)
        if self.fiber is not None:
            self.fiber.resume()
            error.__traceback__ = None  # type: ignore[union-attr] # see Fiber


class Fiber(asyncio.Future[T]):
    """A coroutine that runs without a task; the fiber's result or error is that of the coroutine.

    An error loses its traceback when the step that raised it ends. From Python 3.12 on, a traceback refers to the frame
    that resumed the coroutine, and that frame to the error: a cycle, which frees memory late.
    """

    _coroutine: Coroutine[Any, Any, T]
    _awaited: asyncio.Future[Any] | None = None
    _is_running = False
    _interruption: BaseException | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run a coroutine until it waits for the first time."""
        self._coroutine = coroutine
        self.resume()

    def resume(self, awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Run until the coroutine waits again or ends; it receives the result or error of its awaitable. An awaitable
        from before an interruption does not resume it."""
        if awaited is not None and awaited is not self._awaited:
            return
        del awaited  # it refers to its error
        interruption, self._interruption = self._interruption, None
        self._is_running, self._awaited = True, None
        try:
            waits_for = self._coroutine.send(None) if interruption is None else self._coroutine.throw(interruption)
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
            self._is_running = False
            if interruption is not None:
                interruption.__traceback__ = None
        self._awaited = waits_for
        if waits_for is None:  # asyncio.sleep(0)
            self.get_loop().call_soon(self.resume)
        else:
            waits_for._asyncio_future_blocking = False  # asyncio's mark of an awaited future, not yielded by mistake
            if isinstance(waits_for, Pending):
                waits_for.fiber = self
            else:
                waits_for.add_done_callback(self.resume)
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            self.interrupt(interruption)

    def interrupt(self, error: BaseException) -> None:
        """Cancel the awaitable and raise an error there; in a running coroutine, at its next await."""
        if self.done():
            return
        self._interruption = error
        awaited = self._awaited
        if self._is_running:
            return
        if isinstance(awaited, Pending):
            awaited.fiber = None
            awaited.cancel()
        elif awaited is not None and awaited.cancel():
            return  # its end resumes the coroutine
        self.resume()

    def cancel(self, msg: Any = None) -> bool:
        """Raise CancelledError in the coroutine, as for a task; return False if it has ended already."""
        if self.done():
            return False
        self.interrupt(asyncio.CancelledError())
        return True


Action = Callable[[], None]


class Batch(threading.local):
    """The calls of the read that the current thread handles."""

    def __init__(self) -> None:
        self._resuming = False
        self._has_more = False
        """True while another call of the read is still to be resumed."""
        self._writes: dict[Action, None] = {}
        self._followers: list[Action] = []

    def defers(self, write: Action) -> bool:
        """Return whether a write is deferred; it is then called once after the last call."""
        if self._has_more:
            self._writes[write] = None
        return self._has_more

    def follows(self, resume: Action) -> bool:
        """Return whether ``resume`` is deferred until the calls of this read have run. It is not outside of a read, nor
        in a deferred ``resume``: otherwise calls that wait for one another would prolong the read."""
        if self._resuming:
            self._followers.append(resume)
        return self._resuming

    def iterate(self, calls: deque[T]) -> Iterator[T]:
        """Yield the calls of a read in order, for the caller to resume; their deferred writes follow the last one."""
        try:
            self._resuming = True
            while calls:
                call = calls.popleft()
                self._has_more = bool(calls)
                yield call
        finally:
            self._resuming = self._has_more = False
            writes, self._writes = self._writes, {}
            followers, self._followers = self._followers, []
            for action in (*writes, *followers):
                action()


batch = Batch()
