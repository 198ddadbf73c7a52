"""The quantiles that are read off a histogram's buckets."""

import math
from bisect import bisect_left

import pytest

from runtimeproxy.observe.metric_table import SECONDS, Histogram, quantile


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ([], 0.5, None),
        ([0.003] * 4, 0.5, 0.0035),
        ([0.003] * 4, 0.25, 0.00275),
        ([0.003] * 4, 1.0, 0.005),
        ([0.0001], 0.5, 0.00025),
        ([0.003] * 99 + [1.0], 0.99, 0.005),
        ([0.003] * 98 + [1.0] * 2, 0.99, 1.25),
        ([1000.0], 0.5, math.inf),
        ([0.003, 1000.0], 0.99, math.inf),
    ],
)
def test_quantile_is_read_off_the_buckets(values: list[float], share: float, found: float | None) -> None:
    histogram = Histogram()
    for value in values:
        histogram.counts[bisect_left(SECONDS, value)] += 1
    assert quantile(SECONDS, histogram.counts, share) == (None if found is None else pytest.approx(found))
