"""The course of a call up to the release: order of its steps, and the effects of failures (relay-rules C6, C7, C9).

The outcomes of calls are recorded as events that have ids, names, reasons and fields, and no value.
"""

import asyncio
import gc
import logging
import weakref
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core.call import UNANSWERED, CallState, Reply, Unreadable
from runtimeproxy.core.lifecycle import SLOW_SECONDS
from runtimeproxy.errors import BackendError, HookError, Reason
from runtimeproxy.model import fields as model
from runtimeproxy.model import merge
from runtimeproxy.model.fields import NO_ADJUSTMENT, ContainerRecord, HookAnswer, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Operation, Stage, SubjectKind
from runtimeproxy.observe.events import PARTS
from runtimeproxy.observe.metrics import PROCESS
from runtimeproxy.plugins.registration import FailurePolicy
from tests.fakes.calls import AGREED, CONTAINER, POD, SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core, moments
from tests.fakes.plugins import FAIL, IGNORE, NOTHING, Behaviour
from tests.observe.events import shown_of

pytestmark = virtual_time

CREATE, START, UPDATE = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES
STOP = Operation.STOP_CONTAINER
AT_START, AT_UPDATE = ("PreStartContainer",), ("PreUpdateContainerResources",)
SUBJECTS = {SubjectKind.POD: Subject(SUBJECT.pod), SubjectKind.CONTAINER: SUBJECT}
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture
ENVS, SHARES = HookAnswer(envs={"A": "1"}), HookAnswer(resources=Resources(cpu_shares=2))
Fields = dict[str, Any]
PRE_POINTS = [hook_point for hook_point in HOOK_POINTS if hook_point.stage is Stage.PRE]
POST_POINTS = [hook_point for hook_point in HOOK_POINTS if hook_point.stage is Stage.POST]


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.mark.parametrize("hook_point", PRE_POINTS, ids=lambda hook_point: hook_point.name)
async def test_pre_hook_change_is_released(core: Core, hook_point: HookPoint) -> None:
    core.plugins.add("a", SHARES, points=(hook_point.name,), delay_seconds=0.5)
    call = FakeCall(hook_point.operation, SUBJECTS[hook_point.subject])
    assert await core.run(call) == ["prepare", "release", "answer"]
    assert core.plugins.notified() == [("a", hook_point.name)]
    assert call.released_with is not None
    assert call.released_with[1].resources == {"cpu_shares": 2}
    assert call.changed_by is call.released_with[1]
    assert (moments(core.times), core.times.outcome) == ((0, 0.5, 1.5, 1.5), "agreed")
    assert (core.times.hooks, core.times.querying, core.times.post) == (0.5, 0, 0)
    changed = {"hook_server": "a", "field": "resources.cpu_shares"}
    assert core.metrics.counted("hook_fields_changed", **changed) == core.metrics.total("hook_fields_changed") == 1
    assert core.metrics.counted("calls", operation=hook_point.operation.value, outcome="agreed") == 1


@pytest.mark.parametrize("hook_point", POST_POINTS, ids=lambda hook_point: hook_point.name)
async def test_post_hook_is_called_before_reply_is_sent(core: Core, hook_point: HookPoint) -> None:
    core.plugins.add("a", ENVS, points=(hook_point.name,), delay_seconds=0.5)
    await core.run(call := FakeCall(hook_point.operation, SUBJECTS[hook_point.subject]))
    assert call.steps == [(0, "release"), (1.5, "answer")]
    assert call.released_with == (call.known, NO_ADJUSTMENT)
    queried = core.plugins.queried[0]
    assert (queried.point, queried.request.pod) == (hook_point.name, POD)
    assert queried.request.container == (CONTAINER if hook_point.subject is SubjectKind.CONTAINER else None)
    assert moments(core.times) == (0, 0, 1, 1.5)
    assert (core.times.hooks, core.times.post) == (0, 0.5)
    assert all(record.effective.envs == {} for record in core.store.snapshot().containers)


