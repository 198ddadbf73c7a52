"""A fake runtime of a shape tells, answers and refuses what a runtime of that kind does."""

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.fakes import cri_pb2, mangles
from tests.fakes.runtime_state import Refused, RuntimeState
from tests.fakes.shapes import (
    CONTAINERD,
    CRI_DOCKERD,
    CRIO,
    NO_VERBOSE,
    SHAPES,
    SHIM_GONE,
    SHIM_SANDBOXER,
    UNKNOWN_CODE,
    Shape,
)

NOT_FOUND, UNKNOWN = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN
SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
MIB = 1 << 20


class Runtime:
    """A runtime of a shape with a pod and a container."""

    def __init__(self, shape: Shape, parent: str = SLICE, handler: str = "") -> None:
        self.state = RuntimeState(shape)
        self.pod = cri_pb2.PodSandboxConfig(labels={"app": "web"}, annotations={"a": "b"})
        self.pod.metadata.name = "web"
        self.pod.linux.cgroup_parent = parent
        run = cri_pb2.RunPodSandboxRequest(config=self.pod, runtime_handler=handler)
        self.pod_id = self.call("RunPodSandbox", run).pod_sandbox_id

    def call(self, method: str, request: Any) -> Any:
        reply = getattr(cri_pb2, f"{method}Response")
        return reply.FromString(self.state.answer("v1", method, request.SerializeToString()))

    def create(self, parent: str | None = None, **resources: Any) -> str:
        request = cri_pb2.CreateContainerRequest(pod_sandbox_id=self.pod_id, sandbox_config=self.pod)
        if parent is not None:
            request.sandbox_config.linux.cgroup_parent = parent
        request.config.envs.add(key="A", value=b"1")
        request.config.linux.resources.MergeFrom(cri_pb2.LinuxContainerResources(**resources))
        return str(self.call("CreateContainer", request).container_id)

    def start(self, container_id: str) -> None:
        self.call("StartContainer", cri_pb2.StartContainerRequest(container_id=container_id))

    def update(self, container_id: str, **resources: Any) -> None:
        linux = cri_pb2.LinuxContainerResources(**resources)
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        self.call("UpdateContainerResources", request)

    def pod_status(self, verbose: bool = True) -> Any:
        return self.call(
            "PodSandboxStatus", cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=self.pod_id, verbose=verbose)
        )

    def pod_told(self) -> Any:
        return json.loads(self.pod_status().info["info"])

    def status(self, container_id: str) -> Any:
        return self.call("ContainerStatus", cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True))

    def told(self, container_id: str) -> Any:
        return json.loads(self.status(container_id).info["info"])


def named(shape: Shape) -> str:
    return shape.name


@pytest.mark.parametrize(
    ("shape", "name"),
    [(CONTAINERD, "containerd"), (CRIO, "cri-o"), (CRI_DOCKERD, "docker"), (NO_VERBOSE, "fake")],
)
def test_version_names_the_runtime(shape: Shape, name: str) -> None:
    assert Runtime(shape).call("Version", cri_pb2.VersionRequest()).runtime_name == name


def test_shapes_have_names_of_their_own() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


# ---- what is told of a pod


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        (CONTAINERD, {"config", "runtimeSpec", "runtimeHandler", "pid"}),
        (CRIO, {"runtimeSpec"}),
        (SHIM_SANDBOXER, {"config", "runtimeSpec", "sandboxMetadata", "pid"}),
        (UNKNOWN_CODE, {"config", "runtimeSpec"}),
    ],
    ids=["containerd", "cri-o", "shim sandboxer", "unknown code"],
)
def test_the_verbose_status_of_a_pod_has_the_parts_of_its_shape(shape: Shape, keys: set[str]) -> None:
    assert keys <= Runtime(shape).pod_told().keys()
    assert ("config" in keys) == ("config" in Runtime(shape).pod_told())


@pytest.mark.parametrize("shape", [CRI_DOCKERD, NO_VERBOSE], ids=named)
def test_a_pod_without_a_verbose_status(shape: Shape) -> None:
    reply = Runtime(shape).pod_status()
    assert not reply.info
    assert reply.status.metadata.name == "web"


def test_a_shim_tells_of_a_pod_in_nulls() -> None:
    told = Runtime(SHIM_SANDBOXER).pod_told()
    assert (told["config"], told["runtimeSpec"], told["sandboxMetadata"]) == (None, None, None)


def test_a_verbose_status_fails_as_not_found_where_the_plain_is_told() -> None:
    runtime = Runtime(SHIM_GONE)
    with pytest.raises(Refused) as raised:
        runtime.pod_status()
    assert raised.value.code is NOT_FOUND
    assert runtime.pod_status(verbose=False).status.id == runtime.pod_id


