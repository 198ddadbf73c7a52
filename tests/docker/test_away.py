"""A client whose daemon is away gets its 502 on a real socket, and is not waited for without end."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.docker import away
from runtimeproxy.docker.away import Away
from runtimeproxy.relay.drain import Leaving
from tests.docker.messages import EXPECT, PREFACE, error, request
from tests.docker.requests import CREATE, PING


@pytest.fixture
async def client() -> AsyncIterator[socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    connections: set[Leaving] = set()
    Away(asyncio.get_running_loop(), near, connections)
    assert len(connections) == 1
    yield far
    far.close()
    await closed(near)
    assert not connections


async def closed(near: socket.socket) -> None:
    """Wait until our end of a connection is closed."""
    async with asyncio.timeout(20):
        while near.fileno() >= 0:
            await asyncio.sleep(0.001)


async def read(client: socket.socket) -> bytes:
    data = b""
    async with asyncio.timeout(20):
        while piece := await asyncio.get_running_loop().sock_recv(client, 65536):
            data += piece
    return data


@pytest.mark.parametrize(
    "sent",
    [PING, CREATE, CREATE[:-3], PING + PING, request("POST", "/images/load", EXPECT, body=b"x" * 100_000)],
    ids=["a request", "with a body", "with half a body", "two", "one that waits for 100"],
)
async def test_request_is_answered_502_and_the_end_follows(client: socket.socket, sent: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, sent)
    status, closes, body = error(await read(client))
    assert (status, closes) == (502, True)
    assert b"dockerd" in body
    assert b"--remote-runtime-service-endpoint" in body


async def test_head_may_come_byte_by_byte_and_nothing_is_said_before(client: socket.socket) -> None:
    for octet in PING[:-1]:
        client.send(bytes((octet,)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.send(PING[-1:])
    assert error(await read(client))[0] == 502


async def test_answer_to_head_has_no_body(client: socket.socket) -> None:
    client.send(request("HEAD", "/_ping"))
    answer = await read(client)
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GET / nonsense\r\n\r\n", 400), (b"\0", 400), (PREFACE, 505), (b"x" * (1 << 20), 431)],
    ids=["a bad head", "a bad beginning", "HTTP/2", "a head without end"],
)
async def test_what_cannot_be_read_is_told_so(client: socket.socket, sent: bytes, status: int) -> None:
    await asyncio.get_running_loop().sock_sendall(client, sent)
    assert error(await read(client))[:2] == (status, True)


async def test_client_that_half_closed_gets_its_answer(client: socket.socket) -> None:
    client.send(PING)
    client.shutdown(socket.SHUT_WR)
    assert error(await read(client))[0] == 502


async def test_client_may_send_on_behind_the_answer_and_nothing_is_kept(client: socket.socket) -> None:
    client.send(PING)
    assert error(await read(client))[0] == 502
    data = b"x" * 5_000_000
    tracemalloc.start()
    try:
        await asyncio.get_running_loop().sock_sendall(client, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


async def test_client_that_asks_nothing_and_goes_is_forgotten(client: socket.socket) -> None:
    client.send(PING[:-1])
    client.shutdown(socket.SHUT_WR)
    assert await read(client) == b""


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away, "WAIT_SECONDS", 0.03)


@pytest.mark.usefixtures("_short", "client")
@pytest.mark.parametrize(("sent", "answered"), [(PING, True), (PING[:-1], False), (b"", False)])
async def test_client_that_stays_is_closed_after_a_time(client: socket.socket, sent: bytes, answered: bool) -> None:
    client.send(sent)
    assert bool(await read(client)) is answered
