"""The installer on a machine with a real systemd and containerd: its units, its drop-in, its rollback.

The kubelet is a unit of kubeadm's form whose program queries the runtime and serves /healthz.
"""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_installer import kubelet, tree
from runtimeproxy_installer.errors import RolledBack
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.node import ENTER_COMMAND, Node
from runtimeproxy_installer.work import Work
from tests.deploy.installer.fakes import DROP_IN, SERVICE, archive, desired_state
from tests.machines.machine import Machine
from tests.machines.node import PYTHON

pytestmark = [pytest.mark.engine, pytest.mark.trees]

PROGRAM = f'#!/bin/sh\nLD_LIBRARY_PATH=/opt/python/lib exec {PYTHON} /usr/lib/kubelet.py "$@"\n'
KUBELET = """\
import os, socket, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
flag = "--container-runtime-endpoint=unix://"
[endpoint] = [a.removeprefix(flag) for a in sys.argv if a.startswith(flag)] or ["/run/containerd/containerd.sock"]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            socket.socket(socket.AF_UNIX).connect(endpoint)
            well = not (os.path.exists("/etc/sick") and "runtimeproxy" in endpoint)
        except OSError:
            well = False
        self.send_response(200 if well else 500)
        self.end_headers()

HTTPServer(("127.0.0.1", 10248), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def node(machine: Machine) -> Machine:
    """Return a machine with a kubelet and containerd, without our package."""
    units = "/usr/lib/systemd/system"
    machine.run("sh", "-c", f"rm -r {units}/runtimeproxy*; groupdel runtimeproxy-metrics")
    machine.write("/usr/lib/kubelet.py", KUBELET)
    machine.write("/usr/bin/kubelet", PROGRAM, 0o755)
    machine.write(f"{units}/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n")
    kubeadm = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS \\\n    $KUBELET_EXTRA_ARGS\n"
    machine.write(f"{units}/kubelet.service.d/10-kubeadm.conf", kubeadm)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "containerd.service", "kubelet.service")
    machine.until(lambda: healthz(machine) == "", "the kubelet")
    return machine


def healthz(machine: Machine) -> str:
    url = "http://127.0.0.1:10248/healthz"
    code = machine.run("curl", "--silent", "--write-out", "%{http_code}", url, check=False)
    return "" if code == "200" else f"it answers {code}"


def work(node: Machine, folder: Path, version: str, patch: pytest.MonkeyPatch, **changed: Any) -> Work:
    programs = {name: node.path(f"/usr/bin/{name}").read_text() for name in ("runtimeproxy", "koord-runtime-proxy")}
    desired = desired_state(archive(folder, version, programs), healthz_port=10248, **changed)
    patch.setattr(kubelet, "healthz", lambda port: healthz(node))
    patch.setattr(kubelet, "WATCH_SECONDS", 2.0)
    patch.setattr(kubelet, "HEALTHY_SECONDS", 0.5)
    local = Node(node.root, (*node.enter(), *ENTER_COMMAND[ENTER_COMMAND.index("env") :]))
    reported = Kubelet("v1.31.2", "Containerd", ready=True)
    return Work(local, desired, reported, lambda: None, lambda: True, archives=folder)


def command(node: Machine) -> str:
    """Return the kubelet's command line."""
    pid = node.show("kubelet.service", "MainPID")
    return node.path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def processes(node: Machine) -> tuple[str, ...]:
    units = (SERVICE, "kubelet.service", "containerd.service")
    return (*(node.show(unit, "MainPID") for unit in units), node.show("runtimeproxy.socket", "ActiveEnterTimestamp"))


def is_clean(node: Machine) -> bool:
    """Return whether the node has no file of the proxy except its tree."""
    assert "runtimeproxy" not in command(node)
    assert healthz(node) == ""
    assert not node.path(DROP_IN).exists()
    assert {node.show(unit, "ActiveState") for unit in (SERVICE, "runtimeproxy.socket")} == {"inactive"}
    assert node.run("find", "/etc/systemd/system", "/usr/local/bin", "-lname", "*runtimeproxy*") == ""
    return "runtimeproxy" not in node.run("systemctl", "list-timers", "--all", "--no-legend")


def test_install_upgrade_and_removal_on_real_systemd(
    node: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert work(node, tmp_path, "0.2.0", monkeypatch, configure_kubelet=True).install() == "0.2.0"
    assert node.show(SERVICE, "ActiveState") == "active"
    assert node.show("runtimeproxy-metrics.socket", "SocketGroup") == "runtimeproxy-metrics"
    assert node.run("/usr/local/bin/runtimeproxy", "status").startswith("ready")
    assert "--container-runtime-endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock" in command(node)
    proxy, *unchanged = processes(node)
    assert work(node, tmp_path, "0.3.0", monkeypatch, configure_kubelet=True).install() == "0.3.0"
    upgraded, *after_upgrade = processes(node)
    assert tree.running(Node(node.root))[1] == "0.3.0"
    assert (upgraded != proxy, after_upgrade) == (True, unchanged)
    work(node, tmp_path, "0.3.0", monkeypatch, action="uninstall").uninstall()
    assert is_clean(node)
    assert node.run("ls", "-A", "/run/systemd/transient") == ""
    assert node.run("find", "/etc/systemd/system", "-type", "d", "-name", "*.d", "-empty") == ""
    assert not node.path(tree.TREES).exists()
    assert processes(node)[2] == unchanged[1]


def test_unhealthy_kubelet_gets_old_command_back(
    node: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write("/etc/sick", "")
    with pytest.raises(RolledBack, match="did not become healthy"):
        work(node, tmp_path, "0.2.0", monkeypatch, configure_kubelet=True).install()
    node.run("rm", "/etc/sick")
    assert is_clean(node)
