"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, that hook server, clients.

A program is named by the way that leads to it: the runtime by the direct one. The hook server is on none. Runtime, hook
server and clients are the program of scripts/benchmark/load, on Go's libraries.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import NamedTuple

from scripts.benchmark.cases import DIRECT, DOCKER, HOOKED, PIPE, POINTS
from scripts.demonstration.processes import DemoError, Program, program
from tests.fakes import registration

HOOKS = "hooks"
REGISTRATION = "set-cpuset.json"
"""The name must not be contained in a path in the proxy's log before the file is read."""
PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""The interpreter of the proxies and the pipe."""
LOAD = str(Path(__file__).parents[2] / ".venv/bin/load")
"""The program on Go's libraries, which scripts/bench builds."""


class Run(NamedTuple):
    """The calls of one or more runs: the microseconds of each, the seconds of all together, the end of the last in
    nanoseconds since 1970."""

    microseconds: Sequence[int] = ()
    seconds: float = 0.0
    ended: int = 0

    def plus(self, other: "Run") -> "Run":
        return Run((*self.microseconds, *other.microseconds), self.seconds + other.seconds, other.ended)

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the calls did not exceed (nearest rank)."""
        return sorted(self.microseconds)[max(ceil(len(self.microseconds) * percent / 100), 1) - 1]


class Load:
    """A client of one method. Its connections stay open between the runs."""

    def __init__(self, process: "subprocess.Popen[str]", method: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout, self._method = process.stdin, process.stdout, method
        self._line()  # what the method's calls need was created

    def run(self, calls: int, pause: float = 0.0) -> Run:
        """Make calls, each after a pause in seconds; return their times. Raises DemoError if one fails."""
        self.start(calls, pause)
        return self.result()

    def start(self, calls: int, pause: float = 0.0) -> None:
        """Begin to make calls; ``result`` waits for them."""
        self._stdin.write(f"{calls} {round(pause * 1e6)}\n")
        self._stdin.flush()

    def result(self) -> Run:
        """Wait for the started calls; return their times. Raises DemoError if one failed."""
        answer = json.loads(self._line())
        if answer["error"]:
            raise DemoError(f"{self._method} failed: {answer['error']}")
        return Run(answer["microseconds"], answer["seconds"], answer["ended"])

    def _line(self) -> str:
        line = self._stdout.readline()
        if not line:
            raise DemoError(f"the client of {self._method} ended; its errors are above")
        return line


@contextmanager
def client(mode: str, socket: Path, method: str, *flags: str) -> Iterator[Load]:
    """Run a client until the end of the block. Raises DemoError."""
    command = [LOAD, "call", mode, str(socket), method, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Load(process, method)
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Served:
    """The running programs of a round, in a folder of their own."""

    folder: Path
    mode: str
    flags: Sequence[str]
    module: Sequence[str]
    programs: dict[str, Program] = field(default_factory=dict)
    clients: ExitStack = field(default_factory=ExitStack)
    """What must be closed before the programs are ended."""

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def admin_socket(self, name: str) -> Path:
        return self.folder / f"{name}-admin.sock"

    def registrations(self, name: str) -> Path:
        return self.folder / f"{name}-hooks" / "hookserver.d"

    def client(self, way: str, method: str, *flags: str) -> Load:
        """Return a client of a method, which runs as long as the programs."""
        return self.clients.enter_context(client(self.mode, self.socket(way), method, *flags))

    def proxy_command(self, name: str) -> list[str]:
        return [PYTHON, "-m", *self.module, *self.proxy_flags(name)]

    def proxy_flags(self, name: str) -> list[str]:
        return [
            *(*self.flags, f"--backend-runtime-mode={'Docker' if self.mode == DOCKER else 'Containerd'}"),
            f"--remote-runtime-service-endpoint={self.socket(DIRECT)}",
            f"--koord-runtimeproxy-endpoint={self.socket(name)}",
            f"--admin-endpoint={self.admin_socket(name)}",
            f"--hookserver-config-dir={self.registrations(name)}",
        ]

    @contextmanager
    def running(self, name: str, command: Sequence[str]) -> Iterator[Program]:
        """Run one of the programs until the end of the block."""
        self.registrations(name).mkdir(parents=True, exist_ok=True)
        with program(
            name, command, self.folder, code=-signal.SIGTERM if name in (PIPE, DIRECT, HOOKS) else 0
        ) as started:
            self.programs[name] = started
            started.wait_until_it_listens(self.socket(name))
            yield started


@contextmanager
def served(
    mode: str,
    names: Sequence[str],
    *,
    load: Sequence[str] = (),
    hooked: Sequence[str] = (HOOKED,),
    flags: Sequence[str] = (),
    module: Sequence[str] = ("runtimeproxy", "run"),
) -> Iterator[Served]:
    """Run programs, the runtime first; ``hooked`` are the proxies that the hook server is registered at. ``load`` has
    the flags of runtime and hook server, ``flags`` the proxies', ``module`` names another proxy. Raises DemoError, also
    if the hook server was not called."""
    with tempfile.TemporaryDirectory(prefix="rp-bench-") as made:
        running = Served(Path(made), mode, flags, module)
        commands = {
            DIRECT: [LOAD, "serve", mode, str(running.socket(DIRECT)), *load],
            PIPE: [PYTHON, "-m", "tests.fakes.pipe", str(running.socket(PIPE)), str(running.socket(DIRECT))],
            HOOKS: [LOAD, "serve", "hooks", str(running.socket(HOOKS)), *load],
        }
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(running.running(name, commands.get(name) or running.proxy_command(name)))
            if HOOKS in names:
                content = registration.text(str(running.socket(HOOKS)), POINTS)
                for way in hooked:
                    registration.write(running.registrations(way), REGISTRATION, content)
                    running.programs[way].wait_until_it_prints(REGISTRATION)
            with running.clients:
                yield running
        if HOOKS in names and not running.programs[HOOKS].output():
            logs = "\n".join(running.programs[way].output()[-500:] for way in hooked)
            raise DemoError(f"the hook server was not called; the proxies' logs end: {logs}")
