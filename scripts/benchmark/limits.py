"""The limits that scripts/bench --check holds the proxy to: one row a limit.

Owns the limits and the verdict.
Must not know: how anything is measured or shown.
Invariant: a ratio is taken within a round, where both sides saw the same machine; the verdict is on the rounds' median.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from scripts.benchmark.cases import (
    CREATE,
    CRI,
    DIRECT,
    DOCKER,
    DOCKER_CREATE,
    DOCKER_LISTED,
    DOCKER_START,
    DOCKER_UPDATE,
    DOCKER_VERSION,
    EXPORT,
    HOOKED,
    IMPORT,
    LISTED,
    PIPE,
    PROXY,
    RUN,
    START,
    UPDATE,
    VERSION,
    Case,
)
from scripts.benchmark.measure import Figures, Round
from scripts.benchmark.memory import RECORDS, Resident

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

    Without ``base`` the figure itself is meant; with ``of`` the base is that case's.
    """

    case: Case
    figure: Callable[[Figures], float]
    way: str
    base: str | None
    bound: float
    least: bool = False
    of: Case | None = None

    @property
    def name(self) -> str:
        """Name it for people."""
        base = f" to {self.base}" if self.base else ""
        return f"{self.case.name}: {self.figure.__name__}, {self.way}{base}{f' for {self.of.name}' if self.of else ''}"

    def value(self, measured: Round) -> float:
        """Return the ratio, or the figure itself, in one round."""
        figure = self.figure(measured[self.case, self.way])
        return figure / self.figure(measured[self.of or self.case, self.base]) if self.base else figure


PASSING = ((VERSION, LISTED), (DOCKER_VERSION, DOCKER_LISTED))
P50: Mapping[Case, tuple[float, float, float, float]] = {
    RUN: (1.9, 3.4, 1.9, 2.6),
    CREATE: (1.7, 2.8, 1.9, 2.2),
    START: (1.9, 5.2, 1.75, 3.5),
    UPDATE: (2.0, 3.8, 1.8, 2.6),
    DOCKER_CREATE: (2.0, 5.0, 1.9, 3.9),
    DOCKER_START: (1.3, 5.0, 1.5, 4.5),
    DOCKER_UPDATE: (1.5, 4.2, 1.5, 3.5),
}
"""To direct: without a hook server and with one, hot; the same cold."""
HOOKED_CPU: Mapping[Case, float] = {
    **{RUN: 9, CREATE: 14, START: 12, UPDATE: 9},
    **{DOCKER_CREATE: 14, DOCKER_START: 12, DOCKER_UPDATE: 9},
}
HELD_CPU = 7
"""To the pipe's for the smallest call; so are the former."""
_SMALLEST = {CRI: VERSION, DOCKER: DOCKER_VERSION}

LIMITS = (
    *(Limit(small, p50, PROXY, PIPE, 1.15) for small, _ in PASSING),
    *(Limit(small, cpu, PROXY, PIPE, 1.4) for small, _ in PASSING),
    *(Limit(listed, cpu, PROXY, PIPE, 1.15) for _, listed in PASSING),
    *(
        Limit(case, p50, way, DIRECT, bound)
        for hot, bounds in P50.items()
        for (case, way), bound in zip(product((hot, hot.cold), (PROXY, HOOKED)), bounds, strict=True)
    ),
    *(Limit(case, cpu, PROXY, PIPE, HELD_CPU, of=_SMALLEST[case.mode]) for case in HOOKED_CPU),
    *(Limit(case, cpu, HOOKED, PIPE, bound, of=_SMALLEST[case.mode]) for case, bound in HOOKED_CPU.items()),
    Limit(EXPORT, throughput, PROXY, PIPE, 0.9, least=True),
    Limit(IMPORT, throughput, PROXY, PIPE, 0.9, least=True),
    Limit(EXPORT, growth, PROXY, None, 1.0),
    Limit(IMPORT, growth, PROXY, None, 1.0),
)
IDLE_BYTES = {CRI: 34 * MIB, DOCKER: 43 * MIB}
RESIDENT_BYTES = 45 * MIB
GROWTH_BYTES = 1 * MIB
START_SECONDS = 0.2


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


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of a proxy by itself, in words, and its limit."""

    what: str
    found: str
    limit: str
    kept: bool


def check(mode: str, resident: Resident) -> Iterator[Check]:
    """Compare what was found of the proxy of a mode by itself with its limits."""
    start, records = f"{resident.start_seconds:.2f} s", f"resident with {RECORDS} records"
    yield Check(
        "start to first answer", start, f"{START_SECONDS:.1f} s at most", resident.start_seconds <= START_SECONDS
    )
    yield _memory("resident after the start", resident.idle, IDLE_BYTES[mode])
    yield _memory(records, resident.with_records, RESIDENT_BYTES)
    yield Check(f"after {resident.calls:,} calls", f"{resident.after_first / MIB:.1f} MiB", "", True)
    yield _memory(f"growth over {resident.calls:,} more", resident.growth, GROWTH_BYTES)
    yield Check("not loaded while idle", ", ".join(resident.loaded) or "nothing", "nothing", not resident.loaded)


def _memory(what: str, found: int, bound: int) -> Check:
    return Check(what, f"{found / MIB:.2f} MiB", f"{bound / MIB:.0f} MiB at most", found <= bound)
