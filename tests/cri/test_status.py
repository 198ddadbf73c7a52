"""Parsing statuses and lists of any runtime; the JSON is containerd 1.6.20's, shortened."""

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.cri import status
from runtimeproxy.hookapi import codec
from runtimeproxy.model import hookpoints
from runtimeproxy.model.fields import ContainerInfo, HookRequest, PodInfo, Resources
from tests.fakes import cri_pb2 as cri

POD_INFO: dict[str, Any] = {
    "pid": 18355,
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
ENVS = [("A", "1"), ("LOST", "\ufffd"), ("A", "2"), ("U", "é<&>😀")]
CONTAINER_INFO: dict[str, Any] = {
    "sandboxID": "p1",
    "config": {
        "metadata": {"name": "main"},
        "envs": [*({"key": key, "value": value} for key, value in ENVS), {"key": "EMPTY"}],
        "annotations": {"k": "v"},
        "linux": {"resources": {"cpu_quota": 50000, "memory_limit_in_bytes": 2**27, "cpuset_cpus": "0"}},
    },
    "runtimeSpec": {
        "process": {
            "env": ["PATH=/bin", "HOSTNAME=vm", *(f"{key}={value}" for key, value in ENVS), "EMPTY="],
            "oomScoreAdj": 500,
        },
        "linux": {
            "resources": {
                "memory": {"limit": 2**28, "swap": 2**28},
                "cpu": {"shares": 200, "quota": -1, "period": 100000, "cpus": "0-1", "mems": "0"},
                "hugepageLimits": [{"pageSize": "2MB", "limit": 1}, {"pageSize": "2MB", "limit": 2**64 - 1}],
                "unified": {"memory.high": "max"},
            },
            "cgroupsPath": "/kubepods/besteffort/podu-1/c1",
        },
    },
}
CPU: Any = {"cpu_period": 100000, "cpu_quota": -1, "cpu_shares": 200, "cpuset_cpus": "0-1", "cpuset_mems": "0"}
MORE: Any = {"hugepage_limits": {"2MB": 2**64 - 1}, "unified": {"memory.high": "max"}}
RUNNING = Resources(**CPU, **MORE, memory_limit_in_bytes=2**28, oom_score_adj=500)
METADATA = {"name": "web", "uid": "u-1", "namespace": "shop", "attempt": 3}
POD_STATUS = cri.PodSandboxStatus(
    id="p1", metadata=METADATA, labels={"qos": "BE"}, annotations={"x": "y"}, runtime_handler="kata"
)
CONTAINER_STATUS = cri.ContainerStatus(
    id="c1", metadata={"name": "main", "attempt": 1}, labels={"l": "not read"}, annotations={"k": "v"}
)


def pod(info: object, reported: cri.PodSandboxStatus = POD_STATUS) -> PodInfo:
    """Read a pod's status with this document as its verbose part."""
    response = cri.PodSandboxStatusResponse(status=reported, info={"info": json.dumps(info)})
    return status.read_pod_status(response.SerializeToString(), "p1")


def container(info: object, reported: cri.LinuxContainerResources | None = None) -> ContainerInfo:
    """Read a container's status in the same way; ``reported``: the resources next to the verbose part."""
    text = info if isinstance(info, str) else json.dumps(info)
    response = cri.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": text})
    if reported is not None:
        response.status.resources.linux.CopyFrom(reported)
    return status.read_container_status(response.SerializeToString(), "c1")


def with_value(path: str, value: object) -> ContainerInfo:
    """Read a container's status whose document has this value in the place of another one."""
    inner = info = deepcopy(CONTAINER_INFO)
    *parents, last = path.split(".")
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return container(info)


@pytest.mark.parametrize(
    ("name", "started_at", "life"),
    [
        ("CONTAINER_CREATED", 0, Life(started=False, running=False)),
        ("CONTAINER_RUNNING", 5, Life(started=True, running=True)),
        ("CONTAINER_EXITED", 5, Life(started=True, running=False)),
        ("CONTAINER_EXITED", 0, Life(started=False, running=False)),
        ("CONTAINER_EXITED", -(10**18), Life(started=False, running=False)),  # Go's zero time
        ("CONTAINER_UNKNOWN", 0, Life(started=True, running=True)),
    ],
)
def test_life_is_read_from_state_and_start_time(name: str, started_at: int, life: Life) -> None:
    response = cri.ContainerStatusResponse(status={"id": "c1", "state": name, "started_at": started_at})
    assert status.read_container_life(response.SerializeToString()) == life


def test_pod_status_is_read() -> None:
    named = ("p1", "web", "u-1", "shop", 3, "kata", {"qos": "BE"}, {"x": "y"}, "/kubepods/besteffort/podu-1")
    assert pod(POD_INFO) == PodInfo(*named, overhead=Resources(cpu_shares=5), resources=Resources(cpu_quota=-1))
    updated = {**POD_INFO, "overhead": {"linux": {"cpu_shares": 6}}, "resources": {"linux": {"cpu_quota": 7}}}
    assert (pod(updated).overhead, pod(updated).resources) == (Resources(cpu_shares=6), Resources(cpu_quota=7))


def in_group(path: str) -> dict[str, Any]:
    return {"runtimeSpec": {"linux": {"cgroupsPath": path}}}


SLICES = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice"


@pytest.mark.parametrize(
    ("info", "parent"),
    [
        (None, None),
        ({"config": None, "runtimeSpec": None}, None),
        ({"config": {"linux": {"cgroup_parent": 5}}}, None),
        ({"config": {"linux": {"cgroup_parent": ""}}}, ""),
        ({"config": None, **in_group("/kube/u-1/crio-p1")}, "/kube/u-1"),
        (in_group("kubepods-burstable-podu_1.slice:crio:p1"), SLICES),
        (in_group("system.slice:cri-containerd:p1"), "/system.slice"),
        (in_group("/k8s.io/p1"), ""),
        (in_group("/crio/crio-p1"), ""),
    ],
)
def test_cgroup_parent_is_read_from_partial_status(info: Any, parent: str | None) -> None:
    assert pod(info) == replace(pod(POD_INFO), cgroup_parent=parent, overhead=None, resources=None)
    assert container(info).cgroup_parent == (parent or "")


def test_handler_and_envs_of_crio_are_read_from_spec() -> None:
    """It does not report which envs the image has."""
    labels = cri.PodSandboxStatus(labels={"io.kubernetes.container.name": "POD", "a": "b"})
    info = {"runtimeSpec": {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "kata"}}}
    assert pod(info, labels) == PodInfo("p1", runtime_handler="kata", labels={"a": "b"}, cgroup_parent=None)
    assert container({"runtimeSpec": {"process": {"env": ["PATH=/bin", "A=1"]}}}).envs == {"PATH": "/bin", "A": "1"}


