"""A connection of the front between sockets: what it writes and reads, how it ends (relay-rules A10, A11, A14, C5)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.cri import bounds
from runtimeproxy.cri import front as front_module
from runtimeproxy.cri.frame_relay import ACKS_AT_ONCE
from runtimeproxy.cri.front import ACK_SECONDS, CriConnection
from runtimeproxy.cri.reader import GONE, CriHeld
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay import connection
from runtimeproxy.relay.connection import HIGH_WATER, Connection, Endpoint, ReadBuffer
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.wire import http2
from runtimeproxy.wire.http2 import CREDIT_STEP, FlowControlledSender
from tests.cri import peer
from tests.cri.peer import PREFACE, PULL, REPLY, Ack, Credit, Data, Frame, GoAway, Headers, Ping, Reset, Settings
from tests.relay.test_dial import fill_backlog

TURNS = 30
"""Turns of the event loop, in which all that was sent is read and written on."""
CREATED = (Headers(1, peer.CREATE), Data(1, peer.grpc(b"create"), end=True))
END, END_3 = Headers(1, peer.TRAILERS, end=True), Headers(3, peer.TRAILERS, end=True)
ANSWER = [Headers(1, REPLY), Data(1, peer.grpc(b"answer")), END]
PING, PONG = Ping(b"12345678"), Ping(b"12345678", ack=True)
FULL = Data(1, bytes(16_384))
PULLED = Headers(1, PULL, end=True)
NOTHING = Settings()


def wire(*frames: Frame | bytes) -> bytes:
    return b"".join(frame if isinstance(frame, bytes) else frame.wire() for frame in frames)


def read(written: bytes) -> list[Frame]:
    sender = FlowControlledSender()
    sender.out.append(written)
    return peer.Side(lambda _: None, sender, preface=False).got()


class Scene:
    """A client, the runtime, and perhaps an image service; ``do`` is called with each held call."""

    def __init__(self, images: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: list[CriHeld] = []
        self.do: Callable[[CriHeld], object] = self.calls.append
        self.client, near = socket.socketpair()
        self.runtime, far = socket.socketpair()
        self.sockets = [self.client, self.runtime]
        self.images: socket.socket
        self.tasks: list[asyncio.Task[None]] = []
        self.metrics = Metrics(self.loop.time)
        self.passes: list[float] = []
        """When a new pass over the runtime's state was triggered."""
        self.front: Any = SimpleNamespace(
            buffer=ReadBuffer(),
            loop=self.loop,
            lifecycle=SimpleNamespace(proceed=self._proceed),
            image_endpoint=images,
            connections=set(),
            keep=self.tasks.append,
            metrics=self.metrics,
            sync=SimpleNamespace(soon=lambda: self.passes.append(self.loop.time())),
            backend=SimpleNamespace(serves_cri=self.serves_cri),
        )
        self.front.shared = peer.shared_by_calls(self.loop.time, self.metrics.counters, bool(images))
        self.connection = CriConnection(self.front, near, far)
        self.front.connections.add(self.connection)
        self.came = b""
        self.is_cri = True
        self.answers = False
        """Whether an answer is sent to the client immediately."""
        for sock in self.sockets:
            sock.setblocking(False)

    def _proceed(self, call: CriHeld) -> None:
        if call.reply is None:
            self.do(call)
        elif self.answers:
            call.answer()

    async def serves_cri(self) -> bool:
        return self.is_cri

    async def send(self, sock: socket.socket, *frames: Frame | bytes) -> None:
        sock.send(wire(*frames))
        await self.turns()

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def greet(self, client: Settings = NOTHING) -> "Scene":
        await self.send(self.client, PREFACE, client, Ack())
        await self.send(self.runtime, Settings(), Ack())
        return self

    async def hang_up(self, sock: socket.socket) -> None:
        sock.close()
        await self.turns()

    async def answer(self, call: CriHeld) -> None:
        call.answer()
        await self.turns()

    def ended(self) -> bool:
        """Read what has come to the client, and return whether it sees EOF."""
        with suppress(BlockingIOError):
            while piece := self.client.recv(1 << 20):
                self.came += piece
            return True
        return False

    def answered(self, stream: int) -> bool:
        """Return whether the client has the whole answer to a call."""
        self.ended()
        return any(frame.stream == stream and frame.flags & 1 for frame in peer.split(self.came))

    async def accept(self, listener: socket.socket) -> None:
        self.images, _ = await asyncio.wait_for(self.loop.sock_accept(listener), 20)
        self.images.setblocking(False)
        self.sockets.append(self.images)
        await self.turns()

    def close(self) -> None:
        for one in tuple(self.front.connections):
            one.close()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = await Scene().greet()
    yield made
    made.close()


