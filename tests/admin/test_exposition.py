"""The text for Prometheus: all series of the table, equal to the daemon's own figures, and those of its process."""

import itertools

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from runtimeproxy.admin.exposition import exposition
from runtimeproxy.observe.metric_table import ROWS, Kind
from tests.admin.proxy import Proxy


def samples(lines: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def test_text_has_the_series_that_sigusr1_logs() -> None:
    """There are two series of each row with labels, and one of each row without."""
    proxy, value = Proxy(), itertools.count(1)
    metrics = proxy.metrics
    for row in ROWS:
        for text in ("a", 'b"\\\n') if row.given else ("",):
            labels = [text] * len(row.given)
            match row.kind:
                case Kind.COUNTER:
                    metrics.counted_elsewhere(row.name, next(value), *labels)
                case Kind.GAUGE:
                    metrics.gauge(row.name, next(value) / 8, *labels)
                case Kind.HISTOGRAM:
                    for seconds in (0.0001, 0.3, 20.0):
                        metrics.observe(row.name, seconds, *labels)
    text = exposition(proxy.call("metrics")).decode()
    assert samples(text) == samples("\n".join(metrics.figures()) + "\n")
    assert 'runtime="containerd"' in text


def test_process_figures_are_those_of_prometheus_clients() -> None:
    text = exposition(Proxy().call("metrics")).decode()
    shown = {family.name: family for family in text_string_to_metric_families(text) if family.samples}
    for usual in ProcessCollector(registry=None).collect():
        found = shown[usual.name]
        assert (found.type, found.documentation) == (usual.type, usual.documentation)
        assert found.samples[0].name == usual.samples[0].name
        assert found.samples[0].value == pytest.approx(usual.samples[0].value, rel=0.2, abs=5)
