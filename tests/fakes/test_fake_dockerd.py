"""What tests rely on that the fake dockerd has beyond a real one: its record of requests, and of clients' ends.

That it answers as a real one does is in test_dockerd_contract.py.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_client import exchange, until

CREATE = "POST /containers/create"
CREATED = {"Image": "runtimeproxy-busybox:1"}


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


async def test_request_is_kept_as_it_came(dockerd: FakeDockerd) -> None:
    sent = (
        b"POST /containers/create?name=one&name=two HTTP/1.1\r\nhOst: docker\r\nX-Twice: 1\r\nX-Twice:  2\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'9;ext=1\r\n{"Image":\r\n1A\r\n"runtimeproxy-busybox:1"}\n\r\n0\r\nTrailer: x\r\n\r\n'
    )
    assert b" 201 Created" in await exchange(dockerd.socket_path, sent)
    [received] = dockerd.requests(CREATE)
    assert (received.raw, received.status, dockerd.counts[CREATE]) == (sent, 201, 1)
    assert received.headers[:3] == (("hOst", "docker"), ("X-Twice", "1"), ("X-Twice", "2"))
    assert received.head.query["name"] == "one"
    assert dockerd.container("one").request == received.body == b'{"Image":"runtimeproxy-busybox:1"}\n'


@pytest.mark.parametrize(
    "line",
    ["GET /events", "GET /containers/c1/logs?stdout=1&follow=1", "POST /images/create?fromImage=web", "POST /build"],
)
async def test_stream_is_cancelled_at_its_clients_end(dockerd: FakeDockerd, line: str) -> None:
    dockerd.state.create("c1", b"", CREATED)
    dockerd.state.start("c1")
    for route in ("POST /images/create", "POST /build"):
        dockerd.feed(route)
    sent = f"{line} HTTP/1.1\r\nHost: d\r\n\r\n".encode()
    assert (await exchange(dockerd.socket_path, sent, end=True)).endswith(b"0\r\n\r\n")
    assert (dockerd.received[0].client_ended, dockerd.received[0].cancelled) == (True, True)
    await until(lambda: dockerd.connections == 0)


async def test_half_closed_create_is_answered(dockerd: FakeDockerd) -> None:
    injection = dockerd.inject(CREATE, Injection(hang=True))
    body = b'{"Image":"runtimeproxy-busybox:1"}'
    head = (
        b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    asked = asyncio.create_task(exchange(dockerd.socket_path, head % len(body) + body, end=True))
    await until(lambda: injection.hanging and dockerd.received[0].client_ended)
    assert not dockerd.state.containers
    injection.release()
    assert (await asked).startswith(b"HTTP/1.1 201 Created\r\n")
    assert not dockerd.received[0].cancelled
