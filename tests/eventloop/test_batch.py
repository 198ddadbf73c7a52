"""Calls of one read are resumed in order, write once, and followers come after them, never nested."""

from collections import deque
from functools import partial

import pytest

from runtimeproxy.relay.eventloop import Batch


def test_writes_leave_with_the_last_call_and_followers_after_it() -> None:
    batch, done = Batch(), list[str]()

    def follow(name: str, waiting: str) -> None:
        done.append(name)
        if waiting and not batch.follows(partial(follow, waiting, "")):
            done.append(f"{waiting} later")

    def write(socket: str) -> None:
        done.append(f"write {socket}")

    writes = {socket: partial(write, socket) for socket in "xy"}

    for name, socket in batch.each(deque(["ax", "by", "cy"])):
        done.append(name)
        if not batch.defers(writes[socket]):
            writes[socket]()
        if name == "a":
            batch.follows(partial(follow, "d", "e"))
    assert done == ["a", "b", "c", "write y", "write x", "write y", "d", "e later"]
    assert not batch.follows(lambda: None)
    assert not batch.defers(writes["x"])


def test_error_of_a_call_loses_no_write_of_others() -> None:
    batch, done = Batch(), list[str]()

    def divide() -> None:
        for call in batch.each(deque([1, 0, 1])):
            batch.defers(partial(done.append, f"write of {1 / call:.0f}"))

    with pytest.raises(ZeroDivisionError):
        divide()
    assert done == ["write of 1"]
    assert not batch.defers(lambda: None)
