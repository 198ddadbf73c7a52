"""How often a connection writes: what one read of a peer gives leaves in one write for each side."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from runtimeproxy.cri import front
from runtimeproxy.cri.direction import ACKS_AT_ONCE
from runtimeproxy.cri.front import ACK_SECONDS, Connection
from runtimeproxy.cri.held import HeldStream
from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.relay.pair import Pair
from tests.cri.peer import (
    CREATE,
    PREFACE,
    REPLY,
    TRAILERS,
    Ack,
    Data,
    Frame,
    Headers,
    Ping,
    Reset,
    Settings,
    Side,
    grpc,
)
from tests.cri.test_front_leaves import WAIT_SECONDS, Scene
from tests.wire.test_flow import started

ANSWER = [Headers(1, REPLY), Data(1, grpc(b"answer")), Headers(1, TRAILERS, end=True)]


def frames(written: bytes) -> list[Frame]:
    """Cut what was written at once into frames."""
    outlet = started()
    side = Side(lambda _: None, outlet, preface=False)
    outlet.out.append(written)
    return side.got()


class Writes(Scene):
    """A connection whose writes are seen; ``held`` is done with a call when its request is whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.do: Callable[[HeldStream], object] = lambda held: None
        monkeypatch.setattr(Connection, "held", lambda _, stream: self.do(stream))
        self._written: list[bytes] = []
        self.times: list[float] = []
        self._write = Endpoint.write
        monkeypatch.setattr(Endpoint, "write", lambda end, data: self._note(end, data))

    def _note(self, end: Endpoint, data: bytes) -> None:
        self._written.append(data)
        self.times.append(asyncio.get_running_loop().time())
        self._write(end, data)

    def written(self) -> list[list[Frame]]:
        """Return each write since the last time."""
        written, self._written = self._written, []
        return [frames(each) for each in written]

    async def after(self, sock: socket.socket, *sent: Frame) -> list[list[Frame]]:
        """Return each write that follows what a peer sends."""
        self._written.clear()
        self.times.clear()
        await self.send(sock, *sent)
        return self.written()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Writes]:
    made = Writes(monkeypatch)
    made.client.send(PREFACE)
    await made.send(made.client, Settings(), Ack())
    await made.send(made.runtime, Settings(), Ack())
    yield made
    made.close()


REQUEST = (Headers(1, CREATE), Data(1, grpc(b"create"), end=True))


async def test_a_call_that_is_released_while_it_is_read_leaves_in_one_write(scene: Writes) -> None:
    scene.do = lambda held: held.release(None)
    assert await scene.after(scene.client, *REQUEST) == [[*REQUEST]]


async def test_a_call_that_is_refused_while_it_is_read_is_told_in_one_write_to_each_side(scene: Writes) -> None:
    scene.do = lambda held: held.refuse(13, "no")
    to_client, to_runtime = await scene.after(scene.client, *REQUEST)
    assert [type(frame) for frame in (*to_client, *to_runtime)] == [Headers, Headers, Reset]


async def test_an_answer_that_is_let_go_while_it_is_read_leaves_in_one_write(scene: Writes) -> None:
    def release(held: HeldStream) -> None:
        held.on_reply = held.answer
        held.release(None)

    scene.do = release
    await scene.send(scene.client, *REQUEST)
    assert await scene.after(scene.runtime, *ANSWER) == [ANSWER]


# ---- ACKs of PINGs

PING, PONG = Ping(b"12345678"), Ping(b"12345678", ack=True)


async def test_an_ack_leaves_with_the_next_write(scene: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "ACK_SECONDS", 100.0)
    calls: list[HeldStream] = []
    scene.do = calls.append
    assert await scene.after(scene.client, *REQUEST) == [[REQUEST[0]]]
    assert await scene.after(scene.runtime, PING) == []
    assert await scene.after(scene.client, PING) == []
    calls[0].release(None)
    assert scene.written() == [[REQUEST[1], PONG]]
    assert await scene.after(scene.runtime, *ANSWER[:2]) == [[*ANSWER[:2], PONG]]


async def test_an_ack_leaves_alone_after_a_moment(scene: Writes) -> None:
    assert ACK_SECONDS <= 0.02
    began = asyncio.get_running_loop().time()
    scene.client.send(PING.wire())
    assert await scene.after(scene.runtime, PING) == [[PONG], [PONG]]
    assert scene.times[0] - began > ACK_SECONDS / 2
    assert scene.times[-1] - scene.times[0] < ACK_SECONDS / 2, "one timer serves both sides"
    assert await scene.after(scene.client, PING) == [[PONG]]


async def test_who_takes_nothing_is_sent_no_acks(scene: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "ALIVE_SECONDS", WAIT_SECONDS)
    slow = True
    monkeypatch.setattr(Pair, "slow", property(lambda _: (slow, False)))
    pings = [Ping(b"%08d" % number) for number in range(ACKS_AT_ONCE + 1)]
    assert await scene.after(scene.client, *pings) == [[pings[-1]]], "the others wait"
    assert await scene.after(scene.client) == []
    slow = False
    assert await scene.after(scene.client) == [[Ping(ping.payload, ack=True) for ping in pings[:-1]]]


async def test_nothing_waits_for_a_connection_that_has_ended(scene: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "ACK_SECONDS", 100.0)
    (connection,) = scene.front.connections
    scene.client.send(PING.wire())
    async with asyncio.timeout(20):
        while (timer := connection._acks) is None:
            await asyncio.sleep(0)
    connection.close()
    assert timer.cancelled()
