"""The backend with a scripted daemon: what it sends, on which connections, what it accepts, and how requests fail."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runtimeproxy.docker import backend as module
from runtimeproxy.docker.backend import ROWS_AT_ONCE, UNREADABLE, Backend, Event
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.relay.dial import SCARCE_RETRY_SECONDS
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS, STREAM_HEAD, Daemon, Then, chunk, event, reply, until
from tests.fakes.descriptors import no_descriptors

ID = "ab" * 32
AWAY, LATE, OTHER = BackendFailure.UNAVAILABLE, BackendFailure.DEADLINE, BackendFailure.OTHER
CANARY = b"canary-4711"
INSPECT, UPDATE, LIST = f"/containers/{ID}/json", f"/containers/{ID}/update", "/containers/json"
INSPECT_ROUTE, UPDATE_ROUTE = "GET /containers/{}/json", "POST /containers/{}/update"
BODY = b'{"CpuShares": 7}'
ROW = b'{"Id": "x", "Labels": {"io.kubernetes.docker.type": "container"}}'
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT_SECONDS = 0.05
LIMIT_SECONDS = 1.0
"""Seconds for a request: on a busy machine the answer may take a part of them."""


async def follow(backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await anext(events)


Ask = Callable[[Backend, float], Coroutine[Any, Any, object]]
ASKS: dict[str, tuple[str, Ask]] = {
    INSPECT_ROUTE: (INSPECT, lambda backend, _: backend.inspect(ID)),
    "GET /images/{}/json": ("/images/sha256%3Aff/json", lambda backend, _: backend.image("sha256:ff")),
    "GET /info": ("/info", lambda backend, _: backend.info()),
    "GET /containers/json": (LIST, lambda backend, _: backend.pods_containers()),
    UPDATE_ROUTE: (UPDATE, lambda backend, seconds: backend.update(ID, BODY, seconds)),
    "GET /events": (EVENTS, lambda backend, _: follow(backend)),
}
"""Every request: its name in errors, its path, and a function that sends it (``seconds`` are for the update)."""

limited = pytest.mark.usefixtures("_limited")
every_question = pytest.mark.parametrize("route", ASKS)
SHORT = list(ASKS)[:-1]


@pytest.fixture
def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit replies and lines to 1,000 bytes, check streams often, and keep idle connections only for a moment."""
    limits = {"REPLY_LIMIT": 1000, "LIST_LIMIT": 1000, "CHECK_SECONDS": SHORT_SECONDS, "KEPT_SECONDS": 0.001}
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)


async def failure(backend: Backend, route: str, seconds: float = PATIENCE_SECONDS) -> tuple[str, BackendFailure]:
    """Ask, and return how it fails: the text behind the route's name, which quotes nothing, and the kind."""
    with pytest.raises(BackendError) as caught:
        await ASKS[route][1](backend, seconds)
    name, _, text = str(caught.value).partition(": ")
    assert name == route
    assert CANARY.decode() not in text
    assert ID not in text
    return text, caught.value.kind


def test_aiohttp_is_not_loaded_before_it_is_needed() -> None:
    program = "import runtimeproxy.docker.sync, sys; sys.exit(bool({'aiohttp', 'yarl'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("route", list(ASKS)[:3])
