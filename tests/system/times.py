"""Times that were measured, and the one figure of them that a limit is held against.

Owns how many times are enough for a p99.
Must not know: what was measured, any limit.
Invariant: one time alone, spoiled by another program on the machine, decides nothing where there are some.
"""

from collections.abc import Sequence
from statistics import median, quantiles

MANY = 100


def judged(seconds: Sequence[float]) -> float:
    """Return the p99 of many times, the median of few."""
    return quantiles(seconds, n=100)[-1] if len(seconds) >= MANY else median(seconds)
