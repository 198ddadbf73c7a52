"""The limits that scripts/bench --check holds the proxy to: one row a limit.

Owns the limits and the verdict.
Must not know: how anything is measured or shown.
Invariant: a ratio is taken within a round, where both sides saw the same machine; the verdict is on the rounds' median.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from scripts.benchmark.cases import CREATE, DIRECT, HOOKED, LIST, PIPE, PROXY, SMALL, Case
from scripts.benchmark.measure import Figures, Round
from scripts.benchmark.memory import Resident

MIB = 1 << 20


def p50(figures: Figures) -> float:
    """Return the median latency."""
    return figures.p50


def cpu(figures: Figures) -> float:
    """Return the CPU time; the direct way has none to compare with."""
    assert figures.cpu is not None
    return figures.cpu


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure of a case on ``way`` may be at most ``bound`` times the same on ``base``."""

    case: Case
    figure: Callable[[Figures], float]
    way: str
    base: str
    bound: float

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"{self.case.name}: {self.figure.__name__}, {self.way} to {self.base}"

    def ratio(self, measured: Round) -> float:
        """Return the ratio in one round."""
        return self.figure(measured[self.case, self.way]) / self.figure(measured[self.case, self.base])


LIMITS = (
    Limit(SMALL, p50, PROXY, PIPE, 1.25),
    Limit(SMALL, cpu, PROXY, PIPE, 1.8),
    Limit(LIST, cpu, PROXY, PIPE, 1.3),
    Limit(CREATE, p50, PROXY, DIRECT, 1.5),
    Limit(CREATE, p50, HOOKED, DIRECT, 2.2),
)
RESIDENT_BYTES = 70 * MIB
GROWTH_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit and what was measured: the median over the rounds, and the best round."""

    name: str
    median: float
    best: float
    bound: float

    @property
    def kept(self) -> bool:
        """Tell whether the median is within the limit."""
        return self.median <= self.bound


def judge(rounds: Sequence[Round]) -> list[Verdict]:
    """Compare the rounds' ratios with the limits."""
    ratios = [(limit, [limit.ratio(measured) for measured in rounds]) for limit in LIMITS]
    return [Verdict(limit.name, median(found), min(found), limit.bound) for limit, found in ratios]


def missed_by(resident: Resident, huge_list_passed: bool) -> list[str]:
    """Name the limits that the resident proxy missed."""
    checks = {
        f"{resident.with_records / MIB:.1f} MiB resident, the limit is below {RESIDENT_BYTES / MIB:.0f}": (
            resident.with_records < RESIDENT_BYTES
        ),
        f"grew by {resident.growth / MIB:.2f} MiB, the limit is below {GROWTH_BYTES / MIB:.0f}": (
            resident.growth < GROWTH_BYTES
        ),
        f"the idle proxy has loaded {', '.join(resident.loaded)}": not resident.loaded,
        "a list of 16 MiB did not pass unchanged": huge_list_passed,
    }
    return [text for text, kept in checks.items() if not kept]
