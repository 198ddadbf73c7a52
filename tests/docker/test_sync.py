"""The daemon's events keep the Store right: what each means, and how a daemon that comes and goes is followed."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from runtimeproxy.docker.backend import Backend, Event
from runtimeproxy.docker.sync import REPLAY_SECONDS, Events
from runtimeproxy.errors import BackendError
from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.store import Store
from runtimeproxy.telemetry import Recorder
from tests.docker.daemon import EVENTS, Daemon, Reply, event, until
from tests.fakes.clock import virtual_time

POD, OTHER_POD, CONTAINER, LATER = (letter * 64 for letter in "abcd")
PLAIN = "e" * 64
"""A container that is no pod's."""
ALL = {POD, OTHER_POD, CONTAINER}
STARTED_NS = 1_700_000_000_000_000_000
CANARY = "canary-4711"


def pod(pod_id: str) -> PodRecord:
    return PodRecord(PodInfo(id=pod_id), PodInfo(id=pod_id))


def container(container_id: str) -> Subject:
    info = ContainerInfo(id=container_id, pod_id=POD)
    return Subject(pod(POD), ContainerRecord(info, info))


def tasks() -> set[asyncio.Task[object]]:
    """Return the tasks that are not the caller's own."""
    return asyncio.all_tasks() - {asyncio.current_task()}


class Rig:
    """The follower of a daemon that may be there or not; two pods and a container are known."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = Store()
        for subject in (Subject(pod(POD)), Subject(pod(OTHER_POD)), container(CONTAINER)):
            self.store.commit(subject)
        self.recorder = Recorder(asyncio.get_running_loop().time)
        self.gone: list[str] = []
        self.connects = 0
        self.missed = 0
        """How often something may have happened that was not heard of."""
        self.fails_with: list[Exception] = []
        """What the next connects fail with."""
        self.events = Events(
            self.backend,
            self.store,
            self.recorder,
            on_gone=self.gone.append,
            on_connected=self._connected,
            on_missed=self._missed,
            wall_clock_ns=lambda: STARTED_NS,
        )

    async def _connected(self) -> None:
        self.connects += 1
        if self.fails_with:
            raise self.fails_with.pop()

    def _missed(self) -> None:
        self.missed += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow; at the end nothing is left of it."""
        others = tasks()
        task = asyncio.create_task(self.events.run())
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self.backend.close()
        await until(lambda: tasks() <= others)

    @property
    def known(self) -> set[str]:
        found = self.store.snapshot()
        return {record.effective.id for record in found.pods} | {record.effective.id for record in found.containers}


@pytest.fixture
async def rig(daemon: Daemon) -> AsyncIterator[Rig]:
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await until(lambda: rig.missed == 1)
        yield rig


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "runtimeproxy")


async def said(daemon: Daemon, rig: Rig, *lines: bytes) -> None:
    """Say some events, and one more that shows that they have been taken."""
    daemon.say(b"".join(lines) + event("rename", "the-end", 10**6))
    await until(lambda: rig.gone[-1:] == ["the-end"])
    rig.gone.pop()


# ---- what events mean


