"""The dispatcher asks all plugins in order, within the budget, and turns failures into the policies' verdicts."""

import logging
from collections.abc import Callable
from contextlib import nullcontext

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
    PodInfo("p1", "web", namespace="n"),
    ContainerInfo("c1", name="main", resources=Resources(cpu_shares=1024), envs={"A": "1"}),
)
OTHER_REQUEST = HookRequest(PodInfo("p2", "other", namespace="n"))
CANARY = "canary-4711"
FAILURES = (Reason.UNREACHABLE, Reason.DEADLINE, Reason.BROKEN_ANSWER, Reason.ERROR_STATUS)
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}
BAD_QUOTA = HookAnswer(envs=GPU, resources=Resources(cpu_period=100_000, cpu_quota=-7, cpu_shares=5))
TOLD = (
    "hook server 'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or at "
    "least 1000 microseconds: left out, the rest of its answer is used (policy Ignore), for n/web/main; of this field "
    "that is told once"
)


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


def test_registered_looks_at_all_points(desk: Desk) -> None:
    desk.plugins.add("a", points=(CREATE.name, "PostStopContainer"))
    assert [desk.dispatcher.registered(points) for points in ([CREATE], [START, CREATE])] == [True, True]
    assert [desk.dispatcher.registered(points) for points in ([START], [])] == [False, False]


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


