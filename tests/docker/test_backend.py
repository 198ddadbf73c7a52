"""The proxy's own requests to dockerd: their bytes, connections, accepted replies, and failures."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import uvloop

from runtimeproxy.docker import backend as module
from runtimeproxy.docker.backend import CHECK_SECONDS, ROWS_PER_ITERATION, UNREADABLE, Backend, Event
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.relay.dial import SCARCE_RETRY_SECONDS
from tests.docker.client import PATIENCE_SECONDS
from tests.docker.daemon import reply
from tests.fakes.descriptors import no_descriptors
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_wire import Injection, chunk

ID = "ab" * 32
UNAVAILABLE, DEADLINE, OTHER = BackendFailure.UNAVAILABLE, BackendFailure.DEADLINE, BackendFailure.OTHER
CANARY = b"canary-4711"
DESTROYED = Event("destroy", ID, 1)
INSPECT, UPDATE, EVENTS = "GET /containers/{ref}/json", "POST /containers/{ref}/update", "GET /events"
INFO, LIST, IMAGE = "GET /info", "GET /containers/json", "GET /images/{ref}/json"
BODY = b'{"CpuShares": 7}'
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT_SECONDS = 0.05


async def follow(backend: Backend, _: float = 0) -> None:
    async with backend.events(["destroy"], 1) as events:
        await anext(events)


REQUESTS: dict[str, Callable[[Backend, float], Coroutine[object, object, object]]] = {
    INSPECT: lambda backend, _: backend.inspect(ID),
    IMAGE: lambda backend, _: backend.image("sha256:ff"),
    INFO: lambda backend, _: backend.info(),
    LIST: lambda backend, _: backend.list_containers(),
    UPDATE: lambda backend, seconds: backend.update(ID, BODY, seconds),
    EVENTS: follow,
}
"""Every request, by its route; ``seconds`` are the limit of the update."""


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as daemon:
        yield daemon
        await until(lambda: not daemon.connections)


@pytest.fixture
async def backend(daemon: FakeDockerd) -> AsyncIterator[Backend]:
    backend = Backend(daemon.socket_path)
    yield backend
    await backend.close()


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit replies and lines to 1,000 bytes, check streams often, and keep idle connections only for a moment."""
    limits = {"REPLY_LIMIT": 1000, "LIST_LIMIT": 1000, "CHECK_SECONDS": SHORT_SECONDS, "IDLE_SECONDS": 0.001}
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)


def script(daemon: FakeDockerd, route: str, raw: bytes, closes: bool = False) -> None:
    """Set the reply to a route's requests; the connection stays open after it unless it ``closes``."""
    daemon.inject(route, Injection(raw=raw, cut_after_bytes=len(raw) if closes else None))


async def failure(backend: Backend, route: str, seconds: float = PATIENCE_SECONDS) -> tuple[str, BackendFailure]:
    """Send a request, and return how it fails: the text after the route's name, which quotes nothing, and the kind."""
    with pytest.raises(BackendError) as caught:
        await REQUESTS[route](backend, seconds)
    name, _, text = str(caught.value).partition(": ")
    assert name == route.replace("{ref}", "{}")
    assert CANARY.decode() not in text
    assert ID not in text
    return text, caught.value.kind


