"""What a soak runs: one row a step.

Owns the steps, their full counts and what they find.
Must not know: how the figures are shown.
Invariant: a step's amount is its full amount times the share; below the full amount no figure of the bench is judged.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from scripts.benchmark import answers, hookmode, limits, measure, memory, report
from scripts.benchmark.cases import CRI, DOCKER
from scripts.benchmark.fullnode import CONTAINERS, PODS, RECORDS_CONTAINERS, RECORDS_PODS
from scripts.benchmark.limits import MIB, Verdict
from scripts.benchmark.modes import MODES, Mode
from scripts.demonstration.__main__ import why_fake
from scripts.demonstration.processes import DemoError
from scripts.soaking import beside_figures, crowd, figures, hung, slow, stalled, tested
from scripts.soaking.day import DAY_SECONDS, HOUR_SECONDS
from scripts.soaking.lives import LIVES
from scripts.soaking.programs import run_module
from scripts.soaking.results import Figure, Found, Result
from tests.amounts import IDLE_SECONDS, STALL_SECONDS, Amount

ROUNDS = Amount(1, 5)
DEMOS = Amount(1, 10)


@dataclass(frozen=True, slots=True)
class Step:
    """A row: ``command`` is how a part of it is run alone, ``full`` its full count in words."""

    name: str
    command: str
    shows: str
    full: str
    find: Callable[[float], Found]

    def run(self, share: float) -> Result:
        """Run a share of the step; its error, of whatever kind, is its result."""
        start = time.monotonic()
        found, error = Found(()), ""
        try:
            found = self.find(share)
        except Exception as failure:  # a step that fails in a new way must not keep the others from running
            error = str(failure) or type(failure).__name__
        seconds = time.monotonic() - start
        return Result(self.name, self.command, self.shows, self.full, share, seconds, found, error)


def resident(mode: Mode, share: float) -> Found:
    """Measure the proxy's memory."""
    checks = limits.check(mode.name, memory.resident(mode, share))
    return Found([Figure(it.what, it.found, it.limit, it.kept if share == 1 and it.limit else None) for it in checks])


def bench(mode: Mode, share: float) -> Found:
    """Run the bench's rounds, and compare the medians of their figures with the limits."""
    rounds, calls_share = bench_rounds(share)
    measured = [measure.one_round(mode, calls_share) for _ in range(rounds)]
    figures = [ratio(verdict, judged=share == 1) for verdict in limits.judge(measured)]
    if mode.name == CRI:
        passes = memory.huge_list_passes()
        figures.append(Figure("a list of 16 MiB", "unchanged" if passes else "changed", "unchanged", passes))
    return Found(figures, [report.HEADER, *report.figure_rows(measured)])


def bench_rounds(share: float) -> tuple[int, float]:
    """Return how many rounds are run, and the share of its calls that each makes."""
    rounds = ROUNDS.at(share)
    return rounds, min(ROUNDS.full * share / rounds, 1.0)


def ratio(verdict: Verdict, *, judged: bool) -> Figure:
    """Put a limit of the bench in a row; the best round's figure stands beside the median."""
    found = f"{verdict.median:.2f} (best round {verdict.best:.2f})"
    return Figure(verdict.name, found, verdict.limit, verdict.kept if judged else None)


def bench_hooks(share: float) -> Found:
    """Run the bench's rounds of the hook servers, and measure how long RDT's group is waited for."""
    rounds, calls_share = bench_rounds(share)
    measured = [answers.one_round(calls_share) for _ in range(rounds)]
    figures = [ratio(verdict, judged=share == 1) for verdict in hookmode.judge(measured)]
    windows = hookmode.window_rows(hookmode.windows(share))
    figures += [Figure(f"{hookmode.WINDOW}: {where}", found) for where, found in windows]
    return Found(figures, hookmode.figure_table(measured))


def readers(share: float) -> Found:
    """Measure pings beside clients that do not read."""
    found = stalled.measure(share)
    return Found(
        [
            Figure(
                f"memory of each of {stalled.CLIENTS} clients that do not read",
                f"{found.growth / MIB:.2f} MiB",
                f"{stalled.GROWTH_BYTES / MIB:.0f} MiB",
                found.growth <= stalled.GROWTH_BYTES,
            ),
            Figure(
                "p99 of a ping beside them to alone",
                f"{found.ratio:.2f}",
                f"{stalled.RATIO:.2f}",
                found.ratio <= stalled.RATIO if share == 1 else None,
            ),
        ]
    )


def crowded(name: str, share: float) -> Found:
    """Measure many calls at once, and small ones beside lists and creates of 16 MiB."""
    found = crowd.measure(name, share)
    figures = [
        Figure(
            f"{case.name}: the slowest to the median",
            f"{ratio:.1f} (directly {direct:.1f})",
            f"{crowd.RATIO:.1f}",
            ratio <= crowd.RATIO if share == 1 else None,
        )
        for case, (direct, ratio) in found.ratios.items()
    ]
    judged = found.p99_beside <= crowd.BESIDE_MICROSECONDS if share == 1 else None
    what = "p99 of a small call beside lists of 16 MiB"
    limit = f"{crowd.BESIDE_MICROSECONDS / 1000:.0f} ms"
    figures.append(Figure(what, f"{found.p99_beside / 1000:.1f} ms", limit, judged))
    return Found([*figures, *beside_figures.beside_creates(name, share)])


