"""The metrics as Prometheus' text."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from runtimeproxy.observe.metric_table import METRICS, Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAMILIES: Mapping[Kind, Callable[..., Any]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
_PROCESS = {
    "process_virtual_memory_bytes": "Virtual memory size in bytes.",
    "process_resident_memory_bytes": "Resident memory size in bytes.",
    "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "process_cpu_seconds_total": "Total user and system CPU time spent in seconds.",
    "process_max_fds": "Maximum number of open file descriptors.",
    "process_open_fds": "Number of open file descriptors.",
}


def exposition(answer: Mapping[str, Any]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(answer))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have series, in the table's order."""
        runtime = self._answer["runtime"]
        families = {name: _FAMILIES[row.kind](row.shown, row.help, labels=row.labels) for name, row in METRICS.items()}
        for name, given, value in self._answer["values"]:
            families[name].add_metric([*METRICS[name].labelled(given, runtime).values()], value)
        for name, given, counts, total in self._answer["histograms"]:
            row = METRICS[name]
            bounds = [*map(floatToGoString, row.buckets), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            families[name].add_metric([*row.labelled(given, runtime).values()], buckets, total)
        yield from (family for family in families.values() if family.samples)
        for name, value in self._answer["process"].items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, _PROCESS[name], value=value)
