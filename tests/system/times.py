"""Times that were measured, and the one figure of them that a limit is held against: no single time decides."""

import os
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles

from tests.amounts import SHARE_VARIABLE, Amount

MANY = 100
FEW_TIMES = 10
"""Few times are held against so much more than was promised: the machine may have a lot to do. The soak takes many."""
TRIES = 10
SOAKED = SHARE_VARIABLE in os.environ


def judged(seconds: Sequence[float]) -> float:
    """Return the p99 of many times, the median of few."""
    return quantiles(seconds, n=100)[-1] if len(seconds) >= MANY else median(seconds)


def limit(seconds: Sequence[float], promised: float) -> float:
    """Return what the figure of so many times is to be below, in seconds."""
    return promised if len(seconds) >= MANY else FEW_TIMES * promised


async def in_time(promised: float, amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> None:
    """Take an amount of times, some at a time, and check that they are below what was promised, in seconds.

    The soak takes them once and judges all of them: by the p99, not the largest, as the pause of a machine with
    neighbours is in that. Else a try in which all are below is enough, as another program may spoil the others. What is
    late once in so many calls as a try has is late in every try.
    """
    if SOAKED:
        took = await _taken(amount, some)
        assert judged(took) < limit(took, promised), took
        return
    tries: list[list[float]] = []
    while not tries or max(tries[-1]) >= promised:
        assert len(tries) < TRIES, tries
        tries.append(await _taken(amount, some))


async def in_rounds(promised: float, one: Callable[[], Awaitable[float]]) -> None:
    """Take what is the median of a round's times, and check that it is below what was promised, in seconds.

    The soak judges the median of all rounds; else one good round is enough.
    """
    rounds: list[float] = []
    while len(rounds) < TRIES and (SOAKED or min(rounds, default=promised) >= promised):
        rounds.append(await one())
    assert (median(rounds) if SOAKED else min(rounds)) < promised, rounds


async def _taken(amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> list[float]:
    took: list[float] = []
    while len(took) < amount.now:
        took += await some()
    return took
