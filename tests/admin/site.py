"""The admin server inside a test: real sockets and a real channel, with a table of questions of the test's own."""

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from runtimeproxy.admin.channel import Answers, Channel, Part, Query
from runtimeproxy.admin.connections import Room
from runtimeproxy.admin.server import Server
from tests.fakes.server import stop_accepting
from tests.patience import SECONDS, until


class Site:
    """A server over a unix socket at ``path``."""

    def __init__(self, folder: Path, queries: Mapping[str, Query], *, metrics_only: bool = False) -> None:
        self.path = str(folder / "admin.sock")
        self._queries = queries
        self._metrics_only = metrics_only

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self.answering = asyncio.create_task(Answers(self._queries).serve(ours))
        channel = await Channel.over(theirs)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(4096)
        listener.setblocking(False)
        server = Server(channel, os.getpid())
        self.room = Room(listener, await server.http(metrics_only=self._metrics_only))
        self._listener = listener
        self._tasks = [asyncio.create_task(self.room.accept()), asyncio.create_task(channel.run()), self.answering]
        return self

    async def __aexit__(self, *details: object) -> None:
        await stop_accepting(self._listener)
        for connection in tuple(self.room.open):
            connection.transport.abort()
        await until(lambda: not self.room.open)
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._listener.close()

    def connect(self) -> socket.socket:
        """Return a new connection, non-blocking."""
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.path)
        client.setblocking(False)
        return client

    async def send(self, request: bytes) -> bytes:
        """Send a request as it is; return all that comes until the server closes."""
        loop = asyncio.get_running_loop()
        with await asyncio.to_thread(self.connect) as client:  # it waits while the backlog is full
            with suppress(BrokenPipeError, ConnectionResetError):
                await loop.sock_sendall(client, request)
            return await rest(client)

    async def ask(self, target: str, method: str = "GET", body: bytes = b"") -> tuple[int, str]:
        """Return status and body of an answer."""
        status, _, text = answer(await self.send(request(target, method, body)))
        return status, text


def request(target: str, method: str = "GET", body: bytes = b"", *more: str) -> bytes:
    """Return a request's bytes; ``more`` are header lines."""
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *length, *more, "", ""]).encode() + body


async def rest(client: socket.socket) -> bytes:
    """Return what comes on a non-blocking socket until its other end closes."""
    pieces = []
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionResetError):
            while piece := await asyncio.get_running_loop().sock_recv(client, 65536):
                pieces.append(piece)
    return b"".join(pieces)


def answer(octets: bytes) -> tuple[int, dict[str, str], str]:
    """Return status, header fields and body of an answer."""
    head, _, body = octets.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), fields, body.decode()


def told(*parts: Part) -> Query:
    """Return a query with these parts."""
    return lambda arguments: iter(parts)


def echo(arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Answer with the question's arguments."""
    yield {"asked": dict(arguments)}
