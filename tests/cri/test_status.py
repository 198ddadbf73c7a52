"""Tests of reading statuses; the JSON has the form that containerd 1.6.20 gives, shortened."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2, status
from runtimeproxy.model import ContainerInfo, PodInfo, Resources
from tests.fakes import cri_pb2

POD_INFO: dict[str, Any] = {
    "pid": 18355,
    "processStatus": "running",
    "config": {
        "metadata": {"name": "web", "uid": "u-1", "namespace": "shop"},
        "labels": {"qos": "BE"},
        "linux": {
            "cgroup_parent": "/kubepods/besteffort/podu-1",
            "security_context": {"namespace_options": {"network": 2}},
            "overhead": {"cpu_shares": 5},
            "resources": {"cpu_quota": -1},
        },
    },
    "runtimeSpec": {"linux": {"resources": {"cpu": {"shares": 2}}, "cgroupsPath": "/kubepods/besteffort/podu-1/p1"}},
    "cniResult": None,
}
CONTAINER_INFO: dict[str, Any] = {
    "sandboxID": "p1",
    "pid": 18387,
    "config": {
        "metadata": {"name": "main"},
        "envs": [
            {"key": "A", "value": "1"},
            {"key": "LOST", "value": "\ufffd"},
            {"key": "A", "value": "2"},
            {"key": "U", "value": "é<&>😀"},
            {"key": "EMPTY"},
        ],
        "annotations": {"k": "v"},
        "linux": {"resources": {"cpu_quota": 50000, "memory_limit_in_bytes": 2**27, "cpuset_cpus": "0"}},
    },
    "runtimeSpec": {
        "process": {
            "env": ["PATH=/bin", "HOSTNAME=vm", "A=1", "LOST=\ufffd", "A=2", "U=é<&>😀", "EMPTY="],
            "oomScoreAdj": 500,
        },
        "linux": {
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": 2**28, "swap": 2**28},
                "cpu": {"shares": 200, "quota": -1, "period": 100000, "cpus": "0-1", "mems": "0"},
                "hugepageLimits": [{"pageSize": "2MB", "limit": 1}, {"pageSize": "2MB", "limit": 2**64 - 1}],
                "unified": {"memory.high": "max"},
            },
            "cgroupsPath": "/kubepods/besteffort/podu-1/c1",
        },
    },
}
RUNS = Resources(
    cpu_period=100000,
    cpu_quota=-1,
    cpu_shares=200,
    memory_limit_in_bytes=2**28,
    oom_score_adj=500,
    cpuset_cpus="0-1",
    cpuset_mems="0",
    hugepage_limits={"2MB": 2**64 - 1},
    unified={"memory.high": "max"},
)
POD_STATUS = cri_pb2.PodSandboxStatus(
    id="p1",
    metadata=cri_pb2.PodSandboxMetadata(name="web", uid="u-1", namespace="shop", attempt=2),
    created_at=1,
    labels={"qos": "BE"},
    annotations={"x": "y"},
    runtime_handler="kata",
)
CONTAINER_STATUS = cri_pb2.ContainerStatus(
    id="c1",
    metadata=cri_pb2.ContainerMetadata(name="main", attempt=1),
    labels={"l": "not read"},
    annotations={"k": "v"},
)


def pod_status(info: object) -> bytes:
    response = cri_pb2.PodSandboxStatusResponse(status=POD_STATUS, info={"info": json.dumps(info)})
    return response.SerializeToString()


def container_status(info: object, resources: cri_pb2.LinuxContainerResources | None = None) -> bytes:
    response = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": json.dumps(info)})
    if resources is not None:
        response.status.resources.linux.CopyFrom(resources)
    return response.SerializeToString()


def with_value(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy of a document that has a value at a path of keys."""
    copy = deepcopy(document)
    *parents, last = path.split(".")
    inner = copy
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return copy


def container(info: object) -> ContainerInfo:
    return status.read_container_status(container_status(info), "c1")


def pod(info: object) -> PodInfo:
    return status.read_pod_status(pod_status(info), "p1")


def test_the_verbose_status_is_asked_for() -> None:
    pod = cri_pb2.PodSandboxStatusRequest.FromString(status.pod_status_request("p1"))
    assert pod == cri_pb2.PodSandboxStatusRequest(pod_sandbox_id="p1", verbose=True)
    request = cri_pb2.ContainerStatusRequest.FromString(status.container_status_request("c1"))
    assert request == cri_pb2.ContainerStatusRequest(container_id="c1", verbose=True)


