"""The control protocol served inside a test, and an exporter with the fake of the proxy that it calls."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from runtimeproxy.admin import server as admin_server
from runtimeproxy.admin.exporter import Exporter, Tls
from runtimeproxy.admin.protocol import Part, line, request
from runtimeproxy.admin.server import Method
from runtimeproxy.relay.acceptor import Acceptor
from tests.fakes.canned_admin import END, Fault, Server, sending, serving
from tests.patience import SECONDS, read

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
    """Return the bytes received for a request until the connection ends."""
    async with connected(port, f"{request}\r\nHost: node\r\nAuthorization: secret\r\n\r\n", context) as (reader, _):
        return (await reader.read()).decode()


class Site:
    """A server on a unix socket in a folder."""

    def __init__(
        self, folder: Path, methods: Mapping[str, Method], public: bool = False, lock: asyncio.Lock | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.path = str(folder / "admin.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(4096)
        loop = asyncio.get_running_loop()
        self.server = admin_server.Server(loop, self._listener, methods, lock or asyncio.Lock(), private=not public)

    async def __aenter__(self) -> Self:
        self.server.start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.server.stop()
        self._listener.close()

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Return a new connection, non-blocking, on which octets were sent."""
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.path)
        client.setblocking(False)
        client.send(sent)
        return client

    async def send(self, octets: bytes) -> list[dict[str, Any]]:
        """Send octets and shut down writing; return the lines that the server sends until it closes."""
        loop = asyncio.get_running_loop()
        with self.connect() as client:
            with suppress(BrokenPipeError, ConnectionResetError):
                await loop.sock_sendall(client, octets)
                client.shutdown(socket.SHUT_WR)
            return await remaining_lines(client)

    async def call(self, method: str, **params: Any) -> list[dict[str, Any]]:
        """Return the lines of the answer to one request."""
        return await self.send(request(method, params))


async def remaining_lines(client: socket.socket) -> list[dict[str, Any]]:
    """Return the lines that are received until the server closes."""
    received = bytearray()
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionResetError):
            while octets := await read(client):
                received += octets
    return [json.loads(octets) for octets in received.splitlines()]


async def next_line(client: socket.socket) -> dict[str, Any]:
    """Return the next line of an answer; no bytes may follow it yet."""
    received = b""
    while not received.endswith(b"\n"):
        octets = await read(client)
        assert octets, "the server closed the connection"
        received += octets
    return dict(json.loads(received))


def parts(*made: Part, public: bool = False) -> Method:
    """Return a method with these parts."""
    return Method(lambda params: iter(made), public=public)


def echo(params: Mapping[str, Any]) -> Iterator[Part]:
    """Answer with the parameters."""
    yield {"params": dict(params)}
