"""Two connections whose bytes flow into each other: order, half-close, back-pressure, and every way to end.

The end by a hang-up, with another backend and after the last answer is relay-rules B1 and B9.
"""

import asyncio
import contextlib
import socket
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.relay import connection
from runtimeproxy.relay.connection import HIGH_WATER, LOW_WATER, PIECE_BYTES, Connection, ReadBuffer
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.relay.eventloop import batch
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.wire.http1 import Send
from tests.patience import read, until

MIB = 2**20


class Copy(Connection):
    """A connection that copies, and does what a test asks on special bytes."""

    bulk = True

    def __init__(self, client: socket.socket, backend: socket.socket, hangups: Hangups | None) -> None:
        self.to_client: list[bytes] = []
        self.to_backend: list[bytes] = []
        self.events: list[str] = []
        self.keeps = False  # whether the connection goes on after the backend's EOF
        self.waits = False  # whether the client's EOF waits
        self.call: Callable[[], object] = int  # called while the client's bytes are read
        self.passing = False  # whether large reads pass unchanged
        self.passed = 0  # the number of bytes that did
        self.ready: deque[object] = deque()  # what is sent to the backend after the read
        self.acted: list[tuple[bool, bytes]] = []  # whether bytes were read then, and what waited for the backend
        loop, outputs = asyncio.get_running_loop(), (self.to_client, self.to_backend)
        super().__init__(loop, client, backend, ReadBuffer(), outputs, self.ready, hangups)

    def act(self, event: object) -> None:
        assert isinstance(event, bytes)
        self.acted.append((self._reading, b"".join(self.to_backend)))
        self.to_backend.append(event)

    def client_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            raise WireError("nonsense")
        self.to_backend += [data[:1], data[1:]] if len(data) > 1 else [data]
        self.call()

    def backend_bytes(self, data: bytes) -> None:
        if data == b"nonsense":
            self.to_client.append(b"last words")
            raise WireError("nonsense")
        self.to_client.append(data)

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        if self.passing:
            send(size)
            self.passed += size
            self.call()
        return self.passing

    backend_passes = client_passes

    def client_eof(self) -> bool:
        self.events.append("client ended")
        return self.waits

    def client_gone(self) -> None:
        self.events.append("client gone")

    def backend_eof(self) -> bool:
        self.events.append("backend ended")
        return self.keeps

    def on_closed(self) -> None:
        self.events.append("closed")

    def drain(self, refusing: bool) -> None:
        """Do nothing."""

    def unfinished(self) -> Unfinished:
        return Unfinished()


class Rig:
    """A pair between two socket pairs; ``watches``: for hang-ups."""

    def __init__(self, watches: bool = False) -> None:
        self.client, near = socket.socketpair()
        self.backend, far = socket.socketpair()
        self.hangups = Hangups(asyncio.get_running_loop())
        self.pair = Copy(near, far, self.hangups if watches else None)
        for sock in (self.client, self.backend):
            sock.setblocking(False)

    async def asks(self, question: bytes = b"question") -> None:
        """Send from the client, and check that the backend gets it."""
        self.client.send(question)
        assert await read(self.backend) == question

    async def answers(self, answer: bytes = b"answer") -> None:
        """Send from the backend, and check that the client gets it."""
        self.backend.send(answer)
        assert await read(self.client) == answer

    async def ended(self, sock: socket.socket, *last: bytes) -> None:
        """Check that EOF comes after the last bytes."""
        for data in (*last, b""):
            assert await read(sock) == data

    async def until(self, event: str) -> None:
        await until(lambda: event in self.pair.events)

    def another_backend(self) -> socket.socket:
        """Replace the backend that has ended by another one; return that one."""
        first, (self.backend, near) = self.backend, socket.socketpair()
        self.backend.setblocking(False)
        self.pair.replace_backend(near)
        return first

    async def send_until_some_waits(self, sock: socket.socket) -> int:
        """Send until some of that waits for the other side; return how much that was."""
        sent, other = 0, self.pair._backend if sock is self.client else self.pair._client
        while not other.waiting:
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(b"z" * 16384)
            await asyncio.sleep(0)
        return sent

    async def fill(self, sock: socket.socket) -> int:
        """Send until the pair reads no more; return how much was sent."""
        sent = quiet = 0
        while quiet < 5:
            try:
                sent += sock.send(b"z" * 65536)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                await asyncio.sleep(0.01)
        return sent

    async def read_to_end(self, sock: socket.socket) -> int:
        got = 0
        while piece := await read(sock, MIB):
            got += len(piece)
        return got

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


@pytest.fixture
async def watching() -> AsyncIterator[Rig]:
    made = Rig(watches=True)
    yield made
    made.close()


