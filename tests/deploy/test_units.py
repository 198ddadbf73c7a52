"""The units in deploy/systemd: what the proxy needs of systemd, and that nothing may do more than has a reason."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hooks.__main__ import ALL, HOOKS
from runtimeproxy.cli.commands.export import METRICS_ENDPOINT
from runtimeproxy.relay.listener import ADMIN, BACKLOG, MAIN, METRICS
from runtimeproxy.settings.options import CRIO_SUFFIX, OPTIONS, parse_duration
from tests.deploy.files import DEPLOY
from tests.docs import DOCS, tables

UNITS = DEPLOY / "systemd"
Settings = Mapping[str, Sequence[str]]


def settings(path: Path) -> Settings:
    """Return the values of each setting of a unit's file, in their order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


PROXY, HOOK_SERVERS, EXPORTER = (settings(UNITS / f"runtimeproxy{name}.service") for name in ("", "-hooks@", "-export"))
SOCKETS = {
    MAIN: settings(UNITS / "runtimeproxy.socket"),
    ADMIN: settings(UNITS / "runtimeproxy-admin.socket"),
    METRICS: settings(UNITS / "runtimeproxy-metrics.socket"),
}
DEFAULTS = {option.name: option.default or "" for option in OPTIONS}

EXPECTED = {
    "Requires": "runtimeproxy.socket",
    "Before": "kubelet.service cri-docker.service",
    "StartLimitIntervalSec": "0",
    "Type": "notify",
    "Sockets": "runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket",
    "Restart": "always",
    "RestartSec": "100ms",
    "WatchdogSec": "10s",
    "RuntimeDirectoryPreserve": "yes",
    "LimitNOFILE": "1048576",
    "OOMScoreAdjust": "-999",
    "LimitCORE": "0",
    "UMask": "0077",
    "CapabilityBoundingSet": "",
    "PrivateNetwork": "yes",
    "RestrictAddressFamilies": "AF_UNIX",
    "ProtectSystem": "strict",
    "MemoryDenyWriteExecute": "yes",
    "ProcSubset": "pid",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_proxy_has_what_it_needs_of_systemd(name: str) -> None:
    assert PROXY[name] == [EXPECTED[name]]


def test_the_directory_of_the_metrics_socket_is_nobodys_to_remove() -> None:
    """An exporter's pod has the directory mounted: another one at its place would not be seen there."""
    folder = Path(METRICS_ENDPOINT).parent.name
    assert Path(SOCKETS[METRICS]["ListenStream"][0]).parent.name == folder
    for file in UNITS.rglob("*.*"):
        found = settings(file) if file.is_file() else {}
        assert folder not in " ".join(found.get("RuntimeDirectory", ())).split(), file
        assert "RemoveOnStop" not in found, file


def test_proxy_is_ordered_after_runtimes_and_starts_none() -> None:
    runtimes = ["containerd.service", "crio.service", "docker.service"]
    assert " ".join(PROXY["After"]).split() == [*PROXY["Sockets"][0].split(), *runtimes]
    assert "Wants" not in PROXY


def test_calls_that_are_allowed_are_those_of_services_without_power() -> None:
    usual = ["@system-service", "~@privileged @resources"]
    assert [unit["SystemCallFilter"] for unit in (PROXY, HOOK_SERVERS, EXPORTER)] == [usual] * 3


def test_proxy_is_not_killed_while_it_drains() -> None:
    drain = parse_duration(DEFAULTS["drain-timeout"], "")
    assert parse_duration(PROXY["TimeoutStopSec"][0], "") > 2 * drain + 1


ROWS = {
    MAIN: (DEFAULTS["koord-runtimeproxy-endpoint"], "0600", "0700"),
    ADMIN: (f"{Path(DEFAULTS['koord-runtimeproxy-endpoint']).parent}/admin.sock", "0600", "0700"),
    METRICS: (METRICS_ENDPOINT, "0660", "0755"),
}


@pytest.mark.parametrize("name", ROWS)
def test_socket_is_where_the_programs_look_for_it(name: str) -> None:
    path, mode, folder = ROWS[name]
    socket = SOCKETS[name]
    assert socket["ListenStream"] == [path.removeprefix("/var")]  # systemd warns of /var/run
    assert (socket["SocketMode"], socket["DirectoryMode"]) == ([mode], [folder])
    assert (socket["FileDescriptorName"], socket["Service"]) == ([name], ["runtimeproxy.service"])
    assert (socket["Backlog"], socket["TriggerLimitIntervalSec"]) == ([str(BACKLOG)], ["0"])


def test_proxys_socket_has_a_link_that_is_named_as_crios() -> None:
    folder = Path(SOCKETS[MAIN]["ListenStream"][0]).parent
    assert SOCKETS[MAIN]["Symlinks"] == [f"{folder}/{CRIO_SUFFIX}"]


def test_group_of_the_metrics_is_made_and_is_the_exporters() -> None:
    assert re.search(r"^g\s+runtimeproxy-metrics\s", (UNITS / "runtimeproxy.sysusers").read_text(), re.MULTILINE)
    assert SOCKETS[METRICS]["SocketGroup"] == EXPORTER["SupplementaryGroups"] == ["runtimeproxy-metrics"]


SANDBOX = re.compile(
    r"(?:Private|Protect|Proc|Restrict(?!AddressFamilies)|NoNew|Lock|Memory|SystemCallA|SystemCallE).+"
)


def closed(unit: Settings) -> Settings:
    return {name: values for name, values in unit.items() if SANDBOX.fullmatch(name) and name != "MemoryMax"}


def test_hook_servers_and_exporter_are_as_closed_as_the_proxy() -> None:
    assert closed(HOOK_SERVERS) == closed(PROXY)
    assert closed(EXPORTER) == {name: values for name, values in closed(PROXY).items() if name != "PrivateNetwork"}
    assert len(closed(PROXY)) > 15


REASONS = {
    (unit, setting.strip("`"))
    for rows in tables(DOCS["security"], "Why")
    for units, setting, _ in rows
    for unit in re.findall(r"``([^`]+)``", units)
}
DROP_INS = {
    folder.name.removesuffix(".d"): [
        line for line in (folder / "50-rights.conf").read_text().splitlines() if line and line[0] not in "#["
    ]
    for folder in UNITS.glob("*.service.d")
}


@pytest.mark.parametrize("unit", sorted(DROP_INS))
def test_right_of_a_hook_server_has_a_reason(unit: str) -> None:
    assert unit.removeprefix("runtimeproxy-hooks@").removesuffix(".service") in {*HOOKS, ALL}
    if unit == f"runtimeproxy-hooks@{ALL}.service":
        assert set(DROP_INS[unit]) == {line for other in DROP_INS if other != unit for line in DROP_INS[other]}
    else:
        assert {(unit, line) for line in DROP_INS[unit]} == {row for row in REASONS if row[0] == unit}
