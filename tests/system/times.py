"""Measured times, and the figure that is compared with a limit, so that no single time decides."""

import os
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles

from tests.amounts import SHARE_VARIABLE, Amount

MANY = 100
FEW_TIMES = 10
"""Factor of the limit for few times, since the machine may be busy. The soak measures many."""
TRIES = 10
SOAKED = SHARE_VARIABLE in os.environ


def judged(seconds: Sequence[float]) -> float:
    """Return the p99 of many times, the median of few."""
    return quantiles(seconds, n=100)[-1] if len(seconds) >= MANY else median(seconds)


def limit(seconds: Sequence[float], promised: float) -> float:
    """Return the limit for the figure of these times, in seconds."""
    return promised if len(seconds) >= MANY else FEW_TIMES * promised


async def in_time(promised: float, amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> None:
    """Measure an amount of times, some per call, and check them against the promised seconds.

    The soak measures them once and compares the p99, since the maximum would include pauses of a shared machine.
    Otherwise one try with all times below the limit suffices, as another program may spoil the others. A delay once per
    try fails every try.
    """
    if SOAKED:
        took = await _taken(amount, some)
        assert judged(took) < limit(took, promised), took
        return
    tries: list[list[float]] = []
    while not tries or max(tries[-1]) >= promised:
        assert len(tries) < TRIES, tries
        tries.append(await _taken(amount, some))


async def _taken(amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> list[float]:
    took: list[float] = []
    while len(took) < amount.now:
        took += await some()
    return took
