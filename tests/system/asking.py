"""What the proxy shows to who operates a node: every answer of the admin endpoint, every page of the exporter, every
command's output, a report.

A command finds its proxy by the variables of the environment; the journal is the proxy's log.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlencode

from runtimeproxy.admin import queries
from runtimeproxy.admin.exporter import PAGES
from runtimeproxy.admin.protocol import REQUEST_BYTES
from tests import control, patience
from tests.system.proxy import ROOT, ProxyProcess, wait_until
from tests.system.proxy import answers as listens

MAIN = (sys.executable, "-m", "runtimeproxy")
SECONDS = 60.0
SHOWN_ON_PURPOSE = "reason"
"""What an operator gives for others to see."""
METHODS = queries.methods(MagicMock())


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
    """Call every method, well and wrong, a secret in all that is wrong; yield request and answer."""
    needed = {"name": hook_server, "reason": "x", "level": "info"}
    for name, method in METHODS.items():
        well: dict[str, Any] = {parameter: needed[parameter] for parameter in method.needs}
        found = control.lines(admin, _line(name, well | ({"follow": True, "limit": 1} if name == "events" else {})))
        assert "end" in found[-1], (name, found)
        yield f"{name} {well}", json.dumps(found)
        names = [parameter for parameter in method.takes if parameter != SHOWN_ON_PURPOSE]
        wrong: list[Any] = [secret, [secret], {**well, secret: secret}]
        wrong += [{**well, parameter: value} for parameter in names for value in (secret, [secret], {secret: secret})]
        wrong += [{parameter: secret for parameter in names if parameter != left} for left in method.needs]
        for params in wrong:
            yield f"{name} {params}", json.dumps(control.lines(admin, _line(name, params)))
    for octets in (
        _line(secret, {}),
        _line("livez", {}, id=[secret]),
        _line("livez", {}, **{secret: secret}),
        json.dumps([secret]).encode() + b"\n",
        f'{{"method": "livez", "{secret}\n'.encode(),
        f"GET /{secret} HTTP/1.1\r\nHost: {secret}\r\n\r\n".encode(),
        secret.encode(),
        secret.encode() * (2 * REQUEST_BYTES // len(secret)),
    ):
        yield repr(octets[:100]), json.dumps(control.lines(admin, octets))


def _line(method: str, params: Any, **more: Any) -> bytes:
    return json.dumps({"id": 1, "method": method, "params": params, **more}).encode() + b"\n"


def pages(proxy: ProxyProcess, secret: str) -> Iterator[tuple[str, str]]:
    """Request every page of an exporter, well and wrong, a secret in all that is wrong; yield request and answer, and
    the exporter's output."""
    path, log = proxy.path / "export.sock", proxy.path / "export.log"
    with log.open("w") as output:
        command = f"export --admin-endpoint={proxy.admin} --listen=unix:{path}"
        with begun(proxy, command, stdout=output, stderr=output) as exporter:
            try:
                wait_until(lambda: path.exists() and listens(path), "the exporter listens", log.read_text)
                for target, takes in PAGES.items():
                    answer = _page(path, f"GET {target} HTTP/1.1")
                    assert answer.startswith("HTTP/1.1 200 "), answer
                    yield f"GET {target}", answer
                    queries = [urlencode({name: secret}) for name in (*takes, secret)]
                    targets = [f"{target}/{secret}", *(f"{target}?{query}" for query in (secret, *queries))]
                    heads = [*(f"GET {each} HTTP/1.1" for each in targets), f"POST {target} HTTP/1.1"]
                    for head in (*heads, f"{secret} {target} HTTP/1.1", f"GET {target} {secret}", secret):
                        yield head, _page(path, f"{head}\r\nAuthorization: {secret}\r\n{secret}: {secret}")
            finally:
                exporter.terminate()
    yield "the exporter's output", log.read_text()


def _page(path: Path, head: str) -> str:
    """Return the answer to a head, whose line Host is added."""
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as received:
        client.settimeout(patience.SECONDS)
        client.connect(str(path))
        client.sendall(f"{head}\r\nHost: node\r\n\r\n".encode())
        answer = received.read().decode()
    assert answer, head
    return answer
