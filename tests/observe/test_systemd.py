"""The messages to systemd: ready, alive, stopping (fault matrix P7, X7)."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.observe.systemd import STATUS_SECONDS, SystemdNotifier
from tests.fakes.clock import virtual_time
from tests.fakes.descriptors import no_descriptors
from tests.patience import read

BEAT_USEC = "40000"
SERVING = b"STATUS=serving"


class Systemd:
    def __init__(self, path: str, abstract: bool) -> None:
        self.name = f"@{path}" if abstract else path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{path}" if abstract else path)
        self.socket.setblocking(False)

    def received(self) -> list[bytes]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(100))
            except BlockingIOError:
                return messages

    def supervisor(self, status: Callable[[], str] = lambda: "serving", **variables: str) -> SystemdNotifier:
        environ = {"NOTIFY_SOCKET": self.name, "OTHER": "1", **variables}
        made = SystemdNotifier(environ, status)
        assert environ == {"OTHER": "1"}
        return made


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(str(tmp_path / "notify"), request.param == "abstract")
    yield made
    made.socket.close()


NO_BEAT = [{}, {"WATCHDOG_USEC": BEAT_USEC, "WATCHDOG_PID": "1"}]
NO_BEAT += [{"WATCHDOG_USEC": interval} for interval in ("soon", "²", "0", "")]


@pytest.mark.parametrize("watchdog", NO_BEAT, ids=str)
async def test_ready_and_stopping_are_sent_without_beat(systemd: Systemd, watchdog: dict[str, str]) -> None:
    supervisor = systemd.supervisor(**watchdog)
    assert systemd.received() == []
    supervisor.ready(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    supervisor.stopping()
    supervisor.leave()
    assert systemd.received() == [b"READY=1", SERVING, b"STOPPING=1"]


@pytest.mark.parametrize("pid", [{}, {"WATCHDOG_PID": str(os.getpid())}], ids=["anybody", "us"])
async def test_watchdog_is_notified_until_exit(systemd: Systemd, pid: dict[str, str]) -> None:
    """The beat begins when a descriptor is available."""
    without = systemd.supervisor(WATCHDOG_USEC=BEAT_USEC)
    with no_descriptors():
        without.ready(asyncio.get_running_loop())
    assert systemd.received() == []
    assert await read(systemd.socket) == b"WATCHDOG=1"
    without.leave()
    systemd.received()
    supervisor = systemd.supervisor(WATCHDOG_USEC=BEAT_USEC, **pid)
    supervisor.ready(asyncio.get_running_loop())
    assert systemd.received() == [b"READY=1", b"WATCHDOG=1", SERVING]
    with no_descriptors():
        for _ in range(3):
            assert await read(systemd.socket) == b"WATCHDOG=1"
        supervisor.stopping()
    assert systemd.received()[-1:] == [b"STOPPING=1"]
    assert await read(systemd.socket) == b"WATCHDOG=1"
    supervisor.leave()
    systemd.received()
    await asyncio.sleep(0.05)
    assert systemd.received() == []


@virtual_time
async def test_status_is_sent_when_changed(systemd: Systemd) -> None:
    words = ["serving, 3 hook servers"]
    supervisor = systemd.supervisor(lambda: words[-1])
    supervisor.ready(asyncio.get_running_loop())
    assert systemd.received() == [b"READY=1", b"STATUS=serving, 3 hook servers"]
    await asyncio.sleep(5 * STATUS_SECONDS)
    assert systemd.received() == []
    for number in range(100):
        words.append(f"draining: {number} calls")
        await asyncio.sleep(STATUS_SECONDS / 50)
    assert len(systemd.received()) == 2
    supervisor.leave()
    await asyncio.sleep(5 * STATUS_SECONDS)
    assert systemd.received() == []
    supervisor = systemd.supervisor()
    for _ in range(2000):  # far more than a socket's buffer
        supervisor.stopping()
    supervisor.ready(asyncio.get_running_loop())
    messages = systemd.received()
    assert (0 < len(messages) < 2000, SERVING in messages) == (True, False)
    await asyncio.sleep(STATUS_SECONDS)
    assert systemd.received() == [SERVING], "it is sent again when it was not accepted"
    supervisor.leave()
