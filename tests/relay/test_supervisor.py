"""What systemd is told: ready, alive, stopping (fault matrix P7, X7)."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.relay.supervisor import Supervisor
from tests.fakes.descriptors import no_descriptors

BEAT_USEC = "40000"


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Return a socket as systemd has it, and its name in NOTIFY_SOCKET."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}" if request.param == "abstract" else name)
        sock.setblocking(False)
        yield sock, f"@{name}" if request.param == "abstract" else name


def told(sock: socket.socket) -> list[bytes]:
    """Return what came."""
    found = []
    while True:
        try:
            found.append(sock.recv(100))
        except BlockingIOError:
            return found


async def until_alive(sock: socket.socket) -> None:
    """Wait for one more beat."""
    async with asyncio.timeout(20):
        assert await asyncio.get_running_loop().sock_recv(sock, 100) == b"WATCHDOG=1"


async def test_it_is_told_of_the_beginning_and_the_end(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    environ = {"NOTIFY_SOCKET": name, "OTHER": "1"}
    supervisor = Supervisor(environ)
    assert environ == {"OTHER": "1"}
    assert told(sock) == []
    supervisor.ready(asyncio.get_running_loop())
    supervisor.stopping()
    supervisor.leave()
    await asyncio.sleep(0.05)
    assert told(sock) == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("pid", [None, str(os.getpid())], ids=["anybody", "us"])
async def test_loop_tells_that_it_lives(systemd: tuple[socket.socket, str], pid: str | None) -> None:
    sock, name = systemd
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": BEAT_USEC} | ({} if pid is None else {"WATCHDOG_PID": pid})
    supervisor = Supervisor(environ)
    assert environ == {}
    supervisor.ready(asyncio.get_running_loop())
    assert told(sock) == [b"READY=1", b"WATCHDOG=1"]
    for _ in range(3):
        await until_alive(sock)
    supervisor.stopping()
    assert told(sock)[-1:] == [b"STOPPING=1"]
    await until_alive(sock)
    supervisor.leave()
    told(sock)
    await asyncio.sleep(0.05)
    assert told(sock) == []


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": BEAT_USEC, "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "²"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": ""},
    ],
    ids=str,
)
async def test_nobody_waits_for_a_beat(systemd: tuple[socket.socket, str], environ: dict[str, str]) -> None:
    sock, name = systemd
    supervisor = Supervisor({"NOTIFY_SOCKET": name} | environ)
    supervisor.ready(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    assert told(sock) == [b"READY=1"]
    supervisor.leave()


async def test_without_a_supervisor_nothing_is_told(tmp_path: Path) -> None:
    for environ in ({}, {"WATCHDOG_USEC": BEAT_USEC}, {"NOTIFY_SOCKET": str(tmp_path / "nobody")}):
        supervisor = Supervisor(environ)
        supervisor.ready(asyncio.get_running_loop())
        supervisor.stopping()
        supervisor.leave()


async def test_one_that_does_not_read_costs_nothing(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    supervisor = Supervisor({"NOTIFY_SOCKET": name})
    for _ in range(2000):  # far more than a socket keeps
        supervisor.stopping()
    assert 0 < len(told(sock)) < 2000
    supervisor.leave()


async def test_without_a_descriptor_left_it_is_told_as_before(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    supervisor = Supervisor({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": BEAT_USEC})
    supervisor.ready(asyncio.get_running_loop())
    told(sock)
    with no_descriptors():
        for _ in range(3):
            await until_alive(sock)
        supervisor.stopping()
        assert told(sock)[-1:] == [b"STOPPING=1"]
    supervisor.leave()


async def test_beat_begins_once_there_is_a_descriptor(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    supervisor = Supervisor({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": BEAT_USEC})
    with no_descriptors():
        supervisor.ready(asyncio.get_running_loop())
    assert told(sock) == []
    await until_alive(sock)
    supervisor.leave()
