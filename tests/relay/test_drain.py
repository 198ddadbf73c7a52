"""The drain of a front in virtual time: what it waits for, in which order, how long, and what it logs."""

import asyncio
import logging

import pytest

from runtimeproxy.relay import drain
from runtimeproxy.relay.drain import ANSWER_SECONDS, CLOSE_SECONDS, NOTICE_SECONDS, Drain, Unfinished, answers_ended
from tests.fakes.clock import virtual_time

POLLS_SECONDS = 5 * drain.POLL_SECONDS
"""Most seconds between the end of a drain and the event that ends it."""


class Connection:
    """A connection with some unfinished work; it closes at ``part`` unless its client stays."""

    def __init__(self, connections: set["Connection"], *, stays: bool = False, **unfinished: int) -> None:
        self.work = Unfinished(**unfinished)
        self.refused: list[bool] = []
        """At each call of ``drain``: whether new calls were to be refused."""
        self.parted = 0
        self.unfinished = lambda: self.work
        self.drain = self.refused.append
        self.close = lambda: None
        self._connections = set() if stays else connections
        connections.add(self)

    def finish(self) -> None:
        assert not self.parted, "a connection is parted after its last answer"
        self.work = Unfinished()

    def part(self) -> None:
        self.parted += 1
        self._connections.discard(self)


ANSWERED, STREAMS, BUSY = "every call is answered", {"streams": 2}, {"calls": 1, "tasks": 1, "stays": True}
CUT_OFF = f"{ANSWERED}; cut off are streams: 2, connections: 2"
CUT_ONE = f"{ANSWERED}; cut off are connections: 1"
CUT_ANSWER = f"{ANSWERED}; cut off are answers that have begun: 1, connections: 2"
CUT_CALL = "cut off are calls: 1, held calls at work: 1, connections: 1"
PARTED, LATE = NOTICE_SECONDS + CLOSE_SECONDS, NOTICE_SECONDS + CLOSE_SECONDS / 2
DRAINS: dict[str, tuple[list[dict[str, int]], dict[str, float], float, str]] = {
    "no connection": ([], {}, 0, ANSWERED),
    "idle client": ([{}], {}, NOTICE_SECONDS, CUT_ONE),
    "call": ([{"calls": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "task": ([{"tasks": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "answer": ([{"answers": 1}, STREAMS], {"finish": 0.9}, 0.9, CUT_OFF),
    "endless answer after a call": ([{"calls": 1}, {"answers": 1}], {"finish": 3}, 3 + ANSWER_SECONDS, CUT_ANSWER),
    "limit": ([BUSY], {"limit": 3}, 3, f"the drain timeout has expired (--drain-timeout); {CUT_CALL}"),
    "signal": ([BUSY], {"signal": 3}, 3, f"a second signal came; {CUT_CALL}"),
    "client that stays": ([{"stays": True}], {}, PARTED, CUT_ONE),
    "client that closes late": ([{"stays": True}], {"close": LATE}, LATE, CUT_ONE),
}
"""The unfinished work of each connection, what happens when, the seconds until the end, and its reason."""


@pytest.mark.parametrize(("work", "events", "seconds", "reason"), DRAINS.values(), ids=DRAINS)
@virtual_time
async def test_drain_ends_with_reason(
    caplog: pytest.LogCaptureFixture, work: list[dict[str, int]], events: dict[str, float], seconds: float, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    loop, connections, signal = asyncio.get_running_loop(), set[Connection](), asyncio.Event()
    tasks: set[object] = {"a held call" for entry in work if "tasks" in entry}
    made = [Connection(connections, **{key: entry[key] for key in entry if key != "tasks"}) for entry in work]
    limit = events.get("limit", 60.0)
    do = {"signal": [signal.set], "close": [connections.clear], "finish": [entry.finish for entry in made[:1]]}
    do["finish"].append(tasks.clear)
    for event, at in events.items():
        for action in do.get(event, ()):
            loop.call_later(at, action)
    await Drain(connections, tasks).run(limit, signal)
    assert seconds <= loop.time() + 1e-6 < seconds + POLLS_SECONDS
    first, last = caplog.messages
    assert first.startswith(f"draining for at most {limit} s; waiting for ")
    assert first.endswith("nothing") == (not work)
    assert last.startswith("drained in ")
    assert last.endswith(f" s: {reason}")
    for connection in made:
        assert connection.parted == 1
        assert connection.refused == sorted(connection.refused)
        assert (connection.refused[0], connection.refused[-1]) == (False, True), "clients are notified first"


@virtual_time
async def test_later_connection_is_drained_too() -> None:
    connections, loop = set[Connection](), asyncio.get_running_loop()
    first, late = Connection(connections, calls=1), Connection(connections, calls=1)
    connections.remove(late)
    loop.call_later(2, connections.remove, first)
    loop.call_later(2, connections.add, late)
    loop.call_later(5, late.finish)
    await Drain(connections, set()).run(60, asyncio.Event())
    assert loop.time() == pytest.approx(5, abs=POLLS_SECONDS)
    assert late.refused


@virtual_time
async def test_answers_in_progress_end_before_drain() -> None:
    """Calls, endless streams, and answers that begin later are not waited for."""
    loop, connections, signal = asyncio.get_running_loop(), set[Connection](), asyncio.Event()
    await answers_ended(connections, 60, signal)
    assert loop.time() == 0
    answer, closed = Connection(connections, answers=1), Connection(connections, answers=1)
    Connection(connections, calls=1, streams=1)
    loop.call_later(1, connections.discard, closed)
    loop.call_later(2, lambda: Connection(connections, answers=1))
    loop.call_later(3, answer.finish)
    await answers_ended(connections, 60, signal)
    assert loop.time() == pytest.approx(3, abs=POLLS_SECONDS)
    assert not any(connection.refused for connection in connections)
    for _ in ("its time", "a signal"):
        await answers_ended(connections, 2, signal)
        assert loop.time() == pytest.approx(5, abs=POLLS_SECONDS)
        signal.set()
