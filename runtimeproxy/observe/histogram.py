"""The observations of a histogram's series, and the quantiles that are read off its buckets.

Owns the counts of buckets, and how a quantile is estimated.
Must not know: what is observed, who asks.
Invariant: the last bucket has what is above all bounds.
"""

import math
from collections.abc import Sequence


class Histogram:
    """The observations of one series: ``counts`` by bucket, the last one for those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Return the value that this share of the observations is not above, as Prometheus' histogram_quantile does: linear
    within a bucket. None without observations, infinite above all bounds."""
    rank = share * sum(counts)
    lower = below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        lower, below = bound, below + count
    return math.inf if rank else None
