"""A machine boots a real systemd, and nothing of it stays."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines import cgroups
from tests.machines.machine import SECONDS, Machine, MachineError
from tests.machines.tree import debian

pytestmark = [pytest.mark.engine, pytest.mark.trees]

HELD = """
import sys
import time
from pathlib import Path
from tests.machines.machine import Machine
with Machine(Path(sys.argv[1]), Path(sys.argv[2])) as machine:
    print(machine.pid, machine.name, flush=True)
    sys.stdin.read()
"""


def test_its_own_systemd_runs_units_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from outside\n")
    with Machine(debian(), tmp_path / "machine", {"/opt/seen": tmp_path}) as machine:
        machine.copy(tmp_path / "file", "/var/run/there/file")
        machine.write("/etc/systemd/system/one.service", "[Service]\nExecStart=/bin/cat /run/there/file\n")
        machine.run("systemctl", "start", "one.service")
        machine.until(lambda: "from outside" in machine.journal("one.service"), "the unit's output")
        assert machine.show("one.service", "Result") == "success"
        assert machine.run("cat", "/opt/seen/file") == "from outside\n"
        with pytest.raises(MachineError, match="exit code 3"):
            machine.run("sh", "-c", "exit 3")
        assert _left(machine.pid, machine.name)
    assert not _left(machine.pid, machine.name)


def test_it_ends_with_a_test_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(debian()), str(tmp_path / "machine")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        pid, name = test.stdout.readline().split()
        assert _left(int(pid), name)
        test.kill()
    deadline = time.monotonic() + SECONDS
    while _left(int(pid), name) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _left(int(pid), name)


def _left(pid: int, name: str) -> list[object]:
    """Return what there is of a machine: its first process, its cgroups."""
    groups = [path for each in (name, f"{name}-outer") for path in cgroups.directories(each)]
    return [*([pid] if Path(f"/proc/{pid}").exists() else []), *groups]
