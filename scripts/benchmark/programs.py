"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

A program goes by the way that ends at it: the runtime by the direct one. The hook server is on none. A round in which a
server counted other calls than were sent raises DemoError.
"""

import json
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.cases import DIRECT, DOCKER, HOOKED, PIPE, POINTS, TRANSFER_BYTES
from scripts.benchmark.ends import CLIENTS, SECONDS, CriClient, DockerClient
from scripts.benchmark.loads import BUFFER_BYTES, Load, Run
from scripts.demonstration.processes import DemoError, Program, program, wait_for_registration
from tests.fakes import registration

HOOKS = "hooks"
REGISTRATION = "set-cpuset.json"
"""Its name stands in no path of the proxy's log before the file is read."""
PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""Runs the proxies and the pipe."""


@dataclass(frozen=True, slots=True)
class Served:
    """The programs of a round while they run, in a folder of their own, and the calls that they are to count."""

    folder: Path
    mode: str
    transfer_bytes: int = TRANSFER_BYTES
    flags: Sequence[str] = ()
    programs: dict[str, Program] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    """Calls of a load by their routes: the runtime counts them."""
    made: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls by way and route, those that hook servers are asked about among them."""
    connections: ExitStack = field(default_factory=ExitStack)
    """What is to be closed before the programs are ended."""

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def registrations(self, name: str) -> Path:
        return self.folder / f"{name}-hooks" / "hookserver.d"

    def client(self, way: str, seconds: float = SECONDS) -> CriClient | DockerClient:
        """Connect a kubelet, which waits so long for an answer."""
        client = CLIENTS[self.mode](self.socket(way), self.made[way], seconds)
        self.connections.callback(client.close)
        return client

    def send(self, way: str, route: str, load: Load, calls: int) -> Run:
        """Make the calls of a load, and note how many; a kubelet notes its own."""
        self.sent[route] += calls
        self.made[way][route] += calls
        return load.run(calls)

    def proxy_command(self, name: str) -> list[str]:
        return [
            *(PYTHON, "-m", "runtimeproxy", "run", *self.flags),
            *(["--backend-runtime-mode=Docker"] if self.mode == DOCKER else []),
            f"--remote-runtime-service-endpoint={self.socket(DIRECT)}",
            f"--koord-runtimeproxy-endpoint={self.socket(name)}",
            f"--admin-endpoint={self.folder / name}-admin.sock",
            f"--hookserver-config-dir={self.registrations(name)}",
        ]

    @contextmanager
    def running(self, name: str, command: Sequence[str]) -> Iterator[Program]:
        """Run one of the programs until the end of the block."""
        self.registrations(name).mkdir(parents=True, exist_ok=True)
        with program(name, command, self.folder, code=-signal.SIGTERM if name == PIPE else 0) as started:
            self.programs[name] = started
            started.wait_until_it_listens(self.socket(name))
            yield started

    def compare_counts(self, hooked: Sequence[str], points: Sequence[str]) -> None:
        """Compare what the servers counted with what was sent. Raises DemoError."""
        asked = {f"{point}Hook": sum(self.made[way][POINTS[point][self.mode]] for way in hooked) for point in points}
        for name, expected in {DIRECT: self.sent, HOOKS: asked}.items():
            if name in self.programs:
                counted = counts(self.programs[name].output())
                if counted != {route: calls for route, calls in expected.items() if calls}:
                    logs = [each.output()[-500:] for way, each in self.programs.items() if way not in (DIRECT, HOOKS)]
                    raise DemoError(f"{name} answered {counted}, sent was {expected}; logs end: {' '.join(logs)}")


@contextmanager
def served(
    mode: str,
    names: Sequence[str],
    *,
    share: float = 1.0,
    list_bytes: int = 0,
    runtime: Sequence[str] = (),
    hooked: Sequence[str] = (HOOKED,),
    points: Sequence[str] = tuple(POINTS),
    policy: str = "Ignore",
    flags: Sequence[str] = (),
) -> Iterator[Served]:
    """Run programs, the runtime first; ``hooked`` are the proxies at which the hook server is registered.

    ``list_bytes`` is the size of the runtime's list, the least where it is 0; ``share`` that of a transfer's bytes.
    ``runtime`` is the module and the arguments of another runtime, which counts nothing. Raises DemoError.
    """
    transfer_bytes = max(int(TRANSFER_BYTES * share) // BUFFER_BYTES, 1) * BUFFER_BYTES
    with tempfile.TemporaryDirectory(prefix="rp-bench-") as made:
        running = Served(Path(made), mode, transfer_bytes, flags)
        peer = [sys.executable, "-m", "scripts.benchmark.peers"]
        commands = {
            DIRECT: [*peer, mode, str(running.socket(DIRECT)), "0", str(list_bytes), str(transfer_bytes)],
            PIPE: [PYTHON, "-m", "tests.fakes.pipe", str(running.socket(PIPE)), str(running.socket(DIRECT))],
            HOOKS: [*peer, "hook", str(running.socket(HOOKS))],
        }
        if runtime:
            commands[DIRECT] = [sys.executable, "-m", *runtime, str(running.socket(DIRECT))]
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(running.running(name, commands.get(name) or running.proxy_command(name)))
            if HOOKS in names:
                content = registration.text(str(running.socket(HOOKS)), points, policy)
                for way in hooked:
                    registration.write(running.registrations(way), REGISTRATION, content)
                    wait_for_registration(running.programs[way], REGISTRATION)
            with running.connections:
                yield running
        if not runtime:
            running.compare_counts(hooked, points)


def counts(output: str) -> dict[str, int] | None:
    """Read what a server counted: its last line in JSON, behind which asyncio may tell of connections that broke."""
    told = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(told[-1]) if told else None
