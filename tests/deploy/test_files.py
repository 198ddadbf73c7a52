"""What deploy/ names is there: metrics, labels, runbooks, units, the commands that units and plugins run."""

import json
import re
import shlex
from typing import Any

import pytest
import yaml

from runtimeproxy.admin import exporter
from runtimeproxy.cli.commands.export import export_command
from runtimeproxy.observe.metric_table import METRICS
from tests.deploy.files import (
    ALERTS,
    DEPLOY,
    RECORDED,
    labels,
    metrics,
    queries,
    table_name,
)
from tests.docs import DOCS

QUERIES = dict(queries())
OF_PROMETHEUS = {"up"}
OF_THE_PROCESS = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
"""What prometheus_client reports of a process."""
KNOWN = {row.shown for row in METRICS.values()} | OF_PROMETHEUS | OF_THE_PROCESS | set(RECORDED)
LABELS = {label for row in METRICS.values() for label in row.labels} | {"job", "instance", "le"}
UNIT = (DEPLOY / "systemd" / "runtimeproxy-export.service").read_text()


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    for place, query in QUERIES.items():
        named = metrics(query)
        assert named, place
        assert {table_name(name) if table_name(name) in KNOWN else name for name in named} <= KNOWN, place
        assert labels(query) <= LABELS, place


def test_alerts_have_a_severity_a_summary_and_a_runbook_that_is_there() -> None:
    for alert, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), alert
        assert rule["annotations"]["summary"].endswith("."), alert
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/troubleshooting.rst", alert
        assert f"\n.. _{anchor}:\n\n{alert}\n{'~' * len(alert)}\n" in DOCS["troubleshooting"]


def test_every_runbook_belongs_to_an_alert() -> None:
    anchors = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in ALERTS.values()}
    assert anchors == set(re.findall(r"^\.\. _(alert-.*):$", DOCS["troubleshooting"], re.MULTILINE))
    assert set(re.findall(r"(alert-[a-z-]+)_\b", DOCS["troubleshooting"])) <= anchors


def test_dashboard_of_the_fleet_reads_recorded_series_alone() -> None:
    fleet = [query for place, query in QUERIES.items() if place.startswith("fleet.json")]
    assert set().union(*map(metrics, fleet)) <= set(RECORDED)


def test_unit_runs_the_exporter_with_flags_that_there_are() -> None:
    commands = re.findall(r"ExecStart=(.+?[^\\])\n", UNIT.replace("\\\n#", ""))
    assert len(commands) == 2
    for command in commands:
        program, name, *flags = shlex.split(command)
        assert (program, name) == ("/usr/bin/runtimeproxy", "export")
        export_command.make_context("export", flags.copy())
        listen = dict(flag.split("=", 1) for flag in flags)["--listen"]
        assert exporter.parse_address(listen)[1] == 9654


@pytest.mark.parametrize("file", ["debian/rules", "rpm/runtimeproxy.spec"])
def test_upgrade_of_a_package_restarts_the_exporter(file: str) -> None:
    """An exporter of another version may not understand the proxy that is restarted."""
    restart = r"^.*(?:--restart-after-upgrade|try-restart\b.*) runtimeproxy-export\.service\b"
    assert re.search(restart, (DEPLOY / file).read_text(), re.MULTILINE)


def test_node_problem_detector_runs_status_and_waits_longer_than_it() -> None:
    plugin: Any = json.loads((DEPLOY / "node-problem-detector" / "runtimeproxy.json").read_text())
    (condition,), (rule,) = plugin["conditions"], plugin["rules"]
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    assert (rule["path"], rule["args"]) == ("/usr/bin/runtimeproxy", ["status"])
    assert int(rule["timeout"].removesuffix("s")) > 2
    assert plugin["pluginConfig"]["max_output_length"] == 80


def test_scrapes_are_of_the_job_and_the_port_of_the_rules() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())["scrape_configs"][0]
    monitor = yaml.safe_load((DEPLOY / "prometheus" / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["kind"] == "PodMonitor"
    assert scrape["job_name"] == "runtimeproxy"
    assert {"targetLabel": "job", "replacement": "runtimeproxy"} in endpoint["relabelings"]
    assert scrape["relabel_configs"][0]["replacement"] == "$1:9654"
    assert {scrape["scheme"], endpoint["scheme"]} == {"https"}
