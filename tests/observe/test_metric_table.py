"""The table of metrics keeps Prometheus' rules, and every call site keeps to the table."""

import ast
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtimeproxy
from runtimeproxy.observe.metric_table import METRICS, ROWS, SECONDS, Histogram, Kind, Metric, quantile

PACKAGE = Path(runtimeproxy.__file__).parent
METHODS = {
    "count": (Kind.COUNTER, 1),
    "counted_elsewhere": (Kind.COUNTER, 2),
    "gauge": (Kind.GAUGE, 2),
    "observe": (Kind.HISTOGRAM, 2),
}
"""The methods that count, with the number of their arguments before the labels."""
IN_VARIABLES = {"backend_event_dial_failures", "backend_event_stream_losses"}
"""Names that a call site has in a variable."""
IN_TABLES = {"calls_passed"}
"""Names whose series stand in a table of their own."""


def call_sites() -> Iterator[tuple[str, str, str, int]]:
    """Yield place, method, metric and number of labels of each call that counts."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr not in METHODS:
                continue
            name, owner = node.args[0], ast.unparse(node.func.value)
            if "metrics" in owner or (owner, path.stem) == ("self", "metrics"):
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                assert not node.keywords, place
                labels = len(node.args) - METHODS[node.func.attr][1]
                yield place, node.func.attr, str(name.value) if isinstance(name, ast.Constant) else "", labels


def test_call_sites_keep_to_the_table_and_every_row_has_one() -> None:
    counted = IN_VARIABLES | IN_TABLES
    for place, method, name, labels in call_sites():
        rows = [METRICS[each] for each in ([name] if name else IN_VARIABLES)]
        assert {(row.kind, len(row.given)) for row in rows} == {(METHODS[method][0], labels)}, place
        counted.update(row.name for row in rows)
    assert counted == set(METRICS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_keep_the_rules_of_prometheus(row: Metric) -> None:
    assert re.fullmatch(r"runtimeproxy_[a-z0-9_]+", row.shown)
    assert (row.kind is Kind.COUNTER) == row.shown.endswith("_total")
    assert row.kind is not Kind.HISTOGRAM or row.name.endswith("_seconds")
    assert not re.search(r"_(ms|milliseconds|minutes|kib|mib|percent|bucket|sum|count|total)\Z", row.name)
    assert all(re.fullmatch(r"[a-z_]+", label) and label not in ("le", "quantile") for label in row.labels)
    assert (row.kind is Kind.HISTOGRAM) == bool(row.buckets)
    assert list(row.buckets) == sorted(set(row.buckets))
    assert row.help.endswith(".")


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
