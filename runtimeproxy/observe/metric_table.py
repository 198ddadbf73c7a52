"""Histograms, and the table of metrics: one row per metric, for what counts and shows them, and for docs/metrics.rst.

Invariant: a label is a name from a table (operations, hook points, reasons, fields) or a hook server's name. No label
is a pod's, namespace's, image's or container's, and none is a value of a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Histogram:
    """The observations of one series: ``counts`` by bucket, the last one for those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Return the value that this share of the observations is not above, as Prometheus' histogram_quantile does: linear
    within a bucket. None without observations, infinite above all bounds."""
    rank = share * sum(counts)
    lower = below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        lower, below = bound, below + count
    return math.inf if rank else None


PREFIX = "runtimeproxy_"
RUNTIME = "runtime"
"""A label that no call site gives: it is the same in the whole process."""
HOOK_SERVER = "hook_server"
"""The first label that a call site gives, of each row that has it."""
HOOK_SERVERS = 32
"""Most names of hook servers in labels in a process's life; the others together are OTHER."""
HOOK_SERVER_SERIES = 1_200
"""Most counters of hook servers in a process's life; what comes later is counted with OTHER."""
OTHER = "other"

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""The buckets of all histograms: the proxy's own time is in the first, hook servers and runtimes in the last."""


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Key = tuple[str, tuple[str, ...]]
"""A series: the metric's name, and the values of the labels that call sites give, in the table's order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row; ``name`` is what the call sites use. ``unit`` is "" where things are counted."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"

    @property
    def given(self) -> tuple[str, ...]:
        return tuple(label for label in self.labels if label != RUNTIME)

    def labelled(self, given: Sequence[str], runtime: str) -> dict[str, str]:
        """Return the labels of a series, in the table's order; ``runtime`` is the value of RUNTIME."""
        values = iter(given)
        return {label: runtime if label == RUNTIME else next(values) for label in self.labels}


def _counter(name: str, help: str, labels: str = "") -> Metric:
    return Metric(name, Kind.COUNTER, help, tuple(labels.split()))


def _gauge(name: str, help: str, labels: str = "") -> Metric:
    return Metric(name, Kind.GAUGE, help, tuple(labels.split()), "seconds" if name.endswith("_seconds") else "")


def _histogram(name: str, help: str, labels: str = "") -> Metric:
    return Metric(name, Kind.HISTOGRAM, help, tuple(labels.split()), "seconds", SECONDS)


