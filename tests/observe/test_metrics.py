"""Metrics return counted values, and refuse metrics that the table lacks. The ring of events has two limits."""

import ast
import json
import math
import tracemalloc
from bisect import bisect_left
from itertools import count, product
from typing import Any

import pytest

from runtimeproxy.model.hookpoints import HOOK_POINTS, Operation
from runtimeproxy.observe import events as ring
from runtimeproxy.observe import metric_table
from runtimeproxy.observe.events import LONGEST_TEXT, MOST_BYTES, MOST_EVENTS, MOST_FIELDS, PAGE, EventKind, Events
from runtimeproxy.observe.metric_table import HOOK_SERVER_SERIES, HOOK_SERVERS, OTHER_LABEL, SECONDS, Histogram, Kind
from runtimeproxy.observe.metrics import RECENT_CALLS, Metrics
from tests.docs import ROOT
from tests.observe.events import shown_of


@pytest.fixture
def metrics() -> Metrics:
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


METHODS = {"count": (Kind.COUNTER, 1), "set_counter": (Kind.COUNTER, 2), "gauge": (Kind.GAUGE, 2)}
METHODS |= {"observe": (Kind.HISTOGRAM, 2)}
"""The methods that count, with the number of their arguments before the labels."""
IN_VARIABLES = {"backend_event_dial_failures", "backend_event_stream_losses"}


def test_call_sites_match_table() -> None:
    """A wrong one raises ValueError, and some are reached only in faults."""
    counted = IN_VARIABLES | {"calls_passed"}
    for path in ROOT.glob("runtimeproxy/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(owner, method), [name, *more], []) if method in METHODS:
                    if "metrics" in ast.unparse(owner) or path.stem == "metrics":
                        names = {name.value} if isinstance(name, ast.Constant) else IN_VARIABLES
                        rows = [metric_table.METRICS[str(each)] for each in names]
                        kinds = {(row.kind, len(row.given) + METHODS[method][1]) for row in rows}
                        assert kinds == {(METHODS[method][0], 1 + len(more))}, f"{path}:{node.lineno}"
                        counted |= {row.name for row in rows}
    assert counted == metric_table.METRICS.keys()


def test_number_of_series_is_bounded(metrics: Metrics) -> None:
    """All values of labels in all combinations, with more hook servers and fields than a node has."""
    values = {"operation": [each.value for each in Operation], "hook": [point.name for point in HOOK_POINTS]}
    values |= {key: [f"h{number}" for number in range(40)] for key in ("reason", "code", "field", "hook_server")}
    for row in metric_table.ROWS:
        add = {Kind.COUNTER: metrics.count, Kind.GAUGE: lambda *key: metrics.gauge(key[0], 1.0, *key[1:])}
        add[Kind.HISTOGRAM] = lambda *key: metrics.observe(key[0], 1.0, *key[1:])
        for labels in product(*(values.get(label, ["agreed", "own"]) for label in row.given)):
            add[row.kind](row.name, *labels)
    assert len(metrics.figures()) < 4_000


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
    times = ring.CallTimes("StopContainer", 0, *moments, "agreed", **within)
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


ID = "0123456789abcdef" * 4
CREATE = ring.About("CreateContainer", "ab12-57", "shop", "web-1", f"p{ID}", "main", f"c{ID}")
SPENT = (0.001, 0.0, 0.02, 0.3, 0.0)


@pytest.fixture
def events() -> Events:
    return Events(lambda: 1_764_000_000.25)


def full(count: int, text: str = "") -> Events:
    events = Events(lambda: 0.0)
    for _ in range(count):
        events.add(EventKind.SYNC, text=text)
    return events


def test_event_is_read_with_all_fields(events: Events) -> None:
    fields = {"envs.A": "koordlet", "resources.cpu_quota": "gpu"}
    more: dict[str, Any] = {"hook": "PreCreateContainer", "reason": "deadline", "fields": fields, "seconds": SPENT}
    events.add(EventKind.FAILED_OPEN, CREATE, hook_server="koordlet", text="some", **more)
    (event,) = shown_of(events)
    about = {"operation": "CreateContainer", "call": "ab12-57", "namespace": "shop", "pod": "web-1", "podId": f"p{ID}"}
    about |= {"container": "main", "containerId": f"c{ID}", "hookServer": "koordlet", "text": "some"}
    assert json.loads(json.dumps(event)) == {
        **{"number": 1, "time": "2025-11-24T16:00:00.250Z", "kind": "failed_open", **about},
        **{"hook": "PreCreateContainer", "reason": "deadline"},
        "fields": [{"field": field, "hookServer": name} for field, name in fields.items()],
        "seconds": dict(zip(ring.PARTS, SPENT, strict=True)),
    }


def test_gap_is_reported_when_ring_dropped_events() -> None:
    events = full(MOST_EVENTS + 7)
    assert (len(events), events.last) == (MOST_EVENTS, MOST_EVENTS + 7)
    for since, gap in ((0, (1, 7)), (6, (7, 7)), (7, None), (9, None)):
        rows, reported = events.read(since)
        assert (reported, rows[0][0], len(rows)) == (gap, max(since, 7) + 1, PAGE)


def test_page_ends_after_byte_limit() -> None:
    """One event may exceed the bound; a longer text than LONGEST_TEXTS is cut."""
    for length, read in ((0, PAGE), (1_000, 33), (8_000, 5), (ring.PAGE_BYTES, 81)):
        assert len(full(3 * PAGE, "x" * length).read()[0]) == read


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 100_000], ids=["ascii", "wide"])
def test_long_texts_are_cut_and_fields_beyond_bound_counted(events: Events, text: str) -> None:
    fields = {f"envs.{number}{text}": text for number in range(MOST_FIELDS + 3)}
    events.add(EventKind.EDITED, ring.About("CreateContainer", *[text] * 6), hook_server=text, fields=fields)
    (event,) = shown_of(events)
    assert event["pod"] == event["hookServer"] == text[:LONGEST_TEXT]
    assert event["fields"][1] == {"field": f"envs.1{text}"[:LONGEST_TEXT], "hookServer": text[:LONGEST_TEXT]}
    assert (len(event["fields"]), event["text"]) == (MOST_FIELDS, "and 3 fields more")
    assert events.bytes < MOST_BYTES / 8


