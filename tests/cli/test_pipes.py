"""Commands as they are used in scripts: plain text, into a pipe that nobody reads, onto a full disk."""

import subprocess
import sys

import pytest

from tests.cli.conftest import Run
from tests.docs import ROOT

COMMANDS = [
    *[
        "config show --origin",
        "config show -o yaml",
        "config default",
        "config check",
        "config check -o json",
        "version",
    ],
    *["kubelet-args --kube-version=1.31", "completion bash", "--help"],
]


def led(command: str, to: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its output led on by a shell; the exit code is the command's."""
    script = f"set -o pipefail; {sys.executable} -m runtimeproxy {command} {to}"
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    return subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_plain(run: Run, command: str) -> None:
    code, out, err = run("runtimeproxy", *command.split(), TERM="xterm-256color")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "\x1b" not in out


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_pipe_that_nobody_reads_is_no_traceback(command: str) -> None:
    assert led(command, "| exec 0<&-").stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_one_line(command: str) -> None:
    done = led(command, ">/dev/full")
    assert (done.returncode, done.stderr) == (1, "runtimeproxy: error: [Errno 28] No space left on device\n")
