"""Calls beside creates that the runtime does not answer: what these cost the others (fault matrix B4).

Owns the hanging, how many hang, the limit of the figure.
Must not know: how figures are shown.
Invariant: the runtime answers every other call as it always does.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scripts.benchmark import programs
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, DOCKER_LIST, LIST, PING, SMALL, Case
from scripts.benchmark.modes import MODES
from scripts.soaking import beside
from scripts.soaking.beside import WAYS, Beside, holding, signalled
from scripts.soaking.loads import EXEC, EXEC_SYNC, INSPECT, STATUS

HELD = 20
TURNS = 4
CALLS: Mapping[Case, int] = {
    **{SMALL: 15_000, LIST: 6_000, STATUS: 15_000, EXEC_SYNC: 10_000},
    **{PING: 15_000, DOCKER_LIST: 6_000, INSPECT: 15_000, EXEC: 6_000},
}
"""The other calls of a turn, to each proxy."""
RATIO = 1.10
"""p99 of a call beside the held ones may be so many times that at another proxy."""
SERVERS = {CRI: "scripts.soaking.slow_runtime", DOCKER: "scripts.soaking.slow_dockerd"}


def measure(name: str, share: float) -> Sequence[Beside]:
    """Measure a proxy in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = replace(MODES[name], server=SERVERS[name])
    with (
        programs.served(mode, (DIRECT, *WAYS)) as served,
        holding(
            name, served, HELD, lambda: signalled(served.programs[DIRECT].process.pid, signal.SIGUSR1, signal.SIGUSR2)
        ) as held,
    ):
        calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
        return beside.measure(served, mode, calls, held, TURNS)
