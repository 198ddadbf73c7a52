"""Calls of one read are resumed in order, write once, and followers come after them, never nested."""

from collections import deque
from functools import partial

from runtimeproxy.eventloop.batch import Batch


def test_writes_leave_with_the_last_call_and_followers_after_it() -> None:
    batch, done = Batch(), list[str]()

    def follow(name: str, waiting: str) -> None:
        done.append(name)
        if waiting and not batch.follows(partial(follow, waiting, "")):
            done.append(f"{waiting} later")

    def write(socket: str) -> None:
        done.append(f"write {socket}")

    writes = {socket: partial(write, socket) for socket in "xy"}

    def resume(call: str) -> None:
        name, socket = call
        done.append(name)
        if not batch.defers(writes[socket]):
            writes[socket]()
        if name == "a":
            batch.follows(partial(follow, "d", "e"))

    batch.resume(deque(["ax", "by", "cy"]), resume)
    assert done == ["a", "b", "c", "write y", "write x", "write y", "d", "e later"]
    assert not batch.follows(lambda: None)
    assert not batch.defers(writes["x"])


def test_error_of_a_call_loses_no_write_of_others() -> None:
    batch, done = Batch(), list[str]()

    def resume(call: int) -> None:
        batch.defers(partial(done.append, "write"))
        1 / call

    calls = deque([1, 0, 1])
    try:
        batch.resume(calls, resume)
    except ZeroDivisionError:
        done.append("raised")
    assert done == ["write", "write", "raised"]
    assert not batch.defers(lambda: None)
