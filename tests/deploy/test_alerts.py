"""The rules under promtool: each alert fires on its condition, and not just before; a fleet has few series.

The gates of docs/fleets.rst pass a healthy pool, and fail a faulty one.
"""

import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.errors import Reason
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import METRICS, Kind, Metric
from tests.deploy.files import ALERTS, GROUPS, RECORDED, RULES, metrics, queries, selectors, table_name
from tests.docs import DOCS

Series = dict[str, str]
"""Values in promtool's notation, by the series without the labels of the node."""


def promtool(folder: Path, tests: list[dict[str, Any]], step: str, **rules: Any) -> None:
    """Run tests by promtool, which scripts/install provides."""
    (folder / "test.yaml").write_text(yaml.safe_dump({"evaluation_interval": step, "tests": tests} | rules))
    ended = subprocess.run(["promtool", "test", "rules", folder / "test.yaml"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def case(series: list[tuple[str, str]], step: str, at: str, counts: dict[str, int]) -> dict[str, Any]:
    """Return a test that counts the results of some queries."""
    queries = [
        {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}] if count else []}
        for query, count in counts.items()
    ]
    given = [{"series": name, "values": values} for name, values in series]
    return {"interval": step, "input_series": given, "promql_expr_test": queries}


def judge(folder: Path, series: list[tuple[str, str]], minute: int, counts: dict[str, int]) -> None:
    """Check the number of results of queries after the rules."""
    step, order = "10m" if minute > 60 else "1m", [group["name"] for group in GROUPS]
    tests = [case(series, step, f"{minute}m", counts)]
    promtool(folder, tests, step, rule_files=[str(path) for path in RULES], group_eval_order=order)


def firing(alert: str) -> str:
    return f'count(ALERTS{{alertname="RuntimeProxy{alert}", alertstate="firing"}})'


def on(node: int, series: Series) -> list[tuple[str, str]]:
    """Return the series of one node, as promtool reads them."""
    starts = {name: f"{name[:-1]}, " if name.endswith("}") else f"{name}{{" for name in series}
    return [(f'{starts[name]}job="runtimeproxy", instance="n{node}"}}', values) for name, values in series.items()]


def buckets(name: str, below: str, *bounds: str) -> Series:
    """Return a histogram with two bounds: ``below`` values of a hundred are within the first one."""
    rows = zip((*bounds, "+Inf"), (below, "100", "100"), strict=True)
    return {f'runtimeproxy_{name}, le="{bound}"}}': f"0+{number}x40" for bound, number in rows}


OWN = 'call_duration_seconds_bucket{runtime="docker", operation="CreateContainer", part="own"'
HOOK = 'hook_call_duration_seconds_bucket{hook_server="gpu"'
FAILED = 'hook_server="gpu", hook="PreCreateContainer", reason="deadline"'
OPEN, CLOSED = (f"runtimeproxy_hook_fail_{policy}_total{{{FAILED}}}" for policy in ("open", "closed"))
CONFLICTS = 'runtimeproxy_hook_conflicts_total{hook_server="gpu", hook="PreCreateContainer"}'
TIMEOUT, BREAKER, UNREACHABLE, DISABLED = (
    f'runtimeproxy_hook_{name}{{hook_server="gpu"}}'
    for name in ("timeout_seconds", "breaker_open", "unreachable", "disabled")
)
DIALS, STALLS = "runtimeproxy_backend_dial_failures_total", "runtimeproxy_loop_stalls_total"
LOG_LINES, STARTED = "runtimeproxy_log_lines_dropped_total", "process_start_time_seconds"
FILES, HELD = "runtimeproxy_config_invalid_files", "runtimeproxy_held_oldest_seconds"
OPEN_FILES, FILE_LIMIT, READY = "process_open_fds", "process_max_fds", "runtimeproxy_ready"

CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "Down": ("up", ["5: 1 1 0x8"], ["5: 1x3 0x8"]),
    "NotReady": (READY, ["5: 1 1 0x8"], ["5: 1x3 0x8"]),
    "RuntimeAway": (DIALS, ["10: 0+2x20"], ["5: 0 0 9x20"]),
    "RestartLoop": (STARTED, ["10: 1 1 2 3 4x20"], ["10: 1 1 2 3x20", "25: 1 1 2 3 4x30"]),
    "Stalls": (STALLS, ["8: 0 1 2 3 4x20"], ["8: 0 0 1 2x20"]),
    "CallHeldLong": (HELD, ["2: 0 5 31"], ["2: 0 5 30"]),
    "LogLinesDropped": (LOG_LINES, ["8: 0x5 3x20"], ["30: 0x5 3x40"]),
    "InvalidFile": (FILES, ["10: 0 0 1x20"], ["6: 0 0 1x20"]),
    "FailingOpen": (OPEN, ["20: _x15 1x20", "20: 7x15 8x20", "20: 7x15 1x20"], ["20: 7x30"]),
    "RefusedByPolicy": (CLOSED, ["20: _x15 1x20", "20: 7x15 8x20"], ["20: 7x30"]),
    "BreakerOpen": (BREAKER, ["5: 0 0 0 1 0x20"], ["20: 0 0 0 1 0x20"]),
    "HookUnreachable": (UNREACHABLE, ["8: 0 0 1x20"], ["8: 1x5 0 1x20"]),
    "Conflict": (CONFLICTS, ["20: _x15 1x20", "20: 7x15 8x20"], ["20: 7x30"]),
    "PluginDisabled": (DISABLED, ["1500: 1x200"], ["1380: 1x200", "1500: 1x100 0 1x200"]),  # for 25 and for 23 hours
}
"""The alerts (without RuntimeProxy) of one series of one node: values at which each fires, and not, by the minute."""
ROWS: list[tuple[str, int, Series, bool]] = [
    ("FailingOpen", 20, {CLOSED: "_x15 1x20"}, False),
    ("OwnTimeHigh", 30, buckets(OWN, "98", "0.005", "0.02"), True),
    ("OwnTimeHigh", 30, buckets(OWN, "100", "0.005", "0.02"), False),
    ("OwnTimeHigh", 30, buckets(OWN.replace("own", "turn"), "0", "0.005", "0.02"), False),
    ("DescriptorsShort", 10, {OPEN_FILES: "81x20", FILE_LIMIT: "100x20"}, True),
    ("DescriptorsShort", 10, {OPEN_FILES: "80x20", FILE_LIMIT: "100x20"}, False),
    ("HookSlow", 30, {**buckets(HOOK, "90", "0.5", "2.0"), TIMEOUT: "2x40"}, True),
    ("HookSlow", 30, {**buckets(HOOK, "100", "0.5", "2.0"), TIMEOUT: "2x40"}, False),
    ("HookSlow", 30, {**buckets(HOOK, "90", "0.5", "2.0"), TIMEOUT: "10x40"}, False),
]
ROWS += [
    (alert, int(minute), {metric: values}, fires)
    for alert, (metric, *both) in CASES.items()
    for fires, cases in zip((True, False), both, strict=True)
    for minute, _, values in (each.partition(": ") for each in cases)
]


@pytest.mark.engine
@pytest.mark.parametrize(("alert", "minute", "series", "fires"), ROWS)
def test_alert_fires_only_on_condition(tmp_path: Path, alert: str, minute: int, series: Series, fires: bool) -> None:
    judge(tmp_path, on(0, series), minute, {firing(alert): int(fires)})


@pytest.mark.engine
@pytest.mark.parametrize(("failing", "fires"), [(3, True), (2, False)])
def test_hook_server_failing_on_many_nodes_fires_alert(tmp_path: Path, failing: int, fires: bool) -> None:
    """Of 40 nodes: 5 % is not more than 5 %."""
    series = [entry for node in range(40) for entry in on(node, {TIMEOUT: "2x40"})]
    for node in range(failing):
        series += on(node, {f"runtimeproxy_hook_failures_total{{{FAILED}}}": "_x5 1+1x40"})
    judge(tmp_path, series, 15, {firing("HookServerFailingWidely"): int(fires)})


