"""A client and backend connection pair: order, half-close, back-pressure, every end (relay-rules B1 and B9)."""

import asyncio
import contextlib
import socket
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from runtimeproxy.errors import WireError
from runtimeproxy.relay import connection
from runtimeproxy.relay.connection import HIGH_WATER, LOW_WATER, QUEUE_ITEM_BYTES, SHARED_BYTES, Connection, ReadBuffer
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.wire.http1 import Send
from tests.patience import read, until

MIB = 2**20


class Copy(Connection):
    """A connection that copies; on b"nonsense" it reports a broken protocol."""

    bulk = True

    def __init__(self, client: socket.socket, backend: socket.socket, hangups: Hangups | None, size: int = 0) -> None:
        self.to_client: list[bytes] = []
        self.to_backend: list[bytes] = []
        self.events: list[str] = []
        self.survives_backend = self.delays_client_eof = False
        self.passing = False
        """Whether large reads pass unchanged; ``passed`` counts their bytes, ``acted`` the events that they cause."""
        self.passed = self.acted = 0
        loop, outputs = asyncio.get_running_loop(), (self.to_client, self.to_backend)
        super().__init__(loop, client, backend, ReadBuffer(size or SHARED_BYTES), outputs, deque(), hangups)

    def act(self, event: object) -> None:
        self.acted += 1

    def client_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            raise WireError("nonsense")
        self.to_backend += [data[:1], data[1:]] if len(data) > 1 else [data]

    def backend_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            self.to_client.append(b"last words")
            raise WireError("nonsense")
        self.to_client.append(data)

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        if self.passing:
            send(size)
            self.passed += size
            self._ready.append("passed")
        return self.passing

    backend_passes = client_passes

    def client_eof(self) -> bool:
        self.events.append("client ended")
        return self.delays_client_eof

    def client_closed(self) -> None:
        self.events.append("client gone")

    def backend_eof(self) -> bool:
        self.events.append("backend ended")
        return self.survives_backend

    def on_closed(self) -> None:
        self.events.append("closed")

    def drain(self, refusing: bool) -> None: ...

    def unfinished(self) -> Unfinished:
        return Unfinished()


class Rig:
    """A connection between two socket pairs; ``client`` and ``backend`` are the far ends."""

    def __init__(self, *, watches: bool = True, size: int = 0) -> None:
        self.client, near = socket.socketpair()
        self.backend, far = socket.socketpair()
        self.hangups = Hangups(asyncio.get_running_loop())
        self.pair = Copy(near, far, self.hangups if watches else None, size)
        for sock in (self.client, self.backend):
            sock.setblocking(False)

    async def relays(self, data: bytes = b"data", *, to_client: bool = False) -> None:
        sender, receiver = (self.backend, self.client) if to_client else (self.client, self.backend)
        sender.send(data)
        assert await read(receiver) == data

    async def ended(self, sock: socket.socket, *last: bytes) -> None:
        """Check that EOF follows the last bytes."""
        for data in (*last, b""):
            assert await read(sock) == data

    async def until(self, event: str) -> None:
        await until(lambda: event in self.pair.events)

    async def fill(self, sock: socket.socket, *, only_queue: bool = False) -> int:
        """Send until no more is read, or only until some bytes are queued for the peer; return the number of bytes."""
        sent, quiet, peer = 0, 0, self.pair._backend if sock is self.client else self.pair._client
        while not (peer.waiting if only_queue else quiet == 5):
            quiet += 1
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(b"z" * 16384)
                quiet = 0
            await asyncio.sleep(0.01 if quiet else 0)
        return sent

    async def read_to_end(self, sock: socket.socket) -> int:
        size = 0
        while data := await read(sock, MIB):
            size += len(data)
        return size

    async def stays_open(self) -> bool:
        await asyncio.sleep(0.02)
        return "closed" not in self.pair.events

    def close(self) -> None:
        self.pair.close()
        self.hangups.close()
        self.client.close()
        self.backend.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.close()


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_broken_protocol_ends_both_connections(rig: Rig, side: str) -> None:
    getattr(rig, side).send(b"nonsense")
    await rig.until("closed")
    assert await read(rig.client) == (b"last words" if side == "backend" else b"")
    await rig.ended(rig.backend)


