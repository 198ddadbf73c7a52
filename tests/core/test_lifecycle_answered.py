"""The course of a call after the runtime's answer: commit, Post hooks, the reply; and without one (relay-rules C3).

PostStopContainer for containers that end without a StopContainer: hook-api, "Applied to".
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core import dispatcher
from runtimeproxy.core.call import DONE, NOT_DONE, REMOVED, UNANSWERED, Life, Reply, Unreadable
from runtimeproxy.core.dispatcher import FIELDS_SHOWN
from runtimeproxy.errors import BackendError, Reason
from runtimeproxy.model.fields import ContainerRecord, HookAnswer, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import HOOK_POINTS, Operation, Stage
from tests.fakes.calls import AGREED, CONTAINER, POD, SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL, NOTHING
from tests.observe.events import shown_of

pytestmark = virtual_time

CREATE, START, UPDATE = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES
STOP, REMOVE = Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER
RUN_POD, STOP_POD, REMOVE_POD = Operation.RUN_POD_SANDBOX, Operation.STOP_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX
UPDATE_POD = Operation.UPDATE_POD_SANDBOX_RESOURCES
POST_POINTS = tuple(hook_point.name for hook_point in HOOK_POINTS if hook_point.stage is Stage.POST)
STARTED, STOPPED, POD_STOPPED = (f"Post{operation.value}" for operation in (START, STOP, STOP_POD))

POD_SUBJECT = Subject(SUBJECT.pod)
REFUSED, FAULTLESS = Reply(agreed=False), Reply(agreed=False, no_op=True)
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture
ENVS = HookAnswer(envs={"A": "1"})

NEVER_RAN, RUNS, ENDED = Life(started=False, running=False), Life(started=True, running=True), Life(True, False)
Lives = Life | Exception | None
Counts = tuple[int, int]


@pytest.fixture
def core() -> Core:
    return Core()


def call(operation: Operation, lives: Lives = ENDED, *, removes: bool = True, **fields: Any) -> FakeCall:
    of_pod = operation.value.endswith(("PodSandbox", "PodSandboxResources"))
    made = FakeCall(operation, POD_SUBJECT if of_pod else SUBJECT, key="p1" if of_pod else "c1", lives=lives, **fields)
    made.removes_containers = removes
    return made


NOT_AGREED = [(operation, REFUSED, "failed") for operation in (CREATE, REMOVE)]
NOT_AGREED += [(operation, UNANSWERED, "unsettled") for operation in (CREATE, START)]


@pytest.mark.parametrize(("operation", "reply", "outcome"), NOT_AGREED)
async def test_nothing_is_committed_unless_agreed(core: Core, operation: Operation, reply: Reply, outcome: str) -> None:
    """Also if a later query returns that the runtime has not carried it out."""
    core.store.commit(SUBJECT)
    before = core.store.snapshot()
    core.plugins.add("a", ENVS, points=POST_POINTS)
    assert await core.run(call(operation, reply=reply, outcomes=[UNANSWERED, NOT_DONE])) == ["release", "answer"]
    assert core.times.outcome == outcome
    assert core.metrics.counted("calls", operation=operation.value, outcome=outcome) == 1
    await asyncio.sleep(300)
    assert (core.plugins.notified(), core.store.snapshot()) == ([], before)


@pytest.mark.parametrize(("operation", "counts"), [(REMOVE, (1, 0)), (REMOVE_POD, (0, 0)), (STOP_POD, (1, 1))])
async def test_record_is_kept_until_remove(core: Core, operation: Operation, counts: Counts) -> None:
    """An earlier call restores no record."""
    core.store.commit(SUBJECT)
    stop = core.start(FakeCall(STOP, runtime_seconds=5))
    await asyncio.sleep(1)
    await core.run(call(operation))
    assert core.store.counts() == counts
    await stop
    assert core.store.counts() == counts
    await core.run(FakeCall(START))
    assert core.store.counts() == (1, 1), "the runtime uses the id again"


@pytest.mark.parametrize("reply", [AGREED, UNANSWERED])
@pytest.mark.parametrize("error", [Unreadable("cut"), KeyError(CANARY)])
async def test_reply_is_sent_despite_later_failures(core: Core, error: Exception, reply: Reply, caplog: Log) -> None:
    """Also if a later query returns the outcome."""
    call = FakeCall(STOP, reply=reply, outcome_error=error, outcomes=[DONE])
    assert await core.run(call) == ["release", "answer"]
    await asyncio.sleep(1)
    cut = isinstance(error, Unreadable)
    assert core.metrics.counted("calls_unreadable" if cut else "internal_errors", operation=STOP.value) == 1
    assert core.store.counts() == (0, 0)
    text = "StopContainer cannot be read: cut" if cut else "internal error in StopContainer: KeyError at "
    assert (text in caplog.text, CANARY in caplog.text) == (True, False)


async def test_reply_waits_at_most_half_of_caller_deadline(core: Core) -> None:
    """A Post hook has its own time in addition (relay-rules C2), from its position at the head of the queue."""
    core.plugins.add("a", delay_seconds=100, timeout_seconds=10, points=(STARTED,))
    core.plugins.add("b", points=(STOPPED,))
    first = core.start(start := FakeCall(START, deadline=2.0))
    await asyncio.sleep(0.5)
    await core.run(FakeCall(STOP, deadline=60.0))
    await first
    assert (start.steps, start.over_at) == ([(0, "release"), (pytest.approx(1.5), "answer")], 11)
    assert core.plugins.queried[0].timeout_seconds == 10.0
    assert core.failures("a", STARTED, Reason.DEADLINE) == 1
    assert core.plugins.notified() == [("a", STARTED), ("b", STOPPED)]


@pytest.mark.parametrize(("deadline", "seconds", "answer"), [(2.5, 1.0, 2.0), (0.7, 0.5, 2.5)])
async def test_reply_waits_for_earlier_post_hooks(core: Core, deadline: float, seconds: float, answer: float) -> None:
    """At most half of the caller's time; once the deadline has passed, until the earlier call is done."""
    core.plugins.add("a", delay_seconds=1.5, points=(STARTED,))
    first = core.start(FakeCall(START))
    await asyncio.sleep(0.5)
    await core.run(later := FakeCall(REMOVE, deadline=deadline, runtime_seconds=seconds))
    await first
    assert (later.steps, later.over_at) == ([(0.5, "release"), (answer, "answer")], answer)


