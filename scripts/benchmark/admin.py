"""The cost of the admin socket: calls through a proxy without clients of it, with one scraper, with 100 clients.

The conditions alternate at one running proxy, so that other load on the machine affects all alike. Clients, kubelet,
runtime and hook server share the machine's cores with the proxy: with few cores clients slow calls by using the cores,
whatever the proxy does for them. The longest iteration of the event loop is measured at a proxy with a callback in each
iteration (``iterations``), which serves the same calls and clients.
"""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from time import perf_counter
from typing import NamedTuple

from runtimeproxy.admin.queries import LONGEST_PAGE
from runtimeproxy.observe.events import MOST_EVENTS
from scripts.benchmark import cases, iterations
from scripts.benchmark.cases import DIRECT, HOOKED, MODES, Case
from scripts.benchmark.clients import clients
from scripts.benchmark.measure import STARTS, WARM_UP_CALLS, started
from scripts.benchmark.programs import HOOKS, PYTHON, Load, Served, served
from scripts.demonstration.processes import DemoError, Program
from scripts.figures import MIB, Figure, at_most

PERIODS = 5
CALLS = {**dict.fromkeys(cases.SMALL.values(), 8_000), **dict.fromkeys(cases.CREATES.values(), 1_600)}
"""Calls of a period: a second or more, so that every scraper sends a request in each."""
CONTAINERS = 1_000
"""This many containers are created before the memory is measured, and updated until the ring of events is full."""
UPDATES = {cases.CRI: cases.UPDATE, cases.DOCKER: cases.DOCKER_UPDATE}
_LONGEST = re.compile(r"^longest iteration \d+: (\d+)$", re.MULTILINE)


class Condition(NamedTuple):
    """Clients of a proxy's admin socket while calls are made."""

    name: str
    scrapers: int = 0
    followers: int = 0
    requests: Sequence[str] = ("metrics",)


CONDITIONS = ALONE, ONE, CROWD = Condition("no client"), Condition("1 scraper", 1), Condition("100 clients", 90, 10)
_REQUESTS = ("readyz", "configz", "hooks", f'store={{"limit": {LONGEST_PAGE}}}', 'store={"pod": "none"}', "events")
EACH = Condition("each request", len(_REQUESTS), requests=_REQUESTS)
"""The requests for the state apart from metrics, which are sent for the longest iteration only."""

P99, CPU = "p99, 100 clients to none", "CPU of a small call, 1 scraper more than none"
START, COMMAND = "start to first answer, with both sockets", "first command after a start"
RESIDENT = f"resident with {CONTAINERS:,} containers and {MOST_EVENTS:,} events"
ITERATIONS = {condition: f"longest iteration's CPU, {condition.name}" for condition in (ONE, CROWD, EACH)}
LIMITS: Mapping[str, tuple[float, str]] = {
    **{f"{case.name}: {P99}": (1.10, "") for case in CALLS},
    CPU: (3.0, " us"),
    **dict.fromkeys(ITERATIONS.values(), (2.0, " ms")),
    START: (0.4, " s"),
    COMMAND: (0.15, " s"),
    RESIDENT: (60, " MiB"),
}
"""The most that a median may be. A ratio or a difference is taken within each period."""


class Part(NamedTuple):
    """Calls of a case in a condition: microseconds, and the CPU microseconds of the proxy for each."""

    p50: float
    p99: float
    cpu: float


Parts = defaultdict[tuple[Case, Condition], list[Part]]


