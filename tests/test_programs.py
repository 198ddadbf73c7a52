"""The programs from their first import to their last output: interrupts, and readers that leave."""

import subprocess
import sys
from pathlib import Path

import pytest

import runtimeproxy_hooks.__main__ as hosting
from runtimeproxy import __main__ as programs
from tests.docs import ROOT

INTERRUPTING = "import os, signal\nclass Lost:\n    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\nLost()\n"
"""A module that interrupts its import where an exception is lost, as in a callback of the import system."""
IMPORTS = [
    ("main", "version", "logging"),
    ("main", "hook call", "difflib"),
    ("koord_runtime_proxy", "", "logging"),
    ("koord_runtime_proxy", "--koord-runtimeproxy-endpoint={}/p.sock", "uvloop"),
    ("hooks", "gpu", "logging"),
    ("hooks", "gpu --endpoint={0}/h.sock --register-dir={0}/r", "grpc"),
]
"""The program, its arguments, and the module at whose import it is interrupted."""


def started(program: str, arguments: str, to: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the archive does, with its output redirected by a shell; the exit code is the program's."""
    code = f"import sys; from runtimeproxy.__main__ import {program}; sys.exit({program}())"
    # A shell's background job ignores SIGINT, and so would what it starts.
    script = f'set -o pipefail; env --default-signal=INT "$0" -c "$1" {arguments} {to}'
    path = f"{environ.pop('PYTHONPATH', '')}:{ROOT}"
    return subprocess.run(
        ["bash", "-c", script, sys.executable, code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments", "module"), IMPORTS)
def test_interrupted_import_ends_program(tmp_path: Path, program: str, arguments: str, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTING)
    done = started(program, arguments.format(tmp_path), PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupt_that_a_program_does_not_handle_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hosting, "run", interrupt)
    assert programs.hooks() == 130


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", ["--help", "gpu --help", "--version"])
def test_closed_pipe_of_hooks_is_no_traceback(arguments: str, unbuffered: str) -> None:
    assert started("hooks", arguments, "| exec 0<&-", PYTHONUNBUFFERED=unbuffered).stderr == ""


@pytest.mark.slow
def test_full_disk_fails_hooks() -> None:
    assert started("hooks", "--help", ">/dev/full").returncode == 1
