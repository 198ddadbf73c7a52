"""The drain of a front in virtual time: what is waited for, in which order, how long, and what is logged."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from runtimeproxy.relay import drain
from runtimeproxy.relay.drain import (
    ANSWER_SECONDS,
    NOTICE_SECONDS,
    PARTING_SECONDS,
    Drain,
    Unfinished,
    answers_ended,
)
from tests.fakes.clock import virtual_time


class Connection:
    """A connection with a test's unfinished work; it closes when it is told to part, unless its client stays."""

    def __init__(self, others: set["Connection"], stays: bool, left: Unfinished) -> None:
        self.left = left
        self.told: list[bool] = []
        """Whether new calls were to be refused, at each call of ``drain``."""
        self.parted = 0
        self._others = others
        self._stays = stays
        others.add(self)

    def drain(self, refusing: bool) -> None:
        self.told.append(refusing)

    def unfinished(self) -> Unfinished:
        return self.left

    def finish(self) -> None:
        self.left = Unfinished()

    def part(self) -> None:
        self.parted += 1
        if not self._stays:
            self._others.discard(self)


class Front:
    """A front with nothing but its drain."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.tasks: set[object] = set()
        self.at_once = asyncio.Event()
        self.why = ""

    def connect(self, *, stays: bool = False, **left: int) -> Connection:
        return Connection(self.connections, stays, Unfinished(**left))

    async def ends_after(self, seconds: float, *events: tuple[float, Callable[[], object]], most: float = 60.0) -> bool:
        """Drain while things happen at given seconds; return whether it takes that long, except for a few looks."""
        loop = asyncio.get_running_loop()
        for at, event in events:
            loop.call_later(at, event)
        self.why = await Drain(self.connections, self.tasks).run(most, self.at_once)
        return seconds <= loop.time() + 1e-6 < seconds + 5 * drain.LOOK_SECONDS


@pytest.fixture
def front(caplog: pytest.LogCaptureFixture) -> Front:
    caplog.set_level(logging.INFO)
    return Front()


@virtual_time
async def test_end_without_connections_comes_at_once(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    assert await front.ends_after(0)
    assert front.why == "every call is answered"
    assert caplog.messages == [
        "draining for at most 60.0 s; waiting for nothing",
        "drained in 0.00 s: every call is answered",
    ]


@virtual_time
async def test_idle_clients_have_a_moment_before_newer_calls_are_refused(front: Front) -> None:
    connection = front.connect()
    assert await front.ends_after(NOTICE_SECONDS)
    assert connection.told == sorted(connection.told)
    assert (connection.told[0], connection.told[-1], connection.parted) == (False, True, 1)


@pytest.mark.parametrize("kind", ["calls", "tasks", "answers"])
@virtual_time
async def test_end_waits_for_calls_tasks_and_answers(front: Front, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Streams are cut off after that."""
    waits, streams = front.connect(**({} if kind == "tasks" else {kind: 1})), front.connect(streams=2)
    if kind == "tasks":
        front.tasks.add("a held call")
    before: list[int] = []

    def finish() -> None:
        before.extend((waits.parted, streams.parted))
        front.tasks.clear()
        waits.finish()

    assert await front.ends_after(0.9, (0.9, finish))
    assert (before, waits.parted, streams.parted) == ([0, 0], 1, 1)
    assert "every call is answered; cut off are streams: 2, connections: 2" in caplog.messages[-1]


@virtual_time
async def test_answer_that_does_not_end_is_a_stream(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """Its time begins when no call waits any more."""
    call, answer = front.connect(calls=1), front.connect(answers=1)
    assert await front.ends_after(3 + ANSWER_SECONDS, (3, call.finish))
    assert answer.parted == 1
    assert "answers that have begun: 1," in caplog.messages[-1]


@pytest.mark.parametrize("reason", ["the time is over (--drain-timeout)", "a second signal came"])
@virtual_time
async def test_time_or_a_signal_ends_all_waiting(front: Front, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    connection = front.connect(stays=True, calls=1)
    front.tasks.add("a held call")
    if reason == "a second signal came":
        assert await front.ends_after(3, (3, front.at_once.set))
    else:
        assert await front.ends_after(3, most=3)
    assert connection.parted == 1
    assert f"{reason}; cut off are calls: 1," in caplog.messages[-1]
    assert caplog.messages[-1].endswith("held calls at work: 1, connections: 1")


@pytest.mark.parametrize("closes", [True, False])
@virtual_time
async def test_clients_that_have_everything_have_a_moment_to_close(front: Front, closes: bool) -> None:
    front.connect(stays=True)
    moment = PARTING_SECONDS / 2 if closes else PARTING_SECONDS
    closing = [(NOTICE_SECONDS + moment, front.connections.clear)] if closes else []
    assert await front.ends_after(NOTICE_SECONDS + moment, *closing)


@virtual_time
async def test_client_that_connects_meanwhile_is_waited_for_too(front: Front) -> None:
    front.connect(calls=1)
    late: list[Connection] = []

    def reconnect() -> None:
        front.connections.clear()
        late.append(front.connect(calls=1))

    assert await front.ends_after(5, (2, reconnect), (5, lambda: late[0].finish()))
    assert late[0].told


def test_unfinished_work_is_summed_and_true_if_there_is_any() -> None:
    assert drain.total([Unfinished(1, 2, 3), Unfinished(10, 20, 30)]) == Unfinished(11, 22, 33)
    assert [bool(Unfinished(**{kind: 1})) for kind in ("calls", "answers", "streams")] == [True] * 3
    assert not drain.total([])


@virtual_time
async def test_answers_are_waited_for_while_all_are_served(front: Front) -> None:
    """Nobody is asked to leave; calls, endless streams, and answers that begin later are not waited for."""
    stream, gone = front.connect(answers=1), front.connect(answers=1)
    front.connect(calls=1, streams=1)
    loop = asyncio.get_running_loop()
    loop.call_later(1, front.connections.discard, gone)
    loop.call_later(2, lambda: front.connect(answers=1))
    loop.call_later(3, stream.finish)
    await answers_ended(front.connections, 60, front.at_once)
    assert loop.time() == pytest.approx(3, abs=5 * drain.LOOK_SECONDS)
    assert stream in front.connections
    assert not any(connection.told for connection in front.connections)


@virtual_time
async def test_wait_for_answers_ends_by_its_time_or_a_signal(front: Front) -> None:
    loop = asyncio.get_running_loop()
    await answers_ended(front.connections, 60, front.at_once)
    assert loop.time() == 0
    front.connect(answers=1)
    await answers_ended(front.connections, 2, front.at_once)
    assert loop.time() == pytest.approx(2, abs=5 * drain.LOOK_SECONDS)
    front.at_once.set()
    await answers_ended(front.connections, 60, front.at_once)
    assert loop.time() == pytest.approx(2, abs=5 * drain.LOOK_SECONDS)
