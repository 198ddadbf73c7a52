"""Write the Grafana dashboards from tables of panels, or check that they are what would be written.

Run: ``python -m scripts.checks.dashboards [--check]``; scripts/gendashboards calls it.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.checks.generated import parser, write_or_compare

FOLDER = Path("deploy/grafana")
COLUMNS = 24
"""Width of a dashboard in Grafana's units."""
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: ``queries`` are expressions, each with the legend of its series. ``unit`` is one of Grafana's."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: ``sections`` are rows of panels by their titles; ``by_node`` adds the choice of a node."""

    uid: str
    title: str
    description: str
    sections: dict[str, tuple[Panel, ...]]
    by_node: bool = False


def _stat(title: str, unit: str, description: str, query: str, legend: str = "") -> Panel:
    return Panel(title, unit, description, ((query, legend),), "stat", 4)


def _lines(title: str, unit: str, description: str, *queries: tuple[str, str], width: int = 8) -> Panel:
    return Panel(title, unit, description, queries, width=width)


NODE = '{job="runtimeproxy", instance="$instance"}'


def _on(metric: str, matchers: str = "") -> str:
    """Return the selector of a metric of the chosen node."""
    return f"{metric}{NODE[:-1]}{f', {matchers}' if matchers else ''}}}"


def _rate(metric: str, matchers: str = "") -> str:
    return f"rate({_on(metric, matchers)}[$__rate_interval])"