@pytest.mark.parametrize("notified", [False, True])
async def test_commit_precedes_next_read(core: Core, notified: bool) -> None:
    """If no Post hook is called the answer goes first, but the commit follows before anything else is processed."""
    if notified:
        core.plugins.add("a", points=(STARTED,))
    committed: list[bool] = []

    def inspect(again: bool) -> None:
        committed.append(core.store.container("c1") is not None)
        if again:
            asyncio.get_running_loop().call_soon(inspect, False)

    start = FakeCall(START)
    start.notified = lambda: inspect(True)
    await core.run(start)
    assert committed == [notified, True]
    core.store.drop("c1")
    core.plugins.plugins.clear()
    core.plugins.add("a", delay_seconds=9, timeout_seconds=9, points=("PreCreateContainer",))
    held = core.start(FakeCall(CREATE))
    await asyncio.sleep(0.5)
    core.plugins.plugins.clear()
    following, began = FakeCall(CREATE, deadline=core.now + 4), core.now
    following.notified = lambda: committed.append(core.store.container("c1") is not None)
    await core.run(following)
    assert (following.steps[-1], committed[2:]) == ((began + 3.5, "answer"), [True]), "a create waits for its commit"
    await held


@pytest.mark.parametrize("deadline", [2.0, 0.0, -1.0])
async def test_subject_for_post_hooks_is_read_during_hold(core: Core, deadline: float) -> None:
    """If that fails, so do the Post hooks."""
    core.plugins.add("a", points=(STOPPED,), policy=FAIL)
    await core.run(FakeCall(STOP, known=None, read=SUBJECT, read_seconds=0.9, deadline=deadline))
    assert len(core.plugins.queried) == 1
    away = FakeCall(STOP, known=None, read=BackendError("away"), deadline=deadline)
    assert await core.run(away) == ["read", "release", "answer"]
    assert (core.failures("a", STOPPED, Reason.UNREADABLE), core.fail_open()) == (1, 0)


