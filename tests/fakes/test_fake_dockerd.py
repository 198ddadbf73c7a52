"""What the fake dockerd has beyond a real one: its record of requests, and what goes wrong as told.

That it answers as a real one does is in test_dockerd_contract.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_client import Raw, ask, exchange, until
from tests.fakes.dockerd_programs import frame

CREATE = "POST /containers/create"
CREATED = {"Image": "runtimeproxy-busybox:1"}
CLOSE = b"Connection: close\r\n"


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


def request(line: str, *headers: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\nContent-Type: application/json\r\n" % len(body) if body else b""
    return f"{line} HTTP/1.1\r\nHost: d\r\n".encode() + b"".join(headers) + length + b"\r\n" + body


def create(*headers: bytes) -> bytes:
    return request(CREATE, *headers, body=json.dumps(CREATED).encode())


async def test_request_is_kept_as_it_came(dockerd: FakeDockerd) -> None:
    sent = (
        b"POST /containers/create?name=one&name=two HTTP/1.1\r\nhOst: docker\r\nX-Twice: 1\r\nX-Twice:  2\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'9;ext=1\r\n{"Image":\r\n1A\r\n"runtimeproxy-busybox:1"}\n\r\n0\r\nTrailer: x\r\n\r\n'
    )
    assert b" 201 Created" in await exchange(dockerd.socket_path, sent)
    [received] = await dockerd.wait_for_requests(CREATE)
    assert (received.raw, received.status, dockerd.counts[CREATE]) == (sent, 201, 1)
    assert received.headers[:3] == (("hOst", "docker"), ("X-Twice", "1"), ("X-Twice", "2"))
    assert received.head.query["name"] == "one"
    assert dockerd.container("one").request == received.body == b'{"Image":"runtimeproxy-busybox:1"}\n'


async def test_record_keeps_as_many_bytes_as_told(dockerd: FakeDockerd) -> None:
    dockerd.keep_body_bytes = 20
    await exchange(dockerd.socket_path, create(CLOSE))
    [received] = dockerd.received
    assert (received.body_bytes, len(received.body), len(received.wire_body)) == (35, 20, 20)


async def test_pipelined_requests_are_answered_in_order(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /version", Injection(delay_seconds=0.05))
    sent = b"".join(request(f"GET /{name}") for name in ("version", "info", "none")) + request("GET /_ping", CLOSE)
    reply = await exchange(dockerd.socket_path, sent)
    starts = [reply.index(part) for part in (b'"Platform"', b'"CgroupDriver"', b"not found", b"\r\n\r\nOK")]
    assert starts == sorted(starts)
    assert {received.connection for received in dockerd.received} == {0}


async def test_bytes_before_an_upgrade_are_counted(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", CREATED)
    dockerd.state.start("c1")
    body = {"Cmd": ["cat"], "AttachStdin": True}
    made = (await ask(dockerd.socket_path, "POST", "/containers/c1/exec", body)).json["Id"]
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request(f"POST /exec/{made}/start", b"Connection: Upgrade\r\nUpgrade: tcp\r\n", body=b"{}") + b"early")
        await raw.head()
        assert await raw.exactly(13) == frame(1, b"early")
    assert dockerd.received[-1].early_bytes == 5


async def test_injected_error_has_the_daemons_form_and_its_times(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /info", Injection(0.01, status=500, message='no "space" <left>', times=1))
    reply = await ask(dockerd.socket_path, "GET", "/v1.41/info")
    assert (reply.status, reply.body) == (500, b'{"message":"no \\"space\\" <left>"}\n')
    assert reply.headers["Api-Version"] == "1.41"
    assert (await ask(dockerd.socket_path, "GET", "/info")).status == 200
    with pytest.raises(KeyError, match="no such route"):
        dockerd.inject("POST /start", Injection())


@pytest.mark.parametrize("count", [0, 1, 20])
async def test_reply_is_cut_and_its_request_is_done(dockerd: FakeDockerd, count: int) -> None:
    dockerd.inject(CREATE, Injection(cut_after_bytes=count))
    assert len(await exchange(dockerd.socket_path, create(CLOSE))) == count
    assert len(dockerd.state.containers) == 1


@pytest.mark.parametrize(
    "line",
    [
        "GET /events",
        "GET /containers/c1/logs?stdout=1&follow=1",
        "GET /containers/c1/stats",
        "POST /containers/c1/wait",
        "POST /images/create?fromImage=web",
        "POST /build",
    ],
)
async def test_stream_is_cancelled_at_its_clients_end(dockerd: FakeDockerd, line: str) -> None:
    dockerd.state.create("c1", b"", CREATED)
    dockerd.state.start("c1")
    for route in ("POST /images/create", "POST /build"):
        dockerd.feed(route)
    assert (await exchange(dockerd.socket_path, request(line), end=True)).endswith(b"0\r\n\r\n")
    assert (dockerd.received[0].client_ended, dockerd.received[0].cancelled) == (True, True)
    await until(lambda: dockerd.connections == 0)


async def test_half_closed_create_is_answered(dockerd: FakeDockerd) -> None:
    injection = dockerd.inject(CREATE, Injection(hang=True))
    asked = asyncio.create_task(exchange(dockerd.socket_path, create(), end=True))
    [received] = await dockerd.wait_for_requests(CREATE)
    await until(lambda: received.client_ended and injection.hanging)
    assert not dockerd.state.containers
    injection.release()
    assert (await asked).startswith(b"HTTP/1.1 201 Created\r\n")
    assert not received.cancelled


async def test_dying_daemon_ends_no_stream_well(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("GET /events"))
        await raw.head()
        await dockerd.stop()
        assert await raw.rest() == b""
