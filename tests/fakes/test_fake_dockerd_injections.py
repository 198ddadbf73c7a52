"""What came in at the fake dockerd is kept as it came, and what is injected goes wrong as told."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_client import Reply, ask, exchange, until

IMAGE = "runtimeproxy-busybox:1"
START = "POST /containers/{ref}/start"
CREATE = "POST /containers/create"


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


async def post(dockerd: FakeDockerd, target: str) -> Reply:
    return await ask(dockerd.socket_path, "POST", target)


async def get(dockerd: FakeDockerd, target: str) -> Reply:
    return await ask(dockerd.socket_path, "GET", target)


# ---- what came in


async def test_requests_are_kept_as_they_came(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    request = (
        b"POST /containers/create?name=one&name=two HTTP/1.1\r\nhOst: docker\r\nX-Twice: 1\r\nX-Twice:  2\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'9;ext=1\r\n{"Image":\r\n1A\r\n"runtimeproxy-busybox:1"}\n\r\n0\r\nTrailer: x\r\n\r\n'
    )
    async with FakeDockerd(path, keep_received=2, keep_body_bytes=20) as fake:
        await get(fake, "/version")
        assert b" 201 Created" in await exchange(path, request)
        assert b" 201 Created" in await exchange(path, request.replace(b"name=one&", b""))
        first, second = fake.received
        assert (first.method, first.target) == ("POST", "/containers/create?name=one&name=two")
        assert first.headers[:3] == (("hOst", "docker"), ("X-Twice", "1"), ("X-Twice", "2"))
        assert (first.head.query["name"], second.head.query["name"]) == ("one", "two")
        assert (first.body_bytes, len(first.body), len(first.wire_body), first.status) == (35, 20, 20, 201)
        assert fake.counts[CREATE] == 2
        assert fake.requests(CREATE) == [first, second]
        assert fake.container("one").request == b'{"Image":"runtimeproxy-busybox:1"}\n'
    async with FakeDockerd(path) as fake:
        await exchange(path, request)
        assert fake.received[0].raw == request


async def test_a_test_can_wait_for_requests(dockerd: FakeDockerd) -> None:
    waiting = asyncio.create_task(dockerd.wait_for_requests("GET /info", 2))
    await get(dockerd, "/info")
    assert not waiting.done()
    await get(dockerd, "/v1.40/info")
    assert [received.target for received in await waiting] == ["/info", "/v1.40/info"]


# ---- injections


async def test_an_injected_error_has_the_daemons_form(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": IMAGE})
    dockerd.inject(START, Injection(0.01, status=500, message='no "space" <left>', times=1))
    reply = await post(dockerd, "/v1.41/containers/c1/start")
    assert (reply.status, reply.body) == (500, b'{"message":"no \\"space\\" <left>"}\n')
    assert reply.headers["Api-Version"] == "1.41"
    assert (await post(dockerd, "/containers/c1/start")).status == 204
    with pytest.raises(KeyError, match="no such route"):
        dockerd.inject("POST /start", Injection())


async def test_a_call_hangs_until_it_is_released(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": IMAGE})
    injection = dockerd.inject(START, Injection(hang=True))
    call = asyncio.create_task(post(dockerd, "/containers/c1/start"))
    await until(lambda: injection.hanging == 1)
    assert dockerd.container("c1").status == "created"
    assert (await get(dockerd, "/containers/c1/json")).status == 200
    injection.release()
    assert (await call).status == 204


@pytest.mark.parametrize("count", [0, 1, 20, 10_000])
async def test_a_reply_is_cut(dockerd: FakeDockerd, count: int) -> None:
    dockerd.inject(CREATE, Injection(cut_after_bytes=count))
    body = b'{"Image":"%b"}' % IMAGE.encode()
    request = b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    reply = await exchange(dockerd.socket_path, request % len(body) + b"Connection: close\r\n\r\n" + body)
    assert len(reply) == count or count == 10_000
    assert len(dockerd.state.containers) == 1


async def test_a_stream_is_cut(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /images/get", Injection(cut_after_bytes=100_000))
    assert len(await exchange(dockerd.socket_path, b"GET /images/get HTTP/1.1\r\nHost: d\r\n\r\n")) == 100_000


async def test_raw_bytes_and_a_close_are_injected(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /info", Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"))
    dockerd.inject("GET /version", Injection(close=True))
    info, version = (f"GET /{name} HTTP/1.1\r\nHost: d\r\n\r\n".encode() for name in ("info", "version"))
    reply = await exchange(dockerd.socket_path, info + version + info)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nApi-Version")
    assert b"\r\nConnection: close\r\n" in reply
    assert len(dockerd.received) == 2


async def test_it_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "alone.sock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.dockerd", "--socket", str(path), "--containers", "3"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert str(path).encode() in await asyncio.wait_for(process.stdout.readline(), 20)
    assert len((await ask(str(path), "GET", "/containers/json")).json) == 3
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 10) == 0
