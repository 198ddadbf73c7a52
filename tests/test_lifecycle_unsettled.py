"""Calls that end without the runtime's answer, and what others know of calls under way (relay-rules C3)."""

import asyncio
from dataclasses import replace

import pytest

from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Reply, Unreadable
from runtimeproxy.hookpoints import HOOK_POINTS, Operation, Stage
from runtimeproxy.model import HookAnswer, Subject
from tests.fakes.calls import SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL

CREATE, START, UPDATE = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES
STOP, REMOVE = Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER
RUN_POD, STOP_POD, REMOVE_POD = Operation.RUN_POD_SANDBOX, Operation.STOP_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX
UPDATE_POD = Operation.UPDATE_POD_SANDBOX_RESOURCES

POD_SUBJECT = Subject(SUBJECT.pod)
REFUSED, FAULTLESS = Reply(agreed=False), Reply(agreed=False, faultless=True)
CANARY = "canary-4711"
ENVS = HookAnswer(envs={"A": "1"})
POST_POINTS = tuple(point.name for point in HOOK_POINTS if point.stage is Stage.POST)


@pytest.mark.parametrize(("operation", "known"), [(START, SUBJECT), (STOP, SUBJECT), (STOP_POD, POD_SUBJECT)])
@virtual_time
async def test_a_post_hook_owed_for_a_lost_answer_is_told(operation: Operation, known: Subject) -> None:
    core = Core()
    core.plugins.add("a", ENVS)
    call = FakeCall(operation, known, reply=UNANSWERED, fates=[UNANSWERED, DONE])
    await core.run(call)
    assert core.times.outcome == "unsettled"
    assert core.store.counts() == (0, 0)
    core.plugins.asked.clear()
    await asyncio.sleep(1)
    assert core.store.counts() == (1, 0 if known is POD_SUBJECT else 1)
    assert core.plugins.told() == [("a", f"Post{operation.value}")]
    assert [step for _, step in call.steps].count("answer") == 1


@pytest.mark.parametrize(
    ("operation", "known", "left"),
    [
        (RUN_POD, POD_SUBJECT, {"p1", "c1"}),
        (CREATE, SUBJECT, {"p1", "c1"}),
        (UPDATE, SUBJECT, {"p1"}),
        (REMOVE, SUBJECT, {"p1"}),
        (UPDATE_POD, POD_SUBJECT, {"c1"}),
        (REMOVE_POD, POD_SUBJECT, {"c1"}),
    ],
)
@virtual_time
async def test_a_lost_answer_has_the_subject_read_anew(operation: Operation, known: Subject, left: set[str]) -> None:
    """A create's subject has an id that nobody knows: another call for the same name keeps what it makes."""
    core = Core()
    lists: list[float] = []
    core.lifecycle.on_lost = lambda: lists.append(core.now)
    core.store.commit(SUBJECT)
    key = "p1" if known is POD_SUBJECT else "c1"
    other = FakeCall(STOP, key=key, runtime_seconds=5)
    running = core.start(other)
    lost = FakeCall(operation, known, key=key, reply=UNANSWERED)
    with core.store.watch() as watch:
        await core.run(lost)
    assert core.times.outcome == "unsettled"
    assert core.store.ids() == left
    assert watch.voided == {key}
    assert other.unsure == (operation not in (RUN_POD, CREATE))
    await asyncio.sleep(300)
    assert running.done()
    assert lists == [2.0], "a second behind the call's end"
    assert [step for _, step in lost.steps] == ["release", "answer"]
    assert core.recorder.total("unsettled") == 0


@pytest.mark.parametrize(("answer", "remembers"), [(HookAnswer(cgroup_parent="/hooked"), False), (ENVS, True)])
@virtual_time
async def test_a_lost_pod_that_a_hook_moved_is_not_taken_for_the_kubelets(answer: HookAnswer, remembers: bool) -> None:
    core = Core()
    core.store.remembers = True
    core.plugins.add("a", answer, points=("PreRunPodSandbox",))
    await core.run(FakeCall(RUN_POD, POD_SUBJECT, reply=UNANSWERED))
    assert core.store.remembers is remembers
    assert core.store.read_pod(replace(SUBJECT.pod.effective, cgroup_parent="/hooked")).read is not remembers


@virtual_time
async def test_a_start_settled_late_keeps_no_record_of_what_was_lost_since() -> None:
    core = Core()
    core.plugins.add("a", points=("PostStartContainer",))
    await core.run(FakeCall(START, reply=UNANSWERED, fates=[UNANSWERED, DONE]))
    await core.run(FakeCall(UPDATE, reply=UNANSWERED, runtime_seconds=0.2))
    await asyncio.sleep(300)
    assert core.plugins.told() == [("a", "PostStartContainer")]
    assert core.store.container("c1") is None


@pytest.mark.parametrize(("operation", "told"), [(STOP, ["a"]), (START, ["a", "a"])])
@virtual_time
async def test_a_stop_asked_for_again_is_told_of_once(operation: Operation, told: list[str]) -> None:
    core = Core()
    core.plugins.add("a", points=("PostStopContainer", "PostStartContainer"))
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE]))
    again = core.start(FakeCall(operation, runtime_seconds=0.2))
    await asyncio.sleep(300)
    assert again.done()
    assert [name for name, _ in core.plugins.told()] == told


