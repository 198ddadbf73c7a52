"""Lists and verbose statuses of CRI: make their requests, and parse the responses into values of ``model``.

``info["info"]`` of a verbose status is JSON. containerd's has the requested config and the current OCI runtime spec,
CRI-O's only the spec, others have none. A part that is missing, null, of a wrong type or not valid text counts as
unknown; the other parts are still used. Readers raise only ``Unreadable``, whose text has none of the bytes. An item of
a list is parsed only when it is needed: a list of 16 MiB does not block the event loop.
JSON names: CRI's proto names (Go's encoding/json, containerd 1.6 to 2.x) and the OCI runtime spec, config-linux.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.messages import decode
from runtimeproxy.errors import WireError
from runtimeproxy.hookapi.codec import resources_of
from runtimeproxy.model.fields import ROWS, SLICE, ContainerInfo, Kind, PodInfo, Resources, named, overlay
from runtimeproxy.wire import protobuf

ITEMS = 1
"""Number of the field with the items, in both responses."""

# Requests about pods and about containers have the same fields.


def list_request(any_id: str = "") -> bytes:
    """Make a ListPodSandboxRequest or ListContainersRequest, for all items or for one id."""
    if not any_id:
        return b""
    return api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(id=any_id)).SerializeToString()


def status_request(any_id: str, *, verbose: bool) -> bytes:
    """Make a PodSandboxStatusRequest or ContainerStatusRequest; only a verbose status has ``info``."""
    return api_pb2.ContainerStatusRequest(container_id=any_id, verbose=verbose).SerializeToString()


def pods(message: bytes) -> Iterator[PodInfo]:
    """Yield the pods of a ListPodSandboxResponse, with ids and metadata. Raises Unreadable."""
    for item in _items(api_pb2.PodSandbox, message):
        meta = item.metadata
        yield PodInfo(item.id, meta.name, meta.uid, meta.namespace, meta.attempt)


def containers(message: bytes) -> Iterator[ContainerInfo]:
    """Yield the containers of a ListContainersResponse, with ids, pod ids and metadata. Raises Unreadable."""
    for item in _items(api_pb2.Container, message):
        yield ContainerInfo(item.id, item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)


def _items(kind: Any, message: bytes) -> Iterator[Any]:
    try:
        for field in protobuf.fields(message):
            if field.number == ITEMS and field.wire_type == protobuf.LENGTH_DELIMITED:
                item = decode(kind, message[field.value_start : field.end])
                if not item.id:
                    raise Unreadable("list with an item without an id")
                yield item
    except WireError as error:
        raise Unreadable(str(error)) from None


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
"""Where the OCI runtime spec has each resource field: the path of an object, then CRI's name and the spec's name."""

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_NO_PARENT = frozenset({"/k8s.io", "/crio"})
"""The cgroup parents that containerd and CRI-O use for a container whose pod sets none."""
_CRIO_LABEL = ("io.kubernetes.container.name", "POD")
"""The label that CRI-O adds to each pod."""
_CRIO_HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
"""The annotation in CRI-O's runtime spec with a pod's runtime handler, which its status lacks."""
_REPLACEMENT = "\ufffd"
"""U+FFFD, which Go's encoding/json writes for each byte that is not UTF-8."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_pod_state(message: bytes) -> api_pb2.PodSandboxState:
    return decode(api_pb2.PodSandboxStatusResponse, message).status.state


def read_container_state(message: bytes) -> api_pb2.ContainerState:
    return decode(api_pb2.ContainerStatusResponse, message).status.state


def read_container_life(message: bytes) -> Life:
    """Read a ContainerStatusResponse. A container in state UNKNOWN may run. containerd and CRI-O report a container
    whose start failed as EXITED without a start time. Raises Unreadable."""
    status = decode(api_pb2.ContainerStatusResponse, message).status
    may_run = status.state not in (api_pb2.CONTAINER_CREATED, api_pb2.CONTAINER_EXITED)
    return Life(started=status.started_at > 0 or may_run, running=may_run)


def read_pod_status(message: bytes, pod_id: str) -> PodInfo:
    """``pod_id`` is used where the response repeats no id. Raises Unreadable.

    The cgroup parent is from the config, else from the pause container. Resources are from the last
    UpdatePodSandboxResources where ``info`` has them (containerd 2), else from the config. The runtime spec is not used
    for them, since it describes the pause container."""
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
        overhead=_resources(_object(info, "overhead"), "linux") or _resources(config, "overhead"),
        resources=_resources(_object(info, "resources"), "linux") or _resources(config, "resources"),
    )