async def test_bytes_flow_both_ways_and_half_close_passes(rig: Rig) -> None:
    await rig.asks()
    rig.client.shutdown(socket.SHUT_WR)
    await rig.ended(rig.backend)
    await rig.answers()
    rig.backend.close()
    await rig.ended(rig.client)
    await rig.until("closed")
    assert rig.pair.events == ["client ended", "backend ended", "closed"]


async def test_call_resumes_after_the_read_and_shares_its_write(rig: Rig) -> None:
    rig.pair.call = lambda: rig.pair.ready.append(b" and more")
    rig.pair.is_reading = lambda: rig.pair.reading
    rig.client.send(b"question")
    assert await read(rig.backend) == b"question and more"
    assert rig.pair.acted == [(False, b"question")]


async def test_call_resumes_after_a_long_read_that_passes(rig: Rig) -> None:
    """A pending request continues when a long answer ends."""
    rig.pair.passing = True
    rig.pair.call = lambda: rig.pair.passed == MIB and rig.pair.ready.append(b" and more")
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(rig.client, b"z" * MIB))
    got = b""
    while len(got) < MIB + len(b" and more"):
        got += await read(rig.backend, MIB)
    await sending
    assert got.endswith(b"z and more")


async def test_buffered_answer_is_sent_before_the_end(rig: Rig) -> None:
    rig.pair.keeps = True
    rig.backend.close()
    await rig.until("backend ended")
    rig.pair.to_client.append(b"buffered answer")
    rig.pair.pass_backend_eof()
    await rig.ended(rig.client, b"buffered answer")
    assert rig.pair.events == ["backend ended", "closed"]


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_broken_protocol_ends_both_connections(rig: Rig, side: str) -> None:
    getattr(rig, side).send(b"nonsense")
    await rig.until("closed")
    assert await read(rig.client) == (b"last words" if side == "backend" else b"")
    await rig.ended(rig.backend)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("slow", ["client", "backend"])
async def test_side_that_does_not_read_stops_the_other(rig: Rig, slow: str, bulk: bool) -> None:
    """What waits stays bounded, and everything arrives once the slow side reads (fault matrix S7)."""
    rig.pair.passing = bulk
    fast_socket, slow_socket = (rig.backend, rig.client) if slow == "client" else (rig.client, rig.backend)
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(fast_socket, b"z" * 8 * MIB))
    endpoint = rig.pair._client if slow == "client" else rig.pair._backend
    await until(lambda: endpoint.waiting > 0)
    await asyncio.sleep(0.1)
    assert not sending.done(), "the sender is held back"
    assert 0 < endpoint.waiting < MIB
    got = 0
    while got < 8 * MIB:
        got += len(await read(slow_socket, MIB))
    await sending
    assert got == 8 * MIB


async def test_wake_without_events_leaves_other_calls_alone(rig: Rig) -> None:
    followed: list[int] = []
    for call in batch.each(deque([1, 2])):
        rig.pair.wake()
        assert batch.follows(partial(followed.append, call))
        assert not followed
    assert followed == [1, 2]


async def test_event_that_follows_the_last_one_is_acted_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[object] = []

    def act(event: object) -> None:
        acted.append(event)
        if event == b"first":
            batch.follows(partial(rig.pair.ready.append, b"second"))

    monkeypatch.setattr(rig.pair, "act", act)
    rig.pair.ready.append(b"first")
    rig.pair.wake()
    assert acted == [b"first", b"second"]


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_big_read_passes_from_the_shared_buffer_in_order(rig: Rig, side: str) -> None:
    """Pieces that pass, that are read and that wait for the socket keep their order; nothing is overwritten."""
    sender, receiver = (rig.client, rig.backend) if side == "client" else (rig.backend, rig.client)
    data = array("I", range(2 * MIB)).tobytes()
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sender, data))
    got = bytearray()
    while len(got) < len(data):
        rig.pair.passing = not rig.pair.passing
        got += await read(receiver, 300_000)
    await sending
    assert got == data
    assert 0 < rig.pair.passed < len(data)


