"""Metrics return what was counted, and refuse what the table does not have."""

import ast
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path

import pytest

import runtimeproxy
from runtimeproxy.core.dispatcher import LEFT, OK
from runtimeproxy.cri import routes as cri_routes
from runtimeproxy.docker import exchange as docker_routes
from runtimeproxy.errors import Reason
from runtimeproxy.model.hookpoints import BY_CALL, HOOK_POINTS, Operation, Stage
from runtimeproxy.observe.events import CallTimes
from runtimeproxy.observe.metric_table import (
    HOOK_SERVER_SERIES,
    HOOK_SERVERS,
    METRICS,
    OTHER,
    ROWS,
    SECONDS,
    Histogram,
    Kind,
    Metric,
    quantile,
)
from runtimeproxy.observe.metrics import RECENT_CALLS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    """Its clock shows at each look one second more."""
    return Metrics(count().__next__, "docker")


def shown(metrics: Metrics, name: str) -> list[str]:
    """Return the lines of a metric, without its prefix."""
    lines = [line.removeprefix("runtimeproxy_") for line in metrics.figures()]
    return [line for line in lines if line.startswith(name)]


def test_counters_are_kept_for_each_set_of_labels(metrics: Metrics) -> None:
    for hook_server in "aab":
        metrics.count("hook_refusals", hook_server, "x")
    counted = [metrics.counted("hook_refusals", hook_server=name, hook="x") for name in "abc"]
    assert (counted, metrics.total("hook_refusals")) == ([2, 1, 0], 3)
    assert [metrics.total("hook_refusals", hook=hook) for hook in "xy"] == [3, 0]
    assert [metrics.total("hook_refusals", hook_server=name) for name in "ab"] == [2, 1]
    figures = ['hook_refusals_total{hook_server="a",hook="x"} 2', 'hook_refusals_total{hook_server="b",hook="x"} 1']
    assert shown(metrics, "hook_refusals") == figures, "reading a counter makes none"


def test_gauges_have_their_last_value(metrics: Metrics) -> None:
    for value in (3, 1.5):
        metrics.gauge("held_oldest_seconds", value)
    metrics.gauge("config_last_reload_timestamp_seconds", 1_764_000_000.25)
    assert metrics.gauges["held_oldest_seconds", ()] == 1.5
    assert shown(metrics, "held") == ["held_oldest_seconds 1.5"]
    assert shown(metrics, "config_last") == ["config_last_reload_timestamp_seconds 1764000000.25"]


def test_label_values_are_escaped(metrics: Metrics) -> None:
    metrics.count("hook_breaker_openings", 'a"\\\n')
    assert shown(metrics, "hook_br") == [r'hook_breaker_openings_total{hook_server="a\"\\\n"} 1']


@pytest.mark.parametrize("value", [*SECONDS, *(bound * 1.01 for bound in SECONDS), 0.0, -0.1])
def test_an_observation_is_in_all_buckets_that_reach_it(metrics: Metrics, value: float) -> None:
    metrics.observe("loop_lag_seconds", value)
    *buckets, total, number = shown(metrics, "loop_lag")
    expected = [f'loop_lag_seconds_bucket{{le="{bound}"}} {int(value <= bound)}' for bound in SECONDS]
    assert buckets == [*expected, 'loop_lag_seconds_bucket{le="+Inf"} 1']
    assert (float(total.split()[1]), number) == (value, "loop_lag_seconds_count 1")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("count", ("unheard_of",)),
        ("count", ("held_calls",)),
        ("count", ("loop_stalls", "one label too many")),
        ("count", ("calls", "RunPodSandbox")),
        ("counted_elsewhere", ("held_calls", 1)),
        ("gauge", ("calls", 1.0, "RunPodSandbox", "agreed")),
        ("gauge", ("plugins", 1.0)),
        ("observe", ("held_calls", 1.0)),
        ("observe", ("loop_lag_seconds", 1.0, "one label too many")),
    ],
)
def test_what_the_table_does_not_have_is_refused(metrics: Metrics, method: str, arguments: tuple[object, ...]) -> None:
    before = metrics.figures()
    with pytest.raises(ValueError, match=r"is not a \w+ of the table of metrics"):
        getattr(metrics, method)(*arguments)
    assert metrics.figures() == before


def test_only_the_first_hook_servers_have_their_names_in_labels(metrics: Metrics) -> None:
    for number in (*range(HOOK_SERVERS + 3), 0):
        metrics.count("hook_breaker_openings", f"h{number}")
        metrics.count("hook_refusals", f"h{number}", "x")
        metrics.observe("hook_call_duration_seconds", 1.0, f"h{number}")
        metrics.gauge("hook_breaker_open", 1.0, f"h{number}")
    found = {name: metrics.counted("hook_breaker_openings", hook_server=name) for name in ("h0", "h1", "h32", OTHER)}
    assert found == {"h0": 2, "h1": 1, "h32": 0, OTHER: 3}
    counts = [
        len({key for key in retained if key[0].startswith("hook")}) for retained in (metrics.counters, metrics.gauges)
    ]
    assert (counts, len(metrics.histograms)) == ([2 * (HOOK_SERVERS + 1), HOOK_SERVERS + 1], HOOK_SERVERS + 1)


VALUES = {
    "operation": [operation.value for operation in Operation],
    "outcome": ["agreed", "failed"],
    "part": ["own", "hooks", "runtime", "post"],
    "hook": [point.name for point in HOOK_POINTS],
    "method": [labels[0] for _, labels in (*docker_routes.PASSING_SERIES, cri_routes.OTHER_SERIES)],
}
"""The values of labels, where there are more than two."""
USUAL = {"reason": ["deadline"], "code": ["ok"], "field": ["envs", "cgroup_parent", "resources.unified"]}
WORST = {
    "reason": [reason.value for reason in Reason],
    "code": [LEFT, OK, *(reason.value for reason in Reason)],
    "field": [f"resources.{number}" for number in range(20)],
}