@pytest.mark.parametrize("mode", ["read", "passing", "alternating"])
@pytest.mark.parametrize("slow", ["client", "backend"])
async def test_slow_side_pauses_reading_from_other_side(rig: Rig, slow: str, mode: str) -> None:
    """Queued bytes stay bounded, and all bytes arrive in order once the slow side reads (fault matrix S7)."""
    rig.pair.passing = mode == "passing"
    fast_socket, slow_socket = (rig.backend, rig.client) if slow == "client" else (rig.client, rig.backend)
    data, received = array("I", range(2 * MIB)).tobytes(), bytearray()
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(fast_socket, data))
    endpoint = rig.pair._client if slow == "client" else rig.pair._backend
    await until(lambda: endpoint.waiting > 0)
    await asyncio.sleep(0.05)
    assert not sending.done(), "the sender is paused"
    assert 0 < endpoint.waiting < MIB
    while len(received) < len(data):
        rig.pair.passing ^= mode == "alternating"
        received += await read(slow_socket, 300_000)
    await sending
    assert received == data, "the shared buffer is not overwritten"
    assert (rig.pair.acted > 0) == (mode != "read")
    assert (rig.pair.passed > 0, rig.pair.passed < len(data)) == (mode != "read", mode != "passing")


@pytest.mark.parametrize(("run", "read_bytes", "unread"), [(asyncio.run, SHARED_BYTES, 100_000), (uvloop.run, 16, 32)])
def test_early_answer_of_closed_backend_is_relayed(run: Callable[..., None], read_bytes: int, unread: int) -> None:
    """It closed with unread bytes, so that writing to it fails; its earlier bytes are read (relay-rules C8).

    No reset follows them, although the client's bytes are not read. uvloop stops polling such a socket after the first
    read (fault matrix B1).
    """

    async def relay() -> None:
        rig = Rig(size=read_bytes)
        rig.pair.pause_client(True)
        rig.client.send(b"z" * unread)
        rig.backend.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        rig.pair._backend.write(b"request")
        rig.backend.close()
        for data in (b"more of the request", b"and more"):
            rig.pair._backend.write(data)
        assert await rig.read_to_end(rig.client) == len(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        rig.close()

    run(relay())


async def test_short_writes_count_with_memory_overhead(rig: Rig) -> None:
    endpoint, writes = rig.pair._client, 0
    while not endpoint.waiting:
        endpoint.write(b"x" * LOW_WATER)
    already = endpoint.waiting
    while not endpoint.slow:
        endpoint.write(b"a line\n")
        writes += 1
    assert writes * QUEUE_ITEM_BYTES <= HIGH_WATER
    assert endpoint.waiting - already == writes * len(b"a line\n")


@pytest.mark.parametrize("watches", [True, False])
async def test_eof_waits_for_slow_other_side(watches: bool) -> None:
    rig = Rig(watches=watches)
    sent = await rig.fill(rig.backend, only_queue=True)
    rig.pair.survives_backend = True
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    rig.pair.half_close()
    queued = await rig.fill(rig.client)
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == sent
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.backend) == queued
    await rig.until("closed")
    rig.close()


async def test_delayed_eof_follows_buffered_bytes(rig: Rig) -> None:
    rig.pair.delays_client_eof = rig.pair.survives_backend = True
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("client ended")
    rig.pair.to_backend.append(b"held request")
    rig.pair.pass_client_eof()
    await rig.ended(rig.backend, b"held request")
    await rig.relays(to_client=True)
    rig.backend.close()
    await rig.until("backend ended")
    rig.pair.to_client.append(b"held answer")
    rig.pair.pass_backend_eof()
    await rig.ended(rig.client, b"held answer")
    assert rig.pair.events == ["client ended", "backend ended", "closed"]


