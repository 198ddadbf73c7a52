"""The figures of ``runtimeproxy top``: differences of two moments, quantiles, errors, what is not ready."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from runtimeproxy.cli.top.figures import Error, HookServer, Operation, Snapshot, is_error, readiness, samples_of, view
from runtimeproxy.observe.metrics import Metrics
from tests.cli.admin_answers import checks, figures

START = 1000.0


def metrics() -> Metrics:
    return Metrics(lambda: 0.0, "Containerd")


def snapshot(found: Metrics, seconds: float, started: float | None = START, **more: Any) -> Snapshot:
    """Return what a proxy with these metrics answers so many seconds after its start."""
    return Snapshot(START + seconds, samples_of(figures(found, started)), **more)


def outcomes(**given: int) -> Mapping[str, int]:
    return {"agreed": 0, "failed": 0, "refused": 0, "unsettled": 0, "ended": 0, **given}


def test_gauges_are_those_of_now() -> None:
    found = metrics()
    found.gauge("build_info", 1, "0.9.0", "3.11.2")
    for name, value in {"held_calls": 3, "held_oldest_seconds": 1.5, "connections_open": 4}.items():
        found.gauge(name, value)
    found.gauge("store_pods", 300)
    found.gauge("store_containers", 900)
    shown = view(None, snapshot(found, 1))
    assert (shown.version, shown.mode, shown.held, shown.oldest) == ("0.9.0", "Containerd", 3, 1.5)
    assert (shown.connections, shown.pods, shown.containers) == (4, 300, 900)


def two_moments() -> tuple[Snapshot, Snapshot]:
    """Return what is said 100 s and 104 s behind the start; meanwhile there were four calls."""
    found = metrics()
    found.count("calls", "CreateContainer", "refused")
    found.count("calls_passed", "Version")
    found.observe("call_duration_seconds", 1.0, "CreateContainer", "own")
    earlier = snapshot(found, 100)
    for outcome in ("agreed", "agreed", "failed", "ended"):
        found.count("calls", "CreateContainer", outcome)
        found.observe("call_duration_seconds", 0.004, "CreateContainer", "own")
    found.count("calls", "StopContainer", "agreed")
    found.count("calls_passed", "Version")
    found.count("calls_passed", "Status")
    return earlier, snapshot(found, 104)


def test_rates_and_latencies_are_those_of_the_interval() -> None:
    shown = view(*two_moments())
    assert (shown.interval, shown.uptime, shown.passing) == (4.0, 104.0, 0.5)
    created = outcomes(agreed=2, failed=1, refused=1, ended=1)
    assert shown.operations == [
        Operation("CreateContainer", 1.0, created, frozenset({"failed"})),
        Operation("StopContainer", 0.25, outcomes(agreed=1)),
    ]
    assert shown.parts["own"] == (pytest.approx(0.0035), pytest.approx(0.00497))


def test_first_frame_is_about_all_the_time_since_the_start() -> None:
    shown = view(None, two_moments()[1])
    assert (shown.interval, shown.passing) == (None, 3 / 104)
    assert [operation.rate for operation in shown.operations] == [5 / 104, 1 / 104]
    assert shown.operations[0].worse == frozenset()


BEGUN_ANEW = [
    ("another process", snapshot(metrics(), 3, started=START + 2)),
    ("a clock that went back", snapshot(metrics(), 90)),
]


@pytest.mark.parametrize("later", [row[1] for row in BEGUN_ANEW], ids=[row[0] for row in BEGUN_ANEW])
def test_interval_does_not_reach_over(later: Snapshot) -> None:
    assert view(two_moments()[0], later).interval is None


def test_without_a_known_start_there_is_no_rate() -> None:
    found = metrics()
    found.count("calls", "CreateContainer", "agreed")
    shown = view(None, snapshot(found, 9, started=None))
    assert (shown.uptime, shown.passing, shown.operations[0].rate) == (None, None, None)


def hook(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": "closed", "policy": "Ignore", "lastError": None, **more}


def test_hook_servers_have_their_own_figures() -> None:
    found = metrics()
    found.count("hook_failures", "a", "PreStartContainer", "deadline")
    earlier = snapshot(found, 10)
    for name in ("a", "a", "b"):
        found.count("hook_calls", name, "PreStartContainer", "ok")
        found.observe("hook_call_duration_seconds", 20.0, name)
    found.count("hook_failures", "b", "PreStartContainer", "deadline")
    told = {"time": "2026-11-25T16:00:00Z", "hook": "PreStartContainer", "reason": "deadline"}
    hooks = [hook("a"), hook("b", state="open", policy="Fail", lastError=told), hook("new")]
    above = (math.inf, math.inf)
    assert view(earlier, snapshot(found, 12, hooks=hooks)).hook_servers == [
        HookServer("a", "closed", "Ignore", 1.0, above, 1),
        HookServer("b", "open", "Fail", 0.5, above, 1, worse=True, last_error="PreStartContainer deadline"),
        HookServer("new", "closed", "Ignore", 0.0, (None, None), 0),
    ]


EVENTS: list[tuple[dict[str, Any], Error]] = [
    (
        {
            **{"number": 7, "time": "2026-11-25T16:01:02.123Z", "kind": "refused", "operation": "CreateContainer"},
            **{"hook": "PreCreateContainer", "namespace": "a", "pod": "b", "container": "c", "hookServer": "gpu"},
            **{"reason": "refused", "text": "no GPU"},
        },
        ("16:01:02", "refused", "PreCreateContainer", "a/b/c", "gpu", "no GPU"),
    ),
    (
        {"time": "2026-11-25T16:01:02.123Z", "kind": "slow", "operation": "StopContainer", "containerId": "0" * 64},
        ("16:01:02", "slow", "StopContainer", "0" * 12, "", ""),
    ),
    ({"kind": "refused", "reason": "refused"}, ("", "refused", "", "", "", "")),
    ({"kind": "runtime_lost", "reason": "unavailable"}, ("", "runtime_lost", "", "", "", "unavailable")),
]


@pytest.mark.parametrize(
    ("event", "error"), EVENTS, ids=["with all", "with an id", "reason that says no more", "reason"]
)
def test_error_has_what_the_event_has(event: dict[str, Any], error: Error) -> None:
    assert view(None, snapshot(metrics(), 1, errors=[event])).errors == [error]


KINDS = [("refused", True), ("failed_open", True), ("plugin_disabled", True), ("edited", False), ("gap", False)]


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_events_are_errors_unless_they_are_good_news(kind: str, error: bool) -> None:
    assert is_error({"kind": kind}) is error


READY = [
    ({}, True, []),
    ({"breakers": "degraded: x"}, True, ["[~]breakers degraded: x"]),
    ({"breakers": "degraded: x", "store": "failed: y"}, False, ["[-]store failed: y", "[~]breakers degraded: x"]),
]


@pytest.mark.parametrize(("others", "ready", "notes"), READY)
def test_checks_that_did_not_pass_are_lines(others: dict[str, str], ready: bool, notes: list[str]) -> None:
    assert readiness(checks(**others)["checks"]) == (ready, notes)
