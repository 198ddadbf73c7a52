"""The programs of a round: the runtime, the pipe, a proxy without a hook server, one with, and that hook server.

Owns their start, their end, their CPU time and memory, and what they counted.
Must not know: what is sent.
Invariant: each is a process of its own; a round in which the servers' counts differ from what was sent raises.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark import cases, hooks
from scripts.benchmark.cases import DIRECT, HOOKED, PIPE, PROXY
from scripts.demonstration.processes import DemoError, Program, wait_for_registration

STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a round drives: the socket of each way, and the program whose CPU time is measured on it."""

    folder: Path
    sockets: dict[str, Path]
    measured: dict[str, Program]
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls made by h2load, by way and method."""


@contextmanager
def served(ways: Sequence[str], list_bytes: int = cases.LIST_BYTES) -> Iterator[Served]:
    """Run what the ways need; ``list_bytes`` is the size of the runtime's ListContainers reply.

    Raises DemoError, also at the end if a server counted other calls than were sent.
    """
    folder = Path(tempfile.mkdtemp(prefix="rp-bench-"))
    sockets = {way: folder / f"{way}.sock" for way in ways}
    try:
        running = Served(folder, sockets, {})
        with ExitStack() as stack:
            arguments = [str(sockets[DIRECT]), str(cases.LIST_CONTAINERS), str(list_bytes)]
            runtime = stack.enter_context(_started("runtime", "scripts.benchmark.runtime", arguments, running, DIRECT))
            for way in ways:
                if way != DIRECT:
                    running.measured[way] = stack.enter_context(_START[way](running))
            yield running
        _compare(runtime, _sums(running.sent, 1))
    finally:
        shutil.rmtree(folder)


def _pipe(running: Served) -> "_Starting":
    arguments = [str(running.sockets[PIPE]), str(running.sockets[DIRECT])]
    return _started(PIPE, "tests.fakes.pipe", arguments, running, PIPE, ends_with=-signal.SIGTERM)


def _proxy(running: Served, way: str = PROXY) -> "_Starting":
    flags = [
        f"--remote-runtime-service-endpoint={running.sockets[DIRECT]}",
        f"--koord-runtimeproxy-endpoint={running.sockets[way]}",
        f"--admin-endpoint={running.folder / way}-admin.sock",
        f"--hookserver-config-dir={_registrations(running, way)}",
    ]
    return _started(way, "runtimeproxy", ["run", *flags], running, way)


@contextmanager
def _hooked(running: Served) -> Iterator[Program]:
    with _proxy(running, HOOKED) as proxy:
        running.sockets["hooks"] = running.folder / "hooks.sock"
        arguments = [str(running.sockets["hooks"]), str(_registrations(running, HOOKED))]
        with _started("hooks", "scripts.benchmark.hooks", arguments, running, "hooks") as server:
            wait_for_registration(proxy, "bench.json")
            yield proxy
    _compare(server, Counter({hooks.POINT: running.sent[HOOKED, cases.CREATE.method]}))


_START = {PIPE: _pipe, PROXY: _proxy, HOOKED: _hooked}


def _registrations(running: Served, way: str) -> Path:
    """Name the directory of a proxy's registration files, nothing else in it or beside it changes."""
    directory = running.folder / f"{way}-hooks" / "hookserver.d"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
