"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

A program is named by the way that leads to it: the runtime by the direct one. The hook server is on none.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.cases import DIRECT, DOCKER, HOOKED, PIPE, POINTS
from scripts.benchmark.loads import LOAD, Load, client
from scripts.demonstration.processes import DemoError, Program, program
from tests.fakes import registration

HOOKS = "hooks"
REGISTRATION = "set-cpuset.json"
"""The name must not be contained in a path in the proxy's log before the file is read."""
PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""The interpreter of the proxies and the pipe."""
PROXY_MODULE = ("runtimeproxy", "run")


@dataclass(frozen=True, slots=True)
class Served:
    """The running programs of a round, in a folder of their own."""

    folder: Path
    mode: str
    flags: Sequence[str] = ()
    module: Sequence[str] = PROXY_MODULE
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
        return [
            *(PYTHON, "-m", *self.module, *self.flags),
            *(["--backend-runtime-mode=Docker"] if self.mode == DOCKER else []),
            f"--remote-runtime-service-endpoint={self.socket(DIRECT)}",
            f"--koord-runtimeproxy-endpoint={self.socket(name)}",
            f"--admin-endpoint={self.admin_socket(name)}",
            f"--hookserver-config-dir={self.registrations(name)}",
        ]

    @contextmanager
    def running(self, name: str, command: Sequence[str]) -> Iterator[Program]:
        """Run one of the programs until the end of the block."""
        self.registrations(name).mkdir(parents=True, exist_ok=True)
        with program(name, command, self.folder, code=-signal.SIGTERM if name in (PIPE, DIRECT) else 0) as started:
            self.programs[name] = started
            started.wait_until_it_listens(self.socket(name))
            yield started


@contextmanager
def served(
    mode: str,
    names: Sequence[str],
    *,
    runtime: Sequence[str] = (),
    hooked: Sequence[str] = (HOOKED,),
    points: Sequence[str] = POINTS,
    policy: str = "Ignore",
    flags: Sequence[str] = (),
    module: Sequence[str] = PROXY_MODULE,
) -> Iterator[Served]:
    """Run programs, the runtime first; ``hooked`` are the proxies that the hook server is registered at. ``runtime``
    are the runtime's flags, ``flags`` the proxies', ``module`` another proxy. Raises DemoError, also if the hook server
    was not called."""
    with tempfile.TemporaryDirectory(prefix="rp-bench-") as made:
        running = Served(Path(made), mode, flags, module)
        commands = {
            DIRECT: [LOAD, "serve", mode, str(running.socket(DIRECT)), *runtime],
            PIPE: [PYTHON, "-m", "tests.fakes.pipe", str(running.socket(PIPE)), str(running.socket(DIRECT))],
            HOOKS: [LOAD, "hook", str(running.socket(HOOKS))],
        }
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(running.running(name, commands.get(name) or running.proxy_command(name)))
            if HOOKS in names:
                content = registration.text(str(running.socket(HOOKS)), points, policy)
                for way in hooked:
                    registration.write(running.registrations(way), REGISTRATION, content)
                    running.programs[way].wait_for_registration(REGISTRATION)
            with running.clients:
                yield running
        if HOOKS in names and not counts(running.programs[HOOKS].output()):
            raise DemoError(
                f"the hook server was not called; the log ends: {running.programs[hooked[0]].output()[-500:]}"
            )


def counts(output: str) -> dict[str, int] | None:
    """Return the counts in a server's output: its last JSON line, after which asyncio may log broken connections."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None
