"""The project's own hook servers as programs: each passes ``hook verify``. Their effect with real engines: the demo."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from tests.hooks.sdk import processes
from tests.system.proxy import ROOT

OWN_PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that set a hook's paths, which are the machine's by default."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(HOOKS), ALL])
def test_hook_server_passes_hook_verify(tmp_path: Path, name: str) -> None:
    flags = [f"--{flag}={tmp_path}/{flag}" for flag in OWN_PATHS.get(name, [])]
    with processes.running(tmp_path, *flags, program=("-m", "runtimeproxy_hooks", name)) as program:
        command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(program.socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert program.end(15) == 0
    assert "Traceback" not in program.log
