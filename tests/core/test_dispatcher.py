"""The dispatcher calls all plugins in order, within the budget, and applies the policies to failures."""

import logging

import pytest

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, HookAnswer, HookRequest, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy.plugins.registration import FailurePolicy
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL, IGNORE

pytestmark = virtual_time

CREATE, START, STOPPED = (BY_NAME[name] for name in ("PreCreateContainer", "PreStartContainer", "PostStopContainer"))
CONTAINER = fields.ContainerInfo("c1", name="main", resources=Resources(cpu_shares=1024), envs={"A": "1"})
REQUEST = HookRequest(PodInfo("p1", "web", namespace="n"), CONTAINER)
SECOND_REQUEST = HookRequest(PodInfo("p2", "other", namespace="n"))
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture
FAILURES = (Reason.UNREACHABLE, Reason.DEADLINE, Reason.BROKEN_ANSWER, Reason.ERROR_STATUS, Reason.UNIMPLEMENTED)
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}
SHARES = HookAnswer(resources=Resources(cpu_shares=5))
BAD_QUOTA = HookAnswer(envs=GPU, resources=Resources(cpu_period=100_000, cpu_quota=-7, cpu_shares=5))


def call_about(request: HookRequest) -> FakeCall:
    """Return a call with a known subject."""
    call = FakeCall(CREATE.operation)
    container = request.container
    record = None if container is None else fields.ContainerRecord(container, container)
    call.last_subject = Subject(PodRecord(request.pod, request.pod), record)
    return call