@pytest.mark.parametrize("encoding", ["", "Content-Encoding: gzip\r\n"])
async def test_body_is_given_as_it_came(daemon: Daemon, backend: Backend, route: str, encoding: str) -> None:
    path, ask = ASKS[route]
    body = b'{"Big": 12345678901234567890, "x": "\xff"}'
    daemon.script(path, f"HTTP/1.1 200 OK\r\n{encoding}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert await ask(backend, PATIENCE_SECONDS) == body
    (request,) = daemon.requests
    assert (request.head.method, request.head.target, request.body) == ("GET", path, b"")
    assert (request.head.get("host"), request.head.get("accept")) == ("docker", "application/json")


REFERENCES = [(ID, ID), ("web-1_a.b", "web-1_a.b"), ("/web", "web"), ("//web", "%2Fweb"), ("a/b", "a%2Fb")]
REFERENCES += [("..", ".."), ("../images/x", "..%2Fimages%2Fx"), ("%2F%41", "%252F%2541"), ("\u00fc", "%C3%BC")]
REFERENCES += [("\udcff", "%FF"), ("a b?c=d#e&f", "a%20b%3Fc%3Dd%23e%26f"), ("a\r\nX: y", "a%0D%0AX%3A%20y")]


@pytest.mark.parametrize(("reference", "target"), REFERENCES)
async def test_reference_stays_one_path_segment(daemon: Daemon, backend: Backend, reference: str, target: str) -> None:
    assert await backend.inspect(reference) is None
    assert [request.head.target for request in daemon.requests] == [f"/containers/{target}/json"]
    assert [await backend.inspect(""), await backend.inspect("/"), await backend.image("")] == [None] * 3
    assert len(daemon.requests) == 1, "nobody is asked for nothing"


@pytest.mark.parametrize("status", [404, 301])
async def test_absence_is_none_and_no_redirect_is_followed(daemon: Daemon, backend: Backend, status: int) -> None:
    moved = f"HTTP/1.1 {status} Words\r\nLocation: /info\r\nContent-Length: 0\r\n\r\n".encode()
    for path in (INSPECT, "/images/x/json"):
        daemon.script(path, moved)
    assert [await backend.inspect(ID), await backend.image("x")] == [None, None]
    assert len(daemon.requests) == 2


NO_LISTS = [b"", b"{", b"{}x", b"null", b'[{"id": "x"}]', b'[{"Id": "x", "Labels": null}]', b"[1]", b'"x"']
NO_LISTS += [b"[" * 100_000, b"[", b"[]x", b"[,]", ROW[:-1], b"[" + ROW + b",", b"[" + ROW + b" x]", b"[" + ROW + b"]]"]
NO_LISTS += [b"\xff[]"]
LISTS = [b"[]", b" [ ]\n", b"[%b]" % ROW, b" [ %b , %b\n]\n" % (ROW, ROW)]


@pytest.mark.parametrize("body", LISTS + NO_LISTS)
async def test_list_is_read_in_any_spelling_or_is_an_error(daemon: Daemon, backend: Backend, body: bytes) -> None:
    daemon.script(LIST, reply(body))
    if body in LISTS:
        assert await backend.pods_containers() == [("x", "container")] * body.count(b"Id")
    else:
        assert await failure(backend, "GET /containers/json") == ("the reply is not a list of containers", OTHER)
    (request,) = daemon.requests
    assert (request.head.path, request.head.query["all"]) == (LIST, "1")
    assert json.loads(request.head.query["filters"]) == {"label": {"io.kubernetes.docker.type": True}}


async def test_calls_are_served_while_a_long_list_is_read() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    rows = [row async for row in module._rows(f"[{', '.join(['{}'] * 5 * ROWS_AT_ONCE)}]")]
    counting.cancel()
    assert (len(rows), turns) == (5 * ROWS_AT_ONCE, 5)


async def test_update_is_sent_as_it_is_on_a_connection_of_its_own(daemon: Daemon, backend: Backend) -> None:
    daemon.script(UPDATE, reply(b'{"Warnings": null}'))
    await backend.update(ID, BODY, 5.0)
    (request,) = daemon.requests
    assert (request.head.method, request.head.target, request.body) == ("POST", UPDATE, BODY)
    assert (request.head.get("content-type"), request.head.get("content-length")) == (
        "application/json",
        str(len(BODY)),
    )
    assert request.head.get("transfer-encoding") == ""
    daemon.script(INSPECT, reply())
    for _ in range(2):
        assert await backend.inspect(ID) == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert daemon.accepted == 4, "reads share one"


async def test_update_is_never_sent_twice(daemon: Daemon, backend: Backend) -> None:
    for raw in (b"", b"HTTP/1.1 2"):
        daemon.script(UPDATE, raw, Then.CLOSE)
        daemon.requests.clear()
        await failure(backend, UPDATE_ROUTE)
        assert len(daemon.requests) == 1


async def test_daemon_that_closes_after_each_reply_is_asked_again(daemon: Daemon, backend: Backend) -> None:
    for path in ("/info", UPDATE):  # without "Connection: close": the close is unexpected
        daemon.script(path, reply(), Then.CLOSE)
    for _ in range(20):
        assert await backend.info() == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert len(daemon.requests) == 40


async def test_many_questions_at_once_are_all_answered(daemon: Daemon, backend: Backend) -> None:
    daemon.hang(INSPECT)
    asked = [asyncio.create_task(backend.inspect(ID)) for _ in range(100)]
    await until(lambda: len(daemon.requests) == 100)
    daemon.script("/info", reply(b"[]"))
    assert await backend.info() == b"[]"  # a request does not wait for others
    daemon.send(reply())
    assert await asyncio.gather(*asked) == 100 * [b"{}"]


def test_full_backlog_is_waited_for(tmp_path: Path) -> None:
    """On uvloop, as the proxy runs: asyncio's own loop treats a full backlog as connected."""
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        assert uvloop.run(_asked_behind(listener, path)) == b"{}"


async def _asked_behind(listener: socket.socket, path: str) -> bytes:
    """Request the daemon's info, which must wait until the listener has accepted the connection that came first."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    backend = Backend(path)
    asked = asyncio.create_task(backend.info())
    await asyncio.sleep(SHORT_SECONDS)
    assert not asked.done()
    taken = [(await loop.sock_accept(listener))[0] for _ in range(2)]
    await loop.sock_recv(taken[1], 2**16)
    await loop.sock_sendall(taken[1], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    await asked
    await backend.close()
    for connection in taken:
        connection.close()
    return asked.result()


async def test_close_fails_what_is_under_way_and_may_be_followed_by_more(daemon: Daemon, backend: Backend) -> None:
    daemon.hang(INSPECT)
    tasks = [asyncio.create_task(backend.inspect(ID)), asyncio.create_task(follow(backend))]
    await until(lambda: len(daemon.requests) == 2)
    await backend.close()
    for task in tasks:
        with pytest.raises(BackendError):
            await task
    await daemon.left()
    daemon.script("/info", reply())
    assert await backend.info() == b"{}"
    await backend.close()
    await backend.close()


@every_question
@limited
async def test_cancel_at_any_moment_leaves_no_task_and_connection(daemon: Daemon, backend: Backend, route: str) -> None:
    """One connection may be kept for a moment for the next request."""
    path, ask = ASKS[route]
    if path != EVENTS:
        daemon.script(path, reply(b"[]"))
    others = asyncio.all_tasks()
    for steps in range(60):
        task = asyncio.create_task(ask(backend, PATIENCE_SECONDS))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await until(lambda: not daemon.connections and asyncio.all_tasks() == others)
    assert daemon.requests  # the later tasks got far enough to send one


REJECTED = [(500, b'{"message": "Invalid cpuset 0-99"}', "500: Invalid cpuset 0-99")]
REJECTED += [(500, b'{"message": "' + 5000 * b"x" + b'"}', f"500: {1024 * 'x'}")]
REJECTED += [(500, body, "500") for body in (b"plain text", b"[]", b'{"other": 1}', b"")]
REJECTED += [(404, b'{"message": "none"}', "404: none")]


@pytest.mark.parametrize(("status", "body", "words"), REJECTED)
async def test_rejected_update_has_daemons_words(
    daemon: Daemon, backend: Backend, status: int, body: bytes, words: str
) -> None:
    daemon.script(UPDATE, reply(body, status))
    assert await failure(backend, UPDATE_ROUTE) == (f"the daemon answered {words}", OTHER)


@pytest.mark.parametrize("route", [route for route in ASKS if route != UPDATE_ROUTE])
async def test_error_status_has_no_words_of_the_daemon(daemon: Daemon, backend: Backend, route: str) -> None:
    for status in (400, 500, 503):
        daemon.script(ASKS[route][0], reply(b'{"message": "' + CANARY + b'"}', status))
        assert await failure(backend, route) == (f"the daemon answered {status}", OTHER)


@every_question
async def test_daemon_that_is_away_is_an_error_at_once(tmp_path: Path, route: str) -> None:
    path = tmp_path / "docker.sock"
    backend = Backend(str(path))
    assert await failure(backend, route) == ("cannot connect: No such file or directory", AWAY)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert await failure(backend, route) == ("cannot connect: Connection refused", AWAY)
    await backend.close()
    too_long = Backend("/" + 200 * "x")
    assert "cannot connect" in (await failure(too_long, route))[0]
    await too_long.close()


@every_question
async def test_want_of_descriptors_is_waited_for(daemon: Daemon, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCARCE_RETRY_SECONDS", SCARCE_RETRY_SECONDS / 10)
    backend = Backend(daemon.path, seconds=PATIENCE_SECONDS)
    daemon.script(ASKS[route][0], reply(status=404))
    with no_descriptors():
        asking = asyncio.create_task(ASKS[route][1](backend, PATIENCE_SECONDS))
        await asyncio.sleep(0.3 * SCARCE_RETRY_SECONDS)
        assert not asking.done()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(daemon.requests) == 1
    await backend.close()


@every_question
async def test_want_of_descriptors_is_not_laid_to_the_daemon(daemon: Daemon, route: str) -> None:
    backend = Backend(daemon.path, seconds=SHORT_SECONDS)
    text = f"{route}: cannot connect: the proxy itself lacks what it needs: Too many open files"
    with no_descriptors(), pytest.raises(BackendError) as caught:
        await ASKS[route][1](backend, SHORT_SECONDS)
    assert (str(caught.value), caught.value.kind, caught.value.not_done) == (text, AWAY, True)
    await backend.close()


HALF_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + CANARY


@pytest.mark.parametrize(("route", "begun"), [*((route, b"") for route in ASKS), *((one, HALF_REPLY) for one in SHORT)])
async def test_reply_that_does_not_end_costs_the_limit(daemon: Daemon, route: str, begun: bytes) -> None:
    backend = Backend(daemon.path, seconds=0.1)
    daemon.script(ASKS[route][0], begun, Then.WAIT)
    assert await failure(backend, route, 0.1) == ("no answer in 0.1 s", LATE)
    await daemon.left()
    await backend.close()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_update_without_time_is_not_sent(daemon: Daemon, backend: Backend, seconds: float) -> None:
    assert await failure(backend, UPDATE_ROUTE, seconds) == ("no answer in 0 s", LATE)
    assert daemon.accepted == 0


@pytest.mark.parametrize("route", SHORT)
@pytest.mark.parametrize("chunked", [False, True])
@limited
async def test_reply_above_the_limit_is_an_error(daemon: Daemon, backend: Backend, route: str, chunked: bool) -> None:
    body = (CANARY * 100)[:1001]
    daemon.script(ASKS[route][0], ENDLESS + chunk(body[:500]) + chunk(body[500:]) if chunked else reply(body))
    assert await failure(backend, route) == ("the reply is longer than 1000 bytes", OTHER)
    daemon.script("/info", reply(1000 * b"x"))
    assert await backend.info() == 1000 * b"x"


BROKEN = [b"", CANARY + b"\r\n\r\n", ENDLESS + b"5\r\n" + CANARY, ENDLESS + CANARY + b"\r\n"]
BROKEN += [b"HTTP/1.1 200 " + CANARY + b"\r\nX: " + 100_000 * b"x" + b"\r\n\r\n"]
BROKEN += [b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n%b" % (length, CANARY) for length in (b"50", CANARY)]


@every_question
@pytest.mark.parametrize("raw", BROKEN)
async def test_broken_reply_is_an_error(daemon: Daemon, backend: Backend, route: str, raw: bytes) -> None:
    daemon.script(ASKS[route][0], raw, Then.CLOSE)
    assert (await failure(backend, route))[1] == AWAY


DESTROYED = Event("destroy", ID, 1)


@pytest.fixture
async def events(daemon: Daemon, backend: Backend) -> AsyncIterator[AsyncIterator[Event]]:
    async with backend.events(["destroy"], 1) as events:
        await until(lambda: bool(daemon.waiting))
        yield events


async def test_events_come_as_they_are_said(daemon: Daemon, backend: Backend) -> None:
    async with backend.events(["destroy", "rename"], 1_700_000_000_000_000_123) as events:
        await until(lambda: bool(daemon.waiting))
        daemon.say(event("destroy", ID, 5))
        assert await anext(events) == Event("destroy", ID, 5)
        daemon.say(event("rename", "c2", 6) + b"\n\r\n" + event("destroy", "net", Type="network"))
        daemon.say(event("health_status: healthy", "c3", 7))
        assert await anext(events) == Event("rename", "c2", 6)
        assert await anext(events) == Event("health_status: healthy", "c3", 7)
    (request,) = daemon.requests
    wanted = {"type": {"container": True}, "event": {"destroy": True, "rename": True}}
    assert (request.head.query["since"], json.loads(request.head.query["filters"])) == ("1700000000.000000123", wanted)


@pytest.mark.slow
@limited
async def test_quiet_stream_is_waited_on_beyond_the_limit(daemon: Daemon) -> None:
    backend = Backend(daemon.path, seconds=LIMIT_SECONDS)
    async with backend.events(["destroy"], 1) as events:
        await until(lambda: bool(daemon.waiting))
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


LINES = [b"garbage", b'{"Type": "container"', b"null", b"[]", b"{}", b"\xff\xfecanary-4711", b"[" * 100_000]
LINES += [b'{"Type": "container", "Action": "destroy", "Actor": {}, "timeNano": 1}']
LINES += [b'{"Type": "container", "Action": 1, "Actor": {"ID": "x"}, "timeNano": 1}']
LINES += [event("destroy", ID).replace(b'"timeNano"', b'"time"').strip()]
LINES += [event("destroy", ID, at).strip() for at in (0, 2**63)]


@pytest.mark.parametrize("line", LINES)
async def test_unreadable_line_ends_no_stream(daemon: Daemon, events: AsyncIterator[Event], line: bytes) -> None:
    daemon.say(line + b"\n" + event("destroy", ID))
    assert await anext(events) is UNREADABLE
    assert await anext(events) == DESTROYED


@limited
async def test_line_above_the_limit_ends_the_stream(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    daemon.say(999 * b"x" + b"\n" + 999 * b"x")
    assert await anext(events) is UNREADABLE
    daemon.say(2 * b"x")
    with pytest.raises(BackendError, match="GET /events: a line is longer than 1000 bytes"):
        await anext(events)


@pytest.mark.parametrize(("end", "why"), [(b"0\r\n\r\n", "the stream ended$"), (b"", ""), (b"5\r\n{", "")])
async def test_end_of_the_stream_is_an_error(daemon: Daemon, backend: Backend, end: bytes, why: str) -> None:
    daemon.script(EVENTS, STREAM_HEAD + chunk(event("destroy", ID)) + end, Then.CLOSE)
    async with backend.events(["destroy"], 1) as events:
        assert await anext(events) == DESTROYED
        with pytest.raises(BackendError, match=f"^GET /events: {why}"):
            await anext(events)


@limited
async def test_stream_that_is_no_longer_chunked_ends(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    daemon.say(event("destroy", ID))
    assert await anext(events) == DESTROYED
    daemon.send(b"garbage\r\n")
    with pytest.raises(BackendError, match=r"^GET /events: the stream broke off$"):
        await anext(events)


async def test_follower_that_stops_reading_makes_the_daemon_wait(daemon: Daemon, events: AsyncIterator[Event]) -> None:
    async def send() -> None:
        (stream,) = daemon.waiting
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
