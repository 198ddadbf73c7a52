"""The straight line behind the runtime's answer, in time: the commit, the Post hooks, and when the answer goes."""

import asyncio
from dataclasses import replace

import pytest

from runtimeproxy import dispatcher
from runtimeproxy.errors import Reason
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import PodRecord, Subject
from tests.fakes.calls import SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import NOTHING

CREATE, START = Operation.CREATE_CONTAINER, Operation.START_CONTAINER
STOP, REMOVE = Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER


@virtual_time
async def test_the_answer_is_not_kept_past_half_of_what_is_left_to_the_caller() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=100, points=("PostStartContainer",))
    call = FakeCall(START, deadline=2.0)
    await core.run(call)
    assert (call.steps, call.over_at) == ([(0, "release"), (1.5, "answer")], 3)
    assert core.failures("a", "PostStartContainer", Reason.DEADLINE) == 1


@virtual_time
async def test_what_happened_is_told_though_its_caller_has_less_time_than_the_hook_server_takes() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1.5, points=("PostStartContainer",))
    call = FakeCall(START, deadline=1.02)
    await core.run(call)
    assert (call.steps, call.over_at) == ([(0, "release"), (pytest.approx(1.01), "answer")], 2.5)
    assert core.recorder.counted("hook_calls", plugin="a", hook="PostStartContainer") == 1
    assert core.plugins.asked[0].timeout_seconds == 2.0


@virtual_time
async def test_an_answer_does_not_wait_for_an_earlier_calls_post_hooks_either() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1.5, points=("PostStartContainer",))
    first = core.start(FakeCall(START))
    await asyncio.sleep(0.5)
    behind = FakeCall(REMOVE, deadline=2.5, runtime_seconds=1.0)
    await core.run(behind)
    await first
    assert (behind.steps, behind.over_at) == ([(0.5, "release"), (2.0, "answer")], 2.0)


@virtual_time
async def test_nothing_is_answered_before_it_is_known() -> None:
    core = Core()
    hook = core.plugins.add("a", delay_seconds=9, timeout_seconds=9, points=("PreCreateContainer",))
    held = core.start(FakeCall(CREATE))
    await asyncio.sleep(0.5)
    core.plugins.plugins.clear()
    behind = FakeCall(CREATE, deadline=4.5)
    known: list[bool] = []
    behind.told = lambda: known.append(core.store.container("c1") is not None)
    await core.run(behind)
    assert (behind.steps[-1], known) == ((4.0, "answer"), [True])
    await held
    assert hook.asked


@pytest.mark.parametrize("told", [False, True])
@virtual_time
async def test_the_commit_is_there_when_the_next_call_is_read(told: bool) -> None:
    """Where nobody is told the answer goes first, but nothing else is looked at before the commit."""
    core = Core()
    if told:
        core.plugins.add("a", points=("PostStartContainer",))
    known: list[bool] = []

    def look() -> None:
        known.append(core.store.container("c1") is not None)

    def answered() -> None:
        look()
        asyncio.get_running_loop().call_soon(look)

    call = FakeCall(START)
    call.told = answered
    await core.run(call)
    assert known == [told, True]


@virtual_time
async def test_post_hooks_have_their_time_from_their_turn_on() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=100, timeout_seconds=10, points=("PostStartContainer",))
    core.plugins.add("b", points=("PostStopContainer",))
    first = core.start(FakeCall(START))
    await asyncio.sleep(0.5)
    await core.run(FakeCall(STOP, deadline=60.0))
    await first
    assert core.plugins.told() == [("a", "PostStartContainer"), ("b", "PostStopContainer")]


@pytest.mark.parametrize(("deadline", "told"), [(2.0, True), (0.0, True), (-1.0, True)])
@virtual_time
async def test_who_is_told_behind_the_answer_only_has_the_subject_read_in_the_holds_time(
    deadline: float, told: bool
) -> None:
    core = Core()
    core.plugins.add("a", points=("PostStopContainer",))
    await core.run(FakeCall(STOP, known=None, read=SUBJECT, read_seconds=0.9, deadline=deadline))
    assert bool(core.plugins.asked) is told


# -- a pod that is stopped several times ------------------------------------------------------------------------------

STOPPED = Subject(SUBJECT.pod)


async def stop_pod(core: Core) -> None:
    call = FakeCall(Operation.STOP_POD_SANDBOX, known=STOPPED, key="p1")
    assert (await core.run(call))[-1] == "answer"


@virtual_time
async def test_who_was_told_well_that_a_pod_was_stopped_is_not_told_again() -> None:
    core = Core()
    core.plugins.add("a")
    for _ in range(3):
        await stop_pod(core)
    assert core.plugins.told() == [("a", "PostStopPodSandbox")]
    core.plugins.add("late")
    await stop_pod(core)
    assert core.plugins.told() == [("a", "PostStopPodSandbox"), ("late", "PostStopPodSandbox")]


@virtual_time
async def test_who_failed_when_it_was_told_that_a_pod_was_stopped_is_told_again() -> None:
    core = Core()
    core.plugins.add("a")
    failing = core.plugins.add("b", Reason.ERROR_STATUS)
    await stop_pod(core)
    failing.behaviour = NOTHING
    for _ in range(2):
        await stop_pod(core)
    assert [plugin for plugin, _ in core.plugins.told()] == ["a", "b", "b"]


@virtual_time
async def test_a_pod_that_has_the_id_of_one_that_was_stopped_is_told_of() -> None:
    core = Core()
    core.plugins.add("a", points=("PostStopPodSandbox",))
    await stop_pod(core)
    await core.run(FakeCall(Operation.RUN_POD_SANDBOX, known=STOPPED, key="new"))
    await stop_pod(core)
    assert len(core.plugins.asked) == 2


@virtual_time
async def test_of_many_stopped_pods_the_oldest_may_be_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "STOPPED_PODS", 1)
    core = Core()
    core.plugins.add("a", points=("PostStopPodSandbox",))
    for pod_id in ("p1", "p2", "p2", "p1"):
        pod = replace(SUBJECT.pod.effective, id=pod_id)
        await core.run(FakeCall(Operation.STOP_POD_SANDBOX, known=Subject(PodRecord(pod, pod)), key=pod_id))
    assert [asked.request.pod.id for asked in core.plugins.asked] == ["p1", "p2", "p1"]
