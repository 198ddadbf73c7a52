"""The project's own hook servers as programs, each by itself and all in one, pass ``hook verify``."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from tests.system.proxy import ROOT, Folder
from tests.system.reference import HookProgram, served

PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that keep a hook off the machine's own files."""


def program(folder: Path, name: str) -> HookProgram:
    own = folder / name
    return HookProgram(Folder(own), name, flags=[f"--{flag}={own}/{flag}" for flag in PATHS.get(name, [])])


def verify(tried: HookProgram) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(tried.socket)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


@pytest.mark.slow
def test_each_hook_server_and_all_in_one_verify_well(tmp_path: Path) -> None:
    programs = [program(tmp_path, name) for name in (*sorted(HOOKS), ALL)]
    with served(*programs), ThreadPoolExecutor(3) as pool:
        for tried, done in zip(programs, pool.map(verify, programs), strict=True):
            assert done.returncode == 0, f"{tried.name}: {done.stdout}{done.stderr}"
