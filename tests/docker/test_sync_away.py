"""The daemon comes late, dies, comes back, or answers badly: its events are followed again, and one line tells."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from runtimeproxy.docker.backend import Backend, Event
from runtimeproxy.docker.sync import REPLAY_SECONDS
from runtimeproxy.errors import BackendError
from tests.docker.daemon import EVENTS, Daemon, Reply, event, until
from tests.docker.following import CONTAINER, OTHER_POD, POD, Rig
from tests.fakes.clock import virtual_time

pytestmark = pytest.mark.slow

CANARY = "canary-4711"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon
        await daemon.left()


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "runtimeproxy")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of what was logged."""
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def away(reason: str) -> tuple[str, str]:
    return "WARNING", f"the daemon's events cannot be followed ({reason}): trying again until they can"


BACK = ("INFO", "the daemon's events are followed again")
MISSING = away("GET /events: cannot connect: No such file or directory")


async def test_a_daemon_that_was_there_is_no_news(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await until(lambda: rig.missed == 1)
        assert rig.connects == 1
    assert told(caplog) == []


async def test_a_daemon_that_comes_late_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "docker.sock")
    rig = Rig(Backend(path))
    async with rig.running():
        await until(lambda: rig.recorder.counted("backend_event_dial_failures") >= 3)
        assert rig.known == {POD, OTHER_POD, CONTAINER}
        async with Daemon(path) as daemon:
            await daemon.followed()
            await until(lambda: rig.missed == 1)
            daemon.say(event("destroy", POD))
            await until(lambda: rig.known == {OTHER_POD, CONTAINER})
            assert told(caplog) == [MISSING, BACK]
    assert rig.connects == 1


async def test_after_each_going_and_coming_which_is_told_once_something_was_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "docker.sock")
    rig = Rig(Backend(path))
    async with rig.running():
        await tried(rig)
        for time in (1, 2):
            async with Daemon(path) as daemon:
                await daemon.followed()
                await until(lambda: told(caplog)[-1] == BACK)
                assert rig.missed == time
            await tried(rig)
    assert rig.connects == 2
    assert rig.recorder.counted("backend_event_stream_losses") == 2
    assert [level for level, _ in told(caplog)] == ["WARNING", "INFO", "WARNING", "INFO", "WARNING"]


async def tried(rig: Rig) -> None:
    """Wait until one more connect has failed."""
    failures = rig.recorder.counted("backend_event_dial_failures")
    await until(lambda: rig.recorder.counted("backend_event_dial_failures") > failures)


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"", b"5\r\n{"])
async def test_a_stream_that_ends_is_followed_from_where_it_ended(daemon: Daemon, end: bytes) -> None:
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


@pytest.mark.parametrize("reply", [Reply(500, b'{"message": "canary-4711"}'), Reply(404), Reply(raw=b"canary-4711")])
async def test_a_daemon_that_answers_badly_is_asked_again(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, reply: Reply
) -> None:
    daemon.reply(EVENTS, reply)
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await until(lambda: len(daemon.asked(EVENTS)) >= 3)
        assert rig.missed == 0
        del daemon.replies[EVENTS]
        await until(lambda: rig.missed == 1)
        assert [level for level, _ in told(caplog)] == ["WARNING", "INFO"]
    assert CANARY not in caplog.text


async def test_a_connect_that_the_front_cannot_use_is_tried_again(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Backend(daemon.path))
    rig.fails_with = [BackendError("GET /info: why"), BackendError("GET /info: again")]
    async with rig.running():
        await until(lambda: rig.missed == 1)
        assert rig.connects == 3
        assert told(caplog) == [away("GET /info: again"), BACK]
    assert rig.recorder.counted("backend_event_stream_losses") == 2


async def test_a_fault_of_our_own_is_counted_and_does_not_end_the_following(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Backend(daemon.path))
    rig.fails_with = [ValueError(CANARY)]
    async with rig.running():
        await until(lambda: rig.missed == 1)
        assert told(caplog)[-1] == BACK
    assert rig.recorder.counted("internal_errors", operation="events") == 1
    assert [level for level, _ in told(caplog)] == ["ERROR", "WARNING", "INFO"]
    assert CANARY not in "".join(text for _, text in told(caplog))


class Dying(Backend):
    """A daemon whose event stream ends after so many seconds each time, at once when none are left."""

    def __init__(self, lives: list[float]) -> None:
        super().__init__("/nobody/docker.sock")
        self.asked: list[float] = []
        self._lives = lives

    @asynccontextmanager
    async def events(self, actions: Collection[str], since_ns: int) -> AsyncIterator[AsyncIterator[Event]]:
        self.asked.append(asyncio.get_running_loop().time())
        if self._lives:
            await asyncio.sleep(self._lives.pop(0))
        raise BackendError("gone")
        yield


@virtual_time
async def test_a_daemon_that_is_away_is_tried_ever_more_rarely_down_to_once_a_second() -> None:
    backend = Dying([0, 0, 0, 0, 0, 0, 0, 5.0])
    rig = Rig(backend)
    async with rig.running():
        await asyncio.sleep(10)
    waits = [round(later - earlier, 6) for earlier, later in pairwise(backend.asked)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 5.05, 0.1, 0.2, 0.4]


async def test_a_cancel_at_any_moment_leaves_no_task_and_no_connection(daemon: Daemon) -> None:
    for steps in range(100):
        rig = Rig(Backend(daemon.path))
        async with rig.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        await daemon.left()
    assert daemon.asked(EVENTS)  # the later ones got so far


class Told(Backend):
    """A daemon that tells what is said to it, and goes away when nothing is."""

    def __init__(self) -> None:
        super().__init__("/nobody/docker.sock")
        self.say: asyncio.Queue[Event | None] = asyncio.Queue()

    @asynccontextmanager
    async def events(self, actions: Collection[str], since_ns: int) -> AsyncIterator[AsyncIterator[Event]]:
        yield self._said()

    async def _said(self) -> AsyncIterator[Event]:
        while (event := await self.say.get()) is not None:
            yield event
        raise BackendError("gone")


@pytest.mark.parametrize("replayed", [False, True])
@virtual_time
async def test_an_update_whose_event_was_lost_is_not_expected_for_ever(replayed: bool) -> None:
    backend = Told()
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
        backend.say.put_nowait(Event("update", CONTAINER, 20))
        await asyncio.sleep(1)
        assert CONTAINER in rig.known
        backend.say.put_nowait(Event("update", CONTAINER, 30))
        await asyncio.sleep(1)
        assert CONTAINER not in rig.known