def _quantile(quantile: str, metric: str, by: str = "", matchers: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({quantile}, sum by ({labels}) ({_rate(f'{metric}_bucket', matchers)}))"


NODE_SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Is it well": (
        _stat("Scraped", "bool_yes_no", "Whether proxy and exporter answered the last scrape.", _on("up")),
        _stat("Ready", "bool_yes_no", "What /readyz says.", _on("runtimeproxy_ready")),
        _stat("Draining", "bool_yes_no", "Whether the proxy is about to stop.", _on("runtimeproxy_draining")),
        _stat("Runs for", "s", "Time since the process started.", f"time() - {_on('process_start_time_seconds')}"),
        _stat(
            "Version",
            "none",
            "The proxy's version and mode.",
            _on("runtimeproxy_build_info"),
            "{{version}} {{runtime}}",
        ),
        _stat(
            "Invalid files",
            "none",
            "Registration files whose present content is rejected.",
            _on("runtimeproxy_config_invalid_files"),
        ),
    ),
    "Calls": (
        _lines(
            "Held calls",
            "ops",
            "Calls that were held, by what became of them.",
            (f"sum by (outcome) ({_rate('runtimeproxy_calls_total')})", "{{outcome}}"),
        ),
        _lines(
            "Held calls by operation",
            "ops",
            "Calls that were held, by the operation.",
            (f"sum by (operation) ({_rate('runtimeproxy_calls_total')})", "{{operation}}"),
        ),
        _lines(
            "Passing calls",
            "ops",
            "The ten most frequent methods of calls that pass.",
            (f"topk(10, sum by (method) ({_rate('runtimeproxy_calls_passed_total')}))", "{{method}}"),
        ),
        _lines(
            "Time of the proxy itself",
            "s",
            "What the proxy adds to a held call, beside hook servers and runtime.",
            (_quantile("0.5", "runtimeproxy_call_duration_seconds", matchers='part="own"'), "p50"),
            (_quantile("0.99", "runtimeproxy_call_duration_seconds", matchers='part="own"'), "p99"),
        ),
        _lines(
            "Time of held calls by part, p99",
            "s",
            "Where the time of held calls goes: own, turn, hooks, runtime, post.",
            (_quantile("0.99", "runtimeproxy_call_duration_seconds", "part"), "{{part}}"),
        ),
        _lines(
            "Held now",
            "none",
            "Calls that are held at this moment.",
            (_on("runtimeproxy_held_calls"), "calls"),
            width=4,
        ),
        _lines(
            "Oldest held",
            "s",
            "Age of the call that is held longest.",
            (_on("runtimeproxy_held_oldest_seconds"), "age"),
            width=4,
        ),
    ),
    "Hook servers": (
        _lines(
            "Hook calls",
            "ops",
            "Calls that hook servers were asked, by what came.",
            (f"sum by (hook_server, code) ({_rate('runtimeproxy_hook_calls_total')})", "{{hook_server}} {{code}}"),
        ),
        _lines(
            "Time of hook calls",
            "s",
            "How long hook servers take, and how long they may.",
            (_quantile("0.5", "runtimeproxy_hook_call_duration_seconds", "hook_server"), "{{hook_server}} p50"),
            (_quantile("0.99", "runtimeproxy_hook_call_duration_seconds", "hook_server"), "{{hook_server}} p99"),
            (_on("runtimeproxy_hook_timeout_seconds"), "{{hook_server}} timeout"),
        ),
        _lines(
            "Failures",
            "ops",
            "Failures of hook servers by reason, also those for which they were not asked.",
            (
                f"sum by (hook_server, reason) ({_rate('runtimeproxy_hook_failures_total')})",
                "{{hook_server}} {{reason}}",
            ),
        ),
        _lines(
            "What failures cost",
            "ops",
            "Calls that went on without the hook server (open), that were refused since it failed (closed), and that "
            "it refused itself.",
            (f"sum by (hook_server) ({_rate('runtimeproxy_hook_fail_open_total')})", "{{hook_server}} open"),
            (f"sum by (hook_server) ({_rate('runtimeproxy_hook_fail_closed_total')})", "{{hook_server}} closed"),
            (f"sum by (hook_server) ({_rate('runtimeproxy_hook_refusals_total')})", "{{hook_server}} refused"),
        ),
        _lines(
            "Fields changed",
            "ops",
            "Calls that the runtime agreed to with a change of a field, by field.",
            (
                f"sum by (hook_server, field) ({_rate('runtimeproxy_hook_fields_changed_total')})",
                "{{hook_server}} {{field}}",
            ),
        ),
        _lines(
            "Conflicts",
            "ops",
            "Fields that a later hook server set to another value, by the one that lost.",
            (f"sum by (hook_server) ({_rate('runtimeproxy_hook_conflicts_total')})", "{{hook_server}}"),
        ),
        _lines(
            "Not called",
            "bool",
            "1 while a hook server is not called: its breaker is open, it is unreachable, or somebody disabled it.",
            (_on("runtimeproxy_hook_breaker_open"), "{{hook_server}} breaker"),
            (_on("runtimeproxy_hook_unreachable"), "{{hook_server}} unreachable"),
            (_on("runtimeproxy_hook_disabled"), "{{hook_server}} disabled"),
        ),
        _lines(
            "Plugins",
            "none",
            "Registered plugins by the state of their breaker.",
            (_on("runtimeproxy_plugins"), "{{state}}"),
        ),
        _lines(
            "Changes of registration files",
            "ops",
            "Registration files that came, went, or were rejected.",
            (f"sum by (result) ({_rate('runtimeproxy_config_reloads_total')})", "{{result}}"),
        ),
    ),
    "Connections and the runtime": (
        _lines(
            "Connections",
            "none",
            "Clients' connections that are open.",
            (_on("runtimeproxy_connections_open"), "open"),
        ),
        _lines(
            "Connections that failed",
            "ops",
            "Times that the runtime could not be reached, and connections closed since a peer broke the protocol.",
            (_rate("runtimeproxy_backend_dial_failures_total"), "runtime away"),
            (f"sum({_rate('runtimeproxy_connections_broken_total')}) or vector(0)", "broken"),
        ),
        _lines(
            "Store",
            "none",
            "Pods and containers that the proxy knows.",
            (_on("runtimeproxy_store_pods"), "pods"),
            (_on("runtimeproxy_store_containers"), "containers"),
        ),
    ),
    "The process": (
        _lines("Processor", "percentunit", "Share of one processor.", (_rate("process_cpu_seconds_total"), "cpu")),
        _lines(
            "Memory",
            "bytes",
            "Resident memory.",
            (_on("process_resident_memory_bytes"), "resident"),
        ),
        _lines(
            "Open files",
            "none",
            "Open files, and how many there may be.",
            (_on("process_open_fds"), "open"),
            (_on("process_max_fds"), "limit"),
        ),
        _lines(
            "Event loop late, p99",
            "s",
            "How late the event loop runs a timer.",
            (_quantile("0.99", "runtimeproxy_loop_lag_seconds"), "p99"),
        ),
        _lines(
            "Stalls and lost log lines",
            "none",
            "In five minutes: times that the event loop hung for more than 0.2 s, log lines that stderr did not take, "
            "and errors in the proxy itself.",
            (f"increase({_on('runtimeproxy_loop_stalls_total')}[5m])", "stalls"),
            (f"increase({_on('runtimeproxy_log_lines_dropped_total')}[5m])", "log lines"),
            (f"sum(increase({_on('runtimeproxy_internal_errors_total')}[5m])) or vector(0)", "internal errors"),
        ),
        _lines(
            "Syncs",
            "ops",
            "Passes over the runtime's state, complete and failed.",
            (f"sum by (result) ({_rate('runtimeproxy_syncs_total')})", "{{result}}"),
        ),
    ),
}

