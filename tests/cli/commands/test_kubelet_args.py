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
    """Return a function that runs the command."""
    return partial(run, "runtimeproxy", "kubelet-args", "--kube-version")


FLAGS = [
    (["1.18"], "kubelet", REMOTE),
    (["1.24"], "kubelet", [CRI]),
    (["2.0"], "kubelet", [CRI]),
    (["1.23", IN_DOCKER_MODE], "kubelet", [DOCKER]),
    (["1.23", "--cri-dockerd"], "cri-docker", [DOCKER]),
    (["1.31", IN_DOCKER_MODE, "--cri-dockerd"], "cri-docker", [DOCKER]),
    (["1.31", "--koord-runtimeproxy-endpoint=/a"], "kubelet", ["--container-runtime-endpoint=unix:///a"]),
]


@pytest.mark.parametrize(("arguments", "unit", "flags"), FLAGS)
def test_flags_follow_version_and_mode(kubelet_args: Run, arguments: list[str], unit: str, flags: list[str]) -> None:
    """In the drop-in they come last: the last one of two equal flags is in force."""
    code, out, err = kubelet_args(*arguments, "-o", "json")
    parts = json.loads(out)
    assert (code, err, parts["unit"], parts["flags"]) == (0, "", f"{unit}.service", flags)
    assert parts["proxy"] == [f"--backend-runtime-mode={'Docker' if DOCKER in flags else 'Containerd'}"]
    section, reset, command = parts["dropIn"].splitlines()
    assert (section, reset, command.split()[-len(flags) :]) == ("[Service]", "ExecStart=", flags)
    assert parts["file"] == f"/etc/systemd/system/{unit}.service.d/90-runtimeproxy.conf"
    assert parts["apply"] == ["systemctl daemon-reload", f"systemctl restart {unit}.service"]
    assert parts["back"] == [f"rm {parts['file']}", *parts["apply"]]


RANCHER, K0S = "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock"
MICROK8S = "/var/snap/microk8s/common/run/containerd.sock"
KUBELITE = ("snap.microk8s.daemon-kubelite", "/var/snap/microk8s/current/args/kubelet", f"{CRI}\n", MICROK8S)
K0S_DROP_IN = "/etc/systemd/system/k0sworker.service.d/90-runtimeproxy.conf"
K0S_ARGUMENTS = f' "--kubelet-extra-args={CRI}"\n'
KUBELET_ARG = f"kubelet-arg+:\n- {CRI[2:]}\n"
DISTRIBUTIONS: list[tuple[list[str], str, str, str, str]] = [
    (["v1.33.1+k3s1"], "k3s", "/etc/rancher/k3s/config.yaml.d/90-runtimeproxy.yaml", KUBELET_ARG, RANCHER),
    (["v1.33.1+rke2r1"], "rke2-agent", "/etc/rancher/rke2/config.yaml.d/90-runtimeproxy.yaml", KUBELET_ARG, RANCHER),
    (["v1.33.1+k0s.0"], "k0sworker", K0S_DROP_IN, K0S_ARGUMENTS, K0S),
    (["v1.22.2-3+9ad9ee77396805"], *KUBELITE),
    (["1.33.1", "--distribution=microk8s"], *KUBELITE),
]


@pytest.mark.parametrize(("arguments", "unit", "file", "content", "containerd"), DISTRIBUTIONS)
def test_distribution_flags_are_in_its_own_file(
    kubelet_args: Run, arguments: list[str], unit: str, file: str, content: str, containerd: str
) -> None:
    parts = json.loads(kubelet_args(*arguments, "-o", "json")[1])
    assert (parts["unit"], parts["file"]) == (f"{unit}.service", file)
    assert parts["dropIn"].endswith(content)
    assert parts["proxy"][1:] == [f"--remote-runtime-service-endpoint={containerd}"]
    assert parts["apply"][-1] == parts["back"][-1] == f"systemctl restart {unit}.service"
    assert file in parts["back"][0]
    assert "kubelet.service" not in json.dumps(parts)


def test_k3s_with_docker_sets_endpoint_of_its_cri_dockerd(kubelet_args: Run) -> None:
    parts = json.loads(kubelet_args("v1.33.1+k3s1", "--cri-dockerd", "-o", "json")[1])
    assert parts["dropIn"] == f"container-runtime-endpoint: {SOCKET}\n"
    assert parts["proxy"] == ["--backend-runtime-mode=Docker"]
    assert json.loads(kubelet_args("v1.33.1+k0s", "--cri-dockerd", "-o", "json")[1])["unit"] == "cri-docker.service"


CRIO = "--remote-runtime-service-endpoint=/var/run/crio/crio.sock"
CRIO_SOCKETS: list[tuple[list[str], str, int]] = [
    (["1.29", CRIO], "/var/run/koord-runtimeproxy/run/crio/crio.sock", 2),
    (["1.29", CRIO, "--koord-runtimeproxy-endpoint=/run/a/crio.sock"], "/run/a/run/crio/crio.sock", 2),
    (["1.29", CRIO, "--koord-runtimeproxy-endpoint=/a/run/crio/crio.sock"], "/a/run/crio/crio.sock", 0),
    (["1.28", CRIO], "/var/run/koord-runtimeproxy/run/crio/crio.sock", 3),
]


@pytest.mark.parametrize(("arguments", "socket", "notes"), CRIO_SOCKETS)
def test_kubelet_calls_crio_named_socket_when_runtime_is_crio(
    kubelet_args: Run, arguments: list[str], socket: str, notes: int
) -> None:
    parts = json.loads(kubelet_args(*arguments, "-o", "json")[1])
    text = kubelet_args(*arguments)[1]
    lines = [parts["file"], *parts["dropIn"].splitlines()]
    lines += [line for key in ("proxy", "flags", "apply", "back", "notes") for line in parts[key]]
    assert [line for line in lines if line not in text] == []
    assert parts["flags"][-1] == f"--container-runtime-endpoint=unix://{socket}"
    assert len(parts["notes"]) == 2 + notes
