"""The daemon's events keep the Store correct: the effect of each, and the stream across restarts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise

import pytest

from runtimeproxy.core.store import Store
from runtimeproxy.docker.backend import UNREADABLE, Backend, Event
from runtimeproxy.docker.sync import REPLAY_SECONDS, EventFollower
from runtimeproxy.errors import BackendError
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.observe.metrics import Metrics
from tests.fakes.clock import virtual_time
from tests.observe.events import shown_of

pytestmark = virtual_time

POD, OTHER_POD, CONTAINER, LATER, PLAIN = (letter * 64 for letter in "abcde")  # the last one has no pod
ALL = {POD, OTHER_POD, CONTAINER}
BACK = ("INFO", "the daemon's events are followed again")
STARTED_NS = 1_700_000_000_000_000_000
destroyed, updated = partial(Event, "destroy", time_ns=1), partial(Event, "update", time_ns=1)


def pod(pod_id: str) -> PodRecord:
    return PodRecord(PodInfo(id=pod_id), PodInfo(id=pod_id))


def container(container_id: str) -> Subject:
    info = ContainerInfo(id=container_id, pod_id=POD)
    return Subject(pod(POD), ContainerRecord(info, info))


class Rig(Backend):
    """An EventFollower, and its daemon, whose stream fails after ``fails`` seconds, once each, then has the events of a
    test, and ends with None. The first connects fail with ``faults``. The Store has two pods and a container.
    """

    def __init__(self, fails: Sequence[float], faults: Sequence[Exception]) -> None:
        super().__init__("/nobody/docker.sock")
        self.queried: list[tuple[float, int]] = []
        """When each request of the events was made, and its ``since_ns``."""
        self.actions: set[str] = set()
        self.stream: asyncio.Queue[Event | None] = asyncio.Queue()
        self._fails, self._faults = list(fails), list(faults)
        self.store = Store()
        for subject in (Subject(pod(POD)), Subject(pod(OTHER_POD)), container(CONTAINER)):
            self.store.commit(subject)
        self.metrics = Metrics(asyncio.get_running_loop().time)
        self.removed: list[str] = []
        self.ends: list[tuple[str, str]] = []
        self.connects, self.missed = 0, list[None]()
        self.follower = EventFollower(
            *(self, self.store, self.metrics),
            on_removed=self.removed.append,
            on_died=lambda container_id: self.ends.append(("die", container_id)),
            on_restarted=lambda container_id: self.ends.append(("restart", container_id)),
            on_connected=self._connected,
            on_missed=lambda: self.missed.append(None),
            wall_clock_ns=lambda: STARTED_NS,
        )

    @asynccontextmanager
    async def events(self, actions: Collection[str], since_ns: int) -> AsyncIterator[AsyncIterator[Event]]:
        self.queried.append((asyncio.get_running_loop().time(), since_ns))
        self.actions = set(actions)
        if self._fails:
            await asyncio.sleep(self._fails.pop(0))
            raise BackendError("away")
        yield self._stream()

    async def _stream(self) -> AsyncIterator[Event]:
        while (event := await self.stream.get()) is not None:
            yield event
        raise BackendError("gone")

    async def _connected(self) -> None:
        self.connects += 1
        if self._faults:
            raise self._faults.pop(0)

    async def emit(self, *events: Event | None) -> None:
        for event in events:
            self.stream.put_nowait(event)
        await asyncio.sleep(0.001)

    @property
    def expected(self) -> dict[str, int]:
        return dict(self.follower.expected_updates)


@asynccontextmanager
async def following(*fails: float, faults: Sequence[Exception] = ()) -> AsyncIterator[Rig]:
    """Follow a daemon; check at the end that no task remains."""
    rig, earlier_tasks = Rig(fails, faults), asyncio.all_tasks()
    task = asyncio.create_task(rig.follower.run())
    yield rig
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() <= earlier_tasks


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "runtimeproxy")


async def test_destroy_and_external_update_remove_record() -> None:
    for object_id in (*ALL, PLAIN):
        remaining = ALL - {object_id}
        async with following() as rig:
            rig.follower.expect_update(object_id)
            await rig.emit(destroyed(object_id))
        assert (rig.store.ids(), rig.removed, rig.expected) == (remaining, [object_id], {})
        assert rig.metrics.counted("backend_events", action="destroy") == 1
        async with following() as rig:
            await rig.emit(updated(object_id))
        assert (rig.store.ids(), rig.removed) == (remaining, [])
        assert rig.metrics.counted("updates_of_others") == 1


async def test_own_update_event_is_ignored_once() -> None:
    async with following() as rig:
        for _ in range(3):
            rig.follower.expect_update(CONTAINER)
        rig.follower.cancel_update(CONTAINER)
        await rig.emit(updated(CONTAINER), updated(CONTAINER))
        assert (rig.store.ids(), rig.expected) == (ALL, {})
        rig.follower.cancel_update(CONTAINER)  # once more than expected: the count stays 0
        await rig.emit(updated(CONTAINER))
        assert CONTAINER not in rig.store.ids()
        rig.follower.expect_update(LATER)
        rig.follower.forget_container(LATER)
        assert (rig.removed, rig.expected) == ([LATER], {}), "an object that is missing in a list sends no event"


async def test_other_actions_do_not_change_store(caplog: pytest.LogCaptureFixture) -> None:
    async with following() as rig:
        await asyncio.sleep(100)
        assert rig.actions == {"destroy", "die", "rename", "restart", "update"}
        assert [since for _, since in rig.queried] == [STARTED_NS]
        assert (rig.store.ids(), rig.removed, rig.connects, len(rig.missed), caplog.records) == (ALL, [], 1, 1, [])
        await rig.emit(Event("rename", CONTAINER, 1), Event("rename", PLAIN, 1))
        assert rig.removed == [CONTAINER, PLAIN], "a cache next to the Store may have the name"
        for action in ("create", "start", "die", "kill", "oom", "restart", "prune", ""):
            await rig.emit(Event(action, CONTAINER, 1), Event(action, POD, 1))
        await rig.emit(None)  # so it is cancelled in its wait for the next try
    assert (rig.store.ids(), rig.removed) == (ALL, [CONTAINER, PLAIN])
    assert rig.ends == [(action, object_id) for action in ("die", "restart") for object_id in (CONTAINER, POD)]


async def test_unreadable_line_counts_as_missed_event(caplog: pytest.LogCaptureFixture) -> None:
    async with following() as rig:
        await rig.emit(UNREADABLE, destroyed(LATER), destroyed(CONTAINER))
    assert (rig.metrics.counted("backend_events_unreadable"), len(rig.missed), caplog.records) == (1, 2, [])
    assert (rig.removed, len(rig.queried)) == ([LATER, CONTAINER], 1)
    for destroyed_id in (LATER, CONTAINER):
        rig.store.commit(container(destroyed_id))
    assert rig.store.ids() == {POD, OTHER_POD}, "a call that has not ended stores no destroyed object"


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def unavailable(reason: str) -> tuple[str, str]:
    return "WARNING", f"the daemon's events cannot be followed ({reason}): trying again until they can"


async def test_new_stream_continues_after_last_event(caplog: pytest.LogCaptureFixture) -> None:
    async with following(0, 0, 0) as rig:
        await rig.emit(Event("rename", CONTAINER, 41_000_000_007), None)
        await asyncio.sleep(10)
        await rig.emit(Event("rename", POD, 42_000_000_000))
    assert [since for _, since in rig.queried] == [STARTED_NS] * 4 + [41_000_000_008]
    assert (rig.removed, rig.connects, len(rig.missed)) == ([CONTAINER, POD], 2, 2)
    failed = [rig.metrics.counted(f"backend_event_{failure}") for failure in ("dial_failures", "stream_losses")]
    assert (failed, logged(caplog)) == ([3, 1], [unavailable("away"), BACK, unavailable("gone"), BACK])
    recorded = [(event["kind"], event.get("reason")) for event in shown_of(rig.metrics.events)]
    assert recorded == 2 * [("runtime_lost", "unavailable"), ("runtime_back", None)]


async def test_internal_error_is_counted_without_values(caplog: pytest.LogCaptureFixture) -> None:
    async with following(faults=[ValueError("canary-4711")]) as rig:
        await asyncio.sleep(10)
    assert rig.metrics.counted("internal_errors", operation="events") == 1
    error = ("ERROR", "internal error in following the daemon's events")
    assert logged(caplog) == [error, unavailable("internal error"), BACK]
    assert rig.metrics.events.last == 0, "the runtime is there"


async def test_reconnect_delay_grows_to_one_second() -> None:
    async with following(0, 0, 0, 0, 0, 0, 0, 5.0, 0, 0, 0) as rig:
        await asyncio.sleep(20)
    waits = [round(later - earlier, 6) for (earlier, _), (later, _) in pairwise(rig.queried)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 5.05, 0.1, 0.2, 0.4]


@pytest.mark.parametrize("replayed", [False, True])
async def test_expectation_of_lost_update_event_expires(replayed: bool) -> None:
    async with following() as rig:
        await asyncio.sleep(1)
        for _ in range(2):
            rig.follower.expect_update(CONTAINER)
        await rig.emit(None)
        await asyncio.sleep(1)
        rig.follower.expect_update(CONTAINER)
        if replayed:
            await rig.emit(updated(CONTAINER, time_ns=10))
        await asyncio.sleep(REPLAY_SECONDS + 1)
        assert rig.expected == {CONTAINER: 1}, "the update after the loss"
        for time, is_stored in ((20, True), (30, False)):
            await rig.emit(updated(CONTAINER, time_ns=time))
            assert (CONTAINER in rig.store.ids()) is is_stored