@pytest.mark.parametrize(
    ("shape", "asked", "status", "listed"),
    [
        (CONTAINERD, "kata", "kata", "kata"),
        (CRIO, "kata", "", ""),
        (CRI_DOCKERD, "kata", "kata", ""),
        (CRI_DOCKERD, "", "runc", ""),
    ],
)
def test_runtime_handlers_are_told_in_part(shape: Shape, asked: str, status: str, listed: str) -> None:
    runtime = Runtime(shape, handler=asked)
    assert runtime.pod_status().status.runtime_handler == status
    [pod] = runtime.call("ListPodSandbox", cri_pb2.ListPodSandboxRequest()).items
    assert pod.runtime_handler == listed


@pytest.mark.parametrize(
    ("parent", "annotation", "path"),
    [
        (SLICE, "kubepods-besteffort-podx.slice", "kubepods-besteffort-podx.slice:crio:{}"),
        ("/kubepods/podx", "/kubepods/podx", "/kubepods/podx/crio-{}"),
        ("", "", None),
    ],
)
def test_cri_o_tells_a_pods_parent_in_its_spec(parent: str, annotation: str, path: str | None) -> None:
    runtime = Runtime(CRIO, parent, handler="kata")
    told = runtime.pod_told()["runtimeSpec"]
    assert told["linux"].get("cgroupsPath") == (path and path.format(runtime.pod_id))
    annotations = told["annotations"]
    assert annotations["io.kubernetes.cri-o.CgroupParent"] == annotation
    assert annotations["io.kubernetes.cri-o.RuntimeHandler"] == "kata"
    assert json.loads(annotations["io.kubernetes.cri-o.Labels"]) == {
        "app": "web",
        "io.kubernetes.container.name": "POD",
    }
    assert (annotations["a"], annotations["app"]) == ("b", "web")


def test_cri_o_adds_a_label_to_a_pod_that_has_any() -> None:
    runtime = Runtime(CRIO)
    assert runtime.pod_status().status.labels == {"app": "web", "io.kubernetes.container.name": "POD"}
    runtime.pod.labels.clear()
    runtime.pod_id = runtime.call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=runtime.pod)).pod_sandbox_id
    assert runtime.pod_status().status.labels == {}


# ---- what is told of a container


def test_cri_o_tells_of_a_container_by_what_runs() -> None:
    runtime = Runtime(CRIO)
    container_id = runtime.create(memory_limit_in_bytes=64 * MIB)
    told = runtime.told(container_id)
    assert told.keys() == {"sandboxID", "pid", "runtimeSpec", "privileged"}
    spec = told["runtimeSpec"]
    assert "A=1" in spec["process"]["env"]
    assert spec["linux"]["resources"]["cpu"] == {"shares": 0, "quota": 0, "period": 0}
    assert spec["linux"]["resources"]["memory"] == {"limit": 64 * MIB, "swap": 64 * MIB}
    assert runtime.status(container_id).status.resources.linux.memory_swap_limit_in_bytes == 64 * MIB
    runtime.update(container_id, memory_limit_in_bytes=128 * MIB, memory_swap_limit_in_bytes=64 * MIB, oom_score_adj=5)
    updated = runtime.status(container_id).status.resources.linux
    assert (updated.memory_limit_in_bytes, updated.memory_swap_limit_in_bytes) == (128 * MIB, 128 * MIB)
    assert updated.oom_score_adj == 0


def test_cri_dockerd_tells_of_a_container_next_to_nothing() -> None:
    runtime = Runtime(CRI_DOCKERD)
    container_id = runtime.create(memory_limit_in_bytes=64 * MIB)
    assert runtime.told(container_id) == {"sandboxID": runtime.pod_id, "pid": 1}
    assert not runtime.status(container_id).status.HasField("resources")
    assert runtime.state.containers[container_id].resources.memory_swap_limit_in_bytes == 64 * MIB


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        (CONTAINERD, "/other/{}"),
        (SHIM_SANDBOXER, "/other/{}"),
        (CRIO, "kubepods-besteffort-podx.slice:crio:{}"),
        (CRI_DOCKERD, "/other/{}"),
    ],
    ids=["containerd", "shim sandboxer", "cri-o", "cri-dockerd"],
)
def test_whose_parent_a_container_runs_below(shape: Shape, path: str) -> None:
    runtime = Runtime(shape)
    container_id = runtime.create(parent="/other")
    assert runtime.state.containers[container_id].cgroup_path == path.format(container_id)


# ---- codes

OF_PODS = ("PodSandboxStatus", "StopPodSandbox", "RemovePodSandbox", "CreateContainer")
OF_CONTAINERS = ("ContainerStatus", "StartContainer", "UpdateContainerResources", "StopContainer", "RemoveContainer")
N, U, OK = NOT_FOUND, UNKNOWN, None


@pytest.mark.parametrize(
    ("shape", "of_pods", "of_containers"),
    [
        (CONTAINERD, (N, N, OK, N), (N, N, N, N, OK)),
        (CRIO, (N, OK, OK, U), (N, N, U, OK, N)),
        (CRI_DOCKERD, (U, OK, OK, U), (U, U, U, N, U)),
        (UNKNOWN_CODE, (U, U, U, U), (U, U, U, U, U)),
    ],
    ids=["containerd", "cri-o", "cri-dockerd", "unknown code"],
)
def test_each_shape_has_its_codes_for_an_id_that_is_not_there(shape: Shape, of_pods: Any, of_containers: Any) -> None:
    runtime = Runtime(shape)
    answered = {method: code(runtime, method, "pod_sandbox_id") for method in OF_PODS}
    answered |= {method: code(runtime, method, "container_id") for method in OF_CONTAINERS}
    assert tuple(answered.values()) == (*of_pods, *of_containers)