@pytest.mark.parametrize("first", ["client", "backend", "backend closes"])
async def test_tunnel_sides_end_independently(rig: Rig, first: str) -> None:
    """A backend that closes its socket ends the client's side, too."""
    rig.pair.survives_backend = True
    if first == "client":
        rig.client.shutdown(socket.SHUT_WR)
        await rig.ended(rig.backend)
        await rig.relays(to_client=True)
        assert await rig.stays_open()
    rig.backend.close() if first == "backend closes" else rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    rig.pair.to_client.append(b"last output")
    rig.pair.half_close()
    await rig.ended(rig.client, b"last output")
    if first == "backend":
        await rig.relays()
        assert await rig.stays_open()
        rig.client.shutdown(socket.SHUT_WR)
        await rig.ended(rig.backend)
    await rig.until("closed")


async def test_client_is_paused_on_request_or_when_backend_is_slow(rig: Rig) -> None:
    rig.pair.pause_client(True)
    rig.client.send(b"z")
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        rig.backend.recv(1)
    rig.pair.pause_client(False)
    sent = 1 + await rig.fill(rig.client)
    rig.pair.pause_client(True)
    rig.pair.pause_client(False)
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        rig.client.send(b"more")
    rig.pair.pause_client(True)
    reading = asyncio.create_task(rig.read_to_end(rig.backend))
    await until(lambda: not rig.pair._backend.waiting)
    rig.client.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.02)
    assert not rig.pair.events, "its EOF follows bytes that are not read"
    rig.pair.pause_client(False)
    assert await reading == sent


@pytest.mark.parametrize("half_closed", ["no", "EOF passed", "EOF delayed"])
async def test_client_hangup_ends_backend(rig: Rig, half_closed: str) -> None:
    """The EOF of a hang-up is not that of a half-close: a request that it began does not count as one that was cut."""
    rig.pair.delays_client_eof = half_closed == "EOF delayed"
    rig.client.send(b"last request")
    if half_closed != "no":
        rig.client.shutdown(socket.SHUT_WR)
        await rig.until("client ended")
        assert await rig.stays_open()
    rig.client.close()
    await rig.until("closed")
    assert rig.pair.events == ["client ended"] * (half_closed != "no") + ["client gone", "closed"]
    assert rig.pair.client_ended
    await rig.ended(rig.backend, b"last request")


async def send_until_refused(sock: socket.socket) -> int:
    accepted = 0
    async with asyncio.timeout(20):
        with contextlib.suppress(BrokenPipeError):
            while True:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        accepted += sock.send(b"y" * 1024)
                await asyncio.sleep(0.001)
    return accepted


@pytest.mark.parametrize(("paused", "bulk"), [(True, False), (True, True), (False, False), (False, True)])
async def test_idle_backend_write_fails_when_client_closed(rig: Rig, paused: bool, bulk: bool) -> None:
    """The client's bytes precede the end; without the proxy, the backend would see EPIPE."""
    rig.pair.passing = bulk
    sent = await rig.fill(rig.client, only_queue=not paused)
    rig.client.close()
    assert await send_until_refused(rig.backend) < MIB
    assert await rig.stays_open(), "the client's bytes are queued"
    assert ("client gone" in rig.pair.events) == (not paused), "its end follows bytes that are not read"
    assert await rig.read_to_end(rig.backend) == sent
    await rig.until("closed")
    assert rig.pair.events == ["client gone", "closed"]


async def test_connection_ends_when_both_sides_have_closed(rig: Rig) -> None:
    await rig.fill(rig.client)
    await rig.fill(rig.backend)
    rig.client.close()
    await send_until_refused(rig.backend)
    rig.backend.close()
    await rig.until("closed")
    unwatched = Rig(watches=False)
    await unwatched.fill(unwatched.client)
    unwatched.client.close()
    for _ in range(64):
        assert unwatched.backend.send(b"y" * 1024) == 1024
        await asyncio.sleep(0.001)
    unwatched.close()