@pytest.mark.parametrize("operation", [START, STOP])
@virtual_time
async def test_a_call_the_runtime_did_not_carry_out_changes_nothing(operation: Operation) -> None:
    core = Core()
    core.store.commit(SUBJECT)
    before = core.store.snapshot()
    core.plugins.add("a", points=POST_POINTS)
    await core.run(FakeCall(operation, reply=UNANSWERED, fates=[UNANSWERED, NOT_DONE]))
    await asyncio.sleep(300)
    assert core.plugins.told() == []
    assert core.store.snapshot() == before


@pytest.mark.parametrize(
    ("operation", "known", "told", "left"),
    [
        (STOP, SUBJECT, [("a", "PostStopContainer")], (1, 0)),
        (STOP_POD, POD_SUBJECT, [("a", "PostStopPodSandbox")], (0, 0)),
    ],
)
@virtual_time
async def test_a_stop_of_what_is_gone_is_told_and_forgotten(
    operation: Operation, known: Subject, told: list[tuple[str, str]], left: tuple[int, int]
) -> None:
    core = Core()
    core.store.commit(SUBJECT)
    core.plugins.add("a")
    await core.run(FakeCall(operation, known, reply=UNANSWERED, fates=[GONE]))
    await asyncio.sleep(1)
    assert core.plugins.told() == told
    assert core.store.counts() == left


@virtual_time
async def test_an_unknown_subject_is_not_settled() -> None:
    core = Core()
    call = FakeCall(STOP, None, reply=UNANSWERED)
    await core.run(call)
    await asyncio.sleep(300)
    assert [step for _, step in call.steps] == ["release", "answer"]


@pytest.mark.parametrize(
    ("error", "counter"), [(KeyError(CANARY), "internal_errors"), (Unreadable("no id"), "calls_unreadable")]
)
@virtual_time
async def test_a_fault_in_settling_is_counted(error: Exception, counter: str, caplog: pytest.LogCaptureFixture) -> None:
    core = Core()
    core.plugins.add("a")
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE], outcome_error=error))
    await asyncio.sleep(1)
    assert core.recorder.counted(counter, operation="StopContainer") == 1
    assert core.store.counts() == (0, 0)
    assert CANARY not in caplog.text


@virtual_time
async def test_after_the_end_nothing_is_settled() -> None:
    core = Core()
    core.plugins.add("a")
    call = FakeCall(STOP, reply=UNANSWERED, fates=[DONE])
    await core.run(call)
    await core.lifecycle.stop()
    await asyncio.sleep(300)
    assert [step for _, step in call.steps] == ["release", "answer"]


@virtual_time
async def test_a_call_is_under_way_again_while_it_is_settled() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1, points=("PostStopContainer",))
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE]))
    assert core.lifecycle.under_way() == set()
    await asyncio.sleep(0.5)
    assert core.lifecycle.under_way() == {"c1"}
    await asyncio.sleep(1)
    assert core.lifecycle.under_way() == set()


# -- what others may know of calls -------------------------------------------------------------------------------------


@virtual_time
async def test_calls_are_numbered_as_they_leave() -> None:
    core = Core()
    passed, held, refused, last = (FakeCall(STOP), FakeCall(START), FakeCall(CREATE), FakeCall(STOP))
    await core.run(passed)
    core.plugins.add("a", points=("PreStartContainer",))
    await core.run(held)
    core.plugins.add("b", KeyError(CANARY), points=("PreCreateContainer",), policy=FAIL)
    await core.run(refused)
    await core.run(last)
    assert [call.number for call in (passed, held, refused, last)] == [1, 2, 0, 3]


@virtual_time
async def test_a_calls_key_is_known_from_its_hold_to_its_answer() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1, points=("PreStartContainer", "PostStartContainer"))
    tasks = [core.start(FakeCall(START)), core.start(FakeCall(STOP, key="c2")), core.start(FakeCall(STOP, key="c2"))]
    tasks.append(core.start(FakeCall(STOP, key=Unreadable("cut"))))
    await asyncio.sleep(0)
    assert core.lifecycle.under_way() == {"c1", "c2"}
    await asyncio.sleep(2.5)
    assert core.lifecycle.under_way() == {"c1"}
    await asyncio.gather(*tasks)
    assert core.now == 3
    assert core.lifecycle.under_way() == set()


@virtual_time
async def test_a_call_that_ends_voids_what_was_read_meanwhile() -> None:
    core = Core()
    with core.store.watch() as watch:
        await core.run(FakeCall(STOP, None, key="c7"))
        await core.run(FakeCall(STOP, None, key=Unreadable("cut")))
        core.plugins.add("a", delay_seconds=1)
        held = core.start(FakeCall(START, key="c8"))
        await asyncio.sleep(0.5)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    assert watch.voided == {"c7", "c8"}
