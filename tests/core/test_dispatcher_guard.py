"""Which plugins are called, by remaining time, breaker and unserved hook points, and the log lines for that."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from runtimeproxy.core.dispatcher import ENDED, OK, Dispatcher
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model.fields import HookAnswer, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW, OPEN_SECONDS, BreakerState
from runtimeproxy.relay.rpc.connection import Peer
from tests.fakes.plugins import ONE_PEER, FakeClient, FakePlugins
from tests.observe.events import shown_of

CREATE, START = BY_NAME["PreCreateContainer"], BY_NAME["PreStartContainer"]
CANARY = "canary-4711"
Attempt = Coroutine[Any, None, HookAnswer]


class Client(FakeClient):
    """A hook server whose answer or error is sent into the attempt that called it."""

    async def call(
        self, hook_point: HookPoint, request: HookRequest, timeout_seconds: float, peer: Peer | None = None
    ) -> HookAnswer:
        assert peer == self.there
        await asyncio.sleep(0)
        return HookAnswer()


class Desk:
    """One plugin and a clock that is set by hand."""

    def __init__(self, budget_seconds: float = 10.0) -> None:
        self.now = 100.0
        self.plugins = FakePlugins()
        self.metrics = Metrics(lambda: self.now)
        self.dispatcher = Dispatcher(self.plugins, self.metrics, lambda: self.now, budget_seconds)
        self.client = Client("a", HookAnswer(), [])
        self.plugins.add("a", client=self.client)
        (self.plugin,) = self.plugins.plugins

    def begin(self, hook_point: HookPoint = CREATE, seconds: float = 10.0) -> Attempt:
        """Run an attempt up to its answer. Raises HookError if the plugin is not called."""
        attempt = self.dispatcher.attempt(self.plugin, hook_point, HookRequest(PodInfo()), self.now + seconds)
        attempt.send(None)
        return attempt

    def run_hook(
        self, reason: Reason | None = None, *, hook_point: HookPoint = CREATE, seconds: float = 10.0
    ) -> Reason | None:
        """Make an attempt with this result; return why it was not made, None if it was."""
        try:
            attempt = self.begin(hook_point, seconds)
        except HookError as error:
            return error.reason
        end(attempt, None if reason is None else HookError("a", hook_point.name, reason, CANARY))
        return None

    def open(self) -> None:
        for _ in range(FAILURES_IN_A_ROW):
            assert self.run_hook(Reason.DEADLINE) is None
        assert self.plugin.breaker.state is BreakerState.OPEN

    @property
    def gauge(self) -> float | None:
        return self.metrics.gauges.get(("hook_breaker_open", ("a",)))


def end(attempt: Attempt, by: BaseException | None = None) -> None:
    """Give an attempt its answer, or end it by an error, which its caller gets."""
    if by is None:
        with pytest.raises(StopIteration):
            attempt.send(None)
    else:
        with pytest.raises(type(by)) as raised:
            attempt.throw(by)
        assert raised.value is by


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    return caplog


OPENS = [(10.0, 2.0, Reason.DEADLINE), (10.0, 0.7, Reason.DEADLINE), (1.0, 1.0, Reason.DEADLINE)]
OPENS += [(1.0, 0.4, Reason.DEADLINE), (10.0, 0.1, Reason.BROKEN_ANSWER)]
STAYS = [(10.0, 0.6, Reason.DEADLINE), (1.0, 0.3, Reason.DEADLINE), (10.0, 2.0, Reason.DISABLED)]


@pytest.mark.parametrize(("budget_seconds", "remaining", "reason"), [*OPENS, *STAYS])
def test_deadline_is_breaker_failure_if_third_of_time_remained(
    budget_seconds: float, remaining: float, reason: Reason
) -> None:
    """A short deadline or earlier plugins may leave a healthy server less; the first of several has about half."""
    desk = Desk(budget_seconds)
    for _ in range(FAILURES_IN_A_ROW):
        assert desk.run_hook(reason, seconds=remaining) is None
    opens = (budget_seconds, remaining, reason) in OPENS
    assert desk.plugin.breaker.state is (BreakerState.OPEN if opens else BreakerState.CLOSED)


CODES: list[tuple[BaseException | None, str]] = [(None, OK), (asyncio.CancelledError(), ENDED), (TimeoutError(), ENDED)]
CODES += [(HookError("a", CREATE.name, reason), reason.value) for reason in (Reason.DEADLINE, Reason.REFUSED)]


@pytest.mark.parametrize(("by", "code"), CODES, ids=str)
def test_attempt_is_counted_by_result_and_duration(desk: Desk, by: BaseException | None, code: str) -> None:
    attempt = desk.begin()
    desk.now += 0.25
    end(attempt, by)
    assert desk.metrics.counted("hook_calls", hook_server="a", hook=CREATE.name, code=code) == 1
    assert desk.metrics.total("hook_calls") == 1
    assert desk.metrics.histograms["hook_call_duration_seconds", ("a",)].sum == 0.25


def test_breaker_changes_are_logged_counted_and_events(desk: Desk, log: pytest.LogCaptureFixture) -> None:
    desk.run_hook()
    assert desk.gauge is None
    desk.open()
    assert (desk.gauge, desk.metrics.counted("hook_breaker_openings", hook_server="a")) == (1.0, 1)
    for _ in range(10):
        assert desk.run_hook() is Reason.BREAKER_OPEN
    desk.now += OPEN_SECONDS
    assert desk.run_hook() is None
    assert desk.run_hook() is None
    assert (desk.gauge, desk.metrics.counted("hook_breaker_openings", hook_server="a")) == (0.0, 1)
    assert [(line.levelname, line.getMessage()) for line in log.records] == [
        ("WARNING", "hook server a keeps failing: calls suspended for 30 s"),
        ("INFO", "hook server a recovered: calls resumed"),
    ]
    assert {vars(line)["kind"] for line in log.records} == {"a"}
    assert CANARY not in log.text
    events = [
        (event["kind"], event["reason"], event["hookServer"], event["hook"]) for event in shown_of(desk.metrics.events)
    ]
    assert events == [("breaker_open", "deadline", "a", CREATE.name), ("breaker_closed", "ok", "a", CREATE.name)]


def test_refused_attempt_reports_time_of_next_trial(desk: Desk) -> None:
    desk.open()
    desk.now += 18
    notified = r"'a' at PreCreateContainer: breaker_open: it keeps failing, .* tried again in 12 s"
    with pytest.raises(HookError, match=notified):
        desk.begin(seconds=1)
    desk.now += 12
    first = desk.begin(seconds=1)
    with pytest.raises(HookError, match="breaker_open: another call is trying it"):
        desk.begin(START, seconds=1)
    assert desk.plugin.breaker.state is BreakerState.HALF_OPEN
    end(first)


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError])
def test_cancelled_attempt_does_not_change_breaker(desk: Desk, error: type[BaseException]) -> None:
    desk.open()
    desk.now += OPEN_SECONDS
    for _ in range(3):
        end(desk.begin(seconds=1), error())
        assert desk.plugin.breaker.state is BreakerState.HALF_OPEN
    assert desk.run_hook() is None
    assert desk.plugin.breaker.state is BreakerState.CLOSED


def test_removed_plugin_is_not_logged(desk: Desk, log: pytest.LogCaptureFixture) -> None:
    desk.plugins.plugins.clear()
    desk.open()
    assert (desk.gauge, log.records) == (None, [])


def test_unserved_point_is_logged_once_and_not_called_again(desk: Desk, log: pytest.LogCaptureFixture) -> None:
    """For any duration (fault matrix H8 requires 30 s) and any number of concurrent calls."""
    first = desk.begin()
    assert desk.run_hook(Reason.UNIMPLEMENTED) is None
    end(first, HookError("a", CREATE.name, Reason.UNIMPLEMENTED))
    for _ in range(10):
        desk.now += 30
        assert desk.run_hook() is Reason.UNIMPLEMENTED
        assert desk.run_hook(hook_point=START) is None
    assert log.messages == [
        "hook server a does not serve PreCreateContainer although its registration lists it: take it out of "
        "runtime-hooks, or update the server; it is called again after it reconnects"
    ]
    assert vars(log.records[0])["kind"] == "a PreCreateContainer"
    assert desk.plugin.breaker.state is BreakerState.CLOSED


def test_unserved_point_is_called_again_after_reconnect(desk: Desk, log: pytest.LogCaptureFixture) -> None:
    desk.run_hook(Reason.UNIMPLEMENTED)
    for there in (Peer("socket", 2), Peer("another socket", 2), Peer("socket", 0), Peer(None, 0)):
        assert desk.run_hook() is Reason.UNIMPLEMENTED
        desk.client.there = there
        assert desk.run_hook() is None
        desk.client.there = ONE_PEER
    assert len(log.records) == 1
    attempt = desk.begin(START)
    desk.client.there = Peer("another socket", 2)
    end(attempt, HookError("a", START.name, Reason.UNIMPLEMENTED))
    assert (len(log.records), desk.run_hook(hook_point=START)) == (1, None), "another server is there"


def test_unserved_point_is_called_where_no_connection_stays(desk: Desk, log: pytest.LogCaptureFixture) -> None:
    desk.client.there = Peer("socket", 0)
    for _ in range(3):
        assert desk.run_hook(Reason.UNIMPLEMENTED) is None
    assert len(log.records) == 1


def test_plugin_disabled_during_call_is_not_called(desk: Desk) -> None:
    desk.client.abandoned = True
    assert desk.run_hook(seconds=0) is Reason.DISABLED
    assert desk.metrics.total("hook_calls") == 0
