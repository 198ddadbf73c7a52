"""Metrics return counted values, and refuse metrics that the table lacks."""

import math
from bisect import bisect_left
from itertools import count

import pytest

from runtimeproxy.observe import metric_table
from runtimeproxy.observe.events import CallTimes
from runtimeproxy.observe.metric_table import HOOK_SERVER_SERIES, HOOK_SERVERS, OTHER_LABEL, SECONDS, Histogram
from runtimeproxy.observe.metrics import RECENT_CALLS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    """Each call of its clock returns one second more."""
    return Metrics(count().__next__, "docker")


def shown(metrics: Metrics, name: str) -> list[str]:
    lines = [line.removeprefix("runtimeproxy_") for line in metrics.figures()]
    return [line for line in lines if line.startswith(name)]


def test_counter_has_value_per_set_of_labels(metrics: Metrics) -> None:
    odd = 'b"\\\n'
    for hook_server in ("a", "a", odd):
        metrics.count("hook_refusals", hook_server, "x")
    counted = [metrics.counted("hook_refusals", hook_server=name, hook="x") for name in ("a", odd, "c")]
    assert (counted, metrics.total("hook_refusals")) == ([2, 1, 0], 3)
    assert [metrics.total("hook_refusals", hook=hook) for hook in "xy"] == [3, 0]
    assert [metrics.total("hook_refusals", hook_server=name) for name in ("a", odd)] == [2, 1]
    lines = [
        'hook_refusals_total{hook_server="a",hook="x"} 2',
        r'hook_refusals_total{hook_server="b\"\\\n",hook="x"} 1',
    ]
    assert shown(metrics, "hook_refusals") == lines, "reading a counter makes none"
    for value in (SECONDS[3], SECONDS[3] * 1.01, -0.1):
        metrics.observe("loop_lag_seconds", value)
    *buckets, _, number = shown(metrics, "loop_lag")
    reached = [1 + (bound >= SECONDS[3]) + (bound >= SECONDS[4]) for bound in SECONDS]
    assert buckets[:-1] == [f'loop_lag_seconds_bucket{{le="{le}"}} {n}' for le, n in zip(SECONDS, reached, strict=True)]
    assert (buckets[-1], number) == ('loop_lag_seconds_bucket{le="+Inf"} 3', "loop_lag_seconds_count 3")
    for value in (3, 1_764_000_000.25):
        metrics.gauge("held_oldest_seconds", value)
    assert shown(metrics, "held") == ["held_oldest_seconds 1764000000.25"]


REFUSED: list[tuple[str, tuple[object, ...]]] = [
    *[("count", ("unheard_of",)), ("count", ("held_calls",)), ("count", ("loop_stalls", "one label too many"))],
    *[("set_counter", ("held_calls", 1)), ("gauge", ("calls", 1.0, "RunPodSandbox", "agreed"))],
    *[("observe", ("held_calls", 1.0)), ("observe", ("loop_lag_seconds", 1.0, "one label too many"))],
]


@pytest.mark.parametrize(("method", "arguments"), REFUSED)
def test_metric_missing_in_table_is_refused(metrics: Metrics, method: str, arguments: tuple[object, ...]) -> None:
    before = metrics.figures()
    with pytest.raises(ValueError, match=r"is not a \w+ of the table of metrics"):
        getattr(metrics, method)(*arguments)
    assert metrics.figures() == before


def test_only_first_hook_servers_have_names_in_labels(metrics: Metrics) -> None:
    for number in (*range(HOOK_SERVERS + 3), 0):
        metrics.count("hook_breaker_openings", f"h{number}")
        metrics.count("hook_refusals", f"h{number}", "x")
        metrics.observe("hook_call_duration_seconds", 1.0, f"h{number}")
        metrics.gauge("hook_breaker_open", 1.0, f"h{number}")
    names = ("h0", "h1", "h32", OTHER_LABEL)
    openings = {name: metrics.counted("hook_breaker_openings", hook_server=name) for name in names}
    assert openings == {"h0": 2, "h1": 1, "h32": 0, OTHER_LABEL: 3}
    tables = (metrics.counters, metrics.gauges)
    counts = [len({key for key in table if key[0].startswith("hook")}) for table in tables]
    assert (counts, len(metrics.histograms)) == ([2 * (HOOK_SERVERS + 1), HOOK_SERVERS + 1], HOOK_SERVERS + 1)
    assert (metrics.is_shown("h0"), metrics.is_shown("later")) == (True, False)
    assert Metrics(lambda: 0.0).is_shown("later")
    for number in (*range(HOOK_SERVER_SERIES + 2), 0):
        metrics.count("hook_bad_fields", "h0", str(number))
    assert metrics.counted("hook_bad_fields", hook_server="h0", field="0") == 2
    in_other_counters = 2 * (HOOK_SERVERS + 1)
    assert metrics.total("hook_bad_fields", hook_server=OTHER_LABEL) == 2 + in_other_counters, "above the limit"
    assert metrics.total("hook_bad_fields") == HOOK_SERVER_SERIES + 3


