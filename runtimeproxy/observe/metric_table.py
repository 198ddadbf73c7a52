"""Histograms, and the table of metrics, with a row per metric for counting, output and docs/metrics.rst.

Invariant: a label is a name from a table (operations, hook points, reasons, fields) or a hook server's name. No label
is a pod's, namespace's, image's or container's, and none is a value of a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""The buckets of all histograms: the proxy's own time is in the first, hook servers and runtimes in the last."""


@dataclass(slots=True, eq=False)
class Histogram:
    """The observations of one series: ``counts`` by bucket, the last one for those above all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0


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
HOOK_SERVERS, HOOK_SERVER_SERIES, OTHER_LABEL = 32, 1_200, "other"
"""Limits of hook servers' names in labels, and of their counters, for the life of a process. Further ones are counted
under OTHER_LABEL."""


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Key = tuple[str, tuple[str, ...]]
"""A series: the metric's name, and the values of the labels that call sites give, in the table's order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row; ``name`` is what the call sites use."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[float, ...]:
        return SECONDS if self.kind is Kind.HISTOGRAM else ()

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


_TABLE = """
gauge build_info version python runtime: 1, with the versions as labels.
gauge ready: 1 if calls are served as they should be: the state of /readyz at the last check.
# Held calls.
counter calls runtime operation outcome: Held calls by their end. The runtime agreed or failed, or did not answer
    (unsettled). The proxy refused the call, or the client left while it was held (ended).
histogram call_duration_seconds runtime operation part: Time of held calls by part. Parts are the proxy's own time,
    its turn (the wait for an earlier call of the same pod or container), the Pre hooks, the runtime, and the Post
    hooks. Each call has the part own; the others only if the call had them.
counter calls_unreadable operation: Held messages that could not be read.
counter fields_left_out operation field: Fields that hook servers set and the request cannot carry.
gauge held_calls: Calls that are held now.
gauge held_oldest_seconds: Age of the call that is held longest.
counter unknown_outcomes operation result: Starts, stops and removes without an answer that were settled: agreed,
    failed, repeated by the client, or given up.
counter internal_errors operation: Errors in the proxy itself.
counter calls_passed runtime method: Calls that passed, counted at the request's head: by the method's name, other for
    one that is not known.
# Hook servers.
counter hook_calls hook_server hook code: Calls of hook servers by result: ok, the reason of the failure, or
    left. The result is left if the held call ended before the answer.
# By server alone: by hook point as well it would be seven times the series, at the worst 2,800.
histogram hook_call_duration_seconds hook_server: Time of the calls of hook servers.
counter hook_failures hook_server hook reason: Failures by reason, also those for which the hook server was not called.
counter hook_fail_open hook_server hook reason: Failures after which a call continued without the hook server.
counter hook_fail_closed hook_server hook reason: Failures for which a call was refused: the policy is Fail.
counter hook_refusals hook_server hook: Calls that the hook server refused, under either policy.
counter hook_bad_fields hook_server field: Fields of answers with a value that no runtime accepts.
counter values_normalised hook_server field: Values of answers that were converted for the runtime. These are a
    cpuset, a quota below the kernel's minimum, and unlimited memory (-1 is sent as 0).
counter hook_fields_changed hook_server field: Calls that the runtime agreed to with a change of this field.
counter hook_conflicts hook_server hook: Fields of this hook server that a later one set to another value.
gauge hook_timeout_seconds hook_server: How long a call to the hook server may take.
gauge hook_breaker_open hook_server: 1 while calls to the hook server are suspended, as it failed too often.
counter hook_breaker_openings hook_server: Times that a breaker opened.
gauge hook_unreachable hook_server: 1 while no connection to the hook server can be made, or it answers none.
gauge hook_disabled hook_server: 1 while an operator has disabled the hook server.
gauge plugins state: Registered plugins by the state of their breaker, or disabled.
# Registration files.
counter config_reloads result: Changes of registration files by result: ok, removed, rejected.
gauge config_last_reload_timestamp_seconds: Time of the last change that was not rejected, since 1970.
gauge config_invalid_files: Registration files whose present content is rejected.
# Connections.
gauge connections_open: Clients' connections that are open now.
counter connections: Clients' connections that were paired with one to the runtime.
counter connections_broken side kind: Connections closed since a peer broke the protocol.
counter connections_piped: CRI clients that do not speak HTTP/2, piped to the runtime (CRI-O's HTTP/1.1).
counter backend_dial_failures: Times that the runtime could not be reached for a client.
counter image_dial_failures: Times that the image endpoint could not be reached.
counter requests_ambiguous: CRI requests without exactly one :path.
counter requests_refused: Docker requests that the proxy answered as malformed or ambiguous.
counter http2_tunnels: Docker clients that speak HTTP/2, past the hook servers.
counter updates_of_others: Containers that were updated past the proxy (Docker).
gauge draining: 1 while the proxy stops.
# What is known of the runtime.
gauge store_pods: Pods in the Store.
gauge store_containers: Containers in the Store.
counter syncs result: Passes over the runtime's state: complete, failed.
gauge sync_seconds: Length of the last complete pass that read.
counter records_read: Records that were read from the runtime.
counter records_late: Records that the runtime did not answer for in time.
counter records_unreadable: Records that could not be read.
counter records_swept: Records dropped since the runtime no longer has their subject.
counter backend_events action: dockerd's events that were followed.
counter backend_events_unreadable: dockerd's events that could not be read.
counter backend_event_dial_failures: Times that dockerd's events could not be followed.
counter backend_event_stream_losses: Times that dockerd's stream of events ended.
gauge originals_kept: Subjects in the file of the kubelet's own values.
counter originals_failures reason: Failures to read or write that file.
# The process.
histogram loop_lag_seconds: How late the event loop runs a timer; one sample a second.
counter loop_stalls: Times that the event loop hung for more than 0.2 s.
gauge loop_stalled_seconds: Length of the last such stall.
counter log_lines_dropped: Log lines that stderr did not take.
"""
"""A metric's kind, name and labels, and the help; an indented line continues the one before."""


def _row(line: str) -> Metric:
    head, help = line.split(": ", 1)
    kind, name, *labels = head.split()
    return Metric(name, Kind(kind), help, tuple(labels))


ROWS = tuple(_row(line) for line in _TABLE.replace("\n    ", " ").splitlines() if line and not line.startswith("#"))
METRICS: dict[str, Metric] = {row.name: row for row in ROWS}