async def test_early_answer_of_a_backend_that_has_left_is_passed_on(rig: Rig) -> None:
    """Writing to it fails, and what it has sent is read (relay-rules C8)."""
    rig.backend.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    rig.backend.close()
    for data in (b"more of the request", b"and more"):
        rig.pair._backend.write(data)
    await rig.ended(rig.client, b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_short_pieces_count_for_more_than_their_bytes(rig: Rig) -> None:
    """Lines of a few bytes for a peer that does not read: each costs some hundred bytes of memory."""
    endpoint, pieces = rig.pair._client, 0
    while not endpoint.waiting:
        endpoint.write(b"x" * LOW_WATER)
    already = endpoint.waiting
    while not endpoint.slow:
        endpoint.write(b"a line\n")
        pieces += 1
    assert pieces * PIECE_BYTES <= HIGH_WATER
    assert endpoint.waiting - already == pieces * len(b"a line\n")


@pytest.mark.parametrize("before", [True, False], ids=["closed before", "closed while watched"])
async def test_closed_endpoint_reports_no_hang_up(rig: Rig, before: bool) -> None:
    endpoint = rig.pair._client
    if before:
        endpoint.close()
    endpoint.watch(rig.hangups, rig.pair.client_gone)
    endpoint.close()
    rig.client.close()
    await asyncio.sleep(0.02)
    assert rig.pair.events == []


async def test_end_waits_for_a_slow_client(rig: Rig) -> None:
    sent = await rig.send_until_some_waits(rig.backend)
    rig.backend.close()
    await rig.until("backend ended")
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == sent
    await rig.until("closed")


async def test_eof_that_waits_passes_when_the_flow_says_so(rig: Rig) -> None:
    rig.pair.waits = True
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("client ended")
    rig.pair.to_backend.append(b"held till now")
    rig.pair.pass_client_eof()
    await rig.ended(rig.backend, b"held till now")
    await rig.answers()


@pytest.mark.parametrize("first", ["client", "backend"])
async def test_in_a_tunnel_each_side_ends_by_itself(watching: Rig, first: str) -> None:
    watching.pair.keeps = True
    if first == "client":
        watching.client.shutdown(socket.SHUT_WR)
        await watching.ended(watching.backend)
        await watching.answers(b"late output")
        assert await watching.stays_open()
    watching.backend.shutdown(socket.SHUT_WR)
    await watching.until("backend ended")
    watching.pair.to_client.append(b"last output")
    watching.pair.half_close()
    await watching.ended(watching.client, b"last output")
    if first == "backend":
        await watching.asks(b"late input")
        assert await watching.stays_open()
        watching.client.shutdown(socket.SHUT_WR)
        await watching.ended(watching.backend)
    await watching.until("closed")


async def test_tunnel_closes_only_when_a_slow_backend_has_everything(rig: Rig) -> None:
    rig.pair.keeps = True
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    rig.pair.half_close()
    sent = await rig.fill(rig.client)
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.backend) == sent
    await rig.until("closed")


async def test_tunnel_to_a_backend_that_has_gone_is_closed(watching: Rig) -> None:
    """The client need not notice that by itself."""
    watching.pair.keeps = True
    watching.backend.send(b"last output")
    watching.backend.close()
    await watching.until("backend ended")
    watching.pair.half_close()
    await watching.ended(watching.client, b"last output")
    await watching.until("closed")
    assert watching.pair.events == ["backend ended", "closed"]


async def test_client_that_is_held_is_not_read(rig: Rig) -> None:
    rig.pair.hold_client(True)
    rig.client.send(b"one")
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        rig.backend.recv(9)
    rig.pair.hold_client(False)
    assert await read(rig.backend) == b"one"


async def test_paused_client_is_read_again_only_if_nothing_holds_it(rig: Rig) -> None:
    sent = await rig.fill(rig.client)
    rig.pair.hold_client(True)
    rig.pair.hold_client(False)
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        rig.client.send(b"more")
    rig.pair.hold_client(True)
    reading = asyncio.create_task(rig.read_to_end(rig.backend))
    await until(lambda: not rig.pair._backend.waiting)
    rig.client.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.02)
    assert not rig.pair.events, "its EOF follows bytes that are not read"
    rig.pair.hold_client(False)
    assert await reading == sent


async def test_client_that_hangs_up_ends_the_backend(watching: Rig) -> None:
    """Its EOF is not that of a half-close: a request that it began does not count as one that was cut."""
    watching.client.send(b"last question")
    watching.client.close()
    await watching.until("closed")
    assert watching.pair.events == ["client gone", "closed"]
    assert watching.pair.client_ended
    await watching.ended(watching.backend, b"last question")


@pytest.mark.parametrize("waits", [False, True], ids=["EOF passed", "EOF waits"])
async def test_client_that_half_closed_may_hang_up_later(watching: Rig, waits: bool) -> None:
    watching.pair.waits = waits
    watching.client.shutdown(socket.SHUT_WR)
    await watching.until("client ended")
    assert await watching.stays_open()
    watching.client.close()
    await watching.until("closed")
    assert watching.pair.events == ["client ended", "client gone", "closed"]


