"""A connection whose client gives no credit, and whose runtime leaves behind its answers (relay-rules C5)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.cri import bounds
from runtimeproxy.cri.front import Connection
from runtimeproxy.cri.held import HeldStream
from runtimeproxy.heldbytes import HeldBytes
from runtimeproxy.relay import pair
from runtimeproxy.relay.endpoint import ReadBuffer
from runtimeproxy.relay.pair import Pair
from runtimeproxy.wire.flow import Outlet
from tests.cri.peer import (
    CREATE,
    PREFACE,
    REPLY,
    TRAILERS,
    VERSION,
    Ack,
    Credit,
    Data,
    Frame,
    GoAway,
    Headers,
    Ping,
    Reset,
    Settings,
    Side,
    grpc,
    refusal,
    request,
    split,
)

WAIT_SECONDS = 0.05


class Scene:
    """A client whose window another answer has used up, and what the runtime has answered its create."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[HeldStream] = []
        monkeypatch.setattr(Connection, "held", lambda _, stream: self.held.append(stream))
        self.client, near = socket.socketpair()
        self.runtime, far = socket.socketpair()
        for sock in (self.client, self.runtime):
            sock.setblocking(False)
        self.front: Any = SimpleNamespace(
            buffer=ReadBuffer(),
            loop=asyncio.get_running_loop(),
            held_bytes=HeldBytes(),
            image_apart=False,
            connections=set(),
            sync=SimpleNamespace(soon=lambda: None),
        )
        self.front.connections.add(Connection(self.front, near, far))
        self.bytes_that_came = b""

    async def send(self, sock: socket.socket, *frames: Frame) -> None:
        """Send frames, and let the proxy take them."""
        sock.send(b"".join(frame.wire() for frame in frames))
        await asyncio.sleep(WAIT_SECONDS)

    async def ask(self) -> None:
        """Make the calls; the runtime answers the one that passes in full."""
        self.client.send(PREFACE)
        await self.send(self.client, Settings(), Ack(), Headers(1, CREATE), Data(1, grpc(b"create"), end=True))
        await self.send(self.runtime, Settings(), Ack())
        self.held[0].release(None)
        await self.send(self.client, Headers(3, VERSION), Data(3, grpc(b""), end=True))
        sizes = (16_384, 16_384, 16_384, 16_383)
        await self.send(self.runtime, Headers(3, REPLY), *(Data(3, b"x" * size) for size in sizes))

    async def leave(self) -> None:
        """Let the runtime answer the create, leave, and the hooks after it."""
        await self.send(self.runtime, Headers(1, REPLY), Data(1, grpc(b"")), Headers(1, TRAILERS, end=True))
        self.runtime.close()
        await asyncio.sleep(WAIT_SECONDS)
        self.held[0].answer()
        await asyncio.sleep(WAIT_SECONDS)

    def answered(self) -> bool:
        """Tell whether the client has the answer to its create."""
        self._read()
        return any(frame.stream == 1 and frame.flags & 1 for frame in split(self.bytes_that_came))

    def ended(self) -> bool:
        """Tell whether the client sees the end."""
        return self._read()

    def _read(self) -> bool:
        try:
            while piece := self.client.recv(1 << 20):
                self.bytes_that_came += piece
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        for connection in tuple(self.front.connections):
            connection.close()
        self.client.close()
        self.runtime.close()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made = Scene(monkeypatch)
    await made.ask()
    await made.leave()
    yield made
    made.close()


async def test_it_is_ended_behind_the_answer_when_there_is_credit(scene: Scene) -> None:
    assert (scene.answered(), scene.ended()) == (False, False)
    await scene.send(scene.client, Credit(0, 100))
    assert (scene.answered(), scene.ended()) == (True, True)
    assert scene.front.connections, "the client may still send"
    scene.client.close()
    await asyncio.sleep(WAIT_SECONDS)
    assert not scene.front.connections


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "LINGER_SECONDS", WAIT_SECONDS / 2)


async def test_whoever_gives_none_is_not_waited_for_longer_than_a_moment(short: None, scene: Scene) -> None:
    assert (scene.answered(), scene.ended()) == (False, True)
    assert not scene.front.connections


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made = Scene(monkeypatch)
    await made.ask()
    yield made
    made.close()


async def test_a_passing_answer_that_waits_for_credit_goes_out_before_the_end(asked: Scene) -> None:
    """We give the runtime more credit than the client has given: it takes its answer for sent, and leaves."""
    await asked.send(asked.runtime, Data(3, b"y" * 10_000), Headers(3, TRAILERS, end=True))
    asked.runtime.close()
    await asyncio.sleep(WAIT_SECONDS)
    assert not asked.ended()
    await asked.send(asked.client, Credit(0, 100_000), Credit(3, 100_000))
    assert asked.ended()
    assert any(frame.stream == 3 and frame.flags & 1 for frame in split(asked.bytes_that_came))


