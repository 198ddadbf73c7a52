"""The event stream as the backend reads it: lines cut anywhere, lines that are none, and its end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.docker import backend as backend_module
from runtimeproxy.docker.backend import UNREADABLE, Backend, Event
from runtimeproxy.errors import BackendError
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS, STREAM_HEAD, Daemon, Reply, chunk, event, until
from tests.docker.questions import CANARY, ID, SHORT_SECONDS

LIMIT_SECONDS = 1.0
"""Of a request: a busy machine may take some of it to answer."""


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon


@pytest.fixture
async def backend(daemon: Daemon) -> AsyncIterator[Backend]:
    backend = Backend(daemon.path)
    yield backend
    await backend.close()


async def test_events_come_as_they_are_said(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy", "rename"], 1_700_000_000_000_000_123) as events:
        await daemon.followed()
        daemon.say(event("destroy", ID, 5))
        assert await anext(events) == Event("destroy", ID, 5)
        daemon.say(event("rename", "c2", 6) + b"\n\r\n" + event("health_status: healthy", "c3", 7))
        assert await anext(events) == Event("rename", "c2", 6)
        assert await anext(events) == Event("health_status: healthy", "c3", 7)
    (request,) = daemon.requests
    assert request.query["since"] == "1700000000.000000123"
    assert json.loads(request.query["filters"]) == {
        "type": {"container": True},
        "event": {"destroy": True, "rename": True},
    }
    await daemon.left()


async def test_a_quiet_stream_is_waited_on_beyond_the_limit(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "CHECK_SECONDS", SHORT_SECONDS)
    backend = Backend(daemon.path, seconds=LIMIT_SECONDS)
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        quiet = asyncio.create_task(_next(events))
        await asyncio.sleep(1.2 * LIMIT_SECONDS)
        assert not quiet.done()
        daemon.say(event("destroy", ID))
        assert (await quiet).id == ID
    await backend.close()


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def test_events_are_read_however_they_are_cut(daemon: Daemon, backend: Backend) -> None:
    line = event("destroy", ID)
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        for cut in range(len(line) + 1):
            for part in (line[:cut], line[cut:]):
                if part:  # an empty chunk would end the stream
                    daemon.say(part)
            assert await anext(events) == Event("destroy", ID, 1)
        for byte in line + line:
            daemon.say(bytes((byte,)))
        assert [await anext(events), await anext(events)] == 2 * [Event("destroy", ID, 1)]


async def test_the_streams_own_bytes_may_be_cut_anywhere(daemon: Daemon, backend: Backend) -> None:
    raw = STREAM_HEAD + chunk(event("destroy", ID)) + chunk(event("rename", ID, 2))
    for cut in range(0, len(raw), 3):
        daemon.reply(EVENTS, Reply()).gate.clear()
        daemon.requests.clear()
        asked = asyncio.create_task(_two(backend))
        await until(lambda: bool(daemon.requests))
        (connection,) = daemon.connections
        connection.write(raw[:cut])
        await asyncio.sleep(0)
        connection.write(raw[cut:])
        assert await asked == [Event("destroy", ID, 1), Event("rename", ID, 2)]
        await daemon.left()


async def _two(backend: Backend) -> list[Event]:
    async with backend.events(["destroy"], 1) as events:
        return [await anext(events), await anext(events)]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b'{"Type": "container"',
        b"null",
        b"[]",
        b"{}",
        b'{"Type": "container", "Action": "destroy", "Actor": {}, "timeNano": 1}',
        b'{"Type": "container", "Action": 1, "Actor": {"ID": "x"}, "timeNano": 1}',
        event("destroy", ID).replace(b'"timeNano"', b'"time"').strip(),
        event("destroy", ID, 0).strip(),
        event("destroy", ID, 2**63).strip(),
        b"\xff\xfe" + CANARY,
        b"[" * 100_000,
    ],
)
async def test_a_line_that_cannot_be_read_is_told_and_the_stream_goes_on(
    daemon: Daemon, backend: Backend, line: bytes
) -> None:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.say(line + b"\n" + event("destroy", ID))
        assert await anext(events) is UNREADABLE
        assert await anext(events) == Event("destroy", ID, 1)


async def test_what_is_not_about_containers_is_left_out(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.say(event("destroy", "net", Type="network") + event("destroy", ID))
        assert (await anext(events)).id == ID


async def test_a_line_above_the_limit_ends_the_stream(
    daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "REPLY_LIMIT", 1000)
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.say(999 * b"x" + b"\n" + 999 * b"x")
        assert await anext(events) is UNREADABLE
        daemon.say(2 * b"x")
        with pytest.raises(BackendError, match="GET /events: a line is longer than 1000 bytes"):
            await anext(events)
    await daemon.left()


async def test_the_end_of_the_stream_is_an_error(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(EVENTS, Reply(raw=STREAM_HEAD + chunk(event("destroy", ID)) + b"0\r\n\r\n"))
    async with backend.events(["destroy"], 1) as events:
        assert (await anext(events)).id == ID
        with pytest.raises(BackendError, match=r"^GET /events: the stream ended$"):
            await anext(events)


async def test_a_daemon_that_dies_is_an_error(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.drop()
        with pytest.raises(BackendError, match=r"^GET /events: "):
            await anext(events)


async def test_a_stream_that_is_no_longer_chunked_ends(
    daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "CHECK_SECONDS", SHORT_SECONDS)
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.say(event("destroy", ID))
        assert (await anext(events)).id == ID
        (stream,) = daemon.streams
        stream.write(b"garbage\r\n")
        with pytest.raises(BackendError, match=r"^GET /events: the stream broke off$"):
            await anext(events)


async def test_a_follower_that_fails_leaves_no_connection(daemon: Daemon, backend: Backend) -> None:
    others = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        await _fail_at_the_first(daemon, backend)
    await until(lambda: not daemon.connections and asyncio.all_tasks() == others)


async def test_a_follower_that_stops_reading_makes_the_daemon_wait(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        (stream,) = daemon.streams
        line = event("destroy", ID, filler=10_000 * "x")
        sent = asyncio.create_task(_send(stream, chunk(line), 400))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sent), 4 * SHORT_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(400):
                assert (await anext(events)).id == ID
        await sent


async def _fail_at_the_first(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await daemon.followed()
        daemon.say(event("destroy", ID) + event("destroy", ID))
        async for _ in events:
            raise ZeroDivisionError


async def _send(stream: asyncio.StreamWriter, data: bytes, times: int) -> None:
    for _ in range(times):
        stream.write(data)
        await stream.drain()
