"""PostStopContainer for containers that end without a StopContainer (hook-api, "Applied to")."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core.call import DONE, NOT_DONE, REMOVED, UNANSWERED, Life, Reply, Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.model.fields import ContainerRecord, PodRecord, Subject
from runtimeproxy.model.hookpoints import Operation
from tests.fakes.calls import AGREED, CONTAINER, POD, SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core

pytestmark = virtual_time

STOP, STOP_POD, REMOVE = Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX, Operation.REMOVE_CONTAINER
START, REMOVE_POD = Operation.START_CONTAINER, Operation.REMOVE_POD_SANDBOX
POD_SUBJECT = Subject(SUBJECT.pod)
NEVER_RAN, RUNS, ENDED = Life(started=False, running=False), Life(started=True, running=True), Life(True, False)
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture
REFUSED = Reply(agreed=False)
END, POD_END = ("a", "PostStopContainer"), ("a", "PostStopPodSandbox")


@pytest.fixture
def core() -> Core:
    made = Core()
    made.store.commit(SUBJECT)
    return made


def call(operation: Operation, lives: Life | Exception | None = ENDED, **fields: object) -> FakeCall:
    of_pod = operation in (STOP_POD, REMOVE_POD)
    return FakeCall(operation, POD_SUBJECT if of_pod else SUBJECT, key="p1" if of_pod else "c1", lives=lives, **fields)  # type: ignore[arg-type]


async def ended(core: Core, subject: Subject | None = SUBJECT) -> None:
    """Report the end of the container to the core; without a subject it runs again."""

    async def read() -> Subject | None:
        return subject

    await core.lifecycle.ended("c1", read)


Lives = Life | Exception | None
LIVES: list[tuple[Lives, bool, bool]] = [(ENDED, True, True), (RUNS, True, False), (NEVER_RAN, False, False)]
LIVES += [(None, True, True), (BackendError("away"), True, False), (Unreadable("broken"), True, False)]


@pytest.mark.parametrize(("lives", "removed", "pod_stopped"), LIVES)
async def test_end_of_started_container_is_reported_once(
    core: Core, lives: Lives, removed: bool, pod_stopped: bool
) -> None:
    """Without a reported state it may run until its remove; Docker's containers run on without their sandbox."""
    core.plugins.add("a")
    await core.run(call(STOP_POD, lives))
    assert core.plugins.notified() == [END] * pod_stopped + [POD_END], "the containers first"
    await core.run(call(REMOVE, lives))
    assert core.plugins.notified().count(END) == removed
    assert core.store.container("c1") is None


@pytest.mark.parametrize(("lives", "removed"), [*((lives, removed) for lives, removed, _ in LIVES), (ENDED, None)])
async def test_remove_reports_end_of_pod_without_stop(core: Core, lives: Lives, removed: bool | None) -> None:
    """CRI's RemovePodSandbox ends and removes the containers, too; dockerd's leaves them alone."""
    core.plugins.add("a")
    removes = call(REMOVE_POD, lives)
    removes.removes_containers = removed is not None
    await core.run(removes)
    assert core.plugins.notified() == [END] * bool(removed) + [POD_END]


async def test_reported_end_is_not_reported_again(core: Core) -> None:
    """dockerd 26 may report it only after its answer to the remove."""
    core.plugins.add("a")
    for operation in (STOP, STOP_POD, REMOVE, REMOVE_POD):
        await core.run(call(operation))
    await ended(core)
    assert core.plugins.notified() == [END, POD_END]


@pytest.mark.parametrize("stop", [{"runtime_seconds": 3.0}, {"reply": UNANSWERED, "outcomes": [UNANSWERED, REMOVED]}])
async def test_stop_answered_after_remove_is_not_reported_again(core: Core, stop: dict[str, Any]) -> None:
    core.plugins.add("a", points=("PostStopPodSandbox",))
    stops = core.start(call(STOP_POD, **stop))
    await asyncio.sleep(0.05)
    await core.run(call(REMOVE_POD))
    await asyncio.sleep(5)
    await stops
    assert core.plugins.notified() == [POD_END]


@pytest.mark.parametrize("operation", [STOP_POD, REMOVE_POD])
@pytest.mark.parametrize("seconds", [0.5, 100])
async def test_pod_end_waits_for_runtime_state(core: Core, operation: Operation, seconds: float) -> None:
    """After a start of the proxy the pod's containers are still being read; the wait ends with the budget."""
    core.plugins.add("a", points=("PostStopContainer",))
    core.store.drop("c1")
    core.lifecycle.state_read.clear()
    ends = call(operation)
    ends.removes_containers = True
    running = core.start(ends)
    await asyncio.sleep(seconds)
    core.store.commit(SUBJECT)
    core.lifecycle.state_read.set()
    await running
    assert core.plugins.notified() == [END] * (seconds < 10)
    assert ends.steps[0] == (min(seconds, 10.0), "release")


async def test_unread_runtime_state_delays_only_one_end(core: Core) -> None:
    """A call with a short deadline does not end the wait of the others."""
    core.plugins.add("a", points=("PostStopContainer",))
    core.lifecycle.state_read.clear()
    ends = [call(STOP_POD, deadline=2.0), call(STOP_POD), call(STOP_POD)]
    for stop in ends:
        await core.run(stop)
    released = [stop.steps[0] for stop in ends]
    assert released == [(1.0, "release"), (12.0, "release"), (13.0, "release")], "the runtime takes a second"