FLEET_SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Nodes": (
        _stat("Nodes", "none", "Nodes that are scraped.", "fleet:up:count"),
        _stat("Down", "none", "Nodes whose proxy or exporter does not answer.", "fleet:up:count - fleet:up:sum"),
        _stat(
            "Not ready",
            "none",
            "Nodes whose proxy runs and is not ready.",
            "sum(version:runtimeproxy_build_info:count) - sum(version:runtimeproxy_ready:sum)",
        ),
        _stat(
            "Runtime away",
            "none",
            "Nodes whose proxy could not reach the runtime within five minutes.",
            "fleet:runtimeproxy_backend_dial_failures:nodes",
        ),
        _stat(
            "Invalid files",
            "none",
            "Registration files that are rejected.",
            "fleet:runtimeproxy_config_invalid_files:sum",
        ),
        _stat("Open files", "percentunit", "The node with most of its limit.", "fleet:process_open_fds:ratio_max"),
        _lines(
            "Versions",
            "none",
            "Nodes by the proxy's version and mode.",
            ("version:runtimeproxy_build_info:count", "{{version}} {{runtime}}"),
        ),
        _lines(
            "Restarts",
            "none",
            "Restarts of the proxy within an hour, by version.",
            ("version:process_start_time_seconds:changes1h", "{{version}}"),
        ),
        _lines(
            "Stalls and lost log lines",
            "none",
            "Within an hour, of all nodes: times that an event loop hung for more than 0.2 s, and log lines lost.",
            ("fleet:runtimeproxy_loop_stalls:increase1h", "stalls"),
            ("fleet:runtimeproxy_log_lines_dropped:increase1h", "log lines"),
        ),
    ),
    "Hook servers": (
        _lines(
            "Nodes on which it fails",
            "percentunit",
            "Share of the nodes of a hook server on which it failed within ten minutes.",
            ("hook_server:runtimeproxy_hook_failing_nodes:ratio10m", "{{hook_server}}"),
        ),
        _lines(
            "Registered",
            "none",
            "Nodes on which a hook server is registered.",
            ("hook_server:runtimeproxy_hook_timeout_seconds:count", "{{hook_server}}"),
        ),
        _lines(
            "Not called",
            "none",
            "Nodes on which a hook server is not called: its breaker is open, it is unreachable, or it is disabled.",
            ("hook_server:runtimeproxy_hook_breaker_open:sum", "{{hook_server}} breaker"),
            ("hook_server:runtimeproxy_hook_unreachable:sum", "{{hook_server}} unreachable"),
            ("hook_server:runtimeproxy_hook_disabled:sum", "{{hook_server}} disabled"),
        ),
        _lines(
            "Hook calls by version",
            "ops",
            "Calls that hook servers were asked, by the proxy's version.",
            ("hook_server_version:runtimeproxy_hook_calls:rate5m", "{{hook_server}} {{version}}"),
        ),
        _lines(
            "Failures by version",
            "ops",
            "Failures of hook servers, by the proxy's version.",
            ("hook_server_version:runtimeproxy_hook_failures:rate5m", "{{hook_server}} {{version}}"),
        ),
        _lines(
            "Failures by reason",
            "ops",
            "Failures of hook servers, by reason.",
            ("hook_server_reason:runtimeproxy_hook_failures:rate5m", "{{hook_server}} {{reason}}"),
        ),
        _lines(
            "Failed open by version",
            "ops",
            "Failures that a call went on without: pods run without what the hook server would have set.",
            ("hook_server_version:runtimeproxy_hook_fail_open:rate5m", "{{hook_server}} {{version}}"),
        ),
        _lines(
            "Refused by policy by version",
            "ops",
            "Calls that were refused since the hook server failed.",
            ("hook_server_version:runtimeproxy_hook_fail_closed:rate5m", "{{hook_server}} {{version}}"),
        ),
        _lines(
            "Refusals and conflicts",
            "ops",
            "Calls that the hook server refused itself, and fields that a later hook server overwrote.",
            ("hook_server:runtimeproxy_hook_refusals:rate5m", "{{hook_server}} refused"),
            ("hook_server:runtimeproxy_hook_conflicts:rate5m", "{{hook_server}} lost"),
        ),
        _lines(
            "Time of hook calls by version",
            "s",
            "How long hook servers take, and the shortest timeout that one has.",
            ("hook_server_version:runtimeproxy_hook_call_duration_seconds:p50_5m", "{{hook_server}} {{version}} p50"),
            ("hook_server_version:runtimeproxy_hook_call_duration_seconds:p99_5m", "{{hook_server}} {{version}} p99"),
            ("hook_server:runtimeproxy_hook_timeout_seconds:min", "{{hook_server}} timeout"),
            width=24,
        ),
    ),
    "Calls": (
        _lines(
            "Held calls by version",
            "ops",
            "Calls that were held, by what became of them and the proxy's version.",
            ("version_outcome:runtimeproxy_calls:rate5m", "{{version}} {{outcome}}"),
        ),
        _lines(
            "Held calls by operation",
            "ops",
            "Calls that were held, by the operation.",
            ("operation:runtimeproxy_calls:rate5m", "{{operation}}"),
        ),
        _lines(
            "Passing calls",
            "ops",
            "Calls that passed.",
            ("fleet:runtimeproxy_calls_passed:rate5m", "passed"),
        ),
        _lines(
            "Time of the proxy itself by version",
            "s",
            "What the proxy adds to a held call, beside hook servers and runtime.",
            ("version:runtimeproxy_call_own_seconds:p50_5m", "{{version}} p50"),
            ("version:runtimeproxy_call_own_seconds:p99_5m", "{{version}} p99"),
        ),
        _lines(
            "Time of held calls by part, p99",
            "s",
            "Where the time of held calls goes: own, turn, hooks, runtime, post.",
            ("part:runtimeproxy_call_duration_seconds:p99_5m", "{{part}}"),
        ),
        _lines(
            "Held now",
            "none",
            "Calls that are held at this moment.",
            ("fleet:runtimeproxy_held_calls:sum", "calls"),
            width=4,
        ),
        _lines(
            "Oldest held",
            "s",
            "Age of the call that is held longest.",
            ("fleet:runtimeproxy_held_oldest_seconds:max", "age"),
            width=4,
        ),
        _lines(
            "Store",
            "none",
            "Pods and containers that the proxies know.",
            ("fleet:runtimeproxy_store_pods:sum", "pods"),
            ("fleet:runtimeproxy_store_containers:sum", "containers"),
            width=24,
        ),
    ),
}

