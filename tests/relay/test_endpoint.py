"""One end of a connection on a real socket pair: reading, back-pressure, half-close, broken peers (relay-rules C8)."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from runtimeproxy.relay.endpoint import (
    HIGH_WATER,
    LOW_WATER,
    PIECE_BYTES,
    Endpoint,
)
from runtimeproxy.relay.hangups import Hangups

TICK_SECONDS = 0.01


class Listener:
    """Notes what an endpoint tells."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = 0
        self.drains = 0
        self.changed = asyncio.Event()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def ended(self, endpoint: Endpoint) -> None:
        self.ends += 1
        self.changed.set()

    def drained(self, endpoint: Endpoint) -> None:
        self.drains += 1
        self.changed.set()

    async def change(self) -> None:
        async with asyncio.timeout(20):
            await self.changed.wait()
        self.changed.clear()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    yield near, far
    near.close()
    far.close()


def made(near: socket.socket) -> tuple[Endpoint, Listener]:
    listener = Listener()
    return Endpoint(asyncio.get_running_loop(), near, listener), listener


def read_all(far: socket.socket) -> bytes:
    """Read what is there now."""
    far.setblocking(False)
    data = bytearray()
    while True:
        try:
            piece = far.recv(1 << 20)
        except BlockingIOError:
            return bytes(data)
        if not piece:
            return bytes(data)
        data += piece


