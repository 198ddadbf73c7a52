"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

A program is named by the way that leads to it: the runtime by the direct one. The hook server is on none. If a server
counted other calls than were sent, DemoError is raised.
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
from scripts.benchmark.loads import BUFFER_BYTES, H2load, Kubelet, Run, Transfer
from scripts.demonstration.processes import DemoError, Program, program, wait_for_registration
from tests.fakes import registration

HOOKS = "hooks"
REGISTRATION = "set-cpuset.json"
"""The name must not be contained in a path in the proxy's log before the file is read."""
PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""The interpreter of the proxies and the pipe."""
PROXY_MODULE = ("runtimeproxy", "run")


@dataclass(frozen=True, slots=True)
class Served:
    """The running programs of a round, in a folder of their own, and the number of calls that they must count."""

    folder: Path
    mode: str
    transfer_bytes: int = TRANSFER_BYTES
    flags: Sequence[str] = ()
    module: Sequence[str] = PROXY_MODULE
    programs: dict[str, Program] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    """Calls of a load by route, which the runtime counts."""
    made: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls of kubelets by way and route."""
    connections: ExitStack = field(default_factory=ExitStack)
    """What must be closed before the programs are ended."""

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def admin_socket(self, name: str) -> Path:
        return self.folder / f"{name}-admin.sock"

    def registrations(self, name: str) -> Path:
        return self.folder / f"{name}-hooks" / "hookserver.d"

    def client(self, way: str, seconds: float = SECONDS) -> CriClient | DockerClient:
        """Return a connected kubelet that waits ``seconds`` for an answer."""
        client = CLIENTS[self.mode](self.socket(way), self.made[way], seconds)
        self.connections.callback(client.close)
        return client

    def send(self, way: str, route: str, load: Kubelet | H2load | Transfer, calls: int) -> Run:
        """Make the calls of a load, and count them; a kubelet counts its own, and the runtime does not."""
        if not isinstance(load, Kubelet):
            self.sent[route] += calls
        return load.run(calls)

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
        with program(name, command, self.folder, code=-signal.SIGTERM if name == PIPE else 0) as started:
            self.programs[name] = started
            started.wait_until_it_listens(self.socket(name))
            yield started

    def compare_counts(self, hooked: Sequence[str], points: Sequence[str]) -> None:
        """Compare what the servers counted with what was sent. Raises DemoError."""
        hooks = {f"{point}Hook": sum(self.made[way][POINTS[point][self.mode]] for way in hooked) for point in points}
        for name, expected in {DIRECT: self.sent, HOOKS: hooks}.items():
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
    module: Sequence[str] = PROXY_MODULE,
) -> Iterator[Served]:
    """Run programs, the runtime first; ``hooked`` are the proxies that the hook server is registered at.

    ``list_bytes`` is the size of the runtime's list, minimal if 0; ``share`` is that of a transfer's bytes. ``runtime``
    is the module and the arguments of another runtime, which counts nothing, ``module`` those of another proxy. Raises
    DemoError.
    """
    transfer_bytes = max(int(TRANSFER_BYTES * share) // BUFFER_BYTES, 1) * BUFFER_BYTES
    with tempfile.TemporaryDirectory(prefix="rp-bench-") as made:
        running = Served(Path(made), mode, transfer_bytes, flags, module)
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
    """Return the counts in a server's output: its last JSON line, after which asyncio may log broken connections."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None
