"""Tests of reading statuses; the JSON has the form that containerd 1.6.20 gives, shortened."""

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    return status.read_container_status(container_status(info))


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
    assert status.read_pod_status(pod_status(POD_INFO)) == PodInfo(
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
    """containerd 2 adds what UpdatePodSandboxResources set."""
    info = {**POD_INFO, "overhead": {"linux": {"cpu_shares": 6}}, "resources": {"linux": {"cpu_quota": 7}}}
    pod = status.read_pod_status(pod_status(info))
    assert (pod.overhead, pod.resources) == (Resources(cpu_shares=6), Resources(cpu_quota=7))


@pytest.mark.parametrize("info", [{}, None, {"config": None}, {"config": {"linux": None}}, {"config": {"linux": {}}}])
def test_pod_of_a_runtime_that_tells_less(info: object) -> None:
    pod = status.read_pod_status(pod_status(info))
    assert (pod.id, pod.name, pod.labels) == ("p1", "web", {"qos": "BE"})
    assert (pod.cgroup_parent, pod.overhead, pod.resources) == ("", None, None)


def test_pod_without_verbose_status() -> None:
    response = cri_pb2.PodSandboxStatusResponse(status=POD_STATUS, info={"other": "no JSON"})
    assert status.read_pod_status(response.SerializeToString()).annotations == {"x": "y"}


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
    assert status.read_container_status(response) == expected


def test_resources_of_the_status_come_before_those_of_the_spec() -> None:
    told = cri_pb2.LinuxContainerResources(cpu_shares=300, memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9)
    read = status.read_container_status(container_status(CONTAINER_INFO, told))
    asked = Resources(cpu_quota=50000, memory_limit_in_bytes=9, cpuset_cpus="0", cpu_shares=300)
    assert read.resources == asked
    bare = status.read_container_status(container_status({}, told))
    assert bare.resources == Resources(cpu_shares=300, memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9)


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
    ],
)
def test_envs(given: object, runs: list[str], expected: dict[str, str]) -> None:
    info = {"config": {"envs": given}, "runtimeSpec": {"process": {"env": runs}}}
    assert container(info).envs == expected


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


# ---- what cannot be read


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("sandboxID", 5, "sandboxID"),
        ("config", [], "config"),
        ("config.envs", {}, "envs"),
        ("config.envs", ["canary"], "envs"),
        ("config.envs", [{"key": "A", "value": 5}], "value"),
        ("config.linux.resources", "canary", "resources"),
        ("config.linux.resources.cpu_quota", "canary", "cpu_quota"),
        ("config.linux.resources.cpu_quota", 1.5, "cpu_quota"),
        ("config.linux.resources.cpu_quota", True, "cpu_quota"),
        ("config.linux.resources.cpu_quota", 2**63, "out of range in cpu_quota"),
        ("config.linux.resources.cpuset_cpus", 1, "cpuset_cpus"),
        ("config.linux.resources.hugepage_limits", [{"page_size": "2MB", "limit": -1}], "out of range in limit"),
        ("config.linux.resources.unified", {"a": 1}, "text"),
        ("config.linux.resources.unified", {"\ud800": "canary"}, "text"),
        ("runtimeSpec.process.env", [None], "text"),
        ("runtimeSpec.process.env", ["canary\udfff"], "text"),
        ("runtimeSpec.linux.resources.cpu", [], "cpu"),
        ("runtimeSpec.linux.cgroupsPath", "\ud800", "text"),
    ],
)
def test_unreadable_value(path: str, value: object, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as raised:
        container(with_value(CONTAINER_INFO, path, value))
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("text", [r"\udc00", r"\uDC00", r"\ud83d", r"\uD83D canary"])
def test_half_a_surrogate_pair_anywhere_is_no_text(text: str) -> None:
    info = json.dumps(CONTAINER_INFO).replace("/kubepods", text)
    message = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": info}).SerializeToString()
    with pytest.raises(Unreadable, match="text") as raised:
        status.read_container_status(message)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(("text", "meant"), [(r"\ud83d\ude00", "😀"), (r"\uD83D\uDE00", "😀"), (r"\\ud83d", r"\ud83d")])
def test_a_whole_pair_and_what_only_looks_like_half_of_one_are_texts(text: str, meant: str) -> None:
    info = json.dumps({"config": {"envs": [{"key": "A", "value": "VALUE"}]}}).replace("VALUE", text)
    message = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": info}).SerializeToString()
    assert status.read_container_status(message).envs == {"A": meant}


@pytest.mark.parametrize("name", ["canary", ""])
def test_a_map_with_a_value_that_is_no_text_is_told_of_without_its_keys(name: str) -> None:
    with pytest.raises(Unreadable) as raised:
        container(with_value(CONTAINER_INFO, "config.linux.resources.unified", {name: 5}))
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "canary", "[" * 100_000, '{"pid": ' + "9" * 5000 + "}", "[]", "5"])
def test_unreadable_document(text: str) -> None:
    pod = cri_pb2.PodSandboxStatusResponse(status=POD_STATUS, info={"info": text}).SerializeToString()
    with pytest.raises(Unreadable, match="verbose status") as raised:
        status.read_pod_status(pod)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("message", [b"", b"\x0a\x00", b"\x12\x00", b"\x0a\x05canary"])
def test_status_without_an_id(message: bytes) -> None:
    for read in (status.read_pod_status, status.read_container_status):
        with pytest.raises(Unreadable):
            read(message)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_unreadable(message: bytes) -> None:
    for read in (status.read_pod_status, status.read_container_status):
        with suppress(Unreadable):
            assert read(message).id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def paths(document: dict[str, Any], above: str = "") -> list[str]:
    """Name every place in a document, as with_value takes it."""
    here = [above + key for key in document]
    return here + [
        path for key, value in document.items() if isinstance(value, dict) for path in paths(value, f"{above}{key}.")
    ]


@settings(deadline=None)
@given(st.sampled_from([path for path in paths(CONTAINER_INFO) if "memory.high" not in path]), JSON)
def test_any_value_anywhere_is_read_or_unreadable(path: str, value: object) -> None:
    with suppress(Unreadable):
        assert container(with_value(CONTAINER_INFO, path, value)).id == "c1"