@pytest.mark.parametrize(("operation", "untouched"), [*((value, True) for value in Operation), (CREATE, False)])
async def test_no_call_waits_without_plugins(core: Core, operation: Operation, untouched: bool) -> None:
    """A call is released before it is read, unless the Store changes it; so is one that its front has released."""
    call = FakeCall(operation, untouched=untouched)
    assert await core.run(call) == ["release", "answer"]
    assert call.released_with == (None if untouched else SUBJECT, NO_ADJUSTMENT)
    assert call.changed_by is NO_ADJUSTMENT, "what the runtime agreed to is committed"
    assert (moments(core.times), core.lifecycle.holds()) == ((0, 0, 1, 1), (0, 0.0))
    core.plugins.add("a", Reason.DEADLINE, policy=FAIL)
    call = FakeCall(START, state=CallState.RELEASED)
    assert await core.run(call) == ["release", "answer"]
    assert (call.changed_by, core.plugins.notified()) == (NO_ADJUSTMENT, [("a", "PostStartContainer")])


@pytest.mark.parametrize(("label", "skipped"), [("true", True), ("True", False)])
async def test_pod_with_skip_label_gets_no_hook_calls(core: Core, label: str, skipped: bool) -> None:
    core.plugins.add("a", policy=FAIL)
    pod = PodInfo(id="p1", labels={"skip": label})
    await core.run(FakeCall(START, Subject(PodRecord(pod, pod), SUBJECT.container)))
    assert core.plugins.notified() == ([] if skipped else [("a", "PreStartContainer"), ("a", "PostStartContainer")])
    assert core.store.container("c1") is not None


READS = [("PostStartContainer", SUBJECT), ("PostStartContainer", None), ("PreCreateContainer", SUBJECT)]


@pytest.mark.parametrize(("hook_point", "read"), READS)
async def test_subject_is_read_only_for_plugins_of_call(core: Core, hook_point: str, read: Subject | None) -> None:
    """Without one, a call passes without hooks if the runtime does not know the subject."""
    core.plugins.add("a", points=(hook_point,), policy=FAIL)
    call, reads = FakeCall(START, known=None, read=read), hook_point == "PostStartContainer"
    assert await core.run(call) == [*["read"] * reads, "release", "answer"]
    assert call.released_with == (read if reads else None, NO_ADJUSTMENT)
    known = reads and read is not None
    assert (core.plugins.notified(), core.store.counts()) == ([("a", hook_point)] * known, (known, known))
    assert core.metrics.total("hook_failures") == 0


CUT, OUR_OWN = Unreadable("cut"), KeyError(CANARY)
FAULTS: dict[str, tuple[Fields, Reason, str]] = {
    "message": ({"key": CUT}, Reason.UNREADABLE, "calls_unreadable"),
    "status": ({"known": None, "read": CUT}, Reason.UNREADABLE, "calls_unreadable"),
    "runtime away": ({"known": None, "read": BackendError("away")}, Reason.UNREADABLE, ""),
    "our fault": ({"known": None, "read": OUR_OWN}, Reason.INTERNAL, "internal_errors"),
    "runtime hangs": ({"known": None, "read": SUBJECT, "read_seconds": 60}, Reason.DEADLINE, ""),
    "the extra update hangs": ({"prepare_seconds": 60}, Reason.RUNTIME_REJECTED, ""),
    "edit": ({"edit_error": OUR_OWN}, Reason.INTERNAL, "internal_errors"),
    "plugin": ({}, Reason.INTERNAL, "internal_errors"),
}


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize(("fields", "reason", "counter"), FAULTS.values(), ids=FAULTS)
async def test_failed_hold_is_refused_or_released_unchanged(
    core: Core, policy: FailurePolicy, fields: Fields, reason: Reason, counter: str, caplog: Log
) -> None:
    changes = SHARES if policy is IGNORE or "prepare_seconds" in fields else ENVS
    core.plugins.add("a", changes if fields else OUR_OWN, policy=policy, points=AT_START)
    call = FakeCall(START, **fields)
    with caplog.at_level(logging.DEBUG):
        steps = await core.run(call)
    assert core.failures("a", "PreStartContainer", reason) == 1
    cause = ": KeyError" if reason is Reason.INTERNAL else ""
    assert f"hook server 'a' at PreStartContainer: {reason.value}{cause}" in caplog.text
    assert not counter or core.metrics.counted(counter, operation="StartContainer") == 1
    assert CANARY not in f"{caplog.text}{call.refused_with}"
    if policy is IGNORE:
        assert (steps[-2:], core.fail_open()) == (["release", "answer"], 1)
        assert call.released_with is not None
        assert call.released_with[1] is NO_ADJUSTMENT
        assert call.changed_by in (None, NO_ADJUSTMENT)
        assert core.times.released is not None
        assert core.times.released <= 11.0
    else:
        assert (steps[-1], call.released_with) == ("refuse", None)
        assert call.refused_with is not None
        assert (call.refused_with.plugin, call.refused_with.reason) == ("a", reason)
        assert (moments(core.times), core.times.outcome) == ((0, None, None, None), "refused")
        assert core.metrics.counted("calls", operation="StartContainer", outcome="refused") == 1
        assert (core.metrics.total("hook_failures"), core.store.counts()) == (1, (0, 0))
        assert core.now <= 11.0


