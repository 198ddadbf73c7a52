"""The thread that looks after deadlines: never late, not woken in vain."""

import queue
import threading
import time
from collections.abc import Iterator
from math import inf

import pytest

from runtimeproxy_hooks.sdk.alarm import Alarm
from tests.hooks.sdk.processes import LONG_SECONDS


class Looked:
    """Notes when it was called, and what comes next."""

    def __init__(self) -> None:
        self.times: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.following = [inf]
        self.alarm = Alarm(self)

    def __call__(self, now: float) -> float:
        self.times.put(now)
        return self.following.pop() if len(self.following) > 1 else self.following[0]


@pytest.fixture
def looked() -> Iterator[Looked]:
    made = Looked()
    yield made
    made.alarm.close()


def test_it_looks_when_the_moment_has_come(looked: Looked) -> None:
    for _ in range(2):
        moment = time.monotonic() + 0.02
        looked.alarm.at(moment)
        assert looked.times.get(timeout=LONG_SECONDS) >= moment


def test_an_earlier_moment_comes_first(looked: Looked) -> None:
    looked.alarm.at(time.monotonic() + 3600)
    looked.alarm.at(time.monotonic() + 0.02)
    looked.alarm.at(time.monotonic() + 1800)
    looked.times.get(timeout=LONG_SECONDS)


def test_it_goes_on_as_it_is_told(looked: Looked) -> None:
    start = time.monotonic()
    looked.following = [inf, start, start]
    looked.alarm.at(start)
    for _ in range(3):
        looked.times.get(timeout=LONG_SECONDS)
    with pytest.raises(queue.Empty):
        looked.times.get(timeout=0.05)


def test_what_is_never_costs_no_thread_and_the_end_comes_at_once(looked: Looked) -> None:
    looked.alarm.at(inf)
    assert deadline_threads() == 0
    looked.alarm.at(time.monotonic() + 1e12)
    assert deadline_threads() == 1
    looked.alarm.close()
    looked.alarm.close()
    looked.alarm.at(0)
    assert deadline_threads() == 0
    assert looked.times.empty()


def deadline_threads() -> int:
    """Return how many threads look after deadlines in this process."""
    return sum(thread.name == "hook-deadlines" for thread in threading.enumerate())
