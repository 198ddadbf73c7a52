"""The cost of the admin socket: calls through a proxy without clients of it, with one scraper, with 100 clients.

The conditions alternate at one running proxy, so that other load on the machine affects all alike. Clients, kubelet,
runtime and hook server share the machine's cores with the proxy: with few cores clients slow calls by using the cores,
whatever the proxy does for them. The longest iteration of the event loop is measured at a proxy with a callback in each
iteration (``iterations``), which serves the same calls and clients.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
P99_RATIO = 1.10
CPU_MICROSECONDS = 3.0
ITERATION_MS = 2.0
START_SECONDS = 0.4
COMMAND_SECONDS = 0.15
RESIDENT_MIB = 60
_LONGEST = re.compile(r"^longest iteration \d+: (\d+)$", re.MULTILINE)


class Condition(NamedTuple):
    """Clients of a proxy's admin socket while calls are made."""

    name: str
    scrapers: int = 0
    followers: int = 0
    requests: Sequence[str] = ("metrics",)


CONDITIONS = ALONE, ONE, CROWD = (
    Condition("no client"),
    Condition("1 scraper", 1),
    Condition("100 clients", 90, 10),
)
_REQUESTS = ("readyz", "configz", "hooks", f'store={{"limit": {LONGEST_PAGE}}}', 'store={"pod": "none"}', "events")
EACH = Condition("each request", len(_REQUESTS), requests=_REQUESTS)
"""The requests for the state apart from metrics, which are sent for the longest iteration only."""


class Part(NamedTuple):
    """Calls of a case in a condition: microseconds, and the CPU microseconds of the proxy for each."""

    p50: float
    p99: float
    cpu: float


Period = Mapping[tuple[Case, Condition], Part]
"""All cases in all conditions, one after the other."""


class Round(NamedTuple):
    """The longest iteration in milliseconds by condition; seconds from the start to the first answer, and of the first
    command after it; resident bytes of the proxy."""

    periods: Sequence[Period]
    longest: Mapping[Condition, float]
    start: float
    command: float
    resident: int


def one_round(mode: str, share: float) -> Round:
    """Start all programs and measure, with ``share`` of the calls. Raises DemoError."""
    with served(mode, (DIRECT, HOOKED, HOOKS)) as running:
        loads = _loads(running)
        with _clients(running, CROWD):
            loads[cases.CREATES[mode]].run(max(int(CONTAINERS * share), 1))
            updates = running.client(HOOKED, UPDATES[mode].method)
            updates.run(max(int((MOST_EVENTS - CONTAINERS) * share), 1))
        resident = running.programs[HOOKED].memory()
        periods = [_period(running, loads, number, share) for number in range(PERIODS)]
        starts = [_start_and_command(running, f"start-{number}") for number in range(STARTS)]
    with served(mode, (DIRECT, HOOKED, HOOKS), module=(iterations.__name__,)) as running:
        longest = _longest_iterations(running, share)
    start, command = (median(seconds) for seconds in zip(*starts, strict=True))
    return Round(periods, longest, start, command, resident)


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


def _loads(running: Served) -> dict[Case, Load]:
    """Return the loads of both cases, warm."""
    loads = {}
    for case in (cases.SMALL[running.mode], cases.CREATES[running.mode]):
        loads[case] = running.client(HOOKED, case.method)
        loads[case].run(WARM_UP_CALLS)
    return loads


def _clients(running: Served, condition: Condition) -> AbstractContextManager[None]:
    """Return what runs a condition's clients."""
    socket, numbers = str(running.admin_socket(HOOKED)), (condition.scrapers, condition.followers)
    return clients(socket, *numbers, condition.requests) if condition.scrapers else nullcontext()


def _period(running: Served, loads: Mapping[Case, Load], number: int, share: float) -> Period:
    """Measure each case in each condition."""
    measured, first, proxy = {}, number % len(CONDITIONS), running.programs[HOOKED]
    for condition in CONDITIONS[first:] + CONDITIONS[:first]:
        with _clients(running, condition):
            for case, load in loads.items():
                before = proxy.cpu_nanoseconds()
                run = load.run(max(int(CALLS[case] * share), 1))
                cpu = (proxy.cpu_nanoseconds() - before) / 1000 / len(run.microseconds)
                measured[case, condition] = Part(run.percentile(50), run.percentile(99), cpu)
    return measured


def _longest_iterations(running: Served, share: float) -> dict[Condition, float]:
    proxy, longest = running.programs[HOOKED], {}
    loads = _loads(running)
    for condition in (ALONE, ONE, CROWD, EACH):
        with _clients(running, condition):
            _longest(proxy)
            for case, load in loads.items():
                load.run(max(int(CALLS[case] * share), 1))
            longest[condition] = _longest(proxy)
    return longest


def _longest(proxy: Program) -> float:
    """Return the longest iteration since the previous call, in milliseconds."""
    number = len(_LONGEST.findall(proxy.output())) + 1
    os.kill(proxy.process.pid, iterations.SHOW)
    proxy.wait_until_it_prints(f"longest iteration {number}: ")
    return int(_LONGEST.findall(proxy.output())[-1]) / 1000


# ---- tables and limits

HEADER: Sequence[str] = ("call", "admin socket", "p50 us", "p99 us", "CPU us/call")


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds of both modes; return the table of their medians, and the comparison with the limits. Raises
    DemoError."""
    table, figures = [HEADER], list[Figure]()
    for mode in MODES:
        measured = []
        for number in range(rounds):
            print(f"admin, {mode}, round {number + 1}", flush=True)
            measured.append(one_round(mode, share))
        periods = [period for each in measured for period in each.periods]
        for case, condition in sorted(periods[0], key=str):
            p50, p99, cpu = map(median, zip(*(period[case, condition] for period in periods), strict=True))
            table.append((case.name, condition.name, f"{p50:.0f}", f"{p99:.0f}", f"{cpu:.1f}"))
        figures += [figure._replace(what=f"{mode}, {figure.what}") for figure in _judged(mode, measured, periods)]
    return table, figures


def _judged(mode: str, rounds: Sequence[Round], periods: Sequence[Period]) -> Iterator[Figure]:
    """Yield the medians of the rounds compared with the limits."""
    small, create = cases.SMALL[mode], cases.CREATES[mode]
    for case in (small, create):  # within each period
        ratio, name = median(period[case, CROWD].p99 / period[case, ALONE].p99 for period in periods), case.name
        yield Figure(f"{name}: p99, 100 clients to none", f"{ratio:.2f}", f"below {P99_RATIO:.2f}", ratio < P99_RATIO)
    more = median(period[small, ONE].cpu - period[small, ALONE].cpu for period in periods)
    yield at_most(f"{small.name}: CPU of a call, 1 scraper more than none", more, CPU_MICROSECONDS, " us")
    for condition in (ONE, CROWD, EACH):
        longest = median(each.longest[condition] for each in rounds)
        yield at_most(f"longest iteration's CPU, {condition.name}", longest, ITERATION_MS, " ms")
    _, _, start, command, resident = zip(*rounds, strict=True)
    yield at_most("start to first answer, with both sockets", median(start), START_SECONDS, " s")
    yield at_most("first command after a start", median(command), COMMAND_SECONDS, " s")
    what = f"resident with {CONTAINERS:,} containers and {MOST_EVENTS:,} events"
    yield at_most(what, median(resident) / MIB, RESIDENT_MIB, " MiB", digits=1)