def _has(operation: str, part: str) -> bool:
    """Return whether calls of an operation have a part."""
    stage = {"hooks": Stage.PRE, "post": Stage.POST}.get(part)
    return stage is None or (Operation(operation), stage) in BY_CALL


@pytest.mark.parametrize(("hook_servers", "values", "most"), [(3, USUAL, 600), (40, WORST, 3_000)])
def test_number_of_series_is_bounded(hook_servers: int, values: dict[str, list[str]], most: int) -> None:
    """All values in all combinations; but what goes wrong usually does so at one operation and hook point."""
    metrics = Metrics(lambda: 0.0)
    names = {"hook_server": [f"h{number}" for number in range(hook_servers)]}
    for row in ROWS:
        known = {**VALUES, **names, **values}
        if values is USUAL and row.name not in ("calls", "call_duration_seconds", "hook_calls"):
            known |= {"operation": ["CreateContainer"], "hook": ["PreCreateContainer"]}
        for labels in product(*(known.get(label, ["a", "b"]) for label in row.given)):
            if row.kind is Kind.COUNTER:
                metrics.count(row.name, *labels)
            elif row.kind is Kind.GAUGE:
                metrics.gauge(row.name, 1.0, *labels)
            elif "part" not in row.labels or _has(*labels):
                metrics.observe(row.name, 1.0, *labels)
    assert most * 0.8 < len(metrics.figures()) <= most


def test_what_is_beyond_the_bound_is_counted_as_others(metrics: Metrics) -> None:
    for number in range(HOOK_SERVER_SERIES + 2):
        metrics.count("hook_bad_fields", "a", str(number))
    metrics.count("hook_bad_fields", "a", "0")
    assert metrics.counted("hook_bad_fields", hook_server="a", field="0") == 2
    assert metrics.total("hook_bad_fields", hook_server=OTHER) == 2
    assert metrics.total("hook_bad_fields") == HOOK_SERVER_SERIES + 3


def test_gauges_of_a_hook_server_that_is_gone_vanish(metrics: Metrics) -> None:
    for name in "ab":
        metrics.gauge("hook_breaker_open", 1.0, name)
        metrics.count("hook_breaker_openings", name)
    metrics.gauge("plugins", 1.0, "a")
    metrics.forget("a")
    assert set(metrics.gauges) == {("hook_breaker_open", ("b",)), ("plugins", ("a",))}
    assert metrics.counted("hook_breaker_openings", hook_server="a") == 1


def test_only_the_latest_calls_are_kept_each_held_when_it_came(metrics: Metrics) -> None:
    for _ in range(RECENT_CALLS + 1):
        times = metrics.call("StopContainer")
        assert (times.operation, times.released, times.answered, times.done) == ("StopContainer", None, None, None)
    assert [times.held for times in metrics.calls] == list(range(1, RECENT_CALLS + 1))


@pytest.mark.parametrize(
    ("moments", "within", "parts"),
    [
        ((2, 6, 7), {}, {"own": 3, "runtime": 4}),
        ((20, 60, 100), {"turn": 5, "hooks": 3, "querying": 2, "post": 30}, None),
        ((None, None, None), {"hooks": 3}, {"own": 6, "hooks": 3}),
        ((None, None, None), {"turn": 2, "querying": 4}, {"own": 3, "turn": 2, "runtime": 4}),
        ((2, None, None), {}, {"own": 2, "runtime": 7}),
    ],
    ids=["no hooks", "all parts", "refused", "ended", "broken off"],
)
def test_a_calls_time_is_observed_by_part(
    moments: tuple[float | None, ...], within: dict[str, float], parts: dict[str, float] | None
) -> None:
    metrics = Metrics(lambda: 9)
    times = CallTimes("StopContainer", 0, *moments, "agreed", **within)
    metrics.ended(times)
    found = {labels[1]: histogram.sum for (_, labels), histogram in metrics.histograms.items()}
    assert found == (parts or {"own": 20, "turn": 5, "hooks": 3, "runtime": 42, "post": 30})
    assert sum(found.values()) == (times.done or 9)
    assert metrics.counted("calls", operation="StopContainer", outcome="agreed") == 1


def test_fields_left_out_are_counted_and_reported_in_one_line(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.left_out("StartContainer", ("a", "b"), by="Docker", call="ab12-1")
    assert [metrics.counted("fields_left_out", operation="StartContainer", field=name) for name in "ab"] == [1, 1]
    assert metrics.total("fields_left_out") == 2
    assert caplog.messages == ["StartContainer: Docker cannot set a, b of a container: left out"]
    assert vars(caplog.records[0])["call"] == "ab12-1"


def test_normalised_values_are_counted_for_the_owner_of_their_field(metrics: Metrics) -> None:
    metrics.normalised(["cpu_quota", "cpu_period"], {"resources.cpu_quota": "a", "envs.cpu_period": "b"})
    labels = {"hook_server": "a", "field": "resources.cpu_quota"}
    assert metrics.counted("values_normalised", **labels) == metrics.total("values_normalised") == 1


def test_hook_server_is_shown_by_its_name_as_long_as_there_is_room(metrics: Metrics) -> None:
    for number in range(HOOK_SERVERS):
        assert metrics.is_shown("later")
        metrics.count("hook_refusals", str(number), "x")
    assert metrics.is_shown("0")
    assert not metrics.is_shown("later")


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
