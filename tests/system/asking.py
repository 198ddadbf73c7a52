"""What the proxy tells who operates a node: every answer of the admin endpoint, every command's output, a report.

A command finds its proxy by the variables of the environment; the journal is the proxy's log.
"""

import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from runtimeproxy.admin.routes import ROUTES
from tests.admin.test_process import UnixConnection, ask
from tests.system.proxy import ROOT, ProxyProcess

MAIN = (sys.executable, "-m", "runtimeproxy")
SECONDS = 60.0
SHOWN_ON_PURPOSE = "reason"
"""What an operator gives for others to see."""


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


def begun(
    proxy: ProxyProcess, command: str, *, program: Sequence[str] = MAIN, **more: object
) -> "subprocess.Popen[str]":
    """Start a command; ``more`` as in ``Popen``."""
    usual = {"env": environment(proxy), "cwd": proxy.path, "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([*program, *shlex.split(command)], **(usual | more))  # type: ignore[call-overload,no-any-return]


@contextmanager
def following(proxy: ProxyProcess, *commands: str) -> Iterator[Path]:
    """Run commands during the block; yield the file with what they print, both outputs."""
    ask(proxy.admin, "/livez")  # on a busy machine the admin server may need more than a command waits, at its start
    file = proxy.path / "followed"
    with file.open("w") as out:
        running = [begun(proxy, command, stdout=out, stderr=out) for command in commands]
    try:
        yield file
        assert [each.args for each in running if each.poll() is not None] == [], file.read_text()
    finally:
        for each in running:
            each.kill()
            each.wait()


def printed(proxy: ProxyProcess, command: str) -> str:
    """Return what a command prints, both outputs, which is something."""
    with begun(proxy, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        output, _ = running.communicate(timeout=SECONDS)
    assert output, command
    return str(output)


def members(report: Path) -> dict[str, str]:
    """Return the files of a report by name."""
    with tarfile.open(report) as archive:
        files = [(one.name, archive.extractfile(one)) for one in archive.getmembers()]
        return {Path(name).name: file.read().decode() for name, file in files if file is not None}


def answers(admin: Path, hook_server: str, secret: str) -> Iterator[tuple[str, str]]:
    """Ask every path with every method, well and wrong, a secret in all that is wrong; yield question and answer."""
    for route in ROUTES:
        path = route.path.replace("{name}", hook_server)
        wrong = [f"{path}?{name}={secret}" for name in (*route.takes, secret)]
        bodies = [
            "",
            secret,
            *(json.dumps({name: secret}) for name in (*route.takes, secret) if name != SHOWN_ON_PURPOSE),
        ]
        for method in ("GET", "POST", "PUT"):
            for target in (path, f"{path}?verbose", f"{path}/{secret}", f"/{secret}", *wrong):
                for body in bodies if method == "POST" else bodies[:1]:
                    yield f"{method} {target} {body}", _answer(admin, method, target, body)


def _answer(admin: Path, method: str, target: str, body: str) -> str:
    with closing(UnixConnection(admin)) as connection:
        with suppress(BrokenPipeError):  # the body of what is refused by its head is not read
            connection.request(method, target, body)
        answer = connection.getresponse()
        return f"{answer.status} {answer.reason} {answer.headers} {answer.read().decode()}"
