"""``runtimeproxy config``, ``version`` and ``kubelet-args``; each wrong value is in tests/settings."""

import json
from configparser import ConfigParser
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS, SETTINGS
from runtimeproxy.settings.version import BUILD, LIBRARIES, VERSION
from tests.cli.conftest import Run
from tests.docs import ROOT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def test_check_prints_all_errors_and_warnings(run: Run, file: Path) -> None:
    check = partial(run, "runtimeproxy", "config", "check")
    file.write_text("hook-timeout: 3s\n")
    assert check(file) == check(RUNTIMEPROXY_CONFIG=str(file)) == (0, f"{file}: nothing is wrong\n", "")
    assert check(file, "-o", "json") == (0, "[]\n", "")
    file.write_text("hook-timeout: soon\nhook-budgt: 2s\nsocket-group: no-such\nstate-dir: /s\n")
    environ = {"RUNTIMEPROXY_METRICS_ENDPOINT": "/m/m", "RUNTIMEPROXY_X": "canary"}
    code, out, err = check(file, "--for-version=0.1.0", "--metrics-group=0", **environ)
    assert (code, err, "canary" in out) == (1, "", False)
    assert [" ".join(line.split()[:3]).replace(str(file), "x") for line in out.splitlines()] == [
        *("SEVERITY FINDING", "error x: unknown", "error x: hook-timeout:", "error --socket-group: there"),
        *("error --metrics-group is", "error x: state-dir"),
        *("warning RUNTIMEPROXY_X is", "warning RUNTIMEPROXY_METRICS_ENDPOINT is"),
    ]
    code, out, err = check(file, "--for-version=old")
    assert (code, out) == (2, "")
    assert err.startswith("runtimeproxy: error: --for-version: 'old' is not a version")


def test_show_prints_each_key_with_its_origin(run: Run, file: Path) -> None:
    show = partial(run, "runtimeproxy", "config", "show", "-o", "json")
    file.write_text("hook-budget: 30s\n")
    code, out, err = show("--origin", f"--config={file}", "--log-level=debug", RUNTIMEPROXY_HOOK_TIMEOUT="3s")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert (code, err, list(rows)) == (0, "", [option.name for option in OPTIONS])
    reported = {"hook-budget": ("30s", "file"), "log-level": ("debug", "flag"), "hook-timeout": ("3s", "environment")}
    reported |= {"socket-group": (None, "default"), "config": (str(file), "flag")}
    assert {key: rows[key] for key in reported} == reported
    code, out, err = show("--backend-runtime-mode=docker", "--remote-image-service-endpoint=/x")
    warning = "warning: --remote-image-service-endpoint is ignored: Docker mode has no image endpoint\n"
    assert (code, "/x" in out, err) == (0, False, warning)


def test_default_file_changes_no_setting(run: Run) -> None:
    code, out, err = run("runtimeproxy", "config", "default")
    assert (code, err) == (0, "")
    assert config.load({}, {}, out, "x") == config.load({}, {})
    assert list(yaml.safe_load(out)) == [option.name for _, option in SETTINGS if option.default is not None]
    for _, option in SETTINGS:
        assert f"\n# {option.help}\n{'' if option.default else '#'}{option.name}: " in out


# -- version ---------------------------------------------------------------------------------------------------------


def test_version_names_every_library() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = [line.split(">=")[0] for line in setup["options"]["install_requires"].split()]
    assert sorted([*needed, "grpcio"]) == list(LIBRARIES)


URL = '{"url": "file:///secret", "dir_info": {}}'
COMMIT = '{"url": "https://secret@x", "vcs_info": {"commit_id": "abc"}}'


