"""Detect stalls of the event loop while they last, and log the place where it hangs (fault matrix X7).

Invariant: a line names places in code, never values. An idle loop is not woken, and iterations cost nothing extra.

An idle loop has no Python frame above the one that runs it. If the thread finds another frame, it schedules a callback
on the loop: a loop that does not run it in time hangs. Each stall longer than the limit plus one check interval is
logged, and none shorter than the limit.
"""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType
from typing import NamedTuple

from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metrics import Metrics

log = logging.getLogger(__name__)

STALL_SECONDS = 0.2
CHECK_SECONDS = 0.04
"""Interval of the checks. With the limit it is less than 0.25 s, which leaves some ms for a thread that is late."""
FRAMES_LOGGED = 16


class Stall(NamedTuple):
    """A stall of the event loop; ``ended`` is on the loop's clock."""

    ended: float
    seconds: float


class LoopWatchdog:
    """Watches the loop of the thread that creates it; ``start`` and ``stop`` must be called in that thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self.last_stall: Stall | None = None
        self._thread_id = threading.get_ident()
        self._idle_frame: FrameType | None = None
        self._iterated = threading.Event()
        self._stopped = False
        self._running = threading.Lock()
        """Held until the end: waiting for a lock costs less than for an event, which matters on an idle node."""
        self._running.acquire()
        self._watcher = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Remember the frame that runs the loop, which is the caller of this callback, and start the thread."""
        self._idle_frame = sys._getframe().f_back
        self._watcher.start()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._running.release()
        self._iterated.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _watch(self) -> None:
        while not self._running.acquire(timeout=CHECK_SECONDS):
            if self._frame() is not self._idle_frame:
                self._check_iteration()

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread_id)

    def _check_iteration(self) -> None:
        """Schedule a callback on the loop; log where the loop hangs if it does not run the callback in time."""
        began = time.monotonic()
        self._iterated.clear()
        self._loop.call_soon_threadsafe(self._iterated.set)
        if self._iterated.wait(STALL_SECONDS) or self._stopped:
            return
        place = self._place()
        log.warning("the event loop hangs for more than %s s at %s", STALL_SECONDS, place)
        self._iterated.wait()
        if not self._stopped:
            self._loop.call_soon_threadsafe(self._ended, time.monotonic() - began, place)

    def _place(self) -> str:
        frame, places = self._frame(), list[str]()
        while frame is not None and frame is not self._idle_frame and len(places) < FRAMES_LOGGED:
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        return " < ".join(places)

    def _ended(self, seconds: float, place: str) -> None:
        self.last_stall = Stall(self._loop.time(), seconds)
        self._metrics.count("loop_stalls")
        self._metrics.gauge("loop_stalled_seconds", seconds)
        self._metrics.events.add(EventKind.STALL, text=f"{seconds:.2f} s at {place}")
        log.warning("the event loop continues after %.2f s", seconds)
