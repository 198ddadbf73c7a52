"""An exporter, the fake of the proxy that it calls, and its clients."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin.exporter import Exporter, Tls
from runtimeproxy.admin.protocol import line
from runtimeproxy.relay.acceptor import Acceptor
from tests.fakes.canned_admin import END, Fault, Server, sending, serving
from tests.patience import SECONDS

FIGURES = "runtimeproxy_held_calls 0.0\n"
METRICS = {"runtime": "containerd", "process": {}, "values": [["held_calls", [], 0]], "histograms": []}
GET_METRICS = "GET /metrics HTTP/1.1"


def reply(*parts: Any) -> Fault:
    """Return an answer of these parts, METRICS unless there are any."""
    return sending(*(line(id=1, part=part) for part in parts or [METRICS]), END)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "proxy.sock", {}, reply()) as server:
        yield server


@asynccontextmanager
async def exporting(endpoint: Any, tls: Tls | None = None, *, everything: bool = False) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with Exporter(str(endpoint), tls, everything=everything) as running:
            acceptor = Acceptor(asyncio.get_running_loop(), listener, running.accept)
            acceptor.start()
            yield listener.getsockname()[1]
            acceptor.stop()


@asynccontextmanager
async def connected(
    port: int, sent: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect a client, which sends a text."""
    async with asyncio.timeout(SECONDS):
        name = "node.test" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(sent.encode())
        yield reader, writer
        writer.close()


async def fetch(port: int, request: str, context: ssl.SSLContext | None = None) -> str:
    """Return all that comes for a request until the connection ends."""
    async with connected(port, f"{request}\r\nHost: node\r\nAuthorization: secret\r\n\r\n", context) as (reader, _):
        return (await reader.read()).decode()
