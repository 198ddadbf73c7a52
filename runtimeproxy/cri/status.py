"""The runtime's own word on a pod or a container: requests for its verbose status, and the answers as values.

Owns what containerd tells in ``info["info"]`` (JSON: the config as it was created, the OCI runtime spec as it runs).
Must not know: the Store, what the kubelet asked for, when a status is read.
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text holds none of them. Without the
verbose part (other runtimes) what the plain status says is all that is known.
JSON names: CRI's proto names (Go's encoding/json, containerd 1.6 to 2.x) and the OCI runtime spec, config-linux.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.translate import RESOURCE_TABLE, Kind, decode, resources_of
from runtimeproxy.model import ContainerInfo, PodInfo, Resources, named, overlay

Json = Mapping[str, Any]
_T = TypeVar("_T", int, str, dict[str, Any], list[Any])

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
_NO_PARENT = "/k8s.io"
"""Where containerd puts a container whose pod names no cgroup parent: the folder of its own namespace."""
_REPLACED = "\ufffd"
"""Stands in JSON for each byte that is not UTF-8."""
_SURROGATES = ("\\ud", "\\uD")
"""How the escape of half a surrogate pair begins in JSON, and that of whole ones: containerd escapes neither."""


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


def read_pod_status(message: bytes) -> PodInfo:
    """Read a PodSandboxStatusResponse.

    Resources are the last that UpdatePodSandboxResources set where the runtime tells them (containerd 2), else those of
    the config; the runtime spec is no source, it is the pause container's. Raises Unreadable.
    """
    response = decode(api_pb2.PodSandboxStatusResponse, message)
    status = response.status
    if not status.id:
        raise Unreadable("PodSandboxStatusResponse without a pod's id")
    info = _info(response.info)
    config = _at(info, "config", "linux")
    return PodInfo(
        id=status.id,
        name=status.metadata.name,
        uid=status.metadata.uid,
        namespace=status.metadata.namespace,
        attempt=status.metadata.attempt,
        runtime_handler=status.runtime_handler,
        labels=dict(status.labels),
        annotations=dict(status.annotations),
        cgroup_parent=_text(config, "cgroup_parent"),
        overhead=_updated(info, config, "overhead"),
        resources=_updated(info, config, "resources"),
    )


def read_container_status(message: bytes) -> ContainerInfo:
    """Read a ContainerStatusResponse.

    ``pod_id`` is "" if the runtime does not tell it. Each resource field is what runs (the status, else the runtime
    spec), else what the config asked for. Raises Unreadable.
    """
    response = decode(api_pb2.ContainerStatusResponse, message)
    status = response.status
    if not status.id:
        raise Unreadable("ContainerStatusResponse without a container's id")
    info = _info(response.info)
    config, spec = _at(info, "config"), _at(info, "runtimeSpec")
    asked = _resources(_at(config, "linux"), "resources")
    runs = resources_of(status.resources, "linux") or _spec_resources(spec)
    return ContainerInfo(
        id=status.id,
        pod_id=_text(info, "sandboxID"),
        name=status.metadata.name,
        attempt=status.metadata.attempt,
        annotations=dict(status.annotations),
        resources=_effective(asked, runs) if config else overlay(None, named(runs)),
        envs=_envs(_get(config, "envs", []), _get(_at(spec, "process"), "env", [])),
        cgroup_parent=_cgroup_parent(_text(_at(spec, "linux"), "cgroupsPath")),
    )


def _info(info: Mapping[str, str]) -> Json:
    """Parse the verbose part; empty if there is none."""
    if "info" not in info:
        return {}
    text = info["info"]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable("verbose status that is no JSON") from None
    if any(escape in text for escape in _SURROGATES):
        _check_texts(document)
    return _typed(document, {}, "info")


def _check_texts(document: object) -> None:
    """Check all texts at once: half a surrogate pair is valid JSON, but no message could carry it."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Unreadable("verbose status with a text that is none") from None


def _updated(info: Json, config: Json, name: str) -> Resources | None:
    """Return resources of a pod: as updated, else as created."""
    return _resources(_at(info, name), "linux") or _resources(config, name)


def _resources(owner: Json, name: str) -> Resources | None:
    """Read a LinuxContainerResources in JSON; None if there is none."""
    return _from_json(_at(owner, name), page_size="page_size") if owner.get(name) is not None else None


