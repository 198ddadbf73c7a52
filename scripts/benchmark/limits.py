"""The limits that scripts/bench --check holds the proxy to: one row a limit.

Owns the limits and the verdict.
Must not know: how anything is measured or shown.
Invariant: a ratio is taken within a round, where both sides saw the same machine; the verdict is on the rounds' median.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from scripts.benchmark.cases import (
    CREATE,
    DIRECT,
    DOCKER_CREATE,
    DOCKER_LIST,
    EXPORT,
    HOOKED,
    IMPORT,
    LIST,
    PING,
    PIPE,
    PROXY,
    SMALL,
    Case,
)
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


def throughput(figures: Figures) -> float:
    """Return the rate of calls; of a transfer it is that of its bytes, too."""
    return figures.calls_per_second


def growth(figures: Figures) -> float:
    """Return by how many MiB the memory grew."""
    assert figures.growth is not None
    return figures.growth / MIB


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure of a case on ``way`` may be at most ``bound`` times the same on ``base``; ``least``: at least.

    Without ``base`` the figure itself is meant.
    """

    case: Case
    figure: Callable[[Figures], float]
    way: str
    base: str | None
    bound: float
    least: bool = False

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"{self.case.name}: {self.figure.__name__}, {self.way}" + (f" to {self.base}" if self.base else "")

    def value(self, measured: Round) -> float:
        """Return the ratio, or the figure itself, in one round."""
        figure = self.figure(measured[self.case, self.way])
        return figure / self.figure(measured[self.case, self.base]) if self.base else figure


LIMITS = (
    Limit(SMALL, p50, PROXY, PIPE, 1.25),
    Limit(SMALL, cpu, PROXY, PIPE, 1.8),
    Limit(LIST, cpu, PROXY, PIPE, 1.3),
    Limit(CREATE, p50, PROXY, DIRECT, 1.5),
    Limit(CREATE, p50, HOOKED, DIRECT, 2.2),
    Limit(PING, p50, PROXY, PIPE, 1.25),
    Limit(PING, cpu, PROXY, PIPE, 1.8),
    Limit(DOCKER_LIST, cpu, PROXY, PIPE, 1.3),
    Limit(DOCKER_CREATE, p50, PROXY, DIRECT, 2.5),
    Limit(DOCKER_CREATE, p50, HOOKED, DIRECT, 6.0),
    Limit(EXPORT, throughput, PROXY, PIPE, 0.9, least=True),
    Limit(IMPORT, throughput, PROXY, PIPE, 0.9, least=True),
    Limit(EXPORT, growth, PROXY, None, 1.0),
    Limit(IMPORT, growth, PROXY, None, 1.0),
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
    least: bool = False

    @property
    def kept(self) -> bool:
        """Tell whether the median is within the limit."""
        return self.median >= self.bound if self.least else self.median <= self.bound

    @property
    def limit(self) -> str:
        """Spell the limit."""
        return f"{'at least' if self.least else 'at most'} {self.bound:.2f}"


def judge(rounds: Sequence[Round]) -> list[Verdict]:
    """Compare the rounds' figures with the limits of their cases."""
    verdicts = []
    for limit in LIMITS:
        if (limit.case, limit.way) in rounds[0]:
            found = [limit.value(measured) for measured in rounds]
            best = max(found) if limit.least else min(found)
            verdicts.append(Verdict(limit.name, median(found), best, limit.bound, limit.least))
    return verdicts


def missed_by(resident: Resident, huge_list_passed: bool = True) -> list[str]:
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