def one_round(mode: str, share: float, parts: Parts) -> Iterator[tuple[str, float]]:
    """Start all programs and measure, with ``share`` of the calls; yield values by the names of their limits. Raises
    DemoError."""
    small, create = cases.SMALL[mode], cases.CREATES[mode]
    with served(mode, (DIRECT, HOOKED, HOOKS)) as running:
        loads, proxy = _loads(running), running.programs[HOOKED]
        with _clients(running, CROWD):
            loads[create].run(max(int(CONTAINERS * share), 1))
            updates = running.client(HOOKED, UPDATES[mode].method)
            updates.run(max(int((MOST_EVENTS - CONTAINERS) * share), 1))
        yield RESIDENT, proxy.memory() / MIB
        for number in range(PERIODS):
            for condition in CONDITIONS[number % len(CONDITIONS) :] + CONDITIONS[: number % len(CONDITIONS)]:
                with _clients(running, condition):
                    for case, load in loads.items():
                        parts[case, condition].append(_part(proxy, load, max(int(CALLS[case] * share), 1)))
            for case in (small, create):
                yield f"{case.name}: {P99}", parts[case, CROWD][-1].p99 / parts[case, ALONE][-1].p99
            yield CPU, parts[small, ONE][-1].cpu - parts[small, ALONE][-1].cpu
        for number in range(STARTS):
            yield from zip((START, COMMAND), _start_and_command(running, f"start-{number}"), strict=True)
    with served(mode, (DIRECT, HOOKED, HOOKS), module=(iterations.__name__,)) as running:
        loads, proxy = _loads(running), running.programs[HOOKED]
        for condition, name in ITERATIONS.items():
            with _clients(running, condition):
                _longest_iteration(proxy)
                for case, load in loads.items():
                    load.run(max(int(CALLS[case] * share), 1))
                yield name, _longest_iteration(proxy)


def _loads(running: Served) -> dict[Case, Load]:
    """Return the loads of both cases, warm."""
    loads = {}
    for case in (cases.SMALL[running.mode], cases.CREATES[running.mode]):
        loads[case] = running.client(HOOKED, case.method)
        loads[case].run(WARM_UP_CALLS)
    return loads


def _clients(running: Served, condition: Condition) -> AbstractContextManager[None]:
    return clients(str(running.admin_socket(HOOKED)), *condition[1:])


def _part(proxy: Program, load: Load, calls: int) -> Part:
    before = proxy.cpu_nanoseconds()
    run = load.run(calls)
    return Part(run.percentile(50), run.percentile(99), (proxy.cpu_nanoseconds() - before) / 1000 / calls)


def _start_and_command(running: Served, name: str) -> tuple[float, float]:
    """Start a proxy with both sockets; return the seconds to its first answer, and those of the first command then, a
    process of its own. Raises DemoError."""
    endpoint = f"--admin-endpoint={running.admin_socket(name)}"
    with started(running, name, f"--metrics-endpoint={running.folder}/metrics.sock") as seconds:
        began = perf_counter()
        command = [PYTHON, "-m", "runtimeproxy", "hook", "ls", endpoint]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        duration = perf_counter() - began
    if done.returncode:
        raise DemoError(f"runtimeproxy hook ls ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return seconds, duration


def _longest_iteration(proxy: Program) -> float:
    """Return the longest iteration since the previous call, in milliseconds."""
    number = len(_LONGEST.findall(proxy.output())) + 1
    os.kill(proxy.process.pid, iterations.SHOW)
    proxy.wait_until_it_prints(f"longest iteration {number}: ")
    return int(_LONGEST.findall(proxy.output())[-1]) / 1000


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds of both modes; return the table of their medians, and the comparison with the limits. Raises
    DemoError."""
    table, figures = list[Sequence[str]](), list[Figure]()
    table.append(("call", "admin socket", "p50 us", "p99 us", "CPU us/call"))
    for mode in MODES:
        parts: Parts = defaultdict(list)
        values = defaultdict[str, list[float]](list)
        for number in range(rounds):
            print(f"admin, {mode}, round {number + 1}", flush=True)
            for name, value in one_round(mode, share, parts):
                values[name].append(value)
        for (case, condition), found in sorted(parts.items(), key=str):
            p50, p99, cpu = map(median, zip(*found, strict=True))
            table.append((case.name, condition.name, f"{p50:.0f}", f"{p99:.0f}", f"{cpu:.1f}"))
        for name, (bound, unit) in LIMITS.items():
            if name in values:
                figures.append(at_most(f"{mode}, {name}", median(values[name]), bound, unit))
    return table, figures
