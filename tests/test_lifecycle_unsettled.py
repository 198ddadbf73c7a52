"""Calls that end without the runtime's answer, and what others may know of calls while they are under way."""

import asyncio

import pytest

from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Unreadable
from runtimeproxy.hookpoints import HOOK_POINTS, Operation, Stage
from runtimeproxy.model import HookAnswer, Subject
from tests.fakes.calls import SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL

CREATE, START, UPDATE = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES
STOP, REMOVE = Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER
RUN_POD, STOP_POD, REMOVE_POD = Operation.RUN_POD_SANDBOX, Operation.STOP_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX

POD_SUBJECT = Subject(SUBJECT.pod)
CANARY = "canary-4711"
ENVS = HookAnswer(envs={"A": "1"})
POST_POINTS = [point for point in HOOK_POINTS if point.stage is Stage.POST]


# -- calls that the runtime has not answered -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "point"),
    [
        (START, "PostStartContainer"),
        (STOP, "PostStopContainer"),
        (CREATE, ""),
        (UPDATE, ""),
        (STOP_POD, "PostStopPodSandbox"),
        (RUN_POD, ""),
    ],
)
@virtual_time
async def test_what_the_runtime_did_without_an_answer_is_committed_and_told(operation: Operation, point: str) -> None:
    core = Core()
    core.plugins.add("a", ENVS)
    known = POD_SUBJECT if operation in (STOP_POD, RUN_POD) else SUBJECT
    call = FakeCall(operation, known, reply=UNANSWERED, fates=[UNANSWERED, DONE])
    await core.run(call)
    assert core.times.outcome == "unsettled"
    assert core.store.counts() == (0, 0)
    core.plugins.asked.clear()
    await asyncio.sleep(1)
    assert core.store.counts() == (1, 0 if known is POD_SUBJECT else 1)
    assert core.plugins.told() == ([("a", point)] if point else [])
    assert [step for _, step in call.steps].count("answer") == 1
    if operation is CREATE:
        record = core.store.container("c1")
        assert record is not None
        assert (record.original.envs, record.effective.envs) == ({}, {"A": "1"})


@pytest.mark.parametrize(("operation", "told"), [(STOP, ["a"]), (START, ["a", "a"])])
@virtual_time
async def test_a_stop_that_is_asked_for_again_is_told_of_once(operation: Operation, told: list[str]) -> None:
    core = Core()
    core.plugins.add("a", points=("PostStopContainer", "PostStartContainer"))
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE]))
    again = core.start(FakeCall(operation, runtime_seconds=0.2))
    await asyncio.sleep(300)
    assert again.done()
    assert [name for name, _ in core.plugins.told()] == told


@pytest.mark.parametrize("operation", [START, STOP, REMOVE])
@virtual_time
async def test_what_the_runtime_did_not_do_changes_nothing(operation: Operation) -> None:
    core = Core()
    core.store.commit(SUBJECT)
    before = core.store.snapshot()
    core.plugins.add("a", points=tuple(point.name for point in POST_POINTS))
    await core.run(FakeCall(operation, reply=UNANSWERED, fates=[UNANSWERED, NOT_DONE]))
    await asyncio.sleep(300)
    assert core.plugins.told() == []
    assert core.store.snapshot() == before


@pytest.mark.parametrize(
    ("operation", "known", "told", "left"),
    [
        (STOP, SUBJECT, [("a", "PostStopContainer")], (1, 0)),
        (REMOVE, SUBJECT, [], (1, 0)),
        (STOP_POD, POD_SUBJECT, [("a", "PostStopPodSandbox")], (0, 0)),
        (REMOVE_POD, POD_SUBJECT, [], (0, 0)),
    ],
)
@virtual_time
async def test_what_is_gone_is_told_and_forgotten(
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
async def test_a_repeated_stop_settles_the_first_one() -> None:
    core = Core()
    core.plugins.add("a")
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE], runtime_seconds=0.01))
    await core.run(FakeCall(STOP, runtime_seconds=0.01))
    await asyncio.sleep(300)
    assert core.plugins.told() == [("a", "PostStopContainer")]


@virtual_time
async def test_what_nobody_knew_is_not_settled() -> None:
    core = Core()
    call = FakeCall(STOP, None, reply=UNANSWERED)
    await core.run(call)
    await asyncio.sleep(300)
    assert [step for _, step in call.steps] == ["release", "answer"]


@pytest.mark.parametrize(
    ("error", "counter"), [(KeyError(CANARY), "internal_errors"), (Unreadable("no id"), "calls_unreadable")]
)
@virtual_time
async def test_what_fails_behind_an_answer_that_never_came_is_counted(
    error: Exception, counter: str, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.mark.parametrize(("operation", "kept"), [(START, 0), (UPDATE, 1)])
@virtual_time
async def test_what_nobody_is_sure_of_is_read_anew_once_the_runtime_did_it(operation: Operation, kept: int) -> None:
    """What was read of it meanwhile may be older than that; what an update names can be laid upon it."""
    core = Core()
    core.plugins.add("a")
    call = FakeCall(operation, reply=UNANSWERED, fates=[UNANSWERED, DONE])
    await core.run(call)
    call.unsure = True
    core.store.commit(SUBJECT)
    with core.store.watch() as watch:
        await asyncio.sleep(1)
    assert core.store.counts() == (1, kept)
    assert call.changed_by is not None
    assert watch.voided == {"c1"}


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
async def test_a_call_is_under_way_again_while_it_is_settled() -> None:
    core = Core()
    core.plugins.add("a", delay_seconds=1, points=("PostStopContainer",))
    await core.run(FakeCall(STOP, reply=UNANSWERED, fates=[DONE]))
    assert core.lifecycle.under_way() == set()
    await asyncio.sleep(0.5)
    assert core.lifecycle.under_way() == {"c1"}
    await asyncio.sleep(1)
    assert core.lifecycle.under_way() == set()


# -- what others may know of the calls -------------------------------------------------------------------------------


@virtual_time
async def test_what_calls_are_about_is_known_from_their_hold_to_their_answer() -> None:
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


@virtual_time
async def test_whether_any_hook_server_is_registered_is_known() -> None:
    core = Core()
    assert not core.lifecycle.hooked
    core.plugins.add("a", points=("PostStopPodSandbox",))
    assert core.lifecycle.hooked
