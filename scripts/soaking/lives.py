"""Very many lives of containers, some of which end badly: does anything grow, is the Store the runtime's list (fault
matrix S9, promise 13).

Owns the lives, how each ends, and how many there are.
Must not know: how memory is measured, limits.
Invariant: every call is answered well but for those that were chosen to fail, and a life that ended badly has left
nothing in the runtime.

The fake runtime is the driver's own, so that it can refuse a call and lose a container without a word; the proxy and
the hook server are processes of their own.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import grpc
import uvloop

from scripts.demonstration.processes import DemoError
from scripts.soaking.endurance import FRONTS, RUNTIMES, Endured, Fake, Observed, Sample, endure, observed, together
from tests.amounts import Amount
from tests.fakes import dockerd, runtime
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import ROUTES
from tests.system.fronts import Caller, Failed

LIVES = Amount(200, 100_000)
WARM_UP = 5
"""One in so many is lived before anything is measured. What is bounded has come to its bound by then: the largest is
the table of texts that records share, which begins anew after some 16,000 pods."""
AT_ONCE = 8
STANDING = 10
"""Pods with a container each that live all the time: the Store is not empty at the end."""
PATIENCE_SECONDS = 0.005
"""At most so long is waited for a remove that shall be lost: it is given up before, in or after its turn in the
runtime."""
REFUSED = "refused as it was chosen to be"


@dataclass(frozen=True, slots=True)
class Lived:
    """How many lives ended in which way, and what they left."""

    ends: Mapping[str, int]
    endured: Endured


@dataclass(eq=False)
class _Node:
    """A fake runtime, who speaks to it past the proxy, and what went wrong on purpose."""

    fake: Fake
    outside: Caller
    refusals: runtime.Injection | dockerd.Injection
    """Of stops, as many as its ``times``."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    ends: Counter[str] = field(default_factory=Counter)
    lived: int = 0

    def refuse_one(self) -> None:
        """Refuse one of the next stops."""
        self.refusals.times = (self.refusals.times or 0) + 1


async def begin(caller: Caller) -> tuple[str, str]:
    """Run a pod with a container, and change the container's resources; return their ids."""
    pod_id = await caller.run_pod()
    container_id = await caller.create(pod_id)
    del caller.pods[pod_id]  # it would remember all that ever were
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
    """Stop, and ask again if that is refused on purpose: any of the stops under way may be the one."""
    while True:
        try:
            await caller.act(verb, subject_id)
        except Failed as failed:
            if REFUSED not in failed.text:
                raise
        else:
            return


# ---- how lives end


async def _well(node: _Node, caller: Caller, pod_id: str, container_id: str) -> None:
    await end(caller, pod_id, container_id)


async def _stop_refused(node: _Node, caller: Caller, pod_id: str, container_id: str) -> None:
    node.refuse_one()
    await end(caller, pod_id, container_id)


async def _remove_lost(node: _Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Give a remove up at a random moment, and ask again: the container may be gone by then."""
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


async def _removed_outside(node: _Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Remove both past the proxy, as ``ctr rm`` and ``docker rm`` do."""
    await node.outside.act("remove", container_id)
    await node.outside.act("remove_pod", pod_id)


async def _vanished(node: _Node, caller: Caller, pod_id: str, container_id: str) -> None:
    """Lose both: no call and no event tells of it."""
    node.fake.vanish(container_id)
    node.fake.vanish(pod_id)


End = Callable[[_Node, Caller, str, str], Awaitable[None]]
WELL: tuple[str, End] = ("well", _well)
CYCLE = 200
ENDS: Mapping[int, tuple[str, End]] = {
    10: ("with a refused stop", _stop_refused),
    60: ("with a remove given up at some moment", _remove_lost),
    110: ("removed past the proxy", _removed_outside),
    160: ("vanished", _vanished),
}
"""By a life's number in its cycle; all others end well."""


# ---- the whole


def measure(name: str, share: float) -> Lived:
    """Live through a share of the lives in the mode of this name. Raises DemoError, AssertionError, Failed."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        return uvloop.run(_measure(name, share, Path(folder)))


async def _measure(name: str, share: float, folder: Path) -> Lived:
    front, socket = FRONTS[name], folder / "runtime.sock"
    async with (
        RUNTIMES[name](str(socket)) as fake,
        front.caller(socket) as outside,
        observed(front, folder, share) as proxy,
    ):
        node = _Node(fake, outside, _refusals(fake))
        async with front.caller(proxy.socket) as caller:
            for _ in range(STANDING):
                await begin(caller)

        async def part(count: int) -> Sequence[Sample]:
            async with front.caller(proxy.socket) as caller:
                return await _part(node, proxy, caller, count)

        lives = LIVES.at(share)
        warm_up = max(lives // WARM_UP, 1)
        endured = await endure(proxy, fake, part, (warm_up, lives - warm_up))
        if node.refusals.times:
            raise DemoError(f"{node.refusals.times} stops were to be refused, and were not")
        return Lived(node.ends, endured)


def _refusals(fake: Fake) -> runtime.Injection | dockerd.Injection:
    """Have stops refused; none of them yet."""
    if isinstance(fake, CriRuntime):
        refusals = runtime.Injection(code=grpc.StatusCode.UNKNOWN, details=REFUSED, times=0)
        fake.inject(METHODS["stop"], refusals)
        return refusals
    return fake.inject(ROUTES["stop"], dockerd.Injection(status=500, message=REFUSED, times=0))


async def _part(node: _Node, proxy: Observed, caller: Caller, count: int) -> Sequence[Sample]:
    """Live so many lives more, some at one time. Raises what the first one to fail raises."""
    numbers = iter(range(node.lived, node.lived + count))
    async with proxy.sampled(lambda: node.lived) as samples:
        await together(*(_live(node, caller, numbers) for _ in range(AT_ONCE)))
    return samples


async def _live(node: _Node, caller: Caller, numbers: Iterator[int]) -> None:
    for number in numbers:
        pod_id, container_id = await begin(caller)
        way, ending = ENDS.get(number % CYCLE, WELL)
        await ending(node, caller, pod_id, container_id)
        node.ends[way] += 1
        node.lived += 1
