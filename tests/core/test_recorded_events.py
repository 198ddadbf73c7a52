"""The outcomes of calls are recorded as events that have ids, names, reasons and fields, and no value."""

import asyncio
import gc
import logging
import weakref
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core.call import UNANSWERED, Reply, Unreadable
from runtimeproxy.core.lifecycle import SLOW_SECONDS
from runtimeproxy.errors import BackendError, HookError, Reason
from runtimeproxy.model import fields
from runtimeproxy.model.fields import ContainerRecord, HookAnswer, PodInfo, PodRecord, Resources, Subject, kind_of
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.events import PARTS
from runtimeproxy.observe.metrics import PROCESS
from tests.fakes.calls import AGREED, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL, IGNORE, NOTHING, Behaviour
from tests.observe.events import shown_of

pytestmark = virtual_time

CREATE, START, STOP = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.STOP_CONTAINER
RUN = Operation.RUN_POD_SANDBOX
CANARY = "canary-4711"
Log, Fields = pytest.LogCaptureFixture, dict[str, Any]
SECRETS = {"SECRET": CANARY}
POD = PodInfo("p1", "web", "u1", "shop", labels=SECRETS, annotations=SECRETS)
CONTAINER = fields.ContainerInfo("c1", "p1", "main", annotations=SECRETS, envs=SECRETS)
SUBJECT = Subject(PodRecord(POD, POD), ContainerRecord(CONTAINER, CONTAINER))
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
        return FakeCall(operation, **{"known": SUBJECT, "runtime_seconds": 0.25, **fields})

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
def core() -> Recorded:
    return Recorded()


def erring(reason: Reason) -> HookError:
    return HookError("a", "PreCreateContainer", reason, "status", peer_text=CANARY)


def seconds(runtime: float, **parts: float) -> dict[str, float]:
    return dict.fromkeys(PARTS, 0.0) | {"runtime": runtime} | parts


@pytest.mark.parametrize("unused", [set(), {"envs.B"}, {*EDITED}], ids=["none", "one", "all"])
async def test_edited_event_separates_fields_without_effect(core: Recorded, unused: set[str]) -> None:
    core.plugins.add("a", ANSWER, delay_seconds=0.5)
    call, why = core.call(), "sent, no effect in x"
    call.no_effect = ((why, frozenset(map(kind_of, unused)) | {"labels"}), ("left out", frozenset()))
    await core.run(call)
    common = {"call": call.call_id, "operation": "CreateContainer", **NAMES}
    used = {name: owner for name, owner in EDITED.items() if name not in unused}
    edited = {**common, "kind": "edited", "fields": used, "seconds": seconds(0.25, hooks=0.5)}
    without = {**common, "kind": "no_effect", "fields": dict.fromkeys(unused, "a"), "text": why}
    assert core.events() == [*([without] if unused else []), *([edited] if used else [])]


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
async def test_hook_failure_is_event_and_last_error(
    core: Recorded, behaviour: Behaviour, policy: Any, kind: str, more: Fields
) -> None:
    core.plugins.add("a", behaviour, policy=policy)
    core.metrics.events.wall_clock = lambda: 7.5
    call = core.call()
    await core.run(call)
    notified = {"kind": kind, "call": call.call_id, "operation": "CreateContainer", "hookServer": "a", **AT_CREATE}
    assert core.events() == [{**notified, **NAMES, **more}]
    (plugin,) = core.plugins.plugins
    last = plugin.last_error
    assert (last.time, last.hook, last.reason) == (7.5, "PreCreateContainer", more["reason"])
    core.plugins.plugins.clear()
    core.plugins.add("a", Reason.UNREACHABLE, points=("PostStopContainer",), policy=FAIL)
    await core.run(core.call(STOP))
    (plugin,) = core.plugins.plugins
    last = plugin.last_error
    assert (len(core.events()), last.hook, last.reason) == (1, "PostStopContainer", "unreachable")


REFUSED_CALLS: list[tuple[Behaviour, Fields]]
REFUSED_CALLS = [(BAD, {}), (Reason.ERROR_STATUS, {}), (NOTHING, {"known": None, "read_seconds": 100.0})]


@pytest.mark.parametrize(("behaviour", "fields"), REFUSED_CALLS, ids=["bad", "failed", "late"])
async def test_refused_call_is_freed_without_collector(core: Recorded, behaviour: Behaviour, fields: Fields) -> None:
    """Neither its error nor its event keeps it."""
    core.plugins.add("a", behaviour, policy=FAIL)
    gc.collect()
    gc.disable()
    try:
        call = core.call(**fields)
        await core.run(call)
        call.refused_with = None
        reference = weakref.ref(call)
        del call
        await asyncio.sleep(20)  # until the timers of its deadlines have expired
        assert reference() is None
    finally:
        gc.enable()


