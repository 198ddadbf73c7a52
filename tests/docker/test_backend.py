"""The backend asks a scripted daemon on a unix socket: what it sends, what it takes, and on which connections."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runtimeproxy.docker import backend as backend_module
from runtimeproxy.docker.backend import ROWS_AT_ONCE, Backend
from runtimeproxy.errors import BackendError
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS, Daemon, Reply, until
from tests.docker.questions import (
    ASKS,
    BODY,
    ID,
    INSPECT,
    LIST,
    SHORT_SECONDS,
    UPDATE,
    UPDATE_ROUTE,
    every_question,
    failure,
    follow,
)

ROW = b'{"Id": "x", "Labels": {"io.kubernetes.docker.type": "container"}}'


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon


@pytest.fixture
async def backend(daemon: Daemon) -> AsyncIterator[Backend]:
    backend = Backend(daemon.path)
    yield backend
    await backend.close()


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_aiohttp_is_not_loaded_before_the_first_request() -> None:
    program = (
        "import asyncio, sys\n"
        "from runtimeproxy.docker.backend import Backend\n"
        "import runtimeproxy.docker.sync\n"
        "from runtimeproxy.errors import BackendError\n"
        "backend = Backend('/nobody')\n"
        "assert 'aiohttp' not in sys.modules and 'yarl' not in sys.modules\n"
        "async def ask():\n"
        "    try:\n"
        "        await backend.info()\n"
        "    except BackendError:\n"
        "        await backend.close()\n"
        "asyncio.run(ask())\n"
        "assert 'aiohttp' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("route", ["GET /containers/{}/json", "GET /images/{}/json", "GET /info"])
async def test_a_body_is_given_as_it_came(daemon: Daemon, backend: Backend, route: str) -> None:
    path, ask = ASKS[route]
    daemon.reply(path, Reply(body=b'{"Big": 12345678901234567890, "x": "\xff"}'))
    assert await ask(backend, PATIENCE_SECONDS) == b'{"Big": 12345678901234567890, "x": "\xff"}'
    (request,) = daemon.requests
    assert (request.method, request.target, request.body) == ("GET", path, b"")
    assert request.headers["host"] == "docker"
    assert request.headers["accept"] == "application/json"


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        (ID, ID),
        ("web-1_a.b", "web-1_a.b"),
        ("/web", "web"),
        ("//web", "%2Fweb"),
        ("a/b", "a%2Fb"),
        ("../images/x", "..%2Fimages%2Fx"),
        ("..", ".."),
        ("%2F%41", "%252F%2541"),
        ("a b?c=d#e&f", "a%20b%3Fc%3Dd%23e%26f"),
        ("a\r\nX: y", "a%0D%0AX%3A%20y"),
        ("\u00fc", "%C3%BC"),
        ("\udcff", "%FF"),
    ],
)
async def test_a_reference_stays_one_segment_of_the_path(
    daemon: Daemon, backend: Backend, reference: str, target: str
) -> None:
    assert await backend.inspect(reference) is None
    assert [request.target for request in daemon.requests] == [f"/containers/{target}/json"]


async def test_an_empty_reference_names_nothing_and_is_not_asked(daemon: Daemon, backend: Backend) -> None:
    assert await backend.inspect("") is None
    assert await backend.inspect("/") is None
    assert await backend.image("") is None
    assert daemon.requests == []


@pytest.mark.parametrize("status", [404, 301])
async def test_what_the_daemon_does_not_have_is_none(daemon: Daemon, backend: Backend, status: int) -> None:
    moved = f"HTTP/1.1 {status} Words\r\nLocation: /info\r\nContent-Length: 0\r\n\r\n".encode()
    daemon.reply(INSPECT, Reply(raw=moved))
    daemon.reply("/images/x/json", Reply(raw=moved))
    assert await backend.inspect(ID) is None
    assert await backend.image("x") is None
    assert len(daemon.requests) == 2  # no redirect is followed


async def test_the_list_is_of_pods_containers_in_every_state(daemon: Daemon, backend: Backend) -> None:
    daemon.listed = {ID: "podsandbox", "cd" * 32: "container"}
    assert await backend.pods_containers() == [(ID, "podsandbox"), ("cd" * 32, "container")]
    (request,) = daemon.requests
    assert request.path == LIST
    assert request.query["all"] == "1"
    assert json.loads(request.query["filters"]) == {"label": {"io.kubernetes.docker.type": True}}


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"{}x",
            b"null",
            b'[{"id": "x"}]',
            b'[{"Id": "x", "Labels": null}]',
            b"[1]",
            b'"x"',
            b"[" * 100_000,
        ),
        *(b"[", b"[]x", b"[,]", ROW[:-1], b"[" + ROW + b",", b"[" + ROW + b" x]", b"[" + ROW + b"]]", b"\xff[]"),
    ],
)
async def test_a_list_that_is_none_is_an_error(daemon: Daemon, backend: Backend, body: bytes) -> None:
    daemon.reply(LIST, Reply(body=body))
    assert "no list" in str(await failure(backend, "GET /containers/json"))


@pytest.mark.parametrize("body", [b"[]", b" [ ]\n", b"[%b]" % ROW, b" [ %b , %b\n]\n" % (ROW, ROW)])
async def test_a_list_may_be_written_in_any_way(daemon: Daemon, backend: Backend, body: bytes) -> None:
    daemon.reply(LIST, Reply(body=body))
    assert await backend.pods_containers() == [("x", "container")] * body.count(b"Id")


async def test_calls_are_served_while_a_long_list_is_read(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(LIST, Reply(body=b"[" + b",".join([ROW] * 5 * ROWS_AT_ONCE) + b"]"))
    turns, begun = 0, asyncio.Event()
    decode = backend_module._DECODER.raw_decode

    async def count() -> None:
        nonlocal turns
        await begun.wait()
        while True:
            turns += 1
            await asyncio.sleep(0)

    def noted(text: str, at: int) -> Any:
        begun.set()
        return decode(text, at)

    backend_module._DECODER.raw_decode = noted  # type: ignore[method-assign]
    counting = asyncio.ensure_future(count())
    try:
        assert len(await backend.pods_containers()) == 5 * ROWS_AT_ONCE
    finally:
        backend_module._DECODER.raw_decode = decode  # type: ignore[method-assign]
        counting.cancel()
    assert turns >= 4


async def test_an_update_is_sent_as_it_is(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(UPDATE, Reply(body=b'{"Warnings": null}'))
    await backend.update(ID, BODY, 5.0)
    (request,) = daemon.requests
    assert (request.method, request.target, request.body) == ("POST", UPDATE, BODY)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in request.headers


# -- connections -------------------------------------------------------------------------------------------------------


async def test_an_update_is_never_sent_twice(daemon: Daemon, backend: Backend) -> None:
    for raw in (b"", b"HTTP/1.1 2"):
        daemon.reply(UPDATE, Reply(raw=raw))
        daemon.requests.clear()
        await failure(backend, UPDATE_ROUTE)
        assert len(daemon.requests) == 1


async def test_a_daemon_that_closes_after_each_reply_is_asked_again(daemon: Daemon, backend: Backend) -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    for path in ("/info", UPDATE):
        daemon.reply(path, Reply(raw=body))  # without "Connection: close": the close comes as a surprise
    for _ in range(20):
        assert await backend.info() == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert len(daemon.requests) == 40


async def test_what_only_reads_shares_a_connection_and_an_update_has_its_own(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(INSPECT, Reply())
    daemon.reply(UPDATE, Reply())
    for _ in range(3):
        assert await backend.inspect(ID) == b"{}"
        await backend.update(ID, BODY, 5.0)
    assert daemon.accepted == 4
    await backend.close()
    await daemon.left()


async def test_many_questions_at_once_are_all_answered(daemon: Daemon, backend: Backend) -> None:
    gate = daemon.reply(INSPECT, Reply(body=b"{}"))
    gate.gate.clear()
    asked = [asyncio.create_task(backend.inspect(ID)) for _ in range(100)]
    await until(lambda: len(daemon.requests) == 100)
    daemon.reply("/info", Reply(body=b"[]"))
    assert await backend.info() == b"[]"  # nobody waits for the others
    gate.gate.set()
    assert await asyncio.gather(*asked) == 100 * [b"{}"]
    await daemon.left()


async def test_a_daemon_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    backend = Backend(path)
    for _ in range(2):
        async with Daemon(path) as daemon:
            daemon.reply("/info", Reply())
            assert await backend.info() == b"{}"
        await failure(backend, "GET /info")
    await backend.close()


def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
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


async def test_close_fails_what_is_under_way_and_leaves_no_connection(daemon: Daemon, backend: Backend) -> None:
    daemon.reply(INSPECT, Reply()).gate.clear()
    asked = asyncio.create_task(backend.inspect(ID))
    followed = asyncio.create_task(follow(backend))
    await until(lambda: len(daemon.requests) == 2)
    await backend.close()
    for task in (asked, followed):
        with pytest.raises(BackendError):
            await task
    await daemon.left()
    daemon.reply("/info", Reply())
    assert await backend.info() == b"{}"
    await backend.close()
    await backend.close()


@every_question
async def test_a_cancel_at_any_moment_leaves_no_task_and_no_connection(
    daemon: Daemon, backend: Backend, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one that is kept a moment for the next question."""
    monkeypatch.setattr(backend_module, "KEPT_SECONDS", 0.001)
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
