"""A connection of the front between sockets: writes, reads, ends, images, pipes (relay-rules A10, A11, A14, C5)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from runtimeproxy.core.call import MemoryBudget
from runtimeproxy.cri import bounds
from runtimeproxy.cri import front as front_module
from runtimeproxy.cri.calls import KINDS
from runtimeproxy.cri.frame_relay import ACKS_WAITING, Shared
from runtimeproxy.cri.front import ACK_SECONDS, CriConnection
from runtimeproxy.cri.image import UNREACHABLE
from runtimeproxy.cri.reader import NO_ANSWER, CriHeld
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay import connection
from runtimeproxy.relay.connection import HIGH_WATER, Connection, Endpoint, ReadBuffer
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.wire.http2 import CREDIT_STEP
from tests.cri import peer
from tests.cri.peer import PREFACE, PULL, REPLY, SETTINGS, Ack, Credit, Data, Frame, GoAway, Headers, Ping, Reset, wire
from tests.relay.test_dial import fill_backlog

CREATED = (Headers(1, peer.CREATE), Data(1, peer.grpc(b"create"), end=True))
END, END_3 = Headers(1, peer.TRAILERS, end=True), Headers(3, peer.TRAILERS, end=True)
ANSWER = [Headers(1, REPLY), Data(1, peer.grpc(b"answer")), END]
PING, PONG = Ping(b"12345678"), Ping(b"12345678", ack=True)
FULL = Data(1, bytes(16_384))
PULLED = Headers(1, PULL, end=True)
Patch = pytest.MonkeyPatch
ALL_HELD = (lambda: False, lambda: True, str)  # every call that can be held; ambiguous requests pass
HTTP_1, HTTP_1_ANSWER = b"PRI * HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"


def drained(sock: socket.socket) -> bytes:
    received = b""
    with suppress(BlockingIOError):
        while data := sock.recv(1 << 16):
            received += data
    return received


class Scene:
    """A client, the runtime, and perhaps an image service; without ``hooks`` calls pass on immediately.

    ``syncs``: when a sync with the runtime was triggered.
    """

    def __init__(self, images: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.calls, self.hooks = list[CriHeld](), True
        self.client, proxy_side = socket.socketpair()
        self.runtime, runtime_side = socket.socketpair()
        self.images: socket.socket
        self.sockets = [self.client, self.runtime]
        self.tasks, self.syncs = list[asyncio.Task[None]](), list[float]()
        self.metrics = Metrics(self.loop.time)
        self.front: Any = SimpleNamespace(
            buffer=ReadBuffer(),
            loop=self.loop,
            lifecycle=SimpleNamespace(proceed=self._proceed),
            image_endpoint=images,
            connections=set(),
            add_task=self.tasks.append,
            metrics=self.metrics,
            sync=SimpleNamespace(soon=lambda: self.syncs.append(self.loop.time())),
            backend=SimpleNamespace(serves_cri=AsyncMock(return_value=True)),
            shared=Shared(MemoryBudget(), self.loop.time, self.metrics.counters, KINDS, bool(images), *ALL_HELD),
        )
        self.connection = CriConnection(self.front, proxy_side, runtime_side)
        self.front.connections.add(self.connection)
        self.received = b""
        for sock in self.sockets:
            sock.setblocking(False)

    def _proceed(self, call: CriHeld) -> None:
        if self.hooks and call.reply is None:
            self.calls.append(call)
        elif not self.hooks:
            call.answer() if call.reply else call.send_request(None)

    async def run(self) -> None:
        """Run the event loop until all that was sent is read and relayed."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def send(self, sock: socket.socket, *frames: Frame | bytes) -> None:
        sock.send(wire(*frames))
        await self.run()

    async def greet(self, client: peer.Raw = SETTINGS) -> "Scene":
        await self.send(self.client, PREFACE, client, Ack())
        await self.send(self.runtime, SETTINGS, Ack())
        return self

    async def hang_up(self, sock: socket.socket) -> None:
        sock.close()
        await self.run()

    async def answer(self) -> None:
        self.calls[0].answer()
        await self.run()

    def ended(self) -> bool:
        """Read the client's received bytes, and return whether it sees EOF."""
        with suppress(BlockingIOError):
            while data := self.client.recv(1 << 20):
                self.received += data
            return True
        return False

    def state(self, stream: int) -> tuple[bool, bool]:
        """Return whether the client has the whole answer to a call, and whether it sees EOF."""
        ended = self.ended()
        return any(frame.stream == stream and frame.flags & 1 for frame in peer.split(self.received)), ended

    def close(self) -> None:
        for pair in tuple(self.front.connections):
            pair.close()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
