"""The inside of a fake container: its files, and its verbose JSON status as containerd 1.6 writes it."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.engines import cgroups
from tests.fakes import cri_pb2

Json = dict[str, Any]
Resources: TypeAlias = cri_pb2.LinuxContainerResources
IMAGE_ENVIRONMENT = ("PATH=/bin", "HOSTNAME=fake")
MAX_CPUS = "0-1"


def go_json(message: Message) -> Json:
    """Return a message as Go's encoding/json writes it: snake_case names, numbers as numbers, unset fields absent."""
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    return [_single(element) for element in value] if field.is_repeated else _single(value)


def _single(value: Any) -> Any:
    if isinstance(value, Message):
        return go_json(value)
    # A value that is not UTF-8 is damaged here, as in containerd's own status.
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    linux = {"cgroupsPath": f"{config.linux.cgroup_parent}/{pod_id}", "resources": {"cpu": {"shares": 2}}}
    names = {"container-type": "sandbox", "sandbox-log-directory": config.log_directory}
    spec = _spec(pod_id, config.metadata, names, {"env": ["PATH=/bin"], "oomScoreAdj": 0}, linux)
    return {"pid": 1, "runtimeHandler": runtime_handler, "config": go_json(config), "runtimeSpec": spec}


def container_info(
    container_id: str, pod_id: str, request: cri_pb2.CreateContainerRequest, resources: Resources, cgroup_path: str
) -> Json:
    """Return containerd's report of a container: its config as created, its current spec."""
    config = request.config
    numbers = {name: getattr(resources, f"cpu_{name}") for name in ("shares", "quota", "period")}
    cpu = _set({**numbers, "cpus": resources.cpuset_cpus, "mems": resources.cpuset_mems})
    memory = _set({"limit": resources.memory_limit_in_bytes, "swap": resources.memory_swap_limit_in_bytes})
    limits = {"cpu": cpu, "memory": memory, "unified": dict(resources.unified)}
    env = [entry.decode(errors="replace") for entry in _environment(config)]
    spec = _spec(
        pod_id,
        request.sandbox_config.metadata,
        {"container-name": config.metadata.name, "container-type": "container", "image-name": config.image.image},
        {"args": [*config.command, *config.args], "env": env, "oomScoreAdj": resources.oom_score_adj},
        {"cgroupsPath": cgroup_path, "resources": {"memory": {}, **_set(limits)}},
    )
    return {"sandboxID": pod_id, "pid": 1, "config": go_json(config), "runtimeSpec": spec}


def _spec(pod_id: str, pod: cri_pb2.PodSandboxMetadata, names: Mapping[str, str], process: Json, linux: Json) -> Json:
    of_pod = {"id": pod_id, "name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    named = {**names, **{f"sandbox-{key}": value for key, value in of_pod.items()}}
    annotations = {f"io.kubernetes.cri.{key}": value for key, value in named.items()}
    return {"process": process, "annotations": annotations, "linux": linux}


def _set(values: Mapping[str, Any]) -> Json:
    return {key: value for key, value in values.items() if value}


def _environment(config: cri_pb2.ContainerConfig) -> list[bytes]:
    image = [entry.encode() for entry in IMAGE_ENVIRONMENT]
    return image + [entry.key.encode() + b"=" + entry.value for entry in config.envs]


def cgroup_file(name: str, resources: Resources) -> str:
    """Return the content of a cgroup's file, by its name in either version; "" if it does not exist."""
    quota, period = resources.cpu_quota or -1, resources.cpu_period or 100_000
    shares, limit = resources.cpu_shares or 1024, resources.memory_limit_in_bytes
    files: dict[str, int | str] = {
        "cpu.shares": shares,
        "cpu.weight": cgroups.weight(shares),
        "cpu.cfs_quota_us": quota,
    }
    files |= {"cpu.cfs_period_us": period, "cpu.max": f"{quota if quota > 0 else 'max'} {period}"}
    files["memory.limit_in_bytes"] = limit if limit > 0 else (1 << 63) - 4096  # the kernel's value for "no limit"
    files["memory.max"] = limit if limit > 0 else "max"
    files |= {"cpuset.cpus": resources.cpuset_cpus or MAX_CPUS, "cpuset.mems": resources.cpuset_mems or "0"}
    return str(files.get(name, ""))


def run(command: Sequence[str], config: cri_pb2.ContainerConfig, resources: Resources) -> cri_pb2.ExecSyncResponse:
    match list(command):
        case ["cat", "/proc/1/environ"]:
            return cri_pb2.ExecSyncResponse(stdout=b"".join(entry + b"\0" for entry in _environment(config)))
        case ["cat", path] if content := cgroup_file(PurePosixPath(path).name, resources):
            return cri_pb2.ExecSyncResponse(stdout=content.encode() + b"\n")
    return cri_pb2.ExecSyncResponse(stderr=b"no such command in a fake container\n", exit_code=127)
