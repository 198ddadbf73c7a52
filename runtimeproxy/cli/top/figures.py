"""What ``runtimeproxy top`` shows, from the proxy's answers at two moments.

The figures of an interval are differences between two answers of one process; after a restart, or with one answer only,
they are those since its start.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any

from runtimeproxy.admin.health import check_line
from runtimeproxy.observe.events import PARTS
from runtimeproxy.observe.metric_table import METRICS, PREFIX, quantile

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""The samples of the metrics by their shown names: labels and value of each."""

OUTCOMES = ("agreed", "failed", "refused", "unsettled", "ended")
GOOD_OUTCOMES = ("agreed", "ended")
GOOD_EVENTS = frozenset(
    ("edited", "plugin_added", "plugin_changed", "plugin_removed", "plugin_enabled", "breaker_closed", "runtime_back")
) | {"sync", "drain", "gap"}
GOOD_STATE = "closed"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The proxy's answers ``at`` seconds since 1970, with the latest ``errors``, oldest first. ``missing`` is the
    reason why they are older."""

    at: float
    samples: Samples
    hooks: Sequence[Mapping[str, Any]] = ()
    ready: Sequence[Mapping[str, str]] = ()
    errors: Sequence[Mapping[str, Any]] = ()
    missing: str = ""

    @property
    def started(self) -> float | None:
        """Return when the process began, in seconds since 1970; None if that is unknown."""
        return next((value for _, value in self.samples.get("process_start_time_seconds", ())), None)


@dataclass(frozen=True, slots=True)
class Operation:
    """Held calls of one operation: a second in the interval, and their outcomes since the start; ``worse`` has those
    bad outcomes that grew in the interval."""

    name: str
    rate: float | None
    outcomes: Mapping[str, int]
    worse: frozenset[str] = frozenset()


Latency = tuple[float | None, float | None]
"""P50 and P99 of the interval, in seconds; None if nothing was measured, infinite above the last bucket."""
Error = tuple[str, str, str, str, str, str]
"""Time, kind, operation, subject, hook server and text of an event; "" where they do not apply."""


@dataclass(frozen=True, slots=True)
class HookServer:
    """One hook server; rate and latency of the interval, failures since the start, ``worse`` if they grew."""

    name: str
    state: str
    policy: str
    rate: float | None
    latency: Latency
    failures: int
    worse: bool = False
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What one frame shows. ``interval`` is in seconds, None if it is all the time since the start."""

    version: str
    mode: str
    uptime: float | None
    interval: float | None
    ready: bool | None
    notes: Sequence[str]
    held: int
    oldest: float
    passing: float | None
    connections: int
    pods: int
    containers: int
    operations: Sequence[Operation]
    parts: Mapping[str, Latency]
    hook_servers: Sequence[HookServer]
    errors: Sequence[Error]
    missing: str = ""


def view(earlier: Snapshot | None, later: Snapshot) -> View:
    """Return the view of the time between two snapshots; without an earlier one, since the start."""
    if earlier is not None and (earlier.started != later.started or earlier.at >= later.at):
        earlier = None
    before: Samples = {} if earlier is None else earlier.samples
    uptime = None if later.started is None else later.at - later.started
    seconds = uptime if earlier is None else later.at - earlier.at
    _, build = _single_value(later, "build_info")
    ready, notes = readiness(later.ready)
    return View(
        version=build.get("version", ""),
        mode=build.get("runtime", ""),
        uptime=uptime,
        interval=None if earlier is None else seconds,
        ready=ready,
        notes=notes,
        held=int(_single_value(later, "held_calls")[0]),
        oldest=_single_value(later, "held_oldest_seconds")[0],
        passing=_rate(sum(_increases(before, later.samples, "calls_passed_total").values()), seconds),
        connections=int(_single_value(later, "connections_open")[0]),
        pods=int(_single_value(later, "store_pods")[0]),
        containers=int(_single_value(later, "store_containers")[0]),
        operations=_operations(before, later.samples, seconds),
        parts={part: _latency(before, later.samples, "call_duration_seconds", "part", part) for part in PARTS},
        hook_servers=[_hook_server(before, later.samples, seconds, hook) for hook in later.hooks],
        errors=[_error(event) for event in reversed(later.errors)],
        missing=later.missing,
    )