def code(runtime: Runtime, method: str, field: str) -> grpc.StatusCode | None:
    refused = refusal(lambda: runtime.call(method, getattr(cri_pb2, f"{method}Request")(**{field: "gone"})))
    assert refused is None or "gone" in refused.details
    return None if refused is None else refused.code


# ---- values

ENDLESS = {"memory_limit_in_bytes": -1}
LOW = {"memory_limit_in_bytes": 8 * MIB}
UNEQUAL: dict[str, Any] = {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 32 * MIB}


@pytest.mark.parametrize(
    ("shape", "resources", "text"),
    [
        (CONTAINERD, ENDLESS, ""),
        (CONTAINERD, LOW, ""),
        (CRIO, ENDLESS, "set memory limit -1 too low; should be at least 12582912 bytes"),
        (CRIO, LOW, "set memory limit 8388608 too low; should be at least 12582912 bytes"),
        (CRIO, UNEQUAL, "memory swap limit (33554432) cannot be lower than memory limit (67108864)"),
        (CRI_DOCKERD, ENDLESS, "Minimum memory limit allowed is 6MB"),
        (CRI_DOCKERD, LOW, ""),
        (CRI_DOCKERD, UNEQUAL, ""),
    ],
)
def test_what_a_create_refuses(shape: Shape, resources: dict[str, Any], text: str) -> None:
    runtime = Runtime(shape)
    assert text in refused_values(lambda: runtime.create(**resources))
    assert bool(runtime.state.containers) is (not text)


@pytest.mark.parametrize(
    ("shape", "resources", "text"),
    [
        (CONTAINERD, ENDLESS, ""),
        (CONTAINERD, UNEQUAL, "memory+swap limit must be >= memory limit"),
        (CRIO, ENDLESS, "memory validation failed: invalid memory limit: -1 bytes (cannot be negative)"),
        (CRIO, LOW, ""),
        (CRIO, UNEQUAL, ""),
        (CRI_DOCKERD, ENDLESS, "failed to update container"),
        (CRI_DOCKERD, UNEQUAL, ""),
    ],
)
def test_what_an_update_refuses(shape: Shape, resources: dict[str, Any], text: str) -> None:
    runtime = Runtime(shape)
    container_id = runtime.create()
    assert text in refused_values(lambda: runtime.update(container_id, **resources))
    assert len(runtime.state.containers[container_id].updates) == (not text)


def test_containerd_refuses_a_low_swap_limit_at_the_start() -> None:
    runtime = Runtime(CONTAINERD)
    container_id = runtime.create(**UNEQUAL)
    assert "memory+swap limit" in refused_values(lambda: runtime.start(container_id))


def refused_values(call: Callable[[], object]) -> str:
    refused = refusal(call)
    assert refused is None or (refused.code, bool(refused.details)) == (UNKNOWN, True)
    return "" if refused is None else refused.details


def refusal(call: Callable[[], object]) -> Refused | None:
    try:
        call()
    except Refused as refused:
        return refused
    return None


# ---- what no runtime should answer


@pytest.mark.parametrize(
    ("path", "value", "left"),
    [
        (("config", "linux", "cgroup_parent"), None, {"cgroup_parent": None}),
        (("config", "linux", "cgroup_parent"), mangles.ABSENT, {}),
        (("config", "linux"), 7, 7),
        (("config", "nowhere", "deeper"), 7, {"cgroup_parent": SLICE}),
    ],
)
def test_a_part_of_the_verbose_status_is_replaced(path: tuple[str, ...], value: Any, left: Any) -> None:
    runtime = Runtime(CONTAINERD)
    runtime.state.mangle = mangles.info_part("PodSandboxStatus", path, value)
    assert runtime.pod_told()["config"]["linux"] == left


def test_the_verbose_text_and_single_fields_are_replaced() -> None:
    runtime = Runtime(CONTAINERD)
    container_id = runtime.create()
    runtime.state.mangle = mangles.info_text("PodSandboxStatus", "{")
    assert runtime.pod_status().info["info"] == "{"
    assert runtime.told(container_id)["sandboxID"] == runtime.pod_id
    runtime.state.mangle = mangles.without("PodSandboxStatus", "labels", "metadata")
    status = runtime.pod_status().status
    assert (status.id, status.labels, status.HasField("metadata")) == (runtime.pod_id, {}, False)
    runtime.state.mangle = lambda method, reply: b"\xff" if method == "PodSandboxStatus" else reply
    request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=runtime.pod_id)
    assert runtime.state.answer("v1", "PodSandboxStatus", request.SerializeToString()) == b"\xff"
