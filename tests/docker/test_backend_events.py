"""The event stream as the backend reads it: lines cut anywhere, lines that are none, and its end."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.docker import backend as module
from runtimeproxy.docker.backend import UNREADABLE, Backend, Event
from runtimeproxy.errors import BackendError
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS, STREAM_HEAD, Daemon, Reply, chunk, event, until

ID = "ab" * 32
SHORT_SECONDS = 0.05
LIMIT_SECONDS = 1.0
"""Of a request: a busy machine may take some of it to answer."""
DESTROYED = Event("destroy", ID, 1)


@pytest.fixture
async def events(daemon: Daemon, backend: Backend) -> AsyncIterator[AsyncIterator[Event]]:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        yield events


async def test_events_come_as_they_are_said(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy", "rename"], 1_700_000_000_000_000_123) as events:
        await daemon.followed()
        daemon.say(event("destroy", ID, 5))
        assert await anext(events) == Event("destroy", ID, 5)
        daemon.say(event("rename", "c2", 6) + b"\n\r\n" + event("health_status: healthy", "c3", 7))
        assert await anext(events) == Event("rename", "c2", 6)
        assert await anext(events) == Event("health_status: healthy", "c3", 7)
    (request,) = daemon.requests
    wanted = {"type": {"container": True}, "event": {"destroy": True, "rename": True}}
    assert (request.query["since"], json.loads(request.query["filters"])) == ("1700000000.000000123", wanted)


async def test_quiet_stream_is_waited_on_beyond_the_limit(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", SHORT_SECONDS)
    backend = Backend(daemon.path, seconds=LIMIT_SECONDS)
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        quiet = asyncio.ensure_future(anext(events))
        await asyncio.sleep(1.2 * LIMIT_SECONDS)
        assert not quiet.done()
        daemon.say(event("destroy", ID))
        assert await quiet == DESTROYED
    await backend.close()


async def test_events_are_read_however_they_are_cut(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    line = event("destroy", ID)
    for cut in range(len(line) + 1):
        for part in (line[:cut], line[cut:]):
            if part:  # an empty chunk would end the stream
                daemon.say(part)
        assert await anext(events) == DESTROYED
    for byte in line + line:
        daemon.say(bytes((byte,)))
    assert [await anext(events), await anext(events)] == 2 * [DESTROYED]


async def test_streams_own_bytes_may_be_cut_anywhere(daemon: Daemon, backend: Backend) -> None:
    async def two() -> list[Event]:
        async with backend.events(["destroy"], 1) as events:
            return [await anext(events), await anext(events)]

    raw = STREAM_HEAD + chunk(event("destroy", ID)) + chunk(event("rename", ID, 2))
    for cut in range(0, len(raw), 3):
        daemon.reply(EVENTS, Reply()).gate.clear()
        daemon.requests.clear()
        asked = asyncio.create_task(two())
        await until(lambda: bool(daemon.requests))
        (connection,) = daemon.connections
        connection.write(raw[:cut])
        await asyncio.sleep(0)
        connection.write(raw[cut:])
        assert await asked == [DESTROYED, Event("rename", ID, 2)]
        await daemon.left()


LINES = [b"garbage", b'{"Type": "container"', b"null", b"[]", b"{}", b"\xff\xfecanary-4711", b"[" * 100_000]
LINES += [b'{"Type": "container", "Action": "destroy", "Actor": {}, "timeNano": 1}']
LINES += [b'{"Type": "container", "Action": 1, "Actor": {"ID": "x"}, "timeNano": 1}']
LINES += [event("destroy", ID).replace(b'"timeNano"', b'"time"').strip()]
LINES += [event("destroy", ID, at).strip() for at in (0, 2**63)]


@pytest.mark.parametrize("line", LINES)
async def test_unreadable_line_is_told_and_the_stream_goes_on(
    daemon: Daemon, events: AsyncIterator[Event], line: bytes
) -> None:
    daemon.say(line + b"\n" + event("destroy", ID))
    assert await anext(events) is UNREADABLE
    assert await anext(events) == DESTROYED


async def test_what_is_not_about_containers_is_left_out(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    daemon.say(event("destroy", "net", Type="network") + event("destroy", ID))
    assert await anext(events) == DESTROYED


async def test_line_above_the_limit_ends_the_stream(
    daemon: Daemon, events: AsyncIterator[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_LIMIT", 1000)
    daemon.say(999 * b"x" + b"\n" + 999 * b"x")
    assert await anext(events) is UNREADABLE
    daemon.say(2 * b"x")
    with pytest.raises(BackendError, match="GET /events: a line is longer than 1000 bytes"):
        await anext(events)


async def test_end_of_the_stream_is_an_error(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(EVENTS, Reply(raw=STREAM_HEAD + chunk(event("destroy", ID)) + b"0\r\n\r\n"))
    async with backend.events(["destroy"], 1) as events:
        assert await anext(events) == DESTROYED
        with pytest.raises(BackendError, match=r"^GET /events: the stream ended$"):
            await anext(events)


async def test_daemon_that_dies_is_an_error(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    daemon.drop()
    with pytest.raises(BackendError, match=r"^GET /events: "):
        await anext(events)


async def test_stream_that_is_no_longer_chunked_ends(
    daemon: Daemon, events: AsyncIterator[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", SHORT_SECONDS)
    daemon.say(event("destroy", ID))
    assert await anext(events) == DESTROYED
    (stream,) = daemon.streams
    stream.write(b"garbage\r\n")
    with pytest.raises(BackendError, match=r"^GET /events: the stream broke off$"):
        await anext(events)


async def test_follower_that_fails_leaves_no_connection(daemon: Daemon, backend: Backend) -> None:
    async def fail() -> None:
        async with backend.events(["destroy"], 1) as events:
            await daemon.followed()
            daemon.say(event("destroy", ID) + event("destroy", ID))
            async for _ in events:
                raise ZeroDivisionError

    others = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        await fail()
    await until(lambda: not daemon.connections and asyncio.all_tasks() == others)


async def test_follower_that_stops_reading_makes_the_daemon_wait(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    async def send() -> None:
        (stream,) = daemon.streams
        for _ in range(400):
            stream.write(chunk(event("destroy", ID, filler=10_000 * "x")))
            await stream.drain()

    sent = asyncio.create_task(send())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sent), 4 * SHORT_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(400):
            assert (await anext(events)).id == ID
    await sent