async def to_nobody(sock: socket.socket) -> int:
    """Send until that fails; return how much was accepted."""
    taken = 0
    async with asyncio.timeout(20):
        while True:
            try:
                taken += sock.send(b"y" * 1024)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except BrokenPipeError:
                return taken


@pytest.mark.parametrize("bulk", [False, True], ids=["read", "passing"])
@pytest.mark.parametrize("paused", [True, False])
async def test_idle_backend_notices_that_the_client_left(watching: Rig, paused: bool, bulk: bool) -> None:
    """The client's bytes come first; without the proxy, the backend would see EPIPE."""
    watching.pair.passing = bulk
    sent = await watching.fill(watching.client) if paused else 0
    sent += await watching.send_until_some_waits(watching.client)
    watching.client.close()
    assert await to_nobody(watching.backend) < MIB
    assert await watching.stays_open(), "the client's bytes wait"
    assert ("client gone" in watching.pair.events) == (not paused), "its end follows bytes that are not read"
    assert await watching.read_to_end(watching.backend) == sent
    await watching.until("closed")
    assert watching.pair.events == ["client gone", "closed"]


async def test_backend_that_leaves_too_ends_the_connection(watching: Rig) -> None:
    await watching.fill(watching.client)
    await watching.fill(watching.backend)
    watching.client.close()
    await to_nobody(watching.backend)
    watching.backend.close()
    await watching.until("closed")


async def test_client_that_reads_no_more_may_send_on(watching: Rig) -> None:
    watching.client.shutdown(socket.SHUT_RD)
    await to_nobody(watching.backend)
    await watching.asks()
    assert watching.pair.events == []
    watching.client.close()
    await watching.until("closed")


async def test_backend_is_read_without_a_watch(rig: Rig) -> None:
    await rig.fill(rig.client)
    rig.client.close()
    for _ in range(64):
        assert rig.backend.send(b"y" * 1024) == 1024
        await asyncio.sleep(0.001)


async def test_another_backend_replaces_one_that_ended(rig: Rig) -> None:
    """The client had to wait for the first one."""
    rig.pair.keeps = True
    await rig.fill(rig.client)
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    first = rig.another_backend()
    assert (await read(rig.backend)).startswith(b"z")
    await rig.answers()
    rig.pair.keeps = False
    rig.backend.close()
    await rig.ended(rig.client)
    await rig.until("closed")
    first.close()


async def test_client_sees_the_end_after_the_last_answer(rig: Rig) -> None:
    rig.pair.to_client.append(b"last answer")
    rig.pair.finish_client()
    await rig.ended(rig.backend)
    await rig.ended(rig.client, b"last answer")
    rig.client.send(b"still sending")
    assert await rig.stays_open()
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("closed")


async def test_client_that_stays_is_closed_when_it_has_everything(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.01)
    rig.pair.to_client.append(b"z" * 4 * MIB)
    rig.pair.finish_client()
    rig.pair.linger()
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == 4 * MIB
    await rig.until("closed")
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"still sending")


async def test_bytes_after_the_last_answer_are_dropped(rig: Rig) -> None:
    """Otherwise it would never read the answer."""
    await rig.fill(rig.client)
    rig.pair.hold_client(True)
    rig.pair.finish_client()
    await asyncio.get_running_loop().sock_sendall(rig.client, b"z" * MIB)
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("closed")


async def test_nothing_happens_after_the_end(rig: Rig) -> None:
    rig.pair.close()
    rig.pair.close()
    rig.pair.to_client.append(b"late")
    rig.pair.pass_client_eof()
    rig.pair.half_close()
    rig.pair.pass_backend_eof()
    rig.pair.hold_client(False)
    assert rig.pair.events == ["closed"]
    await rig.ended(rig.client)


async def test_client_that_is_shut_loses_nothing_and_sends_no_more(rig: Rig) -> None:
    rig.pair.waits = True
    rig.client.send(b"sent before")
    rig.pair.shut_client()
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"sent after")
    assert await read(rig.backend) == b"sent before"
    await rig.until("client ended")
    assert rig.pair.client_ended
    await rig.answers()
    rig.pair.finish_client()
    await rig.ended(rig.client)
    assert "closed" in rig.pair.events


async def test_client_that_is_not_read_to_its_end_sees_the_answer_and_eof(rig: Rig) -> None:
    """The backend has answered early and closed: no reset follows the answer (relay-rules C8)."""
    rig.pair.hold_client(True)
    rig.client.send(b"z" * 100_000)
    rig.backend.send(b"no")
    rig.backend.close()
    await rig.until("closed")
    assert await rig.read_to_end(rig.client) == len(b"no")
