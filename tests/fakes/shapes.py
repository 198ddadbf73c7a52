"""The shapes of container runtimes: what each reports of itself and its pods, which codes it answers, what it refuses.

A shape contains only the differences; CONTAINERD is the fake runtime's default. Sources: containerd's internal/cri,
cri-o's server and internal/{factory,config/cgmgr}, Mirantis/cri-dockerd's core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import grpc

from tests.fakes import cri_pb2, spec
from tests.fakes.spec import Json

Resources: TypeAlias = cri_pb2.LinuxContainerResources
TellsPod = Callable[[str, cri_pb2.PodSandboxConfig, str], Json]
TellsContainer = Callable[[str, str, cri_pb2.CreateContainerRequest, Resources, str], Json]
Check = Callable[[Resources, str], str]
"""Called with the resources of a request and the container's id; returns why it is refused, "" if it is not."""
Takes = Callable[[Resources], Resources]
"""Returns the resources that a runtime sets for those of a request."""

NOT_FOUND, UNKNOWN = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN
CREATE, START, UPDATE = "CreateContainer", "StartContainer", "UpdateContainerResources"
DOCKER_LEAST_MEMORY_BYTES, CRIO_LEAST_MEMORY_BYTES = 6 << 20, 12 << 20
CRIO_POD_LABELS: Mapping[str, str] = {"io.kubernetes.container.name": "POD"}
"""The labels that CRI-O adds to those of a pod that has any."""


