"""Threads that wait together for sockets, and work off what these bring.

Owns the threads, how many there are, and the jobs that wait for one.
Must not know: what a socket carries, what a job does.
Invariants: a thread that reads a job does it itself, so that none has to be woken for it; while every job that may run
does, one thread more still waits for the sockets; an exception ends one socket or one job, never a thread.
"""

import logging
import os
import select
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

log = logging.getLogger(__name__)

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

Job = Callable[[], None]

_ALL = 1 << 16
"""More than there are threads to wake."""


class Source(Protocol):
    """Whoever is told of a file descriptor's events, by one thread at a time; then no more until it is armed again."""

    def ready(self, events: int) -> None:
        """Take events."""

    def broken(self) -> None:
        """Go on, or end, after an error in ``ready``."""


class Threads:
    """Runs as many as ``most`` jobs at the same time; more wait, in the order in which they came."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._epoll = select.epoll()
        self._sources: dict[int, Source] = {}
        self._waiting: dict[Job, None] = {}
        self._threads = self._busy = 0
        self._ending = False
        # Its counter is the number of threads that are still to be woken.
        self._wake = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, READABLE)

    # What is waited for.

    def watch(self, file: int, source: Source, events: int) -> None:
        """Tell ``source`` of the next of these events of a file descriptor, which is not watched yet."""
        self._sources[file] = source
        self._epoll.register(file, events | select.EPOLLONESHOT)

    def arm(self, file: int, events: int) -> None:
        """Tell the source of a watched file descriptor of the next of these events."""
        self._epoll.modify(file, events | select.EPOLLONESHOT)

    def forget(self, file: int) -> None:
        """Watch a file descriptor no more, before it is closed."""
        if self._sources.pop(file, None) is not None:
            self._epoll.unregister(file)

    # What is done.

    def start(self) -> None:
        """Begin to wait."""
        with self._lock:
            self._start_thread()

    def submit(self, job: Job) -> None:
        """Do a job as soon as a thread is free. To be called by a source that is told of an event."""
        with self._lock:
            self._waiting[job] = None

    def withdraw(self, job: Job) -> None:
        """Forget a job that has not begun."""
        with self._lock:
            self._waiting.pop(job, None)

    def quiet(self, timeout_seconds: float) -> int:
        """Wait until no job runs; return how many run on after that time."""
        with self._lock:
            self._changed.wait_for(lambda: not self._busy, timeout_seconds)
            return self._busy

    def close(self) -> None:
        """End the threads that do no job; the others end behind theirs. Jobs that wait are forgotten. Repeatable."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
            self._waiting.clear()
            os.eventfd_write(self._wake, _ALL)
            self._changed.wait_for(lambda: self._threads <= self._busy)
            self._epoll.close()
            os.close(self._wake)

    def _start_thread(self) -> None:
        self._threads += 1
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more: then jobs wait for those that there are
            self._threads -= 1

    def _run(self) -> None:
        try:
            while not self._ending:
                job = self._take()
                if job is None:
                    self._wait()
                else:
                    self._do(job)
        finally:
            with self._lock:
                self._threads -= 1
                self._changed.notify_all()

    def _take(self) -> Job | None:
        """Return the next job if it may begin. Whoever takes one sees to it that the next finds a thread, too."""
        with self._lock:
            if not self._waiting or self._busy == self._most:
                return None
            job = next(iter(self._waiting))
            del self._waiting[job]
            self._busy += 1
            if self._busy == self._threads:
                self._start_thread()  # it takes the next, or waits for the sockets
            elif self._waiting:
                os.eventfd_write(self._wake, 1)
            return job

    def _do(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # SystemExit, too
            _log(error)
        finally:
            with self._lock:
                self._busy -= 1
                self._changed.notify_all()

    def _wait(self) -> None:
        """Wait for one event, and hand it to its source."""
        for file, events in self._epoll.poll(-1, 1):
            source = self._sources.get(file)
            if source is not None:
                _tell(source, events)
            elif file == self._wake and not self._ending:
                with suppress(BlockingIOError):  # another thread was woken in place of this one
                    os.eventfd_read(file)


def _tell(source: Source, events: int) -> None:
    try:
        source.ready(events)
    except Exception as error:
        _log(error)
        try:
            source.broken()
        except Exception as another:  # the source is of no more use, the thread is
            _log(another)


def _log(error: BaseException) -> None:
    """Log that an error of ours came up: places and code, no values."""
    log.error("internal error %s:\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