BROKE_OFF, HANGS = {"prepare_error": BackendError("broke off")}, {"prepare_seconds": 60}


@pytest.mark.parametrize("owner", ["fail", "ignore"])
@pytest.mark.parametrize("fields", [BROKE_OFF, HANGS])
async def test_rejected_update_fails_its_owners(core: Core, owner: str, fields: Fields, caplog: Log) -> None:
    core.store.commit(SUBJECT)
    for name, policy in (("fail", FAIL), ("ignore", IGNORE)):
        core.plugins.add(name, SHARES if name == owner else HookAnswer(), policy=policy, points=AT_START)
    call = FakeCall(START, **fields)
    assert await core.run(call) == ["prepare", *(["refuse"] if owner == "fail" else ["release", "answer"])]
    assert core.failures(owner, "PreStartContainer", Reason.RUNTIME_REJECTED) == 1
    assert core.metrics.total("hook_failures") == 1
    assert core.fail_open() == (owner == "ignore")
    assert call.changed_by in (None, NO_ADJUSTMENT)
    assert core.store.container("c1") == SUBJECT.container
    notified = "the update before StartContainer of /web/main failed in the runtime; hook servers had set "
    assert notified + f"resources.cpu_shares ({owner})" in caplog.messages


@pytest.mark.parametrize("reply", [AGREED, Reply(agreed=False), UNANSWERED])
async def test_extra_update_is_recorded_for_every_start_reply(core: Core, reply: Reply) -> None:
    """Not if an update is lost meanwhile."""
    core.store.commit(SUBJECT)
    core.plugins.add("a", SHARES, points=AT_START)
    await core.run(FakeCall(START, reply=reply, outcomes=[UNANSWERED]))
    assert core.store.container("c1") == merge.prepared(SUBJECT, {"cpu_shares": 2}, NO_ADJUSTMENT).container
    lost = core.start(FakeCall(UPDATE, reply=UNANSWERED, runtime_seconds=1))
    start = core.start(FakeCall(START, prepare_seconds=2))
    await lost
    with core.store.watch() as watch:
        await start
    assert (core.store.counts(), watch.retained) == ((1, 0), set())


@pytest.mark.parametrize("fields", [BROKE_OFF, HANGS])
async def test_container_is_reread_after_lost_extra_update(core: Core, fields: Fields) -> None:
    """Also if its client disconnects meanwhile."""
    core.store.commit(SUBJECT)
    core.plugins.add("a", SHARES, points=AT_START)
    task = core.start(FakeCall(START, prepare_unsure=True, **fields))
    await asyncio.sleep(2)
    assert task.done() == (fields is BROKE_OFF)
    task.cancel()
    await task
    assert core.store.counts() == (1, 0)


TIMES: list[tuple[tuple[float, ...], float | None, list[Any]]] = [
    # never more than half of the caller's time (fault matrix H4)
    *[((100, 100), None, [5, 5]), ((100, 100), 20.0, [5, 5]), ((100, 100), 8.0, [2, 2])],
    *[((2, 2), 2.0, [0.5, 0.5]), ((0.25, 2), 2.0, [0.25, 0.75])],
    # time is left for the plugins after it
    *[((2, 2, 2), None, [2, 2, 2]), ((8, 2), None, [8, 2]), ((9, 2), None, [8, 2])],
    ((2,) * 12, None, [2, 2, 2, 2, 1, 0.5, 0.25, 0.125, *[pytest.approx(0, abs=0.07)] * 4]),
]