async def new() -> AsyncIterator[Scene]:
    """A connection whose client has sent nothing yet."""
    made = Scene()
    yield made
    made.close()


@pytest.fixture
async def scene(new: Scene) -> Scene:
    return await new.greet()


@pytest.fixture
def written(scene: Scene, monkeypatch: Patch) -> list[list[Frame]]:
    """The frames of each write after the exchange of SETTINGS."""
    writes, write = list[list[Frame]](), Endpoint.write
    monkeypatch.setattr(Endpoint, "write", lambda end, data: (writes.append([*peer.frames(data)]), write(end, data))[1])
    return writes


async def test_frames_of_one_read_are_sent_in_one_write(scene: Scene, written: list[list[Frame]]) -> None:
    scene.hooks = False
    other_stream: list[Frame] = [replace(frame, stream=5) for frame in (*CREATED, *ANSWER)]
    await scene.send(scene.client, *CREATED, Headers(3, peer.VERSION), *other_stream[:2])
    await scene.send(scene.runtime, Headers(3, REPLY), *ANSWER, *other_stream[2:])
    created = [CREATED[0], Headers(3, peer.VERSION), other_stream[0], CREATED[1], other_stream[1]]
    assert written == [created, [Headers(3, REPLY), *ANSWER[:2], *other_stream[2:4], END, other_stream[4]]]


async def test_ack_is_sent_alone_after_delay_or_with_next_write(
    scene: Scene, written: list[list[Frame]], monkeypatch: Patch
) -> None:
    assert ACK_SECONDS <= 0.02
    await scene.send(scene.client, PING)
    await scene.send(scene.runtime, PING)
    assert written == []
    await asyncio.sleep(2.5 * ACK_SECONDS)
    assert written == [[PONG], [PONG]]
    monkeypatch.setattr(front_module, "ACK_SECONDS", 100.0)
    scene.hooks = False
    await scene.send(scene.runtime, PING)
    await scene.send(scene.client, *CREATED)
    assert written[2:] == [[CREATED[0], PONG, CREATED[1]]]
    timer = scene.connection._acks
    assert timer is not None
    scene.connection.close()
    assert timer.cancelled()


async def test_slow_peer_is_sent_no_acks(scene: Scene, written: list[list[Frame]], monkeypatch: Patch) -> None:
    monkeypatch.setattr(front_module, "ALIVE_SECONDS", 2 * ACK_SECONDS)
    slow = True
    monkeypatch.setattr(Connection, "slow", property(lambda _: (slow, False)))
    pings = [Ping(b"%08d" % number) for number in range(ACKS_WAITING + 1)]
    await scene.send(scene.client, *pings)
    await asyncio.sleep(4 * ACK_SECONDS)
    assert written == [[pings[-1]]], "the others wait"
    slow = False
    await asyncio.sleep(4 * ACK_SECONDS)
    assert written[1:] == [[Ping(ping.body, ack=True) for ping in pings[:-1]]]


@pytest.fixture
async def congested(scene: Scene) -> Scene:
    """A connection on which an answer has used up the client's window and a create is released."""
    await scene.send(scene.client, *CREATED)
    scene.calls[0].send_request(None)
    await scene.send(scene.client, Headers(3, peer.VERSION), Data(3, peer.grpc(b""), end=True))
    sizes = (16_384, 16_384, 16_384, 16_383)
    await scene.send(scene.runtime, Headers(3, REPLY), *(Data(3, b"x" * size) for size in sizes))
    return scene


@pytest.mark.parametrize("credit", [True, False], ids=["given", "missing"])
async def test_c5_last_answer_waits_limited_time_for_credit(congested: Scene, credit: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 20 if credit else 0.1)
    await congested.send(congested.runtime, *ANSWER)
    await congested.hang_up(congested.runtime)
    await congested.answer()
    assert congested.state(1) == (False, False)
    if credit:
        await congested.send(congested.client, Credit(0, 100))
        assert congested.state(1) == (True, True)
        assert congested.front.connections, "the client may still send"
        await congested.hang_up(congested.client)
    else:
        async with asyncio.timeout(20):
            while not congested.ended():
                await asyncio.sleep(0.01)
        assert congested.state(1) == (False, True)
    assert not congested.front.connections


