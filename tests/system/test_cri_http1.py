"""HTTP/1.1 on a CRI socket: CRI-O answers it there; dockerd must not be reached so (relay-rules A14)."""

import asyncio
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engines.cri import CriClient
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.runtime import FakeRuntime
from tests.fakes.server import StreamServer
from tests.system.proxy import ProxyProcess

pytestmark = pytest.mark.slow

ASK = b"GET /info HTTP/1.1\r\nHost: h\r\n\r\n"
SECONDS = 20.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(ASK)
    return await asyncio.wait_for(reader.readexactly(len(ANSWER)), SECONDS)


def like_crio(grpc_socket: str) -> Any:
    """Return what serves a connection as CRI-O does: by its first bytes, gRPC or HTTP/1.1."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # a client may connect and send nothing
            begun = await reader.readexactly(3)
            if begun == b"PRI":
                to_runtime = await asyncio.open_unix_connection(grpc_socket)
                to_runtime[1].write(begun)
                await asyncio.gather(copy(reader, to_runtime[1]), copy(to_runtime[0], writer))
                return
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)

    return serve


async def test_http1_passes_next_to_cri_also_under_fail(tmp_path: Path) -> None:
    """An open connection does not keep a proxy from its end."""
    grpc_socket = f"{tmp_path}/grpc.sock"
    proxy = ProxyProcess(tmp_path)
    proxy.register("away.json", tmp_path / "nobody.sock", policy="Fail")
    async with FakeRuntime(grpc_socket), StreamServer(proxy.runtime, like_crio(grpc_socket)), proxy:
        reader, writer = await asyncio.open_unix_connection(proxy.socket)
        assert [await answered(reader, writer) for _ in range(2)] == [ANSWER] * 2
        with CriClient(str(proxy.socket)) as client:
            assert (await asyncio.to_thread(client.version)).runtime_name
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(proxy.stop)
        assert asyncio.get_running_loop().time() - began < SECONDS
        assert await reader.read() == b""
        writer.close()
    assert "broke the protocol" not in proxy.output()


async def test_http1_reaches_no_dockerd(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path)
    async with FakeDockerd(str(proxy.runtime)) as dockerd, proxy:
        reader, writer = await asyncio.open_unix_connection(proxy.socket)
        writer.write(ASK)
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        writer.close()
        assert "/info" not in [received.target for received in dockerd.received]
    assert "is --backend-runtime-mode right?" in proxy.output()
