"""A pair between two socket pairs, with a flow that copies.

Owns the sockets of both peers, and what the flow was told.
Must not know: what is tested.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from runtimeproxy.errors import WireError
from runtimeproxy.relay.endpoint import ReadBuffer
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.relay.pair import Pair
from runtimeproxy.wire.bodies import Send
from tests.patience import until

MIB = 2**20


class Copy:
    """A flow that copies, and does what a test asks on special bytes."""

    def __init__(self) -> None:
        self.to_client: list[bytes] = []
        self.to_backend: list[bytes] = []
        self.events: list[str] = []
        self.keeps = False
        """Whether the connection goes on behind the backend's EOF."""
        self.waits = False
        """Whether the client's EOF waits."""
        self.call: Callable[[], object] | None = None
        """Called while the client's bytes are read."""
        self.bulk = False
        """Whether big reads pass as they are."""
        self.passed = 0
        """How many bytes did."""

    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        return self.to_client, self.to_backend

    def client_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            raise WireError("nonsense")
        self.to_backend += [data[:1], data[1:]] if len(data) > 1 else [data]
        if self.call is not None:
            self.call()

    def backend_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            self.to_client.append(b"last words")
            raise WireError("nonsense")
        self.to_client.append(data)

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        return self._passes(size, send)

    def backend_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        return self._passes(size, send)

    def _passes(self, size: int, send: Send) -> bool:
        if self.bulk:
            send(size)
            self.passed += size
        return self.bulk

    def client_ended(self) -> bool:
        self.events.append("client ended")
        return self.waits

    def client_gone(self) -> None:
        self.events.append("client gone")

    def backend_ended(self) -> bool:
        self.events.append("backend ended")
        return self.keeps

    def closed(self) -> None:
        self.events.append("closed")


class Rig:
    """A pair between two socket pairs; ``watches``: for hang-ups."""

    def __init__(self, watches: bool = False) -> None:
        self.client, near = socket.socketpair()
        self.backend, far = socket.socketpair()
        self.flow = Copy()
        loop = asyncio.get_running_loop()
        self.hangups = Hangups(loop)
        self.pair = Pair(loop, near, far, self.flow, ReadBuffer(), self.hangups if watches else None, self.flow)
        for sock in (self.client, self.backend):
            sock.setblocking(False)

    async def read(self, sock: socket.socket, size: int = 65536) -> bytes:
        async with asyncio.timeout(20):
            return await asyncio.get_running_loop().sock_recv(sock, size)

    async def until(self, event: str) -> None:
        await until(lambda: event in self.flow.events)

    def another_backend(self) -> socket.socket:
        """Put another backend in the place of the one that has ended; return that one."""
        first, (self.backend, near) = self.backend, socket.socketpair()
        self.backend.setblocking(False)
        self.pair.replace_backend(near)
        return first

    async def send_until_some_waits(self) -> int:
        """Let the client send until some of that waits for the backend; return how much that was."""
        sent = 0
        while not self.pair._backend.waiting:
            with contextlib.suppress(BlockingIOError):
                sent += self.client.send(b"z" * 16384)
            await asyncio.sleep(0)
        return sent

    async def fill(self, sock: socket.socket) -> int:
        """Send until the pair reads no more; return how much that was."""
        sent = 0
        quiet = 0
        while quiet < 5:
            try:
                sent += sock.send(b"z" * 65536)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                await asyncio.sleep(0.01)
        return sent

    async def read_to_end(self, sock: socket.socket) -> int:
        """Return how much comes before EOF."""
        got = 0
        while piece := await self.read(sock, MIB):
            got += len(piece)
        return got

    async def stays_open(self) -> bool:
        """Tell whether the pair is not closed within a moment."""
        await asyncio.sleep(0.02)
        return "closed" not in self.flow.events

    def close(self) -> None:
        self.pair.close()
        self.hangups.close()
        self.client.close()
        self.backend.close()
