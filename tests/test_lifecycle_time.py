"""The straight line in time: budgets, the end of a hold, and the order of calls (relay-rules C7)."""

import asyncio

import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookAnswer, Resources
from tests.fakes.calls import SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL

START, UPDATE, STOP = Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES, Operation.STOP_CONTAINER
ENVS = HookAnswer(envs={"A": "1"})


@pytest.mark.parametrize(
    ("deadline", "given_seconds"),
    [(None, 10.0), (60.0, 10.0), (20.0, 10.0), (8.0, 4.0), (0.5, 0.25)],
)
@virtual_time
async def test_the_budget_is_never_more_than_half_of_the_callers_time(
    deadline: float | None, given_seconds: float
) -> None:
    core = Core()
    for name in ("a", "b"):
        core.plugins.add(name, delay_seconds=100, timeout_seconds=100, points=("PreStartContainer",))
    await core.run(FakeCall(START, deadline=deadline))
    assert [asked.timeout_seconds for asked in core.plugins.asked] == [given_seconds / 2] * 2
    assert core.failures("a", "PreStartContainer", Reason.DEADLINE) == 1
    assert core.failures("b", "PreStartContainer", Reason.DEADLINE) == 1
    assert core.times.released == given_seconds


@pytest.mark.parametrize("point", ["PreStartContainer", "PostStartContainer"])
@pytest.mark.parametrize(
    ("timeouts", "deadline", "given_seconds"),
    [
        ((2, 2, 2), None, [2, 2, 2]),
        ((8, 2), None, [8, 2]),
        ((9, 2), None, [8, 2]),
        ((2, 2), 2.0, [0.5, 0.5]),
        ((0.25, 2), 2.0, [0.25, 0.75]),
        ((2,) * 6, None, [2, 2, 2, 2, 1, 1]),
        ((2,) * 12, None, [2, 2, 2, 2, 1, 0.5, 0.25, 0.125, *[pytest.approx(0, abs=0.07)] * 4]),
    ],
)
@virtual_time
async def test_a_hanging_hook_server_leaves_time_to_those_behind_it(
    timeouts: tuple[float, ...], deadline: float | None, given_seconds: list[float], point: str
) -> None:
    core = Core()
    for number, seconds in enumerate(timeouts):
        core.plugins.add(f"p{number}", delay_seconds=100, timeout_seconds=seconds, points=(point,))
    if point == "PostStartContainer" and deadline is not None:
        given_seconds = list(timeouts)  # nobody waits for these longer than that; they are told all the same
    await core.run(FakeCall(START, deadline=deadline))
    assert [asked.timeout_seconds for asked in core.plugins.asked] == given_seconds


@pytest.mark.parametrize("deadline", [0.0, -5.0])
@virtual_time
async def test_a_caller_without_time_has_post_hooks_only(deadline: float) -> None:
    core = Core()
    core.plugins.add("a", ENVS, delay_seconds=1)
    await core.run(FakeCall(START, deadline=deadline))
    assert core.plugins.told() == [("a", "PostStartContainer")]
    assert core.plugins.asked[0].timeout_seconds == 2.0
    assert core.times.released == 0


@virtual_time
async def test_reading_the_subject_is_paid_from_the_same_budget() -> None:
    core = Core()
    core.plugins.add("a", timeout_seconds=100, points=("PreStartContainer",))
    await core.run(FakeCall(START, known=None, read=SUBJECT, read_seconds=4))
    assert core.plugins.asked[0].timeout_seconds == 6.0


@virtual_time
async def test_a_subject_is_read_no_longer_than_the_budget() -> None:
    core = Core()
    core.plugins.add("a", points=("PreStartContainer",))
    call = FakeCall(START, known=None, read_seconds=1000, deadline=4.0)
    await core.run(call)
    assert call.steps[:2] == [(0, "read"), (2, "release")], "with time enough for the runtime to answer"
    assert core.failures("a", "PreStartContainer", Reason.DEADLINE) == 1


async def _hang(*_: object) -> HookAnswer:
    await asyncio.sleep(1000)
    return HookAnswer()


@virtual_time
async def test_a_hold_ends_a_second_after_its_budget_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    client = core.plugins.add("a", points=("PreStartContainer",))
    monkeypatch.setattr(client, "call", _hang)
    call = FakeCall(START)
    await core.run(call)
    assert call.steps[0] == (11, "release")
    assert core.failures("a", "PreStartContainer", Reason.DEADLINE) == 1