@pytest.mark.parametrize("operation", [REMOVE, STOP_POD])
async def test_silent_runtime_delays_end_at_most_by_budget(core: Core, operation: Operation) -> None:
    core.plugins.add("a", points=("PostStopContainer",))
    ended = call(operation, NEVER_RAN, read_seconds=100, deadline=4.0)
    await core.run(ended)
    assert core.plugins.notified() == [END] * (operation is REMOVE)
    assert dict(map(reversed, ended.steps))["answer"] <= 3.0  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [STOP, STOP_POD, REMOVE, REMOVE_POD])
@pytest.mark.parametrize("reply", [AGREED, REFUSED])
async def test_end_is_reported_only_after_runtime_agreed(core: Core, operation: Operation, reply: Reply) -> None:
    core.plugins.add("a", points=("PostStopContainer",))
    ends = call(operation, reply=reply)
    ends.removes_containers = True
    await core.run(ends)
    assert core.plugins.notified() == [END] * reply.agreed


async def test_end_is_not_reported_for_skipped_pod(core: Core) -> None:
    core.plugins.add("a")
    pod = replace(POD, labels={"skip": "true"})
    skipped = Subject(PodRecord(pod, pod), SUBJECT.container)
    core.store.commit(replace(skipped, renewed=True))
    await core.run(FakeCall(STOP_POD, Subject(skipped.pod), key="p1", lives=ENDED))
    await ended(core, skipped)
    await core.run(FakeCall(REMOVE, skipped, lives=ENDED))
    assert core.plugins.notified() == []


async def test_pod_stop_reports_containers_in_order(core: Core) -> None:
    """A hook server that hangs leaves the pod's own hook its time."""
    core.plugins.add("hangs", delay_seconds=100, points=("PostStopContainer",))
    core.plugins.add("a")
    for number in range(2, 9):
        container = replace(CONTAINER, id=f"c{number}")
        core.store.commit(Subject(SUBJECT.pod, ContainerRecord(container, container)))
    await core.run(call(STOP_POD))
    notified = [queried.request.container for queried in core.plugins.queried if queried.plugin == "a"]
    assert [container and container.id for container in notified] == [*(f"c{number}" for number in range(1, 9)), None]
    assert core.plugins.queried[-1].timeout_seconds == 2.0


@pytest.mark.parametrize("operation", [REMOVE, STOP_POD, REMOVE_POD])
@pytest.mark.parametrize("final_reply", [REMOVED, NOT_DONE])
async def test_end_is_reported_after_lost_reply(core: Core, operation: Operation, final_reply: Reply) -> None:
    core.plugins.add("a", points=("PostStopContainer",))
    lost = call(
        operation, None if final_reply is REMOVED else ENDED, reply=UNANSWERED, outcomes=[UNANSWERED, final_reply]
    )
    lost.removes_containers = True
    await core.run(lost)
    assert core.plugins.notified() == []
    await asyncio.sleep(1)
    assert core.plugins.notified() == [END] * (final_reply is REMOVED)


@pytest.mark.parametrize("after", [0.5, 1.1])
async def test_end_without_call_keeps_queue_order(core: Core, after: float) -> None:
    """The event of a container that ends immediately may precede the answer to its start."""
    core.plugins.add("a", delay_seconds=0.5, points=("PostStopContainer", "PostStartContainer"))
    starts = core.start(call(START))
    await asyncio.sleep(after)
    await asyncio.gather(ended(core), ended(core), starts)
    await core.run(call(STOP))
    assert core.plugins.notified() == [("a", "PostStartContainer"), END]
    core.lifecycle.forget_stop("c1")
    await ended(core, None)
    await ended(core)
    await core.run(call(START))
    await core.run(call(STOP))
    assert core.plugins.notified().count(END) == 3, "once for each start"


@pytest.mark.parametrize(("final_reply", "started"), [(DONE, True), (UNANSWERED, False)])
async def test_end_after_lost_start_is_reported_after_start(core: Core, final_reply: Reply, started: bool) -> None:
    """dockerd may report the end before it answers whether the container was started."""
    core.plugins.add("a", points=("PostStartContainer", "PostStopContainer"))
    await core.run(call(START, reply=UNANSWERED, outcomes=[UNANSWERED, final_reply]))
    await ended(core)
    assert core.plugins.notified() == [("a", "PostStartContainer")] * started + [END]


async def test_failed_report_of_end_is_internal_error(core: Core, caplog: Log) -> None:
    core.plugins.add("a", RuntimeError(CANARY), points=("PostStopContainer",))
    await ended(core)
    assert core.metrics.counted("internal_errors", operation="StopContainer") == 1
    assert CANARY not in caplog.text


async def test_no_end_is_pending_during_stop(core: Core) -> None:
    assert not core.lifecycle.has_pending_end("c1")
    core.plugins.add("a", points=("PostStopContainer",))
    stops = core.start(call(STOP))
    await asyncio.sleep(0.5)
    assert not core.lifecycle.has_pending_end("c1")
    assert core.lifecycle.has_pending_end("c2")
    await stops
    assert not core.lifecycle.has_pending_end("c1")
