"""A round of the hook servers: each as a process of its own, asked as the proxy asks, beside a bare one.

Owns the servers' start, the order of the calls, and the figures of one server.
Must not know: what is asked for, limits, how figures are shown.
Invariant: a server and the bare one take turns in portions with the same call; a call that fails, or an answer that
does not show the hook's work, is no measurement and raises.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from runtimeproxy.errors import HookError
from runtimeproxy.model import HookAnswer
from runtimeproxy.plugins.client import HookClient
from scripts.benchmark import hookservers
from scripts.benchmark.h2load import Run
from scripts.benchmark.hookservers import HOOK_SERVERS, HookServer
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError, program

CALLS = 2_000
PORTIONS = 5
WARM_UP_CALLS = 50
AT_ONCE = 16
"""As many calls as a server has threads: it has all of them, and their memory, from then on."""
TIMEOUT_SECONDS = 10.0
BARE = "bare"
MEMORY = Path("/dev/shm")
"""Where the node's files lie: in memory, as the kernel's own that they stand for."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One hook server: bytes resident before the first call and after all, its answers, those of the bare server."""

    idle: int
    resident: int
    own: Run
    bare: Run


Round = dict[str, Figures]
"""The figures of a round by the hook server's name."""


def one_round(share: float, servers: Sequence[HookServer] = HOOK_SERVERS) -> Round:
    """Start everything anew and measure the servers, one after the other; ``share`` of the calls is made.

    Raises DemoError.
    """
    with tempfile.TemporaryDirectory(prefix="rp-bench-", dir=MEMORY if MEMORY.is_dir() else None) as made:
        running = Served(Path(made))
        with hookservers.node(running.folder), _serving(running, BARE, ["scripts.benchmark.barehook"]):
            return {server.name: _measured(running, server, share) for server in servers}


def _measured(running: Served, server: HookServer, share: float) -> Figures:
    with _serving(running, server.name, ["runtimeproxy_hooks", *server.arguments(running.folder)]):
        return uvloop.run(_asked(running, server, max(int(CALLS * share / PORTIONS), 1)))


@contextmanager
def _serving(running: Served, name: str, module: Sequence[str]) -> Iterator[None]:
    """Run a hook server as a user starts it, until the end of the block. Raises DemoError."""
    socket = running.socket(name)
    flags = (f"--endpoint={socket}", f"--register-dir={running.registrations(name)}")
    with program(name, [sys.executable, "-m", *module, *flags], running.folder) as started:
        running.programs[name] = started
        started.wait_until_it_listens(socket)
        yield


async def _asked(running: Served, server: HookServer, calls: int) -> Figures:
    """Measure a server that runs; ``calls`` are those of a portion."""
    async with AsyncExitStack() as stack:
        own, bare = (_Asker(stack, name, str(running.socket(name)), server) for name in (server.name, BARE))
        idle = running.resident_bytes(server.name)
        await own.check(running.folder)
        for asker in (own, bare):
            await asker.ask(WARM_UP_CALLS)
        taken: dict[_Asker, Run] = {own: Run((), 0.0), bare: Run((), 0.0)}
        for turn in range(PORTIONS):
            for asker in (own, bare) if turn % 2 else (bare, own):
                taken[asker] += await asker.ask(calls)
        await asyncio.gather(*(own.ask(WARM_UP_CALLS) for _ in range(AT_ONCE)))
        return Figures(idle, running.resident_bytes(server.name), taken[own], taken[bare])


class _Asker:
    """Makes a row's call to the server at ``socket`` until ``stack`` ends. Its methods raise DemoError."""

    def __init__(self, stack: AsyncExitStack, name: str, socket: str, row: HookServer) -> None:
        self._name, self._row, self._request = name, row, row.request
        self._client = HookClient(name, socket)
        stack.push_async_callback(self._client.close)

    async def check(self, folder: Path) -> None:
        """Make a call, and see what the hook does in its answer and on the node in ``folder``."""
        found = hookservers.changed(self._request, await self._call())
        if found != self._row.changes:
            expected = ", ".join(sorted(self._row.changes)) or "nothing"
            raise DemoError(f"{self._name} changed {', '.join(sorted(found)) or 'nothing'}, it should: {expected}")
        if self._row.written and not (folder / self._row.written).read_text():
            raise DemoError(f"{self._name} wrote nothing into {self._row.written}")

    async def ask(self, calls: int) -> Run:
        """Make calls, one after the other."""
        began = time.perf_counter()
        took = [await self._timed() for _ in range(calls)]
        return Run(tuple(took), time.perf_counter() - began)

    async def _timed(self) -> int:
        """Make a call; return its microseconds."""
        began = time.perf_counter_ns()
        await self._call()
        return (time.perf_counter_ns() - began) // 1000

    async def _call(self) -> HookAnswer:
        try:
            return await self._client.call(self._row.point, self._request, TIMEOUT_SECONDS)
        except HookError as error:
            raise DemoError(str(error)) from None
