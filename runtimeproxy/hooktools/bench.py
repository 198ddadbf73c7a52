"""``runtimeproxy hook bench``: how fast a hook server answers.

Owns the warm-up, the calls, and the figures made of them.
Must not know: the command line, what is answered.
Invariant: a call that failed counts as a failure and in no percentile.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

from runtimeproxy.hookpoints import HookPoint
from runtimeproxy.hooktools import asking
from runtimeproxy.relay.unary import CallFailed, UnaryClient

WARM_UP_CALLS = 100
_PERCENTS = (50, 90, 99)


@dataclass(slots=True)
class Figures:
    """The seconds that each good call took, those of all calls together, and how often each failure occurred."""

    seconds: list[float] = field(default_factory=list)
    elapsed_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> Iterator[str]:
        """Yield what is shown: percentiles, calls a second, failures."""
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
    server: asking.Server, point: HookPoint, body: bytes, *, calls: int, concurrency: int, timeout_seconds: float
) -> Figures:
    """Make so many calls, so many of them at a time on one connection as the proxy does, after a warm-up.

    Raises HookCallFailed if the very first call fails.
    """
    return uvloop.run(_bench(server.endpoint, _Calls(point, body, timeout_seconds), calls, concurrency))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The call that is made again and again."""

    point: HookPoint
    body: bytes
    timeout_seconds: float

    async def one(self, client: UnaryClient) -> None:
        await asking.ask(client, self.point, self.body, self.timeout_seconds)

    async def many(self, client: UnaryClient, count: int, concurrency: int) -> Figures:
        figures, left = Figures(), iter(range(count))
        began = time.perf_counter()
        await asyncio.gather(*(self._in_turn(client, left, figures) for _ in range(concurrency)))
        figures.elapsed_seconds = time.perf_counter() - began
        return figures

    async def _in_turn(self, client: UnaryClient, left: Iterator[int], figures: Figures) -> None:
        for _ in left:
            began = time.perf_counter()
            try:
                await self.one(client)
            except CallFailed as failure:
                figures.failures[asking.words(failure)] += 1
            else:
                figures.seconds.append(time.perf_counter() - began)


async def _bench(endpoint: str, made: _Calls, calls: int, concurrency: int) -> Figures:
    async with asking.connection(endpoint) as client:
        try:
            await made.one(client)
        except CallFailed as failure:
            raise asking.HookCallFailed(endpoint, made.point.name, failure) from None
        await made.many(client, min(calls, WARM_UP_CALLS), concurrency)
        return await made.many(client, calls, concurrency)
