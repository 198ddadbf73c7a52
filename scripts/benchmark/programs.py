"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

Owns their start, their end, their CPU time and memory, and what they counted.
Must not know: what is sent.
Invariant: each is a process of its own; a round in which a server counted other calls than were sent raises.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark import cases, hooks
from scripts.benchmark.cases import DIRECT, HOOKED, PIPE, PROXY
from scripts.demonstration.processes import DemoError, Program, wait_for_registration

STOP_SECONDS = 20.0
HOOKS = "hooks"
EVERY_PROGRAM = (DIRECT, PIPE, PROXY, HOOKED, HOOKS)
"""Programs go by the way that ends at them: the runtime by the direct one. The hook server is on none."""


@dataclass(frozen=True, slots=True)
class Served:
    """The programs of a round, in a folder of their own."""

    folder: Path
    programs: dict[str, Program] = field(default_factory=dict)
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls that h2load made, by way and method."""

    def socket(self, name: str) -> Path:
        """Name the socket that a program listens on."""
        return self.folder / f"{name}.sock"

    @property
    def client(self) -> Path:
        """Name the directory of h2load's files, which no proxy's watch on its registrations sees being written."""
        return self.folder / "client"

    def registrations(self, name: str) -> Path:
        """Name the directory of a proxy's registration files."""
        return self.folder / f"{name}-hooks" / "hookserver.d"

    def cpu_nanoseconds(self, name: str) -> int:
        """Return the CPU time that a program took so far."""
        # The kernel's clock id of another process's CPU time (clock_getcpuclockid(3), which Python does not have).
        return time.clock_gettime_ns(~self.programs[name].process.pid << 3 | 2)

    def resident_bytes(self, name: str) -> int:
        """Return the memory that a program has resident now."""
        status = Path(f"/proc/{self.programs[name].process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def has_loaded(self, name: str, module: str) -> bool:
        """Tell whether a program has loaded a compiled module, by a part of its path."""
        return module in Path(f"/proc/{self.programs[name].process.pid}/maps").read_text()


@contextmanager
def served(names: Sequence[str], list_bytes: int = cases.LIST_BYTES) -> Iterator[Served]:
    """Run programs, the runtime first; ``list_bytes`` is the size of its ListContainers reply.

    Raises DemoError, also at the end if a server counted other calls than were sent.
    """
    running = Served(Path(tempfile.mkdtemp(prefix="rp-bench-")))
    running.client.mkdir()
    try:
        with ExitStack() as stack:
            for name in names:
                running.registrations(name).mkdir(parents=True)
                stack.enter_context(_program(running, name, _arguments(running, name, list_bytes)))
            if HOOKS in names:
                wait_for_registration(running.programs[HOOKED], hooks.REGISTRATION)
            yield running
        _compare_counts(running)
    finally:
        shutil.rmtree(running.folder)


def _arguments(running: Served, name: str, list_bytes: int) -> list[str]:
    socket, runtime = str(running.socket(name)), str(running.socket(DIRECT))
    proxy = [
        *("runtimeproxy", "run"),
        f"--remote-runtime-service-endpoint={runtime}",
        f"--koord-runtimeproxy-endpoint={socket}",
        f"--admin-endpoint={running.folder / name}-admin.sock",
        f"--hookserver-config-dir={running.registrations(name)}",
    ]
    return {
        DIRECT: ["scripts.benchmark.runtime", socket, str(cases.LIST_CONTAINERS), str(list_bytes)],
        PIPE: ["tests.fakes.pipe", socket, runtime],
        PROXY: proxy,
        HOOKED: proxy,
        HOOKS: ["scripts.benchmark.hooks", socket, str(running.registrations(HOOKED))],
    }[name]


@contextmanager
def _program(running: Served, name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Run a Python module until the end of the block; its exit code must be 0 then, a pipe's is its signal."""
    log = running.folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=output, stderr=subprocess.STDOUT)
    program = running.programs[name] = Program(name, process, log)
    try:
        program.wait_until_it_listens(running.socket(name))
        yield
    finally:
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code != (-signal.SIGTERM if name == PIPE else 0):
        raise DemoError(f"{name} ended with exit code {code}; its output ends: {program.output()[-1500:]}")


def _compare_counts(running: Served) -> None:
    """Compare what the servers counted with what was sent. Raises DemoError."""
    for name, expected in expected_counts(running.sent).items():
        if name not in running.programs:
            continue
        counted = json.loads(running.programs[name].output().splitlines()[-1])
        if counted != expected:
            logs = [running.programs[proxy].output()[-500:] for proxy in (PROXY, HOOKED) if proxy in running.programs]
            raise DemoError(f"{name} answered {counted}, sent was {expected}; the proxies' logs end: {' '.join(logs)}")


def expected_counts(sent: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return what the runtime and the hook server must have counted if these calls were made by way and method."""
    runtime: Counter[str] = Counter()
    for (_, method), calls in sent.items():
        runtime[method] += calls
    return {DIRECT: dict(runtime), HOOKS: {hooks.POINT: sent.get((HOOKED, cases.CREATE.method), 0)}}