async def test_data_that_credit_lets_out_is_no_answer_to_the_clients_own_frames(
    asked: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly the client reads it."""
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 1000)
    monkeypatch.setattr(Pair, "delivered", property(lambda _: False))
    await asked.send(asked.runtime, Data(3, b"y" * 10_000))
    await asked.send(asked.client, Credit(0, 100_000), Credit(3, 100_000))
    assert asked.front.connections
    assert not asked.ended()
    assert b"y" * 10_000 in asked.bytes_that_came


async def test_whoever_has_left_is_not_waited_for(asked: Scene) -> None:
    await asked.send(asked.runtime, Data(3, b"y" * 10_000), Headers(3, TRAILERS, end=True))
    asked.client.close()
    await asyncio.sleep(WAIT_SECONDS)
    asked.runtime.close()
    await asyncio.sleep(WAIT_SECONDS)
    assert not asked.front.connections


# ---- beside an answer that is kept for Post hooks


@pytest.fixture
async def busy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """A create is answered, and the hooks after it are not done."""
    made = Scene(monkeypatch)
    made.client.send(PREFACE)
    await made.send(made.client, Settings(), Ack(), Headers(1, CREATE), Data(1, grpc(b"create"), end=True))
    await made.send(made.runtime, Settings(), Ack())
    made.held[0].release(None)
    await made.send(made.client, *(Headers(stream, VERSION, end=True) for stream in (3, 5, 7)))
    await made.send(made.client, Headers(9, EVENTS, end=True))
    await made.send(made.client, *(frame for stream in (11, 13, 15) for frame in created(stream)))
    for held in made.held[2:]:
        held.release(None)
    await made.send(made.runtime, Headers(5, REPLY), Headers(9, REPLY), Headers(15, REPLY))
    await made.send(made.runtime, Headers(7, REPLY), Headers(7, TRAILERS, end=True))
    await made.send(made.runtime, Headers(1, REPLY), Data(1, grpc(b"")), Headers(1, TRAILERS, end=True))
    made.ended()
    yield made
    made.close()


EVENTS = request(b"/runtime.v1.RuntimeService/GetContainerEvents")
UNAVAILABLE = refusal(14, b"the runtime ended its connection before it answered")


def created(stream: int) -> tuple[Frame, Frame]:
    return Headers(stream, CREATE), Data(stream, grpc(b"create"), end=True)


async def test_the_other_calls_end_at_once_with_the_runtime(busy: Scene) -> None:
    """Else they would seem to be alive for as long as a hook after it hangs."""
    busy.bytes_that_came = b""
    busy.runtime.close()
    await asyncio.sleep(WAIT_SECONDS)
    assert not busy.ended()
    outlet = Outlet()
    outlet.out.append(busy.bytes_that_came)
    assert set(Side(lambda _: None, outlet, preface=False).got()) == {
        *(Headers(stream, UNAVAILABLE, end=True) for stream in (3, 11, 13)),
        *(Reset(stream, 0) for stream in (3, 11, 13)),
        *(Reset(stream, 8) for stream in (5, 9, 15)),
        *(GoAway(last, 0) for last in (2**31 - 1, 15)),
    }
    busy.held[0].answer()
    await asyncio.sleep(WAIT_SECONDS)
    assert (busy.answered(), busy.ended()) == (True, True)


async def test_inside_of_a_frame_that_has_no_end_nothing_is_told_and_nothing_waited_for(busy: Scene) -> None:
    busy.runtime.send(Data(5, bytes(1_000)).wire()[:-1])
    await asyncio.sleep(WAIT_SECONDS)
    busy.runtime.close()
    await asyncio.sleep(WAIT_SECONDS)
    assert busy.ended()
    assert busy.bytes_that_came.endswith(bytes(999))
    assert not busy.front.connections


# ---- what the client's own frames are answered


async def test_the_runtimes_bytes_that_have_not_left_yet_are_none_of_the_answers(
    busy: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the end of the turn where a held call goes on, and may be the last byte of a frame."""
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 1_000)
    monkeypatch.setattr(Pair, "delivered", property(lambda _: False))
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    long = Data(5, bytes(8_000)).wire()
    await busy.send(busy.runtime, Headers(11, REPLY), Headers(13, REPLY))
    busy.runtime.send(long[:-2])
    await asyncio.sleep(WAIT_SECONDS)
    for stream, more in ((11, long[-2:]), (13, Headers(3, (*REPLY, (b"long", bytes(900)))).wire())):
        busy.runtime.send(more + Headers(stream, TRAILERS, end=True).wire())
        busy.client.send(Ping(b"12345678", ack=True).wire())
        await asyncio.sleep(WAIT_SECONDS)
    assert faults == []
    assert busy.front.connections
    assert busy.runtime.recv(1 << 16).count(Ping(b"12345678", ack=True).wire()) == 2
