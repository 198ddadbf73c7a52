"""A long read that does not pass as it is: what is left of it waits for the others' turn (facts/reliability X1)."""

import asyncio
import socket

import pytest

from runtimeproxy.relay import endpoint as endpoint_module
from runtimeproxy.relay.endpoint import READ_BYTES, SHARED_BYTES, TURN_SECONDS, Endpoint
from tests.relay.test_endpoint import TICK_SECONDS, Dear, sockets

__all__ = ["sockets"]


class Turns(Dear):
    """Notes in which turn of the loop it got how much, while the loop has others to serve; may pause at once."""

    seconds_a_byte = 0.4 * TURN_SECONDS / READ_BYTES

    def __init__(self, pauses: bool = False, fails_at: int = 0) -> None:
        super().__init__()
        self.pauses = pauses
        self.fails_at = fails_at
        self.failure = ValueError("cannot be taken")
        self.turn = 0
        self.turns: list[int] = []
        self._others()

    def _others(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._others)

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        super().received(endpoint, data)
        self.turns.append(self.turn)
        if self.pauses:
            endpoint.pause()
        if len(self.data) == self.fails_at:
            raise self.failure


LONG_READ = bytes(range(256)) * (8 * READ_BYTES // 256) + b"tail"


def read_long(near: socket.socket, listener: Turns, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """Return an endpoint whose next read is a long one, as if what came before it had been cheap."""
    monkeypatch.setattr(endpoint_module, "thread_time", lambda: listener.seconds)
    endpoint = Endpoint(asyncio.get_running_loop(), near, listener, lambda *_: False, READ_BYTES)
    endpoint._pace.size = SHARED_BYTES
    return endpoint


async def send_all(far: socket.socket, endpoint: Endpoint, listener: Turns) -> None:
    """Send the long read and the end, and wait until that is told."""
    far.sendall(LONG_READ)
    far.shutdown(socket.SHUT_WR)
    endpoint.resume()
    while not listener.ends:
        await listener.change()


async def test_a_long_read_is_handed_on_in_pieces_between_which_others_have_their_turn(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = sockets
    listener = Turns()
    endpoint = read_long(near, listener, monkeypatch)
    await send_all(far, endpoint, listener)
    assert listener.data == LONG_READ
    assert listener.sizes == [READ_BYTES] * 8 + [4]
    first, *_ = listener.turns
    assert [turn - first for turn in listener.turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    endpoint.close()


async def test_what_is_left_of_a_read_waits_while_it_is_paused(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = sockets
    listener = Turns(pauses=True)
    endpoint = read_long(near, listener, monkeypatch)
    far.sendall(LONG_READ)
    far.shutdown(socket.SHUT_WR)
    for pieces in range(1, 10):
        endpoint.resume()
        endpoint.pause()
        endpoint.resume()
        while len(listener.sizes) < pieces:
            await listener.change()
        await asyncio.sleep(TICK_SECONDS)
        assert len(listener.sizes) == pieces
    assert listener.data == LONG_READ
    endpoint.resume()
    while not listener.ends:
        await listener.change()
    endpoint.close()


async def test_it_reads_on_when_what_was_left_of_a_read_could_not_be_taken(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = sockets
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    listener = Turns(fails_at=4 * READ_BYTES)
    endpoint = read_long(near, listener, monkeypatch)
    await send_all(far, endpoint, listener)
    assert failed == [listener.failure]
    endpoint.close()


async def test_what_is_left_of_a_read_ends_with_the_connection(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = sockets
    listener = Turns()
    endpoint = read_long(near, listener, monkeypatch)
    far.sendall(LONG_READ)
    endpoint.resume()
    await listener.change()
    endpoint.close()
    await asyncio.sleep(TICK_SECONDS)
    assert listener.sizes == [READ_BYTES] * 3
