"""A day of a node, played as fast as it goes: does anything grow, fail or hang (promise 13, fault matrix X7).

Owns a kubelet's rates, and the day that is made of them.
Must not know: how a call is made in a mode, how memory is measured, limits.
Invariant: a second of the day is over when all its calls are answered well; events and logs are followed all the time.
"""

import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from scripts.demonstration.processes import DemoError
from scripts.soaking.endurance import FRONTS, RUNTIMES, Endured, Fake, Observed, Sample, endure, observed, together
from scripts.soaking.kubelets import KUBELETS, Kubelet
from scripts.soaking.lives import begin, end
from tests.amounts import Amount
from tests.system.fronts import Caller

DAY_SECONDS = Amount(60, 86_400)
HOUR_SECONDS = 3_600
HOURS = 24
"""The first of so many parts is the warm-up: of a whole day, the first hour."""

EARLIER_LIVES = Amount(3, 2_500)
"""Pods that came and went before the day: no node is new every morning. What is remembered of destroyed ones, 4,096 ids
of pods and containers in Docker mode, has come to its bound by then."""
PODS = 30
"""Each with a container, which is probed."""
STATUS_SECONDS = 5
PROBE_SECONDS = 10
TELL_SECONDS = 10
"""Between two events or lines of the log that are followed."""
LIFE_SECONDS = 120
"""Between the beginnings of two pods: 30 an hour. Lists are made every second."""


@dataclass(frozen=True, slots=True)
class Day:
    """How many calls of each kind were answered, what was heard on streams, and what it left."""

    calls: Mapping[str, int]
    heard: Mapping[str, int]
    endured: Endured


@dataclass(eq=False)
class _Node:
    """A node and its clock."""

    name: str
    fake: Fake
    proxy: Observed
    containers: Sequence[str]
    second: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)

    async def part(self, count: int) -> Sequence[Sample]:
        """Play so many seconds. Raises what the first call to fail raises."""
        async with (
            FRONTS[self.name].caller(self.proxy.socket) as caller,
            KUBELETS[self.name](self.proxy.socket, self.fake) as kubelet,
        ):
            await kubelet.follow(self.containers[0])
            async with self.proxy.sampled(lambda: self.second / HOUR_SECONDS) as samples:
                for _ in range(count):
                    await self._play(kubelet, caller)
            await kubelet.all_heard()
            self.heard += kubelet.heard
        return samples

    async def _play(self, kubelet: Kubelet, caller: Caller) -> None:
        if self.second % TELL_SECONDS == 0:
            kubelet.tell(self.containers[0])
        due = list(self._due(kubelet, caller))
        await together(*(call for _, call in due))
        self.calls.update(kind for kind, _ in due)
        self.second += 1

    def _due(self, kubelet: Kubelet, caller: Caller) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the calls of this second with their kinds."""
        yield "lists", _list(kubelet)
        if self.second % STATUS_SECONDS == 0:
            yield "statuses", kubelet.status()
        for number, container_id in enumerate(self.containers):
            if (self.second + number) % PROBE_SECONDS == 0:
                yield "probes", kubelet.probe(container_id)
        if self.second % LIFE_SECONDS == 0:
            yield "lifecycles", _live(caller)


async def _list(kubelet: Kubelet) -> None:
    found = await kubelet.lists()
    if found < PODS:
        raise DemoError(f"a list has {found} containers, there are {PODS} or more")


async def _live(caller: Caller) -> None:
    await end(caller, *await begin(caller))


def measure(name: str, share: float) -> Day:
    """Play a share of a day in the mode of this name. Raises DemoError, AssertionError, Failed, and clients' errors."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        return uvloop.run(_measure(name, share, Path(folder)))


async def _measure(name: str, share: float, folder: Path) -> Day:
    front = FRONTS[name]
    async with (
        RUNTIMES[name](str(folder / "runtime.sock")) as fake,
        observed(front, folder, share) as proxy,
    ):
        async with front.caller(proxy.socket) as caller:
            for _ in range(EARLIER_LIVES.at(share)):
                await _live(caller)
            containers = [(await begin(caller))[1] for _ in range(PODS)]
        node, seconds = _Node(name, fake, proxy, containers), DAY_SECONDS.at(share)
        warm_up = max(seconds // HOURS, 1)
        endured = await endure(proxy, fake, node.part, (warm_up, seconds - warm_up))
        return Day(node.calls, node.heard, endured)