class Writes:
    """What is written: all that one read of a peer gives leaves in one write for each side."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = scene
        self.times: list[float] = []
        self._written: list[bytes] = []
        write = Endpoint.write

        def note(end: Endpoint, data: bytes) -> None:
            self._written.append(data)
            self.times.append(scene.loop.time())
            write(end, data)

        monkeypatch.setattr(Endpoint, "write", note)

    def written(self) -> list[list[Frame]]:
        written, self._written = self._written, []
        return [read(each) for each in written]

    async def after(self, sock: socket.socket, *sent: Frame, seconds: float = 0.0) -> list[list[Frame]]:
        """Return each write that follows what a peer sends."""
        self._written.clear()
        self.times.clear()
        await self.scene.send(sock, *sent)
        await asyncio.sleep(seconds)
        return self.written()


@pytest.fixture
def writes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(scene, monkeypatch)


async def test_frames_of_one_read_are_sent_in_one_write(scene: Scene, writes: Writes) -> None:
    scene.do = lambda held: held.send_request(None)
    scene.answers = True
    other = [replace(frame, stream=5) for frame in (*CREATED, *ANSWER)]
    created = [CREATED[0], Headers(3, peer.VERSION), other[0], CREATED[1], other[1]]
    assert await writes.after(scene.client, *CREATED, Headers(3, peer.VERSION), *other[:2]) == [created]
    answered = [Headers(3, REPLY), *ANSWER[:2], *other[2:4], END, other[4]]
    assert await writes.after(scene.runtime, Headers(3, REPLY), *ANSWER, *other[2:]) == [answered]


async def test_ack_leaves_with_the_next_write(scene: Scene, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "ACK_SECONDS", 100.0)
    assert await writes.after(scene.client, *CREATED) == [[CREATED[0]]]
    assert await writes.after(scene.runtime, PING) == []
    assert await writes.after(scene.client, PING) == []
    scene.calls[0].send_request(None)
    assert writes.written() == [[CREATED[1], PONG]]
    assert await writes.after(scene.runtime, *ANSWER[:2]) == [[*ANSWER[:2], PONG]]


async def test_ack_leaves_alone_after_a_moment(scene: Scene, writes: Writes) -> None:
    assert ACK_SECONDS <= 0.02
    began = scene.loop.time()
    scene.client.send(PING.wire())
    assert await writes.after(scene.runtime, PING, seconds=2.5 * ACK_SECONDS) == [[PONG], [PONG]]
    assert writes.times[0] - began > ACK_SECONDS / 2
    assert writes.times[-1] - writes.times[0] < ACK_SECONDS / 2, "one timer serves both sides"
    assert await writes.after(scene.client, PING, seconds=2.5 * ACK_SECONDS) == [[PONG]]


async def test_slow_peer_is_sent_no_acks(scene: Scene, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "ALIVE_SECONDS", 2 * ACK_SECONDS)
    slow = True
    monkeypatch.setattr(Connection, "slow", property(lambda _: (slow, False)))
    pings = [Ping(b"%08d" % number) for number in range(ACKS_AT_ONCE + 1)]
    assert await writes.after(scene.client, *pings, seconds=4 * ACK_SECONDS) == [[pings[-1]]], "the others wait"
    slow = False
    acks = [Ping(ping.payload, ack=True) for ping in pings[:-1]]
    assert await writes.after(scene.client, seconds=4 * ACK_SECONDS) == [acks]


async def test_nothing_waits_for_a_connection_that_has_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "ACK_SECONDS", 100.0)
    await scene.send(scene.client, PING)
    timer = scene.connection._acks
    assert timer is not None
    scene.connection.close()
    assert timer.cancelled()


@pytest.fixture
async def congested(scene: Scene) -> Scene:
    """Return a connection on which an answer has used up the client's window and a create is released."""
    await scene.send(scene.client, *CREATED)
    scene.calls[0].send_request(None)
    await scene.send(scene.client, Headers(3, peer.VERSION), Data(3, peer.grpc(b""), end=True))
    sizes = (16_384, 16_384, 16_384, 16_383)
    await scene.send(scene.runtime, Headers(3, REPLY), *(Data(3, b"x" * size) for size in sizes))
    return scene