def readiness(checks: Sequence[Mapping[str, str]]) -> tuple[bool | None, Sequence[str]]:
    """Return whether the proxy is ready, None if that is unknown, and a line for each check that did not pass."""
    failed = [check_line(check) for check in checks if check["state"] == "failed"]
    degraded = [check_line(check) for check in checks if check["state"] == "degraded"]
    return not failed if checks else None, failed + degraded


def is_error(event: Mapping[str, Any]) -> bool:
    return event.get("kind") not in GOOD_EVENTS


def _operations(before: Samples, now: Samples, seconds: float | None) -> list[Operation]:
    totals = _sums(now, "calls_total", "operation", "outcome")
    increases = _increases(before, now, "calls_total", "operation", "outcome")
    return [
        Operation(
            name,
            _rate(sum(increases[name, outcome] for outcome in OUTCOMES), seconds),
            {outcome: int(totals[name, outcome]) for outcome in OUTCOMES},
            frozenset(o for o in OUTCOMES if o not in GOOD_OUTCOMES and increases[name, o] and before),
        )
        for name in sorted({operation for operation, _ in totals})
    ]


def _hook_server(before: Samples, now: Samples, seconds: float | None, hook: Mapping[str, Any]) -> HookServer:
    name = str(hook["name"])
    last = hook.get("lastError") or {}
    return HookServer(
        name=name,
        state=str(hook["state"]),
        policy=str(hook["policy"]),
        rate=_rate(_increases(before, now, "hook_calls_total", "hook_server")[(name,)], seconds),
        latency=_latency(before, now, "hook_call_duration_seconds", "hook_server", name),
        failures=int(_sums(now, "hook_failures_total", "hook_server")[(name,)]),
        worse=bool(before and _increases(before, now, "hook_failures_total", "hook_server")[(name,)]),
        last_error=" ".join(str(last[key]) for key in ("hook", "reason") if last.get(key)),
    )


def _error(event: Mapping[str, Any]) -> Error:
    def text(key: str) -> str:
        return str(event.get(key) or "")

    subject = "/".join(text(key) for key in ("namespace", "pod", "container") if text(key))
    return (
        text("time")[11:19],
        text("kind"),
        text("hook") or text("operation"),
        subject or (text("containerId") or text("podId"))[:12],
        text("hookServer"),
        text("text") or ("" if text("reason") == text("kind") else text("reason")),
    )


def _latency(before: Samples, now: Samples, name: str, label: str, value: str) -> Latency:
    increases = _increases(before, now, f"{name}_bucket", label, "le")
    cumulative = sorted((float(bound), count) for (key, bound), count in increases.items() if key == value)
    bounds = [bound for bound, _ in cumulative[:-1]]
    counts = [count - below for (_, count), (_, below) in zip(cumulative, [(0.0, 0.0), *cumulative], strict=False)]
    return quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)


def _rate(count: float, seconds: float | None) -> float | None:
    return count / seconds if seconds else None


def _single_value(snapshot: Snapshot, name: str) -> tuple[float, Mapping[str, str]]:
    """Return the value and the labels of a metric with one series; 0 if it is missing."""
    return next(((value, labels) for labels, value in snapshot.samples.get(PREFIX + name, ())), (0.0, {}))


def _sums(samples: Samples, name: str, *labels: str) -> defaultdict[tuple[str, ...], float]:
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for given, value in samples.get(PREFIX + name, ()):
        sums[tuple(given.get(label, "") for label in labels)] += value
    return sums


def _increases(before: Samples, now: Samples, name: str, *labels: str) -> defaultdict[tuple[str, ...], float]:
    increases = _sums(now, name, *labels)
    for key, value in _sums(before, name, *labels).items():
        increases[key] -= value
    return increases


def samples_of(answer: Mapping[str, Any]) -> Samples:
    """Return the samples in an answer to metrics; those of a histogram's buckets are cumulative, as in Prometheus."""
    samples: defaultdict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for name, value in answer["process"].items():
        samples[name].append(({}, value))
    for name, given, value in answer["values"]:
        metric = METRICS[name]
        samples[metric.shown].append((metric.labelled(given, answer["runtime"]), value))
    for name, given, counts, _ in answer["histograms"]:
        metric = METRICS[name]
        labels = metric.labelled(given, answer["runtime"])
        for bound, count in zip((*metric.buckets, inf), accumulate(counts), strict=True):
            samples[f"{metric.shown}_bucket"].append(({**labels, "le": str(bound)}, count))
    return samples
