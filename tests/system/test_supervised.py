"""What a supervisor sees: readiness behind the socket, a beat as long as the loop turns, the end.

That is fault matrix P7, X7.
"""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.fronts import Front
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers

pytestmark = pytest.mark.slow

BEAT_SECONDS = 0.1
STALL_SECONDS = 1.0
STALLING = f"""
import asyncio, sys, time
from runtimeproxy import app, cli

def hang(somebodys_secret):
    time.sleep({STALL_SECONDS})

app._settle_memory = lambda: asyncio.get_running_loop().call_later(0.5, hang, "hunter2")
sys.exit(cli.main())
"""
"""The program, whose loop hangs once, soon after its start."""


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(WAIT_SECONDS)
        self.environment = {
            "NOTIFY_SOCKET": str(path),
            "WATCHDOG_USEC": str(int(2 * BEAT_SECONDS * 1e6)),
        }

    def is_told(self) -> str:
        """Return the next thing it is told."""
        return self._socket.recv(100).decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


def process(front: Front, folder: Path, systemd: Systemd, program: tuple[str, ...] = PROGRAM) -> ProxyProcess:
    proxy = front.process(folder, program=program)
    proxy.environment |= systemd.environment
    return proxy


def test_ready_comes_behind_the_socket_and_the_beat_lasts_to_the_end(
    front: Front, tmp_path: Path, systemd: Systemd
) -> None:
    proxy = process(front, tmp_path, systemd)
    proxy.launch()
    assert systemd.is_told() == "READY=1"
    assert answers(proxy.socket)
    assert [systemd.is_told() for _ in range(3)] == ["WATCHDOG=1"] * 3
    proxy.stop()
    told = ""
    while told != "STOPPING=1":
        told = systemd.is_told()


def test_a_loop_that_hangs_is_told_with_its_place_and_does_not_beat(
    front: Front, tmp_path: Path, systemd: Systemd
) -> None:
    with process(front, tmp_path, systemd, (sys.executable, "-c", STALLING, "run")) as proxy:
        assert systemd.is_told() == "READY=1"
        longest, last = 0.0, time.monotonic()
        hung = " at <string>:6 hang\n"
        while "the event loop goes on" not in proxy.output().partition(hung)[2]:
            assert systemd.is_told() == "WATCHDOG=1"
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert longest > STALL_SECONDS / 2
        (line,) = (line for line in proxy.output().splitlines(keepends=True) if line.endswith(hung))
        assert "the event loop hangs" in line
        assert "hunter2" not in proxy.output()