def test_gauges_of_removed_hook_server_are_dropped(metrics: Metrics) -> None:
    for name in "ab":
        metrics.gauge("hook_breaker_open", 1.0, name)
    metrics.gauge("plugins", 1.0, "a")
    metrics.count("hook_breaker_openings", "a")
    metrics.forget("a")
    assert set(metrics.gauges) == {("hook_breaker_open", ("b",)), ("plugins", ("a",))}
    assert metrics.counted("hook_breaker_openings", hook_server="a") == 1


ALL: dict[str, float] = {"own": 20, "turn": 5, "hooks": 3, "runtime": 42, "post": 30}
TIMES: dict[str, tuple[tuple[float | None, ...], dict[str, float], dict[str, float]]] = {
    "no hooks": ((2, 6, 7), {}, {"own": 3, "runtime": 4}),
    "all parts": ((20, 60, 100), {"queued": 5, "hooks": 3, "querying": 2, "post": 30}, ALL),
    "refused": ((None, None, None), {"hooks": 3}, {"own": 6, "hooks": 3}),
    "ended": ((None, None, None), {"queued": 2, "querying": 4}, {"own": 3, "turn": 2, "runtime": 4}),
    "broken off": ((2, None, None), {}, {"own": 2, "runtime": 7}),
}


@pytest.mark.parametrize("call", TIMES)
def test_call_time_is_observed_by_part(call: str) -> None:
    moments, within, parts = TIMES[call]
    metrics = Metrics(lambda: 9)
    times = CallTimes("StopContainer", 0, *moments, "agreed", **within)
    metrics.record_end(times)
    assert {labels[1]: histogram.sum for (_, labels), histogram in metrics.histograms.items()} == parts
    assert sum(parts.values()) == (times.done or 9)
    assert metrics.counted("calls", operation="StopContainer", outcome="agreed") == 1
    metrics = Metrics(count().__next__)
    for _ in range(RECENT_CALLS + 1):
        times = metrics.call("StopContainer")
        assert (times.operation, times.released, times.answered, times.done) == ("StopContainer", None, None, None)
    assert [times.held for times in metrics.calls] == list(range(1, RECENT_CALLS + 1)), "those of the latest calls"


def test_unsettable_and_normalised_fields_are_counted(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    metrics.count_unsettable_fields("StartContainer", ("a", "b"), by="Docker", call="ab12-1")
    assert [metrics.counted("fields_left_out", operation="StartContainer", field=name) for name in "ab"] == [1, 1]
    assert metrics.total("fields_left_out") == 2
    assert caplog.messages == ["StartContainer: Docker cannot set a, b of a container: left out"]
    assert vars(caplog.records[0])["call"] == "ab12-1"
    metrics.normalised(["cpu_quota", "cpu_period"], {"resources.cpu_quota": "a", "envs.cpu_period": "b"})
    labels = {"hook_server": "a", "field": "resources.cpu_quota"}
    assert metrics.counted("values_normalised", **labels) == metrics.total("values_normalised") == 1


QUANTILES: list[tuple[list[float], float, float | None]] = [
    *[([], 0.5, None), ([0.003] * 4, 0.5, 0.0035), ([0.003] * 4, 0.25, 0.00275), ([0.003] * 4, 1.0, 0.005)],
    *[([0.0001], 0.5, 0.00025), ([0.003] * 99 + [1.0], 0.99, 0.005), ([0.003] * 98 + [1.0] * 2, 0.99, 1.25)],
    *[([1000.0], 0.5, math.inf), ([0.003, 1000.0], 0.99, math.inf)],
]


def test_quantile_is_computed_from_buckets() -> None:
    for values, share, expected in QUANTILES:
        histogram = Histogram()
        for value in values:
            histogram.counts[bisect_left(SECONDS, value)] += 1
        found = metric_table.quantile(SECONDS, histogram.counts, share)
        assert found == (None if expected is None else pytest.approx(expected)), (values, share)
