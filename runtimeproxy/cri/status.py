"""The runtime's own word on a pod or a container: requests for its verbose status, and the answers as values.

Owns what runtimes tell in ``info["info"]`` (JSON: containerd's has the config as it was created and the OCI runtime
spec as it runs, CRI-O's the spec alone, others have none).
Must not know: the Store, what the kubelet asked for, when a status is read.
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text holds none of them. A part that is
missing, null, of a wrong type or no text is unknown, by itself: what else is told stands.
JSON names: CRI's proto names (Go's encoding/json, containerd 1.6 to 2.x) and the OCI runtime spec, config-linux.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.translate import RESOURCE_TABLE, Kind, decode
from runtimeproxy.hookapi.codec import resources_of
from runtimeproxy.model.values import SLICE, ContainerInfo, PodInfo, Resources, named, overlay

Json = Mapping[str, Any]

_OCI_FIELDS: dict[tuple[str, ...], dict[str, str]] = {
    ("linux", "resources", "cpu"): {
        "cpu_period": "period",
        "cpu_quota": "quota",
        "cpu_shares": "shares",
        "cpuset_cpus": "cpus",
        "cpuset_mems": "mems",
    },
    ("linux", "resources", "memory"): {"memory_limit_in_bytes": "limit", "memory_swap_limit_in_bytes": "swap"},
    ("linux", "resources"): {"hugepage_limits": "hugepageLimits", "unified": "unified"},
    ("process",): {"oom_score_adj": "oomScoreAdj"},
}
"""Where the OCI runtime spec keeps each resource field."""

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_NO_PARENT = frozenset({"/k8s.io", "/crio"})
"""Where containerd and CRI-O put a container whose pod names no cgroup parent."""
_CRIO_LABEL = ("io.kubernetes.container.name", "POD")
"""What CRI-O adds to the labels of a pod."""
_CRIO_HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
"""The annotation of the runtime spec in which CRI-O has a pod's runtime handler: its status has none."""
_REPLACED = "\ufffd"
"""Stands in JSON for each byte that is not UTF-8."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def pod_status_request(pod_id: str, *, verbose: bool = True) -> bytes:
    """Make a PodSandboxStatusRequest; only the verbose status tells all."""
    return api_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=verbose).SerializeToString()


def container_status_request(container_id: str, *, verbose: bool = True) -> bytes:
    """Make a ContainerStatusRequest; only the verbose status tells all."""
    return api_pb2.ContainerStatusRequest(container_id=container_id, verbose=verbose).SerializeToString()


def read_pod_state(message: bytes) -> api_pb2.PodSandboxState:
    """Read the state in a PodSandboxStatusResponse. Raises Unreadable."""
    return decode(api_pb2.PodSandboxStatusResponse, message).status.state


def read_container_state(message: bytes) -> api_pb2.ContainerState:
    """Read the state in a ContainerStatusResponse. Raises Unreadable."""
    return decode(api_pb2.ContainerStatusResponse, message).status.state


def read_pod_status(message: bytes, pod_id: str) -> PodInfo:
    """Read a PodSandboxStatusResponse; ``pod_id`` is the one asked for, where the answer repeats none.

    The cgroup parent is that of the config, else the one that the pause container has. Resources are the last that
    UpdatePodSandboxResources set where the runtime tells them (containerd 2), else those of the config; the runtime
    spec is no source, it is the pause container's. Raises Unreadable.
    """
    response = decode(api_pb2.PodSandboxStatusResponse, message)
    status = response.status
    info = _info(response.info)
    config, spec = _object(info, "config", "linux"), _object(info, "runtimeSpec")
    parent = _text(config, "cgroup_parent")
    return PodInfo(
        id=status.id or pod_id,
        name=status.metadata.name,
        uid=status.metadata.uid,
        namespace=status.metadata.namespace,
        attempt=status.metadata.attempt,
        runtime_handler=status.runtime_handler or _text(_object(spec, "annotations"), _CRIO_HANDLER) or "",
        labels={key: value for key, value in status.labels.items() if (key, value) != _CRIO_LABEL},
        annotations=dict(status.annotations),
        cgroup_parent=_cgroup_parent(spec) if parent is None else parent,
        overhead=_updated(info, config, "overhead"),
        resources=_updated(info, config, "resources"),
    )


def read_container_status(message: bytes, container_id: str) -> ContainerInfo:
    """Read a ContainerStatusResponse; ``container_id`` is the one asked for, where the answer repeats none.

    ``pod_id`` is "" if the runtime does not tell it. Each resource field is what runs (the status, else the runtime
    spec), else what the config asked for. Raises Unreadable.
    """
    response = decode(api_pb2.ContainerStatusResponse, message)
    status = response.status
    info = _info(response.info)
    config, spec = _object(info, "config"), _object(info, "runtimeSpec")
    asked = _resources(_object(config, "linux"), "resources")
    told = status.resources
    runs = resources_of(told.linux) if told.HasField("linux") else _spec_resources(spec)
    return ContainerInfo(
        id=status.id or container_id,
        pod_id=_text(info, "sandboxID") or "",
        name=status.metadata.name,
        attempt=status.metadata.attempt,
        annotations=dict(status.annotations),
        resources=_effective(asked, runs),
        envs=_envs(config.get("envs") or [] if config else None, _list(_object(spec, "process"), "env")),
        cgroup_parent=_cgroup_parent(spec) or "",
    )


def _info(info: Mapping[str, str]) -> Json:
    """Parse the verbose part; empty if there is none."""
    try:
        document = json.loads(info["info"]) if "info" in info else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _updated(info: Json, config: Json, name: str) -> Resources | None:
    """Return resources of a pod: as updated, else as created."""
    return _resources(_object(info, name), "linux") or _resources(config, name)


def _resources(owner: Json, name: str) -> Resources | None:
    """Read a LinuxContainerResources in JSON; None if there is none."""
    return _from_json(_object(owner, name), page_size="page_size") if isinstance(owner.get(name), dict) else None


def _spec_resources(spec: Json) -> Resources:
    """Read the resources of an OCI runtime spec."""
    values = {}
    for path, names in _OCI_FIELDS.items():
        owner = _object(spec, *path)
        values.update({name: owner.get(theirs) for name, theirs in names.items()})
    return _from_json(values, page_size="pageSize")


def _from_json(values: Json, page_size: str) -> Resources:
    told = {name: read(values, name, page_size) for name, read in _RESOURCE_READERS.items() if name in values}
    return Resources(**{name: value for name, value in told.items() if value is not None})


def _effective(asked: Resources | None, runs: Resources) -> Resources | None:
    """Lay what runs over what was asked for: what the machine does not support runs as nothing, but stays asked for.

    Runtimes set a swap limit equal to the memory limit where none was asked for: that is CRI's "not set".
    """
    effective = overlay(asked, named(runs))
    if effective is None or (asked and asked.memory_swap_limit_in_bytes):
        return effective
    if effective.memory_swap_limit_in_bytes == effective.memory_limit_in_bytes:
        return replace(effective, memory_swap_limit_in_bytes=0)
    return effective


def _envs(configured: object, running: Sequence[Any]) -> dict[str, str]:
    """Return the variables that the create request set, with the values that run.

    The running environment also holds the image's variables: only where it is all that is told they count as set.
    """
    runs = dict(pair.partition("=")[::2] for pair in running if _is_text(pair) and "=" in pair)
    if not isinstance(configured, list):
        return {key: value for key, value in runs.items() if _REPLACED not in key + value}
    envs: dict[str, str] = {}
    for entry in configured:
        key = _text(entry, "key") if isinstance(entry, dict) else None
        if not key:
            continue
        given = _text(entry, "value") or ""
        value = runs.get(key, given)
        if _REPLACED not in key and (_REPLACED not in value or _is_base64_of(given, value)):
            envs[key] = value
        else:
            envs.pop(key, None)
    return envs


def _is_base64_of(given: str, value: str) -> bool:
    """Tell whether a replacement character is meant: a bytes field comes in base64, which hides nothing."""
    try:
        return b64decode(given, validate=True) == value.encode()
    except ValueError:
        return False


def _cgroup_parent(spec: Json) -> str | None:
    """Return the cgroup parent in CRI's form from "/parent/id" (cgroupfs) or "slice:prefix:id" (systemd).

    systemd's slices are nested by their names: a-b.slice lies in a.slice (systemd.slice(5)).
    """
    cgroups_path = _text(_object(spec, "linux"), "cgroupsPath")
    if not cgroups_path:
        return None
    slice_name, systemd, _ = cgroups_path.partition(":")
    if not systemd:
        parent = cgroups_path.rpartition("/")[0]
        return "" if parent in _NO_PARENT else parent
    names = slice_name.removesuffix(SLICE).split("-")
    return "".join(f"/{'-'.join(names[: depth + 1])}.slice" for depth in range(len(names)))


# -- values of a JSON document, None or empty where they are unknown --------------------------------------------------


def _object(document: Json, *path: str) -> Json:
    """Follow a path of objects; empty where it ends early."""
    for name in path:
        inner = document.get(name)
        document = inner if isinstance(inner, dict) else {}
    return document


def _list(owner: Json, name: str) -> list[Any]:
    value = owner.get(name)
    return value if isinstance(value, list) else []


def _text(owner: Json, name: str) -> str | None:
    value = owner.get(name)
    return value if _is_text(value) else None


def _is_text(value: object) -> TypeGuard[str]:
    """Tell a text that a message can carry: half a surrogate pair is valid JSON."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _number(owner: Json, name: str, allowed: range) -> int | None:
    value = owner.get(name)
    return value if type(value) is int and value in allowed else None


def _limits(limits: Iterable[Any], page_size: str) -> dict[str, int]:
    """Read huge page limits; Go leaves a limit of 0 out."""
    entries = [{"limit": 0, **limit} for limit in limits if isinstance(limit, dict)]
    read = {_text(entry, page_size): _number(entry, "limit", _UINT64) for entry in entries}
    return {size: limit for size, limit in read.items() if size is not None and limit is not None}


_READERS: dict[Kind, Callable[[Json, str, str], Any]] = {
    Kind.NUMBER: lambda values, name, _: _number(values, name, _INT64),
    Kind.TEXT: lambda values, name, _: _text(values, name),
    Kind.LIMITS: lambda values, name, page_size: _limits(_list(values, name), page_size),
    Kind.MAP: lambda values, name, _: {k: v for k, v in _object(values, name).items() if _is_text(k) and _is_text(v)},
}
_RESOURCE_READERS = {name: _READERS[kind] for name, (_, kind) in RESOURCE_TABLE.items()}
"""Takes each resource field out of JSON; the last argument names the field that has a huge page's size."""
