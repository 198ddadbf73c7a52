"""A scripted daemon on a unix socket: it answers HTTP/1.1 requests with the bytes that a test gives.

Whatever no test scripted is answered 404. tests/fakes/dockerd.py answers as dockerd does.
"""

import asyncio
import json
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_wire import Head, chunk, parse
from tests.fakes.server import StreamServer

EVENTS = "/events"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE_SECONDS = 10.0
"""Seconds that a busy machine may take."""


class Request(NamedTuple):
    """A request that a client sent."""

    head: Head
    body: bytes


def reply(body: bytes = b"{}", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} Words\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def event(action: str, container_id: str, time_ns: int = 1, **more: object) -> bytes:
    """Return a line of dockerd's event stream, labels included."""
    actor = {"ID": container_id, "Attributes": {"name": "k8s_x", "secret": "canary-4711"}}
    said = {"Type": "container", "Action": action, "Actor": actor, "scope": "local", "timeNano": time_ns, **more}
    return json.dumps(said).encode() + b"\n"


class Then(Enum):
    """What a connection does after an answer; one that waits sends what a test gives to ``send``."""

    GO_ON, CLOSE, WAIT = range(3)


class Daemon:
    """The daemon; ``connections`` are the open ones, of which some are ``waiting``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.requests: list[Request] = []
        self.accepted = 0
        self.connections: set[asyncio.StreamWriter] = set()
        self.waiting: set[asyncio.StreamWriter] = set()
        self._replies = {EVENTS: (STREAM_HEAD, Then.WAIT)}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = StreamServer(path, self._accepted)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()
        Path(self.path).unlink(missing_ok=True)  # from Python 3.13 on the server has removed it
        for connection in self.connections:
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def script(self, path: str, raw: bytes, then: Then = Then.GO_ON) -> None:
        """Set the answer for a path, and what the connection does after it."""
        self._replies[path] = (raw, then)

    def hang(self, path: str) -> None:
        """Give requests for a path no answer."""
        self.script(path, b"", Then.WAIT)

    def send(self, data: bytes) -> None:
        for connection in self.waiting:
            connection.write(data)

    def say(self, data: bytes) -> None:
        """Send a chunk on every event stream."""
        self.send(chunk(data))

    async def left(self) -> None:
        await until(lambda: not self.connections)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.connections.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass  # the client has left, or speaks HTTP/2
        finally:
            self.waiting.discard(writer)
            self.connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = parse(await reader.readuntil(b"\r\n\r\n"))
        self.requests.append(Request(head, await reader.readexactly(head.length or 0)))
        path = head.target.partition("?")[0]
        raw, then = self._replies.get(path, (reply(b'{"message": "none"}', 404), Then.GO_ON))
        writer.write(raw)
        await writer.drain()
        if then is Then.WAIT:
            self.waiting.add(writer)
            await reader.read()
        return then is Then.GO_ON and head.keep_alive