async def called_for_stop(core: Core, pod_id: str = "p1") -> list[str]:
    core.plugins.queried.clear()
    pod = replace(SUBJECT.pod.effective, id=pod_id)
    await core.run(FakeCall(STOP_POD, known=Subject(PodRecord(pod, pod)), key=pod_id))
    return [queried.plugin for queried in core.plugins.queried]


async def test_pod_stop_is_repeated_for_unnotified_plugins(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the oldest of many stopped pods."""
    core.plugins.add("a")
    failing = core.plugins.add("failing", Reason.ERROR_STATUS, points=(POD_STOPPED,))
    assert await called_for_stop(core) == ["a", "failing"]
    failing.behaviour = NOTHING
    assert await called_for_stop(core) == ["failing"]
    assert await called_for_stop(core) == []
    core.plugins.add("late")
    assert await called_for_stop(core) == ["late"]
    await core.run(FakeCall(RUN_POD, known=POD_SUBJECT, key="new"))
    assert await called_for_stop(core) == ["a", "failing", "late"], "a new pod has the id"
    monkeypatch.setattr(dispatcher, "MAX_STOPPED", 1)
    notified = [bool(await called_for_stop(core, pod_id)) for pod_id in ("p1", "p2", "p2", "p1")]
    assert notified == [False, True, False, True]


HOOKED = replace(CONTAINER, envs={"A": CANARY}, resources=Resources(cpuset_cpus="77"))
HOOKED_SUBJECT = Subject(SUBJECT.pod, ContainerRecord(CONTAINER, HOOKED, (("cpuset_cpus", "b"),)))
EARLIER = "envs.A (at an earlier call), resources.cpuset_cpus (b)"
FAILED = [(CREATE, REFUSED, "envs.A (a), resources.cpuset_cpus (b)"), (CREATE, AGREED, ""), (CREATE, FAULTLESS, "")]


@pytest.mark.parametrize(("operation", "reply", "fields"), [*FAILED, (START, REFUSED, EARLIER), (STOP, REFUSED, "")])
async def test_failure_logs_fields(core: Core, operation: Operation, reply: Reply, fields: str, caplog: Log) -> None:
    """A failed start with those of its create, whose values the kernel may not accept."""
    core.plugins.add("a", HookAnswer(envs={"A": CANARY}), points=("PreCreateContainer",))
    core.plugins.add("b", HookAnswer(resources=Resources(cpuset_cpus="77")), points=("PreCreateContainer",))
    await core.run(FakeCall(operation, SUBJECT if operation is CREATE else HOOKED_SUBJECT, reply=reply))
    text = f"{operation.value} of /web/main failed in the runtime; hook servers had set {fields}"
    assert caplog.messages == ([text] if fields else [])
    core.plugins.plugins.clear()
    core.plugins.add("a", HookAnswer(envs={f"E{number:03d}": CANARY for number in range(FIELDS_SHOWN + 5)}))
    await core.run(FakeCall(CREATE, reply=REFUSED))
    line = caplog.messages[-1]
    assert (line.count("(a)"), line[-8:]) == (FIELDS_SHOWN, ", 5 more"), "the length of a line is bounded"
    assert CANARY not in caplog.text


LOST_REPLIES = [(START, DONE, (1, 1)), (STOP_POD, DONE, (1, 0)), (STOP, REMOVED, (1, 0)), (STOP_POD, REMOVED, (0, 0))]


@pytest.mark.parametrize(("operation", "final", "counts"), LOST_REPLIES)
async def test_post_hook_follows_lost_reply(core: Core, operation: Operation, final: Reply, counts: Counts) -> None:
    """Then the subject is committed, or dropped if it no longer exists; meanwhile the call is under way again."""
    core.plugins.add("a", ENVS, points=POST_POINTS, delay_seconds=0.5)
    if final is REMOVED:
        core.store.commit(SUBJECT)
    before, lost = core.store.counts(), call(operation, reply=UNANSWERED, outcomes=[UNANSWERED, final])
    await core.run(lost)
    assert (core.times.outcome, core.store.counts(), core.plugins.notified()) == ("unsettled", before, [])
    assert core.lifecycle.open_calls.subjects() == set()
    await asyncio.sleep(0.6)
    assert core.lifecycle.open_calls.subjects() == {lost.key}
    await asyncio.sleep(1)
    assert (core.store.counts(), core.lifecycle.open_calls.subjects()) == (counts, set())
    its_container = [("a", STOPPED)] if (operation, final) == (STOP_POD, REMOVED) else []
    assert core.plugins.notified() == [*its_container, ("a", f"Post{operation.value}")]
    assert [step for _, step in lost.steps].count("answer") == 1


LOST = [(RUN_POD, {"p1", "c1"}), (CREATE, {"p1", "c1"}), *((operation, {"p1"}) for operation in (UPDATE, REMOVE))]
LOST += [(operation, {"c1"}) for operation in (UPDATE_POD, REMOVE_POD)]


@pytest.mark.parametrize(("operation", "remaining"), LOST)
async def test_lost_reply_drops_record(core: Core, operation: Operation, remaining: set[str]) -> None:
    """A create's subject has an unknown id: another call for the same name keeps what it creates."""
    lists: list[float] = []
    core.lifecycle.on_lost = lambda: lists.append(core.now)
    core.store.commit(SUBJECT)
    lost = call(operation, reply=UNANSWERED)
    running = core.start(concurrent := FakeCall(STOP, key=lost.key, runtime_seconds=5))
    with core.store.watch() as watch:
        await core.run(lost)
    assert core.times.outcome == "unsettled"
    assert (core.store.ids(), watch.invalidated) == (remaining, {lost.key})
    assert concurrent.state_unknown == (operation not in (RUN_POD, CREATE))
    await asyncio.sleep(300)
    assert (running.done(), lists) == (True, [2.0]), "a second after the call's end"
    assert [step for _, step in lost.steps] == ["release", "answer"]
    assert core.metrics.total("unknown_outcomes") == 0


REPORTED = replace(CONTAINER, envs={"A": "1"})
READ_RECORD = ContainerRecord(REPORTED, REPORTED, read=True)
HAS_A = HookAnswer(envs={"A": "1", "B": "2"})
"""Sets one variable that ``REPORTED`` has, and one that it lacks."""
READ_FIRST, ANSWERED_FIRST = ["release", "read", "answer"], ["release", "answer", "read"]


def edits(core: Core) -> list[str]:
    edited = [event for event in shown_of(core.metrics.events) if event["kind"] == "edited"]
    return [entry["field"] for event in edited for entry in event["fields"]]


@pytest.mark.parametrize("earlier", ["lost", "lost, in an unknown pod", "known", "of an earlier process"])
async def test_create_repeating_earlier_call_is_reread(core: Core, earlier: str, caplog: Log) -> None:
    core.plugins.add("a", HAS_A)
    if earlier.startswith("lost"):
        await core.run(FakeCall(CREATE, SUBJECT if earlier == "lost" else None, reply=UNANSWERED))
    elif earlier == "known":
        core.store.commit(SUBJECT)
    repeats = earlier == "of an earlier process"
    again = FakeCall(CREATE, made=READ_RECORD, read_seconds=0.5, prepares=False, repeats=repeats)
    assert await core.run(again) == (ANSWERED_FIRST if earlier == "known" else READ_FIRST)
    assert core.store.container("c1") == ContainerRecord(CONTAINER, REPORTED)
    assert edits(core) == ["envs.A"]
    assert [line.partition(" without ")[2] for line in caplog.messages] == ["envs.B (a) that hook servers set"]


CANNOT_BE_READ = [None, BackendError("away"), Unreadable("cut"), KeyError(CANARY)]


@pytest.mark.parametrize(("made", "seconds"), [*[(made, 0.0) for made in CANNOT_BE_READ], (READ_RECORD, 100.0)])
async def test_unreadable_earlier_create_has_no_record(core: Core, made: Any, seconds: float) -> None:
    """The kubelet's values of fields that hooks have set are retained."""
    core.plugins.add("a", HookAnswer(annotations={"a": "1"}))
    await core.run(FakeCall(CREATE, reply=UNANSWERED))
    again = FakeCall(CREATE, made=made, read_seconds=seconds, prepares=False)
    assert await core.run(again) == READ_FIRST
    assert (core.store.container("c1"), again.state_unknown, edits(core)) == (None, True, [])
    assert core.store.ids_of_originals() == {"c1"}


PARENT = HookAnswer(cgroup_parent="/hooked")
LOST_PODS = [(RUN_POD, PARENT, False), (RUN_POD, HookAnswer(labels={"a": "1"}), False), (RUN_POD, ENVS, True)]


@pytest.mark.parametrize(("operation", "answer", "remembers"), [*LOST_PODS, (CREATE, PARENT, True)])
async def test_lost_hooked_pod_is_marked(core: Core, operation: Operation, answer: HookAnswer, remembers: bool) -> None:
    """One that cannot be read keeps no cgroup parent of a hook: a create without the hook may have made it."""
    core.store.remembers = True
    core.plugins.add("a", answer)
    await core.run(call(operation, reply=UNANSWERED))
    assert core.store.read_pod(SUBJECT.pod.effective).read is not remembers
    original, sent = (replace(POD, cgroup_parent=parent) for parent in ("/kube", "/hooked"))
    pod = Subject(PodRecord(original, replace(sent, labels={"h": "1"})))
    await core.run(FakeCall(RUN_POD, pod, made=None, repeats=True))
    reported = replace(original, cgroup_parent=None, labels={"h": "1"})
    assert core.store.read_pod(reported) == PodRecord(replace(reported, labels=original.labels), reported)


@pytest.mark.parametrize(("operation", "times"), [(STOP, 1), (START, 2)])
async def test_settled_call_is_reported_once(core: Core, operation: Operation, times: int) -> None:
    """A settled start restores no record that was dropped meanwhile; a repeated stop replaces an unsettled one."""
    core.plugins.add("a", points=(STOPPED, STARTED))
    await core.run(FakeCall(START, reply=UNANSWERED, outcomes=[UNANSWERED, DONE]))
    await core.run(FakeCall(UPDATE, reply=UNANSWERED, runtime_seconds=0.2))
    await asyncio.sleep(300)
    assert (core.plugins.notified(), core.store.container("c1")) == ([("a", STARTED)], None)
    await core.run(FakeCall(STOP, reply=UNANSWERED, outcomes=[DONE]))
    core.start(FakeCall(operation, runtime_seconds=0.2))
    await asyncio.sleep(300)
    assert (len(core.plugins.notified()), core.lifecycle.open_calls.calls()) == (1 + times, [])


@pytest.mark.parametrize("subject", [None, SUBJECT])
async def test_no_query_for_unknown_subject_or_after_stop(core: Core, subject: Subject | None) -> None:
    await core.run(lost := FakeCall(STOP, subject, reply=UNANSWERED, outcomes=[DONE]))
    if subject is not None:
        await core.lifecycle.open_calls.stop()
    await asyncio.sleep(300)
    assert [step for _, step in lost.steps] == ["release", "answer"]


async def test_calls_are_numbered_in_order_of_release(core: Core) -> None:
    calls = [FakeCall(STOP), FakeCall(CREATE), FakeCall(STOP)]
    core.plugins.add("b", KeyError(CANARY), points=("PreCreateContainer",), policy=FAIL)
    for call in calls:
        await core.run(call)
    assert [call.number for call in calls] == [1, 0, 2], "a refused call has no number"


async def test_call_end_invalidates_concurrent_reads(core: Core) -> None:
    with core.store.watch() as watch:
        await core.run(FakeCall(STOP, None, key="c7"))
        await core.run(FakeCall(STOP, None, key=Unreadable("cut")))
        core.plugins.add("a", delay_seconds=1)
        held = core.start(FakeCall(START, key="c8"))
        await asyncio.sleep(0.5)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    assert watch.invalidated == {"c7", "c8"}


# -- containers that end without a StopContainer ----------------------------------------------------------------------

END, POD_END = ("a", STOPPED), ("a", POD_STOPPED)


@pytest.fixture
def known(core: Core) -> Core:
    core.store.commit(SUBJECT)
    return core


async def ended(known: Core, subject: Subject | None = SUBJECT) -> None:
    """Report the end of the container to the core; without a subject it runs again."""

    async def read() -> Subject | None:
        return subject

    await known.lifecycle.ended("c1", read)


LIVES: list[tuple[Lives, bool, bool]] = [(ENDED, True, True), (RUNS, True, False), (NEVER_RAN, False, False)]
LIVES += [(None, True, True), (BackendError("away"), True, False), (Unreadable("broken"), True, False)]


@pytest.mark.parametrize(("lives", "removed", "pod_stopped"), LIVES)
async def test_end_of_container_is_reported_once(known: Core, lives: Lives, removed: bool, pod_stopped: bool) -> None:
    """Without a reported state it may run until its remove; Docker's containers run on without their sandbox."""
    known.plugins.add("a")
    await known.run(call(STOP_POD, lives))
    assert known.plugins.notified() == [END] * pod_stopped + [POD_END], "the containers first"
    await known.run(call(REMOVE, lives))
    assert known.plugins.notified().count(END) == removed
    assert known.store.container("c1") is None


@pytest.mark.parametrize(("lives", "removed"), [*((lives, removed) for lives, removed, _ in LIVES), (ENDED, None)])
async def test_remove_reports_end_of_pod_without_stop(known: Core, lives: Lives, removed: bool | None) -> None:
    """CRI's RemovePodSandbox ends and removes the containers, too; dockerd's leaves them alone."""
    known.plugins.add("a")
    await known.run(call(REMOVE_POD, lives, removes=removed is not None))
    assert known.plugins.notified() == [END] * bool(removed) + [POD_END]


async def test_reported_end_is_not_reported_again(known: Core) -> None:
    """dockerd 26 may report it only after its answer to the remove."""
    known.plugins.add("a")
    for operation in (STOP, STOP_POD, REMOVE, REMOVE_POD):
        await known.run(call(operation))
    await ended(known)
    assert known.plugins.notified() == [END, POD_END]
    for stop in ({"runtime_seconds": 3.0}, {"reply": UNANSWERED, "outcomes": [UNANSWERED, REMOVED]}):
        core = Core()
        core.plugins.add("a", points=(POD_STOPPED,))
        stops = core.start(call(STOP_POD, **stop))
        await asyncio.sleep(0.05)
        await core.run(call(REMOVE_POD))
        await asyncio.sleep(5)
        await stops
        assert core.plugins.notified() == [POD_END], "the stop is answered after the remove"


@pytest.mark.parametrize("operation", [STOP_POD, REMOVE_POD])
@pytest.mark.parametrize("seconds", [0.5, 100])
async def test_pod_end_waits_for_runtime_state(known: Core, operation: Operation, seconds: float) -> None:
    """After a start of the proxy the pod's containers are still being read; the wait ends with the budget."""
    known.plugins.add("a", points=(STOPPED,))
    known.store.drop("c1")
    known.lifecycle.state_read.clear()
    running = known.start(ends := call(operation))
    await asyncio.sleep(seconds)
    known.store.commit(SUBJECT)
    known.lifecycle.state_read.set()
    await running
    assert known.plugins.notified() == [END] * (seconds < 10)
    assert ends.steps[0] == (min(seconds, 10.0), "release")


async def test_unread_runtime_state_delays_only_one_end(known: Core) -> None:
    """A call with a short deadline does not end the wait of the others."""
    known.plugins.add("a", points=(STOPPED,))
    known.lifecycle.state_read.clear()
    ends = [call(STOP_POD, deadline=2.0), call(STOP_POD), call(STOP_POD)]
    for stop in ends:
        await known.run(stop)
    released = [stop.steps[0] for stop in ends]
    assert released == [(1.0, "release"), (12.0, "release"), (13.0, "release")], "the runtime takes a second"


@pytest.mark.parametrize("operation", [REMOVE, STOP_POD])
async def test_silent_runtime_delays_end_at_most_by_budget(known: Core, operation: Operation) -> None:
    known.plugins.add("a", points=(STOPPED,))
    await known.run(ends := call(operation, NEVER_RAN, read_seconds=100, deadline=4.0))
    assert known.plugins.notified() == [END] * (operation is REMOVE)
    assert ends.steps[-1][0] <= 3.0


REPLIES = [(AGREED, DONE, True), (REFUSED, DONE, False), (UNANSWERED, REMOVED, True), (UNANSWERED, NOT_DONE, False)]


@pytest.mark.parametrize("operation", [STOP, STOP_POD, REMOVE, REMOVE_POD])
async def test_end_is_reported_only_after_runtime_agreed(operation: Operation) -> None:
    """Also if only a later query returns that it did."""
    for reply, final, reported in REPLIES:
        core = Core()
        core.store.commit(SUBJECT)
        core.plugins.add("a", points=(STOPPED,))
        lives = None if final is REMOVED else ENDED
        await core.run(call(operation, lives, reply=reply, outcomes=[UNANSWERED, final]))
        assert core.plugins.notified() == [END] * (reply is AGREED)
        await asyncio.sleep(1)
        assert core.plugins.notified() == [END] * reported, (reply, final)


async def test_end_is_not_reported_for_skipped_pod(known: Core) -> None:
    known.plugins.add("a")
    pod = replace(POD, labels={"skip": "true"})
    skipped = Subject(PodRecord(pod, pod), SUBJECT.container)
    known.store.commit(replace(skipped, renewed=True))
    await known.run(FakeCall(STOP_POD, Subject(skipped.pod), key="p1", lives=ENDED))
    await ended(known, skipped)
    await known.run(FakeCall(REMOVE, skipped, lives=ENDED))
    assert known.plugins.notified() == []


async def test_pod_stop_reports_containers_in_order(known: Core) -> None:
    """A hook server that hangs leaves the pod's own hook its time."""
    known.plugins.add("hangs", delay_seconds=100, points=(STOPPED,))
    known.plugins.add("a")
    for number in range(2, 9):
        container = replace(CONTAINER, id=f"c{number}")
        known.store.commit(Subject(SUBJECT.pod, ContainerRecord(container, container)))
    await known.run(call(STOP_POD))
    notified = [queried.request.container for queried in known.plugins.queried if queried.plugin == "a"]
    assert [container and container.id for container in notified] == [*(f"c{number}" for number in range(1, 9)), None]
    assert known.plugins.queried[-1].timeout_seconds == 2.0


@pytest.mark.parametrize("after", [0.5, 1.1])
async def test_end_without_call_keeps_queue_order(known: Core, after: float) -> None:
    """The event of a container that ends immediately may precede the answer to its start."""
    known.plugins.add("a", delay_seconds=0.5, points=(STOPPED, STARTED))
    starts = known.start(call(START))
    await asyncio.sleep(after)
    await asyncio.gather(ended(known), ended(known), starts)
    await known.run(call(STOP))
    assert known.plugins.notified() == [("a", STARTED), END]
    known.lifecycle.forget_stop("c1")
    await ended(known, None)
    await ended(known)
    await known.run(call(START))
    await known.run(call(STOP))
    assert known.plugins.notified().count(END) == 3, "once for each start"


@pytest.mark.parametrize(("final_reply", "started"), [(DONE, True), (UNANSWERED, False)])
async def test_end_after_lost_start_is_reported_after_start(known: Core, final_reply: Reply, started: bool) -> None:
    """dockerd may report the end before it answers whether the container was started."""
    known.plugins.add("a", points=(STARTED, STOPPED))
    await known.run(call(START, reply=UNANSWERED, outcomes=[UNANSWERED, final_reply]))
    await ended(known)
    assert known.plugins.notified() == [("a", STARTED)] * started + [END]


async def test_no_end_is_pending_during_stop(known: Core, caplog: Log) -> None:
    """A failed report of an end is an internal error."""
    assert not known.lifecycle.has_pending_end("c1")
    client = known.plugins.add("a", points=(STOPPED,))
    stops = known.start(call(STOP))
    await asyncio.sleep(0.5)
    assert [known.lifecycle.has_pending_end(container_id) for container_id in ("c1", "c2")] == [False, True]
    await stops
    assert not known.lifecycle.has_pending_end("c1")
    known.lifecycle.forget_stop("c1")
    client.behaviour = RuntimeError(CANARY)
    await ended(known)
    assert known.metrics.counted("internal_errors", operation="StopContainer") == 1
    assert CANARY not in caplog.text
