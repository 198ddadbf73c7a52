"""Every way in which a question to the daemon fails, and how the error reads."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.docker import backend as backend_module
from runtimeproxy.docker.backend import Backend
from runtimeproxy.errors import BackendError
from runtimeproxy.relay.dial import SCARCE_RETRY_SECONDS
from runtimeproxy.wire import grpc
from tests.docker.daemon import PATIENCE_SECONDS, Daemon, Reply, chunk, until
from tests.docker.questions import (
    ASKS,
    BODY,
    CANARY,
    ID,
    SHORT_SECONDS,
    UPDATE,
    UPDATE_ROUTE,
    every_question,
    every_short_question,
    failure,
)
from tests.fakes.descriptors import no_descriptors

ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon


@pytest.fixture
async def backend(daemon: Daemon) -> AsyncIterator[Backend]:
    backend = Backend(daemon.path)
    yield backend
    await backend.close()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b'{"message": "Invalid cpuset 0-99"}', "500: Invalid cpuset 0-99"),
        (b'{"message": "' + 5000 * b"x" + b'"}', f"500: {1024 * 'x'}"),
        (b"plain text", "500"),
        (b"[]", "500"),
        (b'{"other": 1}', "500"),
        (b"", "500"),
    ],
)
async def test_a_rejected_update_has_the_daemons_words(
    daemon: Daemon, backend: Backend, reply: bytes, words: str
) -> None:
    daemon.reply(UPDATE, Reply(500, reply))
    with pytest.raises(BackendError) as caught:
        await backend.update(ID, BODY, 5.0)
    assert str(caught.value) == f"POST /containers/{{}}/update: the daemon answered {words}"
    assert caught.value.code == grpc.INTERNAL


async def test_an_update_of_what_is_not_there_is_an_error(backend: Backend) -> None:
    with pytest.raises(BackendError, match="answered 404") as caught:
        await backend.update(ID, BODY, 5.0)
    assert caught.value.code == grpc.NOT_FOUND


@pytest.mark.parametrize("route", [route for route in ASKS if route != UPDATE_ROUTE])
@pytest.mark.parametrize("status", [400, 500, 503])
async def test_an_error_status_is_told_without_the_daemons_words(
    daemon: Daemon, backend: Backend, route: str, status: int
) -> None:
    daemon.reply(ASKS[route][0], Reply(status, b'{"message": "' + CANARY + b'"}'))
    error = await failure(backend, route)
    assert str(error).endswith(f": the daemon answered {status}")
    assert error.code == grpc.INTERNAL


@every_question
async def test_a_daemon_that_is_away_is_an_error_at_once(tmp_path: Path, route: str) -> None:
    path = tmp_path / "docker.sock"
    backend = Backend(str(path))
    error = await failure(backend, route)
    assert (str(error), error.code) == (f"{route}: cannot connect: No such file or directory", grpc.UNAVAILABLE)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert str(await failure(backend, route)) == f"{route}: cannot connect: Connection refused"
    await backend.close()


async def test_a_path_that_is_none_is_an_error() -> None:
    backend = Backend("/" + 200 * "x")
    assert "cannot connect" in str(await failure(backend, "GET /info"))
    await backend.close()


@every_question
async def test_a_want_of_descriptors_is_waited_for(daemon: Daemon, route: str) -> None:
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
async def test_a_want_of_descriptors_is_not_laid_to_the_daemon(daemon: Daemon, route: str) -> None:
    backend = Backend(daemon.path, seconds=SHORT_SECONDS)
    with no_descriptors():
        error = await failure(backend, route, SHORT_SECONDS)
    text = f"{route}: cannot connect: the proxy itself lacks what it needs: Too many open files"
    assert (str(error), error.code, error.not_done) == (text, grpc.UNAVAILABLE, True)
    await backend.close()


@every_question
async def test_a_daemon_that_says_nothing_costs_the_limit(daemon: Daemon, route: str) -> None:
    backend = Backend(daemon.path, seconds=SHORT_SECONDS)
    daemon.reply(ASKS[route][0], Reply()).gate.clear()
    error = await failure(backend, route, SHORT_SECONDS)
    assert (str(error), error.code) == (f"{route}: no answer in 0.05 s", grpc.DEADLINE_EXCEEDED)
    await daemon.left()
    await backend.close()


@every_short_question
async def test_a_reply_that_does_not_end_costs_the_limit(daemon: Daemon, route: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    daemon.reply(ASKS[route][0], Reply()).gate.clear()
    for seconds in (SHORT_SECONDS, PATIENCE_SECONDS):  # a busy machine may not even send the request in a short time
        backend = Backend(daemon.path, seconds=seconds)
        task = asyncio.create_task(ASKS[route][1](backend, seconds))
        await until(lambda: bool(daemon.requests) or task.done())  # noqa: B023
        for connection in daemon.connections:
            connection.write(head + CANARY)
        with pytest.raises(BackendError) as caught:
            await task
        assert caught.value.code == grpc.DEADLINE_EXCEEDED
        await daemon.left()
        await backend.close()
        if daemon.requests:
            break
    assert daemon.requests


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_an_update_without_time_is_not_sent(daemon: Daemon, backend: Backend, seconds: float) -> None:
    with pytest.raises(BackendError) as caught:
        await backend.update(ID, BODY, seconds)
    assert caught.value.code == grpc.DEADLINE_EXCEEDED
    assert daemon.accepted == 0


@every_short_question
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_reply_above_the_limit_is_an_error(
    daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch, route: str, chunked: bool
) -> None:
    monkeypatch.setattr(backend_module, "REPLY_LIMIT", 1000)
    monkeypatch.setattr(backend_module, "LIST_LIMIT", 1000)
    body = (CANARY * 100)[:1001]
    reply = Reply(raw=ENDLESS + chunk(body[:500]) + chunk(body[500:])) if chunked else Reply(body=body)
    daemon.reply(ASKS[route][0], reply)
    error = await failure(backend, route)
    assert (str(error), error.code) == (f"{route}: the reply is longer than 1000 bytes", grpc.RESOURCE_EXHAUSTED)
    await daemon.left()


async def test_a_reply_at_the_limit_is_none(daemon: Daemon, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "REPLY_LIMIT", 1000)
    daemon.reply("/info", Reply(body=1000 * b"x"))
    assert await backend.info() == 1000 * b"x"


@every_question
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        CANARY + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + CANARY,
        b"HTTP/1.1 200 OK\r\nContent-Length: " + CANARY + b"\r\n\r\n",
        ENDLESS + b"5\r\n" + CANARY,
        ENDLESS + CANARY + b"\r\n",
        b"HTTP/1.1 200 " + CANARY + b"\r\nX: " + 100_000 * b"x" + b"\r\n\r\n",
    ],
)
async def test_a_broken_reply_is_an_error(daemon: Daemon, backend: Backend, route: str, raw: bytes) -> None:
    daemon.reply(ASKS[route][0], Reply(raw=raw))
    assert (await failure(backend, route)).code == grpc.UNAVAILABLE
    await daemon.left()


async def test_a_reply_that_looks_compressed_is_not_inflated(daemon: Daemon, backend: Backend) -> None:
    daemon.reply("/info", Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"))
    assert await backend.info() == b"{}"
