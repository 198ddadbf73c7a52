"""The rules under promtool: each alert fires when it should, and does not just before; a fleet stays in few series."""

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.errors import Reason
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import METRICS, Kind, Metric
from tests.deploy.files import ALERTS, GROUPS, RULES

pytestmark = pytest.mark.engine

Series = dict[str, str]
"""Values in promtool's notation, by the series without the labels of the node; n{at} is the node's number."""


def promtool(*arguments: str) -> str:
    """Run promtool, which scripts/install provides; return what it says."""
    ended = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_rules_are_well_formed() -> None:
    assert promtool("check", "rules", *map(str, RULES)).count("SUCCESS") == len(RULES)


def on(node: int, series: Series) -> list[dict[str, str]]:
    """Return the series of one node, as promtool reads them."""
    at = f'job="runtimeproxy", instance="n{node}"'
    return [
        {"series": f"{name.removesuffix('}')}{', ' if '{' in name else '{'}{at}}}", "values": values}
        for name, values in series.items()
    ]


def judged(
    folder: Path, series: list[dict[str, str]], expression: str, at: str, expected: list[Any], step: str
) -> None:
    """Check what an expression is after the rules."""
    test = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": step,
        "group_eval_order": [group["name"] for group in GROUPS],
        "tests": [
            {
                "interval": step,
                "input_series": series,
                "promql_expr_test": [{"expr": expression, "eval_time": at, "exp_samples": expected}],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    promtool("test", "rules", str(path))


def buckets(name: str, below: str, above: str, *bounds: str) -> Series:
    """Return a histogram with two bounds: ``below`` values of a hundred are within the first one."""
    return {
        f'runtimeproxy_{name}, le="{bounds[0]}"}}': f"0+{below}x40",
        f'runtimeproxy_{name}, le="{bounds[1]}"}}': f"0+{above}x40",
        f'runtimeproxy_{name}, le="+Inf"}}': f"0+{above}x40",
    }


OWN = 'call_duration_seconds_bucket{runtime="docker", operation="CreateContainer", part="own"'
TURN = OWN.replace("own", "turn")
HOOK = 'hook_call_duration_seconds_bucket{hook_server="gpu"'
FAILED = 'hook_server="gpu", hook="PreCreateContainer", reason="deadline"'
LOST = 'hook_server="gpu", hook="PreCreateContainer"'
OPEN, CLOSED = (f"runtimeproxy_hook_fail_{how}_total{{{FAILED}}}" for how in ("open", "closed"))
CONFLICTS = f"runtimeproxy_hook_conflicts_total{{{LOST}}}"
TIMEOUT = 'runtimeproxy_hook_timeout_seconds{hook_server="gpu"}'
BREAKER = 'runtimeproxy_hook_breaker_open{hook_server="gpu"}'
UNREACHABLE = 'runtimeproxy_hook_unreachable{hook_server="gpu"}'
DISABLED = 'runtimeproxy_hook_disabled{hook_server="gpu"}'
DIALS, STALLS = "runtimeproxy_backend_dial_failures_total", "runtimeproxy_loop_stalls_total"
LOG_LINES, STARTED = "runtimeproxy_log_lines_dropped_total", "process_start_time_seconds"
FILES, HELD = "runtimeproxy_config_invalid_files", "runtimeproxy_held_oldest_seconds"
OPEN_FILES, FILE_LIMIT = "process_open_fds", "process_max_fds"

# Alert (without RuntimeProxy), minute, what is so, series of one node, whether it fires.
ROWS: list[tuple[str, int, str, Series, bool]] = [
    ("Down", 5, "for minutes", {"up": "1 1 0x8"}, True),
    ("Down", 5, "for one minute", {"up": "1x3 0x8"}, False),
    ("NotReady", 5, "for minutes", {"runtimeproxy_ready": "1 1 0x8"}, True),
    ("NotReady", 5, "for one minute", {"runtimeproxy_ready": "1x3 0x8"}, False),
    ("RuntimeAway", 10, "all the time", {DIALS: "0+2x20"}, True),
    ("RuntimeAway", 5, "for a moment", {DIALS: "0 0 9x20"}, False),
    ("RestartLoop", 10, "three starts", {STARTED: "1 1 2 3 4x20"}, True),
    ("RestartLoop", 10, "two starts", {STARTED: "1 1 2 3x20"}, False),
    ("RestartLoop", 25, "three starts before", {STARTED: "1 1 2 3 4x30"}, False),
    ("Stalls", 8, "four", {STALLS: "0 1 2 3 4x20"}, True),
    ("Stalls", 8, "two", {STALLS: "0 0 1 2x20"}, False),
    ("OwnTimeHigh", 30, "two of a hundred are slow", buckets(OWN, "98", "100", "0.005", "0.02"), True),
    ("OwnTimeHigh", 30, "none is slow", buckets(OWN, "100", "100", "0.005", "0.02"), False),
    ("OwnTimeHigh", 30, "what waits is slow", buckets(TURN, "0", "100", "0.005", "0.02"), False),
    ("CallHeldLong", 2, "31 s", {HELD: "0 5 31"}, True),
    ("CallHeldLong", 2, "30 s", {HELD: "0 5 30"}, False),
    ("DescriptorsShort", 10, "81 of 100", {OPEN_FILES: "81x20", FILE_LIMIT: "100x20"}, True),
    ("DescriptorsShort", 10, "80 of 100", {OPEN_FILES: "80x20", FILE_LIMIT: "100x20"}, False),
    ("LogLinesDropped", 8, "just now", {LOG_LINES: "0x5 3x20"}, True),
    ("LogLinesDropped", 30, "before", {LOG_LINES: "0x5 3x40"}, False),
    ("InvalidFile", 10, "for minutes", {FILES: "0 0 1x20"}, True),
    ("InvalidFile", 6, "since four minutes", {FILES: "0 0 1x20"}, False),
    ("FailingOpen", 20, "the first time", {OPEN: "_x15 1x20"}, True),
    ("FailingOpen", 20, "once more", {OPEN: "7x15 8x20"}, True),
    ("FailingOpen", 20, "after a restart", {OPEN: "7x15 1x20"}, True),
    ("FailingOpen", 20, "before", {OPEN: "7x30"}, False),
    ("FailingOpen", 20, "it refuses", {CLOSED: "_x15 1x20"}, False),
    ("RefusedByPolicy", 20, "the first time", {CLOSED: "_x15 1x20"}, True),
    ("RefusedByPolicy", 20, "once more", {CLOSED: "7x15 8x20"}, True),
    ("RefusedByPolicy", 20, "before", {CLOSED: "7x30"}, False),
    ("BreakerOpen", 5, "for a moment", {BREAKER: "0 0 0 1 0x20"}, True),
    ("BreakerOpen", 20, "before", {BREAKER: "0 0 0 1 0x20"}, False),
    ("HookUnreachable", 8, "for minutes", {UNREACHABLE: "0 0 1x20"}, True),
    ("HookUnreachable", 8, "restarted in between", {UNREACHABLE: "1x5 0 1x20"}, False),
    ("HookSlow", 30, "beyond half of 2 s", {**buckets(HOOK, "90", "100", "0.5", "2.0"), TIMEOUT: "2x40"}, True),
    ("HookSlow", 30, "within half of 2 s", {**buckets(HOOK, "100", "100", "0.5", "2.0"), TIMEOUT: "2x40"}, False),
    ("HookSlow", 30, "within half of 10 s", {**buckets(HOOK, "90", "100", "0.5", "2.0"), TIMEOUT: "10x40"}, False),
    ("Conflict", 20, "the first time", {CONFLICTS: "_x15 1x20"}, True),
    ("Conflict", 20, "once more", {CONFLICTS: "7x15 8x20"}, True),
    ("Conflict", 20, "before", {CONFLICTS: "7x30"}, False),
    ("PluginDisabled", 25 * 60, "for 25 hours", {DISABLED: "1x200"}, True),
    ("PluginDisabled", 23 * 60, "for 23 hours", {DISABLED: "1x200"}, False),
    ("PluginDisabled", 25 * 60, "enabled in between", {DISABLED: "1x100 0 1x200"}, False),
]


@pytest.mark.parametrize(("alert", "minute", "what", "series", "fires"), ROWS, ids=[f"{r[0]} {r[2]}" for r in ROWS])
def test_alert_fires_when_it_should(
    tmp_path: Path, alert: str, minute: int, what: str, series: Series, fires: bool
) -> None:
    step = "10m" if minute > 60 else "1m"
    judged(tmp_path, on(0, series), *fired(alert, minute, fires), step)


def fired(alert: str, minute: int, fires: bool) -> tuple[str, str, list[Any]]:
    """Return the expression that counts the firing alerts, the time, and the samples that are expected."""
    expression = f'count(ALERTS{{alertname="RuntimeProxy{alert}", alertstate="firing"}})'
    return expression, f"{minute}m", [{"labels": "{}", "value": 1}] if fires else []


@pytest.mark.parametrize(("failing", "fires"), [(3, True), (2, False)])
def test_hook_server_that_fails_widely_is_reported(tmp_path: Path, failing: int, fires: bool) -> None:
    """Of 40 nodes: 5 % is not more than 5 %."""
    series = [entry for node in range(40) for entry in on(node, {TIMEOUT: "2x40"})]
    for node in range(failing):
        series += on(node, {f"runtimeproxy_hook_failures_total{{{FAILED}}}": "_x5 1+1x40"})
    judged(tmp_path, series, *fired("HookServerFailingWidely", 15, fires), "1m")


@pytest.mark.parametrize(("versions", "hours", "fires"), [(3, 25, True), (3, 23, False), (2, 25, False)])
def test_many_versions_are_reported(tmp_path: Path, versions: int, hours: int, fires: bool) -> None:
    build = 'runtimeproxy_build_info{{version="1.{}", python="3.11", runtime="{}"}}'
    modes = ("docker", "containerd")
    series = [
        entry
        for node, (version, mode) in enumerate(product(range(versions), modes))
        for entry in on(node, {build.format(version, mode): "1x200"})
    ]
    judged(tmp_path, series, *fired("ManyVersions", hours * 60, fires), "10m")


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    shown = {fires: {row[0] for row in ROWS if row[4] is fires} for fires in (True, False)}
    fleet = {"HookServerFailingWidely", "ManyVersions"}
    assert {f"RuntimeProxy{name}" for name in shown[True] | fleet} == set(ALERTS)
    assert shown[True] == shown[False]


VALUES = {
    "hook_server": ["gpu", "cpuset", "koordlet"],
    "operation": [operation.value for operation in Operation],
    "outcome": ["agreed", "failed", "unsettled", "refused", "ended"],
    "part": ["own", "turn", "hooks", "runtime", "post"],
    "reason": [reason.value for reason in Reason],
    "python": ["3.11"],
    "le": ["0.1", "+Inf"],
}
"""The values of labels, two where nothing is said here."""


def series_of(row: Metric, node: int) -> list[dict[str, str]]:
    """Return all series that a node may have of a metric."""
    own = {"version": [f"1.{node % 3}"], "runtime": [("docker", "containerd")[node // 3 % 2]]}
    suffix, le = ("_bucket", ("le",)) if row.kind is Kind.HISTOGRAM else ("", ())
    known = {**VALUES, **own}
    labels = (*row.labels, *le)
    found: list[dict[str, str]] = []
    for values in product(*(known.get(label, ["a", "b"]) for label in labels)):
        pairs = ", ".join(f'{label}="{value}"' for label, value in zip(labels, values, strict=True))
        found += on(node, {f"{row.shown}{suffix}{{{pairs}}}" if pairs else row.shown: "0+1x12"})
    return found


@pytest.mark.parametrize("nodes", [6, 12])
def test_fleet_is_in_at_most_200_series(tmp_path: Path, nodes: int) -> None:
    """Three hook servers, three versions, both modes, and everything goes wrong on every node."""
    series = [entry for node in range(nodes) for row in METRICS.values() for entry in series_of(row, node)]
    process = dict.fromkeys(("up", STARTED, OPEN_FILES, FILE_LIMIT), "1x12")
    series += [entry for node in range(nodes) for entry in on(node, process)]
    counted = 'count({__name__=~".+:.+"})'
    expression = f"(150 < {counted}) <= 200"
    judged(tmp_path, series, f"({expression}) * 0", "11m", [{"labels": "{}", "value": 0}], "1m")
