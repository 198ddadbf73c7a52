"""The shapes of container runtimes: their reports of runtime and pods, their status codes, the requests they refuse.

Sources: containerd's internal/cri, cri-o's server and internal/{factory,config/cgmgr}, Mirantis/cri-dockerd's core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import grpc

from tests.fakes import cri_pb2, inside
from tests.fakes.inside import Json

Resources: TypeAlias = cri_pb2.LinuxContainerResources
ReportPod = Callable[[str, cri_pb2.PodSandboxConfig, str], Json]
ReportContainer = Callable[[str, str, cri_pb2.CreateContainerRequest, Resources, str], Json]
Check = Callable[[Resources], bool]  # whether a request with these resources is refused
SetResources = Callable[[Resources], Resources]  # the resources that a runtime sets for those of a request

NOT_FOUND, UNKNOWN = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN
CREATE, START, UPDATE = "CreateContainer", "StartContainer", "UpdateContainerResources"


def unchanged(value: Any) -> Any:
    return value


def empty(value: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    runtime_name: str = "containerd"
    pod_info: ReportPod | None = inside.pod_info  # the verbose JSON of PodSandboxStatus
    container_info: ReportContainer | None = inside.container_info
    verbose_pod_fails: grpc.StatusCode | None = None  # for an existing pod whose plain status is answered
    reports_resources: bool = True  # in ContainerStatus
    status_handler: Callable[[str], str] = unchanged  # PodSandboxStatus' runtime handler for the requested one
    listed_handler: Callable[[str], str] = unchanged
    pod_labels: Mapping[str, str] = field(default_factory=dict)  # added to those of a pod that has any
    absent: grpc.StatusCode = NOT_FOUND  # the answer for an id that does not exist
    absent_by_method: Mapping[str, grpc.StatusCode | None] = field(default_factory=dict)  # None: the method succeeds
    refuses: Mapping[str, Sequence[Check]] = field(default_factory=dict)  # a start's see the resources of the create
    created: SetResources = unchanged
    updated: SetResources = unchanged
    cgroup_path: Callable[[str, str], str] = "{}/{}".format  # of a container, from its parent and its id
    own_parent: bool = False  # a container runs below its pod's parent, regardless of sandbox_config in its create
    repeats_answers: bool = False
    """Whether a create is finished after its caller has disconnected, and the next create with its name returns the
    result (CRI-O's internal/resourcestore)."""


def swap_below_memory(resources: Resources) -> bool:
    return 0 < resources.memory_swap_limit_in_bytes < resources.memory_limit_in_bytes


def memory_below(minimum: int) -> Check:
    """Refuse a memory limit below ``minimum`` bytes, including -1 for "no limit"; 0 is not set."""
    return lambda resources: resources.memory_limit_in_bytes != 0 and resources.memory_limit_in_bytes < minimum


def adapt_resources(*dropped: str, requested_swap: bool = False) -> SetResources:
    """Set all but ``dropped``, with swap equal to memory; with ``requested_swap`` only if no swap was requested."""

    def result(requested: Resources) -> Resources:
        resources = Resources()
        resources.CopyFrom(requested)
        if not (requested_swap and requested.memory_swap_limit_in_bytes):
            resources.memory_swap_limit_in_bytes = requested.memory_limit_in_bytes
        for name in dropped:
            resources.ClearField(name)
        return resources

    return result


# CRI-O: a verbose status is little more than an OCI runtime spec; there is no config
CRIO_POD_LABELS: Mapping[str, str] = {"io.kubernetes.container.name": "POD"}


def crio_cgroup_path(parent: str, subject_id: str) -> str:
    """Return the systemd manager's path for a slice or without a parent, else cgroupfs's."""
    last = parent.rpartition("/")[2] or "system.slice"
    return f"{last}:crio:{subject_id}" if last.endswith(".slice") else f"{parent}/crio-{subject_id}"


def crio_pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    spec = inside.pod_info(pod_id, config, runtime_handler)["runtimeSpec"]
    linux = {key: value for key, value in spec["linux"].items() if key != "cgroupsPath"}
    if parent := config.linux.cgroup_parent:
        linux["cgroupsPath"] = crio_cgroup_path(parent, pod_id)
    own = _crio_annotations(ContainerType="sandbox", SandboxID=pod_id, RuntimeHandler=runtime_handler)
    annotations = {**config.annotations, **config.labels, **CRIO_POD_LABELS, **own}
    return {"runtimeSpec": {**spec, "annotations": annotations, "linux": linux}}


def crio_container_info(
    container_id: str, pod_id: str, request: cri_pb2.CreateContainerRequest, resources: Resources, path: str
) -> Json:
    """Return CRI-O's report of a container; the spec's annotations include the pod's."""
    spec = inside.container_info(container_id, pod_id, request, resources, path)["runtimeSpec"]
    config, set_resources = request.config, spec["linux"]["resources"]
    own = _crio_annotations(ContainerType="container", SandboxID=pod_id, ImageName=config.image.image)
    annotations = {**request.sandbox_config.annotations, **config.annotations, **config.labels, **own}
    numbers = {key: getattr(resources, f"cpu_{key}") for key in ("shares", "quota", "period")}  # present even if zero
    linux = {**spec["linux"], "resources": {**set_resources, "cpu": {**set_resources.get("cpu", {}), **numbers}}}
    running_spec = {**spec, "annotations": annotations, "linux": linux}
    return {"sandboxID": pod_id, "pid": 1, "runtimeSpec": running_spec, "privileged": False}


def _crio_annotations(**values: str) -> dict[str, str]:
    return {f"io.kubernetes.cri-o.{key}": value for key, value in values.items()}


def shim_pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    """Return the report of a pod created by a shim: the keys of containerd 2's, most of them without a value."""
    texts = dict.fromkeys(("image", "snapshotKey", "snapshotter", "runtimeType"), "")
    nothing = dict.fromkeys(("runtimeOptions", "config", "runtimeSpec", "cniResult", "sandboxMetadata"))
    return {"pid": 1, "processStatus": "running", "netNamespaceClosed": False, **texts, **nothing}


_IDEMPOTENT = dict.fromkeys(("StopPodSandbox", "RemovePodSandbox", "StopContainer"))
CONTAINERD = Shape(
    "containerd",
    absent_by_method=dict.fromkeys(("RemovePodSandbox", "RemoveContainer")),
    refuses=dict.fromkeys((START, UPDATE), (swap_below_memory,)),
)
CRIO = Shape(
    "cri-o",
    runtime_name="cri-o",
    pod_info=crio_pod_info,
    container_info=crio_container_info,
    status_handler=empty,
    listed_handler=empty,
    pod_labels=CRIO_POD_LABELS,
    absent_by_method={**_IDEMPOTENT, CREATE: UNKNOWN, UPDATE: UNKNOWN},
    refuses={CREATE: (memory_below(12 << 20), swap_below_memory), UPDATE: (memory_below(0),)},
    created=adapt_resources(requested_swap=True),
    updated=adapt_resources("oom_score_adj", "hugepage_limits", "unified"),
    cgroup_path=crio_cgroup_path,
    own_parent=True,
    repeats_answers=True,
)
CRI_DOCKERD = Shape(
    "cri-dockerd",
    runtime_name="docker",
    pod_info=None,
    container_info=lambda container_id, pod_id, *_: {"sandboxID": pod_id, "pid": 1},
    reports_resources=False,
    status_handler=lambda requested: requested or "runc",
    listed_handler=empty,
    absent=UNKNOWN,
    absent_by_method={**_IDEMPOTENT, "StopContainer": NOT_FOUND},
    refuses=dict.fromkeys((CREATE, UPDATE), (memory_below(6 << 20),)),
    created=adapt_resources("hugepage_limits", "unified"),
    updated=adapt_resources("hugepage_limits", "unified", "oom_score_adj"),
)
SHIM_SANDBOXER = replace(CONTAINERD, name="shim sandboxer", pod_info=shim_pod_info)
SHIM_ENDED = replace(SHIM_SANDBOXER, name="shim gone", verbose_pod_fails=NOT_FOUND)
NO_VERBOSE = replace(CONTAINERD, name="no verbose", runtime_name="fake", pod_info=None, container_info=None)
UNKNOWN_CODE = replace(CONTAINERD, name="unknown code", runtime_name="fake", absent=UNKNOWN, absent_by_method={})

SHAPES = (CONTAINERD, CRIO, CRI_DOCKERD, SHIM_SANDBOXER, SHIM_ENDED, NO_VERBOSE, UNKNOWN_CODE)
