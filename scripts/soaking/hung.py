"""Calls beside creates whose hook server hangs: what these cost the others (promise 5, fault matrix H3).

Owns the hanging, how many hang, the limit of the figure.
Must not know: how figures are shown.
Invariant: the hook server is asked at every create, and must be.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, DOCKER_LIST, LIST, PING, SMALL, Case
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import Program, program, wait_for_registration
from scripts.soaking import beside
from scripts.soaking.beside import PATIENCE_SECONDS, WAYS, Beside, holding, signalled
from scripts.soaking.loads import EXEC, EXEC_SYNC, INSPECT, STATUS

HELD = 100
TURNS = 4
CALLS: Mapping[Case, int] = {
    **{SMALL: 25_000, LIST: 10_000, STATUS: 25_000, EXEC_SYNC: 15_000},
    **{PING: 25_000, DOCKER_LIST: 10_000, INSPECT: 25_000, EXEC: 10_000},
}
"""The other calls of a turn, to each proxy: so many that p99 is known within some hundredths."""
RATIO = 1.05
"""p99 of a call beside the held ones may be so many times that at another proxy."""

_PATIENT = (f"--hook-timeout={PATIENCE_SECONDS}s", f"--hook-budget={PATIENCE_SECONDS}s")
"""Hook servers get half of a caller's time."""
_REGISTRATION = "held-up.json"


def measure(name: str, share: float) -> Sequence[Beside]:
    """Measure a proxy in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = replace(MODES[name], flags=(*MODES[name].flags, *_PATIENT))
    with (
        programs.served(mode, (DIRECT, *WAYS)) as served,
        _hook_server(served) as hooks,
        holding(name, served, HELD, lambda: signalled(hooks.process.pid, signal.SIGSTOP, signal.SIGCONT)) as held,
    ):
        calls = {case: max(int(count * share), 1) for case, count in CALLS.items()}
        return beside.measure(served, mode, calls, held, TURNS)


@contextmanager
def _hook_server(served: Served) -> Iterator[Program]:
    """Run the tests' hook server, registered at both proxies."""
    first, second = map(served.registrations, WAYS)
    command = [sys.executable, "-m", "tests.fakes.hookserver", f"--socket={served.folder / 'hooks.sock'}"]
    command += [f"--register-dir={first}", f"--name={_REGISTRATION}", "--policy=Fail"]
    with program("hooks", [*command, "--points", "PreCreateContainer"], served.folder) as running:
        wait_for_registration(served.programs[WAYS[0]], _REGISTRATION)
        os.link(first / _REGISTRATION, second / _REGISTRATION)
        wait_for_registration(served.programs[WAYS[1]], _REGISTRATION)
        yield running