def demo(share: float) -> Found:
    """Run the demo several times in a row. Raises DemoError with the output of one that fails."""
    seconds = []
    for number in range(1, DEMOS.at(share) + 1):
        start = time.monotonic()
        code, output = run_module(["scripts.demonstration"], {})
        if code:
            raise DemoError(f"run {number} ended with exit code {code}; its output: {output}")
        seconds.append(time.monotonic() - start)
    reason = why_fake(False)
    return Found(
        [
            Figure("runtime", f"the fake one: {reason}" if reason else "a private containerd"),
            Figure("runs in a row with exit code 0", f"{len(seconds)}"),
            Figure("seconds of a run, median and slowest", f"{median(seconds):.1f}, {max(seconds):.1f}"),
        ]
    )


FAULTS = (
    (
        "hooks",
        tested.HOOKS,
        "hook servers and their files that go wrong cost what the policy says, and no more",
        "2,000 hangs of each kind, 10,000 failures of each policy, 10,000 files, 1,000 swaps, 10,000 secrets",
    ),
    ("peers", tested.PEERS, "peers that break off, flood or talk nonsense harm nobody else", "10,000 mutations"),
    ("cancels", tested.CANCELS, "a call that is given up is known at once to all who work for it", "10,000 cancels"),
    (
        "restarts",
        tested.RESTARTS,
        "restarts and kills lose and disturb no call that need not be",
        "100 restarts, 100 second starts, 50 kills",
    ),
    (
        "kills",
        tested.KILLS,
        "what was known before a kill is known after it, and what it lost is found",
        "200 pods, 1,000 lost creates",
    ),
)
"""Name, tests, what they show, and the full numbers."""

SMALL_MEMORY = "the proxy's memory is small and stays so"
PRICE = "the price of the proxy beside a bare pipe"
STEPS = (
    Step(
        "memory-cri",
        "scripts/bench --mode cri",
        SMALL_MEMORY,
        "twice 100,000 calls",
        partial(resident, MODES[CRI]),
    ),
    Step("bench-cri", "scripts/bench --check --mode cri", PRICE, "5 rounds", partial(bench, MODES[CRI])),
    Step(
        "memory-docker",
        "scripts/bench --mode docker",
        SMALL_MEMORY,
        "twice 100,000 calls",
        partial(resident, MODES[DOCKER]),
    ),
    Step("bench-docker", "scripts/bench --check --mode docker", PRICE, "5 rounds", partial(bench, MODES[DOCKER])),
    Step(
        "bench-hooks",
        "scripts/bench --check --mode hooks",
        "a hook server is small and answers soon",
        "5 rounds, 30 starts",
        bench_hooks,
    ),
    Step(
        "stalled",
        "scripts/soak --step stalled",
        "clients that do not read cost the others little, and little memory",
        f"{STALL_SECONDS.full} s without a reader",
        readers,
    ),
    *(
        Step(
            f"hung-{name}",
            f"scripts/soak --step hung-{name}",
            "a sick hook server does not slow other calls",
            f"{hung.HELD} hung hook calls",
            partial(beside_figures.beside_hung, name),
        )
        for name in MODES
    ),
    *(
        Step(
            f"slow-{name}",
            f"scripts/soak --step slow-{name}",
            "a runtime that is slow in one method does not slow other calls",
            f"{slow.HELD} calls that the runtime does not answer",
            partial(beside_figures.beside_slow, name),
        )
        for name in MODES
    ),
    *(
        Step(
            f"crowd-{name}",
            f"scripts/soak --step crowd-{name}",
            "many calls at once are served alike",
            "1,000 streams or connections, 200 execs, lists and creates of 16 MiB",
            partial(crowded, name),
        )
        for name in MODES
    ),
    Step(
        "clients",
        "pytest tests/system/test_three_clients.py",
        "three implementations of HTTP/2 lose no call through the proxy",
        "100,000 calls of each",
        tested.clients,
    ),
    Step(
        "streams",
        "pytest -k streams tests/system",
        "Docker's streams lose nothing, keep nothing back, and wait for no reader",
        f"1 GiB, 1,000 execs, {IDLE_SECONDS.full // 60} minutes of silence",
        tested.streams,
    ),
    *(
        Step(name, f"scripts/soak --step {name}", shows, full, partial(tested.faults, tests))
        for name, tests, shows, full in FAULTS
    ),
    *(
        Step(
            f"full-{name}",
            f"scripts/soak --step full-{name}",
            "a full node is served at once and known soon, in little memory",
            f"{PODS:,} pods with {CONTAINERS} containers each; {RECORDS_PODS * (1 + RECORDS_CONTAINERS):,} records",
            partial(figures.filled, name),
        )
        for name in MODES
    ),
    *(
        Step(
            f"lives-{name}",
            f"scripts/soak --step lives-{name}",
            "lives that end well and badly leave nothing behind, and the Store is the runtime's list",
            f"{LIVES.full:,} lifecycles",
            partial(figures.lived, name),
        )
        for name in MODES
    ),
    *(
        Step(
            f"day-{name}",
            f"scripts/soak --step day-{name}",
            "a node's day passes without an error and leaves nothing behind",
            f"{DAY_SECONDS.full // HOUR_SECONDS} hours of a kubelet's calls, as fast as they go",
            partial(figures.played, name),
        )
        for name in MODES
    ),
    Step("demo", "scripts/demo", "the whole way works again and again, and cleans up", "10 runs in a row", demo),
    Step(
        "properties",
        "pytest -n 2 -m hypothesis tests",
        "no input that Hypothesis makes breaks a rule that holds for all",
        "100 times the usual examples",
        tested.properties,
    ),
)
"""First what measures time, while the machine is as it was found; then what counts."""
