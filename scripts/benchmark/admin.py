"""The cost of the admin socket: calls through a proxy without clients of it, with one scraper, with 100 clients.

The conditions come in turns at one running proxy, each first in turn, so that other load on the machine affects all
alike. The clients, the kubelet, the runtime and the hook server share the machine's cores with the proxy: with few
cores clients slow calls by taking the cores, whatever the proxy does for them.

The longest turn of the event loop is that of a proxy with a callback in each turn (``turns``), which serves the same
calls and clients. The longest garbage collection is a figure of its own: it depends on the calls, not on a request.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import NamedTuple

from runtimeproxy.admin.queries import LONGEST_PAGE
from runtimeproxy.observe.events import MOST_EVENTS
from scripts.benchmark import cases, clients, turns
from scripts.benchmark.cases import DIRECT, HOOKED, MODES, Case
from scripts.benchmark.loads import Kubelet, Run
from scripts.benchmark.measure import STARTS, WARM_UP_CALLS, started
from scripts.benchmark.programs import HOOKS, PYTHON, Served, counts, served
from scripts.demonstration.processes import DemoError, Program, program
from scripts.figures import MIB, Figure, at_most

NAME = "admin"
TURNS = 5
CALLS = {**dict.fromkeys(cases.SMALL.values(), 8_000), **dict.fromkeys(cases.CREATES.values(), 1_600)}
"""Calls of a turn: a second or more, so that every scraper comes in each."""
CONTAINERS = 1_000
"""So many containers are created before the memory is measured, more than a node's, and updated until the ring of
events is full."""
UPDATES = {cases.CRI: cases.UPDATE, cases.DOCKER: cases.DOCKER_UPDATE}
P99_RATIO = 1.10
CPU_MICROSECONDS = 3.0
TURN_MS = 2.0
START_SECONDS = 0.4
COMMAND_SECONDS = 0.15
RESIDENT_MIB = 60


class Condition(NamedTuple):
    """Clients of a proxy's admin socket while calls are made."""

    name: str
    scrapers: int = 0
    followers: int = 0
    requests: Sequence[str] = ()


CONDITIONS = ALONE, ONE, CROWD = (
    Condition("no client"),
    Condition("1 scraper", 1),
    Condition("100 clients", 90, 10),
)
_REQUESTS = ("readyz", "configz", "hooks", f'store={{"limit": {LONGEST_PAGE}}}', 'store={"pod": "none"}', "events")
EACH = Condition("each request", len(_REQUESTS), requests=_REQUESTS)
"""The requests for the state apart from metrics, which are sent for the longest turn alone."""


class Part(NamedTuple):
    """Calls of a case in a condition, and the CPU nanoseconds of the proxy meanwhile."""

    run: Run
    spent: int

    @property
    def p99(self) -> int:
        return self.run.percentile(99)

    @property
    def cpu(self) -> float:
        """Return the proxy's CPU microseconds per call."""
        return self.spent / 1000 / len(self.run.microseconds)


class Longest(NamedTuple):
    """The longest turn of the event loop in milliseconds: by the clock, and of CPU time without that of the garbage
    collection, whose longest is beside it."""

    wall: float
    cpu: float
    garbage: float


Turn = Mapping[tuple[Case, Condition], Part]
"""All cases in all conditions, one after the other."""


class Round(NamedTuple):
    """``found`` are the bench's turns, ``scrape`` the milliseconds that 99 % of the 100 clients' scrapes did not exceed
    in the median turn; ``turns`` are the longest turns of the event loop by condition. Seconds from the start to the
    first answer, and of the first command after it; resident bytes of the proxy."""

    found: Sequence[Turn]
    scrape: float
    turns: Mapping[Condition, Longest]
    start: float
    command: float
    resident: int


