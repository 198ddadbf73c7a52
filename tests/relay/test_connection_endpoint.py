"""One end of a connection on a real socket pair: what test_connection.py does not test (relay-rules C8)."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.relay.connection import HIGH_WATER, LOW_WATER, PIECE_BYTES, Endpoint, ReadBuffer
from runtimeproxy.relay.hangups import Hangups
from tests.patience import read, until

TICK_SECONDS = 0.01


class End:
    """An endpoint, the far end of its socket, and its callbacks."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.endpoint = Endpoint(asyncio.get_running_loop(), self.near, self, ReadBuffer())
        self.data = b""
        self.ends = 0
        self.drains = 0

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        self.data += data

    def ended(self, endpoint: Endpoint) -> None:
        self.ends += 1

    def drained(self, endpoint: Endpoint) -> None:
        self.drains += 1

    async def read_all(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += await read(self.far)
        return got


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


async def test_bytes_wait_in_order_for_the_socket(end: End, endpoint: Endpoint) -> None:
    """So does the half-close after them."""
    sent = bytes(range(256)) * 8192
    endpoint.write(sent)
    endpoint.write(b"tail")
    endpoint.finish()
    assert endpoint.waiting > HIGH_WATER
    assert endpoint.slow
    assert await end.read_all(len(sent) + 4) == sent + b"tail"
    assert await read(end.far, 1) == b""
    assert (endpoint.waiting, endpoint.slow) == (0, False)
    assert end.drains == 1, "told once, when few enough bytes wait"
    end.far.send(b"still heard")
    endpoint.resume()
    await until(lambda: end.data == b"still heard")


async def test_write_error_ends_only_writing(end: End, endpoint: Endpoint) -> None:
    """The early answer of a peer that reads no more is delivered (relay-rules C8)."""
    end.far.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    end.far.close()
    endpoint.write(b"more of the request")
    endpoint.write(b"and more")
    endpoint.resume()
    await until(lambda: end.ends)
    assert end.data == b"HTTP/1.1 400 Bad Request\r\n\r\n"
    endpoint.finish()
    endpoint.close()
    endpoint.close()
    endpoint.write(b"into nothing")
    assert endpoint.closed


async def test_refused_bytes_fail_in_the_hands_of_their_sender(end: End, endpoint: Endpoint) -> None:
    """Sending to it goes on; that nothing more comes is not reported as the peer's EOF."""
    endpoint.resume()
    for _ in range(2):
        endpoint.refuse()
    with pytest.raises(BrokenPipeError):
        end.far.send(b"to nobody")
    endpoint.resume()
    endpoint.write(b"and yet it reads")
    assert await read(end.far, 100) == b"and yet it reads"
    await asyncio.sleep(TICK_SECONDS)
    assert (end.data, end.ends) == (b"", 0)
    endpoint.close()
    endpoint.refuse()


async def test_peer_that_has_left_may_be_refused(end: End, endpoint: Endpoint) -> None:
    end.far.close()
    endpoint.refuse()
    endpoint.resume()
    await asyncio.sleep(TICK_SECONDS)
    assert end.ends == 0


async def test_close_with_bytes_waiting_leaves_no_callback(end: End, endpoint: Endpoint) -> None:
    endpoint.resume()
    endpoint.write(b"x" * (4 * HIGH_WATER))
    endpoint.close()
    endpoint.resume()
    while await read(end.far, HIGH_WATER):
        pass
    await asyncio.sleep(TICK_SECONDS)
    assert (end.drains, end.ends) == (0, 0)


async def test_drain_is_told_though_the_peer_was_never_slow(end: End, endpoint: Endpoint) -> None:
    """A caller that waits to close after the last bytes is notified."""
    end.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b"x" * (LOW_WATER // 2)
    endpoint.write(sent)
    assert 0 < endpoint.waiting < LOW_WATER
    assert await end.read_all(len(sent)) == sent
    assert (endpoint.waiting, end.drains) == (0, 1)


@pytest.mark.parametrize("before", [True, False], ids=["closed before", "closed while watched"])
async def test_closed_endpoint_tells_no_hang_up(end: End, endpoint: Endpoint, before: bool) -> None:
    told: list[str] = []
    hangups = Hangups(asyncio.get_running_loop())
    if before:
        endpoint.close()
    endpoint.watch(hangups, lambda: told.append("gone"))
    endpoint.close()
    end.far.close()
    await asyncio.sleep(TICK_SECONDS)
    assert not told
    hangups.close()


async def test_short_pieces_count_for_more_than_their_bytes(endpoint: Endpoint) -> None:
    """Lines of a few bytes for a peer that does not read: each costs some hundred bytes to keep."""
    while not endpoint.waiting:
        endpoint.write(b"x" * LOW_WATER)
    already, pieces = endpoint.waiting, 0
    while not endpoint.slow:
        endpoint.write(b"a line\n")
        pieces += 1
    assert pieces * PIECE_BYTES <= HIGH_WATER
    assert endpoint.waiting - already == pieces * len(b"a line\n")