@pytest.mark.engine
@pytest.mark.parametrize(("versions", "hours", "fires"), [(3, 25, True), (3, 23, False), (2, 25, False)])
def test_many_versions_fire_alert(tmp_path: Path, versions: int, hours: int, fires: bool) -> None:
    build = 'runtimeproxy_build_info{{version="1.{}", python="3.11", runtime="{}"}}'
    nodes = enumerate(product(range(versions), ("docker", "containerd")))
    series = [entry for node, (version, mode) in nodes for entry in on(node, {build.format(version, mode): "1x200"})]
    judge(tmp_path, series, hours * 60, {firing("ManyVersions"): int(fires)})


def test_every_alert_has_firing_and_silent_case() -> None:
    firing, silent = ({f"RuntimeProxy{row[0]}" for row in ROWS if row[3] is fires} for fires in (True, False))
    assert firing == silent == ALERTS.keys() - {"RuntimeProxyHookServerFailingWidely", "RuntimeProxyManyVersions"}


VALUES = {
    "hook_server": ["gpu", "cpuset", "koordlet"],
    "operation": [operation.value for operation in Operation],
    "outcome": ["agreed", "failed", "unsettled", "refused", "ended"],
    "part": ["own", "turn", "hooks", "runtime", "post"],
    "reason": [reason.value for reason in Reason],
    "python": ["3.11"],
    "le": ["0.1", "+Inf"],
}
"""The values of labels; others have two."""


