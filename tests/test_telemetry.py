"""What is counted can be read again."""

import pytest

from runtimeproxy.telemetry import RECENT_CALLS, Recorder


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_counter_is_kept_for_each_set_of_labels_in_any_order() -> None:
    recorder = Recorder(Clock())
    recorder.count("failures", plugin="a", hook="x")
    recorder.count("failures", hook="x", plugin="a")
    recorder.count("failures", plugin="b", hook="x")
    recorder.count("failures_other")
    assert recorder.counted("failures", plugin="a", hook="x") == 2
    assert recorder.counted("failures", plugin="b", hook="x") == 1
    assert recorder.counted("failures", plugin="c", hook="x") == 0
    assert recorder.counted("failures") == 0
    assert recorder.total("failures") == 3


def test_reading_a_counter_makes_none() -> None:
    recorder = Recorder(Clock())
    assert recorder.counted("calls") == recorder.total("calls") == 0
    assert not recorder.counters


def test_a_gauge_is_the_last_value_for_each_set_of_labels() -> None:
    recorder = Recorder(Clock())
    recorder.gauge("held", 3)
    recorder.gauge("held", 1)
    recorder.gauge("held", 7, front="cri")
    assert recorder.gauges == {("held", ()): 1, ("held", (("front", "cri"),)): 7}


def test_the_figures_are_listed_by_name() -> None:
    recorder = Recorder(Clock())
    recorder.gauge("held", 1.5)
    recorder.gauge("held", 3, front="cri")
    recorder.count("failures", plugin="a", hook="x")
    assert recorder.figures() == ['failures{hook="x",plugin="a"} 1', "held 1.5", 'held{front="cri"} 3']


def test_a_call_is_held_now_and_has_got_nowhere_yet() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    clock.now = 12.5
    times = recorder.call("StartContainer")
    assert (times.operation, times.held) == ("StartContainer", 12.5)
    assert (times.released, times.answered, times.done, times.outcome) == (None, None, None, "")
    assert list(recorder.calls) == [times]


def test_only_the_latest_calls_are_kept() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    for clock.now in range(RECENT_CALLS + 1):
        recorder.call("StopContainer")
    assert [times.held for times in recorder.calls] == list(range(1, RECENT_CALLS + 1))


def test_calls_are_told_apart_even_with_equal_times() -> None:
    recorder = Recorder(Clock())
    assert len({recorder.call("StopContainer"), recorder.call("StopContainer")}) == 2


def test_what_is_left_out_is_counted_by_field_and_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(Clock())
    recorder.left_out("StartContainer", (), by="Docker")
    assert not recorder.counters
    recorder.left_out("StartContainer", ("a", "b"), by="Docker")
    assert recorder.counted("fields_left_out", operation="StartContainer", field="a") == 1
    assert recorder.counted("fields_left_out", operation="StartContainer", field="b") == 1
    assert caplog.messages == ["StartContainer: Docker cannot set a, b of a container: left out"]
