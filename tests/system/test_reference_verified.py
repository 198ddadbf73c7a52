"""``runtimeproxy hook verify`` finds nothing to blame in the project's own hook servers, each alone and all in one."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from tests.system.proxy import ROOT, Folder, wait_until
from tests.system.reference import HookProgram, served

pytestmark = pytest.mark.slow

VERIFY = (sys.executable, "-m", "runtimeproxy", "hook", "verify")
SECONDS = 60
AT_ONCE = 3
ALONE = tuple(sorted(HOOKS))
PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that keep a hook off what the machine itself has."""


class Verdict(NamedTuple):
    """How the command ended, and what it printed."""

    exit_code: int
    table: str


def program(folder: Path, name: str) -> HookProgram:
    own = folder / name
    return HookProgram(Folder(own), name, flags=[f"--{flag}={own}/{flag}" for flag in PATHS.get(name, [])])


def verify(tried: HookProgram, *flags: str) -> Verdict:
    """Return the exit code and the table."""
    # Not by a pipe: what --restart-command starts lives on, and would keep it open.
    with tried.socket.with_suffix(".table").open("w+") as table:
        command = [*VERIFY, str(tried.socket), *flags]
        done = subprocess.run(command, stdout=table, stderr=table, timeout=SECONDS, check=False, cwd=ROOT)
        table.seek(0)
        return Verdict(done.returncode, table.read())


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Verdict]:
    """Return what ``verify`` says of each hook server, which are all tried at about the same time."""
    programs = [program(tmp_path_factory.mktemp("alone"), name) for name in ALONE]
    with served(*programs), ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(ALONE, pool.map(verify, programs), strict=True))


@pytest.mark.parametrize("name", ALONE)
def test_each_alone(verdicts: Mapping[str, Verdict], name: str) -> None:
    assert verdicts[name].exit_code == 0, verdicts[name].table


def restart_command(tried: HookProgram, pid_file: Path) -> str:
    """Return what kills a hook server and starts it again, which is nobody's child then."""
    assert tried.process is not None
    started = f"{shlex.join(tried.command)} >> {tried.log} 2>&1 & echo $! > {pid_file}"
    return f"kill -KILL {tried.process.pid}; {started}"


def test_all_in_one_which_is_killed_and_started_again(tmp_path: Path) -> None:
    tried, pid_file = program(tmp_path, ALL), tmp_path / "pid"
    try:
        tried.start()
        verdict = verify(tried, f"--restart-command={restart_command(tried, pid_file)}")
        assert verdict.exit_code == 0, verdict.table
        assert " 0 skipped" in verdict.table, verdict.table
    finally:
        tried.kill()
        if pid_file.exists():
            os.kill(int(pid_file.read_text()), signal.SIGTERM)
    wait_until(lambda: not tried.socket.exists(), "the second one ended", tried.output)
    assert not tried.registration.exists()
    assert not tried.faults()
