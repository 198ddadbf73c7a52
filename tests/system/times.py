"""Measured times, compared with a limit, so that no single time decides."""

import os
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles

from tests.amounts import SHARE_VARIABLE, Amount

MANY = 100
FEW_TIMES = 10
"""Factor of the limit for few times, since the machine may be busy. The soak measures many."""
TRIES = 10
SOAKED = SHARE_VARIABLE in os.environ


def check_times(seconds: Sequence[float], promised: float) -> None:
    """Compare the p99 of many times with the promised seconds, the median of few with a larger limit."""
    many = len(seconds) >= MANY
    figure = quantiles(seconds, n=100)[-1] if many else median(seconds)
    assert figure < (promised if many else FEW_TIMES * promised), seconds


async def in_time(promised: float, amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> None:
    """Measure an amount of times, some per call, and check them against the promised seconds.

    The soak measures them once, and compares the p99. Otherwise one try with all times below the limit suffices, as
    another program may spoil the others. A delay once per try fails every try.
    """
    for _ in range(TRIES):
        took: list[float] = []
        while len(took) < amount.now:
            took += await some()
        if SOAKED:
            return check_times(took, promised)
        if max(took) < promised:
            return None
    raise AssertionError(took)