async def test_the_later_plugin_wins_a_conflict(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": CANARY + "1"}))
    desk.plugins.add("b", HookAnswer(envs={"A": CANARY + "2"}))
    with caplog.at_level(logging.DEBUG):
        adjustment = await desk.before()
    assert adjustment.envs == {"A": CANARY + "2"}
    assert adjustment.conflicts == (Conflict("envs.A", "a", "b"),)
    assert desk.recorder.counted("hook_conflicts", hook=CREATE.name, loser="a", winner="b") == 1
    assert "hook servers a and b set the same field at PreCreateContainer: the later one wins" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.parametrize("reason", FAILURES)
async def test_the_others_go_on_without_a_failed_one_under_ignore(desk: Desk, reason: Reason) -> None:
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
async def test_a_call_is_refused_under_fail_or_by_a_refusal(desk: Desk, reason: Reason, policy: FailurePolicy) -> None:
    desk.plugins.add("a", reason, policy=policy)
    desk.plugins.add("b")
    with pytest.raises(HookError) as caught:
        await desk.before()
    assert (caught.value.plugin, caught.value.hook, caught.value.reason) == ("a", CREATE.name, reason)
    assert desk.plugins.told() == [("a", CREATE.name)]
    assert desk.failures("a", reason) == 1
    assert desk.recorder.total("hook_fail_open") == 0


@pytest.mark.parametrize("reason", [Reason.REFUSED, Reason.ERROR_STATUS])
async def test_a_hook_servers_words_reach_the_caller_and_no_log(
    desk: Desk, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: HookRequest) -> HookAnswer:
        raise HookError("a", CREATE.name, reason, "status", said=f"not with {CANARY}")

    desk.plugins.add("a", refuse, policy=FAIL)
    with caplog.at_level(logging.DEBUG), pytest.raises(HookError, match=f"status: not with {CANARY}"):
        await desk.before()
    assert f"hook server 'a' at PreCreateContainer: {reason.value}: status (policy Fail)" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_the_policy_decides_where_the_budget_is_used_up(desk: Desk, policy: FailurePolicy) -> None:
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


AT_POINTS = {"Pre": (CREATE, True, 1), "Post": (STOPPED, False, 1), "none": (None, False, 0)}


@pytest.mark.parametrize(("point", "refused", "counted"), AT_POINTS.values(), ids=AT_POINTS)
def test_failed_refuses_at_a_pre_point_under_fail(
    desk: Desk, point: HookPoint | None, refused: bool, counted: int
) -> None:
    desk.plugins.add("a", policy=FAIL)
    with pytest.raises(HookError, match="'a' at PreCreateContainer: unreadable: why") if refused else nullcontext():
        desk.dispatcher.failed(point, Reason.UNREADABLE, "why")
    assert (desk.recorder.total("hook_failures"), desk.recorder.total("hook_fail_open")) == (counted, 0)


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


async def test_an_open_breaker_leaves_the_other_plugins(desk: Desk) -> None:
    desk.plugins.add("a", Reason.BROKEN_ANSWER)
    desk.plugins.add("b", shares(5))
    for _ in range(10):
        assert (await desk.before()).resources == {"cpu_shares": 5}
    assert desk.failures("a", Reason.BREAKER_OPEN) == desk.fail_open("a", Reason.BREAKER_OPEN) == 5
    assert desk.plugins.told() == [("a", CREATE.name), ("b", CREATE.name)] * 5 + [("b", CREATE.name)] * 5


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_an_unserved_point_is_a_failure_each_time_and_one_line(
    desk: Desk, policy: FailurePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    desk.plugins.add("a", Reason.UNIMPLEMENTED, policy=policy)
    for _ in range(3):
        if policy is FAIL:
            with pytest.raises(HookError, match="'a' at PreCreateContainer: unimplemented: "):
                await desk.before()
        else:
            await desk.before()
    assert desk.plugins.told() == [("a", CREATE.name)]
    assert desk.failures("a", Reason.UNIMPLEMENTED) == 3
    assert desk.fail_open("a", Reason.UNIMPLEMENTED) == (3 if policy is IGNORE else 0)
    (line,) = caplog.messages
    assert line.startswith("hook server a does not serve PreCreateContainer although its registration lists it: ")


# -- answers with bad fields -------------------------------------------------------------------------------------------


def bad_fields(desk: Desk, field: str) -> int:
    return desk.recorder.counted("hook_bad_fields", plugin="a", hook=CREATE.name, field=field)


async def test_a_bad_field_costs_itself_under_ignore(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a", BAD_QUOTA)
    desk.plugins.add("b")
    with caplog.at_level(logging.DEBUG):
        adjustment = await desk.before()
    assert (adjustment.envs, adjustment.resources) == (GPU, {"cpu_shares": 5})
    assert adjustment.owners == {"envs.NVIDIA_VISIBLE_DEVICES": "a", "resources.cpu_shares": "a"}
    seen = desk.plugins.asked[1].request.container
    assert seen is not None
    assert (seen.envs, seen.resources) == ({"A": "1", **GPU}, Resources(cpu_shares=5))
    assert caplog.messages == [TOLD]
    assert caplog.records[0].levelname == "WARNING"


async def test_a_bad_answer_is_one_failure_and_counts_each_bad_field(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(envs={"": "x", "A=B": "y", "C": "z"}, resources=Resources(oom_score_adj=7777)))
    assert (await desk.before()).envs == {"C": "z"}
    assert desk.failures("a", Reason.BAD_ANSWER) == desk.fail_open("a", Reason.BAD_ANSWER) == 1
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_fail_open") == 1
    assert bad_fields(desk, "envs") == bad_fields(desk, "resources.oom_score_adj") == 1
    assert desk.recorder.total("hook_bad_fields") == 2
    assert desk.recorder.total("hook_calls") == 1


async def test_a_hook_servers_bad_field_is_told_once(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    client = desk.plugins.add("a", BAD_QUOTA)
    await desk.before()
    await desk.before()
    client.behaviour = HookAnswer(cgroup_parent=CANARY, resources=Resources(cpu_quota=-8))
    await desk.before()
    assert [line.split(": ")[2] for line in caplog.messages] == ["resources.cpu_quota", "cgroup_parent"]
    assert len({vars(record)["kind"] for record in caplog.records}) == 2
    assert CANARY not in caplog.text
    assert desk.failures("a", Reason.BAD_ANSWER) == 3
    desk.plugins.plugins.clear()
    desk.plugins.add("a", BAD_QUOTA)  # its registration was changed
    await desk.before()
    assert len(caplog.messages) == 3


async def test_a_bad_field_refuses_the_call_each_time_under_fail(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a", BAD_QUOTA, policy=FAIL)
    desk.plugins.add("b")
    rule = "'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or at least"
    for times in range(1, 8):
        with pytest.raises(HookError) as raised:
            await desk.before()
        assert rule in str(raised.value)
        assert desk.failures("a", Reason.BAD_ANSWER) == bad_fields(desk, "resources.cpu_quota") == times
    assert desk.recorder.total("hook_fail_open") == 0
    assert [asked.plugin for asked in desk.plugins.asked] == ["a"] * 7, "and never opens the breaker"
    assert all(rule in line and line.endswith("(policy Fail), for n/web/main") for line in caplog.messages)
    assert len(caplog.messages) == 7


async def test_a_tidied_answer_is_no_bad_one(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(resources=Resources(cpu_quota=834, cpuset_cpus="0-3,")), policy=FAIL)
    assert (await desk.before()).resources == {"cpu_quota": 1000, "cpuset_cpus": "0-3"}
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_bad_fields") == 0
