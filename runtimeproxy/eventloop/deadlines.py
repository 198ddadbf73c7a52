"""Deadlines of what is nearly always over in time, with one timer for all of them.

Owns the timer, and who is told that it is late.
Must not know: what is late.
Invariant: nobody is told before its time, nor once it is over; there is never more than one timer.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

Late = Callable[[], object]


class Deadline:
    """Who is told; nobody once it is over."""

    late: Late | None = None


class Deadlines:
    """Deadlines on the event loop's clock, in seconds."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Deadline]] = []
        """A heap, those of one time in the order of coming; what is over stays in it until its time has come."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def add(self, at: float, late: Late) -> Deadline:
        """Have ``late`` called at a time, unless that is ``over`` before."""
        deadline = Deadline()
        deadline.late = late
        heappush(self._due, (at, next(self._numbers), deadline))
        if at < self._timer_at:
            self._wait_until(at)
        return deadline

    def over(self, deadline: Deadline) -> None:
        """Tell nobody any more."""
        deadline.late = None

    def _wait_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(at, self._look), at

    def _look(self) -> None:
        """Tell who is late, and wait for the next one that is not over."""
        now = asyncio.get_running_loop().time()
        self._timer, self._timer_at = None, inf
        late: list[Deadline] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].late is None):
            late.append(heappop(self._due)[2])
        if self._due:
            self._wait_until(self._due[0][0])
        for deadline in late:
            if deadline.late is not None:  # it may be over since another one was told
                deadline.late()
