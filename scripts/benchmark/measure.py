"""The rounds of the bench: every case on each of its ways; and the proxy by itself: its start, its memory, a full node.

The ways of a case are measured in alternating portions, each way first in turn, so that other load on the machine
affects all alike.
"""

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import NamedTuple

from scripts.benchmark import cases, fullnode
from scripts.benchmark.cases import CRI, DIRECT, HOOKED, PROXY, Case, Figures, Round
from scripts.benchmark.ends import CLIENTS
from scripts.benchmark.loads import Kubelet, Load, Run, Transfer
from scripts.benchmark.programs import HOOKS, REGISTRATION, Served, served
from scripts.demonstration.processes import DemoError
from scripts.figures import MIB, Figure, at_most
from tests.fakes import registration

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
HUGE_LIST_BYTES = (16 << 20) - (16 << 10)
"""The longest reply that the kubelet accepts over CRI: its limit of 16 MiB less some room."""


def one_round(mode: str, share: float) -> Round:
    """Start all programs anew and measure every case, with ``share`` of its calls. Raises DemoError."""
    with served(mode, (*cases.WAYS, HOOKS), share=share) as running:
        return {
            (case, way): figures
            for case in cases.CASES
            if case.mode == mode
            for way, figures in _measured(running, case, share).items()
        }


def _measured(running: Served, case: Case, share: float) -> dict[str, Figures]:
    loads = {way: prepare(running, case, way) for way in case.ways}
    transfers = case in (cases.EXPORT, cases.IMPORT)
    portions = min(PORTIONS, case.calls)
    calls = max(int(case.calls * (1 if transfers else share) / portions), 1)
    for way, load in loads.items():
        _send(running, case, way, load, min(WARM_UP_CALLS, max(case.calls // 10, 1)))
    runs, cpu, growth = dict.fromkeys(loads, Run()), dict.fromkeys(loads, 0), dict.fromkeys(loads, 0)
    for turn in range(portions):
        first = turn % len(case.ways)
        for way in case.ways[first:] + case.ways[:first]:
            at = running.programs[way]
            at.start_peak()
            memory, used = at.memory(), at.cpu_nanoseconds()
            runs[way] = runs[way].plus(_send(running, case, way, loads[way], calls))
            cpu[way] += at.cpu_nanoseconds() - used
            growth[way] = max(growth[way], at.memory("VmHWM") - memory)
    return {
        way: Figures(
            run.percentile(50),
            run.percentile(99),
            len(run.microseconds) / run.seconds,
            cpu[way] / 1000 / len(run.microseconds) if way != DIRECT else float("nan"),
            growth[way] / MIB if way != DIRECT else float("nan"),
        )
        for way, run in runs.items()
    }


def _send(running: Served, case: Case, way: str, load: Load, calls: int) -> Run:
    return load.run(calls) if isinstance(load, Kubelet) else running.send(way, case.route, load, calls)


def prepare(running: Served, case: Case, way: str) -> Load:
    """Create what a case needs on a way. A container to export is created on that way, so that the proxy knows it."""
    if case == cases.IMPORT:
        target = "/v1.41/images/create?fromSrc=-&message=&repo=bench&tag=1"
        return Transfer("POST", target, running.socket(way), running.transfer_bytes)
    client = running.client(way)
    if case == cases.EXPORT:
        target = f"/v1.41/containers/{client.container()}/export"
        return Transfer("GET", target, running.socket(way), running.transfer_bytes)
    return Kubelet(client, case.route, case.pause)


# ---- the proxy by itself


def resident(mode: str, share: float) -> list[Figure]:
    """Measure proxies: idle; with the records of hooked calls; over many calls, with ``share`` of them."""
    calls = max(int(CALLS * share), 1)
    with served(mode, (DIRECT, PROXY)) as running:
        time.sleep(SETTLE_SECONDS)
        idle, mapped = running.programs[PROXY].memory(), running.programs[PROXY].proc("maps")
        start = median(start_seconds(running, f"start-{number}") for number in range(STARTS))
    with served(mode, (DIRECT, HOOKED, HOOKS)) as running:
        proxy, client = running.programs[HOOKED], running.client(HOOKED)
        Kubelet(client, cases.CREATES[mode].route).run(RECORDS - 1)  # one record is the pod's
        time.sleep(SETTLE_SECONDS)
        with_records = proxy.memory()
        small = Kubelet(client, cases.SMALL[mode].route)
        after = [small.run(calls) and proxy.memory() for _ in range(2)]
    loaded = ", ".join(name for name, part in UNLOADED[mode].items() if part in mapped)
    return [
        at_most("start to first answer", start, START_SECONDS, " s"),
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
        closing(CLIENTS[running.mode](running.socket(name))) as client,
    ):
        client.prepare(cases.SMALL[running.mode].route)()
        yield time.perf_counter() - began


def start_seconds(running: Served, name: str) -> float:
    """Start a proxy of that name; return the seconds from the start of its process to its first answer."""
    with started(running, name) as seconds:
        return seconds


class FullNode(NamedTuple):
    """Seconds from a proxy's start to its first answer, and those to read the state; what was read; bytes of memory."""

    ready: float
    complete: float
    pods: int
    containers: int
    growth: int


KNOWN_SECONDS = 300.0
_KNOWN = re.compile(r"the runtime's state is known \(pods: (\d+), containers: (\d+), read: \d+ in ([0-9.]+) s\)")


def full_node(mode: str, pods: int, containers: int) -> FullNode:
    """Start a proxy on a node with so many pods, each of so many containers (fault matrix S1, promise 13). A hook
    server that is never called is registered, so that everything is read. Raises DemoError."""
    node = (fullnode.__name__, mode, str(pods), str(containers))
    with served(mode, (DIRECT, PROXY), runtime=node) as running:
        ready, proxy = start_seconds(running, "start"), running.programs[PROXY]
        idle = proxy.memory()
        content = registration.text(str(running.folder / "nobody.sock"))
        registration.write(running.registrations(PROXY), REGISTRATION, content)
        deadline = time.monotonic() + KNOWN_SECONDS
        while (known := _KNOWN.search(proxy.output())) is None:
            if proxy.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the proxy does not know the runtime's state: {proxy.output()[-1500:]}")
            time.sleep(0.02)
        return FullNode(ready, float(known[3]), int(known[1]), int(known[2]), proxy.memory() - idle)


def bench(mode: str, rounds: int, share: float) -> tuple[list[Round], list[Figure]]:
    """Run the rounds; return them, and their medians compared with the limits."""
    measured = []
    for number in range(rounds):
        print(f"{mode}, round {number + 1}", flush=True)
        measured.append(one_round(mode, share))
    return measured, cases.judge(measured, judged=rounds == ROUNDS)
