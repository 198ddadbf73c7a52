"""A relay between two unix sockets that injects faults: it stalls, cuts, half-closes, and records the bytes.

Without a fault every byte and every half-close passes unchanged.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.fakes.server import Listener

READ_BYTES = 65536


@asynccontextmanager
async def full_backlog(path: str) -> AsyncIterator[socket.socket]:
    """Listen with no room for one more connection, so that connect(2) would block; yield the listener."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        yield listener


@dataclass(slots=True)
class Faults:
    """The faults of one direction; may be changed while connections are open.

    After ``cut_after_bytes`` bytes in this direction a connection is dropped; also once ``mutate`` has changed received
    bytes.
    """

    cut_after_bytes: int | None = None
    mutate: Callable[[bytes], bytes] | None = None
    reading: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.reading.set()

    def stop_reading(self) -> None:
        """Read no more from the sender, until ``resume_reading``."""
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection and the one to the backend, with all bytes that passed each way."""

    client: socket.socket
    backend: socket.socket
    to_backend: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    client_half_closed: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self.task is not None and not self.task.done()

    def close(self) -> None:
        """Drop both sides; the peers see an end."""
        if self.is_open and self.task is not None:
            # The shutdown is seen immediately; the descriptors are closed when nothing watches them any more.
            self.client.shutdown(socket.SHUT_RDWR)
            self.backend.shutdown(socket.SHUT_RDWR)
            self.task.cancel()

    def release(self, task: asyncio.Task[None]) -> None:
        """Close the descriptors after the task's end, even if that is before its first step."""
        self.client.close()
        self.backend.close()


class FaultRelay(Listener):
    """Listens on ``listen`` and relays to ``backend``; ``connections`` includes ended ones, in order of accept."""

    def __init__(self, listen: str, backend: str) -> None:
        super().__init__(listen)
        self.backend = backend
        self.to_backend = Faults()
        self.to_client = Faults()
        self.connections: list[Connection] = []

    async def end(self) -> None:
        self.cut()
        await asyncio.gather(*filter(None, (pair.task for pair in self.connections)), return_exceptions=True)

    def cut(self) -> None:
        for connection in self.connections:
            connection.close()

    def reset(self) -> None:
        """Close every open connection; a peer whose bytes are still unread here (``stop_reading``) gets ECONNRESET."""
        for connection in self.connections:
            if connection.task is not None:
                connection.task.cancel()

    def accepted(self, client: socket.socket) -> None:
        backend = socket.socket(socket.AF_UNIX)
        backend.setblocking(False)
        try:
            backend.connect(self.backend)
        except OSError:
            client.close()  # no backend: the client sees an end, as it would from the backend
            backend.close()
            return
        connection = Connection(client, backend)
        self.connections.append(connection)
        connection.task = asyncio.get_running_loop().create_task(self._relay(connection))
        connection.task.add_done_callback(connection.release)

    async def _relay(self, connection: Connection) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, self.to_backend))
                group.create_task(self._pump(connection, self.to_client))
        except* OSError:
            pass  # one side has closed, so the end of this task closes the other

    async def _pump(self, connection: Connection, faults: Faults) -> None:
        forward = faults is self.to_backend
        source, target = (connection.client, connection.backend)[:: 1 if forward else -1]
        recorded = connection.to_backend if forward else connection.to_client
        while data := await self._read(source, faults):
            sent = data if faults.mutate is None else faults.mutate(data)
            if faults.cut_after_bytes is not None:
                sent = sent[: max(0, faults.cut_after_bytes - len(recorded))]
            await asyncio.get_running_loop().sock_sendall(target, sent)
            recorded += sent
            if sent != data or (faults.cut_after_bytes is not None and len(recorded) >= faults.cut_after_bytes):
                raise ConnectionAbortedError("a fault was requested")
        connection.client_half_closed |= forward
        target.shutdown(socket.SHUT_WR)

    async def _read(self, source: socket.socket, faults: Faults) -> bytes:
        # Nothing is read from the socket while reading is stopped, not even by a read that waits already.
        while True:
            await faults.reading.wait()
            await _readable(source)
            if faults.reading.is_set():
                return source.recv(READ_BYTES)


async def _readable(source: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(source, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(source)
