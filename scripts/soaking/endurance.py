"""Very many lifecycles of containers, some with a bad end (fault matrix S9, promise 13).

Does anything grow in a proxy that runs for long, and does its Store equal the runtime's list?

Memory and open files are read from the kernel, for a process that does nothing else; the proxy itself reports its Store
and its tasks on a signal (``shown``). The fake runtime is in the driver's process, so that it can refuse a call and
lose a container without notice; the proxy and the hook server are processes of their own. Every call must be answered
well, except for those chosen to fail, and a lifecycle with a bad end must leave nothing in the runtime.
"""

import asyncio
import gc
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import grpc
import uvloop

from runtimeproxy.core import sync
from scripts.benchmark.cases import CRI, DOCKER
from scripts.demonstration.processes import DemoError, program
from scripts.figures import MIB, Figure, at_most
from scripts.soaking.observed import SHOW
from scripts.soaking.results import Found, Plot
from tests.amounts import Amount
from tests.fakes import dockerd, runtime
from tests.system import cri_front, docker_front
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import ROUTES, DockerRuntime
from tests.system.fronts import Caller, Failed, Front
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, until

Fake = CriRuntime | DockerRuntime
FRONTS: Mapping[str, Front] = {CRI: cri_front.CRI, DOCKER: docker_front.DOCKER}
RUNTIMES: Mapping[str, Callable[..., Fake]] = {CRI: CriRuntime, DOCKER: DockerRuntime}

GROWTH_MIB = 1
"""Most growth in MiB over everything after the warm-up.

The rule is 1 MiB per hour. Here hours pass in a minute: 23 of a day, or the months in which a kubelet makes 80,000 pods
at 30 per hour; all of them together may use what the rule allows for one.
"""
DESCRIPTORS = 2
"""Most difference in open descriptors after it."""
REGISTRATION = "every-point.json"
STALLED = "the event loop hangs"
SAMPLE_SECONDS = 0.5
READINGS, READING_SECONDS = 5, 0.1
"""At rest the least of so many readings counts: a list of the runtime's state may be in progress at any of them."""
SETTLED_SECONDS = 30.0
"""Seconds beyond the time between two lists within which the Store must be equal."""
SOONEST_SECONDS = 1.0
"""Least seconds between two lists, however small the share."""


class Sample(NamedTuple):
    """The proxy's resident bytes after so much was done."""

    done: float
    bytes: int


class Rest(NamedTuple):
    """A proxy without clients. ``differing`` is the number of ids, beside ``known`` ids of the runtime, that only one
    side has."""

    tasks: int
    descriptors: int
    known: int
    differing: int


class Endured(NamedTuple):
    """Memory during the warm-up and after it, the proxy at rest before and after the latter, and its loop's stalls."""

    warm_up: Sequence[Sample]
    measured: Sequence[Sample]
    before: Rest
    after: Rest
    stalls: int

    @property
    def slope(self) -> float:
        """Return the bytes by which memory grew per unit of work after the warm-up, by least squares."""
        done, resident = zip(*self.measured, strict=True)
        return linear_regression(done, resident).slope

    @property
    def growth(self) -> float:
        """Return the bytes by which memory grew from the warm-up's end to the end: slope times units of work."""
        return self.slope * (self.measured[-1].done - self.measured[0].done)

    def figures(self, share: float) -> list[Figure]:
        """Return the figures: memory's growth, judged if everything was run, and the state at rest, always judged."""
        before, after = self.before, self.after
        most = max(sample.bytes for sample in (*self.warm_up, *self.measured))
        growth = at_most("growth of memory after the warm-up", self.growth / MIB, GROWTH_MIB, " MiB", judged=share == 1)
        return [
            growth,
            Figure("most resident memory", f"{most / MIB:.1f} MiB"),
            Figure(
                "open file descriptors at rest, before and after",
                f"{before.descriptors}, {after.descriptors}",
                f"{DESCRIPTORS} more or fewer",
                abs(after.descriptors - before.descriptors) <= DESCRIPTORS,
            ),
            Figure(
                "tasks at rest, before and after",
                f"{before.tasks}, {after.tasks}",
                "the same",
                before.tasks == after.tasks,
            ),
            Figure(
                f"pods and containers of {after.known} that the Store lacks or has alone",
                f"{before.differing}, {after.differing}",
                "0, 0",
                not (before.differing or after.differing),
            ),
        ]


