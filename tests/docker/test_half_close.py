"""Why the Docker front is a relay of our own: a client may half-close and still waits for its answer.

``docker exec`` without a terminal does so. aiohttp's server takes the half-close for the client's end and drops the
answer; the day it keeps it, this test says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.fakes.dockerd import FakeDockerd
from tests.system.proxy import ProxyInside

REQUEST = b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
WORK_SECONDS = 0.05


@asynccontextmanager
async def aiohttp_server(socket: Path) -> AsyncIterator[None]:
    """Serve /_ping, with a moment of work, on aiohttp's server."""

    async def ping(request: web.Request) -> web.Response:
        await asyncio.sleep(WORK_SECONDS)
        return web.Response(text="OK")

    application = web.Application()
    application.router.add_get("/_ping", ping)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def answer_after_half_close(socket: Path) -> bytes:
    """Send a request, half-close, and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(REQUEST)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_aiohttps_server_loses_the_answer_to_a_client_that_half_closed(tmp_path: Path) -> None:
    async with aiohttp_server(tmp_path / "aiohttp.sock"):
        assert await answer_after_half_close(tmp_path / "aiohttp.sock") == b""


async def test_the_relay_keeps_it(tmp_path: Path) -> None:
    async with (
        FakeDockerd(str(tmp_path / "runtime.sock")),
        ProxyInside(tmp_path, backend_runtime_mode="Docker") as proxy,
    ):
        answer = await answer_after_half_close(proxy.socket)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nOK")