async def test_it_reads_only_while_resumed(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    far.sendall(b"one")
    await asyncio.sleep(TICK_SECONDS)
    assert not listener.data
    endpoint.resume()
    endpoint.resume()
    await listener.change()
    assert listener.data == b"one"
    endpoint.pause()
    endpoint.pause()
    far.sendall(b"two")
    await asyncio.sleep(TICK_SECONDS)
    assert listener.data == b"one"
    endpoint.close()


async def test_eof_is_told_once_after_the_bytes_before_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    far.sendall(b"last")
    far.shutdown(socket.SHUT_WR)
    endpoint.resume()
    while not listener.ends:
        await listener.change()
    endpoint.resume()
    await asyncio.sleep(TICK_SECONDS)
    assert (bytes(listener.data), listener.ends) == (b"last", 1)
    endpoint.close()


async def test_what_the_socket_does_not_take_waits_in_order(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    sent = bytes(range(256)) * 8192
    endpoint.write(sent)
    endpoint.write(b"tail")
    assert endpoint.waiting > HIGH_WATER
    assert endpoint.slow
    got = bytearray()
    while len(got) < len(sent) + 4:
        got += read_all(far)
        await asyncio.sleep(0)
    assert got == sent + b"tail"
    assert endpoint.waiting == 0
    assert not endpoint.slow
    assert listener.drains == 1, "told once, when few enough bytes wait"
    endpoint.close()


async def test_finish_half_closes_behind_what_waits(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    sent = b"x" * (2 * LOW_WATER + HIGH_WATER)
    endpoint.write(sent)
    endpoint.finish()
    got = await asyncio.to_thread(_read_to_eof, far)
    assert got == sent
    far.sendall(b"still heard")
    endpoint.resume()
    while not listener.data:
        await listener.change()
    assert listener.data == b"still heard"
    endpoint.close()


def _read_to_eof(far: socket.socket) -> bytes:
    far.setblocking(True)
    far.settimeout(20)
    data = bytearray()
    while piece := far.recv(1 << 16):
        data += piece
    return bytes(data)


async def test_a_write_error_ends_only_writing(sockets: tuple[socket.socket, socket.socket]) -> None:
    """The early answer of a peer that reads no more is delivered (relay-rules C8)."""
    near, far = sockets
    endpoint, listener = made(near)
    far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    far.close()
    endpoint.write(b"more of the request")
    endpoint.write(b"and more")
    endpoint.resume()
    while not listener.ends:
        await listener.change()
    assert listener.data == b"HTTP/1.1 400 Bad Request\r\n\r\n"
    endpoint.finish()
    endpoint.close()
    endpoint.close()
    endpoint.write(b"into nothing")
    assert endpoint.closed


async def test_what_is_refused_fails_in_the_hands_of_its_sender(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """What it is sent goes on; that nothing more comes is not told as the peer's EOF."""
    near, far = sockets
    endpoint, listener = made(near)
    endpoint.resume()
    for _ in range(2):
        endpoint.refuse()
    with pytest.raises(BrokenPipeError):
        far.send(b"to nobody")
    endpoint.resume()
    endpoint.write(b"and yet it reads")
    assert far.recv(100) == b"and yet it reads"
    await asyncio.sleep(TICK_SECONDS)
    assert (listener.data, listener.ends) == (b"", 0)
    endpoint.close()
    endpoint.refuse()


async def test_it_may_refuse_a_peer_that_has_left(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    far.close()
    endpoint.refuse()
    endpoint.resume()
    await asyncio.sleep(TICK_SECONDS)
    assert listener.ends == 0
    endpoint.close()


async def test_a_peer_that_goes_while_bytes_wait_frees_the_other_side(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    endpoint.write(b"x" * (4 * HIGH_WATER))
    assert endpoint.slow
    far.close()
    while not listener.drains:
        await listener.change()
    assert endpoint.waiting == 0
    endpoint.close()


async def test_closing_with_bytes_waiting_leaves_no_callback(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    endpoint, listener = made(near)
    endpoint.resume()
    endpoint.write(b"x" * (4 * HIGH_WATER))
    endpoint.close()
    endpoint.resume()
    read_all(far)
    await asyncio.sleep(TICK_SECONDS)
    assert (listener.drains, listener.ends) == (0, 0)


async def test_it_tells_when_nothing_waits_though_it_was_never_slow(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """Whoever waits to close behind the last bytes hears of them."""
    near, far = sockets
    endpoint, listener = made(near)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b"x" * (LOW_WATER // 2)
    endpoint.write(sent)
    assert 0 < endpoint.waiting < LOW_WATER
    got = bytearray()
    while not listener.drains:
        got += read_all(far)
        await asyncio.sleep(0)
    assert endpoint.waiting == 0
    assert bytes(got) + read_all(far) == sent
    endpoint.close()


async def test_a_closed_endpoint_has_nothing_waiting(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, _ = sockets
    endpoint, _ = made(near)
    endpoint.write(b"x" * HIGH_WATER)
    assert endpoint.waiting
    endpoint.close()
    assert endpoint.waiting == 0


async def test_a_hang_up_is_told_once_and_not_of_a_closed_endpoint(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    near, far = sockets
    hangups = Hangups(asyncio.get_running_loop())
    told: list[str] = []
    endpoint, listener = made(near)
    endpoint.watch(hangups, lambda: told.append("gone"))
    endpoint.watch(hangups, lambda: told.append("watched twice"))
    endpoint.resume()
    far.sendall(b"last words")
    far.shutdown(socket.SHUT_WR)
    while not listener.ends:
        await listener.change()
    await asyncio.sleep(TICK_SECONDS)
    assert not told, "it has only half-closed"
    far.close()
    while not told:
        await asyncio.sleep(TICK_SECONDS)
    endpoint.close()
    assert told == ["gone"]
    hangups.close()


@pytest.mark.parametrize("before", [True, False], ids=["closed before", "closed while watched"])
async def test_of_a_closed_endpoint_no_hang_up_is_told(
    sockets: tuple[socket.socket, socket.socket], before: bool
) -> None:
    near, far = sockets
    hangups = Hangups(asyncio.get_running_loop())
    told: list[str] = []
    endpoint, _ = made(near)
    if before:
        endpoint.close()
    endpoint.watch(hangups, lambda: told.append("gone"))
    endpoint.close()
    far.close()
    await asyncio.sleep(TICK_SECONDS)
    assert not told
    hangups.close()


async def test_short_pieces_count_for_more_than_their_bytes(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Lines of a few bytes for a peer that does not read: each costs some hundred bytes to keep."""
    near, _ = sockets
    endpoint, _ = made(near)
    while not endpoint.waiting:
        endpoint.write(b"x" * LOW_WATER)
    already = endpoint.waiting
    pieces = 0
    while not endpoint.slow:
        endpoint.write(b"a line\n")
        pieces += 1
    assert pieces * PIECE_BYTES <= HIGH_WATER
    assert endpoint.waiting - already == pieces * len(b"a line\n")
    endpoint.close()