async def test_ended_backend_is_replaced(rig: Rig) -> None:
    rig.pair.survives_backend = True
    await rig.fill(rig.client)
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    first, (rig.backend, near) = rig.backend, socket.socketpair()
    rig.backend.setblocking(False)
    rig.pair.replace_backend(near)
    assert (await read(rig.backend)).startswith(b"z")
    await rig.relays(to_client=True)
    rig.pair.survives_backend = False
    rig.backend.close()
    await rig.ended(rig.client)
    await rig.until("closed")
    first.close()


@pytest.mark.parametrize("lingers", [False, True])
async def test_finished_client_gets_eof_after_answer(rig: Rig, lingers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later bytes are dropped: a client that cannot send may never read the answer. It may linger for a time."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.01)
    await rig.fill(rig.client)
    rig.pair.pause_client(True)
    rig.pair.to_client.append(b"z" * 4 * MIB)
    rig.pair.finish_client()
    await asyncio.get_running_loop().sock_sendall(rig.client, b"z" * MIB)
    if lingers:
        rig.pair.linger()
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == 4 * MIB
    if not lingers:
        assert await rig.stays_open()
        rig.client.shutdown(socket.SHUT_WR)
    await rig.until("closed")
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"still sending")


async def test_shut_client_loses_nothing_and_sends_no_more(rig: Rig) -> None:
    rig.pair.delays_client_eof = True
    rig.client.send(b"sent before")
    rig.pair.shut_client()
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"sent after")
    assert await read(rig.backend) == b"sent before"
    await rig.until("client ended")
    assert rig.pair.client_ended
    await rig.relays(to_client=True)
    rig.pair.finish_client()
    await rig.ended(rig.client)
    assert "closed" in rig.pair.events


async def settled(reported: list[str], *names: str) -> None:
    await until(lambda: reported == list(names))
    await asyncio.sleep(0.01)
    assert reported == list(names)


async def test_close_is_reported_once_and_half_close_is_not(rig: Rig) -> None:
    """A reused descriptor is watched as a new socket (relay-rules B1)."""
    reported, (near, far) = list[str](), socket.socketpair()
    rig.hangups.watch(near, lambda: reported.append("first"))
    far.send(b"last words")
    far.shutdown(socket.SHUT_WR)
    await settled(reported)
    far.close()
    await settled(reported, "first")
    rig.hangups.watch(near, lambda: reported.append("again"))  # it was no longer watched
    await settled(reported, "first", "again")
    assert near.recv(20) == b"last words", "the bytes are not lost"
    rig.hangups.watch(near, lambda: reported.append("forgotten"))
    for _ in range(2):
        rig.hangups.forget(near)
    descriptor = near.fileno()
    near.close()
    near, far = socket.socketpair()
    with near:
        assert near.fileno() == descriptor
        rig.hangups.watch(near, lambda: reported.append("second"))
        await settled(reported, "first", "again")
        far.close()
        await settled(reported, "first", "again", "second")


async def test_peer_forgotten_by_earlier_callback_is_not_reported(rig: Rig) -> None:
    """Both hang up within one iteration of the loop, and the first callback closes the second socket."""
    reported = list[str]()
    pairs = [socket.socketpair() for _ in range(2)]

    def hung_up(second: socket.socket) -> None:
        reported.append("one of both")
        rig.hangups.forget(second)
        second.close()

    for number, (near, _) in enumerate(pairs):
        rig.hangups.watch(near, lambda second=pairs[1 - number][0]: hung_up(second))  # type: ignore[misc]
    for _, far in pairs:
        far.close()
    await settled(reported, "one of both")
    for near, _ in pairs:
        near.close()
