"""Connecting: a connection is one, a full backlog is waited for, nobody there is told at once (relay-rules A12)."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.relay.dial import dial, dial_now


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "l.sock"))
    sock.listen(0)
    yield sock
    sock.close()


def fill_backlog(path: str) -> list[socket.socket]:
    """Connect until the listener takes no more."""
    kept = []
    while (sock := dial_now(path)) is not None:
        kept.append(sock)
    return kept


async def test_it_connects(listener: socket.socket) -> None:
    with await dial(listener.getsockname(), 1) as near, listener.accept()[0] as far:
        far.sendall(b"hello")
        assert near.recv(5) == b"hello"


async def test_a_full_backlog_is_waited_for(listener: socket.socket) -> None:
    path = listener.getsockname()
    kept = fill_backlog(path)
    waiting = asyncio.create_task(dial(path, 5))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    accepted = [listener.accept()[0] for _ in kept]
    near = await waiting
    far = listener.accept()[0]
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    for sock in [*kept, *accepted, near, far]:
        sock.close()


async def test_a_backlog_that_stays_full_ends_at_the_time(listener: socket.socket) -> None:
    kept = fill_backlog(listener.getsockname())
    with pytest.raises(TimeoutError):
        await dial(listener.getsockname(), 0.03)
    for sock in kept:
        sock.close()


@pytest.mark.parametrize("left", ["nothing", "a dead socket"])
async def test_nobody_there_is_told_at_once(tmp_path: Path, left: str) -> None:
    path = tmp_path / "none.sock"
    if left == "a dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    began = time.monotonic()
    with pytest.raises(FileNotFoundError if left == "nothing" else ConnectionRefusedError):
        await dial(str(path), 5)
    assert time.monotonic() - began < 1
