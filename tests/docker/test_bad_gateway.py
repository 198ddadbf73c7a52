"""A client whose daemon is not reachable gets 502 on a real socket, and the wait for it is limited."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.docker import front
from runtimeproxy.docker.front import BadGateway
from runtimeproxy.relay.drain import Drainable
from tests.docker.messages import CREATE, EXPECT, PING, PREFACE, error, request
from tests.fakes.dockerd_client import until


@pytest.fixture
async def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[socket.socket]:
    monkeypatch.setattr(front, "WAIT_SECONDS", getattr(request, "param", front.WAIT_SECONDS))
    near, far = socket.socketpair()
    far.setblocking(False)
    connections: set[Drainable] = set()
    BadGateway(asyncio.get_running_loop(), near, connections)
    assert len(connections) == 1
    yield far
    far.close()
    await until(lambda: near.fileno() < 0)
    assert not connections


async def answered(client: socket.socket, sent: bytes = b"") -> bytes:
    """Send bytes, and read until EOF."""
    data, loop = b"", asyncio.get_running_loop()
    async with asyncio.timeout(20):
        if sent:
            await loop.sock_sendall(client, sent)
        while section := await loop.sock_recv(client, 65536):
            data += section
    return data


ANSWERED = {
    "with half a body": (CREATE[:-3], 502),
    "two": (PING + PING, 502),
    "one that waits for 100": (request("POST", "/images/load", EXPECT, body=b"x" * 100_000), 502),
    "a bad head": (b"GET / nonsense\r\n\r\n", 400),
    "a bad beginning": (b"\0", 400),
    "HTTP/2": (PREFACE, 505),
    "a head without end": (b"x" * (1 << 20), 431),
}


@pytest.mark.parametrize(("sent", "status"), ANSWERED.values(), ids=ANSWERED)
async def test_request_is_answered_and_the_end_follows(client: socket.socket, sent: bytes, status: int) -> None:
    notified, closes, body = error(await answered(client, sent))
    assert (notified, closes) == (status, True)
    if status == 502:
        assert b"dockerd" in body
        assert b"--remote-runtime-service-endpoint" in body


async def test_head_may_come_byte_by_byte_and_nothing_is_sent_before(client: socket.socket) -> None:
    head = request("HEAD", "/_ping")
    for octet in head[:-1]:
        client.send(bytes((octet,)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    answer = await answered(client, head[-1:])
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert answer.endswith(b"\r\n\r\n"), "the answer to HEAD has no body"


@pytest.mark.parametrize(("client", "half_closes"), [(front.WAIT_SECONDS, True), (0.03, False)], indirect=["client"])
@pytest.mark.parametrize("sent", [PING, PING[:-1], b""])
async def test_client_that_stays_or_sends_no_more_is_closed(
    client: socket.socket, half_closes: bool, sent: bytes
) -> None:
    client.send(sent)
    if half_closes:
        client.shutdown(socket.SHUT_WR)
    assert bool(await answered(client)) is (sent == PING)


async def test_bytes_after_the_answer_are_not_retained(client: socket.socket) -> None:
    assert error(await answered(client, PING))[0] == 502
    data = b"x" * 5_000_000
    tracemalloc.start()
    try:
        await asyncio.get_running_loop().sock_sendall(client, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
