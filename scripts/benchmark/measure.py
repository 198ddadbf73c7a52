"""The rounds of the bench: every case on each of its ways; and the proxy by itself: its start and its memory.

The ways of a case are measured in alternating portions, so that other load on the machine affects all alike.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from scripts.benchmark import cases
from scripts.benchmark.cases import CRI, DIRECT, HOOKED, PROXY, Case, Figures, Round
from scripts.benchmark.programs import HOOKS, Load, Run, Served, client, served
from scripts.figures import MIB, Figure, at_most

ROUNDS = 5
PORTIONS = 10
WARM_UP_CALLS = 50

START_SECONDS, STARTS = 0.2, 5
IDLE_MIB = {CRI: 34, cases.DOCKER: 43}
RESIDENT_MIB, RECORDS = 45, 100
GROWTH_MIB, CALLS = 1, 100_000
SETTLE_SECONDS = 3.0
"""After so many seconds the proxy's own work after its start is done, and does not count for the calls."""
UNLOADED = {CRI: {"aiohttp": "/aiohttp/", "grpcio": "/grpc/_cython/"}, cases.DOCKER: {"grpcio": "/grpc/_cython/"}}
"""What an idle proxy must not have loaded, by a part of its path; in Docker mode aiohttp is loaded to follow events."""


def one_round(mode: str, share: float) -> Round:
    """Start all programs and measure every case, with ``share`` of its calls. Raises DemoError."""
    flag = f"--transfer={max(int(cases.TRANSFER_BYTES * share), 1)}"
    measured: Round = {}
    with served(mode, (*cases.WAYS, HOOKS), load=[flag]) as running:
        for case in (case for case in cases.CASES if case.mode == mode):
            loads = {way: running.client(way, case.method, flag) for way in case.ways}
            measured |= _measured(running, case, loads, 1 if case in (cases.EXPORT, cases.IMPORT) else share)
    return measured


def _measured(running: Served, case: Case, loads: Mapping[str, Load], share: float) -> Round:
    portions = min(PORTIONS, case.calls)
    calls = max(int(case.calls * share / portions), 1)
    for load in loads.values():
        load.run(min(WARM_UP_CALLS, max(case.calls // 10, 1)), case.pause)
    runs, cpu, growth = dict.fromkeys(loads, Run()), dict.fromkeys(loads, 0), dict.fromkeys(loads, 0)
    for portion in range(portions):
        first = portion % len(case.ways)
        for way in case.ways[first:] + case.ways[:first]:
            program = running.programs[way]
            program.start_peak()
            memory, used = program.memory(), program.cpu_nanoseconds()
            runs[way] = runs[way].plus(loads[way].run(calls, case.pause))
            cpu[way] += program.cpu_nanoseconds() - used
            growth[way] = max(growth[way], program.memory("VmHWM") - memory)
    measured = {}
    for way, run in runs.items():
        count, known = len(run.microseconds), 1 if way != DIRECT else float("nan")
        costs = (known * cpu[way] / 1000 / count, known * growth[way] / MIB)
        measured[case, way] = Figures(run.percentile(50), run.percentile(99), count / run.seconds, *costs)
    return measured


# ---- the proxy by itself


def resident(mode: str, share: float) -> list[Figure]:
    """Measure proxies: idle; with the records of hooked calls; over many calls, with ``share`` of them."""
    calls = max(int(CALLS * share), 1)
    with served(mode, (DIRECT, PROXY)) as running:
        time.sleep(SETTLE_SECONDS)
        idle, mapped = running.programs[PROXY].memory(), running.programs[PROXY].proc("maps")
        starts = []
        for number in range(STARTS):
            with started(running, f"start-{number}") as seconds:
                starts.append(seconds)
    with served(mode, (DIRECT, HOOKED, HOOKS)) as running:
        proxy = running.programs[HOOKED]
        running.client(HOOKED, cases.CREATES[mode].method).run(RECORDS - 1)  # one record is the pod's
        time.sleep(SETTLE_SECONDS)
        with_records = proxy.memory()
        small = running.client(HOOKED, cases.SMALL[mode].method)
        after = [small.run(calls) and proxy.memory() for _ in range(2)]
    loaded = ", ".join(name for name, part in UNLOADED[mode].items() if part in mapped)
    return [
        at_most("start to first answer", median(starts), START_SECONDS, " s"),
        at_most("resident after the start", idle / MIB, IDLE_MIB[mode], " MiB"),
        at_most(f"resident with {RECORDS} records", with_records / MIB, RESIDENT_MIB, " MiB"),
        at_most(f"growth over {calls:,} more calls", (after[1] - after[0]) / MIB, GROWTH_MIB, " MiB"),
        Figure(f"{' and '.join(UNLOADED[mode])} while idle", loaded or "not loaded", "not loaded", not loaded),
    ]


@contextmanager
def started(running: Served, name: str, *flags: str) -> Iterator[float]:
    """Run a proxy of that name with more flags; yield the seconds from the start of its process to its first answer."""
    began = time.perf_counter()
    with (
        running.running(name, [*running.proxy_command(name), *flags]),
        client(running.mode, running.socket(name), cases.SMALL[running.mode].method) as small,
    ):
        small.run(1)
        yield time.perf_counter() - began


def bench(mode: str, rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds; return the table of their medians, and these and the proxy's own compared with the limits."""
    measured = []
    for number in range(rounds):
        print(f"{mode}, round {number + 1}", flush=True)
        measured.append(one_round(mode, share))
    return cases.figure_table(measured), [*resident(mode, share), *cases.judge(measured)]
