"""Calls to a proxy at which something goes on, and to another one in front of the same runtime: what it costs them.

Owns the turns, the figure that they give, and creates that are held for a turn.
Must not know: what goes on, limits, how figures are shown.
Invariant: calls to both proxies take turns in portions of less than a second, as the pauses of a machine with
neighbours are longer than what is looked for; which proxy is which takes turns, too. Every held call is answered at the
end of its turn.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import cri, docker
from scripts.benchmark.cases import CRI, DOCKER, DOCKER_LIST, HOOKED, LIST, PING, PROXY, SMALL, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.measure import send
from scripts.benchmark.modes import Mode
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from scripts.soaking import loads
from scripts.soaking.loads import EXEC, EXEC_SYNC, INSPECT, STATUS
from tests.engines.cri import CriClient
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

CASES: Mapping[str, tuple[Case, ...]] = {
    CRI: (SMALL, LIST, STATUS, EXEC_SYNC),
    DOCKER: (PING, DOCKER_LIST, INSPECT, EXEC),
}
"""By mode: the calls that may be measured."""
WAYS = (PROXY, HOOKED)
"""Those of the two proxies."""
PORTION: Mapping[Case, int] = {
    **{SMALL: 250, LIST: 200, STATUS: 250, EXEC_SYNC: 200},
    **{PING: 250, DOCKER_LIST: 200, INSPECT: 250, EXEC: 200},
}
"""The first call of each portion has to connect: it must be less than one of a hundred."""
PATIENCE_SECONDS = 1200.0
"""The held calls end when the turn does, not before."""
HEARD_SECONDS = 0.2
"""A busy program may take so long until it does what a signal says; a create that came before would not wait."""
HOLD_SECONDS = 1.0
"""After so long all of them wait."""

Situation = Callable[[str, int], AbstractContextManager[object]]
"""What goes on at the proxy of a way in the turn of a number."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The calls of a case at the proxy at which something goes on, and elsewhere."""

    case: Case
    here: Run
    elsewhere: Run

    @property
    def p99s(self) -> tuple[int, int]:
        """Return the microseconds that 99 of 100 calls did not exceed, here and elsewhere."""
        return self.here.percentile(99), self.elsewhere.percentile(99)

    @property
    def ratio(self) -> float:
        """Return what goes on costs."""
        here, elsewhere = self.p99s
        return here / elsewhere


def measure(served: Served, mode: Mode, calls: Mapping[Case, int], situation: Situation, turns: int) -> list[Beside]:
    """Make so many calls of the mode's cases to each proxy in every turn. Raises DemoError."""
    cases = [case for case in CASES[mode.name] if case in calls]
    made = {(case, way): loads.prepare(served, mode, case, way) for case in cases for way in WAYS}
    for (case, way), load in made.items():
        send(served, case, way, load, PORTION[case])
    runs = {(case, at_it): Run((), 0.0) for case in cases for at_it in (True, False)}
    for turn in range(turns):
        here = WAYS[turn % 2]
        with situation(here, turn):
            for case, way, count in _portions(cases, calls):
                runs[case, way == here] += send(served, case, way, made[case, way], count)
    return [Beside(case, runs[case, True], runs[case, False]) for case in cases]


def _portions(cases: Sequence[Case], calls: Mapping[Case, int]) -> Iterator[tuple[Case, str, int]]:
    """Yield whose turn it is, and how many calls are made: as many on each way, which take turns in being the first."""
    for case in cases:
        for number, done in enumerate(range(0, calls[case], PORTION[case])):
            for way in (WAYS, WAYS[::-1])[number % 2]:
                yield case, way, min(PORTION[case], calls[case] - done)


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
def holding(
    name: str, served: Served, count: int, hold: Callable[[], AbstractContextManager[object]]
) -> Iterator[Situation]:
    """Give the situation in which so many creates are held at a proxy, in the mode of this name."""
    with ExitStack() as stack:
        creates = {way: stack.enter_context(KUBELETS[name](served.socket(way), count)) for way in WAYS}
        yield lambda way, turn: held(hold(), creates[way], range(turn * count, (turn + 1) * count))


@contextmanager
def signalled(program: int, at_begin: int, at_end: int) -> Iterator[None]:
    """Send a program a signal, and another one at the end of the block."""
    os.kill(program, at_begin)
    try:
        time.sleep(HEARD_SECONDS)
        yield
    finally:
        os.kill(program, at_end)
