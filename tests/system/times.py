"""Times that were measured, and the one figure of them that a limit is held against.

Owns how many times are enough for a p99, and what few of them are held against.
Must not know: what was measured, any limit.
Invariant: one time alone, spoiled by another program on the machine, decides nothing where there are some.
"""

from collections.abc import Sequence
from statistics import median, quantiles

MANY = 100
FEW_TIMES = 10
"""Few times are held against so much more than was promised: the machine may have a lot to do. The soak takes many."""


def judged(seconds: Sequence[float]) -> float:
    """Return the p99 of many times, the median of few."""
    return quantiles(seconds, n=100)[-1] if len(seconds) >= MANY else median(seconds)


def limit(seconds: Sequence[float], promised: float) -> float:
    """Return what the figure of so many times is to be below, in seconds."""
    return promised if len(seconds) >= MANY else FEW_TIMES * promised
