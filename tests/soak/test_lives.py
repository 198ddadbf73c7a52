"""Very many lifecycles of containers, some with a bad end (fault matrix S9).

Every call must be answered well, except for those chosen to fail, and a lifecycle with a bad end must leave nothing.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import grpc

from tests.amounts import Amount
from tests.fakes import dockerd, runtime
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.soak.endurance import REFUSED, Fake, Sample, begin, end, end_pod, endure, observed, stop, together
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import ROUTES
from tests.system.fronts import Caller, Failed, Front

pytestmark = MARKS

LIVES = Amount(400, 100_000)
WARM_UP = 5
"""One in so many is done as the warm-up. By then everything bounded has reached its limit: the largest is the table of
shared texts, which is cleared after some 16,000 pods."""
AT_ONCE = 8
STANDING = 10
"""Pods with a container each that live all the time, so that the Store is not empty at the end."""
PATIENCE_SECONDS = 0.005
"""Longest wait in seconds for a remove that is cancelled: before, during or after its turn in the runtime."""


@dataclass(eq=False)
class Node:
    """A fake runtime, a client that calls it directly, and the failures on purpose."""

    fake: Fake
    outside: Caller
    refusals: runtime.Injection | dockerd.Injection
    """Refuses as many stops as its ``times``."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    ends: Counter[str] = field(default_factory=Counter)

    async def live(self, caller: Caller, numbers: Iterator[int]) -> None:
        for number in numbers:
            pod_id, container_id = await begin(caller)
            way, ending = ENDS.get(number % CYCLE, ("well", well))
            await ending(self, caller, pod_id, container_id)
            self.ends[way] += 1


async def well(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    await end(caller, pod_id, container_id)


async def stop_refused(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    node.refusals.times = (node.refusals.times or 0) + 1
    await end(caller, pod_id, container_id)


async def remove_cancelled(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Cancel a remove at a random moment, and repeat it: the container may be gone by then."""
    await stop(caller, "stop", container_id)
    remove = caller.request("remove", container_id)
    try:
        await caller.send("remove", remove, seconds=node.chance.uniform(0, PATIENCE_SECONDS))
    except Failed:
        try:
            await caller.send("remove", remove)
        except Failed as failed:
            if failed.status != HTTPStatus.NOT_FOUND:
                raise
    await end_pod(caller, pod_id)


async def removed_outside(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Remove both without the proxy, as ``ctr rm`` and ``docker rm`` do."""
    await node.outside.act("remove", container_id)
    await node.outside.act("remove_pod", pod_id)


async def vanished(node: Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Make both vanish without any call or event."""
    node.fake.vanish(container_id)
    node.fake.vanish(pod_id)


End = Callable[[Node, Caller, str, str], Awaitable[None]]
CYCLE = 200
ENDS: Mapping[int, tuple[str, End]] = {
    10: ("with a refused stop", stop_refused),
    60: ("with a remove that was cancelled", remove_cancelled),
    110: ("removed without the proxy", removed_outside),
    160: ("vanished", vanished),
}
"""By a lifecycle's number in its cycle; all others end well."""


async def test_lifecycles_leave_nothing(front: Front, findings: Findings, tmp_path: Path) -> None:
    async with observed(front, tmp_path) as proxy, front.caller(proxy.fake.socket_path) as outside:
        node, done = Node(proxy.fake, outside, refuse_stops(proxy.fake)), 0
        async with front.caller(proxy.socket) as caller:
            for _ in range(STANDING):
                await begin(caller)

        async def part(count: int) -> Sequence[Sample]:
            nonlocal done
            numbers = iter(range(done, done + count))
            done += count
            lived = node.ends.total
            async with front.caller(proxy.socket) as caller, proxy.sampled(lived) as samples:
                await together(*(node.live(caller, numbers) for _ in range(AT_ONCE)))
            return samples

        lives = LIVES.now
        await endure(proxy, part, lives // WARM_UP, lives - lives // WARM_UP, findings)
        assert node.refusals.times == 0
        for way, count in node.ends.items():
            findings.note(f"lifecycles that ended {way}", f"{count:,}")
        assert node.ends.keys() == {"well", *(way for way, _ in ENDS.values())}


def refuse_stops(fake: Fake) -> runtime.Injection | dockerd.Injection:
    """Inject refusals of stops, none of them due yet."""
    if isinstance(fake, CriRuntime):
        refusals = runtime.Injection(code=grpc.StatusCode.UNKNOWN, details=REFUSED, times=0)
        fake.inject(METHODS["stop"], refusals)
        return refusals
    return fake.inject(ROUTES["stop"], dockerd.Injection(status=500, message=REFUSED, times=0))
