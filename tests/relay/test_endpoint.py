"""One end of a connection on a real socket pair: reading, back-pressure, half-close, broken peers (relay-rules C8)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from runtimeproxy.relay.endpoint import HIGH_WATER, LOW_WATER, PIECE_BYTES, Endpoint, ReadBuffer
from runtimeproxy.relay.hangups import Hangups

TICK_SECONDS = 0.01


class End:
    """An endpoint, the far end of its socket, and what it tells."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.endpoint = Endpoint(asyncio.get_running_loop(), self.near, self, ReadBuffer())
        self.data = bytearray()
        self.ends = 0
        self.drains = 0
        self._changed = asyncio.Event()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def ended(self, endpoint: Endpoint) -> None:
        self.ends += 1
        self._changed.set()

    def drained(self, endpoint: Endpoint) -> None:
        self.drains += 1
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self._changed.wait()
                self._changed.clear()


@pytest.fixture
async def end() -> AsyncIterator[End]:
    made = End()
    yield made
    made.endpoint.close()
    made.near.close()
    made.far.close()


@pytest.fixture
def endpoint(end: End) -> Endpoint:
    return end.endpoint


@pytest.fixture
async def hangups() -> AsyncIterator[Hangups]:
    made = Hangups(asyncio.get_running_loop())
    yield made
    made.close()


def read_all(far: socket.socket) -> bytes:
    """Read what is there now."""
    far.setblocking(False)
    data = bytearray()
    try:
        while piece := far.recv(1 << 20):
            data += piece
    except BlockingIOError:
        pass
    return bytes(data)


async def test_it_reads_only_while_resumed(end: End, endpoint: Endpoint) -> None:
    end.far.sendall(b"one")
    await asyncio.sleep(TICK_SECONDS)
    assert not end.data
    endpoint.resume()
    endpoint.resume()
    await end.until(lambda: end.data)
    assert end.data == b"one"
    endpoint.pause()
    endpoint.pause()
    end.far.sendall(b"two")
    await asyncio.sleep(TICK_SECONDS)
    assert end.data == b"one"


async def test_eof_is_told_once_after_the_bytes_before_it(end: End, endpoint: Endpoint) -> None:
    end.far.sendall(b"last")
    end.far.shutdown(socket.SHUT_WR)
    endpoint.resume()
    await end.until(lambda: end.ends)
    endpoint.resume()
    await asyncio.sleep(TICK_SECONDS)
    assert (bytes(end.data), end.ends) == (b"last", 1)


async def test_what_the_socket_does_not_take_waits_in_order(end: End, endpoint: Endpoint) -> None:
    sent = bytes(range(256)) * 8192
    endpoint.write(sent)
    endpoint.write(b"tail")
    assert endpoint.waiting > HIGH_WATER
    assert endpoint.slow
    got = bytearray()
    while len(got) < len(sent) + 4:
        got += read_all(end.far)
        await asyncio.sleep(0)
    assert got == sent + b"tail"
    assert endpoint.waiting == 0
    assert not endpoint.slow
    assert end.drains == 1, "told once, when few enough bytes wait"


async def test_finish_half_closes_behind_what_waits(end: End, endpoint: Endpoint) -> None:
    sent = b"x" * (2 * LOW_WATER + HIGH_WATER)
    endpoint.write(sent)
    endpoint.finish()
    got = bytearray()
    async with asyncio.timeout(20):
        while len(got) < len(sent) or end.far.recv(1):
            got += read_all(end.far)
            await asyncio.sleep(0)
    assert got == sent
    end.far.sendall(b"still heard")
    endpoint.resume()
    await end.until(lambda: end.data)
    assert end.data == b"still heard"


async def test_write_error_ends_only_writing(end: End, endpoint: Endpoint) -> None:
    """The early answer of a peer that reads no more is delivered (relay-rules C8)."""
    end.far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    end.far.close()
    endpoint.write(b"more of the request")
    endpoint.write(b"and more")
    endpoint.resume()
    await end.until(lambda: end.ends)
    assert end.data == b"HTTP/1.1 400 Bad Request\r\n\r\n"
    endpoint.finish()
    endpoint.close()
    endpoint.close()
    endpoint.write(b"into nothing")
    assert endpoint.closed


async def test_what_is_refused_fails_in_the_hands_of_its_sender(end: End, endpoint: Endpoint) -> None:
    """What it is sent goes on; that nothing more comes is not told as the peer's EOF."""
    endpoint.resume()
    for _ in range(2):
        endpoint.refuse()
    with pytest.raises(BrokenPipeError):
        end.far.send(b"to nobody")
    endpoint.resume()
    endpoint.write(b"and yet it reads")
    assert end.far.recv(100) == b"and yet it reads"
    await asyncio.sleep(TICK_SECONDS)
    assert (end.data, end.ends) == (b"", 0)
    endpoint.close()
    endpoint.refuse()


async def test_it_may_refuse_a_peer_that_has_left(end: End, endpoint: Endpoint) -> None:
    end.far.close()
    endpoint.refuse()
    endpoint.resume()
    await asyncio.sleep(TICK_SECONDS)
    assert end.ends == 0


async def test_peer_that_goes_while_bytes_wait_frees_the_other_side(end: End, endpoint: Endpoint) -> None:
    endpoint.write(b"x" * (4 * HIGH_WATER))
    assert endpoint.slow
    end.far.close()
    await end.until(lambda: end.drains)
    assert endpoint.waiting == 0


async def test_closing_with_bytes_waiting_leaves_no_callback(end: End, endpoint: Endpoint) -> None:
    endpoint.resume()
    endpoint.write(b"x" * (4 * HIGH_WATER))
    endpoint.close()
    endpoint.resume()
    read_all(end.far)
    await asyncio.sleep(TICK_SECONDS)
    assert (end.drains, end.ends) == (0, 0)


async def test_it_tells_when_nothing_waits_though_it_was_never_slow(end: End, endpoint: Endpoint) -> None:
    """Whoever waits to close behind the last bytes hears of them."""
    end.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b"x" * (LOW_WATER // 2)
    endpoint.write(sent)
    assert 0 < endpoint.waiting < LOW_WATER
    got = bytearray()
    while not end.drains:
        got += read_all(end.far)
        await asyncio.sleep(0)
    assert endpoint.waiting == 0
    assert bytes(got) + read_all(end.far) == sent


@pytest.mark.parametrize("before", [True, False], ids=["closed before", "closed while watched"])
async def test_closed_endpoint_tells_no_hang_up(end: End, endpoint: Endpoint, hangups: Hangups, before: bool) -> None:
    told: list[str] = []
    if before:
        endpoint.close()
    endpoint.watch(hangups, lambda: told.append("gone"))
    endpoint.close()
    end.far.close()
    await asyncio.sleep(TICK_SECONDS)
    assert not told


async def test_short_pieces_count_for_more_than_their_bytes(end: End, endpoint: Endpoint) -> None:
    """Lines of a few bytes for a peer that does not read: each costs some hundred bytes to keep."""
    while not endpoint.waiting:
        endpoint.write(b"x" * LOW_WATER)
    already = endpoint.waiting
    pieces = 0
    while not endpoint.slow:
        endpoint.write(b"a line\n")
        pieces += 1
    assert pieces * PIECE_BYTES <= HIGH_WATER
    assert endpoint.waiting - already == pieces * len(b"a line\n")