class Desk(Core):
    """The core's dispatcher, called directly."""

    async def before(self, request: HookRequest = REQUEST, seconds: float = 10.0) -> Adjustment:
        return await self.dispatcher.before(call_about(request), CREATE, request, self.now + seconds)

    def counted(self, plugin: str, reason: Reason, hook_point: HookPoint = CREATE) -> tuple[int, int]:
        """Return the numbers of failures and of failures that fail open."""
        labels = {"hook_server": plugin, "hook": hook_point.name, "reason": reason.value}
        return self.metrics.counted("hook_failures", **labels), self.metrics.counted("hook_fail_open", **labels)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Return the numbers of answers, failures and failures that fail open."""
        total = self.metrics.total
        return total("hook_calls", code="ok"), total("hook_failures"), total("hook_fail_open")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_plugin_gets_changes_of_earlier_plugins(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": "2", "B": "3"}))
    desk.plugins.add("b")
    desk.plugins.add("c", SHARES)
    adjustment = await desk.before()
    assert desk.plugins.notified() == [("a", CREATE.name), ("b", CREATE.name), ("c", CREATE.name)]
    first, second, third = (queried.request for queried in desk.plugins.queried)
    assert first is REQUEST
    assert second == third
    assert second.container is not None
    assert (second.container.envs, second.container.resources) == ({"A": "2", "B": "3"}, CONTAINER.resources)
    owners = {"envs.A": "a", "envs.B": "a", "resources.cpu_shares": "c"}
    assert adjustment == Adjustment(envs={"A": "2", "B": "3"}, resources={"cpu_shares": 5}, owners=owners)
    assert desk.totals == (3, 0, 0)
    assert desk.metrics.total("hook_conflicts") == 0


async def test_later_plugin_wins_conflict(desk: Desk, caplog: Log) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": CANARY + "1"}))
    desk.plugins.add("b", HookAnswer(envs={"A": CANARY + "2"}))
    with caplog.at_level(logging.DEBUG):
        adjustment = await desk.before()
    assert (adjustment.envs, adjustment.conflicts) == ({"A": CANARY + "2"}, (fields.Conflict("envs.A", "a", "b"),))
    assert desk.metrics.counted("hook_conflicts", hook_server="a", hook=CREATE.name) == 1
    assert "hook servers a and b set the same field at PreCreateContainer: the later one wins" in caplog.text
    assert CANARY not in caplog.text


async def test_later_plugins_are_called_after_failure_under_ignore(desk: Desk) -> None:
    desk.plugins.add("a", SHARES)
    for reason in FAILURES:
        desk.plugins.add(reason.value, reason)
    desk.plugins.add("c", HookAnswer(envs={"C": "1"}))
    adjustment = await desk.before()
    assert (adjustment.resources, adjustment.envs) == ({"cpu_shares": 5}, {"C": "1"})
    assert [desk.counted(reason.value, reason) for reason in FAILURES] == [(1, 1)] * len(FAILURES)
    assert desk.totals == (2, len(FAILURES), len(FAILURES))


REFUSALS = [*((reason, FAIL) for reason in (*FAILURES, Reason.REFUSED)), (Reason.REFUSED, IGNORE)]


@pytest.mark.parametrize(("reason", "policy"), REFUSALS)
async def test_call_is_refused_under_fail_or_by_refusal(desk: Desk, reason: Reason, policy: FailurePolicy) -> None:
    desk.plugins.add("a", reason, policy=policy)
    desk.plugins.add("b")
    with pytest.raises(HookError) as caught:
        await desk.before()
    assert (caught.value.plugin, caught.value.hook, caught.value.reason) == ("a", CREATE.name, reason)
    assert desk.plugins.notified() == [("a", CREATE.name)]
    assert desk.counted("a", reason) == (1, 0)
    assert desk.metrics.total("hook_refusals", hook_server="a") == (reason is Reason.REFUSED)
    closed = desk.metrics.total("hook_fail_closed", hook_server="a", reason=reason.value)
    assert closed == (reason is not Reason.REFUSED)


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_call_continues_without_disabled_plugin(desk: Desk, policy: FailurePolicy, caplog: Log) -> None:
    desk.plugins.add("a", Reason.DISABLED, policy=policy)
    desk.plugins.add("b", SHARES)
    assert (await desk.before()).owners == {"resources.cpu_shares": "b"}
    assert desk.counted("a", Reason.DISABLED) == (1, 1)
    assert desk.metrics.total("hook_fail_closed") == 0
    assert caplog.messages == [
        f"hook server 'a' at PreCreateContainer: disabled: as reported (policy {policy.value}), for {REQUEST.name}"
    ]


async def test_refusal_text_is_returned_but_not_logged(desk: Desk, caplog: Log) -> None:
    desk.plugins.add("a", HookError("a", CREATE.name, Reason.REFUSED, "status", peer_text=f"not with {CANARY}"))
    with caplog.at_level(logging.DEBUG), pytest.raises(HookError, match=f"status: not with {CANARY}"):
        await desk.before()
    assert "hook server 'a' at PreCreateContainer: refused: status (policy Ignore)" in caplog.text
    assert CANARY not in caplog.text


async def test_policy_applies_when_budget_is_used_up(desk: Desk) -> None:
    desk.plugins.add("a", SHARES)
    assert await desk.before(seconds=0.0) is fields.NO_ADJUSTMENT
    assert desk.counted("a", Reason.DEADLINE) == (1, 1)
    desk.plugins.add("b", SHARES, policy=FAIL)
    with pytest.raises(HookError, match=r"'b' at PreCreateContainer: deadline: .*--hook-budget"):
        await desk.before(seconds=0.0)
    assert (desk.plugins.notified(), desk.counted("b", Reason.DEADLINE)) == ([], (1, 0))


async def test_post_hooks_call_every_plugin_after_failures(desk: Desk) -> None:
    desk.plugins.add("a", Reason.UNREACHABLE, policy=FAIL)
    desk.plugins.add("b", Reason.REFUSED, policy=FAIL)
    desk.plugins.add("c", HookAnswer(envs={"": "not even checked"}))
    await desk.dispatcher.after("", STOPPED, REQUEST, desk.now + 10)
    assert desk.plugins.notified() == [(name, STOPPED.name) for name in "abc"]
    assert all(queried.request is REQUEST for queried in desk.plugins.queried)
    assert desk.counted("a", Reason.UNREACHABLE, STOPPED) == desk.counted("b", Reason.REFUSED, STOPPED) == (1, 0)
    assert desk.totals == (1, 2, 0)


async def test_failure_is_logged_with_its_subject(desk: Desk, caplog: Log) -> None:
    """A failure before the calls counts for every plugin of the hook point."""
    desk.plugins.add("a", Reason.UNREACHABLE)
    await desk.before()
    await desk.before(SECOND_REQUEST)
    assert len({vars(record)["kind"] for record in caplog.records}) == 2, "neither is left out for the other's sake"
    desk.plugins.add("b")
    desk.plugins.add("other", policy=FAIL, points=(START.name,))
    desk.dispatcher.apply_policies(FakeCall(CREATE.operation), (CREATE,), Reason.UNREADABLE, "why")
    subjects = [line.partition(", for ")[2] for line in caplog.messages]
    assert subjects == ["n/web/main", "n/other", "one unknown", "one unknown"]
    assert desk.counted("a", Reason.UNREADABLE) == desk.counted("b", Reason.UNREADABLE) == (1, 1)
    assert desk.totals == (0, 4, 4)


BAD_FIELD = "'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or "


async def test_next_plugin_gets_answer_without_bad_field(desk: Desk, caplog: Log) -> None:
    desk.plugins.add("a", BAD_QUOTA)
    desk.plugins.add("b")
    adjustment = await desk.before()
    assert (adjustment.envs, adjustment.resources) == (GPU, {"cpu_shares": 5})
    seen = desk.plugins.queried[1].request.container
    assert seen is not None
    assert (seen.envs, seen.resources) == ({"A": "1", **GPU}, Resources(cpu_shares=5))
    used = "left out, the rest of its answer is used (policy Ignore), for n/web/main; this is logged once for this"
    assert caplog.messages == [f"hook server {BAD_FIELD}at least 1000 microseconds: {used} field"]
    assert caplog.records[0].levelname == "WARNING"


async def test_bad_field_is_logged_once(desk: Desk, caplog: Log) -> None:
    client = desk.plugins.add("a", BAD_QUOTA)
    await desk.before()
    await desk.before()
    client.behaviour = HookAnswer(cgroup_parent=CANARY, resources=Resources(cpu_quota=-8))
    await desk.before()
    assert [line.split(": ")[2] for line in caplog.messages] == ["resources.cpu_quota", "cgroup_parent"]
    assert len({vars(record)["kind"] for record in caplog.records}) == 2
    assert CANARY not in caplog.text
    assert desk.counted("a", Reason.BAD_ANSWER) == (3, 3)
    desk.plugins.plugins.clear()
    desk.plugins.add("a", BAD_QUOTA)  # its registration was changed
    await desk.before()
    assert len(caplog.messages) == 3


async def test_bad_field_refuses_every_call_under_fail(desk: Desk, caplog: Log) -> None:
    """It never opens the breaker."""
    desk.plugins.add("a", BAD_QUOTA, policy=FAIL)
    desk.plugins.add("b")
    for times in range(1, 8):
        with pytest.raises(HookError) as raised:
            await desk.before()
        assert BAD_FIELD in str(raised.value)
        assert desk.counted("a", Reason.BAD_ANSWER) == (times, 0)
        assert BAD_FIELD in caplog.messages[-1]
        assert caplog.messages[-1].endswith("(policy Fail), for n/web/main")
    assert (desk.metrics.total("hook_bad_fields"), len(caplog.messages)) == (7, 7)
    assert [queried.plugin for queried in desk.plugins.queried] == ["a"] * 7
