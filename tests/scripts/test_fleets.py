"""The page about fleets is made from its tables; gates ask for metrics that there are; the figures are arithmetic."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.observe.metric_table import METRICS
from scripts.fleets import __main__ as fleets
from scripts.fleets import costs, gates, measure
from tests.deploy.files import RECORDED, metrics, table_name
from tests.docs import DOCS, ROOT

QUERIES = [gate.query for gate in (*gates.OF_PROXY, *gates.OF_HOOK_SERVER)]
KNOWN = {row.shown for row in METRICS.values()} | RECORDED.keys() | {"up", "ALERTS", "process_start_time_seconds"}
MEASURED: dict[str, Any] = {
    "day": "2026-11-26",
    "machine": "2 cores",
    "series of a node": 300,
    "bytes of a scrape": 30_000,
    "bytes of a scrape, gzip": 3_000,
    "MiB of memory": {"proxy": 32.0, "exporter": 32.0},
    "CPU ms of a scrape": {"proxy": 3.0, "exporter": 6.0},
    "seconds of a restart": 0.5,
    "MiB of the package": 36.0,
    "seconds to unpack": 1.5,
    "prometheus": {
        "nodes": [20, 80],
        "resident bytes of a series": 4096,
        "live bytes of a series": 2048,
        "CPU microseconds of a sample": 5.0,
    },
}


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_page_has_the_tables_that_are_made() -> None:
    assert fleets.renewed(DOCS["fleets"], fleets.tables()) == DOCS["fleets"]


def test_table_is_replaced_and_the_text_around_it_stays() -> None:
    page = "Before.\n\n.. Written by scripts/fleet: one.\n\n.. list-table::\n\n   * - old\n\n   * - row\n\nBehind.\n"
    made = fleets.table(("A", "B"), [("1", "2")])
    assert fleets.renewed(page, {"one": made}) == (
        "Before.\n\n.. Written by scripts/fleet: one.\n\n.. list-table::\n   :header-rows: 1\n\n"
        "   * - A\n     - B\n   * - 1\n     - 2\n\nBehind.\n"
    )
    with pytest.raises(ValueError, match="0 places for the table two"):
        fleets.renewed(page, {"two": made})


@pytest.mark.parametrize("query", QUERIES)
def test_gate_asks_for_metrics_that_there_are(query: str) -> None:
    assert metrics(query)
    assert {table_name(name) for name in metrics(query)} <= KNOWN


@pytest.mark.engine
def test_gates_are_queries_for_promtool(tmp_path: Path) -> None:
    rules = [{"record": f"gate:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "gates", "rules": rules}]}))
    ended = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert f"SUCCESS: {len(QUERIES)} rules found" in ended.stdout, ended.stderr


def test_fleet_is_ten_thousand_times_the_node() -> None:
    found = dict(costs.fleet_rows(MEASURED))
    assert costs.scrape_seconds() == 15
    assert found["series"].startswith("3.0 million; ")
    assert found["scrapes each 15 s"] == "200,000 samples, 20 MB a second"
    assert found["Prometheus"] == "11 GiB of memory, 1.0 cores"
    assert found["proxies"] == "312 GiB of memory in all; 2.0 cores in all for being scraped"
    assert found["exporters"] == "312 GiB of memory in all; 4.0 cores in all"


def test_roll_out_takes_its_turns_times_a_nodes_seconds() -> None:
    seconds = 15 + 36 * 8 * 1.048576 / 100 + 1.5 + 0.5
    assert sum(step for _, step in costs.upgrade_seconds(MEASURED)) == pytest.approx(seconds)
    hours = {parallel: (float(upgrade), float(first)) for parallel, upgrade, first in costs.hours_rows(MEASURED)}
    assert hours["100"] == (round(100 * seconds / 3600, 1), round(100 * (seconds + 60) / 3600, 1))
    assert list(hours) == [str(parallel) for parallel in costs.PARALLEL]


def test_most_series_of_hook_servers_come_of_the_table() -> None:
    assert costs.most_of_hook_servers() == 1_200 + 33 * (4 + 12)


@pytest.mark.slow
@pytest.mark.engine
async def test_node_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The series are those that the page counts; times are those of the day."""
    for name, value in {"LOAD_SECONDS": 2.0, "SCRAPES": 3, "RESTARTS": 1}.items():
        monkeypatch.setattr(measure, name, value)
    found, text = await measure.node(tmp_path)
    recorded = costs.measured()
    assert found["series of a node"] == pytest.approx(recorded["series of a node"], rel=0.1)
    assert found["bytes of a scrape"] == pytest.approx(recorded["bytes of a scrape"], rel=0.1)
    assert found.keys() <= recorded.keys()
    assert all(found["MiB of memory"].values())
    assert all(found["CPU ms of a scrape"].values())
    async with measure.many_nodes(text, 2) as target:
        reader, writer = await asyncio.open_connection(*target.split(":"))
        writer.write(b"GET /1 HTTP/1.0\r\n\r\n")
        served = (await reader.read()).decode().partition("\r\n\r\n")[2]
        writer.close()
    assert len(served.splitlines()) == len(text.splitlines())


# ---- each gate under promtool: without data for a pool that is well, and with data for what it is there to see

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
"""What each gate must see, in place of what is well or beside it."""


@pytest.mark.engine
@pytest.mark.slow
def test_gates_hold_for_what_is_well_and_see_what_is_not(tmp_path: Path) -> None:
    every = {gate.what: gate.query for gate in (*gates.OF_PROXY, *gates.OF_HOOK_SERVER)}
    assert list(BAD) == list(every)
    for text, value in {"POOL": "n.*", '"NEW"': '"2"', '"OLD"': '"1"', '"NAME"': '"cpuset"'}.items():
        every = {what: query.replace(text, value) for what, query in every.items()}

    def case(series: dict[str, str], counts: dict[str, int]) -> dict[str, Any]:
        asked = [
            {
                "expr": f"count({every[what]})",
                "eval_time": "1595m",
                "exp_samples": [{"labels": "{}", "value": count}] if count else [],
            }
            for what, count in counts.items()
        ]
        given = [{"series": name, "values": values} for name, values in series.items()]
        return {"interval": "5m", "input_series": given, "promql_expr_test": asked}

    tests = [case(WELL, dict.fromkeys(every, 0)), *(case(WELL | bad, {what: 1}) for what, bad in BAD.items())]
    path = tmp_path / "gates.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "5m", "tests": tests}))
    ended = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