async def test_what_the_daemon_has_stays(daemon: Daemon, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await said(daemon, rig)
    assert (rig.known, rig.gone, rig.connects, caplog.records) == (ALL, [], 1, [])
    (request,) = daemon.asked(EVENTS)
    assert request.query["since"] == "1700000000.000000000"
    assert json.loads(request.query["filters"])["event"] == {"destroy": True, "rename": True, "update": True}


DESTROYED = [(CONTAINER, {POD, OTHER_POD}), (OTHER_POD, {POD, CONTAINER}), (POD, {OTHER_POD, CONTAINER}), (PLAIN, ALL)]


@pytest.mark.parametrize(("destroyed", "left"), DESTROYED)
async def test_destroyed_is_forgotten(daemon: Daemon, rig: Rig, destroyed: str, left: set[str]) -> None:
    rig.events.expect_update(destroyed)
    await said(daemon, rig, event("destroy", destroyed))
    assert (rig.known, rig.gone, dict(rig.events.expected_updates)) == (left, [destroyed], {})
    assert rig.recorder.counted("backend_events", action="destroy") == 1


async def test_rename_drops_what_is_remembered_beside_the_store(daemon: Daemon, rig: Rig) -> None:
    await said(daemon, rig, event("rename", CONTAINER), event("rename", PLAIN))
    assert (rig.known, rig.gone) == (ALL, [CONTAINER, PLAIN])


@pytest.mark.parametrize("action", ["create", "start", "die", "kill", "oom", "restart", "prune", ""])
async def test_other_actions_change_nothing(daemon: Daemon, rig: Rig, action: str) -> None:
    await said(daemon, rig, event(action, CONTAINER), event(action, POD))
    assert (rig.known, rig.gone) == (ALL, [])


@pytest.mark.parametrize(
    ("updated", "left"), [(CONTAINER, {POD, OTHER_POD}), (POD, {OTHER_POD, CONTAINER}), (PLAIN, ALL)]
)
async def test_updated_by_others_is_read_anew(daemon: Daemon, rig: Rig, updated: str, left: set[str]) -> None:
    await said(daemon, rig, event("update", updated))
    assert (rig.known, rig.gone, rig.recorder.counted("updates_of_others")) == (left, [], 1)


async def test_own_updates_change_nothing_each_once(daemon: Daemon, rig: Rig) -> None:
    rig.events.expect_update(CONTAINER)
    rig.events.expect_update(CONTAINER)
    await said(daemon, rig, event("update", CONTAINER), event("update", CONTAINER))
    assert (rig.known, dict(rig.events.expected_updates)) == (ALL, {})
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


@pytest.mark.parametrize("expected", [0, 2])
async def test_refused_update_is_expected_no_more(daemon: Daemon, rig: Rig, expected: int) -> None:
    for _ in range(expected):
        rig.events.expect_update(CONTAINER)
    for _ in range(expected + 1):  # once more than expected: it stays at none
        rig.events.no_update(CONTAINER)
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


async def test_count_below_none_expects_nothing(daemon: Daemon, rig: Rig) -> None:
    rig.events.expected_updates[CONTAINER] -= 1
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


async def test_destroyed_does_not_come_back_with_a_call_under_way(daemon: Daemon, rig: Rig) -> None:
    await said(daemon, rig, event("destroy", LATER), event("destroy", CONTAINER))
    rig.store.commit(container(LATER))
    rig.store.commit(container(CONTAINER))
    assert rig.known == {POD, OTHER_POD}


async def test_unreadable_line_means_that_something_was_missed(
    daemon: Daemon, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await said(daemon, rig, b'{"Type": "container", "' + CANARY.encode() + b"\n", event("destroy", OTHER_POD))
    assert (rig.recorder.counted("backend_events_unreadable"), rig.missed, caplog.records) == (1, 2, [])
    assert (rig.known, rig.gone) == ({POD, CONTAINER}, [OTHER_POD])
    assert len(daemon.asked(EVENTS)) == 1


async def test_what_a_list_no_longer_has_is_forgotten_beyond_the_store(rig: Rig) -> None:
    rig.events.expect_update(CONTAINER)
    rig.events.gone(CONTAINER)
    assert (rig.gone, dict(rig.events.expected_updates)) == ([CONTAINER], {})


# ---- the daemon comes and goes

slow = pytest.mark.slow
BACK = ("INFO", "the daemon's events are followed again")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of what was logged."""
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


def away(reason: str) -> tuple[str, str]:
    return "WARNING", f"the daemon's events cannot be followed ({reason}): trying again until they can"


async def tried(rig: Rig) -> None:
    """Wait until one more connect has failed."""
    failures = rig.recorder.counted("backend_event_dial_failures")
    await until(lambda: rig.recorder.counted("backend_event_dial_failures") > failures)


@slow
async def test_each_going_and_coming_is_told_once_and_something_was_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "docker.sock")
    rig = Rig(Backend(path))
    async with rig.running():
        for _ in range(3):
            await tried(rig)
        assert rig.known == ALL
        for time in (1, 2):
            async with Daemon(path) as daemon:
                await daemon.followed()
                await until(lambda: told(caplog)[-1] == BACK)
                assert rig.missed == time
                daemon.say(event("destroy", CONTAINER))
                await until(lambda: rig.known == {POD, OTHER_POD})
            await tried(rig)
    assert (rig.connects, rig.recorder.counted("backend_event_stream_losses")) == (2, 2)
    assert levels(caplog) == ["WARNING", "INFO", "WARNING", "INFO", "WARNING"]
    assert told(caplog)[0] == away("GET /events: cannot connect: No such file or directory")


@slow
@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"", b"5\r\n{"])
async def test_stream_that_ends_is_followed_from_where_it_ended(daemon: Daemon, end: bytes) -> None:
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await daemon.followed()
        daemon.say(event("rename", CONTAINER, 41_000_000_007))
        await until(lambda: bool(rig.gone))
        (stream,) = daemon.streams
        stream.write(end)
        stream.close()
        await daemon.followed(2)
        await until(lambda: rig.connects == 2)
        daemon.say(event("rename", POD, 42_000_000_000))
        await until(lambda: rig.gone == [CONTAINER, POD])
    assert [request.query["since"] for request in daemon.asked(EVENTS)] == ["1700000000.000000000", "41.000000008"]
    assert rig.recorder.counted("backend_event_stream_losses") == 1


@slow
@pytest.mark.parametrize("reply", [Reply(500, b'{"message": "canary-4711"}'), Reply(404), Reply(raw=b"canary-4711")])
async def test_daemon_that_answers_badly_is_asked_again(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, reply: Reply
) -> None:
    daemon.reply(EVENTS, reply)
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await until(lambda: len(daemon.asked(EVENTS)) >= 3)
        assert rig.missed == 0
        del daemon.replies[EVENTS]
        await until(lambda: rig.missed == 1)
    assert levels(caplog) == ["WARNING", "INFO"]
    assert CANARY not in caplog.text


@slow
async def test_connect_that_the_front_cannot_use_is_tried_again(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Backend(daemon.path))
    rig.fails_with = [BackendError("GET /info: why"), BackendError("GET /info: again")]
    async with rig.running():
        await until(lambda: rig.missed == 1)
    assert (rig.connects, told(caplog)) == (3, [away("GET /info: again"), BACK])
    assert rig.recorder.counted("backend_event_stream_losses") == 2


@slow
async def test_fault_of_our_own_is_counted_and_does_not_end_the_following(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Backend(daemon.path))
    rig.fails_with = [ValueError(CANARY)]
    async with rig.running():
        await until(lambda: rig.missed == 1)
    assert rig.recorder.counted("internal_errors", operation="events") == 1
    assert (levels(caplog), told(caplog)[-1]) == (["ERROR", "WARNING", "INFO"], BACK)
    assert CANARY not in "".join(text for _, text in told(caplog))


class Scripted(Backend):
    """A daemon that lives for so many seconds each time, or tells what is said to it, and goes away with None."""

    def __init__(self, *lives: float) -> None:
        super().__init__("/nobody/docker.sock")
        self.asked: list[float] = []
        self.say: asyncio.Queue[Event | None] = asyncio.Queue()
        self._lives = list(lives)

    @asynccontextmanager
    async def events(self, actions: Collection[str], since_ns: int) -> AsyncIterator[AsyncIterator[Event]]:
        self.asked.append(asyncio.get_running_loop().time())
        if self._lives:
            await asyncio.sleep(self._lives.pop(0))
            raise BackendError("gone")
        yield self._said()

    async def _said(self) -> AsyncIterator[Event]:
        while (event := await self.say.get()) is not None:
            yield event
        raise BackendError("gone")


@slow
@virtual_time
async def test_daemon_that_is_away_is_tried_down_to_once_a_second() -> None:
    backend = Scripted(0, 0, 0, 0, 0, 0, 0, 5.0, 0, 0, 0)
    rig = Rig(backend)
    async with rig.running():
        await asyncio.sleep(20)
    waits = [round(later - earlier, 6) for earlier, later in pairwise(backend.asked)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 5.05, 0.1, 0.2, 0.4]


@slow
async def test_cancel_at_any_moment_leaves_no_task_and_no_connection(daemon: Daemon) -> None:
    for steps in range(100):
        rig = Rig(Backend(daemon.path))
        async with rig.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        await daemon.left()
    assert daemon.asked(EVENTS)  # the later ones got so far


@slow
@pytest.mark.parametrize("replayed", [False, True])
@virtual_time
async def test_update_whose_event_was_lost_is_not_expected_for_ever(replayed: bool) -> None:
    backend = Scripted()
    rig = Rig(backend)
    async with rig.running():
        await asyncio.sleep(1)
        for _ in range(2):
            rig.events.expect_update(CONTAINER)
        backend.say.put_nowait(None)
        await asyncio.sleep(1)
        rig.events.expect_update(CONTAINER)
        if replayed:
            backend.say.put_nowait(Event("update", CONTAINER, 10))
        await asyncio.sleep(REPLAY_SECONDS + 1)
        assert dict(rig.events.expected_updates) == {CONTAINER: 1}, "the one of later"
        for time, known in ((20, True), (30, False)):
            backend.say.put_nowait(Event("update", CONTAINER, time))
            await asyncio.sleep(1)
            assert (CONTAINER in rig.known) is known
