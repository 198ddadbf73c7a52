"""The commands for a proxy under test: they find it by the variables of the environment; the journal is its log."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.system.proxy import ROOT, ProxyProcess

MAIN = (sys.executable, "-m", "runtimeproxy")
SECONDS = 60.0


def environment(proxy: ProxyProcess) -> dict[str, str]:
    """Return an environment of commands in the C locale: the proxy's flags are in it."""
    programs = proxy.path / "bin"
    programs.mkdir(exist_ok=True)
    journal = programs / "journalctl"
    journal.write_text(f"#!/bin/sh\nexec cat {proxy.log}\n")
    journal.chmod(0o755)
    given = (word.removeprefix("--").split("=", 1) for word in proxy.command if word.startswith("--"))
    flags = {f"RUNTIMEPROXY_{name.upper().replace('-', '_')}": value for name, value in given}
    return {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "LANG": "C", "TERM": "xterm", **flags}


def start(
    proxy: ProxyProcess, command: str, *, program: Sequence[str] = MAIN, **more: object
) -> "subprocess.Popen[str]":
    usual = {"env": environment(proxy), "cwd": proxy.path, "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([*program, *shlex.split(command)], **(usual | more))  # type: ignore[call-overload,no-any-return]


@contextmanager
def following(proxy: ProxyProcess, *commands: str) -> Iterator[Path]:
    """Run commands during the block; yield the file with what they print, both outputs."""
    file = proxy.path / "followed"
    with file.open("w") as out:
        running = [start(proxy, command, stdout=out, stderr=out) for command in commands]
    try:
        yield file
        assert [each.args for each in running if each.poll() is not None] == [], file.read_text()
    finally:
        for each in running:
            each.kill()
            each.wait()


def output(proxy: ProxyProcess, command: str) -> str:
    """Return what a command prints, both outputs, which is something."""
    with start(proxy, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        printed, _ = running.communicate(timeout=SECONDS)
    assert printed, command
    return str(printed)
