"""Deadlines that are nearly always met, with one timer for all of them.

Owns the timer, and the callbacks of missed deadlines.
Must not know: what is late.
Invariant: no callback runs before its time, nor once its deadline was cancelled; there is never more than
one timer.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

Late = Callable[[], object]


class Deadline:
    """A deadline; ``late`` is its callback, None once it was cancelled."""

    late: Late | None = None


class Deadlines:
    """Deadlines on the event loop's clock, in seconds."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Deadline]] = []
        """A heap, ordered by time and then by arrival; a cancelled deadline stays in it until its time has come."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def add(self, at: float, late: Late) -> Deadline:
        """Call ``late`` at a time unless it is cancelled before; return the deadline."""
        deadline = Deadline()
        deadline.late = late
        heappush(self._due, (at, next(self._numbers), deadline))
        if at < self._timer_at:
            self._wait_until(at)
        return deadline

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline."""
        deadline.late = None

    def _wait_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(at, self._look), at

    def _look(self) -> None:
        """Call back the deadlines that are due, and set the timer to the next one that is not cancelled."""
        now = asyncio.get_running_loop().time()
        self._timer, self._timer_at = None, inf
        late: list[Deadline] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].late is None):
            late.append(heappop(self._due)[2])
        if self._due:
            self._wait_until(self._due[0][0])
        for deadline in late:
            if deadline.late is not None:  # an earlier callback may have cancelled it
                deadline.late()