class Observed:
    """A proxy that is a process of its own."""

    def __init__(self, proxy: ProxyProcess, view: Path, pass_seconds: float) -> None:
        self.socket = proxy.socket
        self._proxy, self._view, self._pass_seconds = proxy, view, pass_seconds

    @asynccontextmanager
    async def sampled(self, done: Callable[[], float]) -> AsyncIterator[list[Sample]]:
        """Sample the memory until the end of the block, the first and the last at its ends."""
        samples: list[Sample] = []

        def take() -> None:
            samples.append(Sample(done(), Process(self._proxy.pid).resident()))

        async def go_on() -> None:
            while True:
                take()
                await asyncio.sleep(SAMPLE_SECONDS)

        task = asyncio.create_task(go_on())
        try:
            yield samples
            take()
        finally:
            task.cancel()

    async def rest(self, fake: Fake) -> Rest:
        """Wait until the Store has the runtime's ids, at most a list and SETTLED_SECONDS; return the state at rest."""
        ids = {*fake.pod_ids(), *fake.container_ids()}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pass_seconds + SETTLED_SECONDS
        await asyncio.sleep(READING_SECONDS)
        gc.collect()  # clients of grpcio close a connection only when their last call is collected
        while (differing := {*(await self.shown())["ids"]} ^ ids) and loop.time() < deadline:
            await asyncio.sleep(READING_SECONDS)
        readings = []
        for _ in range(READINGS):
            await asyncio.sleep(READING_SECONDS)
            readings.append(((await self.shown())["tasks"], Process(self._proxy.pid).descriptors()))
        tasks, descriptors = (min(figures) for figures in zip(*readings, strict=True))
        return Rest(tasks, descriptors, len(ids), len(differing))

    async def shown(self) -> dict[str, Any]:
        """Make the proxy report its state, and return it."""
        self._view.unlink(missing_ok=True)
        os.kill(self._proxy.pid, SHOW)
        await until(self._view.exists, "the proxy shows itself", self._proxy.output)
        return dict(json.loads(self._view.read_text()))

    async def stalls(self) -> int:
        """Return how often the event loop hung, and print where."""
        for line in self._proxy.output().splitlines():
            if STALLED in line:
                print(line, file=sys.stderr)
        return int((await self.shown())["stalls"])


@asynccontextmanager
async def observed(front: Front, folder: Path, share: float) -> AsyncIterator[Observed]:
    """Run a proxy and a hook server that is asked at every point, under policy Fail. The proxy lists the runtime's
    state each minute, or each ``share`` of one. Raises AssertionError, DemoError."""
    pass_seconds = max(sync.PASS_SECONDS * share, SOONEST_SECONDS)
    view = folder / "view.json"
    command = (sys.executable, "-m", "scripts.soaking.observed", str(view), str(pass_seconds))
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
    """Do the first count as a warm-up, then the second; ``part`` does it with clients of its own."""
    warm_up, before = await part(counts[0]), await proxy.rest(fake)
    measured, after = await part(counts[1]), await proxy.rest(fake)
    return Endured(warm_up, measured, before, after, await proxy.stalls())


async def together(*calls: Coroutine[Any, Any, None]) -> None:
    """Await calls made concurrently. Raises what the first one to fail raises; the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


# ---- lifecycles

LIVES = Amount(200, 100_000)
WARM_UP = 5
"""One in so many is done as the warm-up. By then everything bounded has reached its limit: the largest is the table of
shared texts, which is cleared after some 16,000 pods."""
AT_ONCE = 8
STANDING = 10
"""Pods with a container each that live all the time, so that the Store is not empty at the end."""
PATIENCE_SECONDS = 0.005
"""Longest wait in seconds for a remove to be lost: it is given up before, during or after its turn in the runtime."""
REFUSED = "refused as it was chosen to be"


@dataclass(eq=False)
class Node:
    """A fake runtime, a client that calls it directly, and the failures on purpose."""

    fake: Fake
    outside: Caller
    refusals: runtime.Injection | dockerd.Injection
    """Refuses as many stops as its ``times``."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    ends: Counter[str] = field(default_factory=Counter)
    lived: int = 0


async def begin(caller: Caller) -> tuple[str, str]:
    """Run a pod with a container, and update the container's resources; return their ids."""
    pod_id = await caller.run_pod()
    container_id = await caller.create(pod_id)
    del caller.pods[pod_id]  # it would remember all that ever existed
    await caller.act("start", container_id)
    await caller.update(container_id)
    return pod_id, container_id


async def end(caller: Caller, pod_id: str, container_id: str) -> None:
    """Stop and remove a container and its pod."""
    await _stop(caller, "stop", container_id)
    await caller.act("remove", container_id)
    await _end_pod(caller, pod_id)


