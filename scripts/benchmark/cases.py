"""The table of what scripts/bench measures of the proxy, and its limits: one row per case, one row per limit.

A ratio is taken within a round, where both sides had the same conditions on the machine; the median of the rounds
decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import NamedTuple

from scripts.figures import Figure

CRI, DOCKER = MODES = ("cri", "docker")
DIRECT, PIPE, PROXY, HOOKED = WAYS = ("direct", "pipe", "proxy", "proxy+hook")
COLD_CALLS, COLD_SECONDS = 60, 0.02
"""A node makes a few held calls per second, so the processor does other work between two of them."""
TRANSFER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """One case; ``method`` is that of load's clients; ``calls`` is the number per round and way."""

    mode: str
    name: str
    method: str
    calls: int
    ways: tuple[str, ...] = (DIRECT, PIPE, PROXY)
    pause: float = 0.0
    """Seconds of sleep before each call."""

    @property
    def cold(self) -> "Case":
        return replace(self, name=f"{self.name}, cold", calls=COLD_CALLS, pause=COLD_SECONDS)


VERSION = Case(CRI, "Version", "Version", 4_000)
LISTED = Case(CRI, "list of 200", "ListContainers", 200)
CRI_HELD = ("RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainerResources")
HELD = RUN, CREATE, START, UPDATE, DOCKER_CREATE, DOCKER_START, DOCKER_UPDATE = [
    *(Case(CRI, method, method, 500, WAYS) for method in CRI_HELD),
    *(Case(DOCKER, method, method, 500, WAYS) for method in ("create", "start", "update")),
]
DOCKER_VERSION = Case(DOCKER, "ping", "ping", 4_000)
DOCKER_LISTED = Case(DOCKER, "list of 200", "list", 200)
EXPORT = Case(DOCKER, "export of 1 GiB", "export", 5)
IMPORT = Case(DOCKER, "import of 1 GiB", "import", 5)

CASES = (
    *(VERSION, VERSION.cold, LISTED, DOCKER_VERSION, DOCKER_VERSION.cold, DOCKER_LISTED),
    *HELD,
    *(case.cold for case in HELD),
    *(EXPORT, IMPORT),
)
SMALL = {CRI: VERSION, DOCKER: DOCKER_VERSION}
CREATES = {CRI: CREATE, DOCKER: DOCKER_CREATE}
POINTS = (
    *("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer"),
    "PreUpdateContainerResources",
)
"""The hook points that the hook server is registered for."""


class Figures(NamedTuple):
    """The figures of one case on one way. Microseconds, calls per second, CPU microseconds per call, memory growth in
    MiB. The last two are those of the pipe or the proxy, nan for the direct way."""

    p50: float
    p99: float
    throughput: float
    cpu: float
    growth: float


Round = dict[tuple[Case, str], Figures]


class Limit(NamedTuple):
    """A limit for the ratio of a figure on ``way`` to the same on ``base``, or to that of another case ``of``. It is an
    upper bound, or with ``least`` a lower one."""

    case: Case
    figure: str
    way: str
    base: str
    bound: float
    least: bool = False
    of: Case | None = None

    @property
    def name(self) -> str:
        base = f" to {self.base}" if self.base else ""
        return f"{self.case.name}: {self.figure}, {self.way}{base}{f' for {self.of.name}' if self.of else ''}"

    def value(self, measured: Round) -> float:
        """Return the ratio in one round; the figure itself if there is no base."""
        found: float = getattr(measured[self.case, self.way], self.figure)
        base: float = getattr(measured[self.of or self.case, self.base], self.figure) if self.base else 1.0
        return found / base


P50 = {
    RUN: (1.9, 3.4, 1.9, 2.6),
    CREATE: (1.7, 2.8, 1.9, 2.2),
    START: (1.9, 5.2, 1.75, 3.5),
    UPDATE: (2.0, 3.8, 1.8, 2.6),
    DOCKER_CREATE: (2.0, 5.0, 1.9, 3.9),
    DOCKER_START: (1.3, 5.0, 1.5, 4.5),
    DOCKER_UPDATE: (1.5, 4.2, 1.5, 3.5),
}
"""Most p50 relative to direct: without a hook server and with one, hot; then the same cold."""
HELD_CPU = 7
HOOKED_CPU = {RUN: 9, CREATE: 14, START: 12, UPDATE: 9, DOCKER_CREATE: 14, DOCKER_START: 12, DOCKER_UPDATE: 9}
"""Most CPU per call with a hook server, relative to the pipe's for the smallest call; HELD_CPU is without one."""
PASSING = ((VERSION, LISTED), (DOCKER_VERSION, DOCKER_LISTED))
LIMITS = (
    *(Limit(small, "p50", PROXY, PIPE, 1.15) for small, _ in PASSING),
    *(Limit(small, "cpu", PROXY, PIPE, 1.4) for small, _ in PASSING),
    *(Limit(listed, "cpu", PROXY, PIPE, 1.15) for _, listed in PASSING),
    *(
        Limit(case, "p50", way, DIRECT, bound)
        for hot, bounds in P50.items()
        for (case, way), bound in zip(product((hot, hot.cold), (PROXY, HOOKED)), bounds, strict=True)
    ),
    *(Limit(case, "cpu", PROXY, PIPE, HELD_CPU, of=SMALL[case.mode]) for case in HOOKED_CPU),
    *(Limit(case, "cpu", HOOKED, PIPE, bound, of=SMALL[case.mode]) for case, bound in HOOKED_CPU.items()),
    *(Limit(case, "throughput", PROXY, PIPE, 0.9, least=True) for case in (EXPORT, IMPORT)),
    *(Limit(case, "growth", PROXY, "", 1.0) for case in (EXPORT, IMPORT)),
)


def judge(rounds: Sequence[Round]) -> list[Figure]:
    """Return the medians of the rounds compared with the limits of their cases, and the best round."""
    figures = []
    for limit in LIMITS:
        if (limit.case, limit.way) in rounds[0]:
            found = [limit.value(measured) for measured in rounds]
            middle, best = median(found), max(found) if limit.least else min(found)
            bound = f"{'at least' if limit.least else 'at most'} {limit.bound:.2f}"
            kept = middle >= limit.bound if limit.least else middle <= limit.bound
            figures.append(Figure(limit.name, f"{middle:.2f} (best round {best:.2f})", bound, kept))
    return figures


HEADER = ("case", "way", "p50 us", "p99 us", "calls/s", "CPU us/call", "grew MiB")


def figure_table(rounds: Sequence[Round]) -> list[Sequence[str]]:
    """Return the medians over the rounds, with one row for every case and way."""
    return [HEADER, *(_row(case, way, [measured[case, way] for measured in rounds]) for case, way in rounds[0])]


def _row(case: Case, way: str, found: Sequence[Figures]) -> Sequence[str]:
    p50, p99, rate, cpu, growth = (median(values) for values in zip(*found, strict=True))
    digits = 0 if rate >= 10 else 2  # transfers are less than one per second
    others = (f"{value:.2f}".replace("nan", "-") for value in (cpu, growth))
    return (case.name, way, f"{p50:.0f}", f"{p99:.0f}", f"{rate:.{digits}f}", *others)
