"""The backend asks a scripted daemon: what it sends, on which connections, what it takes, and how each fails."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runtimeproxy.docker import backend as module
from runtimeproxy.docker.backend import ROWS_AT_ONCE, Backend
from runtimeproxy.errors import BackendError
from runtimeproxy.relay.dial import SCARCE_RETRY_SECONDS
from runtimeproxy.wire import grpc
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS, Daemon, Reply, chunk, until
from tests.fakes.descriptors import no_descriptors

ID = "ab" * 32
CANARY = b"canary-4711"
INSPECT, UPDATE, LIST = f"/containers/{ID}/json", f"/containers/{ID}/update", "/containers/json"
INSPECT_ROUTE, IMAGE_ROUTE, UPDATE_ROUTE = (
    "GET /containers/{}/json",
    "GET /images/{}/json",
    "POST /containers/{}/update",
)
BODY = b'{"CpuShares": 7}'
ROW = b'{"Id": "x", "Labels": {"io.kubernetes.docker.type": "container"}}'
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT_SECONDS = 0.05


async def follow(backend: Backend) -> None:
    async with backend.events(["destroy"], 1) as events:
        await anext(events)


Ask = Callable[[Backend, float], Coroutine[Any, Any, object]]
ASKS: dict[str, tuple[str, Ask]] = {
    INSPECT_ROUTE: (INSPECT, lambda backend, _: backend.inspect(ID)),
    IMAGE_ROUTE: ("/images/sha256%3Aff/json", lambda backend, _: backend.image("sha256:ff")),
    "GET /info": ("/info", lambda backend, _: backend.info()),
    "GET /containers/json": (LIST, lambda backend, _: backend.pods_containers()),
    UPDATE_ROUTE: (UPDATE, lambda backend, seconds: backend.update(ID, BODY, seconds)),
    "GET /events": (EVENTS, lambda backend, _: follow(backend)),
}
"""Every question: its name in errors, its path, and how it is asked (``seconds`` are for the update)."""

every_question = pytest.mark.parametrize("route", ASKS)
every_short_question = pytest.mark.parametrize("route", [route for route in ASKS if route != "GET /events"])


async def failure(backend: Backend, route: str, seconds: float = PATIENCE_SECONDS) -> tuple[str, int]:
    """Ask, and return how it fails: the text behind the route's name, which quotes nothing, and the code."""
    with pytest.raises(BackendError) as caught:
        await ASKS[route][1](backend, seconds)
    name, _, text = str(caught.value).partition(": ")
    assert name == route
    assert CANARY.decode() not in text
    assert ID not in text
    return text, caught.value.code


# ---- what is asked


