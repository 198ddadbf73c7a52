"""A proxy that works for long: does anything grow, and is its Store that of the runtime (promise 13)?

Memory and open files are read from the kernel, for a process that does nothing else. The fake runtime and the hook
server are in the test's process, so that calls can be refused and containers can vanish without notice.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.core import sync
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.soak.conftest import Findings
from tests.system.cri_front import CriRuntime
from tests.system.docker_front import DockerRuntime
from tests.system.fronts import Caller, Failed, Front
from tests.system.hostile import Process
from tests.system.proxy import WAIT_SECONDS, ProxyProcess

Fake = CriRuntime | DockerRuntime
RUNTIMES: Mapping[str, Callable[..., Fake]] = {"cri": CriRuntime, "docker": DockerRuntime}

MIB = 1 << 20
GROWTH_MIB = 1
"""Most growth in MiB over everything after the warm-up.

The rule is 1 MiB per hour. Here hours pass in a minute: 23 of a day, or the months in which a kubelet makes 80,000 pods
at 30 per hour; all of them together may use what the rule allows for one.
"""
DESCRIPTORS = 2
"""Most difference in open descriptors after it."""
SAMPLE_SECONDS = 0.5
READINGS, READING_SECONDS = 5, 0.1
"""At rest the least of so many readings counts: a list of the runtime's state may be in progress at any of them."""
SETTLED_SECONDS = 30.0
"""Seconds beyond the time between two lists of the runtime's state within which the Store must be equal."""
REFUSED = "refused as it was chosen to be"


class Sample(NamedTuple):
    """The proxy's resident bytes after so much was done."""

    done: float
    bytes: int


class Observed:
    """A proxy that is a process of its own, its hook server, and the runtime."""

    def __init__(self, proxy: ProxyProcess, fake: Fake) -> None:
        self.socket, self.fake = proxy.socket, fake
        self._proxy = proxy
        self._admin = AdminClient(str(proxy.admin), WAIT_SECONDS)

    @asynccontextmanager
    async def sampled(self, done: Callable[[], float]) -> AsyncIterator[list[Sample]]:
        """Sample the memory until the end of the block, the first and the last at its ends."""
        samples: list[Sample] = []

        def sample() -> None:
            samples.append(Sample(done(), Process(self._proxy.pid).resident()))

        async def repeat() -> None:
            while True:
                sample()
                await asyncio.sleep(SAMPLE_SECONDS)

        task = asyncio.create_task(repeat())
        try:
            yield samples
            sample()
        finally:
            task.cancel()

    async def rest(self) -> tuple[int, set[str]]:
        """Wait until the Store has the runtime's ids; return the open descriptors, and the ids that one side lacks."""
        ids = {*self.fake.pod_ids(), *self.fake.container_ids()}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + sync.PASS_SECONDS + SETTLED_SECONDS
        gc.collect()  # clients of grpcio close a connection only when their last call is collected
        while (differing := await asyncio.to_thread(self._ids) ^ ids) and loop.time() < deadline:
            await asyncio.sleep(READING_SECONDS)
        readings = []
        for _ in range(READINGS):
            await asyncio.sleep(READING_SECONDS)
            readings.append(Process(self._proxy.pid).descriptors())
        return min(readings), differing

    def _ids(self) -> set[str]:
        pods, containers = subjects.records(self._admin.again())
        return {record["id"] for record in (*pods, *containers)}

    def stalls(self) -> list[str]:
        """Return the lines of the log about a loop that hung."""
        return [line for line in self._proxy.output().splitlines() if "the event loop hangs" in line]


@asynccontextmanager
async def observed(front: Front, folder: Path) -> AsyncIterator[Observed]:
    """Run a runtime, and a proxy with a hook server that is called at every point, under policy Fail."""
    proxy, hooks = front.process(folder, log_level="info"), str(folder / "hooks.sock")
    proxy.register("every-point.json", hooks, policy="Fail")
    async with (
        RUNTIMES[front.name](str(proxy.runtime), keep_received=0) as fake,
        HookServer(hooks, default=hookanswers.echo(), keep_calls=False),
        proxy,
    ):
        yield Observed(proxy, fake)


async def endure(
    proxy: Observed, part: Callable[[int], Awaitable[Sequence[Sample]]], warm_up: int, count: int, findings: Findings
) -> None:
    """Do ``warm_up`` units of work, then ``count``; ``part`` does them with clients of its own. Compare the ends."""
    first, (descriptors_before, differing_before) = await part(warm_up), await proxy.rest()
    samples, (descriptors_after, differing_after) = await part(count), await proxy.rest()
    slope = linear_regression([sample.done for sample in samples], [sample.bytes for sample in samples]).slope
    growth = slope * (samples[-1].done - samples[0].done) / MIB
    kept = growth <= GROWTH_MIB or not findings.full
    findings.note("growth of memory in MiB after the warm-up", f"{growth:.2f}", GROWTH_MIB, kept)
    findings.note("most resident MiB", f"{max(sample.bytes for sample in (*first, *samples)) / MIB:.1f}")
    findings.note(
        "open descriptors at rest, before and after",
        (descriptors_before, descriptors_after),
        f"{DESCRIPTORS} more or fewer",
        abs(descriptors_after - descriptors_before) <= DESCRIPTORS,
    )
    findings.equal("ids that only the Store or the runtime has", (differing_before, differing_after), (set(), set()))


async def together(*calls: Coroutine[Any, Any, None]) -> None:
    """Await calls made concurrently. Raises what the first one to fail raises; the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


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
    await stop(caller, "stop", container_id)
    await caller.act("remove", container_id)
    await end_pod(caller, pod_id)


async def end_pod(caller: Caller, pod_id: str) -> None:
    await stop(caller, "stop_pod", pod_id)
    await caller.act("remove_pod", pod_id)


async def stop(caller: Caller, verb: str, subject_id: str) -> None:
    """Stop a subject, again if that is refused on purpose: any stop in progress may be the one that is refused."""
    while True:
        try:
            await caller.act(verb, subject_id)
        except Failed as failed:
            if REFUSED not in failed.text:
                raise
        else:
            return
