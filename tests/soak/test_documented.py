"""The commands of README.rst and docs/, run unchanged on a machine with a real systemd.

A shell runs each block line by line; every line must end with an allowed exit code. A command that runs until it is
stopped becomes a unit, and must print its expected output. The runtimes are the tests' fakes.

The commands of docs/migration.rst must print the page's output, on a machine where koord-runtime-proxy serves a
kubelet. KOORD_RUNTIME_PROXY names Koordinator's own program (``go build ./cmd/koord-runtime-proxy`` in its repository).
Without it a stand-in behaves alike: at its start it removes the socket's path, even if another program has it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.docs import DOCS, PAGES, ROOT, blocks
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.machines.machine import Machine, debian, fit
from tests.soak.conftest import MARKS, Findings
from tests.system.proxy import serving

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

FAKES = {"containerd/containerd": FakeRuntime, "docker/docker": FakeDockerd, "koordlet/koordlet": HookServer}
PLACEHOLDERS = {"<sock>": "/run/containerd/containerd.sock", "<docker sock>": "/run/docker/docker.sock"}
LASTS = {
    r"koord-runtime-proxy(?! --version)": "listening on",
    r"runtimeproxy export": "listening on",
    r"/opt/runtimeproxy/bin/python3 ": "serves",
}
"""Beginnings of commands that run until they are stopped, and their expected output."""
KEPT = ("/opt/runtimeproxy/bin/python3 ", "groupadd", "runtimeproxy export --listen=127.0.0.1")
"""Beginnings of blocks whose units run until the end of the next other one."""
CODES = {"runtimeproxy doctor": (0, 1), "runtimeproxy status": (0, 1), "systemctl status": (0, 3)}
"""Allowed exit codes by the beginning of a command, if not only 0: it found something, or nothing runs."""

UNITS = "runtimeproxy.service runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket"
REGISTRATIONS = "/etc/runtime/hookserver.d"
ADMIN = "/run/koord-runtimeproxy/admin.sock"
REGISTRATION = '{"remote-endpoint": "/run/name.sock", "runtime-hooks": ["PostStopContainer"]}'
STEP = ": a step; "
ORDER = (
    "sha256sum --check --ignore-missing checksums.txt",
    "tar -xzf runtimeproxy_0.2.0_linux_x86_64.tar.gz -C /opt",
    "koord-runtime-proxy --version",
    "runtimeproxy config check",
    "runtimeproxy config check --for-version=0.1.0",
    "runtimeproxy status",
    "runtimeproxy kubelet-args --kube-version=1.31",
    "runtimeproxy kubelet-args --kube-version=1.31 --remote-runtime-service-endpoint=/var/run/crio/crio.sock",
    "runtimeproxy kubelet-args --kube-version=v1.33.1+k3s1",
    "systemctl show --property=ExecStart kubelet.service",
    f"{STEP}mkdir -p {REGISTRATIONS} && echo '{REGISTRATION}' > {REGISTRATIONS}/NAME.json",
    f'echo \'{{"method": "readyz"}}\' | socat - UNIX-CONNECT:/var{ADMIN}',
    f'echo \'{{"method": "livez"}}\' | socat - UNIX-CONNECT:{ADMIN}',
    f"runtimeproxy export --admin-endpoint=/var{ADMIN} --listen=unix:/run/runtimeproxy-http.sock",
    'runtimeproxy hook disable NAME --for 1h --reason "hangs since the update"',
    "runtimeproxy hook enable NAME",
    "runtimeproxy doctor --config=/etc/runtimeproxy/config.yaml",
    "runtimeproxy hook disable NAME --for 1h --reason 'why'",
    f"{STEP}rm {REGISTRATIONS}/NAME.json",
    "/opt/runtimeproxy/bin/python3 hello.py",
    "runtimeproxy hook call /var/run/runtimeproxy-hooks/hello.sock PreCreateContainer",
    "/opt/runtimeproxy-0.2.0/bin/runtimeproxy config check",
    f"{STEP}systemctl stop {UNITS}",
    "koord-runtime-proxy",
    "koord-runtime-proxy --remote-runtime-service-endpoint=<sock> --remote-image-service-endpoint=<sock>",
    "koord-runtime-proxy --backend-runtime-mode=Docker --remote-runtime-service-endpoint=<docker sock>",
    "groupadd --system --force runtimeproxy-metrics",
    "runtimeproxy export --listen=127.0.0.1:9654",
    "curl -i http://127.0.0.1:9654/livez",
    f"{STEP}cp -r /etc/systemd/system /root/kept",  # with the drop-ins of ``fit``
    f"systemctl disable --now {UNITS}",
    f"{STEP}cp -r /root/kept/*.service.d /etc/systemd/system/ 2>/dev/null; rm -r /etc/runtimeproxy",
    "apt-get install ./runtimeproxy_0.2.0-1_amd64.deb",
    "systemctl is-active runtimeproxy.socket runtimeproxy.service",
    "runtimeproxy status",
    "runtimeproxy in-use",
)
"""The first lines of the blocks in a working order, with the steps between them."""


@pytest.fixture
def machine(release: Path, tmp_path: Path) -> Iterator[Machine]:
    """Boot a machine with fake servers at their usual places and the files of a release in /root."""
    binds = {}
    with ExitStack() as stack:
        for name, fake in FAKES.items():
            socket = tmp_path / f"{name}.sock"
            socket.parent.mkdir()
            stack.enter_context(serving(fake(str(socket))))
            binds[f"/run/{socket.parent.name}"] = socket.parent
        tree = debian(packages=("systemd", "curl", "socat"))
        machine = stack.enter_context(Machine(tree, tmp_path / "machine", binds))
        machine.copy(release, "/root")
        machine.write("/etc/apt/apt.conf.d/90-no-terminal", 'APT::Get::Assume-Yes "true";\n')
        for unit in ("runtimeproxy.service", "runtimeproxy-export.service"):
            fit(machine, unit, ROOT / "deploy/systemd" / unit)
        yield machine


def test_documented_commands_work(machine: Machine, findings: Findings) -> None:
    documented = [block for page in PAGES for block in blocks(page)]
    machine.write("/etc/runtimeproxy/config.yaml", "log-level: info\n")
    machine.copy(ROOT / "hooks/tools/example.yaml", "/root/request.yaml")
    machine.write(
        "/root/hello.py", next(b.text for b in documented if (b.page, b.language) == ("docs/hooks.rst", "python"))
    )
    lines, running = 0, list[str]()
    for first in ORDER:
        found = [line for block in documented if block.first == first for line in block.lines]
        assert bool(found) != first.startswith(STEP), first
        for line in found or [first]:
            running += run(machine, line)
        lines += len(found)
        if running and not first.startswith(KEPT):
            machine.run("systemctl", "stop", *running)
            running.clear()
    findings.note("commands run as they are on their pages", lines)


def run(machine: Machine, line: str) -> list[str]:
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
    assert int(output.rsplit(maxsplit=1)[-1]) in codes, f"{line}: {output[-2000:]}"
    return []


OLD, SOCKET = "/usr/local/bin/koord-runtime-proxy", "/var/run/koord-runtimeproxy/runtimeproxy.sock"
STAND_IN = f"""\
#!/bin/sh
rm -f {SOCKET}
exec /opt/runtimeproxy-*/bin/koord-runtime-proxy --admin-endpoint=none --originals-dir=none --state-dir=none
"""
UNIT = "/etc/systemd/system/koord-runtime-proxy.service"
KOORDLET = """\
{"remote-endpoint": "/var/run/koordlet/koordlet.sock", "failure-policy": "Ignore",
 "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]}
"""
COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""


def test_migration_prints_documented_output(machine: Machine) -> None:
    machine.run("sh", "-c", "tar -xzf /root/runtimeproxy_*_linux_x86_64.tar.gz -C /opt")
    machine.write(OLD, STAND_IN, 0o755)
    if own := os.environ.get("KOORD_RUNTIME_PROXY"):
        machine.copy(Path(own), OLD)
    machine.write(UNIT, dedent(DOCS["migration"].partition(f"# {UNIT}\n")[2].partition("    $ ")[0]))
    machine.write(f"{REGISTRATIONS}/koordlet.json", KOORDLET)
    machine.run("cp", "/bin/bash", "/usr/local/bin/kubelet")
    kubelet = ("/usr/local/bin/kubelet", "-c", "sleep infinity; exit")  # bash would become a last command
    machine.run("systemd-run", "--quiet", *kubelet, f"--container-runtime-endpoint=unix://{SOCKET}")
    machine.run("systemctl", "enable", "--now", "koord-runtime-proxy.service")
    machine.until(lambda: machine.path(SOCKET).exists(), "the socket of the old proxy")

    def printed(found: re.Match[str]) -> str:
        """Return a command of the page with its output in 80 columns, without process ids."""
        output = machine.run("sh", "-c", f"cd /root && {found[1]}", check=False, env={"COLUMNS": "80"})
        return indent(f"$ {found[1]}\n{re.sub(r'pid [0-9]+', 'pid 1234', output)}", " " * 4)

    assert COMMAND.sub(printed, DOCS["migration"]) == DOCS["migration"]
