"""The metrics' values for the admin server, in pieces.

Owns the form in which series pass the channel.
Must not know: who asks, the text that becomes of it.
Invariant: a histogram is told as it is at one moment; a piece takes less than a millisecond.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from runtimeproxy.observe.metrics import Metrics

SERIES_AT_ONCE = 200


def series(metrics: Metrics) -> Iterator[dict[str, Any]]:
    """Yield the value of the label runtime, then all series: counters and gauges by name, labels and value, histograms
    by name, labels, the counts of their buckets, and the sum."""
    yield {"runtime": metrics.runtime}
    values = iter([*metrics.counters.items(), *metrics.gauges.items()])
    while piece := list(islice(values, SERIES_AT_ONCE)):
        yield {"values": [(*key, value) for key, value in piece]}
    histograms = iter([*metrics.histograms.items()])
    while found := list(islice(histograms, SERIES_AT_ONCE)):
        yield {"histograms": [(*key, histogram.counts, histogram.sum) for key, histogram in found]}
