"""Small calls beside creates of 16 MiB: what is held of these must not hold up the others (promise 10).

The runtime, and the machine, have their work with such creates, too: so the same small calls go past the proxy
meanwhile, straight to the runtime, and what the proxy adds to theirs is held against the limit.

Owns the creates, the turns, the figure and its limit.
Must not know: how figures are shown.
Invariant: a create that fails raises; small calls through the proxy and past it take turns in portions. A container is
removed before the next one is created.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from threading import Event

from scripts.benchmark import cri, docker, programs
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, HOOKED, PING, PROXY, SMALL, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.measure import send
from scripts.benchmark.modes import MODES, Load, Mode
from scripts.benchmark.served import Served
from tests.engines.cri import CriClient
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

TURNS = 5
CALLS = 2_000
"""Small calls of a turn, each way."""
PORTION = 250
LOOK_SECONDS = 0.1
MORE_MICROSECONDS = 50_000
"""p99 of a small call beside such creates may be so much higher through the proxy than past it."""
BULK = "x" * ((16 << 20) - (64 << 10))
"""An argument of the container's command, which hook servers are not told."""
SMALL_CALLS: Mapping[str, Case] = {CRI: SMALL, DOCKER: PING}
WAYS = (PROXY, HOOKED)
"""Without a hook server, and with one that answers at once."""

Create = Callable[[], object]


@dataclass(frozen=True, slots=True)
class BesideCreates:
    """p99 of small calls on a way and past it, in microseconds, the median over the turns."""

    way: str
    through: float
    past: float

    @property
    def kept(self) -> bool:
        """Tell whether the proxy adds no more than it may."""
        return self.through - self.past <= MORE_MICROSECONDS


def measure(name: str, share: float) -> list[BesideCreates]:
    """Measure proxies in the mode of this name; ``share`` of the small calls is made. Raises DemoError."""
    mode = MODES[name]
    calls = max(int(CALLS * share), 1)
    with programs.served(mode, (DIRECT, *WAYS, programs.HOOKS)) as served:
        return [_beside(served, mode, way, calls) for way in WAYS]


def _beside(served: Served, mode: Mode, way: str, calls: int) -> BesideCreates:
    case = SMALL_CALLS[mode.name]
    loads = {each: mode.prepare(served, case, each) for each in (way, DIRECT)}
    with KUBELETS[mode.name](served.socket(way)) as create:

        def counted() -> None:
            create()
            served.made[way, mode.create.route] += 1

        served.made[way, mode.points["PreRunPodSandbox"]] += 1
        turns = [_turn(served, case, loads, calls, counted) for _ in range(TURNS)]
    through, past = (median(turn[each].percentile(99) for turn in turns) for each in (way, DIRECT))
    return BesideCreates(way, through, past)


def _turn(served: Served, case: Case, loads: Mapping[str, Load], calls: int, create: Create) -> dict[str, Run]:
    runs = {way: Run((), 0.0) for way in loads}
    with _creating(create):
        for done in range(0, calls, PORTION):
            for way, load in loads.items():
                runs[way] += send(served, case, way, load, min(PORTION, calls - done))
    return runs


@contextmanager
def _creating(create: Create) -> Iterator[None]:
    """Create without a pause until the end of the block, which begins when one was created."""
    over, made = Event(), Event()

    def go_on() -> None:
        while not over.is_set():
            create()
            made.set()

    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(go_on)
        while not made.wait(LOOK_SECONDS) and not creating.done():
            pass
        try:
            yield
        finally:
            over.set()
        creating.result()


# ---- kubelets


@contextmanager
def _cri(socket: Path) -> Iterator[Create]:
    pod = cri.pod()
    with CriClient(str(socket)) as client:
        request = cri.create(client.run_pod(pod), pod)
        request.config.args.append(BULK)
        yield lambda: client.remove(client.call("CreateContainer", request).container_id)


@contextmanager
def _docker(socket: Path) -> Iterator[Create]:
    with Dockershim(str(socket), DOCKERSHIM) as shim:
        pod, names = docker.run_pod(shim), (f"big-{number}" for number in count())  # a name is not given back
        yield lambda: shim.remove_container(shim.create_container(pod, next(names), command=["sleep", BULK]))


KUBELETS: Mapping[str, Callable[[Path], AbstractContextManager[Create]]] = {CRI: _cri, DOCKER: _docker}
"""By mode: makes who creates a container of 16 MiB, and removes it, each time."""