async def leave(scene: Scene) -> None:
    """Answer the create as the runtime, close the runtime's connection, and finish the Post hooks."""
    await scene.send(scene.runtime, *ANSWER)
    await scene.hang_up(scene.runtime)
    await scene.answer(scene.calls[0])


async def test_c5_connection_ends_after_the_answer_given_credit(congested: Scene) -> None:
    await leave(congested)
    assert (congested.answered(1), congested.ended()) == (False, False)
    await congested.send(congested.client, Credit(0, 100))
    assert (congested.answered(1), congested.ended()) == (True, True)
    assert congested.front.connections, "the client may still send"
    await congested.hang_up(congested.client)
    assert not congested.front.connections


async def test_c5_credit_is_waited_for_a_moment(congested: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.3)
    await leave(congested)
    assert not congested.ended()
    async with asyncio.timeout(20):
        while not congested.ended():
            await asyncio.sleep(0.01)
    assert not congested.answered(1)
    assert not congested.front.connections


async def test_c5_passing_answer_that_waits_for_credit_goes_out_before_the_end(congested: Scene) -> None:
    """The proxy gives the runtime more credit than the client gave, so the runtime may send all and close."""
    await congested.send(congested.runtime, Data(3, b"y" * 10_000), END_3)
    await congested.hang_up(congested.runtime)
    assert not congested.ended()
    await congested.send(congested.client, Credit(0, 100_000), Credit(3, 100_000))
    assert (congested.answered(3), congested.ended()) == (True, True)


