"""The gates of a roll-out: what must be so in a pool before the next one is begun.

Owns the pools, how long each is watched, and the queries of docs/fleets.rst.
Must not know: who rolls out.
Invariant: a query names only metrics of the table, of the recording rules, and Prometheus' own; with a pool that is
well it has no data.
"""

from collections.abc import Iterator
from typing import NamedTuple

NEW, OLD, POOL = "NEW", "OLD", 'instance=~"POOL"'
"""What whoever asks replaces in a query: versions, and an expression for the pool's nodes."""


class Gate(NamedTuple):
    """What must be so, and a query that tells where it is not."""

    what: str
    query: str


POOLS = (
    ("one node", "1 hour"),
    ("1 % of the nodes", "4 hours"),
    ("10 %", "1 day"),
    ("half", "1 day"),
    ("all", "1 day"),
)
"""Each with how long it is watched: a node makes all kinds of calls within an hour, and a day has all kinds of load."""
NAME = f'hook_server="NAME", {POOL}'


def grown(series: str) -> str:
    """Return the query for what has grown in an hour; ``increase`` alone does not see the first event, which makes the
    series."""
    return f"(increase({series}[1h]) > 0) or ({series} unless {series} offset 1h)"


def share(version: str) -> str:
    """Return the query for the share of calls that do not end well with a version; 0 if all do."""
    calls = "version_outcome:runtimeproxy_calls:rate5m"
    bad, all_ = f'{calls}{{version="{version}", outcome!="agreed"}}', f'{calls}{{version="{version}"}}'
    return f"(sum({bad}) or vector(0)) / sum({all_})"


def failed(offset: str = "") -> str:
    """Return the query for the calls a second that the runtime fails; 0 if there are none."""
    return f'(sum(rate(runtimeproxy_calls_total{{outcome="failed", {POOL}}}[1h]{offset})) or vector(0))'


OF_PROXY = (
    Gate("each node has the new version", f'runtimeproxy_build_info{{version!="{NEW}", {POOL}}}'),
    Gate("each node is scraped", f'up{{job="runtimeproxy", {POOL}}} == 0'),
    Gate("each proxy is ready", f"runtimeproxy_ready{{{POOL}}} == 0"),
    Gate(
        "none started more than once in the last hour",
        f'changes(process_start_time_seconds{{job="runtimeproxy", {POOL}}}[1h]) > 1',
    ),
    Gate("no error of the proxy's own", grown(f"runtimeproxy_internal_errors_total{{{POOL}}}")),
    Gate(
        "its own time (p99) is below 5 ms",
        f'version:runtimeproxy_call_own_seconds:p99_5m{{version="{NEW}"}} > 0.005',
    ),
    Gate(
        "no larger share of calls ends badly than with the old version (0.1 % apart)",
        f"{share(NEW)} - {share(OLD)} > 0.001",
    ),
    Gate(
        "no critical alert", f'ALERTS{{alertname=~"RuntimeProxy.*", severity="critical", alertstate="firing", {POOL}}}'
    ),
)
OF_HOOK_SERVER = (
    Gate(
        "each node has registered it",
        f"runtimeproxy_ready{{{POOL}}} unless on (instance) runtimeproxy_hook_timeout_seconds{{{NAME}}}",
    ),
    Gate("no failure", grown(f"runtimeproxy_hook_failures_total{{{NAME}}}")),
    Gate("no refusal that is not wanted", grown(f"runtimeproxy_hook_refusals_total{{{NAME}}}")),
    Gate("no breaker is open", f"runtimeproxy_hook_breaker_open{{{NAME}}} == 1"),
    Gate(
        "its answers take less than half of its timeout (p99)",
        f"histogram_quantile(0.99, sum by (instance, le) (rate(runtimeproxy_hook_call_duration_seconds_bucket{{{NAME}}}"
        f"[10m]))) > on (instance) 0.5 * runtimeproxy_hook_timeout_seconds{{{NAME}}}",
    ),
    Gate(
        "the runtime fails no more calls than it did a day ago (0.1 a second apart)",
        f"{failed()} - {failed(' offset 1d')} > 0.1",
    ),
    Gate(
        "it sets no field that it did not set a day ago",
        f"count by (field) (runtimeproxy_hook_fields_changed_total{{{NAME}}}) "
        f"unless count by (field) (runtimeproxy_hook_fields_changed_total{{{NAME}}} offset 1d)",
    ),
)


def rows(gates: tuple[Gate, ...]) -> Iterator[list[str]]:
    """Yield the rows of a table of gates."""
    for gate in gates:
        yield [gate.what, f"``{gate.query}``"]
