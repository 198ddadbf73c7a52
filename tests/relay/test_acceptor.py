"""Accepting: every connection is passed on; a lack of descriptors pauses and recovers (fault matrix P8)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.relay import acceptor
from tests.fakes.descriptors import no_descriptors
from tests.patience import until


class Rig:
    """An acceptor on a socket to which three clients have connected."""

    def __init__(self, path: str) -> None:
        self.sockets = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        listener, *clients = self.sockets
        listener.bind(path)
        listener.listen(16)
        listener.setblocking(False)
        for client in clients:
            client.connect(path)
        self.accepted: list[socket.socket] = []
        self.acceptor = acceptor.Acceptor(asyncio.get_running_loop(), listener, self.accepted.append)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(acceptor, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(acceptor, "BATCH", 2)
    made = Rig(str(tmp_path / "l.sock"))
    yield made
    for sock in made.sockets + made.accepted:
        sock.close()


async def test_accept_pauses_after_each_shortage_of_descriptors(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with no_descriptors():
        rig.acceptor.start()
        await until(lambda: len(caplog.records) == 2)
    assert not rig.accepted
    assert caplog.records[1].created - caplog.records[0].created >= 0.01
    await until(lambda: len(rig.accepted) == 3)
    rig.acceptor.stop()


async def test_stop_during_pause_accepts_no_more(rig: Rig) -> None:
    with no_descriptors():
        rig.acceptor.accept()
    rig.acceptor.stop()
    await asyncio.sleep(0.05)
    assert not rig.accepted


async def test_accept_is_limited_to_one_batch(rig: Rig) -> None:
    counts = []
    for _ in range(3):
        rig.acceptor.accept()
        counts.append(len(rig.accepted))
    assert counts == [2, 3, 3]
