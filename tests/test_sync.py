"""The Store follows the runtime beside the calls: what is read and dropped, and how a runtime that is away is tried."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from runtimeproxy.call import UNANSWERED, Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.kept import Kept, write
from runtimeproxy.model import Subject
from runtimeproxy.sync import LEFT_SECONDS, PASS_SECONDS, READERS, SOONEST_SECONDS, Sync
from runtimeproxy.wire import grpc
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.state import LIST, Synced, container, pod

START, UPDATE, STOP = Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES, Operation.STOP_CONTAINER
AWAY = BackendError("nobody there")
LATE = BackendError("no answer in 10 s", grpc.DEADLINE_EXCEEDED)
ODD = BackendError("it cannot say", grpc.INTERNAL)
CANARY = "canary-4711"


@virtual_time
async def test_at_the_start_all_is_read_pods_before_containers() -> None:
    async with Synced("p1", "p2", "c1", "c2", "c3").running() as rig:
        await asyncio.sleep(0.5)
        assert rig.known == {"p1", "p2", "c1", "c2", "c3"}
        assert rig.state.reads == ["p1", "p2", "c1", "c2", "c3"]
        assert rig.store.container("c1") == rig.state.containers["c1"].container  # type: ignore[union-attr]
        assert rig.recorder.counted("records_read") == 5
        assert rig.recorder.counted("syncs", result="complete") == 1


@virtual_time
async def test_nothing_is_asked_before_the_runtime_is_there() -> None:
    rig = Synced("p1")
    rig.sync.start()
    await asyncio.sleep(1000)
    assert rig.state.asked == []
    rig.sync.soon()
    await asyncio.sleep(0.1)
    assert rig.known == {"p1"}
    await rig.sync.stop()


@virtual_time
async def test_a_known_record_is_not_read() -> None:
    rig = Synced("p1", "c1", "c2")
    rig.store.commit(container("c1", name="committed"))
    async with rig.running():
        await asyncio.sleep(0.5)
    assert rig.state.reads == ["c2"]
    assert rig.name("c1") == "committed"


@virtual_time
async def test_a_pass_is_made_every_minute() -> None:
    assert PASS_SECONDS == 60
    async with Synced("p1").running() as rig:
        await asyncio.sleep(5)
        rig.state.has("c1")
        await asyncio.sleep(3 * PASS_SECONDS)
    assert len(rig.state.lists) == 4
    assert all(PASS_SECONDS <= later - earlier <= PASS_SECONDS + 1 for earlier, later in pairwise(rig.state.lists))
    assert rig.known == {"p1", "c1"}
    assert rig.state.reads == ["p1", "c1"]


@virtual_time
async def test_nothing_is_read_but_swept_without_a_hook_server() -> None:
    async with Synced("p1", "c1", hooked=False).running() as rig:
        await asyncio.sleep(1000)
        assert rig.state.asked == [], "nothing is known"
        rig.store.commit(container("c2", "p2"))
        await asyncio.sleep(SOONEST_SECONDS)
        assert (rig.known, rig.state.reads) == (set(), [])
        rig.store.commit(container("c3", "p3"))
        await asyncio.sleep(PASS_SECONDS + 1)
        assert (rig.known, rig.state.reads, len(rig.state.lists)) == (set(), [], 2)
        await asyncio.sleep(1000)
        assert len(rig.state.lists) == 2


@virtual_time
async def test_the_first_hook_server_brings_a_pass() -> None:
    async with Synced("p1", hooked=False).running() as rig:
        await asyncio.sleep(10)
        rig.plugins.add("a")
        await asyncio.sleep(1.1)
        assert rig.known == {"p1"}
        rig.plugins.add("b")
        await asyncio.sleep(5)
        assert len(rig.state.lists) == 1
        rig.plugins.plugins.clear()
        await asyncio.sleep(2)
        rig.state.has("p2")
        rig.plugins.add("c", points=("PreRunPodSandbox",))
        await asyncio.sleep(1.1)
        assert rig.known == {"p1", "p2"}


@virtual_time
async def test_a_create_without_an_answer_brings_a_pass() -> None:
    async with Synced("p1").running() as rig:
        await asyncio.sleep(5)
        await rig.run(FakeCall(Operation.CREATE_CONTAINER, reply=UNANSWERED))
        rig.state.has("c2")
        await asyncio.sleep(1.5)
        assert rig.known == {"p1", "c2"}


@virtual_time
async def test_a_few_are_read_at_one_time() -> None:
    rig = Synced("p1", *(f"c{number}" for number in range(20)))
    rig.state.read_seconds = 1
    async with rig.running():
        await asyncio.sleep(6.5)
        assert len(rig.known) == 21
    assert rig.state.at_once["container"] == READERS


@virtual_time
async def test_calls_come_first() -> None:
    """A call is held for 2 s: meanwhile each reader waits before it reads on."""
    rig = Synced("p1", *(f"c{number}" for number in range(8)))
    rig.plugins.add("slow", delay_seconds=2, points=("PreStartContainer",))
    held = rig.start(FakeCall(START, key="other"))
    await asyncio.sleep(0)
    async with rig.running():
        await asyncio.sleep(0.5)
        assert len(rig.known) == 9
        assert not held.done()
    at = [at for at, name in rig.state.asked if name != LIST]
    assert at[0] > 0
    assert at[-1] > at[1], "not all at once"
    await held


@virtual_time
async def test_a_full_node_is_known_in_five_seconds_beside_a_held_call() -> None:
    pods, containers = 1_000, 3_000
    rig = Synced(*(f"p{number}" for number in range(pods)), *(f"c{number}" for number in range(containers)))
    rig.state.read_seconds = 0.002
    rig.plugins.add("slow", delay_seconds=8, timeout_seconds=9, points=("PreStartContainer",))
    held = rig.start(FakeCall(START, key="other"))
    await asyncio.sleep(0)
    async with rig.running():
        await asyncio.sleep(5)
        assert rig.store.counts() == (pods, containers)
        assert not held.done()
    await held


# -- what no pass may touch --------------------------------------------------------------------------------------------


async def while_read(rig: Synced, one: str, act: Callable[[], object]) -> None:
    """Do something while ``one`` is read, which takes 1 s, and let the pass end."""
    rig.state.read_seconds = 1
    async with rig.running():
        while rig.state.reads[-1:] != [one]:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        act()
        await asyncio.sleep(1)
    assert rig.recorder.counted("syncs", result="complete") == 1


@virtual_time
async def test_a_record_committed_meanwhile_is_not_replaced() -> None:
    rig = Synced("p1", "c1")
    await while_read(rig, "c1", lambda: rig.store.commit(container("c1", name="committed")))
    assert rig.name("c1") == "committed"
    rig = Synced("p1")
    await while_read(rig, "p1", lambda: rig.store.commit(Subject(pod("p1", "committed"))))
    record = rig.store.pod("p1")
    assert record is not None
    assert record.effective.name == "committed"


@pytest.mark.parametrize("gone", ["c1", "p1"])
@virtual_time
async def test_a_record_dropped_meanwhile_does_not_come_back(gone: str) -> None:
    rig = Synced("p1", "c1")
    await while_read(rig, "c1", lambda: rig.store.forget(gone))
    assert "c1" not in rig.known
    assert gone not in rig.known


@virtual_time
async def test_a_subject_of_a_call_meanwhile_is_left_to_a_soon_pass() -> None:
    """An update of an unknown container passes while that is read: the status may be older than the update."""
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    rig.state.read_seconds = 1
    update = FakeCall(UPDATE, known=None, runtime_seconds=0.2)
    async with rig.running():
        await asyncio.sleep(1.5)
        await rig.run(update)
        rig.state.has("c1")
        await asyncio.sleep(1)
        assert (rig.known, rig.recorder.counted("syncs", result="complete")) == ({"p1"}, 1)
        await asyncio.sleep(LEFT_SECONDS + 2)
        assert rig.known == {"p1", "c1"}
    assert rig.state.reads == ["p1", "c1", "c1"]


@virtual_time
async def test_a_subject_of_a_call_under_way_is_left_to_a_next_pass() -> None:
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    update = rig.start(FakeCall(UPDATE, known=None, runtime_seconds=3))
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.known == {"p1"}
        await asyncio.sleep(LEFT_SECONDS + 2)
        assert rig.known == {"p1", "c1"}
    await update


@virtual_time
async def test_an_unreadable_call_holds_up_nothing() -> None:
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    error = Unreadable("cut")
    update = FakeCall(UPDATE, known_error=error, key=error, runtime_seconds=0.2)
    rig.state.read_seconds = 1
    async with rig.running():
        await asyncio.sleep(0.5)
        await rig.run(update)
        await asyncio.sleep(2)
        assert rig.known == {"p1", "c1"}


# -- what is dropped ---------------------------------------------------------------------------------------------------


@virtual_time
async def test_records_of_what_the_runtime_lacks_are_swept() -> None:
    async with Synced("p1", "c1", "c2", "p2").running() as rig:
        await asyncio.sleep(1)
        rig.state.lacks("p2", "c2")
        await asyncio.sleep(PASS_SECONDS)
        assert rig.known == {"p1", "c1"}
        assert sorted(rig.gone) == ["c2", "p2"]
        assert rig.recorder.counted("records_swept") == 2
    rig = Synced("p1")
    rig.sync = Sync(rig.state, rig.lifecycle, rig.recorder)
    rig.store.commit(container("c9", "p9"))
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.known == {"p1"}


@virtual_time
async def test_a_record_committed_after_the_list_was_asked_for_stays() -> None:
    """Also where it was known before: a runtime that answers of it has it."""
    rig = Synced("p1")
    for one in ("c1", "c2"):
        rig.store.commit(container(one, f"pod of {one}"))
    rig.state.list_seconds = 1
    async with rig.running():
        await asyncio.sleep(0.5)
        rig.store.commit(container("c1", "pod of c1", name="committed"))
        rig.store.commit(container("c3"))
        await asyncio.sleep(1)
        assert rig.known == {"p1", "c1", "pod of c1", "c3"}
        assert sorted(rig.gone) == ["c2", "pod of c2"]


@pytest.mark.parametrize("hooked", [True, False])
@virtual_time
async def test_kept_values_go_with_what_the_runtime_no_longer_has(hooked: bool) -> None:
    """Also where no hook server is registered, and no record is known."""
    rig = Synced("c1", hooked=hooked)
    kept = write(Kept(("p1", "main", 0), {"cgroup_parent": (None, "/a")}))
    rig.store.keep({"c1": kept, "c2": kept})
    async with rig.running():
        await asyncio.sleep(0.5)
        assert rig.store.kept_ids() == ({"c1"} if not hooked else set())
        assert ("c1" in rig.known) is hooked
        rig.state.lacks("c1")
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.store.kept_ids() | rig.known == set()


@virtual_time
async def test_a_calls_subject_is_not_swept_nor_is_its_pod() -> None:
    rig = Synced("p9")
    for one in ("c1", "c2"):
        rig.store.commit(container(one, f"pod of {one}"))
    rig.store.commit(Subject(pod("p3")))
    stops = [rig.start(FakeCall(STOP, key=key, known=None, runtime_seconds=3)) for key in ("c1", "p3")]
    await asyncio.sleep(0)
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.known == {"p9", "c1", "pod of c1", "p3"}
        await asyncio.gather(*stops)
        await asyncio.sleep(PASS_SECONDS)
        assert rig.known == {"p9"}


@virtual_time
async def test_a_pass_that_reads_something_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1")
    with caplog.at_level(logging.INFO):
        async with rig.running():
            await asyncio.sleep(2 * PASS_SECONDS)
            rig.state.has("c1")
            await asyncio.sleep(PASS_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        "the runtime's state is known: 1 pods, 0 containers (1 read in 0.0 s)",
        "the runtime's state is known: 1 pods, 1 containers (1 read in 0.0 s)",
    ]
    assert rig.recorder.gauges[("sync_seconds", ())] == 0.0


# -- a runtime that is away, or says odd things ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [AWAY, LATE])
@virtual_time
async def test_a_runtime_that_is_away_is_tried_up_to_once_a_second(
    error: BackendError, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Synced("p1", "c1")
    rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(5)
        waits = [round(later - earlier, 6) for earlier, later in pairwise(rig.state.lists)]
        assert waits[:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        assert caplog.records == []
        rig.state.errors.clear()
        with caplog.at_level(logging.INFO):
            await asyncio.sleep(1)
        assert rig.known == {"p1", "c1"}
        lists = len(rig.state.lists)
        await asyncio.sleep(PASS_SECONDS - 10)
        assert len(rig.state.lists) == lists
    assert rig.recorder.counted("syncs", result="failed") == lists - 1
    assert rig.recorder.counted("syncs", result="complete") == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the runtime's state is known: 1 pods, 1 containers (")


@virtual_time
async def test_a_read_that_fails_cancels_nobody_but_the_other_reads() -> None:
    """A cancel that stays behind ends the sync at its next wait (Python 3.11.2), for good and unseen."""
    rig = Synced("p1", "p2")
    rig.state.errors["p1"] = AWAY
    async with rig.running():
        await asyncio.sleep(0.01)
        assert rig.sync._task is not None
        assert rig.sync._task.cancelling() == 0
        assert rig.recorder.counted("syncs", result="failed") == 1


@pytest.mark.parametrize("one", ["p2", "c3"])
@virtual_time
async def test_one_that_is_unavailable_keeps_no_other_from_being_known(one: str) -> None:
    """The first time it may be the runtime that went away; the second time its list has come in between."""
    rig = Synced("p1", "p2", *(f"c{number}" for number in range(20)))
    rig.state.read_seconds = 0.01
    rig.state.errors[one] = AWAY
    others = {*rig.state.pods, *rig.state.containers} - {one}
    async with rig.running():
        await asyncio.sleep(5)
        assert rig.known == others
        await asyncio.sleep(10 * PASS_SECONDS)
        assert (len(rig.state.lists), rig.state.reads.count(one)) == (12, 12), "one a minute after the first two"
        assert rig.recorder.counted("syncs", result="failed") == 1
        assert rig.recorder.counted("records_unreadable") == 11
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 2)
        assert rig.known == others | {one}
        assert rig.sync._suspects == set()


@virtual_time
async def test_nothing_is_passed_over_where_the_runtime_goes_away() -> None:
    rig = Synced("p1", *(f"c{number}" for number in range(8)))
    rig.state.read_seconds = 1
    async with rig.running():
        await asyncio.sleep(2.5)
        rig.state.errors = dict.fromkeys((LIST, *rig.state.containers), AWAY)
        await asyncio.sleep(5)
        rig.state.errors.clear()
        await asyncio.sleep(5)
        assert rig.known == {"p1", *rig.state.containers}
    assert rig.recorder.counted("records_unreadable") == 0
    assert rig.sync._suspects == set()


@virtual_time
async def test_one_that_hangs_keeps_no_other_from_being_known(caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1", "p2", "c1", "c2")
    rig.state.errors["p1"] = rig.state.errors["c2"] = LATE
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS - 10)
        assert rig.known == {"p1", "p2", "c1"}, "p1 comes with its container"
        assert len(rig.state.lists) == 3
        assert rig.recorder.counted("syncs", result="complete") == 3
        late = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert late[0].startswith("the runtime tells nothing of 2 of its pods and containers in time")
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.known == {"p1", "p2", "c1", "c2"}
    assert rig.recorder.counted("records_late") == len(late) + 1


@virtual_time
async def test_the_first_retry_is_soon_again_after_a_pass() -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = AWAY
    async with rig.running():
        await asyncio.sleep(3)
        rig.state.errors.clear()
        await asyncio.sleep(3)
        rig.state.errors[LIST] = AWAY
        lists = len(rig.state.lists)
        rig.sync.soon()
        await asyncio.sleep(0.12)
        assert len(rig.state.lists) == lists + 2


@virtual_time
async def test_a_runtime_that_comes_back_is_listed_at_most_once_a_second() -> None:
    async with Synced("p1").running() as rig:
        for _ in range(50):
            rig.sync.soon()
            await asyncio.sleep(0.1)
    assert 4 <= len(rig.state.lists) <= 6


@pytest.mark.parametrize("error", [ODD, Unreadable("half a status"), None])
@pytest.mark.parametrize("one", ["p2", "c2"])
@virtual_time
async def test_an_unreadable_one_is_passed_over_until_the_runtime_returns(
    one: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Synced("p1", "p2", "c1", "c2")
    if error is None:
        (rig.state.pods if one == "p2" else rig.state.containers)[one] = None
    else:
        rig.state.errors[one] = error
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS)
        assert rig.known == {"p1", "p2", "c1", "c2"} - {one}
        assert rig.state.reads.count(one) == 1
        rig.state.errors.clear()
        rig.state.has(one)
        rig.sync.soon()
        await asyncio.sleep(1.5)
        assert rig.known == {"p1", "p2", "c1", "c2"}
    assert rig.recorder.counted("records_unreadable") == (error is not None)
    assert caplog.records == []


@pytest.mark.parametrize("error", [ODD, AWAY])
@virtual_time
async def test_one_that_failed_and_is_gone_is_remembered_no_more(error: BackendError) -> None:
    rig = Synced("p1", "c1")
    rig.state.errors["c1"] = error
    async with rig.running():
        await asyncio.sleep(1)
        rig.state.lacks("c1")
        await asyncio.sleep(PASS_SECONDS)
        assert rig.sync._passed_over == rig.sync._suspects == set()


@pytest.mark.parametrize("error", [ODD, Unreadable("a list that is none")])
@virtual_time
async def test_a_list_that_cannot_be_had_is_told_of_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(20)
        (record,) = caplog.records
        text = f"the runtime's state cannot be read ({error}): trying again, and what a call needs is read then"
        assert (record.levelname, record.getMessage()) == ("WARNING", text)
        rig.state.errors.clear()
        rig.sync.soon()
        await asyncio.sleep(2)
        assert rig.known == {"p1"}
        rig.state.errors[LIST] = error
        rig.sync.soon()
        await asyncio.sleep(5)
        assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [ODD, Unreadable("a list that is none"), KeyError(CANARY)])
@virtual_time
async def test_a_list_that_fails_is_asked_for_up_to_once_a_minute(error: Exception) -> None:
    """It may be too long for the runtime or for us, and is work for both."""
    rig = Synced("p1")
    rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(10 * PASS_SECONDS)
        waits = [later - earlier for earlier, later in pairwise(rig.state.lists)]
        assert waits[:2] == pytest.approx([0.05, 0.1])
        assert all(later == pytest.approx(min(2 * earlier, PASS_SECONDS)) for earlier, later in pairwise(waits))
        assert waits[-1] == pytest.approx(PASS_SECONDS)
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS)
        assert rig.known == {"p1"}


@virtual_time
async def test_a_runtime_that_returns_is_listed_at_once() -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = ODD
    async with rig.running():
        await asyncio.sleep(5 * PASS_SECONDS)
        rig.state.errors.clear()
        rig.sync.soon()
        await asyncio.sleep(SOONEST_SECONDS)
        assert rig.known == {"p1"}


@pytest.mark.parametrize("where", [LIST, "c1"])
@virtual_time
async def test_a_fault_of_our_own_is_counted_and_ends_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1", "c1", "c2")
    rig.state.errors[where] = KeyError(CANARY)
    async with rig.running():
        await asyncio.sleep(0.01)
        assert rig.recorder.counted("internal_errors", operation="sync") == 1
        rig.state.errors.clear()
        await asyncio.sleep(2)
        rig.sync.soon()
        await asyncio.sleep(1)
        assert rig.known == {"p1", "c1", "c2"}
    assert caplog.records[0].getMessage() == "internal error in reading the runtime's state"


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["", "p1", "c1"])
@virtual_time
async def test_a_stop_at_any_moment_leaves_nothing(missing: str) -> None:
    """Also in that in which the runtime leaves."""
    for steps in range(40):
        rig = Synced("p1", "c1", "c2")
        if missing:
            rig.state.errors[missing] = AWAY
        async with rig.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
    assert missing or rig.known == {"p1", "c1", "c2"}


@virtual_time
async def test_a_sync_that_never_started_can_be_stopped() -> None:
    await Synced().sync.stop()
