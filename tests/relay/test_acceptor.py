"""Accepting: every connection is handed on; running out of descriptors pauses and recovers (fault matrix P8)."""

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.relay import acceptor as acceptor_module
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.relay.dial import dial_now


class ScarceListener:
    """A listening socket whose accept fails for want of descriptors a few times; ``failed`` is called each time."""

    def __init__(self, real: socket.socket, failures: int, failed: Callable[[], object] = lambda: None) -> None:
        self._real = real
        self._failed = failed
        self.failures = failures

    def fileno(self) -> int:
        return self._real.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            self._failed()
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()


@pytest.mark.parametrize("failures", [0, 2])
async def test_connections_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    monkeypatch.setattr(acceptor_module, "PAUSE_SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX) as real:
        real.bind(str(tmp_path / "l.sock"))
        real.listen(16)
        real.setblocking(False)
        listener = ScarceListener(real, failures)
        accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
        acceptor = Acceptor(asyncio.get_running_loop(), listener, accepted.put_nowait)  # type: ignore[arg-type]
        acceptor.start()
        clients = [dial_now(str(tmp_path / "l.sock")) for _ in range(3)]
        async with asyncio.timeout(20):
            taken = [await accepted.get() for _ in clients]
        acceptor.stop()
        assert listener.failures == 0
        for sock in [*clients, *taken]:
            assert sock is not None
            sock.close()


async def test_stopping_in_the_pause_accepts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "PAUSE_SECONDS", 0.02)
    with socket.socket(socket.AF_UNIX) as real:
        real.bind(str(tmp_path / "l.sock"))
        real.listen(16)
        real.setblocking(False)
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def stop() -> None:
            acceptor.stop()
            stopped.set()

        # In the loop's next turn: however long the machine takes for it, the pause's end comes behind.
        listener = ScarceListener(real, 1, lambda: loop.call_soon(stop))
        accepted: list[socket.socket] = []
        acceptor = Acceptor(loop, listener, accepted.append)  # type: ignore[arg-type]
        acceptor.start()
        client = dial_now(str(tmp_path / "l.sock"))
        await asyncio.wait_for(stopped.wait(), 20)
        await asyncio.sleep(0.05)
        assert not accepted
        assert client is not None
        client.close()


async def test_who_waits_is_accepted_at_once_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "BATCH", 2)
    with socket.socket(socket.AF_UNIX) as real:
        real.bind(str(tmp_path / "l.sock"))
        real.listen(16)
        real.setblocking(False)
        accepted: list[socket.socket] = []
        acceptor = Acceptor(asyncio.get_running_loop(), real, accepted.append)
        clients = [dial_now(str(tmp_path / "l.sock")) for _ in range(3)]
        counts = []
        for _ in range(3):
            acceptor.accept()
            counts.append(len(accepted))
        assert counts == [2, 3, 3]
        for sock in [*clients, *accepted]:
            assert sock is not None
            sock.close()
