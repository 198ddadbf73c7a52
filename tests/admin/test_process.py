"""The admin and metrics sockets of the daemon: their permissions, their methods, and their removal."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin.protocol import Refused, request
from tests.control import call
from tests.system.proxy import ProxyProcess, handed_over

pytestmark = pytest.mark.slow

NOBODY = 65534
WELL = {"checks": [{"name": "loop", "state": "ok", "reason": ""}], "schemaVersion": 1}


def rights(path: Path) -> tuple[int, int]:
    """Return mode and group."""
    return stat.S_IMODE(path.lstat().st_mode), path.lstat().st_gid


GROUPS = [(None, 0o600, 0o700), ("12345" if os.geteuid() == 0 else str(os.getegid()), 0o660, 0o750)]


@pytest.mark.parametrize(("group", "mode", "directory_mode"), GROUPS)
def test_daemon_serves_both_sockets_with_own_rights(
    tmp_path: Path, group: str | None, mode: int, directory_mode: int
) -> None:
    tmp_path.chmod(0o755)
    metrics = tmp_path / "m" / "metrics.sock"
    flags: dict[str, Any] = {} if group is None else {"metrics_group": group}
    flags |= {"socket_mode": "0666", "socket_group": str(os.getgid()), "metrics_endpoint": str(metrics)}
    with contextlib.ExitStack() as clients, ProxyProcess(tmp_path, **flags) as proxy:
        assert (rights(proxy.socket)[0], rights(proxy.admin)[0]) == (0o666, 0o600)
        assert proxy.admin.lstat().st_uid == os.geteuid()
        assert (rights(metrics)[0], rights(metrics.parent)[0]) == (mode, directory_mode)
        if group is not None:
            assert rights(metrics)[1] == rights(metrics.parent)[1] == int(group)
        assert call(proxy.admin, "livez") == call(metrics, "livez") == WELL
        assert ["connections_open", [], 0] in call(metrics, "metrics")["values"]
        with pytest.raises(Refused, match="no such method; there are metrics, livez, readyz"):
            call(metrics, "version")
        assert call(proxy.admin, "version")["pid"] == proxy.pid
        assert Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text() == ""
        for octets in (b"", b"{", request("events", {"follow": True})):  # the end does not wait for them
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(proxy.admin))
            client.sendall(octets)
    assert not proxy.admin.exists()
    assert not metrics.exists()


def test_systemd_admin_socket_is_served_and_not_removed(tmp_path: Path) -> None:
    given = tmp_path / "given.sock"
    with handed_over(given) as handed:
        given.chmod(0o600)
        with ProxyProcess(tmp_path, **handed, environment={"LISTEN_FDNAMES": "admin"}) as proxy:
            assert call(given, "livez") == WELL
            assert not proxy.admin.exists()
        assert given.exists()


_CONNECT = """
import os, socket, sys
path, group = sys.argv[1:]
os.setgroups([int(group)])
os.setgid(65534)
os.setuid(65534)
print(socket.socket(socket.AF_UNIX).connect_ex(path))
"""


@pytest.mark.engine
def test_metrics_socket_admits_its_group_only() -> None:
    def connected_as_nobody(path: Path, group: int = NOBODY) -> int:
        return int(subprocess.check_output([sys.executable, "-c", _CONNECT, str(path), str(group)], timeout=30))

    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to users without rights
        os.chmod(folder, 0o755)
        metrics = Path(folder, "m", "metrics.sock")
        flags = {"socket_mode": "0666", "metrics_endpoint": str(metrics), "metrics_group": "12345"}
        with ProxyProcess(Path(folder), **flags) as proxy:
            assert connected_as_nobody(proxy.socket) == 0
            for path, group in ((proxy.admin, NOBODY), (proxy.admin, 12345), (metrics, NOBODY)):
                assert connected_as_nobody(path, group) == errno.EACCES
            assert connected_as_nobody(metrics, 12345) == 0
