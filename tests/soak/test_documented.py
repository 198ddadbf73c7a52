"""The commands of README.rst and docs/, run unchanged on a machine with a real systemd.

A shell runs each block line by line; every line must end with an allowed exit code. A command that runs until it is
stopped becomes a unit, and must print its expected output. The runtimes are the tests' fakes.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs import ROOT, block, blocks
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.runtime import FakeRuntime
from tests.machines.machine import Machine, fit
from tests.machines.tree import debian
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.system.proxy import serving

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

TREE = ("systemd", "curl", "socat")
FAKES = {"containerd/containerd.sock": FakeRuntime, "docker/docker.sock": FakeDockerd}
PLACEHOLDERS = {"<sock>": "/run/containerd/containerd.sock", "<docker sock>": "/run/docker/docker.sock"}
LASTS = {
    r"koord-runtime-proxy(?! --version)": "listening on",
    r"runtimeproxy export": "listening on",
    r"/opt/runtimeproxy/bin/python3 ": "serves",
}
"""Beginnings of commands that run until they are stopped, and their expected output."""
CODES = {"runtimeproxy doctor": (0, 1), "runtimeproxy status": (0, 1), "systemctl status": (0, 3)}
"""Allowed exit codes by the beginning of a command, if not only 0: it found something, or nothing runs."""


class Run(NamedTuple):
    """A block to run, by its page and first line; with ``keep`` its units run until the next block without it."""

    page: str
    first: str
    keep: bool = False


README, INSTALL, KUBELET = "README.rst", "docs/install.rst", "docs/kubelet.rst"
OPERATION, TROUBLE, HOOKS = "docs/operation.rst", "docs/troubleshooting.rst", "docs/hooks.rst"
UNITS = "runtimeproxy.service runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket"
REGISTRATIONS = "/etc/runtime/hookserver.d"
ADMIN = "/run/koord-runtimeproxy/admin.sock"
REGISTRATION = '{"remote-endpoint": "/run/name.sock", "runtime-hooks": ["PostStopContainer"]}'
ORDER: tuple[Run | str, ...] = (
    Run(INSTALL, "sha256sum --check --ignore-missing checksums.txt"),
    Run(README, "tar -xzf runtimeproxy_0.2.0_linux_x86_64.tar.gz -C /opt"),
    Run(INSTALL, "tar -xzf runtimeproxy_0.2.0_linux_x86_64.tar.gz -C /opt"),
    Run(INSTALL, "koord-runtime-proxy --version"),
    Run(INSTALL, "runtimeproxy config check"),
    Run(INSTALL, "runtimeproxy config check --for-version=0.1.0"),
    Run(README, "runtimeproxy status"),
    Run(README, "runtimeproxy kubelet-args --kube-version=1.31"),
    Run(KUBELET, "runtimeproxy kubelet-args --kube-version=1.31"),
    Run(
        KUBELET,
        "runtimeproxy kubelet-args --kube-version=1.31 --remote-runtime-service-endpoint=/var/run/crio/crio.sock",
    ),
    Run(KUBELET, "runtimeproxy kubelet-args --kube-version=v1.33.1+k3s1"),
    Run(KUBELET, "systemctl show --property=ExecStart kubelet.service"),
    f"mkdir -p {REGISTRATIONS} && echo '{REGISTRATION}' > {REGISTRATIONS}/NAME.json",
    Run(OPERATION, f'echo \'{{"method": "readyz"}}\' | socat - UNIX-CONNECT:/var{ADMIN}'),
    Run("docs/control-protocol.rst", f'echo \'{{"method": "livez"}}\' | socat - UNIX-CONNECT:{ADMIN}'),
    Run(OPERATION, f"runtimeproxy export --admin-endpoint=/var{ADMIN} --listen=unix:/run/runtimeproxy-http.sock"),
    Run(OPERATION, 'runtimeproxy hook disable NAME --for 1h --reason "hangs since the update"'),
    Run(OPERATION, "runtimeproxy hook enable NAME"),
    Run(TROUBLE, "runtimeproxy doctor --config=/etc/runtimeproxy/config.yaml"),
    Run(TROUBLE, "runtimeproxy hook disable NAME --for 1h --reason 'why'"),
    f"rm {REGISTRATIONS}/NAME.json",
    Run(HOOKS, "/opt/runtimeproxy/bin/python3 hello.py", keep=True),
    Run(HOOKS, "runtimeproxy hook call /var/run/runtimeproxy-hooks/hello.sock PreCreateContainer"),
    Run(INSTALL, "/opt/runtimeproxy-0.2.0/bin/runtimeproxy config check"),
    f"systemctl stop {UNITS}",
    Run(README, "koord-runtime-proxy"),
    Run(README, "koord-runtime-proxy --remote-runtime-service-endpoint=<sock> --remote-image-service-endpoint=<sock>"),
    Run(README, "koord-runtime-proxy --backend-runtime-mode=Docker --remote-runtime-service-endpoint=<docker sock>"),
    Run(OPERATION, "groupadd --system --force runtimeproxy-metrics", keep=True),
    Run(OPERATION, "runtimeproxy export --listen=127.0.0.1:9654", keep=True),
    Run(TROUBLE, "curl -i http://127.0.0.1:9654/livez"),
    "cp -r /etc/systemd/system /root/kept",  # with the drop-ins of ``fit``
    Run(INSTALL, f"systemctl disable --now {UNITS}"),
    "cp -r /root/kept/*.service.d /etc/systemd/system/ 2>/dev/null; rm -r /etc/runtimeproxy",
    Run(INSTALL, "apt-get install ./runtimeproxy_0.2.0-1_amd64.deb"),
    Run(INSTALL, "systemctl is-active runtimeproxy.socket runtimeproxy.service"),
    Run(README, "apt-get install ./runtimeproxy_0.2.0-1_amd64.deb"),
    Run(INSTALL, "runtimeproxy status"),
    Run(INSTALL, "runtimeproxy in-use"),
)
"""The blocks in a working order, with the steps between them."""


@pytest.fixture
def machine(release: Path, tmp_path: Path) -> Iterator[Machine]:
    """Boot a machine with fake runtimes at their usual places and the files of a release in /root."""
    binds = {}
    with ExitStack() as stack:
        for name, fake in FAKES.items():
            socket = tmp_path / name
            socket.parent.mkdir()
            stack.enter_context(serving(fake(str(socket))))
            binds[f"/run/{socket.parent.name}"] = socket.parent
        machine = stack.enter_context(Machine(debian(packages=TREE), tmp_path / "machine", binds))
        machine.copy(release, "/root")
        machine.write("/etc/apt/apt.conf.d/90-no-terminal", 'APT::Get::Assume-Yes "true";\n')
        for unit in ("runtimeproxy.service", "runtimeproxy-export.service"):
            fit(machine, unit, ROOT / "deploy/systemd" / unit)
        yield machine


def test_documented_commands_work(machine: Machine, findings: Findings) -> None:
    machine.write("/etc/runtimeproxy/config.yaml", "log-level: info\n")
    machine.copy(ROOT / "hooks/tools/example.yaml", "/root/request.yaml")
    machine.write("/root/hello.py", next(each.text for each in blocks(HOOKS) if each.language == "python"))
    lines, running = 0, list[str]()
    for each in ORDER:
        if isinstance(each, str):
            machine.run("sh", "-c", each)
            continue
        for line in block(each.page, each.first).lines:
            running += run(machine, each.page, line)
            lines += 1
        if running and not each.keep:
            machine.run("systemctl", "stop", *running)
            running.clear()
    findings.note("commands run as they are on their pages", lines)


def run(machine: Machine, page: str, line: str) -> list[str]:
    """Run a line of a block; return its unit if it continues."""
    command = line
    for placeholder, value in PLACEHOLDERS.items():
        command = command.replace(placeholder, value)
    if text := next((text for start, text in LASTS.items() if re.match(start, command)), None):
        unit = f"documented-{sum(line.encode())}.service"
        machine.run("systemd-run", "--quiet", f"--unit={unit}", "sh", "-c", f"cd /root && exec {command}")
        machine.until(lambda: text in machine.journal(unit), f"{text!r} of {line}")
        return [unit]
    codes = next((codes for start, codes in CODES.items() if command.startswith(start)), (0,))
    output = machine.run("sh", "-c", f'cd /root && {{ {command}\n}}; echo "exit code $?"', check=False)
    assert int(output.rsplit(maxsplit=1)[-1]) in codes, f"{page}: {line}: {output[-2000:]}"
    return []
