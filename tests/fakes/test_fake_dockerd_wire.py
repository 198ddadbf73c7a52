"""The fake dockerd's HTTP is that of Go's server: order, framing, bodies, and what it does not take."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_client import Raw, exchange, until

BODY = b'{"Image":"runtimeproxy-busybox:1"}'
JSON = b"Content-Type: application/json\r\n"
HOST = b"Host: d\r\n"
CREATE = b"POST /containers/create HTTP/1.1\r\n" + HOST + JSON


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


@pytest.fixture
async def raw(dockerd: FakeDockerd) -> AsyncIterator[Raw]:
    async with await Raw.connect(dockerd.socket_path) as connection:
        yield connection


def sized(body: bytes = BODY) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_pipelined_requests_are_answered_in_order(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /version", Injection(delay_seconds=0.05))
    names = (b"version", b"_ping", b"info", b"none", b"_ping")
    requests = [b"GET /%b HTTP/1.1\r\n" % name + HOST + b"\r\n" for name in names[:-1]]
    last = b"GET /_ping HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = await exchange(dockerd.socket_path, CREATE + sized() + b"".join(requests) + last)
    starts = [
        reply.index(part)
        for part in (b"201 Created", b'"Platform"', b"OK\r\n\r\n"[:2], b'"CgroupDriver"', b"not found")
    ]
    assert starts[0] < starts[1] < starts[3] < starts[4]
    assert reply.endswith(b"Connection: close\r\n\r\nOK")
    assert [received.target for received in dockerd.received][1:] == [f"/{name.decode()}" for name in names]


async def test_every_split_of_a_chunked_create_is_read(dockerd: FakeDockerd) -> None:
    chunked = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in BODY) + b"0\r\nA: b\r\n\r\n"
    ping = b"GET /_ping HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = await exchange(dockerd.socket_path, CREATE + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + ping)
    assert reply.startswith(b"HTTP/1.1 201")
    assert reply.endswith(b"OK")
    assert (bytes(dockerd.received[0].body), bytes(dockerd.received[0].wire_body)) == (BODY, chunked)


async def test_the_hundred_comes_when_the_body_is_read(dockerd: FakeDockerd, raw: Raw) -> None:
    injection = dockerd.inject("POST /containers/create", Injection(hang=True))
    raw.send(CREATE + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    await until(lambda: injection.hanging)
    injection.release()
    assert await raw.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.send(BODY)
    assert b" 201 Created\r\n" in await raw.head()


async def test_without_a_reader_there_is_no_hundred(dockerd: FakeDockerd, raw: Raw) -> None:
    raw.send(b"POST /containers/x/start HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
    reply = await raw.rest()
    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nConnection: close\r\n" in reply


async def test_a_small_body_is_drained_before_an_error_and_the_connection_lives(raw: Raw) -> None:
    raw.send(b"POST /containers/x/start HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n" + bytes(99_999))
    raw.send(b"\0GET /_ping HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"\r\nConnection: close" not in await raw.head()
    await raw.until(b"}\n")
    assert b" 200 OK" in await raw.head()


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nf4240\r\n"]
)
async def test_a_big_body_is_not_drained(raw: Raw, framing: bytes) -> None:
    raw.send(b"POST /containers/x/start HTTP/1.1\r\n" + HOST + framing + bytes(500_000))
    reply = await raw.rest()
    assert b"\r\nConnection: close\r\n" in reply
    assert reply.endswith(b"}\n")


@pytest.mark.parametrize(
    ("framing", "message"),
    [
        (b"Content-Length: 100\r\n\r\n{", b"unexpected EOF"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"unexpected EOF"),
        (b"Transfer-Encoding: chunked\r\n\r\nx\r\n{", b"invalid byte in chunk length"),
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", b"invalid byte in chunk length"),
    ],
)
async def test_broken_bodies(dockerd: FakeDockerd, framing: bytes, message: bytes) -> None:
    reply = await exchange(dockerd.socket_path, CREATE + framing, end=True)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert message in reply


async def test_replies_without_a_body(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": "runtimeproxy-busybox:1"})
    start = b"POST /containers/c1/start HTTP/1.1\r\n" + HOST
    head = b"HEAD /none HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = await exchange(dockerd.socket_path, start + b"\r\n" + start + b"\r\n" + head)
    first, second, third, rest = reply.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert second.startswith(b"HTTP/1.1 304 Not Modified\r\n")
    for bodyless in (first, second):
        assert b"Content-Length" not in bodyless
        assert b"Content-Type" not in bodyless
    assert third.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"Content-Length: 29" in third
    assert rest == b""


async def test_big_replies_are_one_chunk(raw: Raw, dockerd: FakeDockerd) -> None:
    dockerd.fill_list(10, 5000)
    assert dockerd.big_list is not None
    raw.send(b"GET /containers/json HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"\r\nTransfer-Encoding: chunked\r\n" in await raw.head()
    assert await raw.chunk() == dockerd.big_list
    assert await raw.chunk() == b""


async def test_http_1_0_gets_no_chunks(dockerd: FakeDockerd) -> None:
    dockerd.fill_list(10, 5000)
    for target in (b"/containers/json", b"/images/get"):
        head, _, body = (await exchange(dockerd.socket_path, b"GET " + target + b" HTTP/1.0\r\n\r\n")).partition(
            b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.0 200 OK\r\n")
        assert b"Transfer-Encoding" not in head
        assert b"Connection" not in head
        assert len(body) == (len(dockerd.big_list or b"") if target == b"/containers/json" else dockerd.export_bytes)
    kept = b"GET /_ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    reply = await exchange(dockerd.socket_path, kept + b"GET /_ping HTTP/1.0\r\n\r\n")
    assert reply.count(b"\r\n\r\nOK") == 2
    assert reply.count(b"Connection: keep-alive") == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /_ping\r\n\r\n", 400),
        (b"GET  /_ping HTTP/1.1\r\nHost: d\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nHost: d\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nA b: c\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\n folded: c\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /%zz HTTP/1.1\r\nHost: d\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /_ping HTTP/1.1\r\nHost: d\r\nA: " + b"a" * (3 << 20) + b"\r\n\r\n", 431),
    ],
)
async def test_what_go_does_not_take(dockerd: FakeDockerd, request_bytes: bytes, status: int) -> None:
    reply = await exchange(dockerd.socket_path, request_bytes)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n\r\n" in reply


async def test_heads_of_almost_a_mebibyte_are_taken(dockerd: FakeDockerd) -> None:
    head = (
        b"GET http://docker/v1.41/_ping?x HTTP/1.1\r\n"
        + HOST
        + b"A: "
        + b"a" * 1_000_000
        + b"\r\nConnection: close\r\n\r\n"
    )
    assert (await exchange(dockerd.socket_path, head)).endswith(b"OK")
    assert dockerd.received[0].raw == head


async def test_a_client_that_leaves_in_a_head_is_forgotten(dockerd: FakeDockerd) -> None:
    assert await exchange(dockerd.socket_path, b"GET /_pi", end=True) == b""
    assert not dockerd.received
    await until(lambda: dockerd.connections == 0)
