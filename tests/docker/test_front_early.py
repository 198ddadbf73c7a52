"""A daemon that answers before it has read a request, and leaves, while the client still sends (an import, a build).

Go's servers half-close behind such an answer and close half a second later: a client that cannot write meanwhile may
never read it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtimeproxy.relay import pair
from tests.docker.client import request
from tests.docker.daemon import until
from tests.system.docker_streams import Scripted
from tests.system.proxy import ProxyInside

IMPORT = b"POST /images/create?fromSrc=- HTTP/1.1\r\nHost: d\r\n"
SIZED = IMPORT + b"Content-Length: 1000000\r\n\r\n"
CHUNKED = IMPORT + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthe beginning of an answer"
SECONDS = 10.0


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[ProxyInside]:
    async with ProxyInside(tmp_path, backend_runtime_mode="Docker") as proxy:
        yield proxy


@asynccontextmanager
async def left_behind(proxy: ProxyInside, sent: bytes, answer: bytes = REFUSAL) -> AsyncIterator[socket.socket]:
    """Give a client that has sent so much, has its answer, and no daemon any more."""
    loop = asyncio.get_running_loop()
    async with Scripted(proxy.runtime) as daemon:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            await loop.sock_connect(client, str(proxy.socket))
            await loop.sock_sendall(client, sent)
            _, asked = await daemon.asked(sent[:10].decode())
            asked.send(answer)
            asked.writer.close()
            came = b""
            async with asyncio.timeout(SECONDS):
                while piece := await loop.sock_recv(client, 1 << 16):
                    came += piece
            assert came == answer, "and the daemon's end behind it"
            yield client


@pytest.mark.parametrize("head", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize("answer", [REFUSAL, CUT, b""], ids=["refused", "cut", "nothing"])
async def test_whoever_is_inside_a_body_is_let_send_on(proxy: ProxyInside, head: bytes, answer: bytes) -> None:
    async with left_behind(proxy, head + b"x" * 100, answer) as client:
        for _ in range(20):
            assert client.send(b"x" * 1000) == 1000
            await asyncio.sleep(0.005)
        client.close()
        await until(lambda: not proxy.app.front.connections)


async def test_it_is_not_waited_for_longer_than_a_moment(proxy: ProxyInside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "LINGER_SECONDS", 0.05)
    async with left_behind(proxy, SIZED) as client:
        await until(lambda: not proxy.app.front.connections)
        with pytest.raises(BrokenPipeError):
            client.send(b"x")


@pytest.mark.parametrize(
    "sent", [request("GET", "/_ping"), CHUNKED[:-7] + b"1\r\nx\r\n0\r\n\r\n"], ids=["none", "chunks"]
)
async def test_nobody_else_is_waited_for(proxy: ProxyInside, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "LINGER_SECONDS", SECONDS)
    async with left_behind(proxy, sent), asyncio.timeout(SECONDS / 2):
        await until(lambda: not proxy.app.front.connections)


async def test_what_is_sent_into_the_void_is_not_kept(proxy: ProxyInside) -> None:
    async with left_behind(proxy, SIZED) as client:
        [connection] = proxy.app.front.connections
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SECONDS):
            await loop.sock_sendall(client, b"x" * 5_000_000)
        assert not connection.reader.to_daemon
        assert proxy.app.front.held_bytes.count == 0
