"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

Owns their command lines, their start and their end, and the comparison of what they counted with what was sent.
Must not know: what is sent, what is measured.
Invariant: each is a process of its own; a round in which a server counted other calls than were sent raises.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.benchmark import cases
from scripts.benchmark.cases import DIRECT, HOOKED, PIPE, PROXY
from scripts.benchmark.modes import Mode
from scripts.benchmark.served import Served
from scripts.benchmark.transfers import BUFFER_BYTES
from scripts.demonstration.processes import DemoError, Program, wait_for_registration
from tests.fakes import registration

STOP_SECONDS = 20.0
HOOKS = "hooks"
OF_A_KUBELET = (DIRECT, PIPE, PROXY, HOOKED, HOOKS)
OF_A_LOAD = (DIRECT, PIPE, PROXY)
"""Programs go by the way that ends at them: the runtime by the direct one. The hook server is on none."""
REGISTRATION = "set-cpuset.json"
"""Its name stands in no path of the proxy's log before the file is read."""
PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""Runs the proxies and the pipe."""


@contextmanager
def served(
    mode: Mode, names: Sequence[str], *, peers: bool = False, list_bytes: int = cases.LIST_BYTES, share: float = 1.0
) -> Iterator[Served]:
    """Run programs, the runtime first; ``list_bytes`` is the size of its list, ``share`` that of a transfer's bytes.

    With ``peers`` it is the one of a kubelet's calls, and its list a small node's. Raises DemoError, also at the end if
    a server counted other calls than were sent.
    """
    whole_buffers = max(int(cases.TRANSFER_BYTES * share) // BUFFER_BYTES, 1)
    running = Served(Path(tempfile.mkdtemp(prefix="rp-bench-")), whole_buffers * BUFFER_BYTES)
    running.client.mkdir()
    try:
        with ExitStack() as stack:
            for name in names:
                running.registrations(name).mkdir(parents=True)
                stack.enter_context(program(running, name, _command(running, mode, name, peers, list_bytes)))
            if HOOKS in names:
                content = registration.text(str(running.socket(HOOKS)), list(mode.points))
                registration.write(running.registrations(HOOKED), REGISTRATION, content)
                wait_for_registration(running.programs[HOOKED], REGISTRATION)
            with running.connections:
                yield running
        _compare_counts(running, mode)
    finally:
        shutil.rmtree(running.folder)


def _command(running: Served, mode: Mode, name: str, peers: bool, list_bytes: int) -> list[str]:
    socket, runtime = str(running.socket(name)), str(running.socket(DIRECT))
    sizes = map(str, (cases.LIST_CONTAINERS, list_bytes, running.transfer_bytes))
    peer = [sys.executable, "-m", "scripts.benchmark.peers"]
    commands = {
        DIRECT: [*peer, mode.name, socket] if peers else [sys.executable, "-m", mode.server, socket, *sizes],
        PIPE: [PYTHON, "-m", "tests.fakes.pipe", socket, runtime],
        HOOKS: [*peer, "hook", socket],
    }
    return commands.get(name) or proxy_command(running, mode, name)


def proxy_command(running: Served, mode: Mode, name: str) -> list[str]:
    """Return the command line of a proxy of that name."""
    return [
        *(PYTHON, "-m", "runtimeproxy", "run", *mode.flags),
        f"--remote-runtime-service-endpoint={running.socket(DIRECT)}",
        f"--koord-runtimeproxy-endpoint={running.socket(name)}",
        f"--admin-endpoint={running.folder / name}-admin.sock",
        f"--hookserver-config-dir={running.registrations(name)}",
    ]


@contextmanager
def program(running: Served, name: str, command: Sequence[str]) -> Iterator[None]:
    """Run a program until the end of the block; its exit code must be 0 then, a pipe's is its signal."""
    log = running.folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    started = running.programs[name] = Program(name, process, log)
    try:
        started.wait_until_it_listens(running.socket(name))
        yield
    finally:
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code != (-signal.SIGTERM if name == PIPE else 0):
        raise DemoError(f"{name} ended with exit code {code}; its output ends: {started.output()[-1500:]}")


def _compare_counts(running: Served, mode: Mode) -> None:
    """Compare what the servers counted with what was sent. Raises DemoError."""
    for name, expected in expected_counts(mode, running.sent, running.made).items():
        if name not in running.programs:
            continue
        counted = counts(running.programs[name].output())
        if counted != expected:
            logs = [running.programs[proxy].output()[-500:] for proxy in (PROXY, HOOKED) if proxy in running.programs]
            raise DemoError(f"{name} answered {counted}, sent was {expected}; the proxies' logs end: {' '.join(logs)}")


def counts(output: str) -> dict[str, int] | None:
    """Read what a server counted: its last line in JSON, behind which asyncio may tell of connections that broke."""
    told = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(told[-1]) if told else None


def expected_counts(
    mode: Mode, sent: Mapping[tuple[str, str], int], made: Mapping[tuple[str, str], int]
) -> dict[str, dict[str, int]]:
    """Return what the runtime and the hook server must have counted: the runtime knows the calls of a load."""
    runtime: Counter[str] = Counter()
    for (_, route), calls in sent.items():
        runtime[route] += calls
    asked = {f"{point}Hook": made.get((HOOKED, route), 0) for point, route in mode.points.items()}
    return {DIRECT: dict(runtime), HOOKS: {method: calls for method, calls in asked.items() if calls}}