@pytest.mark.parametrize("text", ["", "canary", "[" * 100_000, '{"pid": ' + "9" * 5000 + "}", "[]", "5", None])
def test_plain_status_is_used_without_document(text: str | None) -> None:
    info = {"other": "no JSON"} if text is None else {"info": text}
    message = cri.PodSandboxStatusResponse(status=POD_STATUS, info=info).SerializeToString()
    assert status.read_pod_status(message, "p1") == pod({})


def test_container_status_is_read() -> None:
    envs = {"A": "2", "U": "é<&>😀", "EMPTY": ""}
    expected = ContainerInfo("c1", "p1", "main", 1, {"k": "v"}, RUNNING, envs, "/kubepods/besteffort/podu-1")
    assert container(CONTAINER_INFO) == expected
    reported = cri.LinuxContainerResources(cpu_shares=300, memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9)
    requested = Resources(cpu_quota=50000, memory_limit_in_bytes=9, cpuset_cpus="0", cpu_shares=300)
    assert container(CONTAINER_INFO, reported).resources == requested
    without_swap = container({}, reported).resources
    assert without_swap == Resources(cpu_shares=300, memory_limit_in_bytes=9), "a swap limit that was not requested"


def memory(limit: int, swap: int = 0, **more: Any) -> Resources:
    return Resources(memory_limit_in_bytes=limit, memory_swap_limit_in_bytes=swap, **more)


