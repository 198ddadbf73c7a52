"""The verbose JSON of a pod's and a container's status as CRI-O writes it: an OCI runtime spec, and hardly more.

There is no config: what a create asked for shows only in what runs. The pod has no pause container, which is
CRI-O's default, so its spec stands alone.
Sources: cri-o's server/sandbox_status.go, server/container_status.go, internal/config/cgmgr.
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.fakes import cri_pb2, inside, spec
from tests.fakes.spec import Json

POD_LABELS: Mapping[str, str] = {"io.kubernetes.container.name": "POD"}
"""What CRI-O adds to the labels of a pod that has any."""
LEAST_MEMORY_BYTES = 12 << 20
DEFAULT_PARENT = "system.slice"

_PREFIX = "io.kubernetes.cri-o."
_CPU = {"shares": "cpu_shares", "quota": "cpu_quota", "period": "cpu_period"}


def cgroup_path(parent: str, subject_id: str) -> str:
    """Return a cgroup's path: of systemd's manager for a slice or for no parent, else of cgroupfs's."""
    last = parent.rpartition("/")[2] or DEFAULT_PARENT
    return f"{last}:crio:{subject_id}" if last.endswith(".slice") else f"{parent}/crio-{subject_id}"


def pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    told = spec.pod_info(pod_id, config, runtime_handler)["runtimeSpec"]
    parent = config.linux.cgroup_parent
    linux = {key: value for key, value in told["linux"].items() if parent or key != "cgroupsPath"}
    if parent:
        linux["cgroupsPath"] = cgroup_path(parent, pod_id)
    labels = {**config.labels, **POD_LABELS}
    own = {
        "CgroupParent": _managed(parent),
        "ContainerID": pod_id,
        "ContainerName": f"k8s_POD_{config.metadata.name}",
        "ContainerType": "sandbox",
        "HostName": config.hostname,
        "KubeName": config.metadata.name,
        "Labels": _text(labels),
        "Annotations": _text(config.annotations),
        "Metadata": _text(inside.go_json(config.metadata)),
        "Namespace": config.metadata.namespace,
        "RuntimeHandler": runtime_handler,
        "SandboxID": pod_id,
    }
    annotations = {**config.annotations, **labels, **_named(own)}
    return {"runtimeSpec": {**told, "annotations": annotations, "linux": linux}}


def container_info(
    container_id: str,
    pod_id: str,
    request: cri_pb2.CreateContainerRequest,
    resources: cri_pb2.LinuxContainerResources,
    path: str,
) -> Json:
    """Return what CRI-O tells of a container, whose annotations in the spec are the pod's too."""
    told = spec.container_info(container_id, pod_id, request, resources, path)["runtimeSpec"]
    config = request.config
    own = {
        "ContainerID": container_id,
        "ContainerType": "container",
        "ImageName": config.image.image,
        "Labels": _text(config.labels),
        "Annotations": _text(config.annotations),
        "Metadata": _text(inside.go_json(config.metadata)),
        "SandboxID": pod_id,
    }
    annotations = {**request.sandbox_config.annotations, **config.annotations, **config.labels, **_named(own)}
    linux = {**told["linux"], "resources": {**told["linux"]["resources"], "cpu": _cpu(told, resources)}}
    return {
        "sandboxID": pod_id,
        "pid": 1,
        "runtimeSpec": {**told, "annotations": annotations, "linux": linux},
        "privileged": False,
    }


def created(asked: cri_pb2.LinuxContainerResources) -> cri_pb2.LinuxContainerResources:
    """Return what a create sets: a swap limit that equals the memory limit where none was asked for."""
    kept = cri_pb2.LinuxContainerResources()
    kept.CopyFrom(asked)
    kept.memory_swap_limit_in_bytes = asked.memory_swap_limit_in_bytes or asked.memory_limit_in_bytes
    return kept


def updated(asked: cri_pb2.LinuxContainerResources) -> cri_pb2.LinuxContainerResources:
    """Return what an update sets: the asked swap limit is not read, and some fields are dropped."""
    kept = cri_pb2.LinuxContainerResources()
    kept.CopyFrom(asked)
    kept.memory_swap_limit_in_bytes = asked.memory_limit_in_bytes
    for field in ("oom_score_adj", "hugepage_limits", "unified"):
        kept.ClearField(field)
    return kept


def _cpu(told: Json, resources: cri_pb2.LinuxContainerResources) -> Json:
    """Return the spec's cpu part, whose numbers are there where they are zero, too."""
    numbers = {key: getattr(resources, name) for key, name in _CPU.items()}
    return {**told["linux"]["resources"].get("cpu", {}), **numbers}


def _managed(parent: str) -> str:
    last = parent.rpartition("/")[2]
    return last if last.endswith(".slice") else parent


def _named(values: Mapping[str, str]) -> dict[str, str]:
    return {f"{_PREFIX}{key}": value for key, value in values.items()}


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), separators=(",", ":"))
