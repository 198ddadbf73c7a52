"""CRI requests as values of the model.

Owns which part of a request becomes which part of a pod or a container, and the table of the resource fields.
Must not know: how requests are held or edited (``edit``), what a status says (``status``).
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text holds none of them.
Numbers: CRI's api.proto; runtime.v1 and runtime.v1alpha2 agree on all that is read.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from runtimeproxy.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.errors import WireError
from runtimeproxy.hookapi.codec import entries_of
from runtimeproxy.model import ContainerInfo, PodInfo, Resources
from runtimeproxy.wire import protobuf
from runtimeproxy.wire.protobuf import Shape

_M = TypeVar("_M", bound=Message)


class Kind(Enum):
    """How a resource field stands on the wire."""

    NUMBER = "int64"
    TEXT = "string"
    LIMITS = "repeated HugepageLimit"
    MAP = "map<string,string>"


RESOURCE_TABLE: dict[str, tuple[int, Kind]] = {
    "cpu_period": (1, Kind.NUMBER),
    "cpu_quota": (2, Kind.NUMBER),
    "cpu_shares": (3, Kind.NUMBER),
    "memory_limit_in_bytes": (4, Kind.NUMBER),
    "oom_score_adj": (5, Kind.NUMBER),
    "cpuset_cpus": (6, Kind.TEXT),
    "cpuset_mems": (7, Kind.TEXT),
    "hugepage_limits": (8, Kind.LIMITS),
    "unified": (9, Kind.MAP),
    "memory_swap_limit_in_bytes": (10, Kind.NUMBER),
}
"""Field number and kind of every field of LinuxContainerResources, by its name in CRI and in the model."""

_PLAIN = tuple(name for name, (_, kind) in RESOURCE_TABLE.items() if kind in (Kind.NUMBER, Kind.TEXT))


def read_pod(message: bytes) -> PodInfo:
    """Read a RunPodSandboxRequest; the pod has no id yet. Raises Unreadable."""
    request = _asked(api_pb2.RunPodSandboxRequest, message)
    if not request.HasField("config"):
        raise Unreadable("RunPodSandboxRequest without a config")
    return _pod(request.config, request.runtime_handler)


def read_container(message: bytes) -> tuple[ContainerInfo, PodInfo | None]:
    """Read a CreateContainerRequest: the container, which has no id yet, and what it repeats of its pod.

    That is the pod's names, labels, annotations and cgroup parent; None if there is no sandbox config. Raises
    Unreadable.
    """
    request = _asked(api_pb2.CreateContainerRequest, message)
    if not request.pod_sandbox_id or not request.HasField("config"):
        raise Unreadable("CreateContainerRequest without a pod's id or without a config")
    config = request.config
    pod_id, metadata, annotations = request.pod_sandbox_id, config.metadata, entries_of(config.annotations)
    name, attempt, resources = metadata.name, metadata.attempt, resources_of(config.linux, "resources")
    pod = _repeated(request.sandbox_config) if request.HasField("sandbox_config") else None
    envs = {entry.key: entry.value for entry in config.envs}
    del request, config, metadata  # else a long env would be there once more while it is decoded
    container = ContainerInfo(
        pod_id=pod_id,
        name=name,
        attempt=attempt,
        annotations=annotations,
        resources=resources,
        envs=_decoded(envs),
    )
    return container, pod


def read_id(message: bytes) -> str:
    """Read the id in field 1 of a request or response of any other call. Raises Unreadable, also if it is empty."""
    identified = _asked(api_pb2.Identified, message)
    if not identified.id:
        raise Unreadable("CRI message without an id")
    return identified.id


def read_update(message: bytes) -> tuple[str, Resources | None, dict[str, str]]:
    """Read an UpdateContainerResourcesRequest: the container's id, its Linux resources, the annotations.

    Raises Unreadable.
    """
    request = _asked(api_pb2.UpdateContainerResourcesRequest, message)
    return read_id(message), resources_of(request, "linux"), entries_of(request.annotations)


def read_pod_update(message: bytes) -> tuple[Resources | None, Resources | None]:
    """Read an UpdatePodSandboxResourcesRequest: the pod's overhead, its resources. Raises Unreadable."""
    request = _asked(api_pb2.UpdatePodSandboxResourcesRequest, message)
    return resources_of(request, "overhead"), resources_of(request, "resources")


def _asked(kind: type[_M], message: bytes) -> _M:
    """Parse a request, unless too much would become of it. Raises Unreadable."""
    try:
        if protobuf.has_more_fields(message, FIELDS_LIMIT, _shape(kind.DESCRIPTOR)):
            raise Unreadable(TOO_MANY_FIELDS)
    except WireError as error:
        raise Unreadable(str(error)) from None
    return decode(kind, message)


@cache
def _shape(kind: Descriptor) -> Shape:
    return {field.number: _shape(field.message_type) for field in kind.fields if field.message_type}


def decode(kind: type[_M], message: bytes) -> _M:
    """Parse a message. Raises Unreadable."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise Unreadable(f"{kind.__name__} with a broken field, or with a text that is not UTF-8") from None


def resources_of(owner: Message, name: str) -> Resources | None:
    """Return the LinuxContainerResources in a field of a message, None if it is not set."""
    if not owner.HasField(name):
        return None
    message = getattr(owner, name)
    return Resources(
        **{field: getattr(message, field) for field in _PLAIN},
        hugepage_limits={limit.page_size: limit.limit for limit in message.hugepage_limits},
        unified=entries_of(message.unified),
    )


def _pod(config: api_pb2.PodSandboxConfig, runtime_handler: str) -> PodInfo:
    return replace(
        _repeated(config),
        runtime_handler=runtime_handler,
        overhead=resources_of(config.linux, "overhead"),
        resources=resources_of(config.linux, "resources"),
    )


def _repeated(config: api_pb2.PodSandboxConfig) -> PodInfo:
    """Read what a container's create repeats of its pod; no more of it is looked at."""
    metadata = config.metadata
    return PodInfo(
        name=metadata.name,
        uid=metadata.uid,
        namespace=metadata.namespace,
        attempt=metadata.attempt,
        labels=entries_of(config.labels),
        annotations=entries_of(config.annotations),
        cgroup_parent=config.linux.cgroup_parent,
    )


def _decoded(entries: Mapping[bytes, bytes]) -> dict[str, str]:
    """Leave out what is not UTF-8: it cannot be told to a hook server."""
    envs = {}
    for key, value in entries.items():
        try:
            envs[key.decode()] = value.decode()
        except UnicodeDecodeError:
            continue
    return envs
