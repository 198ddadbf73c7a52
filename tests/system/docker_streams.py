"""Docker's streams through the proxy: a command's, lines chosen by a test, a daemon whose every byte a test writes."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from tests.docker.client import request
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw, UnixHttpConnection, until
from tests.fakes.server import StreamServer
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, wait_until

MIB = 1 << 20
API = "/v1.41"
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
SECONDS = 60.0
"""Seconds that a client waits for anything before its test fails."""

STDOUT, STDERR = 1, 2
FRAME_HEAD_BYTES = 8


# ---- the streams of a command


Sum = tuple[int, str]
"""How many bytes, and their digest."""


class Hijacked:
    """A command's streams on a connection of their own. All calls block, so they need a thread."""

    def __init__(self, path: str, target: str, body: bytes = b"", *, upgrade: bool = True) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.connect(path)
        self.send(request("POST", API + target, body, *(UPGRADE if upgrade else ())))
        self._file = self._socket.makefile("rb", MIB)
        head = b"".join(iter(self._file.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 101 " if upgrade else b"HTTP/1.1 200 "), head

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def feed(self, count: int) -> Sum:
        """Send so many random bytes, and then the end."""
        digest, left = sha256(), count
        while left:
            piece = os.urandom(min(left, MIB))
            digest.update(piece)
            self.send(piece)
            left -= len(piece)
        self._socket.shutdown(socket.SHUT_WR)
        return count, digest.hexdigest()

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the stream number and bytes of each frame, up to the end of the connection."""
        while head := self._file.read(FRAME_HEAD_BYTES):
            size = int.from_bytes(head[4:])
            data = self._file.read(size)
            assert len(data) == size, f"the stream ends inside a frame of {size} bytes"
            yield head[0], data

    def output(self) -> tuple[bytes, bytes]:
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        for stream, data in self.frames():
            kept[stream] += data
        return bytes(kept[STDOUT]), bytes(kept[STDERR])

    def both(self, count: int) -> tuple[Sum, Sum]:
        """Feed and read at once; return what was sent and what came on stdout."""
        with ThreadPoolExecutor(1) as pool:
            feeding = pool.submit(self.feed, count)
            digest, came = sha256(), 0
            for stream, data in self.frames():
                assert stream == STDOUT, data
                digest.update(data)
                came += len(data)
            return feeding.result(), (came, digest.hexdigest())


class Exec(Hijacked):
    """A command in a container."""

    def __init__(self, path: str, container: str, command: Sequence[str], *, stdin: bool, upgrade: bool = True) -> None:
        config = {"Cmd": list(command), "AttachStdin": stdin, "AttachStdout": True, "AttachStderr": True}
        self.id = str(post(path, f"/containers/{container}/exec", config)["Id"])
        super().__init__(path, f"/exec/{self.id}/start", b'{"Detach":false,"Tty":false}', upgrade=upgrade)


def post(path: str, target: str, body: Any = None) -> Any:
    """Send a POST with JSON on a connection of its own; return the answer, None if it is empty."""
    connection = UnixHttpConnection(path)
    try:
        data, headers = (None, {}) if body is None else (json.dumps(body), {"Content-Type": "application/json"})
        connection.request("POST", API + target, data, {"Host": "docker", **headers})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    assert response.status < 300, (response.status, answer)
    return json.loads(answer) if answer else None


# ---- the proxy with a fake dockerd

OWN_CONNECTIONS = 4
"""Most connections that the proxy may have open to the daemon for itself."""


@contextmanager
def serving(folder: Path, runtime: str = "") -> Iterator[ProxyProcess]:
    """Run a proxy for the daemon at the socket ``runtime``, else at the folder's own, now or later."""
    endpoint = runtime or str(folder / "runtime.sock")
    with ProxyProcess(
        folder, backend_runtime_mode="Docker", remote_runtime_service_endpoint=endpoint, log_level="info"
    ) as proxy:
        process = Process(proxy.pid)
        before = process.descriptors()
        yield proxy
        wait_until(lambda: process.descriptors() <= before + OWN_CONNECTIONS, "every connection is closed")


async def request_head(path: str, line: str, *fields: str) -> Raw:
    """Send a request's head; its answer is not read."""
    method, target = line.split(" ")
    raw = await Raw.connect(path)
    raw.send("\r\n".join([f"{method} {API}{target} HTTP/1.1", "Host: docker", *fields, "", ""]).encode())
    return raw


@dataclass(eq=False)
class Events:
    """The stream of events of networks."""

    path: str
    fake: FakeDockerd

    async def open(self) -> Raw:
        """Request the stream, and read the head of the answer."""
        watchers = self.fake.watchers
        raw = await request_head(self.path, 'GET /events?filters={"type":["network"]}', "Content-Length: 0")
        assert b" 200 OK\r\n" in await raw.head()
        await until(lambda: self.fake.watchers > watchers)
        return raw

    def send(self, line: bytes) -> bytes:
        """Make the daemon send an event; return a part of it."""
        self.fake.state.events.emit("network", line.decode().strip(), "n1", {})
        return b'"Action":"%b"' % line.strip()


# ---- a daemon that does what a test writes


@asynccontextmanager
async def scripted(path: str | Path, line: str) -> AsyncIterator["asyncio.Queue[tuple[bytes, Raw]]"]:
    """Listen as a daemon that answers nothing; yield a queue of the requests that begin with ``line``.

    Each is its head, and the connection.
    """
    requests: asyncio.Queue[tuple[bytes, Raw]] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(line.encode()):
                requests.put_nowait((head, Raw(reader, writer)))

    try:
        async with StreamServer(path, accept):
            yield requests
    finally:
        for writer in writers:
            writer.transport.abort()
        Path(path).unlink(missing_ok=True)  # from Python 3.13 on the server has removed it