def series_of(row: Metric, node: int) -> list[tuple[str, str]]:
    """Return all series that a node may have of a metric."""
    label_values = VALUES | {"version": [f"1.{node % 3}"], "runtime": [("docker", "containerd")[node // 3 % 2]]}
    suffix, le = ("_bucket", ("le",)) if row.kind is Kind.HISTOGRAM else ("", ())
    labels = [[f'{name}="{value}"' for value in label_values.get(name, ["a", "b"])] for name in (*row.labels, *le)]
    names = [f"{row.shown}{suffix}{{{', '.join(pairs)}}}" if pairs else row.shown for pairs in product(*labels)]
    return on(node, dict.fromkeys(names, "0+1x12"))


@pytest.mark.engine
@pytest.mark.parametrize("nodes", [6, 12])
def test_fleet_has_at_most_200_series_and_every_query_data(tmp_path: Path, nodes: int) -> None:
    """Three hook servers, three versions, both modes, and every failure on every node.

    An alert, which has no data unless it fires, is replaced by its selectors.
    """
    series = [entry for node in range(nodes) for row in METRICS.values() for entry in series_of(row, node)]
    process = ["up", STARTED, OPEN_FILES, FILE_LIMIT, "process_cpu_seconds_total", "process_resident_memory_bytes"]
    series += [entry for node in range(nodes) for entry in on(node, dict.fromkeys(process, "1+1x12"))]
    every = ['((150 < count({__name__=~".+:.+"})) <= 200) * 0 + 1']
    for place, query in queries():
        for each in selectors(query) if place in ALERTS else [query]:
            every.append(f"count({each.replace('$__rate_interval', '5m').replace('$instance', 'n0')}) * 0 + 1")
    judge(tmp_path, series, 11, dict.fromkeys(every, 1))


# ---- the gates

GATES = re.findall(r"^   [^|\n]+ \| ``(.+)``$", DOCS["fleets"].partition("\nRoll back\n")[0], re.MULTILINE)
"""The queries of the page."""
NODE = 'job="runtimeproxy", instance="n1"'
SERVER = f'{NODE}, hook_server="cpuset"'
CALLS, OWN_TIME = "version_outcome:runtimeproxy_calls:rate5m", "version:runtimeproxy_call_own_seconds:p99_5m"
DURATION = "runtimeproxy_hook_call_duration_seconds_bucket"
STEADY = "1+0x320"
"""Five minutes each: longer than the day that gates look back."""
FIRST = "_x316 1+0x4"
"""A counter with labels appears with its first event."""
WELL = {
    **dict.fromkeys((f'runtimeproxy_build_info{{{NODE}, version="2"}}', f"up{{{NODE}}}", f"{READY}{{{NODE}}}"), STEADY),
    f"process_start_time_seconds{{{NODE}}}": "3+0x300 4+0x20",
    **{f'{CALLS}{{version="{version}", outcome="agreed"}}': "5+0x320" for version in (1, 2)},
    f'{OWN_TIME}{{version="2"}}': "0.001+0x320",
    f"runtimeproxy_hook_timeout_seconds{{{SERVER}}}": "2+0x320",
    f"runtimeproxy_hook_breaker_open{{{SERVER}}}": "0+0x320",
    f'runtimeproxy_hook_failures_total{{{SERVER}, reason="deadline"}}': "7+0x320",
    f'runtimeproxy_hook_fields_changed_total{{{SERVER}, field="envs"}}': "0+5x320",
    **{f'{DURATION}{{{SERVER}, le="{bound}"}}': "0+5x320" for bound in ("0.1", "10", "+Inf")},
}
BAD: list[tuple[str, str]] = [
    (f'runtimeproxy_build_info{{{NODE}, version="1"}}', STEADY),
    (f"up{{{NODE}}}", "0+0x320"),
    (f"{READY}{{{NODE}}}", "0+0x320"),
    (f"process_start_time_seconds{{{NODE}}}", "3+0x314 4 5+0x6"),
    (f'runtimeproxy_internal_errors_total{{{NODE}, operation="x"}}', FIRST),
    (f'{OWN_TIME}{{version="2"}}', "0.02+0x320"),
    (f'{CALLS}{{version="2", outcome="refused"}}', "0.1+0x320"),
    (f'ALERTS{{{NODE}, alertname="RuntimeProxyDown", severity="critical", alertstate="firing"}}', STEADY),
    (f"runtimeproxy_hook_timeout_seconds{{{SERVER}}}", "_x320"),
    (f'runtimeproxy_hook_failures_total{{{SERVER}, reason="unreachable"}}', FIRST),
    (f'runtimeproxy_hook_refusals_total{{{SERVER}, hook="x"}}', FIRST),
    (f"runtimeproxy_hook_breaker_open{{{SERVER}}}", STEADY),
    (f'{DURATION}{{{SERVER}, le="0.1"}}', "0+0x320"),
    (f'runtimeproxy_calls_total{{{NODE}, outcome="failed", operation="x"}}', "_x280 0+150x40"),
    (f'runtimeproxy_hook_fields_changed_total{{{SERVER}, field="labels"}}', FIRST),
]
"""The series by which each gate, in the page's order, must fail; they replace or extend the healthy ones."""


@pytest.mark.parametrize("query", GATES)
def test_gate_queries_metrics_that_exist(query: str) -> None:
    metric_names = {row.shown for row in METRICS.values()} | RECORDED.keys() | {"up", "ALERTS", STARTED}
    assert metrics(query)
    assert {table_name(name) for name in metrics(query)} <= metric_names


@pytest.mark.engine
@pytest.mark.slow
def test_gates_pass_healthy_pool_and_fail_on_faults(tmp_path: Path) -> None:
    every = [f"count({query})" for query in GATES]
    for text, value in {"POOL": "n.*", '"NEW"': '"2"', '"OLD"': '"1"', '"NAME"': '"cpuset"'}.items():
        every = [query.replace(text, value) for query in every]
    tests = [case([*WELL.items()], "5m", "1595m", dict.fromkeys(every, 0))]
    for query, (series, values) in zip(every, BAD, strict=True):
        tests.append(case([*(WELL | {series: values}).items()], "5m", "1595m", {query: 1}))
    promtool(tmp_path, tests, "5m")
