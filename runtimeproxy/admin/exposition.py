"""The metrics as Prometheus' text.

Owns the collector on a registry of its own, and the text that requests of a moment share.
Must not know: who asks, how the values are counted.
Invariant: names, help and labels are those of the table of metrics; the daemon is asked at most once in FRESH_SECONDS.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from runtimeproxy.admin.channel import looked_at
from runtimeproxy.observe.metric_table import METRICS, RUNTIME, Kind, Metric

FRESH_SECONDS = 0.25
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES: dict[Kind, Callable[..., Any]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class Snapshot(Collector):
    """The daemon's metrics as they were told at one moment (``snapshot.series``)."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._runtime = told["runtime"]
        self._values = told.get("values", ())
        self._histograms = told.get("histograms", ())

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have series, in the table's order."""
        families = {name: FAMILIES[row.kind](row.shown, row.help, labels=row.labels) for name, row in METRICS.items()}
        for name, labels, value in self._values:
            families[name].add_metric(self._labels(METRICS[name], labels), value)
        for name, labels, counts, total in self._histograms:
            row = METRICS[name]
            bounds = [*map(floatToGoString, row.buckets), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            families[name].add_metric(self._labels(row, labels), buckets, total)
        return (family for family in families.values() if family.samples)

    def _labels(self, row: Metric, given: list[str]) -> list[str]:
        values = iter(given)
        return [self._runtime if label == RUNTIME else next(values) for label in row.labels]


class Process(ProcessCollector):
    """The figures of a process; without /proc/stat, which the unit hides (ProcSubset=pid), there would be none."""

    def _boot_time(self) -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Exposition:
    """The text of the daemon's metrics; ``ask`` brings its snapshot."""

    def __init__(self, ask: Callable[[], Awaitable[dict[str, Any]]], daemon: int) -> None:
        self._ask = ask
        self._process = Process(pid=lambda: daemon, registry=None)
        self._made: asyncio.Task[bytes] | None = None
        self._since = 0.0

    async def text(self) -> bytes:
        """Return the text, which is at most FRESH_SECONDS old. Raises what ``ask`` raises."""
        now, made = asyncio.get_running_loop().time(), self._made
        if made is None or (made.done() and (now - self._since > FRESH_SECONDS or made.exception())):
            self._made = made = asyncio.create_task(self._make())
            made.add_done_callback(looked_at)
            self._since = now
        return await asyncio.shield(made)

    async def _make(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Snapshot(await self._ask()))
        registry.register(self._process)
        return generate_latest(registry)
