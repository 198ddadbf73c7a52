"""Calls beside a hostile client that goes on: what it costs the others (fault matrix X1).

Owns the turns of each kind of attack, the figure and its limit.
Must not know: what is sent, how figures are shown.
Invariant: an attack costs the machine and the runtime behind the proxy something, too. So the calls of a turn are made
alone, beside the attack on a second proxy in front of the same runtime, and beside the same attack on their own one:
only between the last two it is the proxy that differs.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, DOCKER_LIST, HOOKED, LIST, PING, PROXY, SMALL, Case
from scripts.benchmark.modes import MODES, Mode
from scripts.benchmark.served import Served
from scripts.demonstration.processes import START_SECONDS, DemoError, program
from scripts.soaking import beside
from scripts.soaking.attacker import ATTACKS_NOW
from scripts.soaking.attacks import ATTACKS
from scripts.soaking.beside import Beside, alone

TURNS = 15
CALLS: Mapping[Case, int] = {SMALL: 500, LIST: 100, PING: 500, DOCKER_LIST: 100}
"""The other calls of a turn, in each situation."""
RATIO = 2.0
"""p99 of a call beside the attack may be so many times that beside the same attack on another proxy."""
ELSEWHERE = HOOKED
"""The second proxy; nothing is registered at it."""
LOOK_SECONDS = 0.01


def measure(name: str, share: float) -> Mapping[str, Sequence[Beside]]:
    """Measure every kind of attack in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = MODES[name]
    calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
    with programs.served(mode, (DIRECT, PROXY, ELSEWHERE)) as served:
        return {kind: _beside(served, mode, kind, calls) for kind in ATTACKS[name]}


def _beside(served: Served, mode: Mode, kind: str, calls: Mapping[Case, int]) -> list[Beside]:
    elsewhere, here = (partial(_attack, served, mode.name, kind, way) for way in (ELSEWHERE, PROXY))
    return beside.measure(served, mode, PROXY, calls, (alone, elsewhere, here), TURNS)


@contextmanager
def _attack(served: Served, mode: str, kind: str, way: str, turn: int) -> Iterator[None]:
    """Attack the proxy of a way until the end of the block. Raises DemoError if the attack ends before, or has done
    nothing."""
    command = [sys.executable, "-m", "scripts.soaking.attacker", mode, kind, str(served.socket(way))]
    with program("attacker", command, served.folder) as attacker:
        deadline = time.monotonic() + START_SECONDS
        while ATTACKS_NOW not in attacker.output():
            if attacker.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"no attack by {kind}: {attacker.output()[-500:]}")
            time.sleep(LOOK_SECONDS)
        yield
        if attacker.process.poll() is not None:
            raise DemoError(f"the attack by {kind} ended before the calls did: {attacker.output()[-500:]}")