async def test_c5_passing_answer_is_sent_before_eof(congested: Scene) -> None:
    """The proxy gives the runtime more credit than the client gave, so the runtime may send all and close."""
    await congested.send(congested.runtime, Data(3, b"y" * 10_000), END_3)
    await congested.hang_up(congested.runtime)
    assert not congested.ended()
    await congested.send(congested.client, Credit(0, 100_000), Credit(3, 100_000))
    assert congested.state(3) == (True, True)


@pytest.fixture
async def busy(scene: Scene) -> Scene:
    """A connection with calls of all kinds; the first create is answered, its Post hooks are not done."""
    await scene.send(scene.client, *CREATED)
    scene.calls[0].send_request(None)
    events = peer.request(b"/runtime.v1.RuntimeService/GetContainerEvents")
    passing = [*(Headers(stream, peer.VERSION, end=True) for stream in (3, 5, 7)), Headers(9, events, end=True)]
    creates = [wire(Headers(stream, peer.CREATE), Data(stream, peer.grpc(b"m"), end=True)) for stream in (11, 13, 15)]
    await scene.send(scene.client, *passing, *creates)
    for held in scene.calls[2:]:
        held.send_request(None)
    answers = [Headers(stream, REPLY) for stream in (5, 9, 15, 7)]
    await scene.send(scene.runtime, *answers, Headers(7, peer.TRAILERS, end=True), *ANSWER)
    assert not scene.ended()
    scene.received = b""
    return scene


async def test_c5_other_calls_end_when_runtime_closes(busy: Scene) -> None:
    """Otherwise they would seem to be alive while a later hook hangs."""
    assert busy.syncs == []
    await busy.hang_up(busy.runtime)
    assert len(busy.syncs) == 1, "the runtime's state may have changed when it is back"
    assert not busy.ended()
    assert set(peer.frames(busy.received)) == {
        *(Headers(stream, peer.refusal(14, NO_ANSWER.encode()), end=True) for stream in (3, 11, 13)),
        *(Reset(stream, 0) for stream in (3, 11, 13)),
        *(Reset(stream, 8) for stream in (5, 9, 15)),
        *(GoAway(last, 0) for last in (2**31 - 1, 15)),
    }
    await busy.answer()
    assert busy.state(1) == (True, True)


@pytest.mark.parametrize("first", ["end", "acks"])
async def test_c5_connection_ends_inside_cut_frame(busy: Scene, first: str) -> None:
    """A closed connection sends no ACKs, which would be tried every second."""
    await busy.send(busy.runtime, Data(5, bytes(1_000)).wire()[:-1])
    if first == "acks":
        await busy.send(busy.client, PING, Credit(0, 0))
        await busy.answer()
    else:
        await busy.hang_up(busy.runtime)
        assert busy.ended()
        assert busy.received.endswith(bytes(999))
    assert (busy.front.connections, busy.connection._acks) == (set(), None)


async def test_queued_runtime_bytes_do_not_count_as_unread(busy: Scene, monkeypatch: Patch) -> None:
    """They wait for the client's credit, or for the end of the loop's iteration that resumes a held call, and may be
    the last byte of a frame."""
    errors: list[object] = []
    busy.loop.set_exception_handler(lambda _, context: errors.append(context))
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 1_000)
    monkeypatch.setattr(Connection, "delivered", property(lambda _: False))
    await busy.send(busy.runtime, *[Data(5, b"y" * 16_384)] * 5)
    await busy.send(busy.client, Credit(0, 100_000), Credit(5, 100_000))
    assert not busy.ended()
    assert busy.received.count(b"y") == 5 * 16_384
    long = Data(5, bytes(8_000)).wire()
    await busy.send(busy.runtime, Headers(11, REPLY), Headers(13, REPLY), long[:-2])
    for stream, more in ((11, long[-2:]), (13, Headers(3, (*REPLY, (b"long", bytes(900)))).wire())):
        busy.runtime.send(wire(more, Headers(stream, peer.TRAILERS, end=True)))
        await busy.send(busy.client, PONG)
    assert errors == []
    assert busy.front.connections
    assert busy.runtime.recv(1 << 16).count(PONG.wire()) == 2


