"""docs/migration.rst: its commands on a machine where koord-runtime-proxy serves a kubelet, and the way back.

KOORD_RUNTIME_PROXY names Koordinator's own program (``go build ./cmd/koord-runtime-proxy`` in its repository). Without
it a stand-in behaves alike: at its start it removes the socket's path, even if another program has it, and it has only
the socket. The test prints differing output as the page's new text.
"""

import os
import re
from pathlib import Path
from textwrap import indent

import pytest

from tests.docs import ROOT
from tests.machines.machine import Machine
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.soak.test_documented import machine
from tests.soak.test_packages import Calls

__all__ = ["machine"]
pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

PAGE = ROOT / "docs" / "migration.rst"
SOCKET = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""
KUBELET = "/usr/local/bin/kubelet"
OLD = "/usr/local/bin/koord-runtime-proxy"
UNIT = f"""\
[Unit]
Description=koord-runtime-proxy

[Service]
ExecStart={OLD}
Restart=always

[Install]
WantedBy=multi-user.target
"""
STAND_IN = f"""\
#!/bin/sh
rm -f {SOCKET}
exec /opt/runtimeproxy-*/bin/koord-runtime-proxy --admin-endpoint=none --originals-dir=none --state-dir=none
"""
KOORDLET = """\
{"remote-endpoint": "/var/run/koordlet/koordlet.sock", "failure-policy": "Ignore",
 "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]}
"""


def test_migration_prints_documented_output(machine: Machine, findings: Findings) -> None:
    prepare(machine, os.environ.get("KOORD_RUNTIME_PROXY", ""))
    page = PAGE.read_text()
    with Calls("Containerd", machine.path(SOCKET)) as calls:
        found = COMMAND.sub(lambda found: indent(f"$ {found[1]}\n{output(machine, found[1])}", " " * 4), page)
    assert found == page
    findings.note("calls of a client meanwhile", calls.count)
    findings.note("that failed", len(calls.failed))


def prepare(machine: Machine, old: str) -> None:
    """Make the old proxy serve a kubelet; a koordlet is registered."""
    if old:
        machine.copy(Path(old), OLD)
    else:
        machine.run("sh", "-c", "tar -xzf /root/runtimeproxy_*_linux_x86_64.tar.gz -C /opt")
        machine.write(OLD, STAND_IN, 0o755)
    machine.write("/etc/systemd/system/koord-runtime-proxy.service", UNIT)
    machine.write("/etc/runtime/hookserver.d/koordlet.json", KOORDLET)
    machine.write("/etc/systemd/system/koordlet.socket", "[Socket]\nListenStream=/run/koordlet/koordlet.sock\n")
    machine.write("/etc/systemd/system/koordlet.service", "[Service]\nExecStart=sleep infinity\n")
    machine.run("systemctl", "start", "koordlet.socket")
    machine.run("cp", "/bin/bash", KUBELET)
    endpoint = f"--container-runtime-endpoint=unix://{SOCKET}"
    # bash would become a last command.
    machine.run("systemd-run", "--quiet", KUBELET, "-c", "sleep infinity; exit", endpoint)
    machine.run("systemctl", "enable", "--now", "koord-runtime-proxy.service")
    machine.until(lambda: machine.path(SOCKET).exists(), "the socket of the old proxy")


def output(machine: Machine, command: str) -> str:
    """Return the output of a command with 80 columns, without process ids."""
    printed = machine.run("sh", "-c", f"cd /root && {command}", check=False, env={"COLUMNS": "80"})
    return re.sub(r"\bpid \d+", "pid 1234", printed)
