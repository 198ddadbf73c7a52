"""Calls beside creates whose hook server hangs: what these cost the others (promise 5, fault matrix H3).

Owns the hanging, the turns of the other calls without and with it, the figure and its limit.
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
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, DOCKER_LIST, HOOKED, LIST, PING, SMALL, Case
from scripts.benchmark.measure import send
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError, Program, program, wait_for_registration
from tests.engines.cri import CriClient
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

HELD = 100
TURNS = 11
CALLS: Mapping[Case, int] = {SMALL: 3_000, LIST: 1_000, PING: 3_000, DOCKER_LIST: 1_000}
"""The other calls of a turn, as many alone as beside."""
RATIO = 1.05
"""p99 of a call beside the held ones may be so many times that without them."""

_PATIENCE_SECONDS = 1200.0
"""The held calls end when the turn does, not before; hook servers get half of a caller's time."""
_PATIENT = (f"--hook-timeout={_PATIENCE_SECONDS}s", f"--hook-budget={_PATIENCE_SECONDS}s")
_REGISTRATION = "held-up.json"
_HOLD_SECONDS = 1.0
"""After so long all of them wait for the hook server."""


@dataclass(frozen=True, slots=True)
class Hung:
    """p99 of a call in microseconds, alone and beside the held calls, turn by turn."""

    case: Case
    turns: Sequence[tuple[int, int]]

    @property
    def ratio(self) -> float:
        """Return what the held calls cost the others: the median over the turns."""
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


_KUBELETS: Mapping[str, tuple[tuple[Case, ...], Callable[[Path], AbstractContextManager[Create]]]] = {
    CRI: ((SMALL, LIST), _cri),
    DOCKER: ((PING, DOCKER_LIST), _docker),
}
"""By mode: the other calls, and who creates."""


def measure(name: str, share: float) -> Sequence[Hung]:
    """Measure a proxy in the mode of this name; ``share`` of the other calls is made. Raises DemoError."""
    mode = replace(MODES[name], flags=(*MODES[name].flags, *_PATIENT))
    cases, kubelet = _KUBELETS[name]
    turns: dict[Case, list[tuple[int, int]]] = {case: [] for case in cases}
    with (
        programs.served(mode, (DIRECT, HOOKED)) as served,
        _hook_server(served) as hooks,
        kubelet(served.socket(HOOKED)) as create,
    ):
        loads = {case: mode.prepare(served, case, HOOKED) for case in cases}

        def p99(case: Case) -> int:
            return send(served, case, HOOKED, loads[case], max(int(CALLS[case] * share), 1)).percentile(99)

        for case in cases:
            p99(case)  # warm
        for turn in range(TURNS):
            alone = [p99(case) for case in cases]
            with _held(hooks, create, range(turn * HELD, (turn + 1) * HELD)):
                beside = [p99(case) for case in cases]
            for case, without, with_them in zip(cases, alone, beside, strict=True):
                turns[case].append((without, with_them))
    return [Hung(case, each) for case, each in turns.items()]


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
