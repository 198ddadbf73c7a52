"""Who has closed altogether, on real socket pairs: a half-close is none (relay-rules B1)."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.relay.hangups import Hangups, has_hung_up

TICK_SECONDS = 0.01


class Watch:
    """Watched sockets with their far ends, and who was told to have hung up."""

    def __init__(self) -> None:
        self.hangups = Hangups(asyncio.get_running_loop())
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []
        self.told: list[int] = []

    def add(self) -> int:
        """Watch one more; return its number."""
        near, far = socket.socketpair()
        self.near.append(near)
        self.far.append(far)
        number = len(self.near) - 1
        self.hangups.watch(near, lambda: self.told.append(number))
        return number

    async def until(self, *numbers: int) -> None:
        """Wait until these were told."""
        async with asyncio.timeout(5):
            while sorted(self.told) != sorted(numbers):
                await asyncio.sleep(0.001)

    async def quiet(self) -> bool:
        """Tell whether nobody more is told for a moment."""
        before = list(self.told)
        await asyncio.sleep(TICK_SECONDS)
        return self.told == before


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    made = Watch()
    yield made
    made.hangups.close()
    for sock in [*made.near, *made.far]:
        sock.close()


def test_full_close_shows_with_the_eof_and_a_half_close_does_not() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"last words")
        assert not has_hung_up(near)
        far.shutdown(socket.SHUT_WR)
        assert near.recv(20) == b"last words"
        assert near.recv(20) == b""
        assert not has_hung_up(near), "it may still read"
        near.sendall(b"never read")
        far.close()
        assert has_hung_up(near)


async def test_full_close_is_told_once_and_a_half_close_is_not(watch: Watch) -> None:
    one, other = watch.add(), watch.add()
    watch.far[one].shutdown(socket.SHUT_WR)
    watch.far[other].sendall(b"alive")
    assert await watch.quiet()
    watch.far[one].close()
    await watch.until(one)
    assert await watch.quiet()
    assert watch.near[other].recv(9) == b"alive"


async def test_peer_that_had_closed_before_is_told_too(watch: Watch) -> None:
    near, far = socket.socketpair()
    far.sendall(b"last words")
    far.close()
    watch.hangups.watch(near, lambda: watch.told.append(7))
    await watch.until(7)
    assert near.recv(20) == b"last words", "they are still there"
    near.close()


async def test_who_is_forgotten_is_not_told(watch: Watch) -> None:
    number = watch.add()
    watch.hangups.forget(watch.near[number])
    watch.hangups.forget(watch.near[number])
    watch.far[number].close()
    assert await watch.quiet()


async def test_who_is_forgotten_by_another_ones_hang_up_is_not_told(watch: Watch) -> None:
    """Both hang up within one turn of the loop, and the first one's end closes the second."""
    pairs = [socket.socketpair() for _ in range(2)]

    def told(number: int) -> None:
        watch.told.append(number)
        other = pairs[1 - number][0]
        watch.hangups.forget(other)
        other.close()

    watch.hangups.watch(pairs[0][0], lambda: told(0))
    watch.hangups.watch(pairs[1][0], lambda: told(1))
    pairs[0][1].close()
    pairs[1][1].close()
    while not watch.told:
        await asyncio.sleep(0.001)
    assert await watch.quiet()
    assert len(watch.told) == 1
    for near, _ in pairs:
        near.close()


async def test_descriptor_that_is_used_anew_is_another_socket(watch: Watch) -> None:
    number = watch.add()
    watch.far[number].close()
    await watch.until(number)
    watch.hangups.forget(watch.near[number])
    descriptor = watch.near[number].fileno()
    watch.near[number].close()
    again = watch.add()
    assert watch.near[again].fileno() == descriptor
    assert await watch.quiet()
    watch.far[again].close()
    await watch.until(number, again)


async def test_nobody_is_told_behind_the_end(watch: Watch) -> None:
    number = watch.add()
    hangups = Hangups(asyncio.get_running_loop())
    near, far = socket.socketpair()
    hangups.watch(near, lambda: watch.told.append(99))
    hangups.close()
    far.close()
    assert await watch.quiet()
    hangups.forget(near)
    near.close()
    watch.far[number].close()
    await watch.until(number)
