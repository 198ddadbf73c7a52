"""Programs and commands in scripts: plain text, pipes without a reader, a full disk, interrupts, odd encodings."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtimeproxy_hooks.__main__ as hosting
from runtimeproxy import __main__ as programs
from tests.cli.admin_answers import CANNED, EVENTS, POD_RECORD, STORE
from tests.docs import ROOT
from tests.fakes.canned_admin import END, Handler, serving

PROGRAMS = [("main", "config show -o yaml"), ("main", "--help"), ("hooks", "--help"), ("hooks", "gpu --help")]


def start(program: str, arguments: str, then: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the archive does, in a shell that redirects its output; the exit code is the program's."""
    code = f"import sys; from runtimeproxy.__main__ import {program}; sys.exit({program}())"
    # A shell's background job ignores SIGINT, and so would the program that it starts.
    script = f'set -o pipefail; env --default-signal=INT "$0" -c "$1" {arguments} {then}'
    path = f"{environ.pop('PYTHONPATH', '')}:{ROOT}"
    return subprocess.run(
        ["bash", "-c", script, sys.executable, code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "LC_ALL": "C", "TERM": "xterm-256color", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_output_is_plain_whatever_reads_it(program: str, arguments: str) -> None:
    done = start(program, arguments)
    assert (done.returncode, done.stdout.isascii(), "\x1b" in done.stdout, done.stderr) == (0, True, False, "")
    for unbuffered in ("", "1"):
        assert start(program, arguments, "| exec 0<&-", PYTHONUNBUFFERED=unbuffered).stderr == ""
    done = start(program, arguments, ">/dev/full")
    assert done.returncode == 1
    if program == "main":
        assert done.stderr == "runtimeproxy: error: [Errno 28] No space left on device\n"


INTERRUPTING = "import os, signal\nclass Lost:\n    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\nLost()\n"
"""A module that interrupts its import where an exception is lost, as in a callback of the import system."""
IMPORTS = [
    ("main", "version", "logging"),
    ("main", "hook call", "difflib"),
    ("koord_runtime_proxy", "--koord-runtimeproxy-endpoint={}/p.sock", "uvloop"),
    ("hooks", "gpu --endpoint={0}/h.sock --register-dir={0}/r", "grpc"),
]
"""The program, its arguments, and the module at whose import it is interrupted."""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments", "module"), IMPORTS)
def test_interrupted_import_ends_program(tmp_path: Path, program: str, arguments: str, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTING)
    done = start(program, arguments.format(tmp_path), PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_unhandled_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hosting, "run", interrupt)
    assert programs.hooks() == 130


def follow_silently(handler: Handler) -> None:
    """Send one event, and a follower nothing more."""
    handler.part(events=[EVENTS[1]])
    if handler.params.get("follow"):
        handler.server.over.wait()
    handler.wfile.write(END)


@pytest.fixture
def admin_endpoint(tmp_path: Path) -> Iterator[str]:
    """Run a proxy whose store has an odd name, and that has one event for each follower."""
    odd = {**STORE, "pods": [{**POD_RECORD, "id": "00", "name": "名\x1b[31m\udc80"}], "containers": []}
    with serving(tmp_path / "a", {**CANNED, "store": odd, "events": follow_silently}):
        yield str(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "名?[31m?"), ("latin-1", r"\u540d?[31m?")])
def test_unprintable_name_is_escaped(admin_endpoint: str, encoding: str, name: str) -> None:
    flag = f"--admin-endpoint={admin_endpoint}"
    done = start("main", f"store ls --no-headers {flag}", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f" default/{name}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [("hook ls", 0), ("events -f", 1)])
def test_command_ends_with_its_reader(admin_endpoint: str, command: str, code: int) -> None:
    flag = f"--admin-endpoint={admin_endpoint}"
    assert start("main", f"{command} {flag}", "| exec 0<&-").stderr == ""
    done = start("main", f"{command} {flag}", "| head -n 2")
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (code, 2, "")


@pytest.mark.slow
def test_interrupt_ends_following_silently(admin_endpoint: str) -> None:
    command = ["env", "--default-signal=INT", sys.executable, "-m", "runtimeproxy", "events", "-f", "--no-headers"]
    with subprocess.Popen(
        [*command, f"--admin-endpoint={admin_endpoint}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"plugin_added" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=10)
    assert (process.returncode, out, errors) == (130, b"", b"")
