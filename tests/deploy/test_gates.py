"""The gates of docs/fleets.rst query metrics that exist, hold for a pool that is well, and find one that is not."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.observe.metric_table import METRICS
from tests.deploy.files import RECORDED, metrics, table_name
from tests.docs import DOCS

GATES = dict(re.findall(r"^   ([^|\n]+) \| ``(.+)``$", DOCS["fleets"].partition("\nRoll back\n")[0], re.MULTILINE))
"""The queries of the page, by what must be so."""
KNOWN = {row.shown for row in METRICS.values()} | RECORDED.keys() | {"up", "ALERTS", "process_start_time_seconds"}


@pytest.mark.parametrize("query", GATES.values())
def test_gate_queries_metrics_that_exist(query: str) -> None:
    assert metrics(query)
    assert {table_name(name) for name in metrics(query)} <= KNOWN


NODE = 'job="runtimeproxy", instance="n1"'
HOOK = f'{NODE}, hook_server="cpuset"'
CALLS = "version_outcome:runtimeproxy_calls:rate5m"
STEADY = "1+0x320"
"""Five minutes each: longer than the day that gates look back."""
WELL = {
    f'runtimeproxy_build_info{{{NODE}, version="2"}}': STEADY,
    f"up{{{NODE}}}": STEADY,
    f"runtimeproxy_ready{{{NODE}}}": STEADY,
    f"process_start_time_seconds{{{NODE}}}": "3+0x300 4+0x20",
    f'{CALLS}{{version="2", outcome="agreed"}}': "5+0x320",
    f'{CALLS}{{version="1", outcome="agreed"}}': "5+0x320",
    'version:runtimeproxy_call_own_seconds:p99_5m{version="2"}': "0.001+0x320",
    f"runtimeproxy_hook_timeout_seconds{{{HOOK}}}": "2+0x320",
    f"runtimeproxy_hook_breaker_open{{{HOOK}}}": "0+0x320",
    f'runtimeproxy_hook_failures_total{{{HOOK}, reason="deadline"}}': "7+0x320",
    f'runtimeproxy_hook_fields_changed_total{{{HOOK}, field="envs"}}': "0+5x320",
    f'runtimeproxy_hook_call_duration_seconds_bucket{{{HOOK}, le="0.1"}}': "0+5x320",
    f'runtimeproxy_hook_call_duration_seconds_bucket{{{HOOK}, le="+Inf"}}': "0+5x320",
}
FIRST = "_x316 1+0x4"
"""A counter with labels comes into being with its first event."""
BAD = {
    "each node has the new version": {f'runtimeproxy_build_info{{{NODE}, version="1"}}': STEADY},
    "each node is scraped": {f"up{{{NODE}}}": "0+0x320"},
    "each proxy is ready": {f"runtimeproxy_ready{{{NODE}}}": "0+0x320"},
    "none started more than once in the last hour": {f"process_start_time_seconds{{{NODE}}}": "3+0x314 4 5+0x6"},
    "no error of the proxy's own": {f'runtimeproxy_internal_errors_total{{{NODE}, operation="x"}}': FIRST},
    "its own time (p99) is below 5 ms": {
        'version:runtimeproxy_call_own_seconds:p99_5m{version="2"}': "0.02+0x320",
    },
    "no larger share of calls ends badly than with the old version (0.1 % apart)": {
        f'{CALLS}{{version="2", outcome="refused"}}': "0.1+0x320"
    },
    "no critical alert": {
        f'ALERTS{{{NODE}, alertname="RuntimeProxyDown", severity="critical", alertstate="firing"}}': STEADY
    },
    "each node has registered it": {f"runtimeproxy_hook_timeout_seconds{{{HOOK}}}": "_x320"},
    "no failure": {f'runtimeproxy_hook_failures_total{{{HOOK}, reason="unreachable"}}': FIRST},
    "no refusal that is not wanted": {f'runtimeproxy_hook_refusals_total{{{HOOK}, hook="x"}}': FIRST},
    "no breaker is open": {f"runtimeproxy_hook_breaker_open{{{HOOK}}}": STEADY},
    "its answers take less than half of its timeout (p99)": {
        f'runtimeproxy_hook_call_duration_seconds_bucket{{{HOOK}, le="0.1"}}': "0+0x320",
        f'runtimeproxy_hook_call_duration_seconds_bucket{{{HOOK}, le="10"}}': "0+5x320",
    },
    "the runtime fails no more calls than it did a day ago (0.1 a second apart)": {
        f'runtimeproxy_calls_total{{{NODE}, outcome="failed", operation="x"}}': "_x280 0+150x40"
    },
    "it sets no field that it did not set a day ago": {
        f'runtimeproxy_hook_fields_changed_total{{{HOOK}, field="labels"}}': FIRST
    },
}
"""What each gate must see, in place of what is well or in addition to it."""


@pytest.mark.engine
@pytest.mark.slow
def test_gates_hold_for_what_is_well_and_see_what_is_not(tmp_path: Path) -> None:
    every = GATES
    assert list(BAD) == list(every)
    for text, value in {"POOL": "n.*", '"NEW"': '"2"', '"OLD"': '"1"', '"NAME"': '"cpuset"'}.items():
        every = {what: query.replace(text, value) for what, query in every.items()}

    def case(series: dict[str, str], counts: dict[str, int]) -> dict[str, Any]:
        queries = [
            {
                "expr": f"count({every[what]})",
                "eval_time": "1595m",
                "exp_samples": [{"labels": "{}", "value": count}] if count else [],
            }
            for what, count in counts.items()
        ]
        given = [{"series": name, "values": values} for name, values in series.items()]
        return {"interval": "5m", "input_series": given, "promql_expr_test": queries}

    tests = [case(WELL, dict.fromkeys(every, 0)), *(case(WELL | bad, {what: 1}) for what, bad in BAD.items())]
    path = tmp_path / "gates.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "5m", "tests": tests}))
    ended = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
