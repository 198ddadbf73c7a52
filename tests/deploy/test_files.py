"""Names in deploy/ exist: metrics, runbooks, commands.

Units have the required settings, and no right without a reason.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hooks.__main__ import ALL, HOOKS
from runtimeproxy.admin import exporter
from runtimeproxy.cli.commands.export import METRICS_ENDPOINT, export_command
from runtimeproxy.observe.metric_table import METRICS as METRIC_TABLE
from runtimeproxy.relay.listener import ADMIN, BACKLOG, MAIN, METRICS
from runtimeproxy.settings.options import CRIO_SUFFIX, OPTIONS, parse_duration
from tests.deploy.files import ALERTS, DEPLOY, RECORDED, labels, metrics, queries, table_name
from tests.docs import DOCS, tables

QUERIES = dict(queries())
METRIC_NAMES = {row.shown for row in METRIC_TABLE.values()} | RECORDED.keys() | {"up", "process_cpu_seconds_total"}
METRIC_NAMES |= {f"process_{name}" for name in ("max_fds", "open_fds", "resident_memory_bytes", "start_time_seconds")}
LABELS = {label for row in METRIC_TABLE.values() for label in row.labels} | {"job", "instance", "le"}


def test_queries_name_metrics_and_labels_that_exist() -> None:
    for place, query in QUERIES.items():
        named = metrics(query)
        assert named, place
        assert {table_name(name) if table_name(name) in METRIC_NAMES else name for name in named} <= METRIC_NAMES, place
        assert labels(query) <= LABELS, place
        assert named <= RECORDED.keys() or not place.startswith("fleet.json")  # it reads only recorded series


def test_alerts_have_severity_summary_and_runbook() -> None:
    anchors = set()
    for alert, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), alert
        assert rule["annotations"]["summary"].endswith("."), alert
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/troubleshooting.rst", alert
        assert f"\n.. _{anchor}:\n\n{alert}\n{'~' * len(alert)}\n" in DOCS["troubleshooting"]
        anchors.add(anchor)
    assert anchors == set(re.findall(r"^\.\. _(alert-.*):$", DOCS["troubleshooting"], re.MULTILINE))
    assert set(re.findall(r"(alert-[a-z-]+)_\b", DOCS["troubleshooting"])) <= anchors


def test_files_of_other_tools_have_program_job_and_port() -> None:
    plugin: Any = json.loads((DEPLOY / "node-problem-detector" / "runtimeproxy.json").read_text())
    (condition,), (rule,) = plugin["conditions"], plugin["rules"]
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    assert (rule["path"], rule["args"]) == ("/usr/bin/runtimeproxy", ["status"])
    assert int(rule["timeout"].removesuffix("s")) > 2
    assert plugin["pluginConfig"]["max_output_length"] == 80
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())["scrape_configs"][0]
    monitor = yaml.safe_load((DEPLOY / "prometheus" / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (monitor["kind"], scrape["job_name"]) == ("PodMonitor", "runtimeproxy")
    assert {"targetLabel": "job", "replacement": "runtimeproxy"} in endpoint["relabelings"]
    assert scrape["relabel_configs"][0]["replacement"] == "$1:9654"
    assert {scrape["scheme"], endpoint["scheme"]} == {"https"}


# ---- the units

UNITS = DEPLOY / "systemd"


def lines_of(path: Path) -> list[str]:
    """Return the settings in a unit's file."""
    return [line for line in path.read_text().splitlines() if line and line[0] not in "#["]