@pytest.mark.parametrize("hook_point", ["PreStartContainer", "PostStartContainer"])
@pytest.mark.parametrize(("timeouts", "deadline", "seconds"), TIMES)
async def test_hanging_hook_server_leaves_time_for_later_ones(
    core: Core, timeouts: tuple[float, ...], deadline: float | None, seconds: list[Any], hook_point: str
) -> None:
    for number, timeout in enumerate(timeouts):
        core.plugins.add(f"p{number}", delay_seconds=100, timeout_seconds=timeout, points=(hook_point,))
    await core.run(FakeCall(START, deadline=deadline))
    if hook_point == "PostStartContainer" and deadline is not None:
        seconds = [min(timeout, 5) for timeout in timeouts]  # nobody waits longer, yet all are called
    given = [queried.timeout_seconds for queried in core.plugins.queried]
    assert given == seconds
    assert core.times.released == (sum(given) if hook_point == "PreStartContainer" else 0)
    assert core.metrics.total("hook_failures") == len(timeouts)


BUDGETS: list[tuple[Fields, list[float], float]] = [
    ({"known": None, "read": SUBJECT, "read_seconds": 4}, [6.0], 4),
    ({"known": None, "read_seconds": 1000, "deadline": 4.0}, [], 2),
    ({"prepare_seconds": 1000}, [10.0], 10.5),
    ({"prepare_seconds": 1000, "deadline": 8.0}, [4.0], 4.5),
]


@pytest.mark.parametrize(("fields", "timeouts", "released"), BUDGETS)
async def test_reads_and_updates_use_budget(core: Core, fields: Fields, timeouts: list[float], released: float) -> None:
    """A read ends with the budget, in time for the runtime to answer; an extra update half a second later."""
    core.plugins.add("a", SHARES, timeout_seconds=100, points=AT_START)
    await core.run(FakeCall(START, **fields))
    assert [queried.timeout_seconds for queried in core.plugins.queried] == timeouts
    assert core.times.released == core.times.querying == released


async def test_hold_ends_one_second_after_budget(core: Core) -> None:
    core.plugins.add("a", points=AT_START).call = lambda *_: asyncio.sleep(1000)  # type: ignore[assignment]
    await core.run(call := FakeCall(START))
    assert (call.steps[0], core.failures("a", "PreStartContainer", Reason.DEADLINE)) == ((11, "release"), 1)


async def test_holds_returns_count_and_oldest_age(core: Core) -> None:
    """A call that changes no record passes if there is neither a plugin nor a call that waits."""
    assert core.lifecycle.start_and_stop_pass()
    core.plugins.add("a", delay_seconds=2, points=AT_START)
    assert not core.lifecycle.start_and_stop_pass()  # when a start is refused, the log names what hook servers set
    first = core.start(FakeCall(START, key="c1"))
    await asyncio.sleep(1)
    second = core.start(FakeCall(START, key="c2"))
    await asyncio.sleep(0.5)
    assert core.lifecycle.holds() == (2, 1.5)
    await asyncio.sleep(1)
    core.plugins.plugins.clear()
    assert (core.lifecycle.holds(), core.lifecycle.start_and_stop_pass()) == ((1, 1.5), False)
    await asyncio.gather(first, second)
    assert (core.lifecycle.holds(), core.lifecycle.start_and_stop_pass()) == ((0, 0.0), True)


async def test_call_that_ends_while_held_cancels_its_pre_hooks(core: Core) -> None:
    client = core.plugins.add("a", delay_seconds=1, policy=FAIL)
    task = core.start(call := FakeCall(START))
    await asyncio.sleep(0.5)
    task.cancel()
    await task
    assert (client.cancelled, call.steps, core.times.outcome) == (1, [], "ended")
    assert core.metrics.counted("calls", operation="StartContainer", outcome="ended") == 1
    assert (core.metrics.total("hook_failures"), core.lifecycle.holds(), core.store.counts()) == (0, (0, 0.0), (0, 0))
    await core.run(FakeCall(START))
    assert core.times.held == 0.5


async def test_calls_of_one_container_keep_their_order(core: Core) -> None:
    """No plugin is called for a stop here, but it waits for earlier calls whose hooks are called."""
    core.plugins.add("a", delay_seconds=1, points=AT_START + AT_UPDATE)
    calls = [FakeCall(START), FakeCall(UPDATE), FakeCall(STOP), FakeCall(UPDATE, key="c2")]
    await asyncio.gather(*map(core.start, calls))
    assert [at for call in calls for at, step in call.steps if step == "release"] == [1, 2, 2, 1]
    assert [times.queued for times in core.metrics.calls] == [0, 1, 2, 0]


