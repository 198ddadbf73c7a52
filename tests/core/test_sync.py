"""The sync keeps the Store equal to the runtime: reads, drops, and retries while the runtime is unavailable."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from runtimeproxy.core.call import UNANSWERED, Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import INCOMPLETE_PASS_SECONDS, PASS_SECONDS, READERS, SOONEST_SECONDS, Sync
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model.fields import Subject
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.originals import OriginalValues, write
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.state import LIST, Synced, container, pod
from tests.observe.events import shown_of

pytestmark = virtual_time

START, UPDATE, STOP = Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES, Operation.STOP_CONTAINER
CREATE, RUN_POD = Operation.CREATE_CONTAINER, Operation.RUN_POD_SANDBOX
UNAVAILABLE, ODD = BackendError("nobody there"), BackendError("it cannot say", BackendFailure.OTHER)
LATE, NO_LIST = BackendError("no answer in 10 s", BackendFailure.DEADLINE), Unreadable("a list that is none")
OUR_OWN = KeyError("canary-4711")
Log = pytest.LogCaptureFixture


def syncs(rig: Synced, result: str) -> int:
    return rig.metrics.counted("syncs", result=result)


def waits(rig: Synced) -> list[float]:
    return [round(later - earlier, 6) for earlier, later in pairwise(rig.state.lists)]


async def test_sync_reads_pods_before_containers_at_start() -> None:
    rig = Synced("p1", "p2", "c1", "c2", "c3")
    rig.state.list_seconds = 3.0
    rig.store.commit(container("c2", name="committed"))
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.sync.filling
        await asyncio.sleep(3)
        assert not rig.sync.filling
    assert rig.known == {"p1", "p2", "c1", "c2", "c3"}
    assert rig.state.reads == ["p2", "c1", "c3"], "what is known is not read"
    assert rig.store.container("c1") == rig.state.containers["c1"].container
    assert (rig.metrics.counted("records_read"), syncs(rig, "complete")) == (3, 1)
    assert not Synced("p1", hooked=False).sync.filling


async def test_nothing_is_read_before_runtime_is_available() -> None:
    rig = Synced("p1")
    await rig.sync.stop()  # before it has started
    rig.sync.start()
    await asyncio.sleep(1000)
    assert rig.state.queried == []
    rig.sync.soon()
    await asyncio.sleep(0.1)
    assert rig.known == {"p1"}
    for _ in range(50):
        rig.sync.soon()
        await asyncio.sleep(0.1)
    assert 5 <= len(rig.state.lists) <= 7, "a runtime that reconnects repeatedly is listed once per second"
    await rig.sync.stop()


async def test_sync_pass_runs_every_minute_and_logs_reads(caplog: Log) -> None:
    assert PASS_SECONDS == 60
    caplog.set_level(logging.INFO)
    async with Synced("p1").running() as rig:
        await asyncio.sleep(5)
        rig.state.has("c1")
        await asyncio.sleep(3 * PASS_SECONDS)
    assert len(rig.state.lists) == 4
    assert all(PASS_SECONDS <= wait <= PASS_SECONDS + 1 for wait in waits(rig))
    assert rig.state.reads == ["p1", "c1"]
    texts = [f"the runtime's state is known (pods: 1, containers: {n}, read: 1 in 0.0 s)" for n in range(2)]
    assert caplog.messages == texts
    events = [(event["kind"], event["reason"], event["text"]) for event in shown_of(rig.metrics.events)]
    assert events == [("sync", "complete", "records read: 1, dropped: 0")] * 2, "only passes that change anything"
    assert rig.metrics.gauges[("sync_seconds", ())] == 0.0


async def test_sync_only_drops_records_without_hook_server() -> None:
    async with Synced("p1", "c1", hooked=False).running() as rig:
        await asyncio.sleep(1000)
        assert rig.state.queried == [], "nothing is known"
        rig.store.commit(container("c2", "p2"))
        await asyncio.sleep(SOONEST_SECONDS)
        assert (rig.known, rig.state.reads) == (set(), [])
        rig.store.commit(container("c3", "p3"))
        await asyncio.sleep(PASS_SECONDS + 1)
        assert (rig.known, rig.state.reads, len(rig.state.lists)) == (set(), [], 2)
        await asyncio.sleep(1000)
        assert len(rig.state.lists) == 2
        rig.plugins.add("a")
        await asyncio.sleep(1.1)
        assert rig.known == {"p1", "c1"}, "the first hook server triggers a pass"
        rig.plugins.add("b")
        await asyncio.sleep(5)
        assert len(rig.state.lists) == 3
        await rig.run(FakeCall(CREATE, reply=UNANSWERED))
        rig.state.has("c2")
        await asyncio.sleep(1.5)
        assert rig.known == {"p1", "c1", "c2"}, "so does a lost create"
        rig.plugins.plugins.clear()
        await asyncio.sleep(2)
        rig.state.has("p2")
        rig.plugins.add("c", points=("PreRunPodSandbox",))
        await asyncio.sleep(1.1)
        assert rig.known == {"p1", "c1", "c2", "p2"}


async def test_full_node_is_read_in_5_s_during_held_call() -> None:
    """Calls take precedence: while one is held each reader waits before each read."""
    rig = Synced(*(f"p{number}" for number in range(1_000)), *(f"c{number}" for number in range(3_000)))
    rig.state.read_seconds = 0.002
    rig.plugins.add("slow", delay_seconds=8, timeout_seconds=9, points=("PreStartContainer",))
    held = rig.start(FakeCall(START, key="other"))
    await asyncio.sleep(0)
    async with rig.running():
        await asyncio.sleep(5)
        assert (rig.store.counts(), held.done()) == ((1_000, 3_000), False)
    assert rig.state.at_once["container"] == READERS
    at = [at for at, name in rig.state.queried if name != LIST]
    assert at[0] > 0
    assert at[-1] > 1.5 * 4_000 / READERS * rig.state.read_seconds, "each of them waits"
    await held


def uncalled() -> Synced:
    """Return a rig without hook calls for the calls below; a read takes a second."""
    rig = Synced("p1", "c1", hooked=False)
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    rig.state.read_seconds = 1
    return rig


Act = Callable[[Store], object]
MEANWHILE: list[tuple[str, Act, dict[str, str]]] = [
    ("c1", lambda store: store.commit(container("c1", name="committed")), {"p1": "read", "c1": "committed"}),
    ("p1", lambda store: store.commit(Subject(pod("p1", "committed"))), {"p1": "committed", "c1": "read"}),
    *[("c1", lambda store: store.forget("c1"), {"p1": "read"}), ("c1", lambda store: store.forget("p1"), {})],
]


@pytest.mark.parametrize(("any_id", "act", "names"), MEANWHILE)
async def test_read_does_not_override_concurrent_commit_or_drop(any_id: str, act: Act, names: dict[str, str]) -> None:
    rig = uncalled()
    async with rig.running():
        while rig.state.reads[-1:] != [any_id]:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        act(rig.store)
        await asyncio.sleep(2)
    assert syncs(rig, "complete") == 1
    records = rig.store.snapshot()
    assert {info.effective.id: info.effective.name for info in (*records.pods, *records.containers)} == names


CALLS = [(UPDATE, "c1", 0, 3), (UPDATE, "c1", 1.5, 0.2), (CREATE, "p1/read/0", 0, 3)]
CALLS += [(RUN_POD, pod("p1", "read").effective.full_name, 1.1, 1.6)]
"""An update under way and one meanwhile, a create of the container and one of its pod."""


@pytest.mark.parametrize(("operation", "key", "begins", "lasts"), CALLS)
async def test_call_subject_is_read_by_next_pass(operation: Operation, key: str, begins: float, lasts: float) -> None:
    """The status may be older than an update that passes while it is read; a create has yet to be answered."""
    async with uncalled().running() as rig:
        await asyncio.sleep(begins)
        update = rig.start(FakeCall(operation, known=None, key=key, runtime_seconds=lasts))
        await asyncio.sleep(2.7 - begins)
        assert (rig.known, syncs(rig, "complete")) == ({"p1"}, 1)
        await asyncio.sleep(INCOMPLETE_PASS_SECONDS + 2)
        assert (rig.known, rig.state.reads) == ({"p1", "c1"}, ["p1", "c1", "c1"])
    await update


@pytest.mark.parametrize("hooked", [True, False])
async def test_originals_of_unlisted_subject_are_dropped(hooked: bool) -> None:
    """Also if no hook server is registered, no record is known, and there is no ``on_dropped``."""
    rig = Synced("c1", hooked=hooked)
    rig.sync = Sync(rig.state, rig.lifecycle, rig.metrics)
    retained = write(OriginalValues(("p1", "main", 0), {"cgroup_parent": (None, "/a")}))
    rig.store.keep({"c1": retained, "c2": retained})
    async with rig.running():
        await asyncio.sleep(0.5)
        assert rig.store.ids_of_originals() == ({"c1"} if not hooked else set())
        assert ("c1" in rig.known) is hooked
        rig.state.lacks("c1")
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.store.ids_of_originals() | rig.known == set()


@pytest.mark.parametrize(("error", "seconds"), [(None, 2), (ODD, 0), (UNAVAILABLE, 7)])
async def test_state_read_is_set_after_first_pass(error: BackendError | None, seconds: float) -> None:
    """A runtime that returns no list delays nothing; while it is unavailable, no pass ends."""
    rig = Synced("p1", "c1", hooked=False)
    rig.state.read_seconds = 1
    if error is not None:
        rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(10)
        assert not rig.lifecycle.state_read.is_set()
        rig.plugins.add("a")
        began = rig.now
        asyncio.get_running_loop().call_later(5, rig.state.errors.clear)
        await rig.lifecycle.state_read.wait()
        assert seconds <= rig.now - began <= seconds + 1
        rig.plugins.plugins.clear()
        await asyncio.sleep(PASS_SECONDS + 1)
        assert not rig.lifecycle.state_read.is_set()


async def test_subjects_of_calls_and_new_records_are_not_dropped() -> None:
    """Also the pods of subjects, and what had a record before: a commit shows that the runtime has it."""
    rig = Synced("p9")
    for any_id in ("c1", "c2", "c3"):
        rig.store.commit(container(any_id, f"pod of {any_id}"))
    rig.store.commit(Subject(pod("p3")))
    rig.state.list_seconds = 1
    stops = [rig.start(FakeCall(STOP, key=key, known=None, runtime_seconds=3)) for key in ("c1", "p3")]
    await asyncio.sleep(0)
    async with rig.running():
        await asyncio.sleep(0.5)
        rig.store.commit(container("c3", "pod of c3", name="committed"))
        rig.store.commit(container("c4", "p9"))
        await asyncio.sleep(1)
        assert rig.known == {"p9", "c1", "pod of c1", "p3", "c3", "pod of c3", "c4"}
        assert (sorted(rig.removed_ids), rig.metrics.counted("records_swept")) == (["c2", "pod of c2"], 2)
        await asyncio.gather(*stops)
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.known == {"p9"}


@pytest.mark.parametrize("error", [UNAVAILABLE, OUR_OWN])
async def test_failed_read_cancels_only_parallel_reads(error: Exception, caplog: Log) -> None:
    """A remaining cancel request would end the sync at its next wait, permanently (Python 3.11.2)."""
    rig = Synced("p1", "p2", "c1")
    rig.state.errors["p1"] = error
    async with rig.running():
        await asyncio.sleep(0.01)
        assert rig.sync._task is not None
        assert (rig.sync._task.cancelling(), syncs(rig, "failed")) == (0, error is UNAVAILABLE)
        assert rig.metrics.counted("internal_errors", operation="sync") == (error is OUR_OWN)
        rig.state.errors.clear()
        await asyncio.sleep(2)
        rig.sync.soon()
        await asyncio.sleep(1)
        assert rig.known == {"p1", "p2", "c1"}
    assert (caplog.messages[:1] == ["internal error in reading the runtime's state"]) is (error is OUR_OWN)


@pytest.mark.parametrize("any_id", ["p2", "c3"])
async def test_unavailable_subject_does_not_stop_other_reads(any_id: str) -> None:
    """At first the runtime itself may be unavailable; the second time its list has succeeded in between."""
    rig = Synced("p1", "p2", *(f"c{number}" for number in range(20)))
    rig.state.read_seconds = 0.01
    rig.state.errors[any_id] = UNAVAILABLE
    readable = {*rig.state.pods, *rig.state.containers} - {any_id}
    async with rig.running():
        await asyncio.sleep(5)
        assert rig.known == readable
        await asyncio.sleep(10 * PASS_SECONDS)
        assert (len(rig.state.lists), rig.state.reads.count(any_id)) == (12, 12), "one a minute after the first two"
        assert (syncs(rig, "failed"), rig.metrics.counted("records_unreadable")) == (1, 11)
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 2)
        assert rig.known == readable | {any_id}
        assert rig.sync._unavailable_ids == set()


async def test_hanging_subject_does_not_stop_other_reads(caplog: Log) -> None:
    rig = Synced("p1", "p2", "c1", "c2")
    rig.state.errors["p1"] = rig.state.errors["c2"] = LATE
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS - 10)
        assert rig.known == {"p1", "p2", "c1"}, "p1 comes with its container"
        assert (len(rig.state.lists), syncs(rig, "complete")) == (3, 3)
        assert caplog.messages[0].startswith("the runtime did not answer in time about 2 of its pods and containers")
        late = len(caplog.messages)
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.known == {"p1", "p2", "c1", "c2"}
    assert rig.metrics.counted("records_late") == late + 1


@pytest.mark.parametrize("error", [ODD, Unreadable("half a status"), None])
@pytest.mark.parametrize("any_id", ["p2", "c2"])
async def test_unreadable_subject_is_skipped_until_reconnect(any_id: str, error: Exception | None, caplog: Log) -> None:
    """So is a subject that no longer exists when it is read."""
    rig = Synced("p1", "p2", "c1", "c2")
    if error is None:
        (rig.state.pods if any_id == "p2" else rig.state.containers)[any_id] = None
    else:
        rig.state.errors[any_id] = error
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS)
        assert rig.known == {"p1", "p2", "c1", "c2"} - {any_id}
        assert rig.state.reads.count(any_id) == 1
        rig.state.errors.clear()
        rig.state.has(any_id)
        rig.sync.soon()
        await asyncio.sleep(1.5)
        assert rig.known == {"p1", "p2", "c1", "c2"}
        assert rig.metrics.counted("records_unreadable") == (error is not None)
        rig.state.errors[any_id] = ODD if error is None else UNAVAILABLE
        rig.store.drop(any_id)
        await asyncio.sleep(PASS_SECONDS)
        assert rig.sync._skipped_ids | rig.sync._unavailable_ids == {any_id}
        rig.state.lacks(any_id)
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.sync._skipped_ids | rig.sync._unavailable_ids == set(), "it is forgotten once it is not listed"
    assert caplog.records == []


RETRIES = [(UNAVAILABLE, "unavailable"), (LATE, "deadline"), (ODD, ""), (NO_LIST, ""), (OUR_OWN, "")]
PASSES = {ODD: ["other", "complete"] * 2, NO_LIST: ["unreadable", "complete"] * 2, OUR_OWN: ["complete"]}
"""The recorded results of the passes, where they are not those of a runtime that is unavailable."""


@pytest.mark.parametrize(("error", "fault"), RETRIES)
async def test_failing_list_is_retried_with_backoff(error: Exception, fault: str, caplog: Log) -> None:
    """Up to once a second while the runtime is unavailable, which is not logged here, else up to once a minute.

    Another failure may be a list that is too long, which costs both sides time; it is logged once. A runtime that
    reconnects is listed immediately, and a completed pass resets the backoff. One that answers an error is available.
    """
    text = f"the runtime's state cannot be read ({error}): trying again, and what a call needs is read then"
    rig, longest = Synced("p1", "c1"), 1.0 if fault else PASS_SECONDS
    async with rig.running():
        for times in (1, 2):
            rig.state.queried.clear()
            rig.state.errors[LIST] = error
            rig.sync.soon()
            await asyncio.sleep(10 * PASS_SECONDS)
            assert (waits(rig)[0], waits(rig)[-1]) == (0.05, longest)
            assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(waits(rig)))
            assert error is OUR_OWN or caplog.messages == ([] if fault else [text] * times)
            shown_fault = fault and f"it did not answer when its state was read last ({fault})"
            assert rig.sync.runtime_fault == shown_fault
            rig.state.errors.clear()
            if not fault:
                rig.sync.soon()
            await asyncio.sleep(SOONEST_SECONDS + 0.5)
            assert (rig.known, syncs(rig, "complete"), rig.sync.runtime_fault) == ({"p1", "c1"}, times, "")
    levels = {record.levelname for record in caplog.records}
    assert levels == ({"ERROR"} if error is OUR_OWN else set() if fault else {"WARNING"})
    shown = [(event["kind"], event.get("reason")) for event in shown_of(rig.metrics.events)]
    around = [("runtime_lost", fault), ("runtime_back", None)] if fault else []
    assert [event for event in shown if event[0] != "sync"] == around * 2
    passes = [reason for kind, reason in shown if kind == "sync"]
    assert passes == PASSES.get(error, [fault, "complete"] * 2)
    assert not [word for word in ("canary", str(error)) if word in str(shown)]


@pytest.mark.parametrize("missing", ["", "p1", "c1"])
async def test_sync_stop_leaves_no_tasks(missing: str) -> None:
    """Also at the moment in which the runtime becomes unavailable."""
    for steps in range(40):
        rig = Synced("p1", "c1", "c2")
        if missing:
            rig.state.errors[missing] = UNAVAILABLE
        async with rig.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
    assert missing or rig.known == {"p1", "c1", "c2"}