def as_asked(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Failure:
    """An error status; ``{kind}`` and ``{id}`` in the text stand for the requested subject."""

    code: grpc.StatusCode
    text: str

    def details(self, kind: str, subject_id: str) -> str:
        return self.text.format(kind=kind, id=subject_id)


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    """The shape's name in a test's name."""
    runtime_name: str = "containerd"
    """The answer of Version."""
    pod_info: TellsPod | None = spec.pod_info
    """Writes the verbose JSON of PodSandboxStatus; None if there is none."""
    container_info: TellsContainer | None = spec.container_info
    verbose_pod_fails: Failure | None = None
    """How a verbose PodSandboxStatus fails although the pod exists and its plain status is answered."""
    tells_resources: bool = True
    """True if ContainerStatus has resources."""
    status_handler: Callable[[str], str] = as_asked
    """Returns PodSandboxStatus' runtime handler for the one that was asked for."""
    listed_handler: Callable[[str], str] = as_asked
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that are added to those of a pod that has any."""
    absent: Failure = Failure(NOT_FOUND, "{kind} {id!r}: not found")
    """The answer for an id that does not exist."""
    absent_by_method: Mapping[str, Failure | None] = field(default_factory=dict)
    """The answers of methods that differ from it; None if the method succeeds."""
    refuses: Mapping[str, Sequence[Check]] = field(default_factory=dict)
    """The checks by method; those of a start see what the create asked for."""
    created: Takes = as_asked
    updated: Takes = as_asked
    cgroup_path: Callable[[str, str], str] = "{}/{}".format
    """The form of a container's cgroup, from its parent and its id."""
    own_parent: bool = False
    """True if a container runs below its pod's parent, whatever sandbox_config says in its create."""

    repeats_answers: bool = False
    """True if a create whose caller has left is finished, and the next one of its name is answered with what it made
    (CRI-O's internal/resourcestore)."""

    def absence(self, method: str) -> Failure | None:
        return self.absent_by_method.get(method, self.absent)

    def refusal(self, method: str, resources: Resources, container_id: str) -> str:
        """Return why a method refuses resources; "" if it accepts them."""
        return next((text for check in self.refuses.get(method, ()) if (text := check(resources, container_id))), "")


# ---- checks


def swap_of_runc(resources: Resources, container_id: str) -> str:
    """Refuse a swap limit below the memory limit, as runc does."""
    below = 0 < resources.memory_swap_limit_in_bytes < resources.memory_limit_in_bytes
    return "OCI runtime failed: memory+swap limit must be >= memory limit: unknown" if below else ""


def memory_of_crio(resources: Resources, container_id: str) -> str:
    """Refuse a create's memory limit below CRI-O's least, including -1 for "no limit"."""
    limit, least = resources.memory_limit_in_bytes, CRIO_LEAST_MEMORY_BYTES
    return f"set memory limit {limit} too low; should be at least {least} bytes" if limit and limit < least else ""


def swap_of_crio(resources: Resources, container_id: str) -> str:
    limit, swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    why = f"memory swap limit ({swap}) cannot be lower than memory limit ({limit})"
    return f"container {container_id} create failed because {why}" if 0 < swap < limit else ""


def updated_memory_of_crio(resources: Resources, container_id: str) -> str:
    """Refuse an update's memory limit below zero."""
    limit = resources.memory_limit_in_bytes
    why = f"invalid memory limit: {limit} bytes (cannot be negative)"
    return f"memory validation failed: {why}" if limit < 0 else ""


def memory_of_docker(resources: Resources, container_id: str) -> str:
    """Refuse a memory limit below dockerd's least, including -1 for "no limit"."""
    limit = resources.memory_limit_in_bytes
    low = limit and limit < DOCKER_LEAST_MEMORY_BYTES
    return "Error response from daemon: Minimum memory limit allowed is 6MB" if low else ""


def updated_memory_of_docker(resources: Resources, container_id: str) -> str:
    """Refuse an update's memory limit below dockerd's least, with cri-dockerd's text."""
    why = memory_of_docker(resources, container_id)
    return f'failed to update container "{container_id}": {why}' if why else ""


# ---- CRI-O: a verbose status is little more than an OCI runtime spec; there is no config

CRIO_DEFAULT_PARENT = "system.slice"


def crio_cgroup_path(parent: str, subject_id: str) -> str:
    """Return a cgroup's path: the systemd manager's for a slice or without a parent, else cgroupfs's."""
    last = parent.rpartition("/")[2] or CRIO_DEFAULT_PARENT
    return f"{last}:crio:{subject_id}" if last.endswith(".slice") else f"{parent}/crio-{subject_id}"


def crio_pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    told = spec.pod_info(pod_id, config, runtime_handler)["runtimeSpec"]
    parent = config.linux.cgroup_parent
    linux = {key: value for key, value in told["linux"].items() if parent or key != "cgroupsPath"}
    if parent:
        linux["cgroupsPath"] = crio_cgroup_path(parent, pod_id)
    own = _named(ContainerType="sandbox", SandboxID=pod_id, RuntimeHandler=runtime_handler)
    annotations = {**config.annotations, **config.labels, **CRIO_POD_LABELS, **own}
    return {"runtimeSpec": {**told, "annotations": annotations, "linux": linux}}


def crio_container_info(
    container_id: str, pod_id: str, request: cri_pb2.CreateContainerRequest, resources: Resources, path: str
) -> Json:
    """Return CRI-O's report of a container; the spec's annotations include the pod's."""
    told = spec.container_info(container_id, pod_id, request, resources, path)["runtimeSpec"]
    config = request.config
    own = _named(ContainerType="container", SandboxID=pod_id, ImageName=config.image.image)
    annotations = {**request.sandbox_config.annotations, **config.annotations, **config.labels, **own}
    numbers = {key: getattr(resources, f"cpu_{key}") for key in ("shares", "quota", "period")}
    cpu = {**told["linux"]["resources"].get("cpu", {}), **numbers}  # present even if zero
    linux = {**told["linux"], "resources": {**told["linux"]["resources"], "cpu": cpu}}
    runs = {**told, "annotations": annotations, "linux": linux}
    return {"sandboxID": pod_id, "pid": 1, "runtimeSpec": runs, "privileged": False}


def _named(**values: str) -> dict[str, str]:
    return {f"io.kubernetes.cri-o.{key}": value for key, value in values.items()}


# ---- cri-dockerd


DOCKER_ABSENT = "Error response from daemon: No such container: {id}"


def docker_container_info(
    container_id: str, pod_id: str, request: cri_pb2.CreateContainerRequest, resources: Resources, path: str
) -> Json:
    return {"sandboxID": pod_id, "pid": 1}


# ---- the resources that are set for a request


def taken(asked: Resources, swap: int, *dropped: str) -> Resources:
    """Return resources with another swap limit, and without some fields."""
    kept = Resources()
    kept.CopyFrom(asked)
    kept.memory_swap_limit_in_bytes = swap
    for name in dropped:
        kept.ClearField(name)
    return kept


def crio_created(asked: Resources) -> Resources:
    """Return resources with a swap limit that equals the memory limit if none was asked for."""
    return taken(asked, asked.memory_swap_limit_in_bytes or asked.memory_limit_in_bytes)


def crio_updated(asked: Resources) -> Resources:
    """Return resources without the requested swap limit and some other fields."""
    return taken(asked, asked.memory_limit_in_bytes, "oom_score_adj", "hugepage_limits", "unified")


def docker_created(asked: Resources) -> Resources:
    """Return resources without swap beyond the memory limit, with only the fields of Docker's API."""
    return taken(asked, asked.memory_limit_in_bytes, "hugepage_limits", "unified")


def docker_updated(asked: Resources) -> Resources:
    """Return the fields of a create except one."""
    return taken(asked, asked.memory_limit_in_bytes, "hugepage_limits", "unified", "oom_score_adj")


# ---- containerd's shim sandboxer


def shim_pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    """Return the report of a pod created by a shim: the keys of containerd 2's, most of them without a value."""
    texts = dict.fromkeys(("image", "snapshotKey", "snapshotter", "runtimeType"), "")
    nothing = dict.fromkeys(("runtimeOptions", "config", "runtimeSpec", "cniResult", "sandboxMetadata"))
    return {"pid": 1, "processStatus": "running", "netNamespaceClosed": False, **texts, **nothing}


# ---- the table

_CONTENT = dict.fromkeys(("RemovePodSandbox", "RemoveContainer"))
_STOPS = dict.fromkeys(("StopPodSandbox", "RemovePodSandbox", "StopContainer"))

CONTAINERD = Shape("containerd", absent_by_method=_CONTENT, refuses={START: (swap_of_runc,), UPDATE: (swap_of_runc,)})
CRIO = Shape(
    "cri-o",
    runtime_name="cri-o",
    pod_info=crio_pod_info,
    container_info=crio_container_info,
    status_handler=lambda asked: "",
    listed_handler=lambda asked: "",
    pod_labels=CRIO_POD_LABELS,
    absent=Failure(NOT_FOUND, 'could not find {kind} "{id}": ID starting with {id} not found: ID does not exist'),
    absent_by_method={
        **_STOPS,
        CREATE: Failure(UNKNOWN, "specified sandbox not found: {id}: ID does not exist"),
        UPDATE: Failure(UNKNOWN, "container with ID starting with {id} not found: ID does not exist"),
    },
    refuses={CREATE: (memory_of_crio, swap_of_crio), UPDATE: (updated_memory_of_crio,)},
    created=crio_created,
    updated=crio_updated,
    cgroup_path=crio_cgroup_path,
    own_parent=True,
    repeats_answers=True,
)
CRI_DOCKERD = Shape(
    "cri-dockerd",
    runtime_name="docker",
    pod_info=None,
    container_info=docker_container_info,
    tells_resources=False,
    status_handler=lambda asked: asked or "runc",
    listed_handler=lambda asked: "",
    absent=Failure(UNKNOWN, DOCKER_ABSENT),
    absent_by_method={
        **_STOPS,
        "StopContainer": Failure(NOT_FOUND, DOCKER_ABSENT),
        UPDATE: Failure(UNKNOWN, f'failed to update container "{{id}}": {DOCKER_ABSENT}'),
    },
    refuses={CREATE: (memory_of_docker,), UPDATE: (updated_memory_of_docker,)},
    created=docker_created,
    updated=docker_updated,
)
SHIM_SANDBOXER = replace(CONTAINERD, name="shim sandboxer", pod_info=shim_pod_info)
SHIM_GONE = replace(
    SHIM_SANDBOXER,
    name="shim gone",
    verbose_pod_fails=Failure(NOT_FOUND, "failed to query controller status: sandbox {id}: not found"),
)
NO_VERBOSE = replace(CONTAINERD, name="no verbose", runtime_name="fake", pod_info=None, container_info=None)
UNKNOWN_CODE = replace(
    CONTAINERD,
    name="unknown code",
    runtime_name="fake",
    absent=Failure(UNKNOWN, "no {kind} has the id {id}"),
    absent_by_method={},
)

SHAPES = (CONTAINERD, CRIO, CRI_DOCKERD, SHIM_SANDBOXER, SHIM_GONE, NO_VERBOSE, UNKNOWN_CODE)