DASHBOARDS = {
    "node.json": Dashboard(
        "runtimeproxy-node",
        "runtimeproxy: a node",
        "What one proxy does. docs/metrics.rst explains the metrics, docs/troubleshooting.rst the alerts.",
        NODE_SECTIONS,
        by_node=True,
    ),
    "fleet.json": Dashboard(
        "runtimeproxy-fleet",
        "runtimeproxy: the fleet",
        "All proxies by hook server and version, from deploy/prometheus/recording-rules.yaml.",
        FLEET_SECTIONS,
    ),
}


def main() -> int:
    """Write the dashboards, or with ``--check`` compare them; return the exit code."""
    command = "scripts/gendashboards"
    check = parser(command, "Write the dashboards from the tables.").parse_args().check
    wanted = {FOLDER / name: text(dashboard) for name, dashboard in DASHBOARDS.items()}
    return write_or_compare(command, wanted, check=check)


def text(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    return json.dumps(_dashboard(dashboard), indent=2) + "\n"


def _dashboard(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["runtimeproxy"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables(dashboard.by_node))},
        "panels": list(_panels(dashboard.sections)),
    }


def _variables(by_node: bool) -> Iterator[Json]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    if by_node:
        query = 'label_values(up{job="runtimeproxy"}, instance)'
        yield {
            "name": "instance",
            "label": "Node",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": "instance"},
            "definition": query,
            "refresh": 2,
            "sort": 1,
        }


def _panels(sections: dict[str, tuple[Panel, ...]]) -> Iterator[Json]:
    number, top = 0, 0
    for title, panels in sections.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": _place(0, top, COLUMNS, 1), "panels": []}
        left, top = 0, top + 1
        for panel in panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + HEIGHT
            number += 1
            yield _panel(panel, number, _place(left, top, panel.width, HEIGHT))
            left += panel.width
        top += HEIGHT


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto"}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        mode = "name" if panel.queries[0][1] else "value"
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": mode, "colorMode": "value"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


if __name__ == "__main__":
    sys.exit(main())
