"""A thread that looks after deadlines.

Owns the moment at which it looks next.
Must not know: whose deadlines they are.
Invariant: it never looks later than the earliest moment that it was told; one that is never reached costs nothing but
that it looks in vain, and while moments only rise it is woken by none of them.
"""

import threading
import time
from collections.abc import Callable
from math import inf

_LONGEST_SECONDS = 3600.0
"""No wait is longer: the system has a limit."""


class Alarm:
    """Calls ``look`` when a moment has come, with the time (``time.monotonic``); it returns the next moment."""

    def __init__(self, look: Callable[[float], float]) -> None:
        self._look = look
        self._next = inf
        self._told = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, moment: float) -> None:
        """Look at this moment at the latest, ``inf`` for never."""
        if moment < self._next:
            with self._told:
                self._next = min(moment, self._next)
                self._told.notify()
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="hook-deadlines", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Look no more. Repeatable."""
        with self._told:
            self._closed = True
            self._told.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self.at(self._look(time.monotonic()))

    def _wait(self) -> bool:
        """Wait for the next moment; return False at the end."""
        with self._told:
            while not self._closed:
                left = self._next - time.monotonic()
                if left <= 0:
                    self._next = inf
                    return True
                self._told.wait(min(left, _LONGEST_SECONDS))
            return False
