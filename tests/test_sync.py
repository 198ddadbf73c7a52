"""The Store follows the runtime beside the calls: what is read, what is dropped, and what no pass may touch."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from runtimeproxy.call import Unreadable
from runtimeproxy.hookpoints import Operation
from runtimeproxy.kept import Kept, write
from runtimeproxy.model import Subject
from runtimeproxy.sync import LEFT_SECONDS, PASS_SECONDS, READERS, Sync
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.state import LIST, container, pod
from tests.fakes.synced import Synced

STOP = Operation.STOP_CONTAINER


# -- what is read ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_at_the_start_all_is_read_pods_before_containers() -> None:
    rig = Synced("p1", "p2", "c1", "c2", "c3")
    async with rig.running():
        await asyncio.sleep(0.5)
        assert rig.known == {"p1", "p2", "c1", "c2", "c3"}
        assert rig.state.reads == ["p1", "p2", "c1", "c2", "c3"]
        assert rig.store.container("c1") == rig.state.containers["c1"].container  # type: ignore[union-attr]
        assert rig.recorder.counted("records_read") == 5
        assert rig.recorder.counted("syncs", result="complete") == 1


@virtual_time
async def test_nothing_is_asked_before_the_front_says_that_the_runtime_is_there() -> None:
    rig = Synced("p1")
    rig.sync.start()
    await asyncio.sleep(1000)
    assert rig.state.asked == []
    rig.sync.soon()
    await asyncio.sleep(0.1)
    assert rig.known == {"p1"}
    await rig.sync.stop()


@virtual_time
async def test_what_is_known_is_not_read() -> None:
    rig = Synced("p1", "c1", "c2")
    rig.store.commit(container("c1", name="committed"))
    async with rig.running():
        await asyncio.sleep(0.5)
    assert rig.state.reads == ["c2"]
    assert rig.name("c1") == "committed"


@virtual_time
async def test_a_pass_is_made_every_minute() -> None:
    assert PASS_SECONDS == 60
    rig = Synced("p1")
    async with rig.running():
        await asyncio.sleep(5)
        rig.state.has("c1")
        await asyncio.sleep(3 * PASS_SECONDS)
    assert len(rig.state.lists) == 4
    assert all(PASS_SECONDS <= later - earlier <= PASS_SECONDS + 1 for earlier, later in pairwise(rig.state.lists))
    assert rig.known == {"p1", "c1"}
    assert rig.state.reads == ["p1", "c1"]


@virtual_time
async def test_without_a_hook_server_and_without_records_nothing_is_asked() -> None:
    rig = Synced("p1", "c1", hooked=False)
    async with rig.running():
        await asyncio.sleep(1000)
        assert rig.state.asked == []


@virtual_time
async def test_without_a_hook_server_nothing_is_read_but_what_is_gone_is_dropped() -> None:
    rig = Synced("p1", "c1", hooked=False)
    rig.store.commit(container("c2", "p2"))
    async with rig.running():
        await asyncio.sleep(0.5)
        assert (rig.known, rig.state.reads) == (set(), [])
        rig.store.commit(container("c3", "p3"))
        await asyncio.sleep(PASS_SECONDS + 1)
        assert (rig.known, rig.state.reads, len(rig.state.lists)) == (set(), [], 2)
        await asyncio.sleep(1000)
        assert len(rig.state.lists) == 2


@virtual_time
async def test_the_first_hook_server_brings_a_pass_and_so_does_the_next_first_one() -> None:
    rig = Synced("p1", hooked=False)
    async with rig.running():
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
    held = rig.start(FakeCall(Operation.START_CONTAINER, key="other"))
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
async def test_a_full_node_is_known_in_five_seconds_although_a_call_is_held_all_the_time() -> None:
    pods, containers = 1_000, 3_000
    rig = Synced(*(f"p{number}" for number in range(pods)), *(f"c{number}" for number in range(containers)))
    rig.state.read_seconds = 0.002
    rig.plugins.add("slow", delay_seconds=8, timeout_seconds=9, points=("PreStartContainer",))
    held = rig.start(FakeCall(Operation.START_CONTAINER, key="other"))
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
async def test_what_a_call_committed_meanwhile_is_not_replaced() -> None:
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
async def test_what_was_dropped_meanwhile_does_not_come_back(gone: str) -> None:
    rig = Synced("p1", "c1")
    await while_read(rig, "c1", lambda: rig.store.forget(gone))
    assert "c1" not in rig.known
    assert gone not in rig.known


@virtual_time
async def test_what_a_call_was_about_meanwhile_is_left_to_a_next_pass_that_comes_soon() -> None:
    """An update of an unknown container passes while that is read: the status may be older than the update."""
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    rig.state.read_seconds = 1
    update = FakeCall(Operation.UPDATE_CONTAINER_RESOURCES, known=None, runtime_seconds=0.2)
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
async def test_what_a_call_is_about_now_is_left_to_a_next_pass() -> None:
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    update = rig.start(FakeCall(Operation.UPDATE_CONTAINER_RESOURCES, known=None, runtime_seconds=3))
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.known == {"p1"}
        await asyncio.sleep(LEFT_SECONDS + 2)
        assert rig.known == {"p1", "c1"}
    await update


@virtual_time
async def test_a_call_whose_message_cannot_be_read_holds_up_nothing() -> None:
    rig = Synced("p1", "c1")
    rig.plugins.plugins.clear()
    rig.plugins.add("a", points=("PreRunPodSandbox",))
    error = Unreadable("cut")
    update = FakeCall(Operation.UPDATE_CONTAINER_RESOURCES, known_error=error, key=error, runtime_seconds=0.2)
    rig.state.read_seconds = 1
    async with rig.running():
        await asyncio.sleep(0.5)
        await rig.run(update)
        await asyncio.sleep(2)
        assert rig.known == {"p1", "c1"}


# -- what is dropped ---------------------------------------------------------------------------------------------------


@virtual_time
async def test_what_the_runtime_no_longer_has_is_swept() -> None:
    rig = Synced("p1", "c1", "c2", "p2")
    async with rig.running():
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
async def test_what_was_committed_after_the_list_was_asked_for_stays() -> None:
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
async def test_what_is_kept_of_what_the_runtime_no_longer_has_is_dropped(hooked: bool) -> None:
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
async def test_what_a_call_is_about_is_not_swept_nor_is_its_pod() -> None:
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