def _spec_resources(spec: Json) -> Resources:
    """Read the resources of an OCI runtime spec."""
    values = {}
    for path, names in _OCI_FIELDS.items():
        owner = _at(spec, *path)
        values.update({name: owner.get(theirs) for name, theirs in names.items()})
    return _from_json(values, page_size="pageSize")


def _from_json(values: Json, page_size: str) -> Resources:
    set_fields = {name: read for name, read in _RESOURCE_READERS.items() if values.get(name) is not None}
    return Resources(**{name: read(values, name, page_size) for name, read in set_fields.items()})


def _effective(asked: Resources | None, runs: Resources) -> Resources | None:
    """Lay what runs over what was asked for: what the machine does not support runs as nothing, but stays asked for.

    containerd sets a swap limit equal to the memory limit where none was asked for: that is CRI's "not set".
    """
    effective = overlay(asked, named(runs))
    if effective is None or (asked and asked.memory_swap_limit_in_bytes):
        return effective
    if effective.memory_swap_limit_in_bytes == effective.memory_limit_in_bytes:
        return replace(effective, memory_swap_limit_in_bytes=0)
    return effective


def _envs(configured: Iterable[Any], running: Iterable[Any]) -> dict[str, str]:
    """Return the variables that the create request set, with the values that run.

    The running environment also holds the image's variables, so it alone does not tell which were asked for.
    """
    runs = dict(_string(pair, "env").partition("=")[::2] for pair in running)
    envs: dict[str, str] = {}
    for entry in configured:
        variable = _typed(entry, {}, "envs")
        key, given = _text(variable, "key"), _text(variable, "value")
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


def _cgroup_parent(cgroups_path: str) -> str:
    """Return the cgroup parent in CRI's form from "/parent/id" (cgroupfs) or "slice:prefix:id" (systemd).

    systemd's slices are nested by their names: a-b.slice lies in a.slice (systemd.slice(5)).
    """
    slice_name, systemd, _ = cgroups_path.partition(":")
    if not systemd:
        parent = cgroups_path.rpartition("/")[0]
        return "" if parent == _NO_PARENT else parent
    names = slice_name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(names[: depth + 1])}.slice" for depth in range(len(names)))


def _limits(limits: Iterable[Any], page_size: str) -> dict[str, int]:
    entries = [_typed(limit, {}, "hugepage limits") for limit in limits]
    return {_text(entry, page_size): _number(entry, "limit", _UINT64) for entry in entries}


def _map(values: Json) -> dict[str, str]:
    return {key: _string(value, "a map") for key, value in values.items()}


def _at(document: Json, *path: str) -> Json:
    """Follow a path of objects; empty where it ends early."""
    for name in path:
        document = _get(document, name, {})
    return document


def _number(owner: Json, name: str, allowed: range) -> int:
    value = _get(owner, name, 0)
    if value not in allowed:
        raise Unreadable(f"verbose status with a number out of range in {name}")
    return value


def _text(owner: Json, name: str) -> str:
    value = owner.get(name)
    return "" if value is None else _string(value, name)


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"verbose status with a text that is none in {name}")
    return value


def _get(owner: Json, name: str, default: _T) -> _T:
    """Return the value of a name, as ``_typed`` does."""
    return _typed(owner.get(name), default, name)


def _typed(value: Any, default: _T, name: str) -> _T:
    """Return a value of the default's type; absent and null are the default. Raises Unreadable for another type."""
    if value is None:
        return default
    if type(value) is not type(default):
        raise Unreadable(f"verbose status with a value of the wrong type in {name}")
    return value


_READERS: dict[Kind, Callable[[Json, str, str], Any]] = {
    Kind.NUMBER: lambda values, name, _: _number(values, name, _INT64),
    Kind.TEXT: lambda values, name, _: _text(values, name),
    Kind.LIMITS: lambda values, name, page_size: _limits(_get(values, name, []), page_size),
    Kind.MAP: lambda values, name, _: _map(_get(values, name, {})),
}
_RESOURCE_READERS = {name: _READERS[kind] for name, (_, kind) in RESOURCE_TABLE.items()}
"""Takes each resource field out of JSON; the last argument names the field that has a huge page's size."""
