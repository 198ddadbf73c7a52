"""Calls beside creates that the runtime does not answer: what these cost the others (fault matrix B4).

Owns the hanging, how many hang, the limit of the figure.
Must not know: how figures are shown.
Invariant: the runtime answers every other call as it always does.
"""

import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from scripts.benchmark import programs
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, DOCKER_LIST, LIST, PING, SMALL, Case
from scripts.benchmark.modes import MODES
from scripts.soaking import beside
from scripts.soaking.beside import KUBELETS, WAYS, Beside, held, signalled

HELD = 20
TURNS = 4
CALLS: Mapping[Case, int] = {SMALL: 15_000, LIST: 6_000, PING: 15_000, DOCKER_LIST: 6_000}
"""The other calls of a turn, to each proxy."""
RATIO = 1.10
"""p99 of a call beside the held ones may be so many times that at another proxy."""
SERVERS = {CRI: "scripts.soaking.slow_runtime", DOCKER: "scripts.soaking.slow_dockerd"}


def measure(name: str, share: float) -> Sequence[Beside]:
    """Measure a proxy in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = replace(MODES[name], server=SERVERS[name])
    with ExitStack() as stack:
        served = stack.enter_context(programs.served(mode, (DIRECT, *WAYS)))
        creates = {way: stack.enter_context(KUBELETS[name](served.socket(way), HELD)) for way in WAYS}
        runtime = served.programs[DIRECT].process.pid

        def beside_held(way: str, turn: int) -> AbstractContextManager[None]:
            hanging = signalled(runtime, signal.SIGUSR1, signal.SIGUSR2)
            return held(hanging, creates[way], range(turn * HELD, (turn + 1) * HELD))

        calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
        return beside.measure(served, mode, calls, beside_held, TURNS)
