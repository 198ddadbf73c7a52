"""A round: every case on each of its ways, in turns, so that what else the machine does meets all of them alike.

Owns the order of the calls, and the figures of one case on one way.
Must not know: limits, how figures are shown.
Invariant: the ways of a case take turns in portions; their order turns too.
"""

from dataclasses import dataclass

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.modes import Load, Mode
from scripts.benchmark.served import Served

PORTIONS = 10
WARM_UP_CALLS = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """One case on one way: microseconds, and those of the proxy's or the pipe's CPU (None for the direct way).

    ``growth`` is by how many bytes its memory was larger at the highest than before the calls, in the worst portion.
    """

    p50: float
    p99: float
    calls_per_second: float
    cpu: float | None
    growth: int | None = None


Round = dict[tuple[Case, str], Figures]
"""The figures of a round by case and way."""


def one_round(mode: Mode, share: float) -> Round:
    """Start everything anew and measure every case; ``share`` of each case's calls is made. Raises DemoError."""
    measured: Round = {}
    for names, peers in ((programs.OF_A_KUBELET, True), (programs.OF_A_LOAD, False)):
        with programs.served(mode, names, peers=peers, share=share) as served:
            for case in mode.cases:
                if (case.pause is not None) is peers:
                    found = _case(served, mode, case, share)
                    measured |= {(case, way): figures for way, figures in found.items()}
    return measured


def _case(served: Served, mode: Mode, case: Case, share: float) -> dict[str, Figures]:
    measured = {way: _Measured(served, case, way, mode.prepare(served, case, way)) for way in case.ways}
    portions = min(PORTIONS, case.calls)
    calls = max(int(case.calls * (1 if case.transfers else share) / portions), 1)
    for way in case.ways:
        send(served, case, way, measured[way].load, min(WARM_UP_CALLS, max(case.calls // 10, 1)))
    for turn in range(portions):
        first = turn % len(case.ways)
        for way in case.ways[first:] + case.ways[:first]:
            measured[way].take(calls)
    return {way: measured[way].figures for way in case.ways}


def send(served: Served, case: Case, way: str, load: Load, calls: int) -> Run:
    """Make calls on a way, and note how many; a kubelet notes its own."""
    if case.pause is None:
        served.sent[way, case.route] += calls
    return load.run(calls)


class _Measured:
    """What was measured of one case on one way so far."""

    def __init__(self, served: Served, case: Case, way: str, load: Load) -> None:
        self.load = load
        self._served, self._case, self._way = served, case, way
        self._run = Run((), 0.0)
        self._cpu_nanoseconds = 0
        self._growth = 0

    def take(self, calls: int) -> None:
        """Make a portion."""
        served, way = self._served, self._way
        served.start_peak(way)
        memory, cpu = served.resident_bytes(way), served.cpu_nanoseconds(way)
        self._run += send(served, self._case, way, self.load, calls)
        self._cpu_nanoseconds += served.cpu_nanoseconds(way) - cpu
        self._growth = max(self._growth, served.peak_bytes(way) - memory)

    @property
    def figures(self) -> Figures:
        """Return the figures."""
        run = self._run
        rates = (run.percentile(50), run.percentile(99), run.calls_per_second)
        if self._way == DIRECT:
            return Figures(*rates, None)
        return Figures(*rates, self._cpu_nanoseconds / 1000 / len(run.microseconds), self._growth)
