"""The threads of a hook server: jobs at the same time, in their order, and what ends none of them."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from runtimeproxy_hooks.sdk.threads import READABLE, Threads
from tests.hooks.sdk.child import SECRET
from tests.hooks.sdk.processes import LONG_SECONDS, eventually

MOST = 3


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(MOST, "test")
    made.start()
    yield made
    assert made.quiet(LONG_SECONDS) == 0
    made.close()


class Bell:
    """A pair of sockets: whoever rings has the jobs submitted by the thread that hears it."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.jobs: list[Callable[[], None]] = []
        self.broke = threading.Event()
        self._near, self._far = socket.socketpair()
        threads.watch(self._near.fileno(), self, READABLE)

    def ring(self, *jobs: Callable[[], None]) -> None:
        self.jobs += jobs
        self._far.send(b"!")

    def ready(self, events: int) -> None:
        assert self._near.recv(1) == b"!", "an end in place of a byte"
        self.threads.arm(self._near.fileno(), READABLE)
        while self.jobs:
            self.threads.submit(self.jobs.pop(0))

    def broken(self) -> None:
        self.broke.set()

    def hang_up(self) -> None:
        self._far.close()

    def close(self) -> None:
        self.threads.forget(self._near.fileno())
        self._near.close()
        self._far.close()


@pytest.fixture
def bell(threads: Threads) -> Iterator[Bell]:
    made = Bell(threads)
    yield made
    made.close()


def test_as_many_jobs_as_may_run_do_so_at_the_same_time(bell: Bell) -> None:
    meeting = threading.Barrier(MOST + 1)
    for _ in range(2):
        bell.ring(*(lambda: meeting.wait(LONG_SECONDS) and None for _ in range(MOST)))
        meeting.wait(LONG_SECONDS)


def test_more_wait_in_their_order(bell: Bell, threads: Threads) -> None:
    entered, release = threading.Semaphore(0), threading.Event()
    done: list[int] = []

    def hang() -> None:
        entered.release()
        assert release.wait(LONG_SECONDS)

    def note(number: int) -> Callable[[], None]:
        return lambda: done.append(number)

    bell.ring(*[hang] * 1, *(note(number) for number in range(2)))
    assert entered.acquire(timeout=LONG_SECONDS)
    eventually(lambda: sorted(done) == [0, 1])
    others = [lambda: hang() for _ in range(MOST - 1)]
    bell.ring(*others)
    for _ in others:
        assert entered.acquire(timeout=LONG_SECONDS)
    withdrawn, *left = [note(number) for number in range(10, 14)]
    bell.ring(withdrawn, *left)
    eventually(lambda: not bell.jobs and len(threads._waiting) == 4)
    threads.withdraw(withdrawn)
    threads.withdraw(withdrawn)
    assert (threads.quiet(0), sorted(done)) == (MOST, [0, 1])
    release.set()
    eventually(lambda: sorted(done) == [0, 1, 11, 12, 13])


def test_no_exception_ends_a_thread(bell: Bell, caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> None:
        raise SystemExit(SECRET)

    ran = threading.Event()
    for _ in range(2 * MOST):
        bell.ring(lambda: leave())
    bell.ring(ran.set)
    assert ran.wait(LONG_SECONDS)
    eventually(lambda: caplog.text.count("internal error SystemExit") == 2 * MOST)
    assert "in leave" in caplog.text
    assert SECRET not in caplog.text


def test_a_source_that_raises_is_told_so_and_the_others_live(
    bell: Bell, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    other, ran = Bell(threads), threading.Event()
    other.hang_up()
    assert other.broke.wait(LONG_SECONDS)
    bell.ring(ran.set)
    assert ran.wait(LONG_SECONDS)
    assert "internal error AssertionError" in caplog.text
    other.close()


def test_a_source_that_cannot_even_take_that_ends_no_thread(
    bell: Bell, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    class Cracked(Bell):
        def broken(self) -> None:
            super().broken()
            raise OSError("no such file descriptor")

    other, ran = Cracked(threads), threading.Event()
    other.hang_up()
    assert other.broke.wait(LONG_SECONDS)
    bell.ring(ran.set)
    assert ran.wait(LONG_SECONDS)
    eventually(lambda: "internal error OSError" in caplog.text)
    other.close()


def test_a_thread_that_ends_in_spite_of_all_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    class Fatal(BaseException):
        pass

    def ready(events: int) -> None:
        raise Fatal

    ended, said = threading.Event(), threading.excepthook
    threads = Threads(1, "test")
    other = Bell(threads)
    other.ready = ready  # type: ignore[method-assign]
    threading.excepthook = lambda arguments: ended.set()
    try:
        threads.start()
        other.hang_up()
        assert ended.wait(LONG_SECONDS)
        closing = threading.Thread(target=threads.close, daemon=True)
        closing.start()
        closing.join(LONG_SECONDS)
        assert not closing.is_alive()
    finally:
        threading.excepthook = said
        other._near.close()


def test_where_no_more_threads_can_be_made_one_does_all(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran = threading.Semaphore(0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        bell.ring(*(lambda: ran.release() for _ in range(2 * MOST)))
        for _ in range(2 * MOST):
            assert ran.acquire(timeout=LONG_SECONDS)


def test_the_end_waits_for_no_job_and_forgets_those_that_wait() -> None:
    before = set(os.listdir("/proc/self/fd"))
    threads = Threads(1, "test")
    threads.start()
    bell, release, entered, never = Bell(threads), threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert release.wait(LONG_SECONDS)

    bell.ring(hang)
    assert entered.wait(LONG_SECONDS)
    bell.ring(never.set)
    eventually(lambda: len(threads._waiting) == 1)
    assert threads.quiet(0.01) == 1
    bell.close()
    threads.close()
    threads.close()
    release.set()
    assert threads.quiet(LONG_SECONDS) == 0
    assert not never.is_set()
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("test-")])
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_end_of_threads_that_never_began() -> None:
    threads = Threads(1, "test")
    threads.forget(0)
    threads.close()


def test_it_is_logged_under_its_own_name(bell: Bell, caplog: pytest.LogCaptureFixture) -> None:
    bell.ring(lambda: 1 // 0 and None)
    eventually(lambda: bool(caplog.records))
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("runtimeproxy_hooks.sdk.threads", logging.ERROR)
    ]
