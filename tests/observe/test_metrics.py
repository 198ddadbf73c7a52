"""Metrics return what was counted."""

from itertools import count

import pytest

from runtimeproxy.observe.metrics import RECENT_CALLS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    """Its clock tells at each look one second more."""
    return Metrics(count().__next__)


def test_counters_and_gauges_are_kept_for_each_set_of_labels(metrics: Metrics) -> None:
    metrics.count("failures", plugin="a", hook="x")
    metrics.count("failures", hook="x", plugin="a")
    metrics.count("failures", plugin="b", hook="x")
    metrics.count("failures_other")
    assert [metrics.counted("failures", plugin=name, hook="x") for name in "abc"] == [2, 1, 0]
    assert (metrics.counted("failures"), metrics.total("failures"), metrics.total("calls")) == (0, 3, 0)
    metrics.gauge("held", 3)
    metrics.gauge("held", 1.5)
    metrics.gauge("held", 7, front="cri")
    assert metrics.gauges == {("held", ()): 1.5, ("held", (("front", "cri"),)): 7}
    failures = ['failures{hook="x",plugin="a"} 2', 'failures{hook="x",plugin="b"} 1', "failures_other 1"]
    assert metrics.figures() == [*failures, "held 1.5", 'held{front="cri"} 7'], "reading a counter makes none"


def test_only_the_latest_calls_are_kept_each_held_when_it_came(metrics: Metrics) -> None:
    for _ in range(RECENT_CALLS + 1):
        times = metrics.call("StopContainer")
        assert (times.operation, times.released, times.answered, times.done) == ("StopContainer", None, None, None)
    assert [times.held for times in metrics.calls] == list(range(1, RECENT_CALLS + 1))


def test_calls_with_equal_times_are_two() -> None:
    metrics = Metrics(lambda: 0.0)
    assert metrics.call("StartContainer") != metrics.call("StartContainer")


def test_fields_left_out_are_counted_and_told_in_one_line(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    metrics.left_out("StartContainer", (), by="Docker")
    metrics.left_out("StartContainer", ("a", "b"), by="Docker")
    assert [metrics.counted("fields_left_out", operation="StartContainer", field=name) for name in "ab"] == [1, 1]
    assert metrics.total("fields_left_out") == 2
    assert caplog.messages == ["StartContainer: Docker cannot set a, b of a container: left out"]
