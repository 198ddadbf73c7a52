"""Commands as they are used in scripts: in the C locale, into a pipe that nobody reads, onto a full disk."""

import subprocess
import sys

import pytest

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


def run(command: str, to: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its output led on by a shell; the exit code is the command's."""
    script = f"set -o pipefail; {sys.executable} -m runtimeproxy {command} {to}"
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    return subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_plain(command: str) -> None:
    done = run(command, "")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_pipe_that_nobody_reads_is_no_traceback(command: str) -> None:
    assert run(command, "| exec 0<&-").stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_one_line(command: str) -> None:
    done = run(command, ">/dev/full")
    assert (done.returncode, done.stderr) == (1, "runtimeproxy: error: [Errno 28] No space left on device\n")
