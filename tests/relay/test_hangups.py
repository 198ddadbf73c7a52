"""Hang-ups on real socket pairs: a half-close is not one (relay-rules B1)."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.relay.hangups import Hangups
from tests.patience import until


@pytest.fixture
async def hangups() -> AsyncIterator[Hangups]:
    made = Hangups(asyncio.get_running_loop())
    yield made
    made.close()


@pytest.fixture
def reported() -> list[str]:
    return []


async def settled(reported: list[str], *names: str) -> None:
    """Wait until these hang-ups are reported, and check that no others are."""
    await until(lambda: reported == list(names))
    await asyncio.sleep(0.01)
    assert reported == list(names)


async def test_close_is_reported_once_and_half_close_is_not(hangups: Hangups, reported: list[str]) -> None:
    near, far = socket.socketpair()
    with near:
        hangups.watch(near, lambda: reported.append("first"))
        far.send(b"last words")
        far.shutdown(socket.SHUT_WR)
        await settled(reported)
        far.close()
        await settled(reported, "first")
        hangups.watch(near, lambda: reported.append("again"))  # it was no longer watched
        await settled(reported, "first", "again")
        assert near.recv(20) == b"last words", "the bytes are not lost"


async def test_reused_descriptor_is_watched_as_new_socket(hangups: Hangups, reported: list[str]) -> None:
    near, far = socket.socketpair()
    hangups.watch(near, lambda: reported.append("first"))
    for _ in range(2):
        hangups.forget(near)
    descriptor = near.fileno()
    near.close()
    far.close()
    near, far = socket.socketpair()
    with near:
        assert near.fileno() == descriptor
        hangups.watch(near, lambda: reported.append("second"))
        await settled(reported)
        far.close()
        await settled(reported, "second")


async def test_peer_forgotten_by_earlier_callback_is_not_reported(hangups: Hangups, reported: list[str]) -> None:
    """Both hang up within one iteration of the loop, and the first callback closes the second socket."""
    pairs = [socket.socketpair() for _ in range(2)]

    def hung_up(second: socket.socket) -> None:
        reported.append("one of both")
        hangups.forget(second)
        second.close()

    for number, (near, _) in enumerate(pairs):
        hangups.watch(near, lambda second=pairs[1 - number][0]: hung_up(second))  # type: ignore[misc]
    for _, far in pairs:
        far.close()
    await settled(reported, "one of both")
    for near, _ in pairs:
        near.close()