@pytest.mark.parametrize(("deadline", "released"), [(None, 10.5), (8.0, 4.5)])
@virtual_time
async def test_the_extra_update_ends_before_the_hold_does(deadline: float | None, released: float) -> None:
    core = Core()
    core.plugins.add("a", HookAnswer(resources=Resources(cpu_shares=2)), points=("PreStartContainer",))
    call = FakeCall(START, prepare_seconds=1000, deadline=deadline)
    await core.run(call)
    assert call.steps[:2] == [(0, "prepare"), (released, "release")]
    assert core.failures("a", "PreStartContainer", Reason.RUNTIME_REJECTED) == 1


@virtual_time
async def test_number_and_age_of_holds_are_known() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=2, points=("PreStartContainer",))
    assert core.lifecycle.holds() == (0, 0.0)
    first = core.start(FakeCall(START, key="c1"))
    await asyncio.sleep(1)
    second = core.start(FakeCall(START, key="c2"))
    await asyncio.sleep(0.5)
    assert core.lifecycle.holds() == (2, 1.5)
    await asyncio.sleep(1)
    assert core.lifecycle.holds() == (1, 1.5)
    await asyncio.gather(first, second)
    assert core.lifecycle.holds() == (0, 0.0)


@virtual_time
async def test_a_call_that_ends_while_held_cancels_its_pre_hooks() -> None:
    core = Core()
    client = core.plugins.add("a", delay_seconds=1, policy=FAIL)
    call = FakeCall(START)
    task = core.start(call)
    await asyncio.sleep(0.5)
    task.cancel()
    await task
    assert client.cancelled == 1
    assert call.steps == []
    assert core.times.outcome == "ended"
    assert core.recorder.counted("calls_ended", operation="StartContainer") == 1
    assert core.recorder.total("hook_failures") == 0
    assert core.lifecycle.holds() == (0, 0.0)
    assert core.store.counts() == (0, 0)
    await core.run(FakeCall(START))
    assert core.times.held == 0.5


# -- order and waiting -------------------------------------------------------------------------------------------------


@virtual_time
async def test_hooks_of_one_container_are_called_in_order() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1, points=("PreStartContainer", "PreUpdateContainerResources"))
    same = [FakeCall(START, key="c1"), FakeCall(UPDATE, key="c1")]
    other = FakeCall(UPDATE, key="c2")
    await asyncio.gather(*(core.start(call) for call in (*same, other)))
    released = {id(call): when for call in (*same, other) for when, step in call.steps if step == "release"}
    assert [released[id(call)] for call in (*same, other)] == [1, 2, 1]


@virtual_time
async def test_a_call_by_another_name_waits_for_its_turn_once_it_is_known() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1, points=("PreUpdateContainerResources",))
    first = core.start(FakeCall(UPDATE))
    named, behind = (
        FakeCall(UPDATE, known=None, read=SUBJECT, read_seconds=0.25, key="name", whole_key="c1", prepares=False)
        for _ in range(2)
    )
    await asyncio.gather(first, core.start(named), core.start(behind))
    assert named.steps[:2] == [(0, "read"), (2, "release")]
    assert behind.steps[:2] == [(0.25, "read"), (3, "release")]


@virtual_time
async def test_no_call_waits_for_another_calls_runtime_answer() -> None:
    core = Core()
    core.plugins.add("a")
    slow, quick = FakeCall(STOP, runtime_seconds=100), FakeCall(UPDATE)
    task = core.start(slow)
    await asyncio.sleep(1)
    await core.run(quick)
    assert core.now == 2
    await task
    assert core.plugins.told() == [("a", "PreUpdateContainerResources"), ("a", "PostStopContainer")]


@virtual_time
async def test_a_turn_is_waited_for_at_most_the_budget() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=9, timeout_seconds=9, points=("PreStartContainer",))
    core.plugins.add("b", points=("PreUpdateContainerResources",))
    first = core.start(FakeCall(START))
    await asyncio.sleep(0)
    hurried = FakeCall(UPDATE, deadline=4.0)
    await core.run(hurried)
    assert hurried.steps[-2] == (2, "release")
    assert core.failures("b", "PreUpdateContainerResources", Reason.DEADLINE) == 1
    await first


@virtual_time
async def test_a_commit_keeps_what_other_calls_committed_meanwhile() -> None:
    core = Core()
    core.store.commit(SUBJECT)
    core.plugins.add("a", HookAnswer(annotations={"A": "1"}), points=("PreUpdateContainerResources",))
    slow = core.start(FakeCall(STOP, runtime_seconds=5))
    await asyncio.sleep(1)
    await core.run(FakeCall(UPDATE))
    await slow
    record = core.store.container("c1")
    assert record is not None
    assert record.effective.annotations == {"A": "1"}