PAGES = {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 6, "hugepage_limits": [{"page_size": "2MB"}]}


@pytest.mark.parametrize(
    ("requested", "running", "expected"),
    [
        pytest.param({}, {"limit": 5, "swap": 5}, memory(5), id="containerd's default"),
        pytest.param({"memory_swap_limit_in_bytes": 5}, {"limit": 5, "swap": 5}, memory(5, 5), id="requested"),
        pytest.param({}, {"limit": 5, "swap": -1}, memory(5, -1), id="set by an update"),
        pytest.param(PAGES, {"limit": 4}, memory(4, 6, hugepage_limits={"2MB": 0}), id="not supported by the machine"),
        pytest.param(None, {}, None, id="neither"),
        pytest.param({}, {}, Resources(), id="nothing requested"),
    ],
)
def test_effective_resources_are_read(requested: object, running: object, expected: Resources | None) -> None:
    spec = {"linux": {"resources": {"memory": running}}}
    assert container({"config": {"linux": {"resources": requested}}, "runtimeSpec": spec}).resources == expected


@pytest.mark.parametrize(
    ("requested", "running", "expected"),
    [
        ([{"key": "A", "value": "1"}], ["A=nri=2"], {"A": "nri=2"}),
        ([{"key": "A"}], ["A"], {"A": ""}),
        ([{"key": "A", "value": "w6k="}], ["A=é"], {"A": "é"}),
        ([{"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
        ([{"key": "A", "value": "77+9"}], ["A=\ufffd"], {"A": "\ufffd"}),
        ([{"key": "A", "value": "\ufffd"}], ["A=\ufffd"], {}),
        ([{"key": "\ufffd", "value": "1"}], ["\ufffd=1"], {}),
        ([{"key": "A", "value": "77+9"}, {"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
        ([], ["IMAGE=1"], {}),
        (5, ["IMAGE=1", "BAD=\ufffd", None, "NONE"], {"IMAGE": "1"}),
    ],
)
def test_envs_are_read_from_config_and_spec(requested: object, running: list[str], expected: dict[str, str]) -> None:
    assert container({"config": {"envs": requested}, "runtimeSpec": {"process": {"env": running}}}).envs == expected


SPEC = "runtimeSpec.linux.resources"
RUNNING_ENVS = {"A": "2", "U": "é<&>😀", "EMPTY": ""}
NO_SCORE, NO_PAGES = replace(RUNNING, oom_score_adj=0), replace(RUNNING, hugepage_limits={})
PARTS: list[tuple[str, object, dict[str, Any]]] = [
    ("sandboxID", 5, {"pod_id": ""}),
    ("config.envs", 5, {"envs": {"PATH": "/bin", "HOSTNAME": "vm", **RUNNING_ENVS}}),
    ("config.envs", ["canary", {"key": "A", "value": 5}], {"envs": {"A": "2"}}),
    ("config.linux.resources.unified", {"a": 1}, {}),
    ("runtimeSpec.process", [], {"resources": NO_SCORE, "envs": RUNNING_ENVS}),
    ("runtimeSpec.process.env", [None, "canary\udfff"], {}),
    ("runtimeSpec.process.oomScoreAdj", 1.5, {"resources": NO_SCORE}),
    (f"{SPEC}.cpu.shares", "canary", {"resources": replace(RUNNING, cpu_shares=0)}),
    (f"{SPEC}.cpu.quota", 2**63, {"resources": replace(RUNNING, cpu_quota=50000)}),
    (f"{SPEC}.hugepageLimits", [{"pageSize": "2MB", "limit": -1}], {"resources": NO_PAGES}),
    (f"{SPEC}.hugepageLimits", [{"limit": 1}, None], {"resources": NO_PAGES}),
    (f"{SPEC}.unified", {"\ud800": "x", "k": "v"}, {"resources": replace(RUNNING, unified={"k": "v"})}),
    ("runtimeSpec.linux.cgroupsPath", "\ud800", {"cgroup_parent": ""}),
]


@pytest.mark.parametrize(("path", "value", "unknown"), PARTS, ids=[f"{path}={value!r}" for path, value, _ in PARTS])
def test_unreadable_part_is_unknown(path: str, value: object, unknown: dict[str, Any]) -> None:
    assert with_value(path, value) == replace(container(CONTAINER_INFO), **unknown)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([path for path, *_ in PARTS]), JSON)
def test_any_value_of_part_is_read(path: str, value: object) -> None:
    read = with_value(path, value)
    assert (read.id, read.name, read.annotations) == ("c1", "main", {"k": "v"})
    codec.encode(hookpoints.BY_NAME["PreStartContainer"], HookRequest(PodInfo(), read))


Read = Callable[[bytes], Any]
LISTS: list[Read] = [lambda message: [*status.pods(message)], lambda message: [*status.containers(message)]]
STATES = [status.read_pod_state, status.read_container_state, status.read_container_life]
STATUSES: list[Read] = [
    lambda message: status.read_pod_status(message, "requested"),
    lambda message: status.read_container_status(message, "requested"),
]


@pytest.mark.parametrize("read", STATUSES)
def test_status_without_id_has_requested_id(read: Read) -> None:
    assert {read(message).id for message in (b"", b"\x0a\x00", b"\x12\x00")} == {"requested"}


@pytest.mark.parametrize("read", [*STATES, *STATUSES, *LISTS])
def test_invalid_message_raises(read: Read) -> None:
    with pytest.raises(Unreadable) as raised:
        read(b"\x0a\x05canary")
    assert "canary" not in str(raised.value)


@given(st.binary(max_size=60), st.sampled_from([*STATUSES, *LISTS]))
def test_any_bytes_are_read_or_unreadable(message: bytes, read: Read) -> None:
    with suppress(Unreadable):
        read(message)


PODS = cri.ListPodSandboxResponse(
    items=[cri.PodSandbox(id="p1", metadata=METADATA, labels={"app": "web"}), cri.PodSandbox(id="p2")]
).SerializeToString()
CONTAINER = cri.Container(id="c1", pod_sandbox_id="p1", metadata={"name": "main", "attempt": 2}).SerializeToString()
NO_TEXT = b"\x42\x08\x0a\x01k\x12\x03\xff\xfe\xfd"
"""A label that is not read."""


def test_list_items_have_id_and_metadata() -> None:
    pods = [PodInfo("p1", "web", "u-1", "shop", 3), PodInfo("p2")]
    assert [*status.pods(PODS)] == [*status.pods(b"\x12\x01x" + PODS + b"\x08\x07\xfa\x3e\x03new")] == pods
    containers = b"\x0a" + bytes((len(CONTAINER + NO_TEXT),)) + CONTAINER + NO_TEXT
    assert [*status.containers(containers)] == [ContainerInfo("c1", "p1", "main", 2)]
    assert [*status.pods(b""), *status.containers(b"")] == []
    items = status.pods(PODS + b"\x0a\x05")
    assert [next(items).id, next(items).id] == ["p1", "p2"], "each is parsed when it is needed"
    with pytest.raises(Unreadable):
        next(items)


# The list, an item, or an id is cut; an id is no text; an item has no id.
INVALID = [b"\x0a", b"\x0a\x05\x0a", b"\x0a\x02\x0a\x07", b"\x0a\x03\x0a\x01\xff", b"\x0a\x00"]


@pytest.mark.parametrize("message", INVALID)
@pytest.mark.parametrize("read", LISTS)
def test_invalid_list_raises(read: Read, message: bytes) -> None:
    with pytest.raises(Unreadable):
        read(message)