async def test_call_by_name_is_queued_under_its_id_once_read(core: Core) -> None:
    core.plugins.add("a", delay_seconds=1, points=AT_UPDATE)
    first = core.start(FakeCall(UPDATE))
    named, following = (
        FakeCall(UPDATE, known=None, read=SUBJECT, read_seconds=0.25, key="name", full_key="c1", prepares=False)
        for _ in range(2)
    )
    await asyncio.gather(first, core.start(named), core.start(following))
    assert named.steps[:2] == [(0, "read"), (2, "release")]
    assert following.steps[:2] == [(0.25, "read"), (3, "release")]


async def test_no_call_waits_for_runtime_reply_of_another_call(core: Core) -> None:
    """A commit keeps what other calls have committed meanwhile."""
    core.store.commit(SUBJECT)
    core.plugins.add("a", HookAnswer(annotations={"A": "1"}))
    slow = core.start(FakeCall(STOP, runtime_seconds=100))
    await asyncio.sleep(1)
    await core.run(FakeCall(UPDATE))
    assert core.now == 2
    await slow
    assert core.plugins.notified() == [("a", "PreUpdateContainerResources"), ("a", "PostStopContainer")]
    assert core.store.snapshot().containers[0].effective.annotations == {"A": "1"}


async def test_queue_wait_ends_with_budget(core: Core) -> None:
    core.plugins.add("a", delay_seconds=9, timeout_seconds=9, points=AT_START)
    core.plugins.add("b", points=AT_UPDATE)
    first = core.start(FakeCall(START))
    await asyncio.sleep(0)
    await core.run(hurried := FakeCall(UPDATE, deadline=4.0))
    assert hurried.steps[-2] == (2, "release")
    assert core.failures("b", "PreUpdateContainerResources", Reason.DEADLINE) == 1
    await first


SECRETS = {"SECRET": CANARY}
SECRET_POD = PodInfo("p1", "web", "u1", "shop", labels=SECRETS, annotations=SECRETS)
OF_POD, SECRET = PodRecord(SECRET_POD, SECRET_POD), replace(CONTAINER, annotations=SECRETS, envs=SECRETS)
SECRET_SUBJECT = Subject(OF_POD, ContainerRecord(SECRET, SECRET))
FAILED = Reply(agreed=False, message=CANARY.encode())
NAMES = {"namespace": "shop", "pod": "web", "podId": "p1", "container": "main", "containerId": "c1"}
ANSWER = HookAnswer(annotations={"A": CANARY}, envs={"B": CANARY}, resources=Resources(cpuset_cpus="0-3"))
CONTRADICTS = HookAnswer(envs={"B": CANARY + "2"})
BAD = HookAnswer(cgroup_parent=CANARY, resources=Resources(cpu_quota=-7))
EDITED = {"annotations.A": "a", "envs.B": "a", "resources.cpuset_cpus": "a"}
AT_CREATE = {"hook": "PreCreateContainer"}


class Recorded(Core):
    """The core with a plugin that leaks a canary wherever it can."""

    def call(self, operation: Operation = CREATE, **fields: Any) -> FakeCall:
        return FakeCall(operation, **{"known": SECRET_SUBJECT, "runtime_seconds": 0.25, **fields})

    def events(self) -> list[Fields]:
        """Return the events without number and time, their fields as a mapping."""
        shown = shown_of(self.metrics.events)
        assert CANARY not in str(shown)
        for event in shown:
            del event["number"], event["time"]
            if "fields" in event:
                event["fields"] = {entry["field"]: entry["hookServer"] for entry in event["fields"]}
        return shown


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def erring(reason: Reason) -> HookError:
    return HookError("a", "PreCreateContainer", reason, "status", peer_text=CANARY)


def seconds(runtime: float, **parts: float) -> dict[str, float]:
    return dict.fromkeys(PARTS, 0.0) | {"runtime": runtime} | parts