def settings(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the values of each setting of a unit's file, in their order."""
    pairs = [line.split("=", 1) for line in lines_of(path) if "=" in line]
    return {name: [value for key, value in pairs if key == name] for name, _ in pairs}


PROXY, HOOK_SERVERS, EXPORTER = (settings(UNITS / f"runtimeproxy{name}.service") for name in ("", "-hooks@", "-export"))
DEFAULTS = {option.name: option.default or "" for option in OPTIONS}


REQUIRED = (
    "Requires=runtimeproxy.socket StartLimitIntervalSec=0 Type=notify Restart=always RestartSec=100ms WatchdogSec=10s "
    "RuntimeDirectoryPreserve=yes LimitNOFILE=1048576 OOMScoreAdjust=-999 LimitCORE=0 UMask=0077 "
    "CapabilityBoundingSet= PrivateNetwork=yes RestrictAddressFamilies=AF_UNIX ProtectSystem=strict ProcSubset=pid "
    "MemoryDenyWriteExecute=yes"
)


def test_proxy_unit_has_required_systemd_settings() -> None:
    sockets = "runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket"
    expected = {"Before": "kubelet.service cri-docker.service", "Sockets": sockets}
    expected |= dict(setting.split("=") for setting in REQUIRED.split())
    assert {name: PROXY[name] for name in expected} == {name: [value] for name, value in expected.items()}
    runtimes = ["containerd.service", "crio.service", "docker.service"]  # the unit starts none of them
    assert " ".join(PROXY["After"]).split() == [*sockets.split(), *runtimes]
    assert "Wants" not in PROXY
    drain = parse_duration(DEFAULTS["drain-timeout"], "")  # during which it is not killed
    assert parse_duration(PROXY["TimeoutStopSec"][0], "") > 2 * drain + 1


def test_exporter_unit_has_flags_that_exist() -> None:
    unit = (UNITS / "runtimeproxy-export.service").read_text()
    commands = re.findall(r"ExecStart=(.+?[^\\])\n", unit.replace("\\\n#", ""))
    assert len(commands) == 2
    for program, name, *flags in map(shlex.split, commands):
        assert (program, name) == ("/usr/bin/runtimeproxy", "export")
        listen = export_command.make_context("export", flags).params["listen"]
        assert exporter.parse_address(listen)[1] == 9654


@pytest.mark.parametrize(
    ("name", "file", "path", "mode", "folder"),
    [
        (MAIN, "", DEFAULTS["koord-runtimeproxy-endpoint"], "0600", "0700"),
        (ADMIN, "-admin", "/var/run/koord-runtimeproxy/admin.sock", "0600", "0700"),
        (METRICS, "-metrics", METRICS_ENDPOINT, "0660", "0755"),
    ],
)
def test_socket_unit_has_path_that_programs_use(name: str, file: str, path: str, mode: str, folder: str) -> None:
    socket = settings(UNITS / f"runtimeproxy{file}.socket")
    assert socket["ListenStream"] == [path.removeprefix("/var")]  # systemd warns of /var/run
    assert (socket["SocketMode"], socket["DirectoryMode"]) == ([mode], [folder])
    assert (socket["FileDescriptorName"], socket["Service"]) == ([name], ["runtimeproxy.service"])
    assert (socket["Backlog"], socket["TriggerLimitIntervalSec"]) == ([str(BACKLOG)], ["0"])
    if name == MAIN:
        assert socket["Symlinks"] == [f"/run/koord-runtimeproxy/{CRIO_SUFFIX}"]
    if name == METRICS:
        assert socket["SocketGroup"] == EXPORTER["SupplementaryGroups"] == ["runtimeproxy-metrics"]
        assert re.search(r"^g\s+runtimeproxy-metrics\s", (UNITS / "runtimeproxy.sysusers").read_text(), re.MULTILINE)


def test_no_unit_removes_directory_of_metrics_socket() -> None:
    """An exporter's pod mounts the directory, and would not see a new one at the same path."""
    folder = Path(METRICS_ENDPOINT).parent.name
    for file in UNITS.rglob("*.*"):
        unit = settings(file) if file.is_file() else {}
        assert folder not in " ".join(unit.get("RuntimeDirectory", ())).split(), file
        assert "RemoveOnStop" not in unit, file


def test_hook_servers_and_exporter_are_sandboxed_as_proxy() -> None:
    sandbox = r"(?:Private|Protect|Proc|Restrict(?!AddressFamilies)|NoNew|Lock|Memory(?!Max)|SystemCallA|SystemCallE).+"
    proxy, hook_servers, export = (
        {name: values for name, values in unit.items() if re.fullmatch(sandbox, name)}
        for unit in (PROXY, HOOK_SERVERS, EXPORTER)
    )
    assert len(proxy) > 15
    assert proxy == hook_servers == export | {"PrivateNetwork": ["yes"]}
    assert "PrivateNetwork" not in export
    usual = ["@system-service", "~@privileged @resources"]  # calls of unprivileged services
    assert [unit["SystemCallFilter"] for unit in (PROXY, HOOK_SERVERS, EXPORTER)] == [usual] * 3


DROP_INS = {path.name.removesuffix(".d"): lines_of(path / "50-rights.conf") for path in UNITS.glob("*.service.d")}


@pytest.mark.parametrize("unit", sorted(DROP_INS))
def test_each_right_of_hook_server_has_documented_reason(unit: str) -> None:
    assert unit.removeprefix("runtimeproxy-hooks@").removesuffix(".service") in {*HOOKS, ALL}
    if unit == f"runtimeproxy-hooks@{ALL}.service":
        assert set(DROP_INS[unit]) == {line for drop_in in DROP_INS if drop_in != unit for line in DROP_INS[drop_in]}
    else:
        rows = [(units, setting) for table in tables(DOCS["security"], "Why") for units, setting, _ in table]
        reasons = {setting.strip("`") for units, setting in rows if f"``{unit}``" in units}
        assert set(DROP_INS[unit]) == reasons
