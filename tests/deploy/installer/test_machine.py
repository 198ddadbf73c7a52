"""The installer on a machine with a real systemd and containerd: its units, its drop-in, its way back.

The kubelet is a unit of kubeadm's form whose program queries the runtime and serves /healthz.
"""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_installer import kubelet, tree
from runtimeproxy_installer.errors import RolledBack
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.node import ENTER, Node
from runtimeproxy_installer.work import Work
from tests.deploy.installer.fakes import DROP_IN, SERVICE, archive, wanted
from tests.machines.machine import Machine
from tests.machines.node import PYTHON

pytestmark = [pytest.mark.engine, pytest.mark.trees]

VARIABLES = {"LD_LIBRARY_PATH": "/opt/python/lib"}
UNIT = """\
[Service]
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS \\
    $KUBELET_EXTRA_ARGS
"""
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
QUERY = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:10248/healthz').status)"


@pytest.fixture(scope="module")
def node(machine: Machine) -> Machine:
    """Return a machine with a kubelet and containerd, and no package of ours."""
    machine.run("sh", "-c", "rm -r /usr/lib/systemd/system/runtimeproxy*; groupdel runtimeproxy-metrics")
    machine.write("/usr/lib/kubelet.py", KUBELET)
    machine.write("/usr/bin/kubelet", PROGRAM, 0o755)
    machine.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n")
    machine.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", UNIT)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "containerd.service", "kubelet.service")
    machine.until(lambda: healthz(machine) == "", "the kubelet")
    return machine


def healthz(machine: Machine) -> str:
    code = machine.run(PYTHON, "-c", QUERY, check=False, env=VARIABLES).strip()
    return "" if code == "200" else f"it answers {code[-40:]}"


@pytest.fixture
def folder(tmp_path: Path, node: Machine) -> Path:
    """Return where the archive is: its programs are the machine's."""
    return tmp_path / "archives"


def work(node: Machine, folder: Path, version: str, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Work:
    programs = {name: node.path(f"/usr/bin/{name}").read_text() for name in ("runtimeproxy", "koord-runtime-proxy")}
    sha256 = archive(folder, version, programs)
    monkeypatch.setattr(kubelet, "healthz", lambda port: healthz(node))
    monkeypatch.setattr(kubelet, "WATCH_SECONDS", 2.0)
    monkeypatch.setattr(kubelet, "WELL_SECONDS", 0.5)
    here = Node(node.root, (*node.enter(), *ENTER[ENTER.index("env") :]))
    wants = wanted(sha256, healthz_port=10248, **changed)
    reported = Kubelet("v1.31.2", "Containerd", ready=True)
    return Work(here, wants, reported, lambda: None, lambda: True, archives=folder)


def active(node: Machine, unit: str) -> bool:
    return node.show(unit, "ActiveState") == "active"


def queried(node: Machine) -> str:
    """Return the command that the kubelet runs with."""
    pid = node.show("kubelet.service", "MainPID")
    return node.path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def home(node: Machine) -> str:
    return tree.running(Node(node.root))[0]


def test_there_upgraded_and_away_again(node: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = node.show("containerd.service", "MainPID")
    assert work(node, folder, "0.2.0", monkeypatch, configure_kubelet=True).install() == "0.2.0"
    assert active(node, SERVICE)
    assert node.show("runtimeproxy-metrics.socket", "SocketGroup") == "runtimeproxy-metrics"
    assert node.run("/usr/local/bin/runtimeproxy", "status").startswith("ready")
    assert "--container-runtime-endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock" in queried(node)
    first, proxy, pid = home(node), node.show(SERVICE, "MainPID"), node.show("kubelet.service", "MainPID")

    socket = node.show("runtimeproxy.socket", "ActiveEnterTimestampMonotonic")
    assert work(node, folder, "0.3.0", monkeypatch, configure_kubelet=True).install() == "0.3.0"
    assert home(node) != first
    assert node.show(SERVICE, "MainPID") != proxy
    assert node.show("kubelet.service", "MainPID") == pid
    assert node.show("runtimeproxy.socket", "ActiveEnterTimestampMonotonic") == socket

    work(node, folder, "0.3.0", monkeypatch, action="uninstall").uninstall()
    assert "runtimeproxy" not in queried(node)
    assert not active(node, SERVICE)
    assert not active(node, "runtimeproxy.socket")
    assert node.run("ls", "-A", "/run/systemd/transient") == ""
    assert node.run("find", "/etc/systemd/system", "-type", "d", "-name", "*.d", "-empty") == ""
    assert not node.path(tree.TREES).exists()
    assert node.run("find", "/etc/systemd/system", "/usr/local/bin", "-lname", "*runtimeproxy*") == ""
    assert node.show("containerd.service", "MainPID") == containerd


def test_a_kubelet_that_is_sick_with_it_goes_back(node: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write("/etc/sick", "")
    with pytest.raises(RolledBack, match="did not become healthy"):
        work(node, folder, "0.2.0", monkeypatch, configure_kubelet=True).install()
    node.run("rm", "/etc/sick")
    assert healthz(node) == ""
    assert "runtimeproxy" not in queried(node)
    assert not node.path(DROP_IN).exists()
    assert not active(node, SERVICE)
    assert not active(node, "runtimeproxy.socket")
    assert node.run("systemctl", "list-timers", "--all", "--no-legend").count("runtimeproxy") == 0
