"""Accepting: every connection is passed on; a lack of descriptors pauses and recovers (fault matrix P8)."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.relay import acceptor
from tests.patience import until


class Listener:
    """A listening socket whose accept fails ``failures`` times; ``failed`` is called each time."""

    def __init__(self, path: str) -> None:
        self.real = socket.socket(socket.AF_UNIX)
        self.real.bind(path)
        self.real.listen(16)
        self.real.setblocking(False)
        self.failures = 0
        self.failed: Callable[[], object] = int
        self.sockets = [self.real]
        self.accepted: list[socket.socket] = []

    def fileno(self) -> int:
        return self.real.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            self.failed()
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()

    def connect(self, clients: int) -> acceptor.Acceptor:
        """Connect clients; return an acceptor for them."""
        for _ in range(clients):
            self.sockets.append(socket.socket(socket.AF_UNIX))
            self.sockets[-1].connect(self.real.getsockname())
        return acceptor.Acceptor(asyncio.get_running_loop(), self, self.accepted.append)  # type: ignore[arg-type]


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(acceptor, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(acceptor, "BATCH", 2)
    made = Listener(str(tmp_path / "l.sock"))
    yield made
    for sock in made.sockets + made.accepted:
        sock.close()


@pytest.mark.parametrize("failures", [0, 2])
async def test_connections_are_accepted_after_a_pause_per_failure(listener: Listener, failures: int) -> None:
    loop, failed = asyncio.get_running_loop(), list[float]()
    listener.failures, listener.failed = failures, lambda: failed.append(loop.time())
    accepting = listener.connect(3)
    accepting.start()
    await until(lambda: len(listener.accepted) == 3)
    accepting.stop()
    assert listener.failures == 0
    assert not failed or failed[1] - failed[0] >= 0.01


async def test_stop_during_the_pause_accepts_no_more(listener: Listener) -> None:
    accepting, stopped = listener.connect(1), asyncio.Event()
    loop = asyncio.get_running_loop()
    # In the loop's next iteration: however long the machine takes for it, the pause ends after it.
    listener.failures, listener.failed = 1, lambda: loop.call_soon(lambda: (accepting.stop(), stopped.set()))
    accepting.start()
    await asyncio.wait_for(stopped.wait(), 20)
    await asyncio.sleep(0.05)
    assert not listener.accepted


async def test_accept_takes_one_batch_of_waiting_clients(listener: Listener) -> None:
    accepting, counts = listener.connect(3), []
    for _ in range(3):
        accepting.accept()
        counts.append(len(listener.accepted))
    assert counts == [2, 3, 3]
