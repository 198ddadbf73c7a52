"""The admin server as a process of the daemon: when it starts, how it ends, what each of both survives of the other."""

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.proxy import PROGRAM, ROOT, ProxyProcess, wait_until

pytestmark = pytest.mark.slow

NOBODY = 65534


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: Path, target: str) -> tuple[int, str]:
    """Return status and body of a GET."""
    with contextlib.closing(UnixConnection(path)) as connection:
        connection.request("GET", target)
        found = connection.getresponse()
        return found.status, found.read().decode()


def servers(pid: int) -> list[int]:
    """Return the ids of the admin servers of a daemon."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"runtimeproxy.admin" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    """Yield a running proxy with both sockets; it must end without a fault in its log."""
    with ProxyProcess(tmp_path, metrics_endpoint=str(tmp_path / "m" / "metrics.sock")) as started:
        yield started


def test_first_connection_starts_the_process_and_the_end_takes_it_along(tmp_path: Path) -> None:
    metrics = tmp_path / "m" / "metrics.sock"
    with ProxyProcess(tmp_path, metrics_endpoint=str(metrics)) as proxy:
        assert servers(proxy.pid) == []
        assert ask(proxy.admin, "/livez") == (200, "ok")
        (server,) = servers(proxy.pid)
        status, text = ask(metrics, "/metrics")
        assert (status, "\nruntimeproxy_connections_open 0.0\n" in text) == (200, True)
        assert ask(metrics, "/version")[0] == 404
        assert json.loads(ask(proxy.admin, "/version")[1])["pid"] == proxy.pid
        assert servers(proxy.pid) == [server]
    assert not Path(f"/proc/{server}").exists()
    assert not proxy.admin.exists()
    assert not metrics.exists()


def test_server_that_dies_is_started_by_the_next_request(proxy: ProxyProcess) -> None:
    assert ask(proxy.admin, "/livez")[0] == 200
    (first,) = servers(proxy.pid)
    os.kill(first, signal.SIGKILL)
    proxy.wait_for_log("the admin server ended (exit code -9); the next request starts it again")
    assert servers(proxy.pid) == []
    assert ask(proxy.admin, "/livez") == (200, "ok")
    assert first not in servers(proxy.pid)


def test_server_ends_with_a_daemon_that_is_killed(proxy: ProxyProcess) -> None:
    assert ask(proxy.admin, "/livez")[0] == 200
    (server,) = servers(proxy.pid)
    proxy.kill()
    wait_until(lambda: not Path(f"/proc/{server}").exists() or not alive(server), "the server ends")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_server_is_left_by_the_signals_that_end_a_proxy(proxy: ProxyProcess) -> None:
    assert ask(proxy.admin, "/livez")[0] == 200
    (server,) = servers(proxy.pid)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(server, number)
    assert ask(proxy.admin, "/livez")[0] == 200
    assert servers(proxy.pid) == [server]


def test_daemon_does_not_wait_for_a_server_that_hangs(proxy: ProxyProcess) -> None:
    assert ask(proxy.admin, "/livez")[0] == 200
    (server,) = servers(proxy.pid)
    os.kill(server, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(proxy.socket))  # calls go on
    began = time.monotonic()
    proxy.stop()
    assert time.monotonic() - began < 8
    assert not Path(f"/proc/{server}").exists()


def test_daemon_that_hangs_is_told_within_a_second_or_so(proxy: ProxyProcess) -> None:
    assert ask(proxy.admin, "/livez")[0] == 200
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        status, text = ask(proxy.admin, "/livez")
        assert (status, "[-]loop failed: the proxy did not answer within 1 s" in text) == (503, True)
        assert ask(proxy.admin, "/version")[0] == 503
    finally:
        os.kill(proxy.pid, signal.SIGCONT)
    assert ask(proxy.admin, "/livez") == (200, "ok")


def rights(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


def test_admin_socket_is_the_owners_alone_whatever_the_socket_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with ProxyProcess(tmp_path, socket_mode="0666", socket_group=str(os.getgid())) as proxy:
        assert rights(proxy.socket)[0] == 0o666
        assert rights(proxy.admin)[:2] == (0o600, os.geteuid())


GROUPS = [(None, 0o600), ("12345" if os.geteuid() == 0 else str(os.getegid()), 0o660)]


@pytest.mark.parametrize(("group", "mode"), GROUPS)
def test_metrics_socket_is_for_its_group_if_it_has_one(tmp_path: Path, group: str | None, mode: int) -> None:
    metrics = tmp_path / "m" / "metrics.sock"
    more: dict[str, Any] = {} if group is None else {"metrics_group": group}
    with ProxyProcess(tmp_path, metrics_endpoint=str(metrics), **more):
        assert rights(metrics)[0] == mode
        assert rights(metrics.parent)[0] == (0o700 if group is None else 0o750)
        if group is not None:
            assert rights(metrics)[2] == rights(metrics.parent)[2] == int(group)


_CONNECT = """
import os, socket, sys
path, group = sys.argv[1:]
os.setgroups([int(group)])
os.setgid(65534)
os.setuid(65534)
print(socket.socket(socket.AF_UNIX).connect_ex(path))
"""


def connected_as_nobody(path: Path, group: int = NOBODY) -> int:
    """Return the error number of connecting as a user without rights, who is in a group."""
    run = subprocess.run(
        [sys.executable, "-c", _CONNECT, str(path), str(group)], capture_output=True, text=True, check=True, timeout=30
    )
    return int(run.stdout)


@pytest.mark.engine
def test_other_user_is_let_to_the_metrics_of_the_group_only() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to others
        os.chmod(folder, 0o755)
        metrics = Path(folder, "m", "metrics.sock")
        with ProxyProcess(
            Path(folder), socket_mode="0666", metrics_endpoint=str(metrics), metrics_group="12345"
        ) as proxy:
            assert connected_as_nobody(proxy.socket) == 0
            assert connected_as_nobody(proxy.admin) == errno.EACCES
            assert connected_as_nobody(proxy.admin, 12345) == errno.EACCES
            assert connected_as_nobody(metrics) == errno.EACCES
            assert connected_as_nobody(metrics, 12345) == 0


def test_without_the_endpoint_there_is_no_socket(tmp_path: Path) -> None:
    with ProxyProcess(tmp_path, admin_endpoint="none") as proxy:
        assert [path.name for path in tmp_path.glob("*.sock")] == [proxy.socket.name]


def test_two_proxies_of_one_directory_need_two_admin_sockets(tmp_path: Path) -> None:
    with ProxyProcess(tmp_path) as first:
        second = ProxyProcess(tmp_path, koord_runtimeproxy_endpoint=str(tmp_path / "second.sock"))
        second.launch()
        second.wait_for_log(f"listens on {first.admin}, or still finishes calls and holds")
        wait_until(lambda: second.ended, "the second one ends")
        assert second.output().count("choose another --admin-endpoint") == 1
        assert not (tmp_path / "second.sock").exists()
        third = ProxyProcess(tmp_path, koord_runtimeproxy_endpoint=str(tmp_path / "second.sock"), admin_endpoint="none")
        with third:
            assert ask(first.admin, "/livez")[0] == 200


SUPERVISED = 'exec 103<&"$1" 104<&"$2"; shift 2; exec 3<&103 4<&104 103<&- 104<&-; LISTEN_PID=$$ exec "$@"'


def test_sockets_that_systemd_hands_over_are_served_and_stay(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        held = []
        for name in ("given-admin.sock", "given.sock"):
            held.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            held[-1].bind(str(tmp_path / name))
            os.chmod(tmp_path / name, 0o600)
            held[-1].listen()
            os.set_inheritable(held[-1].fileno(), True)
        descriptors = [sock.fileno() for sock in held]
        program = ["bash", "-c", SUPERVISED, "supervisor", *map(str, descriptors), *PROGRAM]
        environment = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "admin:runtimeproxy"}
        with ProxyProcess(tmp_path, program=program, pass_fds=descriptors, environment=environment) as proxy:
            assert ask(tmp_path / "given-admin.sock", "/livez") == (200, "ok")
            assert not proxy.admin.exists()
            assert "listening on " + str(tmp_path / "given.sock") in proxy.output()
        assert (tmp_path / "given-admin.sock").exists()


def test_daemon_imports_nothing_that_the_server_needs() -> None:
    program = (
        "import sys, runtimeproxy.app, runtimeproxy.cri.front;"
        "sys.exit(' '.join({'aiohttp', 'prometheus_client', 'runtimeproxy.admin.server'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