# ---- pods


def test_a_status_without_the_verbose_part_is_enough_for_a_state() -> None:
    pod = cri_pb2.PodSandboxStatusRequest.FromString(status.pod_status_request("p1", verbose=False))
    assert (pod.pod_sandbox_id, pod.verbose) == ("p1", False)
    container = cri_pb2.ContainerStatusRequest.FromString(status.container_status_request("c1", verbose=False))
    assert (container.container_id, container.verbose) == ("c1", False)


@pytest.mark.parametrize("name", cri_pb2.PodSandboxState.keys())
def test_the_state_of_a_pod(name: str) -> None:
    state = cri_pb2.PodSandboxState.Value(name)
    response = cri_pb2.PodSandboxStatusResponse(status=cri_pb2.PodSandboxStatus(id="p1", state=state))
    assert status.read_pod_state(response.SerializeToString()) == getattr(api_pb2, name)


@pytest.mark.parametrize("name", cri_pb2.ContainerState.keys())
def test_the_state_of_a_container(name: str) -> None:
    state = cri_pb2.ContainerState.Value(name)
    response = cri_pb2.ContainerStatusResponse(status=cri_pb2.ContainerStatus(id="c1", state=state))
    assert status.read_container_state(response.SerializeToString()) == getattr(api_pb2, name)


@pytest.mark.parametrize("read", [status.read_pod_state, status.read_container_state])
def test_a_state_that_cannot_be_read(read: Callable[[bytes], object]) -> None:
    with pytest.raises(Unreadable):
        read(b"\x0a\x05canary")


def test_pod() -> None:
    assert pod(POD_INFO) == PodInfo(
        id="p1",
        name="web",
        uid="u-1",
        namespace="shop",
        attempt=2,
        runtime_handler="kata",
        labels={"qos": "BE"},
        annotations={"x": "y"},
        cgroup_parent="/kubepods/besteffort/podu-1",
        overhead=Resources(cpu_shares=5),
        resources=Resources(cpu_quota=-1),
    )


def test_pod_whose_resources_were_updated() -> None:
    info = {**POD_INFO, "overhead": {"linux": {"cpu_shares": 6}}, "resources": {"linux": {"cpu_quota": 7}}}
    read = pod(info)
    assert (read.overhead, read.resources) == (Resources(cpu_shares=6), Resources(cpu_quota=7))


@pytest.mark.parametrize(
    ("info", "parent"),
    [
        ({}, None),
        (None, None),
        ({"config": None, "runtimeSpec": None}, None),
        ({"config": {"linux": None}}, None),
        ({"config": {"linux": {}}}, None),
        ({"config": {"linux": {"cgroup_parent": 5}}}, None),
        ({"config": {"linux": {"cgroup_parent": ""}}}, ""),
        ({"config": None, "runtimeSpec": {"linux": {"cgroupsPath": "/kube/u-1/crio-p1"}}}, "/kube/u-1"),
        ({"runtimeSpec": {"linux": {"cgroupsPath": "kube-u_1.slice:crio:p1"}}}, "/kube.slice/kube-u_1.slice"),
        ({"config": {}, "runtimeSpec": {"linux": {"cgroupsPath": "/k8s.io/p1"}}}, ""),
        ({"runtimeSpec": {"linux": {"cgroupsPath": "/crio/crio-p1"}}}, ""),
    ],
)
def test_pod_of_a_runtime_that_tells_less(info: object, parent: str | None) -> None:
    read = pod(info)
    assert (read.id, read.name, read.labels) == ("p1", "web", {"qos": "BE"})
    assert (read.cgroup_parent, read.overhead, read.resources) == (parent, None, None)


def test_the_handler_of_cri_o_stands_in_its_spec_and_its_label_is_left_out() -> None:
    labels = {"io.kubernetes.container.name": "POD", "a": "b"}
    response = cri_pb2.PodSandboxStatusResponse(status=cri_pb2.PodSandboxStatus(labels=labels))
    handler = {"io.kubernetes.cri-o.RuntimeHandler": "kata"}
    response.info["info"] = json.dumps({"runtimeSpec": {"annotations": handler}})
    assert status.read_pod_status(response.SerializeToString(), "p1") == PodInfo(
        "p1", runtime_handler="kata", labels={"a": "b"}, cgroup_parent=None
    )


def test_pod_without_verbose_status() -> None:
    response = cri_pb2.PodSandboxStatusResponse(status=POD_STATUS, info={"other": "no JSON"})
    read = status.read_pod_status(response.SerializeToString(), "p1")
    assert (read.annotations, read.cgroup_parent) == ({"x": "y"}, None)


