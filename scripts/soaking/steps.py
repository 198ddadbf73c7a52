"""What a soak runs: one row a step.

Owns the steps, their full counts and what they find.
Must not know: how the figures are shown.
Invariant: a step's amount is its full amount times the share; below the full amount no ratio of the bench is judged.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from scripts.benchmark import limits, measure, memory, report
from scripts.benchmark.limits import MIB, Verdict
from scripts.demonstration.__main__ import why_fake
from scripts.demonstration.processes import DemoError
from scripts.soaking.programs import run_module, run_tests
from scripts.soaking.results import Figure, Found, Result
from tests.amounts import CALLS_OF_A_CLIENT, Amount

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


def properties(share: float) -> Found:
    """Run every test that Hypothesis makes examples for."""
    passed = run_tests(["-m", "hypothesis", "--hypothesis-show-statistics", "tests"], share)
    figures = [
        Figure("property tests that passed", f"{len(passed.tests)}"),
        Figure("examples that they were given", f"{passed.examples:,}", "1 or more", passed.examples > 0),
        Figure("slowest test", f"{max(seconds for _, seconds in passed.tests):.1f} s"),
    ]
    return Found(figures)


def resident(share: float) -> Found:
    """Measure the proxy's memory."""
    found = memory.resident(share)
    calls = f"{found.calls:,} calls"
    return Found(
        [
            Figure(
                f"resident memory with {memory.RECORDS} records",
                f"{found.with_records / MIB:.1f} MiB",
                f"below {limits.RESIDENT_BYTES / MIB:.0f} MiB",
                found.with_records < limits.RESIDENT_BYTES,
            ),
            Figure(f"after {calls}", f"{found.after_first / MIB:.1f} MiB"),
            Figure(
                f"growth over the second {calls}",
                f"{found.growth / MIB:.2f} MiB",
                f"below {limits.GROWTH_BYTES / MIB:.0f} MiB",
                found.growth < limits.GROWTH_BYTES,
            ),
            Figure(
                "aiohttp and grpcio while idle", ", ".join(found.loaded) or "not loaded", "not loaded", not found.loaded
            ),
        ]
    )


def bench(share: float) -> Found:
    """Run the bench's rounds, and compare the medians of their ratios with the limits."""
    rounds, calls_share = bench_rounds(share)
    measured = [measure.one_round(calls_share) for _ in range(rounds)]
    passes = memory.huge_list_passes()
    figures = [
        *(ratio(verdict, judged=share == 1) for verdict in limits.judge(measured)),
        Figure("a list of 16 MiB", "unchanged" if passes else "changed", "unchanged", passes),
    ]
    return Found(figures, [report.HEADER, *report.figure_rows(measured)])


def bench_rounds(share: float) -> tuple[int, float]:
    """Return how many rounds are run, and the share of its calls that each makes."""
    rounds = ROUNDS.at(share)
    return rounds, min(ROUNDS.full * share / rounds, 1.0)


def ratio(verdict: Verdict, *, judged: bool) -> Figure:
    """Put a limit of the bench in a row; the best round's ratio stands beside the median."""
    found = f"{verdict.median:.2f} (best round {verdict.best:.2f})"
    return Figure(verdict.name, found, f"{verdict.bound:.2f}", verdict.kept if judged else None)


def clients(share: float) -> Found:
    """Run the test of the three clients, which counts at the fake runtime and at the clients."""
    calls = CALLS_OF_A_CLIENT.at(share)
    passed = run_tests(["tests/system/test_three_clients.py"], share)
    return Found(
        [
            Figure(f"{calls:,} calls of {name.removeprefix('test_')}", f"all with grpc-status 0, in {seconds:.1f} s")
            for name, seconds in passed.tests
        ]
    )


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


STEPS = (
    Step(
        "properties",
        "pytest -m hypothesis tests",
        "no input that Hypothesis makes breaks a rule that holds for all",
        "100 times the usual examples",
        properties,
    ),
    Step("memory", "scripts/bench", "the proxy's memory is small and stays so", "twice 100,000 calls", resident),
    Step("bench", "scripts/bench --check", "the price of the proxy beside a bare pipe", "5 rounds", bench),
    Step(
        "clients",
        "pytest tests/system/test_three_clients.py",
        "three implementations of HTTP/2 lose no call through the proxy",
        "100,000 calls of each",
        clients,
    ),
    Step("demo", "scripts/demo", "the whole way works again and again, and cleans up", "10 runs in a row", demo),
)
