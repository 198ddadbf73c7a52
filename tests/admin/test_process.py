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
from tests.system.proxy import ProxyProcess, wait_until

pytestmark = pytest.mark.slow

NOBODY = 65534
WELL = {"checks": [{"name": "loop", "state": "ok", "reason": ""}], "schemaVersion": 1}


def test_daemon_serves_both_sockets_itself(tmp_path: Path) -> None:
    metrics = tmp_path / "m" / "metrics.sock"
    with contextlib.ExitStack() as clients, ProxyProcess(tmp_path, metrics_endpoint=str(metrics)) as proxy:
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


def rights(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


GROUPS = [(None, 0o600, 0o700), ("12345" if os.geteuid() == 0 else str(os.getegid()), 0o660, 0o750)]


@pytest.mark.parametrize(("group", "mode", "directory_mode"), GROUPS)
def test_admin_and_metrics_sockets_have_their_own_rights(
    tmp_path: Path, group: str | None, mode: int, directory_mode: int
) -> None:
    tmp_path.chmod(0o755)
    metrics = tmp_path / "m" / "metrics.sock"
    more: dict[str, Any] = {} if group is None else {"metrics_group": group}
    wide = {"socket_mode": "0666", "socket_group": str(os.getgid())}
    with ProxyProcess(tmp_path, metrics_endpoint=str(metrics), **wide, **more) as proxy:
        assert rights(proxy.socket)[0] == 0o666
        assert rights(proxy.admin)[:2] == (0o600, os.geteuid())
        assert (rights(metrics)[0], rights(metrics.parent)[0]) == (mode, directory_mode)
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
    """Return the error number of connecting as a user without rights, with a supplementary group."""
    return int(subprocess.check_output([sys.executable, "-c", _CONNECT, str(path), str(group)], timeout=30))


@pytest.mark.engine
def test_metrics_socket_admits_its_group_only() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to users without rights
        os.chmod(folder, 0o755)
        metrics = Path(folder, "m", "metrics.sock")
        flags = {"socket_mode": "0666", "metrics_endpoint": str(metrics), "metrics_group": "12345"}
        with ProxyProcess(Path(folder), **flags) as proxy:
            assert connected_as_nobody(proxy.socket) == 0
            for path, group in ((proxy.admin, NOBODY), (proxy.admin, 12345), (metrics, NOBODY)):
                assert connected_as_nobody(path, group) == errno.EACCES
            assert connected_as_nobody(metrics, 12345) == 0


def test_second_proxy_needs_its_own_admin_socket(tmp_path: Path) -> None:
    with ProxyProcess(tmp_path) as first:
        second = ProxyProcess(tmp_path, koord_runtimeproxy_endpoint=str(tmp_path / "second.sock"))
        second.launch()
        second.wait_for_log(f"listens on {first.admin}, or still finishes calls and holds")
        wait_until(lambda: second.ended, "the second proxy ends")
        assert second.output().count("choose another --admin-endpoint") == 1
        assert not (tmp_path / "second.sock").exists()
        third = ProxyProcess(tmp_path, koord_runtimeproxy_endpoint=str(tmp_path / "second.sock"), admin_endpoint="none")
        with third:
            assert call(first.admin, "livez") == WELL