def read_container_status(message: bytes, container_id: str) -> ContainerInfo:
    """``container_id`` is used where the response repeats no id; ``pod_id`` is "" where it lacks the pod. Each resource
    field is the value in effect (from the status, else from the runtime spec), else the configured value.
    Raises Unreadable."""
    response = decode(api_pb2.ContainerStatusResponse, message)
    status = response.status
    info = _info(response.info)
    config, spec = _object(info, "config"), _object(info, "runtimeSpec")
    configured = _resources(_object(config, "linux"), "resources")
    reported = status.resources
    running = resources_of(reported.linux) if reported.HasField("linux") else _spec_resources(spec)
    return ContainerInfo(
        id=status.id or container_id,
        pod_id=_text(info, "sandboxID") or "",
        name=status.metadata.name,
        attempt=status.metadata.attempt,
        annotations=dict(status.annotations),
        resources=_effective(configured, running),
        envs=_envs(config.get("envs") or [] if config else None, _list(_object(spec, "process"), "env")),
        cgroup_parent=_cgroup_parent(spec) or "",
    )


def _info(info: Mapping[str, str]) -> Json:
    try:
        document = json.loads(info["info"]) if "info" in info else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _resources(owner: Json, name: str) -> Resources | None:
    return _from_json(_object(owner, name), page_size="page_size") if isinstance(owner.get(name), dict) else None


def _spec_resources(spec: Json) -> Resources:
    values = {}
    for path, names in _OCI_FIELDS.items():
        owner = _object(spec, *path)
        values.update({name: owner.get(oci_name) for name, oci_name in names.items()})
    return _from_json(values, page_size="pageSize")


def _from_json(values: Json, page_size: str) -> Resources:
    parsed = {name: read(values, name, page_size) for name, read in _RESOURCE_READERS.items() if name in values}
    return Resources(**{name: value for name, value in parsed.items() if value is not None})


def _effective(configured: Resources | None, running: Resources) -> Resources | None:
    """Return the ``running`` resources over those of the config, which count where the machine lacks a field. If the
    config sets no swap limit, runtimes set one equal to the memory limit; it is returned as 0, "not set" in CRI."""
    effective = overlay(configured, named(running))
    if effective is None or (configured and configured.memory_swap_limit_in_bytes):
        return effective
    if effective.memory_swap_limit_in_bytes == effective.memory_limit_in_bytes:
        return replace(effective, memory_swap_limit_in_bytes=0)
    return effective


def _envs(configured: object, entries: Sequence[Any]) -> dict[str, str]:
    """Return the variables of the create request with the values in effect. Without ``configured``, return those of the
    process, which include the image's. A variable with bytes that are not UTF-8 is left out."""
    running = dict(pair.partition("=")[::2] for pair in entries if _is_text(pair) and "=" in pair)
    if not isinstance(configured, list):
        return {key: value for key, value in running.items() if _REPLACEMENT not in key + value}
    envs: dict[str, str] = {}
    for entry in configured:
        key = _text(entry, "key") if isinstance(entry, dict) else None
        if not key:
            continue
        requested = _text(entry, "value") or ""
        value = running.get(key, requested)
        if _REPLACEMENT not in key and (_REPLACEMENT not in value or _is_base64_of(requested, value)):
            envs[key] = value
        else:
            envs.pop(key, None)
    return envs


def _is_base64_of(requested: str, value: str) -> bool:
    """Return whether ``requested`` is the base64 of ``value``, so that a U+FFFD in ``value`` was set by the request. A
    runtime whose CRI has the value as bytes writes it to JSON in base64."""
    try:
        return b64decode(requested, validate=True) == value.encode()
    except ValueError:
        return False


def _cgroup_parent(spec: Json) -> str | None:
    """Return the cgroup parent in CRI's form from "/parent/id" (cgroupfs) or "slice:prefix:id" (systemd). systemd
    nests slices by name: a-b.slice is inside a.slice (systemd.slice(5))."""
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
    """Return whether a value is text that protobuf can encode: JSON also allows half a surrogate pair."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _number(owner: Json, name: str, allowed: range) -> int | None:
    value = owner.get(name)
    return value if type(value) is int and value in allowed else None


def _limits(limits: Iterable[Any], page_size: str) -> dict[str, int]:
    entries = [{"limit": 0, **limit} for limit in limits if isinstance(limit, dict)]  # Go's encoder leaves 0 out
    read = {_text(entry, page_size): _number(entry, "limit", _UINT64) for entry in entries}
    return {size: limit for size, limit in read.items() if size is not None and limit is not None}


_READERS: dict[Kind, Callable[[Json, str, str], Any]] = {
    Kind.NUMBER: lambda values, name, _: _number(values, name, _INT64),
    Kind.TEXT: lambda values, name, _: _text(values, name),
    Kind.NUMBERS: lambda values, name, page_size: _limits(_list(values, name), page_size),
    Kind.TEXTS: lambda values, name, _: {k: v for k, v in _object(values, name).items() if _is_text(k) and _is_text(v)},
}
_RESOURCE_READERS = {name: _READERS[row.kind] for name, row in ROWS.items()}
"""Functions that read each resource field from JSON; their last argument is the name of a huge page's size field."""
