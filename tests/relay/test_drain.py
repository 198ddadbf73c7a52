"""The end of a front: what is waited for, in which order, how long, and what is told of it."""

import asyncio
import logging
import re
from collections.abc import Callable

import pytest

from runtimeproxy.relay import drain
from runtimeproxy.relay.drain import Drain, Unfinished

SOON = 20.0
"""For what happens at once, on a machine that has a lot to do."""


class Connection:
    """A connection that has open what a test says; it ends when it parts unless its client stays."""

    def __init__(self, others: set["Connection"], *, stays: bool = False, **left: int) -> None:
        self.left = Unfinished(**left)
        self.told: list[bool] = []
        """Whether newer calls were refused, each time it was asked."""
        self.parted = 0
        self._others = others
        self._stays = stays
        others.add(self)

    def drain(self, refusing: bool) -> None:
        self.told.append(refusing)

    def unfinished(self) -> Unfinished:
        return self.left

    def part(self) -> None:
        self.parted += 1
        if not self._stays:
            self._others.discard(self)


class Rig:
    """A front with nothing but its end."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.connections: set[Connection] = set()
        self.tasks: set[object] = set()
        self.at_once = asyncio.Event()
        self._caplog = caplog

    def connect(self, *, stays: bool = False, **left: int) -> Connection:
        return Connection(self.connections, stays=stays, **left)

    def start(self, seconds: float = 60.0) -> asyncio.Task[None]:
        return asyncio.create_task(Drain(self.connections, self.tasks).run(seconds, self.at_once))

    async def end(self, seconds: float = 60.0) -> None:
        await asyncio.wait_for(self.start(seconds), SOON)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so. Raises TimeoutError if it does not come."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(drain, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(drain, "PARTING_SECONDS", 60.0)


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Rig:
    caplog.set_level(logging.INFO)
    return Rig(caplog)


async def test_without_connections_it_ends_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 60.0)
    await rig.end()
    nothing = "calls: 0, answers that have begun: 0, streams: 0, held calls at work: 0, connections: 0"
    begin, end = rig.lines
    assert begin == f"draining for at most 60.0 s; waiting for {nothing}"
    assert re.match(r"drained after \d+\.\d\d s: ", end)
    assert end.endswith(f" s: every call is answered; cut off are {nothing}")


async def test_idle_clients_have_a_moment_before_newer_calls_are_refused(rig: Rig) -> None:
    connection = rig.connect()
    await rig.end()
    assert connection.told[0] is False
    assert connection.told[-1] is True
    assert connection.told == sorted(connection.told)
    assert connection.parted == 1


@pytest.mark.parametrize("kind", ["calls", "tasks", "answers"])
async def test_what_is_waited_for(rig: Rig, kind: str) -> None:
    """Streams are cut behind it."""
    waits, streams = rig.connect(), rig.connect(streams=2)
    if kind == "tasks":
        rig.tasks.add("a held call")
    else:
        waits.left = Unfinished(**{kind: 1})
    draining = rig.start()
    await asyncio.sleep(0.05)
    assert not draining.done()
    assert (waits.parted, streams.parted) == (0, 0)
    rig.tasks.clear()
    waits.left = Unfinished()
    await asyncio.wait_for(draining, SOON)
    assert (waits.parted, streams.parted) == (1, 1)
    assert "every call is answered; cut off are calls: 0, answers that have begun: 0, streams: 2," in rig.lines[-1]


async def test_answer_that_does_not_end_is_a_stream(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time begins when no call waits any more."""
    monkeypatch.setattr(drain, "ANSWER_SECONDS", 0.05)
    call, answer = rig.connect(calls=1), rig.connect(answers=1)
    draining = rig.start()
    await asyncio.sleep(0.1)
    assert not draining.done()
    freed = asyncio.get_running_loop().time()
    call.left = Unfinished()
    await asyncio.wait_for(draining, SOON)
    assert asyncio.get_running_loop().time() - freed >= 0.04
    assert answer.parted == 1
    assert "answers that have begun: 1," in rig.lines[-1]


async def test_time_ends_it_and_nobody_is_waited_for_then(rig: Rig) -> None:
    connection = rig.connect(stays=True, calls=1)
    rig.tasks.add("a held call")
    await rig.end(0.03)
    assert connection.parted == 1
    assert "the time is over (--drain-timeout); cut off are calls: 1," in rig.lines[-1]
    assert rig.lines[-1].endswith("held calls at work: 1, connections: 1")


async def test_second_signal_ends_it_at_once(rig: Rig) -> None:
    connection = rig.connect(stays=True, calls=1)
    draining = rig.start()
    await asyncio.sleep(0.02)
    assert not draining.done()
    rig.at_once.set()
    await asyncio.wait_for(draining, SOON)
    assert connection.parted == 1
    assert "a second signal came; cut off are calls: 1," in rig.lines[-1]


async def test_clients_that_have_everything_have_a_moment_to_close(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = rig.connect(stays=True)
    draining = rig.start()
    await until(lambda: connection.parted == 1)
    await asyncio.sleep(0.02)
    assert not draining.done()
    rig.connections.clear()
    await asyncio.wait_for(draining, SOON)
    monkeypatch.setattr(drain, "PARTING_SECONDS", 0.01)
    rig.connect(stays=True)
    await rig.end()


async def test_who_connects_meanwhile_is_waited_for_too(rig: Rig) -> None:
    rig.connect(calls=1)
    draining = rig.start()
    await asyncio.sleep(0.02)
    rig.connections.clear()
    late = rig.connect(calls=1)
    await until(lambda: late.told != [])
    await asyncio.sleep(0.02)
    assert not draining.done()
    late.left = Unfinished()
    await asyncio.wait_for(draining, SOON)


def test_sum_of_what_is_unfinished_is_true_if_anything_is() -> None:
    assert drain.total([Unfinished(1, 2, 3), Unfinished(10, 20, 30)]) == Unfinished(11, 22, 33)
    assert drain.total([]) == Unfinished()
    assert [bool(Unfinished(**{kind: 1})) for kind in ("calls", "answers", "streams")] == [True] * 3
    assert not Unfinished()
