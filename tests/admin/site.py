"""The server of the control protocol on a real socket inside a test, with methods of the test."""

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from runtimeproxy.admin.protocol import Part, request
from runtimeproxy.admin.server import Method, Server
from tests.patience import SECONDS, read


class Site:
    """A server on a unix socket in a folder."""

    def __init__(
        self, folder: Path, methods: Mapping[str, Method], *, public: bool = False, making: asyncio.Lock | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.path = str(folder / "admin.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(4096)
        loop = asyncio.get_running_loop()
        self.server = Server(loop, self._listener, methods, making or asyncio.Lock(), private=not public)

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
            return await rest(client)

    async def call(self, method: str, **params: Any) -> list[dict[str, Any]]:
        """Return the lines of the answer to one request."""
        return await self.send(request(method, params))


async def rest(client: socket.socket) -> list[dict[str, Any]]:
    """Return the lines that are received until the server closes."""
    received = bytearray()
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionResetError):
            while octets := await read(client):
                received += octets
    return [json.loads(octets) for octets in received.splitlines()]


async def next_line(client: socket.socket) -> dict[str, Any]:
    """Return the next line of an answer, which nothing follows yet."""
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
