"""The dispatcher asks all plugins in order, within the budget, and turns failures into the policies' verdicts."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from runtimeproxy.dispatcher import Dispatcher
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.hookpoints import BY_NAME, HookPoint
from runtimeproxy.model import (
    NO_ADJUSTMENT,
    Adjustment,
    Conflict,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
)
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.telemetry import Recorder
from tests.fakes.plugins import FAIL, IGNORE, FakePlugins

CREATE = BY_NAME["PreCreateContainer"]
START = BY_NAME["PreStartContainer"]
STOPPED = BY_NAME["PostStopContainer"]
REQUEST = HookRequest(
    PodInfo(id="p1", namespace="n", name="web"),
    ContainerInfo(id="c1", name="main", resources=Resources(cpu_shares=1024), envs={"A": "1"}),
)
OTHER_REQUEST = HookRequest(PodInfo(id="p2", namespace="n", name="other"))
CANARY = "canary-4711"


class Desk:
    """A dispatcher on fake plugins and a clock that the hook calls move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.plugins = FakePlugins()
        self.recorder = Recorder(self.clock)
        self.dispatcher = Dispatcher(self.plugins, self.recorder, self.clock, 10.0)

    def clock(self) -> float:
        return self.now

    async def before(self, seconds: float = 10.0) -> Adjustment:
        """Ask at PreCreateContainer."""
        return await self.dispatcher.before(CREATE, REQUEST, self.now + seconds)

    def taking(self, seconds: float, answer: HookAnswer) -> Callable[[HookRequest], HookAnswer]:
        """Return an answer that takes its time."""

        def answered(request: HookRequest) -> HookAnswer:
            self.now += seconds
            return answer

        return answered

    def failures(self, plugin: str, reason: Reason, point: str = CREATE.name) -> int:
        return self.recorder.counted("hook_failures", plugin=plugin, hook=point, reason=reason.value)

    def fail_open(self, plugin: str, reason: Reason, point: str = CREATE.name) -> int:
        return self.recorder.counted("hook_fail_open", plugin=plugin, hook=point, reason=reason.value)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def shares(count: int) -> HookAnswer:
    return HookAnswer(resources=Resources(cpu_shares=count))


async def test_nobody_registered_is_no_adjustment(desk: Desk) -> None:
    assert await desk.before() is NO_ADJUSTMENT
    assert not desk.recorder.counters


@pytest.mark.parametrize(
    ("points", "registered"),
    [([CREATE], True), ([START, CREATE], True), ([START], False), ([], False)],
)
def test_registered_looks_at_all_points(desk: Desk, points: list[HookPoint], registered: bool) -> None:
    desk.plugins.add("a", points=(CREATE.name, "PostStopContainer"))
    assert desk.dispatcher.registered(points) is registered