async def test_a11_calls_are_accepted_until_second_goaway(scene: Scene) -> None:
    """The drain does not wait for a client that has left, although the runtime has not closed its side."""
    await scene.send(scene.client, Headers(1, peer.VERSION, end=True))
    for stream, refusing in ((3, False), (5, True)):
        scene.connection.drain(refusing)
        await scene.send(scene.client, Headers(stream, peer.VERSION))
    assert not scene.ended()
    assert [*peer.frames(scene.received)][-3:] == [GoAway(2**31 - 1), GoAway(3), Reset(5, 7)]
    accepted = peer.split(scene.runtime.recv(1 << 16).removeprefix(PREFACE))
    assert [frame.stream for frame in accepted if frame.stream] == [1, 3]
    assert scene.connection.unfinished() == Unfinished(calls=2)
    await scene.hang_up(scene.client)
    assert scene.connection in scene.front.connections
    assert not scene.connection.unfinished()
    await scene.hang_up(scene.runtime)
    assert (scene.front.connections, scene.syncs) == (set(), [])


@pytest.fixture
async def pulling(tmp_path: Path) -> AsyncIterator[Scene]:
    """A connection with an image call whose answer has begun, and a call to the runtime."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "images.sock"))
        listener.listen()
        listener.setblocking(False)
        scene = await Scene(listener.getsockname()).greet(peer.Settings(((4, 2**30),)))
        await scene.send(scene.client, Credit(0, 2**30), PULLED, Headers(3, peer.VERSION, end=True))
        scene.images, _ = await asyncio.wait_for(scene.loop.sock_accept(listener), 20)
    scene.images.setblocking(False)
    scene.sockets.append(scene.images)
    await scene.send(scene.images, SETTINGS, Headers(1, REPLY))
    assert scene.connection.unfinished().calls == 2
    yield scene
    scene.close()


def credit(received: bytes) -> int:
    """Return the sum of the connection's WINDOW_UPDATEs that the image service received."""
    frames = peer.split(received.removeprefix(PREFACE))
    return sum(int.from_bytes(frame.body, "big") for frame in frames if (frame.kind, frame.stream) == (8, 0))


async def test_a10_slow_client_pauses_image_reads(pulling: Scene) -> None:
    count = 160

    async def answer() -> None:
        received = b""
        for number in range(count):
            while 65_535 + credit(received) < (number + 1) * len(FULL.body):
                received += await pulling.loop.sock_recv(pulling.images, 1 << 16)
            await pulling.loop.sock_sendall(pulling.images, FULL.wire())

    answering = asyncio.ensure_future(answer())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answering), 0.2)
    assert pulling.connection._client.waiting < 2 * HIGH_WATER + 256 * 1024
    got = 0
    while got < count * len(FULL.body):
        got += len(await asyncio.wait_for(pulling.loop.sock_recv(pulling.client, 1 << 20), 20))
    await asyncio.wait_for(answering, 20)


