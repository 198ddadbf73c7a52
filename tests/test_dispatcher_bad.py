"""Answers with bad fields: under Ignore these alone are lost, under Fail the call is refused; each is counted."""

import logging

import pytest

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model import NO_ADJUSTMENT, HookAnswer, Resources
from tests.fakes.plugins import FAIL
from tests.test_dispatcher import CANARY, CREATE, Desk

GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}
BAD_QUOTA = HookAnswer(envs=GPU, resources=Resources(cpu_period=100_000, cpu_quota=-7, cpu_shares=5))
TOLD = (
    "hook server 'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or at "
    "least 1000 microseconds: left out, the rest of its answer is used (policy Ignore), for n/web/main; of this field "
    "that is told once"
)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def bad_fields(desk: Desk, field: str) -> int:
    return desk.recorder.counted("hook_bad_fields", plugin="a", hook=CREATE.name, field=field)


async def test_under_ignore_a_bad_field_costs_itself(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
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


async def test_it_is_one_failure_whatever_is_bad_and_each_bad_field_is_counted(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(envs={"": "x", "A=B": "y", "C": "z"}, resources=Resources(oom_score_adj=7777)))
    assert (await desk.before()).envs == {"C": "z"}
    assert desk.failures("a", Reason.BAD_ANSWER) == desk.fail_open("a", Reason.BAD_ANSWER) == 1
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_fail_open") == 1
    assert bad_fields(desk, "envs") == bad_fields(desk, "resources.oom_score_adj") == 1
    assert desk.recorder.total("hook_bad_fields") == 2
    assert desk.recorder.total("hook_calls") == 1


async def test_of_a_hook_servers_field_it_is_told_once(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
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


async def test_an_answer_of_bad_values_only_changes_nothing(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(envs={f"{CANARY}=": CANARY}, cgroup_parent="../.."))
    assert await desk.before() == NO_ADJUSTMENT
    assert desk.fail_open("a", Reason.BAD_ANSWER) == 1


async def test_under_fail_a_bad_field_refuses_the_call_each_time(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.plugins.add("a", BAD_QUOTA, policy=FAIL)
    desk.plugins.add("b")
    rule = "'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or at least"
    for times in (1, 2):
        with pytest.raises(HookError) as raised:
            await desk.before()
        assert rule in str(raised.value)
        assert desk.failures("a", Reason.BAD_ANSWER) == bad_fields(desk, "resources.cpu_quota") == times
    assert desk.recorder.total("hook_fail_open") == 0
    assert [asked.plugin for asked in desk.plugins.asked] == ["a", "a"]
    assert all(rule in line and line.endswith("(policy Fail), for n/web/main") for line in caplog.messages)
    assert len(caplog.messages) == 2


async def test_an_answer_in_normal_form_is_no_bad_one(desk: Desk) -> None:
    desk.plugins.add("a", HookAnswer(resources=Resources(cpu_quota=834, cpuset_cpus="0-3,")), policy=FAIL)
    assert (await desk.before()).resources == {"cpu_quota": 1000, "cpuset_cpus": "0-3"}
    assert desk.recorder.total("hook_failures") == desk.recorder.total("hook_bad_fields") == 0