@pytest.mark.parametrize("unused", [set(), {"envs.B"}, {*EDITED}], ids=["none", "one", "all"])
async def test_edited_event_separates_fields_without_effect(recorded: Recorded, unused: set[str]) -> None:
    recorded.plugins.add("a", ANSWER, delay_seconds=0.5)
    call, why = recorded.call(), "sent, no effect in x"
    call.no_effect = ((why, frozenset(map(model.kind_of, unused)) | {"labels"}), ("left out", frozenset()))
    await recorded.run(call)
    common = {"call": call.call_id, "operation": "CreateContainer", **NAMES}
    used = {name: owner for name, owner in EDITED.items() if name not in unused}
    edited = {**common, "kind": "edited", "fields": used, "seconds": seconds(0.25, hooks=0.5)}
    without = {**common, "kind": "no_effect", "fields": dict.fromkeys(unused, "a"), "text": why}
    assert recorded.events() == [*([without] if unused else []), *([edited] if used else [])]


BAD_FIELDS = {"reason": "bad_answer", "fields": {"cgroup_parent": "a", "resources.cpu_quota": "a"}}
Outcome = tuple[Behaviour, Any, str, Fields]
FAILURES: dict[str, Outcome] = {
    "refused": (erring(Reason.REFUSED), IGNORE, "refused", {"reason": "refused"}),
    "failed closed": (erring(Reason.ERROR_STATUS), FAIL, "refused", {"reason": "error_status"}),
    "failed open": (erring(Reason.ERROR_STATUS), IGNORE, "failed_open", {"reason": "error_status"}),
    "bad fields, closed": (BAD, FAIL, "refused", BAD_FIELDS),
    "bad fields, open": (BAD, IGNORE, "failed_open", BAD_FIELDS),
}


@pytest.mark.parametrize(("behaviour", "policy", "kind", "more"), FAILURES.values(), ids=FAILURES)
async def test_hook_failure_is_event(
    recorded: Recorded, behaviour: Behaviour, policy: Any, kind: str, more: Fields
) -> None:
    recorded.plugins.add("a", behaviour, policy=policy)
    recorded.metrics.events.wall_clock = lambda: 7.5
    await recorded.run(call := recorded.call())
    notified = {"kind": kind, "call": call.call_id, "operation": "CreateContainer", "hookServer": "a", **AT_CREATE}
    assert recorded.events() == [{**notified, **NAMES, **more}]
    (plugin,) = recorded.plugins.plugins
    last = plugin.last_error
    assert (last.time, last.hook, last.reason) == (7.5, "PreCreateContainer", more["reason"])
    recorded.plugins.plugins.clear()
    recorded.plugins.add("a", Reason.UNREACHABLE, points=("PostStopContainer",), policy=FAIL)
    await recorded.run(recorded.call(STOP))
    (plugin,) = recorded.plugins.plugins
    last = plugin.last_error
    assert (len(recorded.events()), last.hook, last.reason) == (1, "PostStopContainer", "unreachable")


REFUSED_CALLS: list[tuple[Behaviour, Fields]]
REFUSED_CALLS = [(BAD, {}), (Reason.ERROR_STATUS, {}), (NOTHING, {"known": None, "read_seconds": 100.0})]


@pytest.mark.parametrize(("behaviour", "fields"), REFUSED_CALLS, ids=["bad", "failed", "late"])
async def test_refused_call_is_freed_immediately(recorded: Recorded, behaviour: Behaviour, fields: Fields) -> None:
    """Neither its error nor its event keeps it."""
    recorded.plugins.add("a", behaviour, policy=FAIL)
    gc.collect()
    gc.disable()
    try:
        await recorded.run(call := recorded.call(**fields))
        call.refused_with = None
        reference = weakref.ref(call)
        del call
        await asyncio.sleep(20)  # until the timers of its deadlines have expired
        assert reference() is None
    finally:
        gc.enable()


async def test_conflict_event_names_loser_and_winner(recorded: Recorded) -> None:
    """The event of a failed call has the fields that hook servers set."""
    recorded.plugins.add("a", ANSWER)
    recorded.plugins.add("b", CONTRADICTS)
    for reply in (FAILED, AGREED):
        await recorded.run(recorded.call(reply=reply))
    _, failed, conflict, edited = recorded.events()
    notified = {"kind": "conflict", "hookServer": "a", "fields": {"envs.B": "b"}, **AT_CREATE, **NAMES}
    assert conflict == {**notified, "call": edited["call"], "operation": "CreateContainer"}
    assert edited["fields"] == {**EDITED, "envs.B": "b"}
    notified = {"kind": "failed", "operation": "CreateContainer", "seconds": seconds(0.25), **NAMES}
    assert failed == {**notified, "fields": edited["fields"], "call": f"{PROCESS}-1"}


