"""Calls beside creates whose hook server hangs: what these cost the others (promise 5, fault matrix H3).

Owns the hanging, how many hang, the limit of the figure.
Must not know: how figures are shown.
Invariant: the hook server is asked at every create, and must be.
"""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, DOCKER_LIST, HOOKED, LIST, PING, SMALL, Case
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import Program, program, wait_for_registration
from scripts.soaking import beside
from scripts.soaking.beside import KUBELETS, PATIENCE_SECONDS, Beside, alone, held, signalled

HELD = 100
TURNS = 60
CALLS: Mapping[Case, int] = {SMALL: 1_500, LIST: 400, PING: 1_500, DOCKER_LIST: 400}
"""The other calls of a turn, as many alone as beside."""
RATIO = 1.05
"""p99 of a call beside the held ones may be so many times that without them."""

_PATIENT = (f"--hook-timeout={PATIENCE_SECONDS}s", f"--hook-budget={PATIENCE_SECONDS}s")
"""Hook servers get half of a caller's time."""
_REGISTRATION = "held-up.json"


def measure(name: str, share: float) -> Sequence[Beside]:
    """Measure a proxy in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = replace(MODES[name], flags=(*MODES[name].flags, *_PATIENT))
    with (
        programs.served(mode, (DIRECT, HOOKED)) as served,
        _hook_server(served) as hooks,
        KUBELETS[name](served.socket(HOOKED), HELD) as create,
    ):

        def beside_held(turn: int) -> AbstractContextManager[None]:
            stopped = signalled(hooks.process.pid, signal.SIGSTOP, signal.SIGCONT)
            return held(stopped, create, range(turn * HELD, (turn + 1) * HELD))

        calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
        return beside.measure(served, mode, HOOKED, calls, (alone, beside_held), TURNS)


@contextmanager
def _hook_server(served: Served) -> Iterator[Program]:
    """Run the tests' hook server."""
    command = [sys.executable, "-m", "tests.fakes.hookserver", f"--socket={served.folder / 'hooks.sock'}"]
    command += [f"--register-dir={served.registrations(HOOKED)}", f"--name={_REGISTRATION}", "--policy=Fail"]
    with program("hooks", [*command, "--points", "PreCreateContainer"], served.folder) as running:
        wait_for_registration(served.programs[HOOKED], _REGISTRATION)
        yield running