async def test_c5_client_that_has_left_is_not_waited_for(congested: Scene) -> None:
    await congested.send(congested.runtime, Data(3, b"y" * 10_000), END_3)
    await congested.hang_up(congested.client)
    await congested.hang_up(congested.runtime)
    assert not congested.front.connections


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client seem to read nothing, and lower the limit for answers to its own frames."""
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 1_000)
    monkeypatch.setattr(Connection, "delivered", property(lambda _: False))


async def test_data_that_credit_lets_out_are_no_answer_to_the_clients_frames(congested: Scene, unread: None) -> None:
    await congested.send(congested.runtime, Data(3, b"y" * 10_000))
    await congested.send(congested.client, Credit(0, 100_000), Credit(3, 100_000))
    assert congested.front.connections
    assert not congested.ended()
    assert b"y" * 10_000 in congested.came


@pytest.fixture
async def busy(scene: Scene) -> Scene:
    """Return a connection with calls of all kinds; the first create is answered, its Post hooks are not done."""
    await scene.send(scene.client, *CREATED)
    scene.calls[0].send_request(None)
    events = peer.request(b"/runtime.v1.RuntimeService/GetContainerEvents")
    asked = [*(Headers(stream, peer.VERSION, end=True) for stream in (3, 5, 7)), Headers(9, events, end=True)]
    creates = [wire(Headers(stream, peer.CREATE), Data(stream, peer.grpc(b"m"), end=True)) for stream in (11, 13, 15)]
    await scene.send(scene.client, *asked, *creates)
    for held in scene.calls[2:]:
        held.send_request(None)
    answers = [Headers(stream, REPLY) for stream in (5, 9, 15, 7)]
    await scene.send(scene.runtime, *answers, Headers(7, peer.TRAILERS, end=True), *ANSWER)
    assert not scene.ended()
    scene.came = b""
    return scene


async def test_c5_other_calls_end_at_once_with_the_runtime(busy: Scene) -> None:
    """Else they would seem to be alive for as long as a hook after it hangs."""
    assert busy.passes == []
    await busy.hang_up(busy.runtime)
    assert len(busy.passes) == 1, "what it has may have changed when it is back"
    assert not busy.ended()
    assert set(read(busy.came)) == {
        *(Headers(stream, peer.refusal(14, GONE.encode()), end=True) for stream in (3, 11, 13)),
        *(Reset(stream, 0) for stream in (3, 11, 13)),
        *(Reset(stream, 8) for stream in (5, 9, 15)),
        *(GoAway(last, 0) for last in (2**31 - 1, 15)),
    }
    await busy.answer(busy.calls[0])
    assert (busy.answered(1), busy.ended()) == (True, True)


async def test_c5_nothing_is_waited_for_inside_of_a_frame_that_has_no_end(busy: Scene) -> None:
    await busy.send(busy.runtime, Data(5, bytes(1_000)).wire()[:-1])
    await busy.hang_up(busy.runtime)
    assert busy.ended()
    assert busy.came.endswith(bytes(999))
    assert not busy.front.connections


async def test_no_ack_waits_for_a_peer_once_the_connection_is_closed(busy: Scene) -> None:
    await busy.send(busy.runtime, Data(5, bytes(1_000)).wire()[:-1])
    await busy.send(busy.client, PING, Credit(0, 0))
    await busy.answer(busy.calls[0])
    assert (busy.front.connections, busy.connection._acks) == (set(), None), "it would be tried every second"


async def test_runtimes_bytes_that_wait_are_no_answer_to_the_clients_frames(busy: Scene, unread: None) -> None:
    """They wait for the end of the loop turn in which a held call continues, and may be the last byte of a frame."""
    faults: list[object] = []
    busy.loop.set_exception_handler(lambda _, context: faults.append(context))
    long = Data(5, bytes(8_000)).wire()
    await busy.send(busy.runtime, Headers(11, REPLY), Headers(13, REPLY), long[:-2])
    for stream, more in ((11, long[-2:]), (13, Headers(3, (*REPLY, (b"long", bytes(900)))).wire())):
        busy.runtime.send(wire(more, Headers(stream, peer.TRAILERS, end=True)))
        await busy.send(busy.client, PONG)
    assert faults == []
    assert busy.front.connections
    assert busy.runtime.recv(1 << 16).count(PONG.wire()) == 2


async def test_a11_calls_are_taken_between_the_two_goaways_and_refused_then(scene: Scene) -> None:
    await scene.send(scene.client, Headers(1, peer.VERSION))
    for stream, refusing in ((3, False), (5, True)):
        scene.connection.drain(refusing)
        await scene.send(scene.client, Headers(stream, peer.VERSION))
    assert not scene.ended()
    assert read(scene.came)[-3:] == [GoAway(2**31 - 1), GoAway(3), Reset(5, 7)]
    taken = peer.split(scene.runtime.recv(1 << 16).removeprefix(PREFACE))
    assert [frame.stream for frame in taken if frame.stream] == [1, 3]


async def test_a11_client_that_has_left_is_not_waited_for(scene: Scene) -> None:
    """Although the runtime has not closed its side."""
    await scene.send(scene.client, Headers(1, peer.VERSION, end=True))
    assert scene.connection.unfinished() == Unfinished(calls=1)
    await scene.hang_up(scene.client)
    assert scene.connection in scene.front.connections
    assert not scene.connection.unfinished()
    await scene.hang_up(scene.runtime)
    assert scene.passes == []


async def test_a11_image_call_is_waited_for(pulling: Scene) -> None:
    assert pulling.connection.unfinished().calls == 2


@pytest.fixture
def listener(tmp_path: Path) -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "images.sock"))
        listener.listen()
        listener.setblocking(False)
        yield listener


@pytest.fixture
async def pulling(listener: socket.socket) -> AsyncIterator[Scene]:
    """Return a connection with an image call whose answer has begun, and a call to the runtime."""
    scene = await Scene(listener.getsockname()).greet(Settings(((4, 2**30),)))
    await scene.send(scene.client, Credit(0, 2**30), PULLED, Headers(3, peer.VERSION, end=True))
    await scene.accept(listener)
    await scene.send(scene.images, Settings(), Headers(1, REPLY))
    yield scene
    scene.close()


def credit(heard: bytes) -> int:
    """Return the sum of the connection's WINDOW_UPDATEs that the image service got."""
    frames = peer.split(heard.removeprefix(PREFACE))
    return sum(int.from_bytes(frame.body, "big") for frame in frames if (frame.kind, frame.stream) == (8, 0))