# ---- containers


def test_container() -> None:
    assert container(CONTAINER_INFO) == ContainerInfo(
        id="c1",
        pod_id="p1",
        name="main",
        attempt=1,
        annotations={"k": "v"},
        resources=RUNS,
        envs={"A": "2", "U": "é<&>😀", "EMPTY": ""},
        cgroup_parent="/kubepods/besteffort/podu-1",
    )


def test_container_without_verbose_status() -> None:
    response = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS).SerializeToString()
    expected = ContainerInfo(id="c1", name="main", attempt=1, annotations={"k": "v"})
    assert status.read_container_status(response, "c1") == expected


def test_resources_of_the_status_come_before_those_of_the_spec() -> None:
    told = cri_pb2.LinuxContainerResources(cpu_shares=300, memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9)
    read = status.read_container_status(container_status(CONTAINER_INFO, told), "c1")
    asked = Resources(cpu_quota=50000, memory_limit_in_bytes=9, cpuset_cpus="0", cpu_shares=300)
    assert read.resources == asked
    bare = status.read_container_status(container_status({}, told), "c1")
    assert bare.resources == Resources(cpu_shares=300, memory_limit_in_bytes=9), "a swap limit that nobody asked for"


@pytest.mark.parametrize(
    ("asked", "runs", "expected"),
    [
        pytest.param({}, {"limit": 5, "swap": 5}, Resources(memory_limit_in_bytes=5), id="containerd's default"),
        pytest.param(
            {"memory_swap_limit_in_bytes": 5},
            {"limit": 5, "swap": 5},
            Resources(memory_limit_in_bytes=5, memory_swap_limit_in_bytes=5),
            id="asked for",
        ),
        pytest.param(
            {},
            {"limit": 5, "swap": -1},
            Resources(memory_limit_in_bytes=5, memory_swap_limit_in_bytes=-1),
            id="set by an update",
        ),
        pytest.param(
            {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 6, "hugepage_limits": [{"page_size": "2MB"}]},
            {"limit": 4},
            Resources(memory_limit_in_bytes=4, memory_swap_limit_in_bytes=6, hugepage_limits={"2MB": 0}),
            id="not supported by the machine",
        ),
        pytest.param(None, {}, None, id="neither"),
        pytest.param({}, {}, Resources(), id="asked for nothing"),
    ],
)
def test_effective_resources(asked: object, runs: object, expected: Resources | None) -> None:
    spec = {"linux": {"resources": {"memory": runs}}}
    info = {"config": {"metadata": {"name": "main"}, "linux": {"resources": asked}}, "runtimeSpec": spec}
    assert container(info).resources == expected


