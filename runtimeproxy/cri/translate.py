"""Parse CRI requests into values of ``model``.

Owns which part of a request becomes which part of a pod or a container.
Must not know: how requests are held or edited (``edit``), what a status says (``status``).
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text has none of them.
Field numbers: CRI's api.proto; runtime.v1 and runtime.v1alpha2 agree on all that is read.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from runtimeproxy.core.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.hookapi.codec import entries_of, resources_of
from runtimeproxy.model.values import ContainerInfo, PodInfo, Resources
from runtimeproxy.wire import protobuf
from runtimeproxy.wire.protobuf import Shape

_M = TypeVar("_M", bound=Message)


SHORT_BYTES = 2 * FIELDS_LIMIT
"""A message of up to so many bytes cannot have more than FIELDS_LIMIT fields, since the shortest field is a tag and a
length. A longer one is not parsed into a second form, to save memory."""

_WITHOUT_ID = "CRI message without an id"


def read_pod(message: bytes) -> PodInfo:
    """Read a RunPodSandboxRequest; the pod has no id yet. Raises Unreadable."""
    request = _asked(api_pb2.RunPodSandboxRequest, message)
    if not request.HasField("config"):
        raise Unreadable("RunPodSandboxRequest without a config")
    return _pod(request.config, request.runtime_handler)


def read_container(message: bytes) -> tuple[ContainerInfo, PodInfo | None]:
    """Read a CreateContainerRequest: the container, which has no id yet, and what it repeats of its pod.

    The second is None if there is no sandbox config. Raises Unreadable. The envs of a short message stay encoded until
    they are needed.
    """
    request: Any
    envs: Mapping[str, str] | None = None
    raw: Mapping[bytes, bytes] = {}
    try:
        if len(message) <= SHORT_BYTES:
            request = api_pb2.CreateContainerRequestWithEntries.FromString(message)
            envs = codec.envs_of(request.config.envs)
    except DecodeError:
        pass
    if envs is None:
        request = _asked(api_pb2.CreateContainerRequest, message)
        raw = {entry.key: entry.value for entry in request.config.envs}
    if not request.pod_sandbox_id or not request.HasField("config"):
        raise Unreadable("CreateContainerRequest without a pod's id or without a config")
    config = request.config
    pod_id, metadata, annotations, linux = request.pod_sandbox_id, config.metadata, config.annotations, config.linux
    name, attempt, annotations = metadata.name, metadata.attempt, entries_of(annotations) if annotations else {}
    resources = resources_of(linux.resources) if linux.HasField("resources") else None
    pod = _pod(request.sandbox_config) if request.HasField("sandbox_config") else None
    if envs is None:
        del request, config, metadata, linux  # so that decoding does not keep a long env in memory twice
        envs = _decoded(raw)
    return ContainerInfo("", pod_id, name, attempt, annotations, resources, envs), pod


def read_id(message: bytes) -> str:
    """Read the id in field 1 of a request or response of any other method. Raises Unreadable, also if it is empty."""
    found = _asked(api_pb2.Identified, message).id
    if not found:
        raise Unreadable(_WITHOUT_ID)
    return found


def read_update(message: bytes) -> tuple[str, Resources | None, dict[str, str]]:
    """Read an UpdateContainerResourcesRequest: the id, the Linux resources and the annotations. Raises Unreadable."""
    request = _asked(api_pb2.UpdateContainerResourcesRequest, message)
    if not request.container_id:
        raise Unreadable(_WITHOUT_ID)
    resources = resources_of(request.linux) if request.HasField("linux") else None
    return request.container_id, resources, entries_of(request.annotations)


def read_pod_update(message: bytes) -> tuple[Resources | None, Resources | None]:
    """Read an UpdatePodSandboxResourcesRequest and return the pod's overhead and its resources. Raises Unreadable."""
    request = _asked(api_pb2.UpdatePodSandboxResourcesRequest, message)
    return (
        resources_of(request.overhead) if request.HasField("overhead") else None,
        resources_of(request.resources) if request.HasField("resources") else None,
    )


def _asked(kind: type[_M], message: bytes) -> _M:
    """Parse a request. Raises Unreadable, also if it has more than FIELDS_LIMIT fields."""
    if len(message) > SHORT_BYTES:
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


def _pod(config: api_pb2.PodSandboxConfig, runtime_handler: str = "") -> PodInfo:
    """Read a sandbox config, of a RunPodSandboxRequest or as a CreateContainerRequest repeats it."""
    metadata, labels, annotations, linux = config.metadata, config.labels, config.annotations, config.linux
    return PodInfo(
        "",
        metadata.name,
        metadata.uid,
        metadata.namespace,
        metadata.attempt,
        runtime_handler,
        entries_of(labels) if labels else {},
        entries_of(annotations) if annotations else {},
        linux.cgroup_parent,
        resources_of(linux.overhead) if linux.HasField("overhead") else None,
        resources_of(linux.resources) if linux.HasField("resources") else None,
    )


def _decoded(entries: Mapping[bytes, bytes]) -> dict[str, str]:
    """Decode the entries, leaving out those that are not UTF-8: a hook message cannot contain them."""
    envs = {}
    for key, value in entries.items():
        try:
            envs[key.decode()] = value.decode()
        except UnicodeDecodeError:
            continue
    return envs
