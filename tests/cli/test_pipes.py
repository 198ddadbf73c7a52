"""Programs and commands as scripts use them: plain text, pipes that nobody reads, a full disk, interrupts."""

import subprocess
import sys
from pathlib import Path

import pytest

import runtimeproxy_hooks.__main__ as hosting
from runtimeproxy import __main__ as programs
from tests.cli.conftest import Run
from tests.docs import ROOT

COMMANDS = ["config show --origin", "config show -o yaml", "config default", "config check", "config check -o json"]
COMMANDS += ["version", "kubelet-args --kube-version=1.31", "completion bash", "--help"]
PROGRAMS = [*(("main", command) for command in COMMANDS)]
PROGRAMS += [("hooks", command) for command in ("--help", "gpu --help", "--version")]


def started(program: str, arguments: str, to: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the archive does, with its output redirected by a shell; the exit code is the program's."""
    code = f"import sys; from runtimeproxy.__main__ import {program}; sys.exit({program}())"
    # A shell's background job ignores SIGINT, and so would what it starts.
    script = f'set -o pipefail; env --default-signal=INT "$0" -c "$1" {arguments} {to}'
    path = f"{environ.pop('PYTHONPATH', '')}:{ROOT}"
    return subprocess.run(
        ["bash", "-c", script, sys.executable, code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "LANG": "C", "TERM": "xterm-256color", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_plain(run: Run, command: str) -> None:
    code, out, err = run("runtimeproxy", *command.split(), TERM="xterm-256color")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "\x1b" not in out


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_pipe_that_nobody_reads_is_no_traceback(program: str, arguments: str, unbuffered: str) -> None:
    assert started(program, arguments, "| exec 0<&-", PYTHONUNBUFFERED=unbuffered).stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_full_disk_is_one_line(program: str, arguments: str) -> None:
    done = started(program, arguments, ">/dev/full")
    assert done.returncode == 1
    if program == "main":
        assert done.stderr == "runtimeproxy: error: [Errno 28] No space left on device\n"


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
