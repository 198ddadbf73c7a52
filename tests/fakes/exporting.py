"""A fake of the proxy's admin or metrics socket, and an exporter that is its client."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from runtimeproxy.admin.exporter import Exporter, Tls
from runtimeproxy.admin.protocol import SCHEMA_VERSION, line
from runtimeproxy.relay.acceptor import Acceptor
from tests.fakes.server import StreamServer
from tests.patience import SECONDS

FIGURES = "runtimeproxy_held_calls 0.0\n"
METRICS = {"runtime": "containerd", "process": {}, "values": [["held_calls", [], 0]], "histograms": []}
GET_METRICS = "GET /metrics HTTP/1.1"
END = line(id=1, end={"schemaVersion": SCHEMA_VERSION})
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def reply(*parts: Any) -> Answer:
    """Return an answer of these parts, METRICS unless there are any."""
    return sent(*(line(id=1, part=part) for part in parts or [METRICS]), END)


def sent(*octets: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.writelines(octets)

    return answer


class FakeProxy:
    """Answers each connection's request with ``answer``; ``requests`` are methods and parameters of those that came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answer: Answer = reply()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = StreamServer(path, self._serve)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self._tasks.add(task)
        try:
            request = json.loads(await reader.readuntil(b"\n"))
            self.requests.append((request["method"], request["params"]))
            await self.answer(writer)
        finally:
            writer.close()


@asynccontextmanager
async def exporting(endpoint: Path | str, tls: Tls | None = None, *, everything: bool = False) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with Exporter(str(endpoint), tls, everything=everything) as running:
            acceptor = Acceptor(asyncio.get_running_loop(), listener, running.accept)
            acceptor.start()
            yield listener.getsockname()[1]
            acceptor.stop()


async def fetch(port: int, request: str, context: ssl.SSLContext | None = None) -> str:
    """Return all that comes for a request until the connection ends."""
    async with asyncio.timeout(SECONDS):
        name = "node.test" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(f"{request}\r\nHost: node\r\nAuthorization: secret\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        return answer