UNKNOWN: list[Fields] = [{"known": None}, {"known": None, "untouched": False}]
UNKNOWN += [{"known_error": Unreadable("cut")}, {"known_error": KeyError()}]


@pytest.mark.parametrize("fields", [{}, *UNKNOWN])
async def test_unchanged_call_is_event_only_if_failed(recorded: Recorded, fields: Fields) -> None:
    """A call of an unknown subject, or one that cannot be read, passes without plugins."""
    for reply in (AGREED, UNANSWERED, Reply(agreed=False, no_op=True)):
        call = recorded.call(reply=reply, **fields)
        assert await recorded.run(call) == ["release", "answer"]
    assert (recorded.events(), recorded.store.counts()) == ([], (0, 0) if fields else (1, 1))
    await recorded.run(recorded.call(reply=FAILED, **fields))
    (event,) = recorded.events()
    assert event.pop("seconds")
    names = {} if fields else NAMES
    assert event == {"kind": "failed", "operation": "CreateContainer", "call": recorded.times.id, **names}
    for counter, kind in (("calls_unreadable", Unreadable), ("internal_errors", KeyError)):
        counted = recorded.metrics.counted(counter, operation="CreateContainer")
        assert counted == 4 * isinstance(fields.get("known_error"), kind)


SLOW: list[tuple[Fields, str, dict[str, float]]] = [
    ({"runtime_seconds": SLOW_SECONDS + 0.25}, "agreed", seconds(1.25)),
    ({"runtime_seconds": 2.0, "reply": UNANSWERED}, "unsettled", seconds(2.0)),
    ({}, "ended", seconds(0, hooks=1.5)),
]


@pytest.mark.parametrize(("fields", "outcome", "parts"), SLOW)
async def test_long_call_is_event(recorded: Recorded, fields: Fields, outcome: str, parts: dict[str, float]) -> None:
    """Also a call whose client disconnects while hook servers are called."""
    await recorded.run(recorded.call(runtime_seconds=SLOW_SECONDS))
    if outcome == "ended":
        recorded.plugins.add("a", delay_seconds=1.75)
    running = recorded.start(recorded.call(**fields))
    await asyncio.sleep(1.5)
    if outcome == "ended":
        running.cancel()
    await asyncio.wait({running})
    (event,) = recorded.events()
    assert (event["kind"], event["reason"], event["seconds"]) == ("slow", outcome, parts)


async def test_event_of_new_pod_has_its_id(recorded: Recorded) -> None:
    recorded.plugins.add("a", HookAnswer(labels={"L": CANARY}))
    pod = replace(SECRET_POD, id="")

    class Run(FakeCall):
        def outcome(self, *_: object) -> Subject:
            return Subject(OF_POD)

    await recorded.run(Run(Operation.RUN_POD_SANDBOX, Subject(PodRecord(pod, pod)), runtime_seconds=0.25))
    (event,) = recorded.events()
    assert (event["kind"], event["podId"]) == ("edited", "p1")


LOGGED: list[tuple[Behaviour, Fields]] = [
    (erring(Reason.ERROR_STATUS), {}),
    (BAD, {}),
    (ANSWER, {"reply": FAILED}),
    (ANSWER, {"key": Unreadable("cut")}),
    (ANSWER, {"edit_error": KeyError(CANARY)}),
    (ANSWER, {"operation": START, "prepare_error": BackendError(CANARY)}),
    (ANSWER, {"operation": STOP, "reply": UNANSWERED, "outcomes": [KeyError("x")], "known": SECRET_SUBJECT}),
]


@pytest.mark.parametrize(("behaviour", "fields"), LOGGED)
async def test_log_lines_of_call_have_id(recorded: Recorded, behaviour: Behaviour, fields: Fields, caplog: Log) -> None:
    recorded.plugins.add("a", behaviour)
    recorded.plugins.add("b", CONTRADICTS)
    call = recorded.call(**fields)
    with caplog.at_level(logging.DEBUG):
        await recorded.run(call)
        await asyncio.sleep(0.5)
    assert caplog.records
    assert {vars(record)["call"] for record in caplog.records} == {call.call_id} == {f"{PROCESS}-1"}
    assert (len(PROCESS), recorded.metrics.call("StopContainer").id) == (4, f"{PROCESS}-2")
    assert CANARY not in caplog.text
    await recorded.lifecycle.open_calls.stop()