async def test_a10_image_credit_waits_for_frame_of_runtime(pulling: Scene) -> None:
    """Its connection closes after a protocol error."""
    long = Data(3, b"y" * 16_000).wire()
    await pulling.send(pulling.runtime, Headers(3, REPLY), long[:-1_000])
    for _ in range(CREDIT_STEP // len(FULL.body)):
        await pulling.send(pulling.images, FULL)
    assert credit(drained(pulling.images)) < CREDIT_STEP + 2**20, "it waits for the end of the runtime's frame"
    await pulling.send(pulling.runtime, long[-1_000:])
    assert credit(drained(pulling.images)) == CREDIT_STEP
    await pulling.send(pulling.images, Data(1, b"").wire()[:3] + b"\x09" + bytes(5))
    drained(pulling.images)
    assert pulling.images.recv(1) == b""
    assert pulling.metrics.counted("connections_broken", side="image", kind="protocol") == 1


@pytest.mark.parametrize("connected", [True, False])
async def test_a10_image_queue_is_bounded(pulling: Scene, connected: bool, monkeypatch: Patch) -> None:
    """Headers need no credit, so that nothing else bounds them."""
    [image] = pulling.connection.images
    if not connected:
        monkeypatch.setattr(image, "_endpoint", None)
    head = peer.block((*PULL, (b"x", b"v" * 16_000)))
    for streams in (range(5, 405, 2), range(405, 1_005, 2)):
        assert pulling.connection.images
        with suppress(BrokenPipeError):
            for stream in streams:
                opened = peer.raw_headers(stream, head, end=True) + Reset(stream, 8).wire()
                await pulling.loop.sock_sendall(pulling.client, opened)
        await pulling.run()
    assert not pulling.connection.images
    assert pulling.metrics.counted("connections_broken", side="client", kind="image_queue") == 1


async def test_a10_image_service_is_not_read_when_it_reads_nothing(pulling: Scene) -> None:
    sending = asyncio.ensure_future(pulling.loop.sock_sendall(pulling.images, PING.wire() * 100_000))
    await asyncio.sleep(0.3)
    [image] = pulling.connection.images
    assert image._endpoint is not None
    assert image._endpoint.waiting < 2 * HIGH_WATER
    assert not sending.done()
    remaining = 100_000 * len(PONG.wire())
    while remaining > 0:
        remaining -= len(await asyncio.wait_for(pulling.loop.sock_recv(pulling.images, 1 << 20), 20))
    await asyncio.wait_for(sending, 20)


async def test_a10_missing_image_endpoint_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = await Scene(f"{tmp_path}/away.sock").greet()
    await scene.send(scene.client, PULLED)
    await asyncio.wait_for(scene.tasks[0], 20)
    assert f"image endpoint {tmp_path}/away.sock is not reachable" in caplog.text
    assert scene.metrics.total("image_dial_failures") == 1
    assert not scene.ended()
    assert Headers(1, peer.refusal(14, UNREACHABLE.encode()), end=True) in peer.frames(scene.received)
    scene.close()


async def test_a10_image_dial_is_closed_when_client_disconnects(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "images.sock"))
        listener.listen(0)
        queued = fill_backlog(listener.getsockname())
        scene = Scene(listener.getsockname())
        await scene.send(scene.client, PREFACE, SETTINGS, PULLED)
        scene.close()
        accepted = [listener.accept()[0] for _ in queued]
        await asyncio.wait_for(scene.tasks[0], 20)
        late, _ = listener.accept()
        assert await asyncio.wait_for(asyncio.to_thread(late.recv, 1), 20) == b""
        for sock in [*queued, *accepted, late]:
            sock.close()


@pytest.mark.parametrize("end", ["drain", "client", "runtime"])
async def test_a14_pipe_passes_bytes_and_ends_with_either_side(new: Scene, end: str) -> None:
    """It counts as an answer; a server that closes an HTTP/1.1 connection has not lost its state."""
    for _ in range(2):
        for part in (HTTP_1[:1], HTTP_1[1:9], HTTP_1[9:]):
            await new.send(new.client, part)
            assert new.runtime.recv(1 << 16) == part
        await new.send(new.runtime, HTTP_1_ANSWER)
    assert (new.metrics.total("connections_piped"), new.metrics.total("connections_broken")) == (1, 0)
    if end == "drain":
        new.connection.drain(refusing=True)
        assert not new.ended()
        assert new.received == HTTP_1_ANSWER * 2, "no GOAWAY"
        assert new.connection.unfinished() == Unfinished(answers=1)
        new.connection.part()
        await new.run()
        assert new.ended()
        assert not new.connection.unfinished()
    if end != "runtime":
        await new.hang_up(new.client)
        assert new.runtime.recv(1) == b""
    await new.hang_up(new.runtime)
    assert (new.front.connections, new.syncs) == (set(), [])


async def test_a14_nothing_is_piped_without_cri(new: Scene, caplog: pytest.LogCaptureFixture) -> None:
    new.front.backend.serves_cri.return_value = False
    await new.send(new.client, HTTP_1)
    assert new.ended()
    assert new.runtime.recv(1 << 16) == b""
    assert new.metrics.counted("connections_broken", side="client", kind="preface") == 1
    assert "is --backend-runtime-mode right?" in caplog.text