def heard_so_far(sock: socket.socket) -> bytes:
    heard = b""
    with suppress(BlockingIOError):
        while piece := sock.recv(1 << 16):
            heard += piece
    return heard


async def test_a10_image_service_is_not_read_for_a_client_that_does_not_read(pulling: Scene) -> None:
    pieces = 512

    async def answer() -> None:
        heard = b""
        for number in range(pieces):
            while 65_535 + credit(heard) < (number + 1) * len(FULL.payload):
                heard += await pulling.loop.sock_recv(pulling.images, 1 << 16)
            await pulling.loop.sock_sendall(pulling.images, FULL.wire())

    answering = asyncio.ensure_future(answer())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answering), 1)
    assert pulling.connection._client.waiting < 2 * HIGH_WATER + 256 * 1024
    got = 0
    while got < pieces * len(FULL.payload):
        got += len(await asyncio.wait_for(pulling.loop.sock_recv(pulling.client, 1 << 20), 20))
    await asyncio.wait_for(answering, 20)


async def test_a10_image_service_gets_credit_once_the_runtimes_frame_ends(pulling: Scene) -> None:
    long = Data(3, b"y" * 16_000).wire()
    await pulling.send(pulling.runtime, Headers(3, REPLY), long[:-1_000])
    for _ in range(CREDIT_STEP // len(FULL.payload)):
        await pulling.send(pulling.images, FULL)
    heard = heard_so_far(pulling.images)
    before = credit(heard)
    assert before < CREDIT_STEP + 2**20, "all of it waits for the end of the runtime's frame"
    await pulling.send(pulling.runtime, long[-1_000:])
    assert credit(heard + heard_so_far(pulling.images)) == before + CREDIT_STEP


@pytest.mark.parametrize("there", [True, False], ids=["there", "not yet"])
async def test_a10_queue_for_images_is_bounded(pulling: Scene, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers need no credit, so that nothing else bounds them."""
    [image] = pulling.connection.images
    if not there:
        monkeypatch.setattr(image, "_endpoint", None)
    head = peer.block((*PULL, (b"x", b"v" * 16_000)))
    for streams in (range(5, 405, 2), range(405, 1_005, 2)):
        assert pulling.connection.images
        with suppress(BrokenPipeError):
            for stream in streams:
                opened = peer.raw_headers(stream, head, end=True) + Reset(stream, 8).wire()
                await pulling.loop.sock_sendall(pulling.client, opened)
        await pulling.turns()
    assert not pulling.connection.images
    assert pulling.metrics.counted("connections_broken", side="client", kind="image_queue") == 1


async def test_a10_trailers_in_an_image_queue_are_bounded(pulling: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those after DATA of their stream, which wait for its credit."""
    monkeypatch.setattr(http2, "QUEUED_BYTES", 1 << 16)
    trailers = peer.raw_headers(5, peer.block(((b"x", b"v" * 16_000),)))
    await pulling.send(pulling.client, Headers(5, PULL), *[Data(5, bytes(16_384))] * 5, *[trailers] * 5)
    with suppress(BrokenPipeError):
        await pulling.send(pulling.client, PING)
    assert not pulling.connection.images


async def test_a10_calls_before_the_image_service_is_there_reach_it_in_order(listener: socket.socket) -> None:
    scene = Scene(listener.getsockname())
    scene.client.send(wire(PREFACE, Settings(), *(Headers(stream, PULL, end=True) for stream in (1, 3, 5))))
    await asyncio.sleep(0)
    scene.client.send(Headers(7, PULL, end=True).wire())
    await scene.accept(listener)
    await scene.send(scene.images, Settings())
    heard = heard_so_far(scene.images)
    assert heard.startswith(PREFACE)
    assert [frame.stream for frame in peer.split(heard.removeprefix(PREFACE)) if frame.stream] == [1, 3, 5, 7]
    scene.close()


async def test_a10_image_service_that_reads_nothing_is_read_no_more(pulling: Scene) -> None:
    count = 100_000
    sending = asyncio.ensure_future(pulling.loop.sock_sendall(pulling.images, PING.wire() * count))
    await asyncio.sleep(0.5)
    [image] = pulling.connection.images
    assert image._endpoint is not None
    assert image._endpoint.waiting < 2 * HIGH_WATER
    assert not sending.done()
    got = b""
    while got.count(b"12345678") < count:
        got += await asyncio.wait_for(pulling.loop.sock_recv(pulling.images, 1 << 20), 20)
    await sending
    assert {frame.flags for frame in peer.split(got.removeprefix(PREFACE)) if frame.kind == 6} == {1}


async def test_a10_image_service_that_breaks_the_protocol_is_counted_and_closed(pulling: Scene) -> None:
    await pulling.send(pulling.images, Data(1, b"").wire()[:3] + b"\x09" + bytes(5))
    heard_so_far(pulling.images)
    assert pulling.images.recv(1) == b""
    assert pulling.metrics.counted("connections_broken", side="image", kind="protocol") == 1


async def test_a10_missing_image_endpoint_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(f"{tmp_path}/away.sock")
    await scene.send(scene.client, PREFACE, Settings(), PULLED)
    await asyncio.wait_for(scene.tasks[0], 20)
    away = f"image endpoint {tmp_path}/away.sock is not reachable (No such file or directory)"
    assert caplog.messages == [f"{away}: its calls get UNAVAILABLE"]
    assert scene.metrics.total("image_dial_failures") == 1
    scene.close()


async def test_a10_client_that_leaves_during_the_dial_leaves_no_connection(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "images.sock"))
        listener.listen(0)
        kept = fill_backlog(listener.getsockname())
        scene = Scene(listener.getsockname())
        await scene.send(scene.client, PREFACE, Settings(), PULLED)
        scene.close()
        accepted = [listener.accept()[0] for _ in kept]
        await asyncio.wait_for(scene.tasks[0], 20)
        late, _ = listener.accept()
        assert await asyncio.wait_for(asyncio.to_thread(late.recv, 1), 20) == b""
        for sock in [*kept, *accepted, late]:
            sock.close()


HTTP_1 = b"GET /info HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
async def other() -> AsyncIterator[Scene]:
    """Yield a scene whose client has sent nothing yet."""
    made = Scene()
    yield made
    made.close()


async def test_a14_pipe_passes_bytes_and_counts_as_an_answer(other: Scene) -> None:
    for _ in range(2):
        await other.send(other.client, HTTP_1)
        assert other.runtime.recv(1 << 16) == HTTP_1
        await other.send(other.runtime, b"HTTP/1.1 200 OK\r\n\r\n")
    other.connection.drain(refusing=True)
    assert not other.ended()
    assert other.came == b"HTTP/1.1 200 OK\r\n\r\n" * 2, "no GOAWAY"
    assert other.connection.unfinished() == Unfinished(answers=1)
    assert other.metrics.total("connections_piped") == 1
    assert other.metrics.total("connections_broken") == 0
    other.connection.part()
    await other.turns()
    assert other.ended()
    assert not other.connection.unfinished()


@pytest.mark.parametrize("first", ["client", "runtime"])
async def test_a14_pipe_ends_with_either_side(other: Scene, first: str) -> None:
    await other.send(other.client, HTTP_1)
    if first == "client":
        await other.hang_up(other.client)
        assert other.runtime.recv(1 << 16) == HTTP_1
        assert other.runtime.recv(1) == b""
    await other.hang_up(other.runtime)
    assert other.front.connections == set()
    assert other.passes == [], "a server that closes an HTTP/1.1 connection has not lost its state"


async def test_a14_nothing_is_piped_to_a_runtime_without_cri(other: Scene, caplog: pytest.LogCaptureFixture) -> None:
    other.is_cri = False
    await other.send(other.client, HTTP_1)
    assert other.ended()
    assert other.runtime.recv(1 << 16) == b""
    assert other.metrics.counted("connections_broken", side="client", kind="preface") == 1
    assert "is --backend-runtime-mode right?" in caplog.text
