"""The verbose JSON of a pod's and a container's status as CRI-O writes it: an OCI runtime spec, and hardly more.

There is no config: what a create asked for shows only in what runs. The pod has no pause container, which is
CRI-O's default, so its spec stands alone.
Sources: cri-o's server/sandbox_status.go, server/container_status.go, internal/config/cgmgr.
"""

from collections.abc import Mapping

from tests.fakes import cri_pb2, spec
from tests.fakes.spec import Json

POD_LABELS: Mapping[str, str] = {"io.kubernetes.container.name": "POD"}
"""What CRI-O adds to the labels of a pod that has any."""
LEAST_MEMORY_BYTES = 12 << 20
DEFAULT_PARENT = "system.slice"

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
    own = _named(ContainerType="sandbox", SandboxID=pod_id, RuntimeHandler=runtime_handler)
    annotations = {**config.annotations, **config.labels, **POD_LABELS, **own}
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
    own = _named(ContainerType="container", SandboxID=pod_id, ImageName=config.image.image)
    annotations = {**request.sandbox_config.annotations, **config.annotations, **config.labels, **own}
    linux = {**told["linux"], "resources": {**told["linux"]["resources"], "cpu": _cpu(told, resources)}}
    runs = {**told, "annotations": annotations, "linux": linux}
    return {"sandboxID": pod_id, "pid": 1, "runtimeSpec": runs, "privileged": False}


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


def _named(**values: str) -> dict[str, str]:
    return {f"io.kubernetes.cri-o.{key}": value for key, value in values.items()}