def test_separators_and_surrogates_in_texts_are_replaced(events: Events) -> None:
    events.add(EventKind.EDITED, ring.About(namespace="a\0b\0", pod="\udc80", pod_id="p"), fields={"envs.\0": "x"})
    (event,) = shown_of(events)
    assert (event["namespace"], event["pod"], event["podId"]) == ("ab", r"\udc80", "p")
    assert event["fields"] == [{"field": "envs.", "hookServer": "x"}]


@pytest.mark.parametrize("length", [1_000, 7_000])
def test_oldest_events_are_dropped_at_byte_limit(length: int) -> None:
    events = full(MOST_EVENTS, "x" * length)
    assert events.bytes == len(events) * (ring.FIXED_BYTES + length + 7)
    assert MOST_BYTES - (ring.FIXED_BYTES + length + 7) < events.bytes <= MOST_BYTES
    assert events.read()[0][0][0] == events.last - len(events) + 1


def test_runtime_is_lost_once_and_back_once(events: Events) -> None:
    """It is back when no observer sees it lost, or when one reports it for all."""
    events.runtime_back("clients")
    for seen_by in ("clients", "passes", "clients"):
        events.runtime_lost(seen_by, "unavailable")
    events.runtime_back("clients")
    assert (len(events), events.runtime_is_lost) == (1, True)
    events.runtime_back("passes")
    assert not events.runtime_is_lost
    events.runtime_lost("passes", "deadline")
    events.runtime_lost("clients", "unreachable")
    for _ in range(2):
        events.runtime_back()
    reported = [(event["kind"], event.get("reason")) for event in shown_of(events)]
    lost, back = "runtime_lost", ("runtime_back", None)
    assert reported == [(lost, "unavailable"), back, (lost, "deadline"), back]


@pytest.mark.parametrize(("count", "wide"), [(0, ""), pytest.param(30, "\U0001f600", marks=pytest.mark.slow)])
def test_full_ring_uses_no_more_memory_than_counted(count: int, wide: str) -> None:
    """All texts are new for each event, as those of removed pods."""
    clock = iter(range(1_764_000_000, 1 << 40))
    events = Events(lambda: next(clock) + 0.5)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2 * MOST_EVENTS):
            about = ring.About("CreateContainer", f"ab12-{number}", "shop", f"web-{number}{wide}", f"{number:064}")
            fields = {f"envs.{number}.{index}{wide}": f"{number}" for index in range(count)}
            events.add(EventKind.EDITED, about, fields=fields, seconds=(number + 0.1, 0.2, 0.3, 0.4, 0.5))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= events.bytes + 4096 <= MOST_BYTES + 4096
    assert len(events) == MOST_EVENTS or events.bytes > 0.99 * MOST_BYTES