async def test_conflict_event_names_loser_and_winner(core: Recorded) -> None:
    core.plugins.add("a", ANSWER)
    core.plugins.add("b", CONTRADICTS)
    await core.run(core.call())
    conflict, edited = core.events()
    notified = {"kind": "conflict", "hookServer": "a", "fields": {"envs.B": "b"}, **AT_CREATE, **NAMES}
    assert conflict == {**notified, "call": edited["call"], "operation": "CreateContainer"}
    assert edited["fields"] == {**EDITED, "envs.B": "b"}


async def test_failed_call_event_has_hook_fields(core: Recorded) -> None:
    core.plugins.add("a", ANSWER)
    await core.run(core.call(reply=FAILED))
    notified = {"kind": "failed", "operation": "CreateContainer", "fields": EDITED, "seconds": seconds(0.25), **NAMES}
    assert core.events() == [{**notified, "call": core.times.id}]


@pytest.mark.parametrize("fields", [{}, {"known": None}, {"known_error": Unreadable("cut")}])
async def test_unchanged_call_is_event_only_if_failed(core: Recorded, fields: Fields) -> None:
    for reply in (AGREED, UNANSWERED, Reply(agreed=False, no_op=True)):
        await core.run(core.call(reply=reply, **fields))
    assert core.events() == []
    await core.run(core.call(reply=FAILED, **fields))
    (event,) = core.events()
    assert event.pop("seconds")
    names = {} if fields else NAMES
    assert event == {"kind": "failed", "operation": "CreateContainer", "call": core.times.id, **names}


SLOW: list[tuple[Fields, str, dict[str, float]]] = [
    ({"runtime_seconds": SLOW_SECONDS + 0.25}, "agreed", seconds(1.25)),
    ({"runtime_seconds": 2.0, "reply": UNANSWERED}, "unsettled", seconds(2.0)),
    ({}, "ended", seconds(0, hooks=1.5)),
]


@pytest.mark.parametrize(("fields", "outcome", "parts"), SLOW)
async def test_long_call_is_slow_event(core: Recorded, fields: Fields, outcome: str, parts: dict[str, float]) -> None:
    """Also a call whose client disconnects while hook servers are called."""
    await core.run(core.call(runtime_seconds=SLOW_SECONDS))
    if outcome == "ended":
        core.plugins.add("a", delay_seconds=1.75)
    running = core.start(core.call(**fields))
    await asyncio.sleep(1.5)
    if outcome == "ended":
        running.cancel()
    await asyncio.wait({running})
    (event,) = core.events()
    assert (event["kind"], event["reason"], event["seconds"]) == ("slow", outcome, parts)


async def test_event_of_new_pod_has_its_id(core: Recorded) -> None:
    core.plugins.add("a", HookAnswer(labels={"L": CANARY}))
    pod = replace(POD, id="")

    class Run(FakeCall):
        def outcome(self, *_: object) -> Subject:
            return Subject(PodRecord(POD, POD))

    await core.run(Run(RUN, Subject(PodRecord(pod, pod)), runtime_seconds=0.25))
    (event,) = core.events()
    assert (event["kind"], event["podId"]) == ("edited", "p1")


LOGGED: list[tuple[Behaviour, Fields]] = [
    (erring(Reason.ERROR_STATUS), {}),
    (BAD, {}),
    (ANSWER, {"reply": FAILED}),
    (ANSWER, {"key": Unreadable("cut")}),
    (ANSWER, {"edit_error": KeyError(CANARY)}),
    (ANSWER, {"operation": START, "prepare_error": BackendError(CANARY)}),
    (ANSWER, {"operation": STOP, "reply": UNANSWERED, "outcomes": [KeyError("x")], "known": SUBJECT}),
]


@pytest.mark.parametrize(("behaviour", "fields"), LOGGED)
async def test_log_lines_of_call_have_id(core: Recorded, behaviour: Behaviour, fields: Fields, caplog: Log) -> None:
    core.plugins.add("a", behaviour)
    core.plugins.add("b", CONTRADICTS)
    call = core.call(**fields)
    with caplog.at_level(logging.DEBUG):
        await core.run(call)
        await asyncio.sleep(0.5)
    assert caplog.records
    assert {vars(record)["call"] for record in caplog.records} == {call.call_id} == {f"{PROCESS}-1"}
    assert (len(PROCESS), core.metrics.call("StopContainer").id) == (4, f"{PROCESS}-2")
    assert CANARY not in caplog.text
    await core.lifecycle.open_calls.stop()