@pytest.mark.parametrize(
    ("given", "runs", "expected"),
    [
        ([{"key": "A", "value": "1"}], [], {"A": "1"}),
        ([{"key": "A", "value": "1"}], ["A=nri=2"], {"A": "nri=2"}),
        ([{"key": "A"}], ["A"], {"A": ""}),
        ([{"key": "A", "value": "w6k="}], ["A=é"], {"A": "é"}),
        ([{"key": "A", "value": "w6k="}], ["A=w6k="], {"A": "w6k="}),
        ([{"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
        ([{"key": "A", "value": "77+9"}], ["A=\ufffd"], {"A": "\ufffd"}),
        ([{"key": "A", "value": "77+9!"}], ["A=\ufffd"], {}),
        ([{"key": "A", "value": "\ufffd"}], ["A=\ufffd"], {}),
        ([{"key": "\ufffd", "value": "1"}], ["\ufffd=1"], {}),
        ([{"key": "A", "value": "77+9"}, {"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
        ([], ["IMAGE=1"], {}),
        (None, ["IMAGE=1"], {}),
        (5, ["IMAGE=1", "BAD=\ufffd", None, "NONE"], {"IMAGE": "1"}),
    ],
)
def test_envs(given: object, runs: list[str], expected: dict[str, str]) -> None:
    info = {"config": {"envs": given}, "runtimeSpec": {"process": {"env": runs}}}
    assert container(info).envs == expected


def test_the_envs_of_a_runtime_that_tells_no_config_are_those_that_run() -> None:
    """So does CRI-O; which of them the image has nobody tells."""
    assert container({"runtimeSpec": {"process": {"env": ["PATH=/bin", "A=1"]}}}).envs == {"PATH": "/bin", "A": "1"}


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("/kubepods/burstable/podu/c1", "/kubepods/burstable/podu"),
        ("/k8s.io/c1", ""),
        ("/c1", ""),
        ("", ""),
        (
            "kubepods-burstable-podu_1.slice:cri-containerd:c1",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
        ),
        ("system.slice:cri-containerd:c1", "/system.slice"),
    ],
)
def test_cgroup_parent(path: str, parent: str) -> None:
    assert container({"runtimeSpec": {"linux": {"cgroupsPath": path}}}).cgroup_parent == parent


# ---- what is unknown


UNKNOWN = [
    ("sandboxID", 5, {"pod_id": ""}),
    ("config.envs", 5, {"envs": {"PATH": "/bin", "HOSTNAME": "vm", "A": "2", "U": "é<&>😀", "EMPTY": ""}}),
    ("config.envs", ["canary", {"key": "A", "value": 5}], {"envs": {"A": "2"}}),
    ("config.linux.resources.memory_swap_limit_in_bytes", True, {}),
    ("config.linux.resources.unified", {"a": 1}, {}),
    (
        "runtimeSpec.process",
        [],
        {"resources": replace(RUNS, oom_score_adj=0), "envs": {"A": "2", "U": "é<&>😀", "EMPTY": ""}},
    ),
    ("runtimeSpec.process.env", [None, "canary\udfff"], {}),
    ("runtimeSpec.process.oomScoreAdj", 1.5, {"resources": replace(RUNS, oom_score_adj=0)}),
    ("runtimeSpec.linux.resources.cpu.shares", "canary", {"resources": replace(RUNS, cpu_shares=0)}),
    ("runtimeSpec.linux.resources.cpu.quota", 2**63, {"resources": replace(RUNS, cpu_quota=50000)}),
    ("runtimeSpec.linux.resources.cpu.cpus", 1, {"resources": replace(RUNS, cpuset_cpus="0")}),
    (
        "runtimeSpec.linux.resources.hugepageLimits",
        [{"pageSize": "2MB", "limit": -1}],
        {"resources": replace(RUNS, hugepage_limits={})},
    ),
    (
        "runtimeSpec.linux.resources.hugepageLimits",
        [{"limit": 1}, None],
        {"resources": replace(RUNS, hugepage_limits={})},
    ),
    (
        "runtimeSpec.linux.resources.unified",
        {"\ud800": "x", "k": "v"},
        {"resources": replace(RUNS, unified={"k": "v"})},
    ),
    ("runtimeSpec.linux.cgroupsPath", "\ud800", {"cgroup_parent": ""}),
    ("runtimeSpec.linux.cgroupsPath", None, {"cgroup_parent": ""}),
]


@pytest.mark.parametrize(("path", "value", "changed"), UNKNOWN, ids=[f"{path}={value!r}" for path, value, _ in UNKNOWN])
def test_one_part_that_cannot_be_read_is_unknown(path: str, value: object, changed: dict[str, Any]) -> None:
    assert container(with_value(CONTAINER_INFO, path, value)) == replace(container(CONTAINER_INFO), **changed)


@pytest.mark.parametrize("text", [r"\udc00", r"\uDC00", r"\ud83d", r"\uD83D canary"])
def test_half_a_surrogate_pair_is_no_text(text: str) -> None:
    info = json.dumps(CONTAINER_INFO).replace("/kubepods", text)
    message = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": info}).SerializeToString()
    assert status.read_container_status(message, "c1").cgroup_parent == ""


@pytest.mark.parametrize("text", ["", "canary", "[" * 100_000, '{"pid": ' + "9" * 5000 + "}", "[]", "5"])
def test_without_a_document_the_plain_status_is_used(text: str) -> None:
    message = cri_pb2.PodSandboxStatusResponse(status=POD_STATUS, info={"info": text}).SerializeToString()
    read = status.read_pod_status(message, "p1")
    assert (read.id, read.uid, read.annotations, read.cgroup_parent) == ("p1", "u-1", {"x": "y"}, None)


READERS = (status.read_pod_status, status.read_container_status)


@pytest.mark.parametrize("message", [b"", b"\x0a\x00", b"\x12\x00"])
def test_a_status_without_an_id_is_of_what_was_asked_for(message: bytes) -> None:
    for read in READERS:
        assert read(message, "asked").id == "asked"


def test_what_is_no_message_cannot_be_read() -> None:
    for read in READERS:
        with pytest.raises(Unreadable) as raised:
            read(b"\x0a\x05canary", "asked")
        assert "canary" not in str(raised.value)
