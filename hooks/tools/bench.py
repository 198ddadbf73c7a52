"""``runtimeproxy hook bench``: measure how fast a hook server answers.

Invariant: a call that failed counts as a failure and in no percentile.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.relay.rpc.connection import CallFailed
from runtimeproxy_hooks.tools import client as hook_client

WARM_UP_CALLS = 100
_PERCENTS = (50, 90, 99)


@dataclass(slots=True)
class Figures:
    """The seconds of each successful call, those of all calls together, and the number of each failure."""

    seconds: list[float] = field(default_factory=list)
    elapsed_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> Iterator[str]:
        """Yield the lines to show: percentiles, calls per second, failures."""
        ordered = sorted(self.seconds)
        for percent in _PERCENTS if ordered else ():
            yield f"p{percent}       {percentile(ordered, percent) * 1000:10.3f} ms"
        if ordered:
            yield f"longest   {ordered[-1] * 1000:10.3f} ms"
        yield f"calls/s   {len(ordered) / self.elapsed_seconds:10.0f}"
        yield f"failures  {self.failures.total():10}"
        yield from (f"  {count} x {text}" for text, count in self.failures.most_common())


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least so many percent of the ordered values do not exceed (nearest rank)."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def bench(
    server: hook_client.Server, point: HookPoint, body: bytes, *, calls: int, concurrency: int, timeout_seconds: float
) -> Figures:
    """Make ``calls`` calls, ``concurrency`` of them at a time on one connection as the proxy does, after a warm-up.
    Raises HookCallFailed if the very first call fails."""

    async def whole() -> Figures:
        async with hook_client.connection(server.endpoint) as client:

            async def one() -> None:
                await hook_client.ask(client, point, body, timeout_seconds)

            try:
                await one()
            except CallFailed as failure:
                raise hook_client.HookCallFailed(server.endpoint, point.name, failure) from None
            await _many(one, min(calls, WARM_UP_CALLS), concurrency)
            return await _many(one, calls, concurrency)

    return uvloop.run(whole())


async def _many(one: Callable[[], Awaitable[None]], count: int, concurrency: int) -> Figures:
    figures, left = Figures(), iter(range(count))

    async def in_turn() -> None:
        for _ in left:
            began = time.perf_counter()
            try:
                await one()
            except CallFailed as failure:
                figures.failures[hook_client.words(failure)] += 1
            else:
                figures.seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(in_turn() for _ in range(concurrency)))
    figures.elapsed_seconds = time.perf_counter() - began
    return figures
