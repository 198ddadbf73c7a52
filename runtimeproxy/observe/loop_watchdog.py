"""Stalls of the event loop: seen while they last, with the place where it hangs (fault matrix X7).

Owns the thread that watches the loop's, and the log line.
Must not know: what runs on the loop.
Invariant: a line tells places in code, never values. A loop that rests costs short wakes of the watching thread, one a
look, and is not woken itself; a loop that works pays nothing for each of its turns.

A loop that rests has no frame of Python above the one that runs it. Where the thread finds another one it asks the loop
to make a turn: a loop that has not done so in time hangs. A stall may be as old as one look when it is found, so each
one above the limit and one look is told, whenever it begins, and none below the limit.
"""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

from runtimeproxy.observe.metrics import Metrics

log = logging.getLogger(__name__)

STALL_SECONDS = 0.2
LOOK_SECONDS = 0.04
"""With the limit below 0.25 s, and some ms are left for a thread that is late."""
FRAMES_TOLD = 16


class LoopWatchdog:
    """Watches the loop of the thread that makes it; ``start`` and ``stop`` belong in that thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, recorder: Metrics) -> None:
        self._loop = loop
        self._recorder = recorder
        self._thread_id = threading.get_ident()
        self._resting: FrameType | None = None
        self._turned = threading.Event()
        self._stopped = False
        self._going_on = threading.Lock()
        """Held until the end: to wait for it costs less than to wait for an event, which matters while nothing else
        happens."""
        self._going_on.acquire()
        self._watcher = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        """Watch from the loop's next turn on."""
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Remember the frame that runs the loop: it called this function."""
        self._resting = sys._getframe().f_back
        self._watcher.start()

    def stop(self) -> None:
        """Watch no more."""
        if not self._stopped:
            self._stopped = True
            self._going_on.release()
        self._turned.set()
        if self._watcher.is_alive():
            self._watcher.join()

    # In the watching thread.

    def _watch(self) -> None:
        while not self._going_on.acquire(timeout=LOOK_SECONDS):
            if self._frame() is not self._resting:
                self._wait_for_turn()

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread_id)

    def _wait_for_turn(self) -> None:
        """Ask the loop for a turn, and tell where it hangs if it makes none in time."""
        began = time.monotonic()
        self._turned.clear()
        self._loop.call_soon_threadsafe(self._turned.set)
        if self._turned.wait(STALL_SECONDS) or self._stopped:
            return
        log.warning("the event loop hangs for more than %s s at %s", STALL_SECONDS, self._place())
        self._turned.wait()
        if not self._stopped:
            self._loop.call_soon_threadsafe(self._over, time.monotonic() - began)

    def _place(self) -> str:
        """Name file, line and function of the frames above the loop's own, the innermost first."""
        frame, places = self._frame(), list[str]()
        while frame is not None and frame is not self._resting and len(places) < FRAMES_TOLD:
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        return " < ".join(places)

    # Back in the loop.

    def _over(self, seconds: float) -> None:
        self._recorder.count("loop_stalls")
        self._recorder.gauge("loop_stalled_seconds", seconds)
        log.warning("the event loop goes on after %.2f s", seconds)
