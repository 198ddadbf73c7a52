"""Small calls beside creates whose hook server hangs: what these cost the others (promise 5, fault matrix H3).

Owns the hanging, the turns of small calls without and with it, the figure and its limit.
Must not know: how figures are shown.
Invariant: calls without and beside the held ones take turns, so that what else the machine does meets both alike; every
held call is answered at the end of its turn.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from scripts.benchmark import cri, docker, programs
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, HOOKED, PING, SMALL, Case
from scripts.benchmark.measure import send
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError, Program, program, wait_for_registration
from tests.engines.cri import CriClient
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

HELD = 100
TURNS = 11
CALLS = 3_000
"""Small calls of a turn, alone and beside."""
RATIO = 1.05
"""p99 of a small call beside the held ones may be so many times that without them."""

_PATIENCE_SECONDS = 1200.0
"""The held calls end when the turn does, not before; hook servers get half of a caller's time."""
_PATIENT = (f"--hook-timeout={_PATIENCE_SECONDS}s", f"--hook-budget={_PATIENCE_SECONDS}s")
_REGISTRATION = "held-up.json"
_HOLD_SECONDS = 1.0
"""After so long all of them wait for the hook server."""


@dataclass(frozen=True, slots=True)
class Hung:
    """p99 of a small call in microseconds, alone and beside the held calls, turn by turn."""

    turns: Sequence[tuple[int, int]]

    @property
    def ratio(self) -> float:
        """Return what the held calls cost the small ones: the median over the turns."""
        return median(beside / alone for alone, beside in self.turns)


Create = Callable[[int], object]
"""Creates a container; no two have the same number."""


@contextmanager
def _cri(socket: Path) -> Iterator[Create]:
    pod = cri.pod()
    with CriClient(str(socket), timeout_seconds=_PATIENCE_SECONDS) as client:
        pod_id = client.run_pod(pod)

        def create(number: int) -> None:
            request = cri.create(pod_id, pod)
            request.config.metadata.name = f"held-{number}"
            client.call("CreateContainer", request)

        yield create


@contextmanager
def _docker(socket: Path) -> Iterator[Create]:
    with ExitStack() as stack:
        shims = [
            stack.enter_context(Dockershim(str(socket), DOCKERSHIM, timeout_seconds=_PATIENCE_SECONDS))
            for _ in range(HELD)
        ]
        pods = [docker.run_pod(shim) for shim in shims]
        yield lambda number: shims[number % HELD].create_container(pods[number % HELD], f"held-{number}")


_KUBELETS: Mapping[str, tuple[Case, Callable[[Path], AbstractContextManager[Create]]]] = {
    CRI: (SMALL, _cri),
    DOCKER: (PING, _docker),
}
"""By mode: the small call, and who creates."""


def measure(name: str, share: float) -> Hung:
    """Measure a proxy in the mode of this name; ``share`` of the small calls is made. Raises DemoError."""
    mode = replace(MODES[name], flags=(*MODES[name].flags, *_PATIENT))
    small, kubelet = _KUBELETS[name]
    calls = max(int(CALLS * share), 1)
    turns = []
    with (
        programs.served(mode, (DIRECT, HOOKED)) as served,
        _hook_server(served) as hooks,
        kubelet(served.socket(HOOKED)) as create,
    ):
        load = mode.prepare(served, small, HOOKED)
        send(served, small, HOOKED, load, calls)
        for turn in range(TURNS):
            alone = send(served, small, HOOKED, load, calls)
            with _held(hooks, create, range(turn * HELD, (turn + 1) * HELD)):
                beside = send(served, small, HOOKED, load, calls)
            turns.append((alone.percentile(99), beside.percentile(99)))
    return Hung(turns)


@contextmanager
def _hook_server(served: Served) -> Iterator[Program]:
    """Run the tests' hook server, which is asked at every create, and must be."""
    command = [sys.executable, "-m", "tests.fakes.hookserver", f"--socket={served.folder / 'hooks.sock'}"]
    command += [f"--register-dir={served.registrations(HOOKED)}", f"--name={_REGISTRATION}", "--policy=Fail"]
    with program("hooks", [*command, "--points", "PreCreateContainer"], served.folder) as running:
        wait_for_registration(served.programs[HOOKED], _REGISTRATION)
        yield running


@contextmanager
def _held(hooks: Program, create: Create, numbers: Sequence[int]) -> Iterator[None]:
    """Let creates wait for a hook server that is stopped, until the end of the block.

    Raises DemoError if one did not wait, and whatever one fails with.
    """
    with ThreadPoolExecutor(len(numbers)) as pool:
        hooks.process.send_signal(signal.SIGSTOP)
        try:
            creating = [pool.submit(create, number) for number in numbers]
            time.sleep(_HOLD_SECONDS)
            yield
            waited = not any(future.done() for future in creating)
        finally:
            hooks.process.send_signal(signal.SIGCONT)
        for future in creating:
            future.result()
    if not waited:
        raise DemoError("the creates did not wait for the hook server, so nothing was measured beside them")
