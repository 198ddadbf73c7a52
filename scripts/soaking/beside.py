"""Calls beside something that goes on, and without it: what it costs them.

Owns the turns, the figure that they give, and creates that are held for a turn.
Must not know: what goes on, limits, how figures are shown.
Invariant: the situations take turns, and so does their order, so that what else the machine does meets all of them
alike; every held call is answered at the end of its turn.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.benchmark import cri, docker
from scripts.benchmark.cases import CRI, DOCKER, DOCKER_LIST, LIST, PING, SMALL, Case
from scripts.benchmark.measure import send
from scripts.benchmark.modes import Mode
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from tests.engines.cri import CriClient
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

CASES: Mapping[str, tuple[Case, Case]] = {CRI: (SMALL, LIST), DOCKER: (PING, DOCKER_LIST)}
"""By mode: the calls that are measured."""
PATIENCE_SECONDS = 1200.0
"""The held calls end when the turn does, not before."""
HOLD_SECONDS = 1.0
"""After so long all of them wait."""

Situation = Callable[[int], AbstractContextManager[object]]
"""What goes on beside the calls of a turn, whose number it is given."""


def alone(turn: int) -> AbstractContextManager[object]:
    """Let nothing go on."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Beside:
    """p99 of a call in microseconds, turn by turn: alone, then in the other situations."""

    case: Case
    turns: Sequence[tuple[int, ...]]

    @property
    def ratio(self) -> float:
        """Return what the last situation costs, compared with the one before it: the median over the turns."""
        return median(turn[-1] / turn[-2] for turn in self.turns)

    @property
    def medians(self) -> Sequence[float]:
        """Return p99 in each situation: the median over the turns."""
        return [median(p99s) for p99s in zip(*self.turns, strict=True)]


def measure(
    served: Served, mode: Mode, way: str, calls: Mapping[Case, int], situations: Sequence[Situation], turns: int
) -> list[Beside]:
    """Make so many calls of the mode's cases on a way in every situation, turn by turn. Raises DemoError."""
    cases = CASES[mode.name]
    loads = {case: mode.prepare(served, case, way) for case in cases}

    def p99() -> list[int]:
        return [send(served, case, way, loads[case], calls[case]).percentile(99) for case in cases]

    p99()  # warm
    measured = []
    for turn in range(turns):
        found = {}
        for situation in situations if turn % 2 else reversed(situations):
            with situation(turn):
                found[situation] = p99()
        measured.append([found[situation] for situation in situations])
    return [Beside(case, [tuple(row[at] for row in turn) for turn in measured]) for at, case in enumerate(cases)]


# ---- creates that are held

Create = Callable[[int], object]
"""Creates a container; no two have the same number."""


@contextmanager
def _cri(socket: Path, count: int) -> Iterator[Create]:
    pod = cri.pod()
    with CriClient(str(socket), timeout_seconds=PATIENCE_SECONDS) as client:
        pod_id = client.run_pod(pod)

        def create(number: int) -> None:
            request = cri.create(pod_id, pod)
            request.config.metadata.name = f"held-{number}"
            client.call("CreateContainer", request)

        yield create


@contextmanager
def _docker(socket: Path, count: int) -> Iterator[Create]:
    with ExitStack() as stack:
        shims = [
            stack.enter_context(Dockershim(str(socket), DOCKERSHIM, timeout_seconds=PATIENCE_SECONDS))
            for _ in range(count)
        ]
        pods = [docker.run_pod(shim) for shim in shims]
        yield lambda number: shims[number % count].create_container(pods[number % count], f"held-{number}")


KUBELETS: Mapping[str, Callable[[Path, int], AbstractContextManager[Create]]] = {CRI: _cri, DOCKER: _docker}
"""By mode: makes who creates so many containers at a time."""


@contextmanager
def held(hold: AbstractContextManager[object], create: Create, numbers: Sequence[int]) -> Iterator[None]:
    """Let creates wait until the end of the block: for what does not go on before ``hold`` ends.

    Raises DemoError if one did not wait, and whatever one fails with.
    """
    with ThreadPoolExecutor(len(numbers)) as pool:
        with hold:
            creating = [pool.submit(create, number) for number in numbers]
            time.sleep(HOLD_SECONDS)
            yield
            waited = not any(future.done() for future in creating)
        for future in creating:
            future.result()
    if not waited:
        raise DemoError("the creates did not wait, so nothing was measured beside them")


@contextmanager
def signalled(program: int, at_begin: int, at_end: int) -> Iterator[None]:
    """Send a program a signal, and another one at the end of the block."""
    os.kill(program, at_begin)
    try:
        yield
    finally:
        os.kill(program, at_end)