ROWS: tuple[Metric, ...] = (
    _gauge("build_info", "1, with the versions as labels.", "version python runtime"),
    _gauge("ready", "1 if calls are served as they should be: what /readyz said at the last look."),
    # Held calls.
    _counter(
        "calls",
        "Held calls that ended: the runtime agreed or failed, its answer never came (unsettled), the proxy refused the "
        "call, or the client left while it was held (ended).",
        "runtime operation outcome",
    ),
    _histogram(
        "call_duration_seconds",
        "Time of held calls by part: the proxy's own, its turn (behind an earlier call of the same pod or container), "
        "the Pre hooks, the runtime, the Post hooks. Each call has the part own; the others are there where the call "
        "had them.",
        "runtime operation part",
    ),
    _counter("calls_unreadable", "Held messages that could not be read.", "operation"),
    _counter("fields_left_out", "Fields that hook servers set and the request has no means for.", "operation field"),
    _gauge("held_calls", "Calls that are held now."),
    _gauge("held_oldest_seconds", "Age of the call that is held longest."),
    _counter(
        "unknown_outcomes",
        "Starts, stops and removes without an answer that were settled: agreed, failed, repeated by the client, or "
        "given up.",
        "operation result",
    ),
    _counter("internal_errors", "Errors in the proxy itself.", "operation"),
    _counter(
        "calls_passed",
        "Calls that passed, counted at the request's head: by the method's name, other for one that is not known.",
        "runtime method",
    ),
    # Hook servers.
    _counter(
        "hook_calls",
        "Calls that hook servers were asked, by what came: ok, the reason of the failure, or left where the held call "
        "ended before the answer.",
        "hook_server hook code",
    ),
    # By server alone: by hook point as well it would be seven times the series, at the worst 2,800.
    _histogram("hook_call_duration_seconds", "Time of the calls that hook servers were asked.", "hook_server"),
    _counter(
        "hook_failures",
        "Failures by reason, also those for which the hook server was not asked.",
        "hook_server hook reason",
    ),
    _counter("hook_fail_open", "Failures that a call went on without.", "hook_server hook reason"),
    _counter(
        "hook_fail_closed", "Failures for which a call was refused: the policy is Fail.", "hook_server hook reason"
    ),
    _counter("hook_refusals", "Calls that the hook server refused, under either policy.", "hook_server hook"),
    _counter("hook_bad_fields", "Fields of answers with a value that no runtime accepts.", "hook_server field"),
    _counter(
        "values_normalised",
        "Values of answers that runtimes take in another form: a cpuset, a quota below the kernel's least, unlimited "
        "memory (-1) that a request spells 0.",
        "hook_server field",
    ),
    _counter(
        "hook_fields_changed", "Calls that the runtime agreed to with a change of this field.", "hook_server field"
    ),
    _counter("hook_conflicts", "Fields of this hook server that a later one set to another value.", "hook_server hook"),
    _gauge("hook_timeout_seconds", "How long a call to the hook server may take.", "hook_server"),
    _gauge("hook_breaker_open", "1 while the hook server is not asked since it failed too often.", "hook_server"),
    _counter("hook_breaker_openings", "Times that a breaker opened.", "hook_server"),
    _gauge(
        "hook_unreachable", "1 while no connection to the hook server can be made, or it answers none.", "hook_server"
    ),
    _gauge("hook_disabled", "1 while an operator has disabled the hook server.", "hook_server"),
    _gauge("plugins", "Registered plugins by the state of their breaker, or disabled.", "state"),
    # Registration files.
    _counter("config_reloads", "Changes of registration files by result: ok, removed, rejected.", "result"),
    _gauge("config_last_reload_timestamp_seconds", "Time of the last change that was not rejected, since 1970."),
    _gauge("config_invalid_files", "Registration files whose present content is rejected."),
    # Connections.
    _gauge("connections_open", "Clients' connections that are open now."),
    _counter("connections", "Clients' connections that were paired with one to the runtime."),
    _counter("connections_broken", "Connections closed since a peer broke the protocol.", "side kind"),
    _counter("connections_piped", "CRI clients that do not speak HTTP/2, piped to the runtime (CRI-O's HTTP/1.1)."),
    _counter("backend_dial_failures", "Times that the runtime could not be reached for a client."),
    _counter("image_dial_failures", "Times that the image endpoint could not be reached."),
    _counter("requests_ambiguous", "CRI requests without exactly one :path."),
    _counter("requests_refused", "Docker requests that the proxy answered as malformed or ambiguous."),
    _counter("http2_tunnels", "Docker clients that speak HTTP/2, past the hook servers."),
    _counter("updates_of_others", "Containers that were updated past the proxy (Docker)."),
    _gauge("draining", "1 while the proxy stops."),
    # What is known of the runtime.
    _gauge("store_pods", "Pods in the Store."),
    _gauge("store_containers", "Containers in the Store."),
    _counter("syncs", "Passes over the runtime's state: complete, failed.", "result"),
    _gauge("sync_seconds", "Length of the last complete pass that read."),
    _counter("records_read", "Records that were read from the runtime."),
    _counter("records_late", "Records that the runtime did not answer for in time."),
    _counter("records_unreadable", "Records that could not be read."),
    _counter("records_swept", "Records dropped since the runtime no longer has their subject."),
    _counter("backend_events", "dockerd's events that were followed.", "action"),
    _counter("backend_events_unreadable", "dockerd's events that could not be read."),
    _counter("backend_event_dial_failures", "Times that dockerd's events could not be followed."),
    _counter("backend_event_stream_losses", "Times that dockerd's stream of events ended."),
    _gauge("originals_kept", "Subjects in the file of the kubelet's own values."),
    _counter("originals_failures", "Failures to read or write that file.", "reason"),
    # The process.
    _histogram("loop_lag_seconds", "How late the event loop runs a timer; one sample a second."),
    _counter("loop_stalls", "Times that the event loop hung for more than 0.2 s."),
    _gauge("loop_stalled_seconds", "Length of the last such stall."),
    _counter("log_lines_dropped", "Log lines that stderr did not take."),
)

METRICS: dict[str, Metric] = {row.name: row for row in ROWS}