def one_round(mode: str, share: float) -> Round:
    """Start all programs anew and measure, with ``share`` of the calls. Raises DemoError."""
    with served(mode, (DIRECT, HOOKED, HOOKS)) as running:
        loads = _loads(running)
        with _clients(running, CROWD):
            loads[cases.CREATES[mode]].run(max(int(CONTAINERS * share), 1))
            updates = Kubelet(running.client(HOOKED), UPDATES[mode].route)
            updates.run(max(int((MOST_EVENTS - CONTAINERS) * share), 1))
        resident = running.programs[HOOKED].memory()
        scrapes = list[int]()
        found = [_turn(running, loads, turn, share, scrapes) for turn in range(TURNS)]
        starts = [start_and_command(running, f"start-{number}") for number in range(STARTS)]
    with served(mode, (DIRECT, HOOKED, HOOKS), module=(turns.__name__,)) as running:
        longest = longest_turns(running, share)
    start, command = (median(seconds) for seconds in zip(*starts, strict=True))
    return Round(found, median(scrapes) / 1000, longest, start, command, resident)


def start_and_command(running: Served, name: str) -> tuple[float, float]:
    """Start a proxy with both sockets; return the seconds to its first answer, and those of the first command then, a
    process of its own. Raises DemoError."""
    endpoint = f"--admin-endpoint={running.admin_socket(name)}"
    with started(running, name, f"--metrics-endpoint={running.folder}/metrics.sock") as seconds:
        began = perf_counter()
        done = subprocess.run(
            [PYTHON, "-m", "runtimeproxy", "hook", "ls", endpoint], capture_output=True, text=True, check=False
        )
        took = perf_counter() - began
    if done.returncode:
        raise DemoError(f"runtimeproxy hook ls ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return seconds, took


def _loads(running: Served) -> dict[Case, Kubelet]:
    """Return the loads of both cases, warm."""
    loads = {}
    for case in (cases.SMALL[running.mode], cases.CREATES[running.mode]):
        loads[case] = Kubelet(running.client(HOOKED), case.route)
        loads[case].run(WARM_UP_CALLS)
    return loads


def _calls(case: Case, share: float) -> int:
    return max(int(CALLS[case] * share), 1)


@contextmanager
def _clients(running: Served, condition: Condition, scrapes: list[int] | None = None) -> Iterator[None]:
    """Run a condition's clients until the end of the block, which begins once all were answered.

    Raises DemoError if one is answered badly or not at all.
    """
    if not condition.scrapers:
        yield
        return
    socket, numbers = running.admin_socket(HOOKED), (str(condition.scrapers), str(condition.followers))
    command = [sys.executable, "-m", clients.__name__, str(socket), *numbers, *condition.requests]
    with program("clients", command, running.folder) as running_clients:
        running_clients.wait_until_it_says(clients.READY)
        yield
    printed = counts(running_clients.output())
    if printed is None or printed["failed"]:
        raise DemoError(f"clients of the admin socket: {printed}; their output ends: {running_clients.output()[-500:]}")
    if scrapes is not None:
        scrapes.append(printed["p99"])


def _turn(running: Served, loads: Mapping[Case, Kubelet], number: int, share: float, scrapes: list[int]) -> Turn:
    """Measure each case in each condition; add the p99 of the crowd's scrapes."""
    found, first = {}, number % len(CONDITIONS)
    for condition in CONDITIONS[first:] + CONDITIONS[:first]:
        with _clients(running, condition, scrapes if condition == CROWD else None):
            for case, load in loads.items():
                before = running.programs[HOOKED].cpu_nanoseconds()
                run = load.run(_calls(case, share))
                found[case, condition] = Part(run, running.programs[HOOKED].cpu_nanoseconds() - before)
    return found


def longest_turns(running: Served, share: float) -> dict[Condition, Longest]:
    """Return the longest turn by condition."""
    proxy, longest = running.programs[HOOKED], {}
    loads = _loads(running)
    for condition in (ALONE, ONE, CROWD, EACH):
        with _clients(running, condition):
            _longest(proxy)
            for case, load in loads.items():
                load.run(_calls(case, share))
            longest[condition] = _longest(proxy)
    return longest


def _longest(proxy: Program) -> Longest:
    """Return the longest turn since the last time."""
    number = (counts(proxy.output()) or {"number": 0})["number"] + 1
    os.kill(proxy.process.pid, turns.SHOW)
    proxy.wait_until_it_says(json.dumps({"number": number})[:-1])
    shown = counts(proxy.output())
    assert shown is not None
    return Longest(*(shown[key] / 1000 for key in Longest._fields))


# ---- what was found


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds of both modes; return the table of their medians, and the comparison with the limits. Raises
    DemoError."""
    table, figures = [HEADER], list[Figure]()
    for mode in MODES:
        measured = []
        for number in range(rounds):
            print(f"{NAME}, {mode}, round {number + 1}", flush=True)
            measured.append(one_round(mode, share))
        table += figure_table(measured)
        figures += judge(mode, measured)
    return table, figures


HEADER: Sequence[str] = ("call", "admin socket", "p50 us", "p99 us", "CPU us/call")


def figure_table(rounds: Sequence[Round]) -> list[Sequence[str]]:
    """Return the medians over the turns, with one row for every case and condition."""
    called = dict.fromkeys(case for case, _ in rounds[0].found[0])
    return [_row(case, condition, rounds) for case in called for condition in CONDITIONS]


def _row(case: Case, condition: Condition, rounds: Sequence[Round]) -> Sequence[str]:
    parts = [turn[case, condition] for measured in rounds for turn in measured.found]
    return (
        *(case.name, condition.name),
        *(f"{median(part.run.percentile(percent) for part in parts):.0f}" for percent in (50, 99)),
        f"{median(part.cpu for part in parts):.1f}",
    )


def judge(mode: str, rounds: Sequence[Round]) -> list[Figure]:
    """Return the medians of the rounds compared with the limits."""
    small, create = cases.SMALL[mode], cases.CREATES[mode]

    def middle(figure: Callable[[Round], float]) -> float:
        return median(figure(measured) for measured in rounds)

    found = [turn for measured in rounds for turn in measured.found]
    more = median(turn[small, ONE].cpu - turn[small, ALONE].cpu for turn in found)
    figures = [
        *(_slower(case, found) for case in (small, create)),
        at_most(f"{small.name}: CPU of a call, 1 scraper more than none", more, CPU_MICROSECONDS, " us"),
        *(_longest_figure(condition, rounds) for condition in (ONE, CROWD, EACH)),
        at_most("start to first answer, with both sockets", middle(lambda each: each.start), START_SECONDS, " s"),
        at_most("first command after a start", middle(lambda each: each.command), COMMAND_SECONDS, " s"),
        at_most(
            f"resident with {CONTAINERS:,} containers and {MOST_EVENTS:,} events",
            middle(lambda each: each.resident / MIB),
            RESIDENT_MIB,
            " MiB",
            digits=1,
        ),
        Figure("p99 of 100 clients' scrapes, from when they are due", f"{middle(lambda each: each.scrape):.0f} ms"),
    ]
    return [figure._replace(what=f"{mode}, {figure.what}") for figure in figures]


def _slower(case: Case, found: Sequence[Turn]) -> Figure:
    """Compare p99 with 100 clients to that without a client, within each turn."""
    ratio = median(turn[case, CROWD].p99 / turn[case, ALONE].p99 for turn in found)
    return Figure(f"{case.name}: p99, 100 clients to none", f"{ratio:.2f}", f"below {P99_RATIO:.2f}", ratio < P99_RATIO)


def _longest_figure(condition: Condition, rounds: Sequence[Round]) -> Figure:
    """Judge the longest turn's CPU time: by the clock it has the time of other programs in it."""
    here, alone = ([each.turns[one] for each in rounds] for one in (condition, ALONE))
    found = median(each.cpu for each in here)
    garbage, wall = median(each.garbage for each in here), median(each.wall for each in here)
    shown = (
        f"{found:.2f} ms (without a client {median(each.cpu for each in alone):.2f} ms; "
        f"a garbage collection {garbage:.2f} ms; by the clock {wall:.2f} ms)"
    )
    return Figure(f"longest turn's CPU, {condition.name}", shown, f"at most {TURN_MS:g} ms", found <= TURN_MS)
