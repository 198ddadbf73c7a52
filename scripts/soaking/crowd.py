"""Very many calls at once, and small calls beside lists of 16 MiB: is anybody refused, is anybody starved (fault matrix
S3, promises 10 and 11).

Where all calls of a crowd begin at one time, the last one waits for all others: that is twice what half of them take.
Where calls follow one another on connections of their own, the first ones wait for all connections to be made, which
takes many times what a call does, and so does a pause that another program makes on the machine. There a call's wait is
counted in calls that ended meanwhile: nobody's does in such a pause, and who is starved sees those of others end.

Owns the crowds, the turns of direct calls and of calls through the proxy, the figures and their limits.
Must not know: how figures are shown.
Invariant: a call that fails raises; direct calls and those through the proxy take turns, so that what else the machine
does meets both alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_low
from threading import Event

from scripts.benchmark import programs
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, DOCKER_LIST, LIST, PING, PROXY, SMALL, Case
from scripts.benchmark.h2load import H2load, Run
from scripts.benchmark.measure import send
from scripts.benchmark.memory import HUGE_LIST_BYTES
from scripts.benchmark.modes import MODES, Mode
from scripts.benchmark.served import Served
from scripts.soaking import execs, loads
from scripts.soaking.execs import EXEC, Execs

TURNS = 5
RATIO = 5.0
"""The slowest call of a crowd may take so many times what half of them take, whatever the runtime's own calls do: what
of a proxy is many times as unfair as it was must not pass because a runtime alone is worse than any proxy (as one in
Python is to connections that are new)."""
BESIDE_MICROSECONDS = 50_000
"""p99 of a small call beside lists of 16 MiB."""
BESIDE_CALLS = 2_000
"""Small calls of a turn beside the lists."""

EXEC_SYNC = Case(CRI, "ExecSync", "ExecSync", 4_000, concurrency=200)
STREAMS = Case(CRI, "1,000 streams of one connection", SMALL.route, 20_000, concurrency=1_000)
CONNECTIONS = Case(CRI, "100 connections of 10 streams", SMALL.route, 20_000, concurrency=1_000)
ALL_AT_ONCE = Case(DOCKER, "1,000 connections at once", PING.route, TURNS * 1_000, concurrency=1_000)
DOCKER_CONNECTIONS = Case(DOCKER, "100 connections, in calls", PING.route, 20_000, concurrency=100)
CLIENTS = {CONNECTIONS: 100}
"""Where streams are of several connections."""
IN_CALLS = frozenset({DOCKER_CONNECTIONS})
"""Where a wait is counted in calls that ended meanwhile."""
CROWDS: Mapping[str, tuple[Case, ...]] = {
    CRI: (STREAMS, CONNECTIONS, EXEC_SYNC),
    DOCKER: (ALL_AT_ONCE, DOCKER_CONNECTIONS, EXEC),
}
LISTS = {CRI: (SMALL, LIST), DOCKER: (PING, DOCKER_LIST)}
"""By mode: the small call, and the list beside it."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A crowd on one way: p99 in microseconds and the slowest call to half of them, both the median over the turns."""

    case: Case
    way: str
    p99: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Crowded:
    """Every crowd on every way; p99 of small calls through the proxy beside lists, in microseconds, turn by turn."""

    crowds: Sequence[Crowd]
    beside: Sequence[int]

    @property
    def ratios(self) -> Mapping[Case, tuple[float, float]]:
        """Return each crowd's ratio directly and through the proxy."""
        found = {(crowd.case, crowd.way): crowd.ratio for crowd in self.crowds}
        return {case: (found[case, DIRECT], ratio) for (case, way), ratio in found.items() if way == PROXY}

    @property
    def p99_beside(self) -> float:
        """Return the median over the turns."""
        return median(self.beside)


@dataclass(frozen=True, slots=True)
class _Clients(H2load):
    """Calls whose streams are of several connections."""

    clients: int = 1

    def _protocol(self, concurrency: int) -> tuple[str, ...]:
        return (f"--clients={self.clients}", f"--max-concurrent-streams={concurrency // self.clients}")


def measure(name: str, share: float) -> Crowded:
    """Measure a proxy in the mode of this name; ``share`` of the calls is made. Raises DemoError."""
    mode = MODES[name]
    with programs.served(mode, (DIRECT, PROXY)) as served:
        crowds = [crowd for case in CROWDS[name] for crowd in _crowds(served, mode, case, share)]
    with programs.served(mode, (DIRECT, PROXY), list_bytes=HUGE_LIST_BYTES) as served:
        beside = [_beside_lists(served, mode, max(int(BESIDE_CALLS * share), 1)) for _ in range(TURNS)]
    return Crowded(crowds, beside)


def _crowds(served: Served, mode: Mode, case: Case, share: float) -> Iterator[Crowd]:
    loads = {way: _load(served, mode, case, way) for way in (DIRECT, PROXY)}
    runs: dict[str, list[Run]] = {way: [] for way in loads}
    calls = max(int(case.calls * share) // TURNS, case.concurrency)
    for _ in range(TURNS):
        for way, load in loads.items():
            runs[way].append(send(served, case, way, load, calls))
    for way, made in runs.items():
        ratio = median(_ratio(case, run) for run in made)
        yield Crowd(case, way, median(run.percentile(99) for run in made), ratio)


def _ratio(case: Case, run: Run) -> float:
    waited = run.meanwhile if case in IN_CALLS else run.microseconds
    return max(waited) / median_low(waited)


def _load(served: Served, mode: Mode, case: Case, way: str) -> H2load | Execs:
    if case is EXEC:
        return execs.prepare(served, case, way)
    if case is EXEC_SYNC:
        return loads.exec_sync(served, case, way)
    load = mode.prepare(served, case, way)
    assert isinstance(load, H2load)
    if case not in CLIENTS:
        return load
    return _Clients(load.case, load.socket, load.files, load.headers, load.targets, load.body, CLIENTS[case])


def _beside_lists(served: Served, mode: Mode, calls: int) -> int:
    small, _ = LISTS[mode.name]
    load = mode.prepare(served, small, PROXY)
    with _lists(served, mode):
        return send(served, small, PROXY, load, calls).percentile(99)


@contextmanager
def _lists(served: Served, mode: Mode) -> Iterator[None]:
    """Ask for lists without a pause until the end of the block. Raises DemoError if one fails."""
    _, case = LISTS[mode.name]
    load = mode.prepare(served, case, PROXY)
    over = Event()

    def ask() -> None:
        while not over.is_set():
            send(served, case, PROXY, load, 2)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()