async def test_each_plugin_sees_what_the_earlier_ones_changed(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": "2", "B": "3"}))
    desk.plugins.add("b")
    desk.plugins.add("c", shares(5))
    adjustment = await desk.before()
    assert desk.plugins.told() == [("a", CREATE.name), ("b", CREATE.name), ("c", CREATE.name)]
    first, second, third = (asked.request for asked in desk.plugins.asked)
    assert first is REQUEST
    assert second == third
    assert second.container is not None
    assert second.container.envs == {"A": "2", "B": "3"}
    assert second.container.resources == Resources(cpu_shares=1024)
    assert adjustment == Adjustment(
        envs={"A": "2", "B": "3"},
        resources={"cpu_shares": 5},
        owners={"envs.A": "a", "envs.B": "a", "resources.cpu_shares": "c"},
    )
    assert desk.recorder.total("hook_calls") == 3
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_conflicts") == 0


async def test_only_the_plugins_of_the_point_are_asked(desk: Desk) -> None:
    desk.plugins.add("a", points=(START.name,))
    desk.plugins.add("b", points=(CREATE.name,))
    await desk.before()
    assert desk.plugins.told() == [("b", CREATE.name)]


async def test_a_conflict_is_won_by_the_later_one_counted_and_named(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": CANARY + "1"}))
    desk.plugins.add("b", HookAnswer(envs={"A": CANARY + "2"}))
    with caplog.at_level(logging.DEBUG):
        adjustment = await desk.before()
    assert adjustment.envs == {"A": CANARY + "2"}
    assert adjustment.conflicts == (Conflict("envs.A", "a", "b"),)
    assert desk.recorder.counted("hook_conflicts", hook=CREATE.name, loser="a", winner="b") == 1
    assert "hook servers a and b set the same field at PreCreateContainer: the later one wins" in caplog.text
    assert CANARY not in caplog.text


FAILURES = (Reason.UNREACHABLE, Reason.DEADLINE, Reason.BROKEN_ANSWER, Reason.ERROR_STATUS)


@pytest.mark.parametrize("reason", FAILURES)
async def test_under_ignore_the_others_go_on_without_the_one_that_fails(desk: Desk, reason: Reason) -> None:
    desk.plugins.add("a", shares(5))
    desk.plugins.add("b", reason)
    desk.plugins.add("c", HookAnswer(envs={"C": "1"}))
    adjustment = await desk.before()
    assert (adjustment.resources, adjustment.envs) == ({"cpu_shares": 5}, {"C": "1"})
    assert desk.failures("b", reason) == desk.fail_open("b", reason) == 1
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_fail_open") == 1
    assert desk.recorder.total("hook_calls") == 2


@pytest.mark.parametrize(
    ("reason", "policy"), [*((reason, FAIL) for reason in (*FAILURES, Reason.REFUSED)), (Reason.REFUSED, IGNORE)]
)
async def test_fail_refuses_the_call_and_a_refusal_does_under_both(
    desk: Desk, reason: Reason, policy: FailurePolicy
) -> None:
    desk.plugins.add("a", reason, policy=policy)
    desk.plugins.add("b")
    with pytest.raises(HookError) as caught:
        await desk.before()
    assert (caught.value.plugin, caught.value.hook, caught.value.reason) == ("a", CREATE.name, reason)
    assert desk.plugins.told() == [("a", CREATE.name)]
    assert desk.failures("a", reason) == 1
    assert desk.recorder.total("hook_fail_open") == 0


@pytest.mark.parametrize("reason", [Reason.REFUSED, Reason.ERROR_STATUS])
async def test_what_a_hook_server_said_reaches_the_caller_and_no_log(
    desk: Desk, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: HookRequest) -> HookAnswer:
        raise HookError("a", CREATE.name, reason, "status", said=f"not with {CANARY}")

    desk.plugins.add("a", refuse, policy=FAIL)
    with caplog.at_level(logging.DEBUG), pytest.raises(HookError, match=f"status: not with {CANARY}"):
        await desk.before()
    assert f"hook server 'a' at PreCreateContainer: {reason.value}: status (policy Fail)" in caplog.text
    assert CANARY not in caplog.text


async def test_a_plugin_has_its_own_timeout_and_never_more_than_is_left_of_the_budget(desk: Desk) -> None:
    desk.plugins.add("a", desk.taking(2.0, shares(5)), timeout_seconds=2.0)
    desk.plugins.add("b", desk.taking(1.0, shares(6)), timeout_seconds=0.5)
    desk.plugins.add("c", timeout_seconds=2.0)
    await desk.before(seconds=4.5)
    assert [asked.timeout_seconds for asked in desk.plugins.asked] == [2.0, 0.5, 1.5]


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_with_the_budget_used_up_nobody_is_asked_and_the_policy_decides(
    desk: Desk, policy: FailurePolicy
) -> None:
    desk.plugins.add("a", desk.taking(4.0, shares(5)))
    desk.plugins.add("b", policy=policy)
    if policy is FAIL:
        with pytest.raises(HookError, match=r"'b' at PreCreateContainer: deadline: .*--hook-budget"):
            await desk.before(seconds=4.0)
    else:
        assert (await desk.before(seconds=4.0)).resources == {"cpu_shares": 5}
    assert desk.plugins.told() == [("a", CREATE.name)]
    assert desk.failures("b", Reason.DEADLINE) == 1
    assert desk.fail_open("b", Reason.DEADLINE) == (policy is IGNORE)


async def test_after_tells_everybody_whatever_fails(desk: Desk) -> None:
    desk.plugins.add("a", Reason.UNREACHABLE, policy=FAIL)
    desk.plugins.add("b", Reason.REFUSED, policy=FAIL)
    desk.plugins.add("c", HookAnswer(envs={"": "not even checked"}))
    await desk.dispatcher.after(STOPPED, REQUEST, desk.now + 10)
    assert desk.plugins.told() == [(name, STOPPED.name) for name in "abc"]
    assert all(asked.request is REQUEST for asked in desk.plugins.asked)
    assert desk.failures("a", Reason.UNREACHABLE, STOPPED.name) == 1
    assert desk.failures("b", Reason.REFUSED, STOPPED.name) == 1
    assert desk.recorder.total("hook_failures") == 2
    assert desk.recorder.total("hook_fail_open") == 0


async def test_after_keeps_to_its_budget(desk: Desk) -> None:
    desk.plugins.add("a", desk.taking(3.0, HookAnswer()))
    desk.plugins.add("b")
    await desk.dispatcher.after(STOPPED, REQUEST, desk.now + 3.0)
    assert desk.plugins.told() == [("a", STOPPED.name)]
    assert desk.failures("b", Reason.DEADLINE, STOPPED.name) == 1


async def test_each_failure_is_logged_with_whom_it_was_about(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a", Reason.UNREACHABLE)
    with caplog.at_level(logging.WARNING):
        await desk.before()
        await desk.dispatcher.before(CREATE, OTHER_REQUEST, desk.now + 10)
    assert [line.partition(", for ")[2] for line in caplog.messages] == [REQUEST.name, OTHER_REQUEST.name]
    kinds = {record.__dict__["kind"] for record in caplog.records}
    assert len(kinds) == 2, "neither is left out for the other's sake"


def test_failed_is_a_failure_of_every_plugin_of_the_point(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a")
    desk.plugins.add("b")
    desk.plugins.add("other", policy=FAIL, points=(START.name,))
    with caplog.at_level(logging.WARNING):
        desk.dispatcher.failed(CREATE, Reason.UNREADABLE, "why")
    assert [line.partition(", for ")[2] for line in caplog.messages] == ["one unknown"] * 2
    for plugin in "ab":
        assert desk.failures(plugin, Reason.UNREADABLE) == desk.fail_open(plugin, Reason.UNREADABLE) == 1
    assert desk.recorder.total("hook_failures") == 2


def test_failed_refuses_where_one_has_policy_fail(desk: Desk) -> None:
    desk.plugins.add("a")
    desk.plugins.add("b", policy=FAIL)
    with pytest.raises(HookError, match="hook server 'b' at PreCreateContainer: unreadable: why"):
        desk.dispatcher.failed(CREATE, Reason.UNREADABLE, "why")


def test_failed_at_a_post_point_is_counted_only(desk: Desk) -> None:
    desk.plugins.add("a", policy=FAIL)
    desk.dispatcher.failed(STOPPED, Reason.UNREADABLE, "why")
    assert desk.failures("a", Reason.UNREADABLE, STOPPED.name) == 1
    assert desk.recorder.total("hook_fail_open") == 0


def test_failed_at_no_point_is_nobodys_failure(desk: Desk) -> None:
    desk.plugins.add("a", policy=FAIL)
    desk.dispatcher.failed(None, Reason.UNREADABLE, "why")
    assert not desk.recorder.counters


@pytest.mark.parametrize(("owner", "refused"), [("ignore", False), ("fail", True)])
def test_a_rejection_is_a_failure_of_the_owners_only(
    desk: Desk, owner: str, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk.plugins.add("fail", policy=FAIL)
    desk.plugins.add("ignore")
    adjustment = Adjustment(resources={"cpu_shares": 2}, owners={"resources.cpu_shares": owner})
    if refused:
        with pytest.raises(HookError, match="hook server 'fail' at PreStartContainer: runtime_rejected: no"):
            desk.dispatcher.rejected(START, adjustment, "no", REQUEST.name)
    else:
        desk.dispatcher.rejected(START, adjustment, "no", REQUEST.name)
    told = "the update before StartContainer of n/web/main failed in the runtime; hook servers had set "
    assert told + f"resources.cpu_shares ({owner})" in caplog.messages
    assert desk.failures(owner, Reason.RUNTIME_REJECTED, START.name) == 1
    assert desk.fail_open(owner, Reason.RUNTIME_REJECTED, START.name) == (not refused)
    assert desk.recorder.total("hook_failures") == 1


# -- who is not asked for a while ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_an_open_breaker_is_a_failure_of_its_own_and_costs_no_call(
    desk: Desk, policy: FailurePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    desk.plugins.add("a", Reason.DEADLINE, policy=policy)
    calls = 20
    with caplog.at_level(logging.INFO):
        for _ in range(calls):
            if policy is FAIL:
                with pytest.raises(HookError, match=r"'a' at PreCreateContainer: (deadline|breaker_open): "):
                    await desk.before()
            else:
                assert await desk.before() is NO_ADJUSTMENT
    assert len(desk.plugins.asked) == desk.failures("a", Reason.DEADLINE) == 5
    assert desk.failures("a", Reason.BREAKER_OPEN) == calls - 5
    assert desk.recorder.total("hook_fail_open") == (calls if policy is IGNORE else 0)
    assert desk.fail_open("a", Reason.BREAKER_OPEN) == (calls - 5 if policy is IGNORE else 0)
    assert caplog.text.count("hook server a keeps failing: not asked for 30 s") == 1


async def test_an_open_breaker_leaves_the_other_plugins(desk: Desk) -> None:
    desk.plugins.add("a", Reason.BROKEN_ANSWER)
    desk.plugins.add("b", shares(5))
    for _ in range(10):
        assert (await desk.before()).resources == {"cpu_shares": 5}
    assert desk.plugins.told() == [("a", CREATE.name), ("b", CREATE.name)] * 5 + [("b", CREATE.name)] * 5


async def test_after_does_not_ask_while_the_breaker_is_open(desk: Desk) -> None:
    desk.plugins.add("a", Reason.DEADLINE, policy=FAIL)
    for _ in range(10):
        await desk.dispatcher.after(STOPPED, REQUEST, desk.now + 10)
    assert len(desk.plugins.asked) == 5
    assert desk.failures("a", Reason.BREAKER_OPEN, STOPPED.name) == 5


@pytest.mark.parametrize("answer", [HookAnswer(envs={"": "x"}), Reason.BAD_ANSWER, Reason.ERROR_STATUS])
async def test_what_is_answered_at_once_never_opens_it(desk: Desk, answer: HookAnswer | Reason) -> None:
    desk.plugins.add("a", answer)
    for number in range(20):
        await desk.dispatcher.before(CREATE, replace(REQUEST, pod=PodInfo(uid=str(number))), desk.now + 10)
    assert len(desk.plugins.asked) == desk.recorder.total("hook_failures") == 20
    assert desk.failures("a", Reason.BREAKER_OPEN) == 0


async def test_a_slow_plugin_does_not_take_the_next_one_out(desk: Desk) -> None:
    """The first takes nearly all of the budget and answers; the second, which is well, has no time."""
    desk.plugins.add("a", desk.taking(1.95, HookAnswer()))
    well = desk.plugins.add("b", Reason.DEADLINE)
    for _ in range(10):
        await desk.before(seconds=2.0)
    assert desk.failures("b", Reason.DEADLINE) == 10
    well.behaviour = shares(5)
    assert (await desk.before()).resources == {"cpu_shares": 5}


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_a_point_that_is_not_served_is_a_failure_each_time_and_one_line(
    desk: Desk, policy: FailurePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    desk.plugins.add("a", Reason.UNIMPLEMENTED, policy=policy)
    for _ in range(10):
        if policy is FAIL:
            with pytest.raises(HookError, match="'a' at PreCreateContainer: unimplemented: "):
                await desk.before()
        else:
            await desk.before()
    assert desk.plugins.told() == [("a", CREATE.name)]
    assert desk.failures("a", Reason.UNIMPLEMENTED) == 10
    assert desk.fail_open("a", Reason.UNIMPLEMENTED) == (10 if policy is IGNORE else 0)
    assert [record.getMessage() for record in caplog.records] == [
        "hook server a does not serve PreCreateContainer although its registration lists it: take it out of "
        "runtime-hooks, or update the server; it is not asked again before it reconnects"
    ]
