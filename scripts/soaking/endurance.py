"""What must not grow in a proxy that works for long, and whether its Store is the runtime's list (fault matrix S9 and
X7, promise 13).

Owns the proxy and its hook server as processes, memory over what was done, what a proxy at rest holds, the limits.
Must not know: what is called, how figures are shown.
Invariant: memory and open files are the kernel's word on a process that does nothing else. Its Store and its tasks,
which nobody sees from outside, it tells itself when it is asked (``shown``).
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

from runtimeproxy import sync
from scripts.benchmark.cases import CRI, DOCKER
from scripts.benchmark.limits import MIB
from scripts.demonstration.processes import program
from scripts.soaking.shown import SHOW
from tests.system import cri_front, docker_front
from tests.system.cri_front import CriRuntime
from tests.system.docker_front import DockerRuntime
from tests.system.fronts import Front
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, until

Fake = CriRuntime | DockerRuntime
FRONTS: Mapping[str, Front] = {CRI: cri_front.CRI, DOCKER: docker_front.DOCKER}
RUNTIMES: Mapping[str, Callable[[str], Fake]] = {
    CRI: lambda socket: CriRuntime(socket, keep_received=0),
    DOCKER: lambda socket: DockerRuntime(socket, keep_received=0),
}
"""By mode: a fake runtime that keeps no requests."""

GROWTH_BYTES = MIB
"""Over all that comes after the warm-up. The rule is 1 MiB an hour. Here hours pass in a minute: 23 of a day, or the
months in which a kubelet makes 80,000 pods at 30 an hour; all of them together may cost what the rule grants to one."""
DESCRIPTORS = 2
"""So many more or fewer may be open after it."""

REGISTRATION = "every-point.json"
STALLED = "the event loop hangs"
SAMPLE_SECONDS = 0.5
READINGS = 5
READING_SECONDS = 0.1
"""At rest the least of so many readings counts: a list of the runtime's state may be under way at any of them."""
SETTLED_SECONDS = 30.0
"""Beyond the time between two lists: by then the Store is equal."""
SOONEST_SECONDS = 1.0
"""Between two lists, however small the share."""


class Sample(NamedTuple):
    """The proxy's resident bytes when so much was done."""

    done: float
    bytes: int


@dataclass(frozen=True, slots=True)
class View:
    """What the proxy shows of itself (``shown``)."""

    ids: set[str]
    tasks: int
    stalls: int


@dataclass(frozen=True, slots=True)
class Rest:
    """A proxy without a client: asyncio's tasks, open file descriptors, and the ids of which there are two accounts."""

    tasks: int
    descriptors: int
    known: int
    """How many pods and containers the runtime has."""
    differing: int
    """How many ids are in the Store or in the runtime alone."""


@dataclass(frozen=True, slots=True)
class Endured:
    """Memory during the warm-up and after it, the proxy at rest before and after the latter, and what it counted."""

    warm_up: Sequence[Sample]
    measured: Sequence[Sample]
    before: Rest
    after: Rest
    stalls: int
    """How often the event loop hung."""

    @property
    def slope(self) -> float:
        """Return the bytes by which memory grew with each thing done after the warm-up, by least squares."""
        done, resident = zip(*self.measured, strict=True)
        return linear_regression(done, resident).slope

    @property
    def growth(self) -> float:
        """Return the bytes by which memory grew from the warm-up's end to the end: the slope times what was done."""
        return self.slope * (self.measured[-1].done - self.measured[0].done)

    @property
    def most(self) -> int:
        """Return the most bytes that were seen."""
        return max(sample.bytes for sample in (*self.warm_up, *self.measured))


class Observed:
    """A proxy that is a process of its own."""

    def __init__(self, proxy: ProxyProcess, view: Path, pass_seconds: float) -> None:
        self.socket = proxy.socket
        self._proxy = proxy
        self._view = view
        self._pass_seconds = pass_seconds

    @asynccontextmanager
    async def sampled(self, done: Callable[[], float]) -> AsyncIterator[list[Sample]]:
        """Take samples of the memory until the end of the block, the first and the last at its ends."""
        samples: list[Sample] = []

        async def go_on() -> None:
            while True:
                take()
                await asyncio.sleep(SAMPLE_SECONDS)

        def take() -> None:
            samples.append(Sample(done(), Process(self._proxy.pid).resident()))

        task = asyncio.create_task(go_on())
        try:
            yield samples
            take()
        finally:
            task.cancel()

    async def rest(self, fake: Fake) -> Rest:
        """Wait until the Store has the runtime's ids, at most until a list and some time more; look at what is held."""
        ids = {*fake.pod_ids(), *fake.container_ids()}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pass_seconds + SETTLED_SECONDS
        await asyncio.sleep(READING_SECONDS)
        gc.collect()  # grpcio's clients, who have just left, close a connection when its last call is collected
        while (differing := (await self.shown()).ids ^ ids) and loop.time() < deadline:
            await asyncio.sleep(READING_SECONDS)
        readings = []
        for _ in range(READINGS):
            await asyncio.sleep(READING_SECONDS)
            readings.append(((await self.shown()).tasks, Process(self._proxy.pid).descriptors()))
        tasks, descriptors = (min(figures) for figures in zip(*readings, strict=True))
        return Rest(tasks, descriptors, len(ids), len(differing))

    async def shown(self) -> View:
        """Ask the proxy to show itself."""
        self._view.unlink(missing_ok=True)
        os.kill(self._proxy.pid, SHOW)
        await until(self._view.exists, "the proxy shows itself", self._proxy.output)
        shown = json.loads(self._view.read_text())
        return View(set(shown["ids"]), shown["tasks"], shown["stalls"])

    def tell_stalls(self) -> None:
        """Print where the event loop hung: the places are no figures."""
        for line in self._proxy.output().splitlines():
            if STALLED in line:
                print(line, file=sys.stderr)


@asynccontextmanager
async def observed(front: Front, folder: Path, share: float) -> AsyncIterator[Observed]:
    """Run a proxy and a hook server that is asked at every point, and must be.

    The proxy lists the runtime's state each minute, or each ``share`` of one. Raises AssertionError, DemoError.
    """
    pass_seconds = max(sync.PASS_SECONDS * share, SOONEST_SECONDS)
    view = folder / "view.json"
    command = (sys.executable, "-m", "scripts.soaking.shown", str(view), str(pass_seconds))
    proxy = front.process(folder, program=command, log_level="info")
    hooks = [sys.executable, "-m", "tests.fakes.hookserver", f"--socket={folder / 'hooks.sock'}", "--answer=echo"]
    hooks += [f"--register-dir={proxy.registrations}", f"--name={REGISTRATION}", "--policy=Fail"]
    with program("hooks", hooks, folder):
        async with proxy:
            await asyncio.to_thread(proxy.wait_for_registration, REGISTRATION)
            yield Observed(proxy, view, pass_seconds)


async def endure(
    proxy: Observed, fake: Fake, part: Callable[[int], Awaitable[Sequence[Sample]]], counts: tuple[int, int]
) -> Endured:
    """Let a proxy warm up by the first count, then do the second; ``part`` does it with clients of its own."""
    warm_up = await part(counts[0])
    before = await proxy.rest(fake)
    measured = await part(counts[1])
    after = await proxy.rest(fake)
    proxy.tell_stalls()
    return Endured(warm_up, measured, before, after, (await proxy.shown()).stalls)


async def together(*calls: Coroutine[Any, Any, None]) -> None:
    """Await calls that are made at one time. Raises what the first one to fail raises; the others are given up."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
