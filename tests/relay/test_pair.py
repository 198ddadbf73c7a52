"""Two connections whose bytes flow into each other: order, half-close, back-pressure, the order of closing."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.relay.pair import Pair

MIB = 2**20


class Copy:
    """A flow that copies, and does what a test asks on special bytes."""

    def __init__(self) -> None:
        self.to_client: list[bytes] = []
        self.to_backend: list[bytes] = []
        self.events: list[str] = []
        self.keeps = False

    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        return self.to_client, self.to_backend

    def client_bytes(self, data: bytes) -> bool:
        if data == b"nonsense":
            raise WireError("nonsense")
        self.to_backend += [data[:1], data[1:]] if len(data) > 1 else [data]
        return data == b"more follows"

    def backend_bytes(self, data: bytes) -> bool:
        if data == b"nonsense":
            self.to_client.append(b"last words")
            raise WireError("nonsense")
        self.to_client.append(data)
        return False

    def client_ended(self) -> None:
        self.events.append("client ended")

    def backend_ended(self) -> bool:
        self.events.append("backend ended")
        return self.keeps

    def closed(self) -> None:
        self.events.append("closed")


class Rig:
    """A pair between two socket pairs."""

    def __init__(self) -> None:
        self.client, near = socket.socketpair()
        self.backend, far = socket.socketpair()
        self.flow = Copy()
        self.pair = Pair(asyncio.get_running_loop(), near, far, self.flow)
        for sock in (self.client, self.backend):
            sock.setblocking(False)

    async def read(self, sock: socket.socket, size: int = 65536) -> bytes:
        async with asyncio.timeout(5):
            return await asyncio.get_running_loop().sock_recv(sock, size)

    async def until(self, event: str) -> None:
        async with asyncio.timeout(5):
            while event not in self.flow.events:
                await asyncio.sleep(0.001)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.pair.close()
    made.client.close()
    made.backend.close()


async def test_bytes_flow_both_ways_and_half_close_passes(rig: Rig) -> None:
    rig.client.send(b"question")
    assert await rig.read(rig.backend) == b"question"
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.read(rig.backend) == b""
    rig.backend.send(b"answer")
    assert await rig.read(rig.client) == b"answer"
    rig.backend.close()
    assert await rig.read(rig.client) == b""
    await rig.until("closed")
    assert rig.flow.events == ["client ended", "backend ended", "closed"]


async def test_what_follows_within_the_turn_goes_out_in_one_write(rig: Rig) -> None:
    rig.client.send(b"more follows")
    assert await rig.read(rig.backend) == b"more follows"


async def test_an_answer_that_is_kept_goes_out_before_the_end(rig: Rig) -> None:
    rig.flow.keeps = True
    rig.backend.close()
    await rig.until("backend ended")
    rig.flow.to_client.append(b"kept answer")
    rig.pair.backend_done()
    assert await rig.read(rig.client) == b"kept answer"
    assert await rig.read(rig.client) == b""
    assert rig.flow.events == ["backend ended", "closed"]


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_a_broken_protocol_ends_both_connections(rig: Rig, side: str) -> None:
    getattr(rig, side).send(b"nonsense")
    await rig.until("closed")
    assert await rig.read(rig.client) == (b"last words" if side == "backend" else b"")
    assert await rig.read(rig.backend) == b""


@pytest.mark.parametrize("slow", ["client", "backend"])
async def test_a_side_that_does_not_read_stops_the_other(rig: Rig, slow: str) -> None:
    """What waits stays bounded, and everything arrives once the slow side reads (facts/reliability S7)."""
    fast_socket, slow_socket = (rig.backend, rig.client) if slow == "client" else (rig.client, rig.backend)
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(fast_socket, b"z" * 8 * MIB))
    await asyncio.sleep(0.1)
    assert not sending.done(), "the sender is held back"
    endpoint = rig.pair._client if slow == "client" else rig.pair._backend
    assert 0 < endpoint.waiting < MIB
    got = 0
    while got < 8 * MIB:
        got += len(await rig.read(slow_socket, MIB))
    await sending
    assert got == 8 * MIB


async def test_the_end_waits_for_a_slow_client(rig: Rig) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(rig.backend, b"z" * 100_000)
    rig.pair.flush()
    rig.backend.setblocking(True)
    sent = 100_000
    rig.backend.setblocking(False)
    while True:
        try:
            sent += rig.backend.send(b"z" * 65536)
        except BlockingIOError:
            await asyncio.sleep(0.01)
            if rig.pair._client.slow:
                break
    rig.backend.close()
    got = 0
    while piece := await rig.read(rig.client, MIB):
        got += len(piece)
    assert got == sent
    await rig.until("closed")
