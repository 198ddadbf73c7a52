"""Calls beside a hostile client that goes on: what it costs the others (fault matrix X1).

Owns the turns of each kind of attack, the figure and its limit.
Must not know: what is sent, how figures are shown.
Invariant: an attack costs the machine and the runtime behind the proxy something, too. So the calls beside it are
compared with calls to a second proxy in front of the same runtime, meanwhile: only the proxy differs.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, DOCKER_LIST, LIST, PING, SMALL, Case
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import START_SECONDS, DemoError, program
from scripts.soaking import beside
from scripts.soaking.attacker import ATTACKS_NOW
from scripts.soaking.attacks import ATTACKS
from scripts.soaking.beside import WAYS, Beside

TURNS = 4
CALLS: Mapping[Case, int] = {SMALL: 1_000, LIST: 400, PING: 1_000, DOCKER_LIST: 400}
"""The other calls of a turn, to each proxy."""
RATIO = 2.0
"""p99 of a call beside the attack may be so many times that at another proxy."""
LOOK_SECONDS = 0.01


def measure(name: str, share: float) -> Mapping[str, Sequence[Beside]]:
    """Measure every kind of attack in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = MODES[name]
    calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
    with programs.served(mode, (DIRECT, *WAYS)) as served:
        return {
            kind: beside.measure(served, mode, calls, partial(_attack, served, name, kind), TURNS)
            for kind in ATTACKS[name]
        }


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