async def test_body_is_returned_unchanged(daemon: FakeDockerd, backend: Backend) -> None:
    body = b'{"Big": 12345678901234567890, "x": "\xff"}'
    for route, encoding in product([INSPECT, IMAGE, INFO], ["", "Content-Encoding: gzip\r\n"]):
        script(daemon, route, f"HTTP/1.1 200 OK\r\n{encoding}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert await REQUESTS[route](backend, PATIENCE_SECONDS) == body
        head = daemon.received.pop().head
        assert (head.get("host"), head.get("accept"), head.length) == ("docker", "application/json", 0)
        assert not daemon.received


async def test_reference_is_one_segment(daemon: FakeDockerd, backend: Backend) -> None:
    references = [(ID, ID), ("web-1_a.b", "web-1_a.b"), ("/web", "web"), ("//web", "%2Fweb"), ("a/b", "a%2Fb")]
    references += [("..", ".."), ("../images/x", "..%2Fimages%2Fx"), ("%2F%41", "%252F%2541"), ("\u00fc", "%C3%BC")]
    references += [("\udcff", "%FF"), ("a b?c=d#e&f", "a%20b%3Fc%3Dd%23e%26f"), ("a\r\nX: y", "a%0D%0AX%3A%20y")]
    for reference, target in references:
        assert await backend.inspect(reference) is None
        assert daemon.received[-1].target == f"/containers/{target}/json"
    daemon.received.clear()
    assert [await backend.inspect(""), await backend.inspect("/"), await backend.image("")] == [None] * 3
    assert not daemon.received, "an empty reference is no request"
    for route in (INSPECT, IMAGE):
        script(daemon, route, b"HTTP/1.1 301 Moved\r\nLocation: /info\r\nContent-Length: 0\r\n\r\n")
    assert [await backend.inspect(ID), await backend.image("x")] == [None, None]
    assert len(daemon.received) == 2, "no redirect is followed"


async def test_list_is_read_in_any_json_format(daemon: FakeDockerd, backend: Backend) -> None:
    row = b'{"Id": "x", "Labels": {"io.kubernetes.docker.type": "container"}}'
    no_lists = [b"", b"{", b"{}x", b"null", b'[{"id": "x"}]', b'[{"Id": "x", "Labels": null}]', b"[1]", b'"x"']
    no_lists += [
        b"\xff[]",
        b"[" * 100_000,
        b"[",
        b"[]x",
        b"[,]",
        row[:-1],
        b"[%b," % row,
        b"[%b x]" % row,
        b"[%b]]" % row,
    ]
    lists = [b"[]", b" [ ]\n", b"[%b]" % row, b" [ %b , %b\n]\n" % (row, row)]
    for body in lists + no_lists:
        script(daemon, LIST, reply(body))
        if body in lists:
            assert await backend.list_containers() == [("x", "container")] * body.count(b"Id")
        else:
            assert await failure(backend, LIST) == ("the reply is not a list of containers", OTHER)
        query = daemon.received.pop().head.query
        assert (query["all"], json.loads(query["filters"])) == ("1", {"label": {"io.kubernetes.docker.type": True}})


async def test_long_list_does_not_block_event_loop() -> None:
    iterations = list[None]()

    async def count() -> None:
        while True:
            iterations.append(await asyncio.sleep(0))

    counting = asyncio.ensure_future(count())
    rows = [row async for row in module._rows(f"[{', '.join(['{}'] * 5 * ROWS_PER_ITERATION)}]")]
    counting.cancel()
    assert (len(rows), len(iterations)) == (5 * ROWS_PER_ITERATION, 4)


async def test_update_uses_new_connection_and_reads_share_one(daemon: FakeDockerd, backend: Backend) -> None:
    script(daemon, UPDATE, reply())
    script(daemon, INSPECT, reply())
    for _ in range(2):
        assert await backend.inspect(ID) == b"{}"
        await backend.update(ID, BODY, 5.0)
    update = daemon.requests(UPDATE)[0]
    assert (update.target, update.head.length) == (f"/containers/{ID}/update", len(BODY))
    assert update.head.get("content-type") == "application/json"
    assert [received.connection for received in daemon.received] == [0, 1, 0, 2]
    for raw in (b"", b"HTTP/1.1 2"):
        script(daemon, UPDATE, raw, closes=True)
        daemon.received.clear()
        await failure(backend, UPDATE)
        assert len(daemon.received) == 1
    daemon.received.clear()
    script(daemon, INFO, reply(), closes=True)  # without "Connection: close": the close is unexpected
    for _ in range(20):
        assert await backend.info() == b"{}"
    assert len(daemon.received) == 20, "a read is repeated when its connection had ended"


async def test_requests_do_not_wait_for_each_other(daemon: FakeDockerd, backend: Backend) -> None:
    hang = daemon.inject(INSPECT, Injection(hang=True, raw=reply()))
    waiting = [asyncio.create_task(backend.inspect(ID)) for _ in range(100)]
    await until(lambda: hang.hanging == 100)
    assert await backend.info()
    hang.release()
    assert await asyncio.gather(*waiting) == 100 * [b"{}"]


def test_full_backlog_is_waited_for(tmp_path: Path) -> None:
    """On uvloop, as the proxy runs: asyncio's own loop treats a full backlog as connected."""
    path = str(tmp_path / "docker.sock")

    async def request_info(listener: socket.socket) -> bytes:
        loop, backend = asyncio.get_running_loop(), Backend(path)
        listener.setblocking(False)
        info = asyncio.create_task(backend.info())
        await asyncio.sleep(SHORT_SECONDS)
        assert not info.done()
        with (await loop.sock_accept(listener))[0], (await loop.sock_accept(listener))[0] as accepted:
            await loop.sock_recv(accepted, 2**16)
            await loop.sock_sendall(accepted, reply())
            await info
            await backend.close()
        return info.result()

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        assert uvloop.run(request_info(listener)) == b"{}"


async def test_close_fails_requests_and_allows_later_ones(daemon: FakeDockerd, backend: Backend) -> None:
    script(daemon, INSPECT, b"")
    async with backend.events(["destroy"], 1) as events:
        tasks = [asyncio.ensure_future(backend.inspect(ID)), asyncio.ensure_future(anext(events))]
        await until(lambda: len(daemon.received) == 2)
        await backend.close()
        async with asyncio.timeout(CHECK_SECONDS / 2):  # not by the check of a quiet stream
            for task in tasks:
                with pytest.raises(BackendError):
                    await task
    await until(lambda: not daemon.connections)
    assert await backend.info()
    await backend.close()
    await backend.close()


@pytest.mark.parametrize("route", [INSPECT, UPDATE, EVENTS])
@pytest.mark.usefixtures("limited")
async def test_cancel_leaves_no_task_and_connection(daemon: FakeDockerd, backend: Backend, route: str) -> None:
    """At any moment; an idle connection may stay open briefly for the next request."""
    if route != EVENTS:
        script(daemon, route, reply(b"[]"))
    before = asyncio.all_tasks()
    for steps in range(60):
        task = asyncio.create_task(REQUESTS[route](backend, PATIENCE_SECONDS))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await until(lambda: not daemon.connections and asyncio.all_tasks() == before)
    assert daemon.received, "the later tasks lasted long enough to send one"


async def test_only_rejected_update_quotes_daemon(daemon: FakeDockerd, backend: Backend) -> None:
    rejected = [(500, b'{"message": "Invalid cpuset 0-99"}', "500: Invalid cpuset 0-99")]
    rejected += [(500, b'{"message": "' + 5000 * b"x" + b'"}', f"500: {1024 * 'x'}")]
    rejected += [(500, body, "500") for body in (b"plain text", b"[]", b'{"other": 1}', b"")]
    rejected += [(404, b'{"message": "none"}', "404: none")]
    for status, body, text in rejected:
        script(daemon, UPDATE, reply(body, status))
        assert await failure(backend, UPDATE) == (f"the daemon answered {text}", OTHER)
    for route in REQUESTS.keys() - {UPDATE}:
        script(daemon, route, reply(b'{"message": "' + CANARY + b'"}', 503))
        assert await failure(backend, route) == ("the daemon answered 503", OTHER)


async def test_unavailable_daemon_raises(tmp_path: Path) -> None:
    absent, dead, too_long = str(tmp_path / "absent"), str(tmp_path / "dead"), "/" + 200 * "x"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(dead)
    for route, (path, why) in product(
        REQUESTS, ((absent, "No such file"), (dead, "Connection refused"), (too_long, ""))
    ):
        backend = Backend(path)
        text, kind = await failure(backend, route)
        assert (text.startswith(f"cannot connect: {why}"), kind) == (True, UNAVAILABLE)
        await backend.close()


@pytest.mark.parametrize("route", [INSPECT, EVENTS])
async def test_missing_descriptors_are_waited_for(
    daemon: FakeDockerd, backend: Backend, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCARCE_RETRY_SECONDS", SCARCE_RETRY_SECONDS / 10)
    script(daemon, route, reply(status=404))
    with no_descriptors():
        waiting = asyncio.create_task(REQUESTS[route](backend, PATIENCE_SECONDS))
        await asyncio.sleep(0.3 * SCARCE_RETRY_SECONDS)
        assert not waiting.done()
        text = "cannot connect: the proxy itself lacks what it needs: Too many open files"
        backend._seconds = SHORT_SECONDS / 5
        assert await failure(backend, route) == (text, UNAVAILABLE)
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(daemon.received) == 1


async def test_reply_without_end_has_deadline(daemon: FakeDockerd, backend: Backend) -> None:
    for seconds in (0.0, -1.0):
        assert await failure(backend, UPDATE, seconds) == ("no answer in 0 s", DEADLINE)
    assert daemon.connections == 0, "an update without time is not sent"
    backend._seconds = 0.1
    half_reply = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + CANARY
    for route, begun in [*((route, b"") for route in REQUESTS), (INSPECT, half_reply)]:
        script(daemon, route, begun)
        assert await failure(backend, route, 0.1) == ("no answer in 0.1 s", DEADLINE)
        await until(lambda: not daemon.connections)


@pytest.mark.usefixtures("limited")
async def test_reply_above_limit_raises(daemon: FakeDockerd, backend: Backend) -> None:
    body = (CANARY * 100)[:1001]
    for route in REQUESTS.keys() - {EVENTS}:
        for raw in (CHUNKED + chunk(body[:500]) + chunk(body[500:]), reply(body)):
            script(daemon, route, raw)
            assert await failure(backend, route) == ("the reply is longer than 1000 bytes", OTHER)
    script(daemon, INFO, reply(1000 * b"x"))
    assert await backend.info() == 1000 * b"x"


async def test_broken_reply_raises(daemon: FakeDockerd, backend: Backend) -> None:
    broken = [b"", CANARY + b"\r\n\r\n", CHUNKED + b"5\r\n" + CANARY, CHUNKED + CANARY + b"\r\n"]
    broken += [b"HTTP/1.1 200 " + CANARY + b"\r\nX: " + 100_000 * b"x" + b"\r\n\r\n"]
    broken += [b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n%b" % (length, CANARY) for length in (b"50", CANARY)]
    for route, raw in product(REQUESTS, broken):
        script(daemon, route, raw, closes=True)
        assert (await failure(backend, route))[1] == UNAVAILABLE


def event(action: str, container_id: str, time_ns: int = 1, **more: object) -> bytes:
    actor = {"ID": container_id, "Attributes": {"name": "k8s_x", "secret": "canary-4711"}}
    line = {"Type": "container", "Action": action, "Actor": actor, "scope": "local", "timeNano": time_ns, **more}
    return json.dumps(line).encode() + b"\n"


@pytest.fixture
async def events(daemon: FakeDockerd, backend: Backend) -> AsyncIterator[AsyncIterator[Event]]:
    script(daemon, EVENTS, CHUNKED)
    async with backend.events(["destroy", "rename"], 1_700_000_000_000_000_123) as events:
        yield events


async def test_events_are_read_in_order_in_any_parts(daemon: FakeDockerd, events: AsyncIterator[Event]) -> None:
    daemon.send(chunk(event("rename", "c2", 6) + b"\n\r\n" + event("destroy", "net", Type="network")))
    daemon.send(chunk(event("health_status: healthy", "c3", 7)))
    assert await anext(events) == Event("rename", "c2", 6)
    assert await anext(events) == Event("health_status: healthy", "c3", 7)
    line = event("destroy", ID)
    for parts in ((line[:9], line[9:]), (line[:-1], line[-1:]), [bytes((byte,)) for byte in line]):
        daemon.send(b"".join(map(chunk, parts)))
        assert await anext(events) == DESTROYED
    [received] = daemon.received
    query, filters = received.head.query, {"type": {"container": True}, "event": {"destroy": True, "rename": True}}
    assert (query["since"], json.loads(query["filters"])) == ("1700000000.000000123", filters)
    # An unreadable line does not end the stream.
    lines = [b"garbage", b'{"Type": "container"', b"null", b"[]", b"{}", b"\xff\xfecanary-4711", b"[" * 100_000]
    lines += [b'{"Type": "container", "Action": "destroy", "Actor": {}, "timeNano": 1}']
    lines += [b'{"Type": "container", "Action": 1, "Actor": {"ID": "x"}, "timeNano": 1}']
    lines += [event("destroy", ID).replace(b'"timeNano"', b'"time"').strip()]
    lines += [event("destroy", ID, at).strip() for at in (0, 2**63)]
    for line in lines:
        daemon.send(chunk(line + b"\n" + event("destroy", ID)))
        assert await anext(events) is UNREADABLE, line
        assert await anext(events) == DESTROYED


@pytest.mark.usefixtures("limited")
async def test_event_stream_has_no_timeout_but_limit_of_line(daemon: FakeDockerd, events: AsyncIterator[Event]) -> None:
    quiet = asyncio.ensure_future(anext(events))
    await asyncio.sleep(3 * SHORT_SECONDS)
    assert not quiet.done()
    daemon.send(chunk(event("destroy", ID)))
    assert await quiet == DESTROYED
    daemon.send(chunk(999 * b"x" + b"\n" + 999 * b"x"))
    assert await anext(events) is UNREADABLE
    daemon.send(chunk(2 * b"x"))
    with pytest.raises(BackendError, match="GET /events: a line is longer than 1000 bytes"):
        await anext(events)


@pytest.mark.usefixtures("limited")
async def test_end_of_event_stream_raises(daemon: FakeDockerd, backend: Backend) -> None:
    ends = [(b"0\r\n\r\n", True, "the stream ended$"), (b"", True, ""), (b"5\r\n{", True, "")]
    ends += [(b"garbage\r\n", False, "the stream broke off$")]
    for end, closes, why in ends:
        script(daemon, EVENTS, CHUNKED + chunk(event("destroy", ID)) + end * closes, closes)
        async with backend.events(["destroy"], 1) as events:
            assert await anext(events) == DESTROYED
            daemon.send(end * (not closes))
            with pytest.raises(BackendError, match=f"^GET /events: {why}"):
                await anext(events)
