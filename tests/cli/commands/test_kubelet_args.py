"""``runtimeproxy kubelet-args``: the flags of each kubelet, the drop-in that has them, and the way back."""

import json
from functools import partial

import pytest

from tests.cli.conftest import Run

SOCKET = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock"
CRI, DOCKER = f"--container-runtime-endpoint={SOCKET}", f"--docker-endpoint={SOCKET}"
REMOTE = ["--container-runtime=remote", CRI]
IN_DOCKER_MODE = "--backend-runtime-mode=docker"


@pytest.fixture
def kubelet_args(run: Run) -> Run:
    """Return what runs the command."""
    return partial(run, "runtimeproxy", "kubelet-args", "--kube-version")


FLAGS = [
    (["1.18"], "kubelet", REMOTE),
    (["v1.23.17"], "kubelet", REMOTE),
    (["1.24"], "kubelet", [CRI]),
    (["v1.31.2+k3s1"], "kubelet", [CRI]),
    (["1.27.0-rc.1"], "kubelet", [CRI]),
    (["2.0"], "kubelet", [CRI]),
    (["1.23", IN_DOCKER_MODE], "kubelet", [DOCKER]),
    (["1.23", "--cri-dockerd"], "cri-docker", [DOCKER]),
    (["1.31", IN_DOCKER_MODE, "--cri-dockerd"], "cri-docker", [DOCKER]),
    (["1.31", "--koord-runtimeproxy-endpoint=/a"], "kubelet", ["--container-runtime-endpoint=unix:///a"]),
]


@pytest.mark.parametrize(("arguments", "unit", "flags"), FLAGS)
def test_flags_follow_version_and_mode(kubelet_args: Run, arguments: list[str], unit: str, flags: list[str]) -> None:
    code, out, err = kubelet_args(*arguments, "-o", "json")
    told = json.loads(out)
    assert (code, err, told["unit"], told["flags"]) == (0, "", f"{unit}.service", flags)
    assert told["proxy"] == [f"--backend-runtime-mode={'Docker' if DOCKER in flags else 'Containerd'}"]


@pytest.mark.parametrize(("arguments", "unit", "flags"), FLAGS)
def test_drop_in_has_the_flags_last(kubelet_args: Run, arguments: list[str], unit: str, flags: list[str]) -> None:
    """The last one of two equal flags is in force."""
    told = json.loads(kubelet_args(*arguments, "-o", "json")[1])
    section, reset, command = told["dropIn"].splitlines()
    assert (section, reset) == ("[Service]", "ExecStart=")
    assert command.split()[-len(flags) :] == flags
    assert told["file"] == f"/etc/systemd/system/{unit}.service.d/90-runtimeproxy.conf"


def test_way_back_removes_the_drop_in_and_restarts(kubelet_args: Run) -> None:
    told = json.loads(kubelet_args("1.31", "-o", "json")[1])
    assert told["apply"] == ["systemctl daemon-reload", "systemctl restart kubelet.service"]
    assert told["back"] == [f"rm {told['file']}", *told["apply"]]


def test_text_has_all_that_the_json_has(kubelet_args: Run) -> None:
    code, out, err = kubelet_args("1.23")
    assert (code, err) == (0, "")
    told = json.loads(kubelet_args("1.23", "-o", "json")[1])
    lines = [told["file"], *told["proxy"], *told["flags"], *told["dropIn"].splitlines(), *told["apply"], *told["back"]]
    assert [line for line in lines if line not in out] == []


def test_mode_is_that_of_the_proxys_environment(kubelet_args: Run) -> None:
    code, out, _ = kubelet_args("1.23", RUNTIMEPROXY_BACKEND_RUNTIME_MODE="Docker")
    assert code == 0
    assert f"    {DOCKER}\n" in out


def test_group_of_another_machine_does_not_matter(kubelet_args: Run) -> None:
    assert kubelet_args("1.31", RUNTIMEPROXY_SOCKET_GROUP="no-such")[::2] == (0, "")


NO_DOCKERSHIM = "--kube-version: from 1.24 on the kubelet has no dockershim: add --cri-dockerd"
WRONG = [
    (["1.31", "--cri-dockerd", "--backend-runtime-mode=containerd"], "--cri-dockerd is for Docker mode"),
    (["1.17"], "--kube-version: '1.17' is too old: the proxy needs Kubernetes 1.18 or later"),
    (["new"], "--kube-version: 'new' is not a version: write one like 1.27 or v1.27.3"),
    (["1.24", IN_DOCKER_MODE], NO_DOCKERSHIM),
    (["1.24", "--koord-runtimeproxy-endpoint=/a%b"], "--koord-runtimeproxy-endpoint: '/a%b' has characters that"),
    (["1.24", "--config=/no/x"], "/no/x: the configuration file cannot be read"),
    (["1.24", "-o", "table"], "Invalid value for '-o' / '--output'"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_wrong_use_is_one_line_and_exit_code_2(kubelet_args: Run, arguments: list[str], words: str) -> None:
    code, out, err = kubelet_args(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"runtimeproxy: error: {words}")
