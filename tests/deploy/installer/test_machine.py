"""The installer on a machine with a real systemd and containerd: its units, its drop-in, its rollback.

The kubelet is a unit of kubeadm's form. It is healthy if the socket in its command answers.
"""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_installer import kubelet, tree
from runtimeproxy_installer.errors import RolledBack
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.node import ENTER_COMMAND, Node
from runtimeproxy_installer.work import Work
from tests.deploy.installer.fakes import DROP_IN, SERVICE, SOCKET, archive, desired_state
from tests.machines.machine import Machine
from tests.system.proxy import answers

pytestmark = [pytest.mark.engine, pytest.mark.trees]

UNITS, COMMANDS = "/usr/lib/systemd/system", "/usr/local/bin"
KUBEADM = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS \\\n    $KUBELET_EXTRA_ARGS\n"
CONTAINERD = "/run/containerd/containerd.sock"


def command_of_kubelet(machine: Machine) -> str:
    return machine.path(f"/proc/{machine.show('kubelet.service', 'MainPID')}/cmdline").read_text().replace("\0", " ")


def healthz(machine: Machine) -> str:
    command = command_of_kubelet(machine)
    endpoint = command.partition("--container-runtime-endpoint=unix://")[2].split(" ")[0]
    if machine.path("/etc/sick").exists() and "runtimeproxy" in endpoint:
        return "it is sick"
    return "" if "kubelet" in command and answers(machine.path(endpoint or CONTAINERD)) else "it is away"


def check_clean(machine: Machine) -> None:
    """Check that the node has no file of the proxy except its tree."""
    assert "runtimeproxy" not in command_of_kubelet(machine)
    assert healthz(machine) == ""
    assert not machine.path(DROP_IN).exists()
    assert {machine.show(unit, "ActiveState") for unit in (SERVICE, "runtimeproxy.socket")} == {"inactive"}
    assert machine.run("find", "/etc/systemd/system", COMMANDS, "-lname", "*runtimeproxy*") == ""
    assert "runtimeproxy" not in machine.run("systemctl", "list-timers", "--all", "--no-legend")


def test_installer_works_on_real_systemd(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation, an upgrade and a removal; then an unhealthy kubelet gets its old command back."""
    monkeypatch.setattr(kubelet, "healthz", lambda port: healthz(machine))
    monkeypatch.setattr(kubelet, "WATCH_SECONDS", 2.0)
    monkeypatch.setattr(kubelet, "HEALTHY_SECONDS", 0.5)
    programs = {name: machine.path(f"/usr/bin/{name}").read_text() for name in ("runtimeproxy", "koord-runtime-proxy")}
    machine.run("sh", "-c", f"rm -r {UNITS}/runtimeproxy*; groupdel runtimeproxy-metrics")  # our package
    machine.write("/usr/bin/kubelet", "#!/bin/sh\nsleep infinity\nexit\n", 0o755)
    machine.write(f"{UNITS}/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n")
    machine.write(f"{UNITS}/kubelet.service.d/10-kubeadm.conf", KUBEADM)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "containerd.service", "kubelet.service")
    machine.until(lambda: healthz(machine) == "", "the kubelet")

    def work(version: str, **changed: Any) -> Work:
        desired = desired_state(archive(tmp_path, version, programs), healthz_port=10248, **changed)
        local = Node(machine.root, (*machine.enter(), *ENTER_COMMAND[ENTER_COMMAND.index("env") :]))
        reported = Kubelet("v1.31.2", "Containerd", ready=True)
        return Work(local, desired, reported, lambda: None, lambda: True, archives=tmp_path)

    def processes() -> list[str]:
        units = (SERVICE, "kubelet.service", "containerd.service")
        socket = machine.show("runtimeproxy.socket", "ActiveEnterTimestamp")
        return [*(machine.show(unit, "MainPID") for unit in units), socket]

    assert work("0.2.0", configure_kubelet=True).install() == "0.2.0"
    assert machine.show(SERVICE, "ActiveState") == "active"
    assert machine.show("runtimeproxy-metrics.socket", "SocketGroup") == "runtimeproxy-metrics"
    assert machine.run(f"{COMMANDS}/runtimeproxy", "status").startswith("ready")
    assert f"--container-runtime-endpoint={SOCKET}" in command_of_kubelet(machine)
    proxy, *unchanged = processes()
    assert work("0.3.0", configure_kubelet=True).install() == "0.3.0"
    upgraded, *after_upgrade = processes()
    assert tree.running(Node(machine.root))[1] == "0.3.0"
    assert (upgraded != proxy, after_upgrade) == (True, unchanged)

    work("0.3.0", action="uninstall").uninstall()
    check_clean(machine)
    assert machine.run("ls", "-A", "/run/systemd/transient") == ""
    assert machine.run("find", "/etc/systemd/system", "-type", "d", "-name", "*.d", "-empty") == ""
    assert not machine.path(tree.TREES).exists()
    assert processes()[2] == unchanged[1]

    machine.write("/etc/sick", "")
    with pytest.raises(RolledBack, match="did not become healthy"):
        work("0.2.0", configure_kubelet=True).install()
    machine.run("rm", "/etc/sick")
    check_clean(machine)