def test_aiohttp_is_not_loaded_before_the_first_request() -> None:
    program = """
import asyncio, sys
from runtimeproxy.docker.backend import Backend
import runtimeproxy.docker.sync
from runtimeproxy.errors import BackendError
backend = Backend('/nobody')
assert 'aiohttp' not in sys.modules and 'yarl' not in sys.modules
async def ask():
    try:
        await backend.info()
    except BackendError:
        await backend.close()
asyncio.run(ask())
assert 'aiohttp' in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("route", [INSPECT_ROUTE, IMAGE_ROUTE, "GET /info"])
@pytest.mark.parametrize("encoding", ["", "Content-Encoding: gzip\r\n"])
async def test_body_is_given_as_it_came(daemon: Daemon, backend: Backend, route: str, encoding: str) -> None:
    path, ask = ASKS[route]
    body = b'{"Big": 12345678901234567890, "x": "\xff"}'
    daemon.reply(path, Reply(raw=f"HTTP/1.1 200 OK\r\n{encoding}Content-Length: {len(body)}\r\n\r\n".encode() + body))
    assert await ask(backend, PATIENCE_SECONDS) == body
    (request,) = daemon.requests
    assert (request.method, request.target, request.body) == ("GET", path, b"")
    assert (request.headers["host"], request.headers["accept"]) == ("docker", "application/json")


REFERENCES = [(ID, ID), ("web-1_a.b", "web-1_a.b"), ("/web", "web"), ("//web", "%2Fweb"), ("a/b", "a%2Fb")]
REFERENCES += [("..", ".."), ("../images/x", "..%2Fimages%2Fx"), ("%2F%41", "%252F%2541"), ("\u00fc", "%C3%BC")]
REFERENCES += [("\udcff", "%FF"), ("a b?c=d#e&f", "a%20b%3Fc%3Dd%23e%26f"), ("a\r\nX: y", "a%0D%0AX%3A%20y")]


@pytest.mark.parametrize(("reference", "target"), REFERENCES)
async def test_reference_stays_one_path_segment(daemon: Daemon, backend: Backend, reference: str, target: str) -> None:
    assert await backend.inspect(reference) is None
    assert [request.target for request in daemon.requests] == [f"/containers/{target}/json"]


async def test_empty_reference_is_not_asked(daemon: Daemon, backend: Backend) -> None:
    assert [await backend.inspect(""), await backend.inspect("/"), await backend.image("")] == [None] * 3
    assert daemon.requests == []


@pytest.mark.parametrize("status", [404, 301])
async def test_absence_is_none_and_no_redirect_is_followed(daemon: Daemon, backend: Backend, status: int) -> None:
    moved = f"HTTP/1.1 {status} Words\r\nLocation: /info\r\nContent-Length: 0\r\n\r\n".encode()
    for path in (INSPECT, "/images/x/json"):
        daemon.reply(path, Reply(raw=moved))
    assert [await backend.inspect(ID), await backend.image("x")] == [None, None]
    assert len(daemon.requests) == 2


async def test_list_asks_for_pods_containers_in_every_state(daemon: Daemon, backend: Backend) -> None:
    daemon.listed = {ID: "podsandbox", "cd" * 32: "container"}
    assert await backend.pods_containers() == [(ID, "podsandbox"), ("cd" * 32, "container")]
    (request,) = daemon.requests
    assert (request.path, request.query["all"]) == (LIST, "1")
    assert json.loads(request.query["filters"]) == {"label": {"io.kubernetes.docker.type": True}}


NO_LISTS = [b"", b"{", b"{}x", b"null", b'[{"id": "x"}]', b'[{"Id": "x", "Labels": null}]', b"[1]", b'"x"']
NO_LISTS += [b"[" * 100_000, b"[", b"[]x", b"[,]", ROW[:-1], b"[" + ROW + b",", b"[" + ROW + b" x]", b"[" + ROW + b"]]"]
NO_LISTS += [b"\xff[]"]


@pytest.mark.parametrize("body", NO_LISTS)
async def test_list_of_another_form_is_an_error(daemon: Daemon, backend: Backend, body: bytes) -> None:
    daemon.reply(LIST, Reply(body=body))
    assert await failure(backend, "GET /containers/json") == ("the reply is no list of containers", grpc.INTERNAL)


@pytest.mark.parametrize("body", [b"[]", b" [ ]\n", b"[%b]" % ROW, b" [ %b , %b\n]\n" % (ROW, ROW)])
async def test_list_may_be_written_in_any_way(daemon: Daemon, backend: Backend, body: bytes) -> None:
    daemon.reply(LIST, Reply(body=body))
    assert await backend.pods_containers() == [("x", "container")] * body.count(b"Id")


async def test_calls_are_served_while_a_long_list_is_read(
    daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.reply(LIST, Reply(body=b"[" + b",".join([ROW] * 5 * ROWS_AT_ONCE) + b"]"))
    turns, begun, decode = 0, asyncio.Event(), module._DECODER.raw_decode

    async def count() -> None:
        nonlocal turns
        await begun.wait()
        while True:
            turns += 1
            await asyncio.sleep(0)

    def noted(text: str, at: int) -> Any:
        begun.set()
        return decode(text, at)

    monkeypatch.setattr(module._DECODER, "raw_decode", noted)
    counting = asyncio.ensure_future(count())
    assert len(await backend.pods_containers()) == 5 * ROWS_AT_ONCE
    counting.cancel()
    assert turns >= 4


async def test_update_is_sent_as_it_is(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(UPDATE, Reply(body=b'{"Warnings": null}'))
    await backend.update(ID, BODY, 5.0)
    (request,) = daemon.requests
    assert (request.method, request.target, request.body) == ("POST", UPDATE, BODY)
    assert (request.headers["content-type"], request.headers["content-length"]) == ("application/json", str(len(BODY)))
    assert "transfer-encoding" not in request.headers


# ---- connections


async def test_update_is_never_sent_twice(daemon: Daemon, backend: Backend) -> None:
    for raw in (b"", b"HTTP/1.1 2"):
        daemon.reply(UPDATE, Reply(raw=raw))
        daemon.requests.clear()
        await failure(backend, UPDATE_ROUTE)
        assert len(daemon.requests) == 1


async def test_daemon_that_closes_after_each_reply_is_asked_again(daemon: Daemon, backend: Backend) -> None:
    for path in ("/info", UPDATE):  # without "Connection: close": the close comes as a surprise
        daemon.reply(path, Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
    for _ in range(20):
        assert await backend.info() == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert len(daemon.requests) == 40


async def test_reads_share_a_connection_and_each_update_has_its_own(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(INSPECT, Reply())
    daemon.reply(UPDATE, Reply())
    for _ in range(3):
        assert await backend.inspect(ID) == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert daemon.accepted == 4
    await backend.close()
    await daemon.left()


async def test_many_questions_at_once_are_all_answered(daemon: Daemon, backend: Backend) -> None:
    gate = daemon.reply(INSPECT, Reply(body=b"{}")).gate
    gate.clear()
    asked = [asyncio.create_task(backend.inspect(ID)) for _ in range(100)]
    await until(lambda: len(daemon.requests) == 100)
    daemon.reply("/info", Reply(body=b"[]"))
    assert await backend.info() == b"[]"  # nobody waits for the others
    gate.set()
    assert await asyncio.gather(*asked) == 100 * [b"{}"]


async def test_daemon_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    backend = Backend(str(tmp_path / "docker.sock"))
    for _ in range(2):
        async with Daemon(str(tmp_path / "docker.sock")) as daemon:
            daemon.reply("/info", Reply())
            assert await backend.info() == b"{}"
        await failure(backend, "GET /info")
    await backend.close()


def test_full_backlog_is_waited_for(tmp_path: Path) -> None:
    """On uvloop, as the proxy runs: asyncio itself takes a full backlog for a connection."""
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        assert uvloop.run(_asked_behind(listener, path)) == b"{}"


async def _asked_behind(listener: socket.socket, path: str) -> bytes:
    """Ask for the daemon's info, which must wait until the listener has taken the connection that came first."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    backend = Backend(path)
    asked = asyncio.create_task(backend.info())
    await asyncio.sleep(SHORT_SECONDS)
    assert not asked.done()
    taken = [(await loop.sock_accept(listener))[0] for _ in range(2)]
    await loop.sock_recv(taken[1], 2**16)
    await loop.sock_sendall(taken[1], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    reply = await asked
    await backend.close()
    for connection in taken:
        connection.close()
    return reply


async def test_close_fails_what_is_under_way_and_may_be_followed_by_more(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(INSPECT, Reply()).gate.clear()
    tasks = [asyncio.create_task(backend.inspect(ID)), asyncio.create_task(follow(backend))]
    await until(lambda: len(daemon.requests) == 2)
    await backend.close()
    for task in tasks:
        with pytest.raises(BackendError):
            await task
    await daemon.left()
    daemon.reply("/info", Reply())
    assert await backend.info() == b"{}"
    await backend.close()
    await backend.close()


@every_question
async def test_cancel_at_any_moment_leaves_no_task_and_no_connection(
    daemon: Daemon, backend: Backend, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one that is kept a moment for the next question."""
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.001)
    path, ask = ASKS[route]
    if path != EVENTS:
        daemon.reply(path, Reply(body=b"[]"))
    others = asyncio.all_tasks()
    for steps in range(60):
        task = asyncio.create_task(ask(backend, PATIENCE_SECONDS))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await until(lambda: not daemon.connections and asyncio.all_tasks() == others)
    assert daemon.requests  # the later ones got so far


# ---- how each question fails

WORDS = [(b'{"message": "Invalid cpuset 0-99"}', "500: Invalid cpuset 0-99")]
WORDS += [(b'{"message": "' + 5000 * b"x" + b'"}', f"500: {1024 * 'x'}")]
WORDS += [(reply, "500") for reply in (b"plain text", b"[]", b'{"other": 1}', b"")]


@pytest.mark.parametrize(("reply", "words"), WORDS)
async def test_rejected_update_has_daemons_words(daemon: Daemon, backend: Backend, reply: bytes, words: str) -> None:
    daemon.reply(UPDATE, Reply(500, reply))
    assert await failure(backend, UPDATE_ROUTE) == (f"the daemon answered {words}", grpc.INTERNAL)


async def test_update_of_what_is_not_there_is_an_error(backend: Backend) -> None:
    assert await failure(backend, UPDATE_ROUTE) == ("the daemon answered 404: none", grpc.NOT_FOUND)


@pytest.mark.parametrize("route", [route for route in ASKS if route != UPDATE_ROUTE])
@pytest.mark.parametrize("status", [400, 500, 503])
async def test_error_status_is_told_without_words(daemon: Daemon, backend: Backend, route: str, status: int) -> None:
    daemon.reply(ASKS[route][0], Reply(status, b'{"message": "' + CANARY + b'"}'))
    assert await failure(backend, route) == (f"the daemon answered {status}", grpc.INTERNAL)


@every_question
async def test_daemon_that_is_away_is_an_error_at_once(tmp_path: Path, route: str) -> None:
    path = tmp_path / "docker.sock"
    backend = Backend(str(path))
    assert await failure(backend, route) == ("cannot connect: No such file or directory", grpc.UNAVAILABLE)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert await failure(backend, route) == ("cannot connect: Connection refused", grpc.UNAVAILABLE)
    await backend.close()


async def test_path_that_is_none_is_an_error() -> None:
    backend = Backend("/" + 200 * "x")
    assert "cannot connect" in (await failure(backend, "GET /info"))[0]
    await backend.close()


@every_question
async def test_want_of_descriptors_is_waited_for(daemon: Daemon, route: str) -> None:
    backend = Backend(daemon.path, seconds=PATIENCE_SECONDS)
    daemon.reply(ASKS[route][0], Reply(404))
    with no_descriptors():
        asking = asyncio.create_task(ASKS[route][1](backend, PATIENCE_SECONDS))
        await asyncio.sleep(3 * SCARCE_RETRY_SECONDS)
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
    assert (str(caught.value), caught.value.code, caught.value.not_done) == (text, grpc.UNAVAILABLE, True)
    await backend.close()


@every_question
async def test_daemon_that_says_nothing_costs_the_limit(daemon: Daemon, route: str) -> None:
    backend = Backend(daemon.path, seconds=SHORT_SECONDS)
    daemon.reply(ASKS[route][0], Reply()).gate.clear()
    assert await failure(backend, route, SHORT_SECONDS) == ("no answer in 0.05 s", grpc.DEADLINE_EXCEEDED)
    await daemon.left()
    await backend.close()


@every_short_question
async def test_reply_that_does_not_end_costs_the_limit(daemon: Daemon, route: str) -> None:
    daemon.reply(ASKS[route][0], Reply()).gate.clear()
    for seconds in (SHORT_SECONDS, PATIENCE_SECONDS):  # a busy machine may not even send the request in a short time
        backend = Backend(daemon.path, seconds=seconds)
        task = asyncio.create_task(failure(backend, route, seconds))
        await until(lambda: bool(daemon.requests) or task.done())  # noqa: B023
        for connection in daemon.connections:
            connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + CANARY)
        assert (await task)[1] == grpc.DEADLINE_EXCEEDED
        await backend.close()
        if daemon.requests:
            break
    assert daemon.requests


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_update_without_time_is_not_sent(daemon: Daemon, backend: Backend, seconds: float) -> None:
    assert await failure(backend, UPDATE_ROUTE, seconds) == ("no answer in 0 s", grpc.DEADLINE_EXCEEDED)
    assert daemon.accepted == 0


@every_short_question
@pytest.mark.parametrize("chunked", [False, True])
async def test_reply_above_the_limit_is_an_error(
    daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch, route: str, chunked: bool
) -> None:
    monkeypatch.setattr(module, "REPLY_LIMIT", 1000)
    monkeypatch.setattr(module, "LIST_LIMIT", 1000)
    body = (CANARY * 100)[:1001]
    reply = Reply(raw=ENDLESS + chunk(body[:500]) + chunk(body[500:])) if chunked else Reply(body=body)
    daemon.reply(ASKS[route][0], reply)
    assert await failure(backend, route) == ("the reply is longer than 1000 bytes", grpc.RESOURCE_EXHAUSTED)


async def test_reply_at_the_limit_is_none(daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLY_LIMIT", 1000)
    daemon.reply("/info", Reply(body=1000 * b"x"))
    assert await backend.info() == 1000 * b"x"


BROKEN = [b"", CANARY + b"\r\n\r\n", ENDLESS + b"5\r\n" + CANARY, ENDLESS + CANARY + b"\r\n"]
BROKEN += [b"HTTP/1.1 200 " + CANARY + b"\r\nX: " + 100_000 * b"x" + b"\r\n\r\n"]
BROKEN += [b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n%b" % (length, CANARY) for length in (b"50", CANARY)]


@every_question
@pytest.mark.parametrize("raw", BROKEN)
async def test_broken_reply_is_an_error(daemon: Daemon, backend: Backend, route: str, raw: bytes) -> None:
    daemon.reply(ASKS[route][0], Reply(raw=raw))
    assert (await failure(backend, route))[1] == grpc.UNAVAILABLE
