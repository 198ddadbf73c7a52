"""The inside of a fake container: its JSON status as containerd writes it, and its files.

All of it follows from the config and the present resources.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.engines import cgroups
from tests.fakes import cri_pb2

Resources: TypeAlias = cri_pb2.LinuxContainerResources
IMAGE_ENVIRONMENT = ("PATH=/bin", "HOSTNAME=fake")
MAX_CPUS = "0-1"


def go_json(message: Message) -> dict[str, Any]:
    """Return a message as Go's encoding/json writes it: snake_case names, numbers as numbers, unset fields absent."""
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_single(element) for element in value]
    return _single(value)


def _single(value: Any) -> Any:
    if isinstance(value, Message):
        return go_json(value)
    # A value that is not UTF-8 is damaged here, as it is in containerd's own status.
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def runtime_spec(config: cri_pb2.ContainerConfig, resources: Resources, cgroup_path: str) -> dict[str, Any]:
    """Return the part of the OCI spec with environment, resources and cgroup."""
    environment = [entry.decode(errors="replace") for entry in _environment(config)]
    numbers = {name: getattr(resources, f"cpu_{name}") for name in ("shares", "quota", "period")}
    cpu = {**numbers, "cpus": resources.cpuset_cpus, "mems": resources.cpuset_mems}
    memory = {"limit": resources.memory_limit_in_bytes, "swap": resources.memory_swap_limit_in_bytes}
    limits = {"cpu": _set(cpu), "memory": _set(memory), "unified": dict(resources.unified)}
    return {
        "process": {"env": environment, "oomScoreAdj": resources.oom_score_adj},
        "linux": {"cgroupsPath": cgroup_path, "resources": _set(limits)},
    }


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _environment(config: cri_pb2.ContainerConfig) -> list[bytes]:
    image = [entry.encode() for entry in IMAGE_ENVIRONMENT]
    return image + [entry.key.encode() + b"=" + entry.value for entry in config.envs]


def cgroup_file(name: str, resources: Resources) -> str:
    """Return the content of a cgroup's file, by its name in either version; "" if it does not exist."""
    quota, period = resources.cpu_quota or -1, resources.cpu_period or 100_000
    shares, limit = resources.cpu_shares or 1024, resources.memory_limit_in_bytes
    files: Mapping[str, int | str] = {
        "cpu.shares": shares,
        "cpu.weight": cgroups.weight(shares),
        "cpu.cfs_quota_us": quota,
        "cpu.cfs_period_us": period,
        "cpu.max": f"{quota if quota > 0 else 'max'} {period}",
        "memory.limit_in_bytes": limit if limit > 0 else (1 << 63) - 4096,  # the kernel's value for "no limit"
        "memory.max": limit if limit > 0 else "max",
        "cpuset.cpus": resources.cpuset_cpus or MAX_CPUS,
        "cpuset.mems": resources.cpuset_mems or "0",
    }
    return str(files.get(name, ""))


def run(command: Sequence[str], config: cri_pb2.ContainerConfig, resources: Resources) -> cri_pb2.ExecSyncResponse:
    """Run one of the few known commands: ``cat`` of the environment or a cgroup file, ``echo``, ``false``."""
    match list(command):
        case ["cat", "/proc/1/environ"]:
            return cri_pb2.ExecSyncResponse(stdout=b"".join(entry + b"\0" for entry in _environment(config)))
        case ["cat", path] if content := cgroup_file(PurePosixPath(path).name, resources):
            return cri_pb2.ExecSyncResponse(stdout=content.encode() + b"\n")
        case ["echo", *words]:
            return cri_pb2.ExecSyncResponse(stdout=" ".join(words).encode() + b"\n")
        case ["false"]:
            return cri_pb2.ExecSyncResponse(exit_code=1)
        case _:
            return cri_pb2.ExecSyncResponse(stderr=b"no such command in a fake container\n", exit_code=127)