async def _end_pod(caller: Caller, pod_id: str) -> None:
    await _stop(caller, "stop_pod", pod_id)
    await caller.act("remove_pod", pod_id)


async def _stop(caller: Caller, verb: str, subject_id: str) -> None:
    """Stop a subject, again if that is refused on purpose: any stop in progress may be the one that is refused."""
    while True:
        try:
            await caller.act(verb, subject_id)
        except Failed as failed:
            if REFUSED not in failed.text:
                raise
        else:
            return


async def _well(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    await end(caller, pod_id, container_id)


async def _stop_refused(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    node.refusals.times = (node.refusals.times or 0) + 1
    await end(caller, pod_id, container_id)


async def _remove_lost(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Give a remove up at a random moment, and repeat it: the container may be gone by then."""
    await _stop(caller, "stop", container_id)
    remove = caller.request("remove", container_id)
    try:
        await caller.send("remove", remove, seconds=node.chance.uniform(0, PATIENCE_SECONDS))
    except Failed:
        try:
            await caller.send("remove", remove)
        except Failed as failed:
            if failed.status != HTTPStatus.NOT_FOUND:
                raise
    await _end_pod(caller, pod_id)


async def _removed_outside(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Remove both without the proxy, as ``ctr rm`` and ``docker rm`` do."""
    await node.outside.act("remove", container_id)
    await node.outside.act("remove_pod", pod_id)


async def _vanished(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Make both vanish without any call or event."""
    node.fake.vanish(container_id)
    node.fake.vanish(pod_id)


End = Callable[[Node, Caller, str, str], Awaitable[None]]
WELL: tuple[str, End] = ("well", _well)
CYCLE = 200
ENDS: Mapping[int, tuple[str, End]] = {
    10: ("with a refused stop", _stop_refused),
    60: ("with a remove given up at some moment", _remove_lost),
    110: ("removed past the proxy", _removed_outside),
    160: ("vanished", _vanished),
}
"""By a lifecycle's number in its cycle; all others end well."""


def lived(mode: str, share: float) -> Found:
    """Run a share of the lifecycles. Raises DemoError, AssertionError, Failed."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        ends, endured = uvloop.run(live(mode, share, Path(folder)))
    return Found(
        [
            *(Figure(f"lifecycles that ended {way}", f"{count:,}") for way, count in ends.items()),
            *endured.figures(share),
            Figure("times that the event loop hung", f"{endured.stalls}"),
        ],
        plot=picture(endured),
    )


def picture(endured: Endured) -> Plot:
    samples = (*endured.warm_up, *endured.measured)
    return Plot([(sample.done, sample.bytes / MIB) for sample in samples], endured.measured[0].done)


async def live(mode: str, share: float, folder: Path) -> tuple[Counter[str], Endured]:
    """Run lifecycles; return how many ended in which way, and the state that they left."""
    front, socket = FRONTS[mode], folder / "runtime.sock"
    async with (
        RUNTIMES[mode](str(socket), keep_received=0) as fake,
        front.caller(socket) as outside,
        observed(front, folder, share) as proxy,
    ):
        node = Node(fake, outside, _refusals(fake))
        async with front.caller(proxy.socket) as caller:
            for _ in range(STANDING):
                await begin(caller)

        async def part(count: int) -> Sequence[Sample]:
            numbers = iter(range(node.lived, node.lived + count))
            async with front.caller(proxy.socket) as caller, proxy.sampled(lambda: node.lived) as samples:
                await together(*(_live(node, caller, numbers) for _ in range(AT_ONCE)))
            return samples

        lives = LIVES.at(share)
        warm_up = max(lives // WARM_UP, 1)
        endured = await endure(proxy, fake, part, (warm_up, lives - warm_up))
        if node.refusals.times:
            raise DemoError(f"{node.refusals.times} stops were to be refused, and were not")
        return node.ends, endured


def _refusals(fake: Fake) -> runtime.Injection | dockerd.Injection:
    """Inject refusals of stops, none of them due yet."""
    if isinstance(fake, CriRuntime):
        refusals = runtime.Injection(code=grpc.StatusCode.UNKNOWN, details=REFUSED, times=0)
        fake.inject(METHODS["stop"], refusals)
        return refusals
    return fake.inject(ROUTES["stop"], dockerd.Injection(status=500, message=REFUSED, times=0))


async def _live(node: Node, caller: Caller, numbers: Iterator[int]) -> None:
    for number in numbers:
        pod_id, container_id = await begin(caller)
        way, ending = ENDS.get(number % CYCLE, WELL)
        await ending(node, caller, pod_id, container_id)
        node.ends[way] += 1
        node.lived += 1