def test_commit_and_date_are_reported_when_recorded(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reported() -> dict[str, str | None]:
        code, out, err = run("runtimeproxy", "version", "-o", "json")
        assert (code, err, "secret" in out) == (0, "", False)
        return {row["name"]: row["version"] for row in json.loads(out)}

    for noted, commit in ((None, None), (URL, None), (COMMIT, "abc")):  # by pip
        installed = [SimpleNamespace(version="1", read_text={"direct_url.json": noted}.get)]
        monkeypatch.setattr(metadata, "distributions", lambda name, installed=installed: installed)
        assert reported()["commit"] == commit
    monkeypatch.setattr(metadata, "distributions", lambda name: [])
    assert reported()["commit"] is None
    (tmp_path / BUILD).write_text("commit: abc-dirty\ndate: 2026-01-02T03:04:05Z\n")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    assert (reported()["commit"], reported()["date"]) == ("abc-dirty", "2026-01-02T03:04:05Z")
    first = run("runtimeproxy", "--version")[1].splitlines()[0]
    assert first == f"runtimeproxy {VERSION} (commit abc-dirty, date 2026-01-02T03:04:05Z)"


# -- kubelet-args: the flags of each kubelet, the drop-in that has them, and the way back ----------------------------

SOCKET = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock"
CRI, DOCKER = f"--container-runtime-endpoint={SOCKET}", f"--docker-endpoint={SOCKET}"
IN_DOCKER_MODE = "--backend-runtime-mode=docker"


def kubelet_args(run: Run, arguments: str) -> dict[str, Any]:
    """Return the parts for a version of Kubernetes."""
    code, out, err = run("runtimeproxy", "kubelet-args", "-o", "json", "--kube-version", *arguments.split())
    assert (code, err) == (0, "")
    return dict(json.loads(out))


FLAGS = [
    ("1.18", "kubelet", ["--container-runtime=remote", CRI]),
    ("1.24", "kubelet", [CRI]),
    ("2.0", "kubelet", [CRI]),
    (f"1.23 {IN_DOCKER_MODE}", "kubelet", [DOCKER]),
    ("1.23 --cri-dockerd", "cri-docker", [DOCKER]),
    (f"1.31 {IN_DOCKER_MODE} --cri-dockerd", "cri-docker", [DOCKER]),
    ("1.31 --koord-runtimeproxy-endpoint=/a", "kubelet", ["--container-runtime-endpoint=unix:///a"]),
    ("v1.33.1+k0s --cri-dockerd", "cri-docker", [DOCKER]),
]


@pytest.mark.parametrize(("arguments", "unit", "flags"), FLAGS)
def test_flags_follow_version_and_mode(run: Run, arguments: str, unit: str, flags: list[str]) -> None:
    """In the drop-in they come last: the last one of two equal flags is in force."""
    parts = kubelet_args(run, arguments)
    assert (parts["unit"], parts["flags"]) == (f"{unit}.service", flags)
    assert parts["proxy"] == [f"--backend-runtime-mode={'Docker' if DOCKER in flags else 'Containerd'}"]
    section, reset, command = parts["dropIn"].splitlines()
    assert (section, reset, command.split()[-len(flags) :]) == ("[Service]", "ExecStart=", flags)
    assert parts["file"] == f"/etc/systemd/system/{unit}.service.d/90-runtimeproxy.conf"
    assert parts["apply"] == ["systemctl daemon-reload", f"systemctl restart {unit}.service"]
    assert parts["back"] == [f"rm {parts['file']}", *parts["apply"]]


RANCHER = "/etc/rancher/{}/config.yaml.d/90-runtimeproxy.yaml"
IN_K3S, IN_K0S = (f"--remote-runtime-service-endpoint=/run/{name}" for name in ("k3s/containerd/", "k0s/"))
IN_MICROK8S = "--remote-runtime-service-endpoint=/var/snap/microk8s/common/run/"
KUBELITE = ("snap.microk8s.daemon-kubelite", "/var/snap/microk8s/current/args/kubelet", f"{CRI}\n", IN_MICROK8S)
K0S = ("k0sworker", "/etc/systemd/system/k0sworker.service.d/90-runtimeproxy.conf")
KUBELET_ARG, ENDPOINT = f"kubelet-arg+:\n- {CRI[2:]}\n", f"container-runtime-endpoint: {SOCKET}\n"
DISTRIBUTIONS: list[tuple[str, str, str, str, str]] = [
    ("v1.33.1+k3s1", "k3s", RANCHER.format("k3s"), KUBELET_ARG, IN_K3S),
    ("v1.33.1+rke2r1", "rke2-agent", RANCHER.format("rke2"), KUBELET_ARG, IN_K3S),
    ("v1.33.1+k0s.0", *K0S, f' "--kubelet-extra-args={CRI}"\n', IN_K0S),
    ("v1.22.2-3+9ad9ee77396805", *KUBELITE),
    ("1.33.1 --distribution=microk8s", *KUBELITE),
    ("v1.33.1+k3s1 --cri-dockerd", "k3s", RANCHER.format("k3s"), ENDPOINT, ""),
]


@pytest.mark.parametrize(("arguments", "unit", "file", "content", "containerd"), DISTRIBUTIONS)
def test_distribution_flags_are_in_its_own_file(
    run: Run, arguments: str, unit: str, file: str, content: str, containerd: str
) -> None:
    parts = kubelet_args(run, arguments)
    assert (parts["unit"], parts["file"]) == (f"{unit}.service", file)
    assert parts["dropIn"].endswith(content)
    mode = f"--backend-runtime-mode={'Containerd' if containerd else 'Docker'}"
    assert parts["proxy"] == [mode, *[f"{containerd}containerd.sock"] * bool(containerd)]
    assert parts["apply"][-1] == parts["back"][-1] == f"systemctl restart {unit}.service"
    assert file in parts["back"][0]
    assert "kubelet.service" not in json.dumps(parts)


CRIO, AT = "--remote-runtime-service-endpoint=/var/run/crio/crio.sock", "--koord-runtimeproxy-endpoint"
CRIO_SOCKETS: list[tuple[str, str, int]] = [
    (f"1.29 {CRIO}", "/var/run/koord-runtimeproxy/run/crio/crio.sock", 2),
    (f"1.29 {CRIO} {AT}=/run/a/crio.sock", "/run/a/run/crio/crio.sock", 2),
    (f"1.29 {CRIO} {AT}=/a/run/crio/crio.sock", "/a/run/crio/crio.sock", 0),
    (f"1.28 {CRIO}", "/var/run/koord-runtimeproxy/run/crio/crio.sock", 3),
]


@pytest.mark.parametrize(("arguments", "socket", "notes"), CRIO_SOCKETS)
def test_kubelet_calls_crio_named_socket_when_runtime_is_crio(
    run: Run, arguments: str, socket: str, notes: int
) -> None:
    parts = kubelet_args(run, arguments)
    text = run("runtimeproxy", "kubelet-args", "--kube-version", *arguments.split())[1]
    lines = [parts["file"], *parts["dropIn"].splitlines()]
    lines += [line for key in ("proxy", "flags", "apply", "back", "notes") for line in parts[key]]
    assert [line for line in lines if line not in text] == []
    assert parts["flags"][-1] == f"--container-runtime-endpoint=unix://{socket}"
    assert len(parts["notes"]) == 2 + notes
