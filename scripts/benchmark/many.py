"""Many calls, and what they cost other calls: is any call refused or starved?

The loads are creates whose hook server hangs (promise 5, fault matrix H3) or that the runtime does not answer (fault
matrix B4), crowds of calls (fault matrix S3, promise 11), lists of 16 MiB (fault matrix S2, promise 10), and full nodes
(fault matrix S1, promise 13). A call that fails raises. Compared measurements alternate, so that other load on the
machine affects both.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median, median_low

from scripts.benchmark import cases
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, HOOKED, PROXY
from scripts.benchmark.measure import ROUNDS, started
from scripts.benchmark.programs import HOOKS, REGISTRATION, Load, Run, Served, served
from scripts.demonstration.processes import DemoError
from scripts.figures import MIB, Figure, at_most
from tests.fakes import registration

PROXIES = (PROXY, HOOKED)

# ---- other calls while creates wait

WAITS = (
    ("100 creates that a hook server holds", 100, 1.05, HOOKS, (signal.SIGSTOP, signal.SIGCONT)),
    ("20 creates that the runtime does not answer", 20, 1.10, DIRECT, (signal.SIGUSR1, signal.SIGUSR2)),
)
"""What makes creates wait, and how many; the most p99 of a call meanwhile, relative to that at another proxy before
the same runtime; the program that the two signals make wait and continue."""
PERIODS = 4
CALLS = {case: count for small, listed in cases.PASSING for case, count in ((small, 25_000), (listed, 10_000))}
"""The other calls of a period, to each proxy: enough for p99 to be known within some hundredths."""
PORTION = 200
"""This many calls take less than a second: pauses of a shared machine are longer than the effect in question."""
PATIENCE = 1200.0
PATIENT = (f"--hook-timeout={PATIENCE}s", f"--hook-budget={PATIENCE}s")
WAIT_SECONDS = 1.0
"""After this time all creates wait."""
SIGNAL_SECONDS = 0.2
"""The time that a busy program may take to act on a signal."""


def waiting(mode: str, share: float) -> Iterator[Figure]:
    """Make creates wait at one proxy after the other; compare the other calls at that proxy with those at the other."""
    calls = {case: max(int(number * share), 1) for case, number in CALLS.items() if case.mode == mode}
    for what, count, bound, program, signals in WAITS:
        runs = {(case, at_it): Run() for case in calls for at_it in (True, False)}
        names, load = (DIRECT, *PROXIES, HOOKS), [f"--list={MIB}"]
        with served(mode, names, load=load, hooked=PROXIES, flags=PATIENT) as running:
            flags = (f"--concurrency={count}", f"--connections={count}")
            creates = {way: running.client(way, cases.CREATES[mode].method, *flags) for way in PROXIES}
            loads = {(case, way): running.client(way, case.method) for case in calls for way in PROXIES}
            pid = running.programs[program].process.pid
            for period in range(PERIODS):
                it = PROXIES[period % 2]
                with _held(creates[it], count, pid, *signals):
                    for case, done in ((each, done) for each in calls for done in range(0, calls[each], PORTION)):
                        for way in PROXIES[:: (1, -1)[done // PORTION % 2]]:
                            part = loads[case, way].run(min(PORTION, calls[case] - done))
                            runs[case, way == it] = runs[case, way == it].plus(part)
        for case in calls:
            here, there = (runs[case, at_it].percentile(99) for at_it in (True, False))
            shown = f"{here / there:.2f} ({here:,} us to {there:,} us)"
            name = f"{case.name}: p99 during {what} to that at another proxy"
            yield Figure(name, shown, f"{bound:.2f}", here / there <= bound)


@contextmanager
def _held(creates: Load, count: int, pid: int, at_begin: int, at_end: int) -> Iterator[None]:
    """Make creates wait until the end of the block, by signals to a program. Raises DemoError if they did not wait, or
    if one fails."""
    os.kill(pid, at_begin)
    try:
        time.sleep(SIGNAL_SECONDS)
        creates.start(count)
        time.sleep(WAIT_SECONDS)
        began = time.monotonic()
        yield
        held = time.monotonic() - began
    finally:
        os.kill(pid, at_end)
    if min(creates.result().microseconds) < held * 1e6:
        raise DemoError("the creates did not wait, so nothing was measured during them")


# ---- crowds, and long lists

CROWD_RUNS = 5
CROWD_RATIO = 5.0
"""Most duration of a crowd's slowest call, relative to the median, however unfair the runtime itself is: all calls of a
crowd begin at the same time, so that the last one waits for all others."""
CROWDS = {
    CRI: (
        ("1,000 streams of one connection", "Version", 20_000, 1_000, 1),
        ("100 connections of 10 streams", "Version", 20_000, 1_000, 100),
        ("200 ExecSync", "ExecSync", 4_000, 200, 1),
    ),
    DOCKER: (("1,000 connections", "ping", CROWD_RUNS * 1_000, 1_000, 1),),
}
"""The crowd, its method, the number of calls, of calls at a time, and of connections if streams share them."""
HUGE_LIST_BYTES = (16 << 20) - (16 << 10)
"""The longest reply that the kubelet accepts over CRI: its limit of 16 MiB less some room."""
SMALL_CALLS, SMALL_MS = 2_000, 50


def crowded(mode: str, share: float) -> Iterator[Figure]:
    """Measure many calls at the same time, and small ones during lists of 16 MiB."""
    with served(mode, (DIRECT, PROXY)) as running:
        for row in CROWDS[mode]:
            yield crowd(running, *row, share)
    small, listed = (case.method for case in cases.PASSING[cases.MODES.index(mode)])
    with ThreadPoolExecutor(1) as pool, served(mode, (DIRECT, PROXY), load=[f"--list={HUGE_LIST_BYTES}"]) as running:
        load, lists, p99s = running.client(PROXY, small), running.client(PROXY, listed), []
        lists.run(1)
        for _ in range(CROWD_RUNS):
            calling = pool.submit(load.run, max(int(SMALL_CALLS * share), 1))
            while not calling.done():
                lists.run(2)
            p99s.append(calling.result().percentile(99) / 1000)
    yield at_most("p99 of a small call during lists of 16 MiB", median(p99s), SMALL_MS, " ms", digits=1)


def crowd(running: Served, name: str, method: str, calls: int, together: int, connections: int, share: float) -> Figure:
    """Make a crowd's calls directly and through the proxy; compare the slowest with the median."""
    flags = (f"--concurrency={together}", f"--connections={connections}")
    loads = {way: running.client(way, method, *flags) for way in (DIRECT, PROXY)}
    ratios: dict[str, list[float]] = {way: [] for way in loads}
    for _ in range(CROWD_RUNS):
        for way, load in loads.items():
            run = load.run(max(int(calls * share) // CROWD_RUNS, together))
            ratios[way].append(max(run.microseconds) / median_low(run.microseconds))
    direct, through = median(ratios[DIRECT]), median(ratios[PROXY])
    shown = f"{through:.1f} (directly {direct:.1f})"
    return Figure(f"{name}: the slowest to the median", shown, f"{CROWD_RATIO:.1f}", through <= CROWD_RATIO)


# ---- full nodes

PODS, RECORDS_PODS, CONTAINERS = 1_000, 2_500, 3
"""A full node, and one with 10,000 records in all; each pod has this many containers."""
READY_SECONDS, COMPLETE_SECONDS = 1, 5
RECORDS_MIB = 64
LOADED_SECONDS = 300.0
_KNOWN = "the runtime's state is known"
_LOADED = re.compile(rf"{_KNOWN} \(pods: (\d+), containers: (\d+), read: \d+ in ([0-9.]+) s\)")


def full_nodes(mode: str, share: float) -> Iterator[Figure]:
    """Start a proxy on a full node (fault matrix S1), and on one with 10,000 records (promise 13). The hook server that
    is registered is never called, but so everything is read. Raises DemoError."""
    for pods in (PODS, RECORDS_PODS):
        node = (f"--pods={max(int(pods * share), 1)}", f"--containers={CONTAINERS}")
        with served(mode, (DIRECT, PROXY), load=node) as running:
            with started(running, "start") as ready:
                proxy = running.programs[PROXY]
            idle = proxy.memory()
            content = registration.text(str(running.folder / "nobody.sock"))
            registration.write(running.registrations(PROXY), REGISTRATION, content)
            proxy.wait_until_it_prints(_KNOWN, LOADED_SECONDS)
            growth, loaded = proxy.memory() - idle, _LOADED.search(proxy.output())
        assert loaded is not None
        read = f"{int(loaded[1]):,} pods and {int(loaded[2]):,} containers"
        if pods == PODS:
            yield at_most(f"seconds from the start to the first answer, with {read}", ready, READY_SECONDS)
            yield at_most(f"seconds to read the state once needed, with {read}", float(loaded[3]), COMPLETE_SECONDS)
        else:
            yield at_most(f"memory of {read}", growth / MIB, RECORDS_MIB, " MiB", digits=1)


# ---- all of it


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Measure each load once, with all its calls in ``ROUNDS`` rounds and a part of them in fewer; return no table but
    the figures. Raises DemoError."""
    figures = []
    for mode in cases.MODES:
        for load in (waiting, crowded, full_nodes):
            print(f"many, {mode}, {load.__name__}", flush=True)
            figures += [
                figure._replace(what=f"{mode}, {figure.what}") for figure in load(mode, share * rounds / ROUNDS)
            ]
    return [], figures
