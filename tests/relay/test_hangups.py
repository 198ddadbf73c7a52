"""Which peers have closed their socket, on real socket pairs: a half-close does not count (relay-rules B1)."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.relay.hangups import Hangups
from tests.patience import until

TICK_SECONDS = 0.01


class Watch:
    """Watched sockets and their far ends, by number, and the numbers that were reported."""

    def __init__(self) -> None:
        self.hangups = Hangups(asyncio.get_running_loop())
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.reported: list[int] = []

    def add(self, *, closed: bool = False) -> tuple[int, socket.socket, socket.socket]:
        number, (near, far) = len(self.pairs), socket.socketpair()
        self.pairs.append((near, far))
        far.send(b"last words")
        if closed:
            far.close()
        self.hangups.watch(near, lambda: self.hung_up(number))
        return number, near, far

    def hung_up(self, number: int) -> None:
        self.reported.append(number)

    async def reports(self, *numbers: int) -> None:
        """Wait until these numbers are reported, and check that there are no others."""
        await until(lambda: sorted(self.reported) == sorted(numbers))
        await asyncio.sleep(TICK_SECONDS)
        assert sorted(self.reported) == sorted(numbers)


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    made = Watch()
    yield made
    made.hangups.close()
    for sock in [end for pair in made.pairs for end in pair]:
        sock.close()


async def test_full_close_is_reported_once_and_a_half_close_is_not(watch: Watch) -> None:
    (one, near, far), _ = watch.add(), watch.add()
    far.shutdown(socket.SHUT_WR)
    await watch.reports()
    far.close()
    await watch.reports(one)
    watch.hangups.watch(near, lambda: watch.hung_up(one))  # it is no longer watched, so it can be watched again
    before, gone, _ = watch.add(closed=True)
    await watch.reports(one, one, before)
    assert near.recv(20) == gone.recv(20) == b"last words", "the bytes are not lost"


async def test_forgotten_peer_is_not_reported(watch: Watch) -> None:
    _, near, far = watch.add()
    for _ in range(2):
        watch.hangups.forget(near)
    far.close()
    await watch.reports()


async def test_peer_forgotten_by_another_callback_is_not_reported(watch: Watch) -> None:
    """Both hang up within one iteration of the loop, and the first callback closes the second socket."""
    pairs = [watch.add(), watch.add()]

    def hung_up(number: int) -> None:
        watch.reported.append(7)
        other, _ = watch.pairs[1 - number]
        watch.hangups.forget(other)
        other.close()

    watch.hung_up = hung_up  # type: ignore[method-assign]
    for _, _, far in pairs:
        far.close()
    await watch.reports(7)


async def test_reused_descriptor_is_another_socket(watch: Watch) -> None:
    first, near, far = watch.add()
    far.close()
    await watch.reports(first)
    watch.hangups.forget(near)
    descriptor = near.fileno()
    near.close()
    second, near, far = watch.add()
    assert near.fileno() == descriptor
    await watch.reports(first)
    far.close()
    await watch.reports(first, second)
