"""Read CRI requests into values of ``model``, and put an adjustment into the bytes of a request.

runtime.v1 and runtime.v1alpha2 agree on all fields that are read and written.
Readers raise only ``Unreadable``, whose text has none of the bytes; editors raise WireError for a request that is not
protobuf. An edited request differs in the changed fields only; without a change the result is the same object
(hook-api, "What an answer means").

If the meaning is the same, a second message with only the changes is appended: gogo/protobuf, Go's, C++'s and Rust's
parsers read the two as one (protobuf.dev, "Last One Wins"). A request is rewritten if a field is cleared (0 and "" are
not written), an entry of a list replaces another with its key, or a value or key may already be in the request.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from runtimeproxy.core.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.hookapi.codec import entries_of, resources_of
from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, Adjustment, Changes, ContainerInfo, PodInfo, Resources
from runtimeproxy.wire import protobuf
from runtimeproxy.wire.protobuf import Edit, Shape, entries_field, message_field, rewrite, string_field, varint_field

_M = TypeVar("_M", bound=Message)

SHORT_BYTES = 2 * FIELDS_LIMIT
"""Longest message in bytes that cannot have more than FIELDS_LIMIT fields: the shortest field is a tag and a length. A
longer message is not parsed into a second form, to save memory."""

_WITHOUT_ID = "CRI message without an id"


def read_pod(message: bytes) -> PodInfo:
    """Read a RunPodSandboxRequest. Raises Unreadable."""
    request = _requested(api_pb2.RunPodSandboxRequest, message)
    if not request.HasField("config"):
        raise Unreadable("RunPodSandboxRequest without a config")
    return _pod(request.config, request.runtime_handler)


def read_container(message: bytes) -> tuple[ContainerInfo, PodInfo | None]:
    """Read a CreateContainerRequest: the container, which has no id yet, and the fields that it repeats of its pod.

    The pod is None if there is no sandbox config. Raises Unreadable. The envs of a short message stay encoded until
    they are needed."""
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
        request = _requested(api_pb2.CreateContainerRequest, message)
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
        envs = decoded = dict[str, str]()
        for key, value in raw.items():
            with suppress(UnicodeDecodeError):  # a hook message contains only UTF-8
                decoded[key.decode()] = value.decode()
    return ContainerInfo("", pod_id, name, attempt, annotations, resources, envs), pod


def read_id(message: bytes) -> str:
    """Read the id in field 1 of a request or response of any other method. Raises Unreadable, also if it is empty."""
    any_id = _requested(api_pb2.Identified, message).id
    if not any_id:
        raise Unreadable(_WITHOUT_ID)
    return any_id


def read_update(message: bytes) -> tuple[str, Resources | None, dict[str, str]]:
    """Read an UpdateContainerResourcesRequest: id, Linux resources, annotations. Raises Unreadable."""
    request = _requested(api_pb2.UpdateContainerResourcesRequest, message)
    if not request.container_id:
        raise Unreadable(_WITHOUT_ID)
    resources = resources_of(request.linux) if request.HasField("linux") else None
    return request.container_id, resources, entries_of(request.annotations)


def read_pod_update(message: bytes) -> tuple[Resources | None, Resources | None]:
    """Read an UpdatePodSandboxResourcesRequest: the pod's overhead and its resources. Raises Unreadable."""
    request = _requested(api_pb2.UpdatePodSandboxResourcesRequest, message)
    return (
        resources_of(request.overhead) if request.HasField("overhead") else None,
        resources_of(request.resources) if request.HasField("resources") else None,
    )


def _requested(kind: type[_M], message: bytes) -> _M:
    """Parse a request. Raises Unreadable, also above FIELDS_LIMIT."""
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


_FIXED = tuple(name for name, row in fields.ROWS.items() if not row.in_updates)


class SettableValues(NamedTuple):
    """The resources to put into an update, and the names of those that an update cannot set."""

    resources: Changes
    unsupported: tuple[str, ...]


def edit_pod(message: bytes, adjustment: Adjustment) -> bytes:
    if not adjustment:
        return message
    linux = {"cgroup_parent": adjustment.cgroup_parent, "resources": adjustment.resources}
    config = {"labels": adjustment.labels, "annotations": adjustment.annotations, "linux": linux}
    appended, values = api_pb2.RunPodSandboxRequest(), {"config": config}
    if _can_append(message, appended, values):
        return message + appended.SerializeToString()
    return rewrite(message, _edits(appended, values))


def edit_container(message: bytes, adjustment: Adjustment, cgroup_parent: str | None) -> bytes:
    """Put an adjustment into a CreateContainerRequest, and ``cgroup_parent`` into its pod's config, None to leave the
    kubelet's. The adjustment's own parent is ignored, as ``cgroup_parent`` may be from the pod's record."""
    envs, annotations, resources = adjustment.envs, adjustment.annotations, adjustment.resources
    if not (envs or annotations or resources or cgroup_parent is not None):
        return message
    config = {"envs": envs, "annotations": annotations, "linux": {"resources": resources}}
    values = {"config": config, "sandbox_config": {"linux": {"cgroup_parent": cgroup_parent}}}
    appended = api_pb2.CreateContainerRequest()
    if _can_append(message, appended, values):
        return message + appended.SerializeToString()
    return rewrite(message, _edits(appended, values))


def edit_update(message: bytes, resources: Changes, annotations: Mapping[str, str]) -> bytes:
    """Put values into an UpdateContainerResourcesRequest; 0 and "" leave a field unset."""
    if not (resources or annotations):
        return message
    appended, values = api_pb2.UpdateContainerResourcesRequest(), {"linux": resources, "annotations": annotations}
    if _can_append(message, appended, values):
        return message + appended.SerializeToString()
    return rewrite(message, _edits(appended, values))


def values_for_create(adjustment: Adjustment, requested: Resources | None) -> Adjustment:
    """Return the adjustment in the values of a create; ``requested`` are the request's own resources. A swap limit
    changes with the memory limit."""
    if MEMORY not in adjustment.resources:
        return adjustment
    changes, limits = fields.in_create(adjustment.resources), requested or fields.NO_RESOURCES
    swap = _swap(limits.memory_limit_in_bytes, limits.memory_swap_limit_in_bytes, changes[MEMORY])
    return replace(adjustment, resources={**swap, **changes})


def values_for_update(
    changes: Changes,
    present: Resources | None,
    requested: Resources | None = None,
    *,
    accepts_unlimited_memory: bool = False,
) -> SettableValues:
    """``present`` are the container's resources, ``requested`` those of the update itself.
    ``accepts_unlimited_memory``: the runtime accepts -1 as "no memory limit". For a container without a limit, 0 means
    the same to every runtime. A swap limit changes with the memory limit."""
    current = present or fields.NO_RESOURCES
    unlimited = fields.UNLIMITED if accepts_unlimited_memory else None
    sent = fields.in_update(changes, 0 if current.memory_limit_in_bytes <= 0 else unlimited)
    if sent.get(MEMORY):
        sent = {**_swap(*fields.limits_before(requested or fields.NO_RESOURCES, current), sent[MEMORY]), **sent}
    return SettableValues(sent, fields.unsupported_changes(changes, sent, current))


def _swap(memory: int, swap: int, new_memory: fields.ResourceValue) -> Changes:
    new_swap = fields.swap_for(memory, swap, new_memory)
    return {} if swap <= 0 or new_swap == swap else {fields.SWAP: new_swap}


def without_fixed_fields(resources: Resources | None) -> Resources | None:
    if resources is None or not any(getattr(resources, name) for name in _FIXED):
        return resources
    return replace(resources, **{name: getattr(fields.NO_RESOURCES, name) for name in _FIXED})


def update_request(container_id: str, changes: Changes, base: Resources | None) -> bytes:
    """Make an UpdateContainerResourcesRequest with only the changed fields. ``base`` are the container's resources: a
    map field is sent with all its entries, since a runtime may merge or replace it."""
    changed = fields.overlay(base, changes)
    values = {name: getattr(changed, name) for name in changes}
    return edit_update(api_pb2.Identified(id=container_id).SerializeToString(), values, {})


# -- changes of a request, as values by field name; None changes nothing ----------------------------------------------


def _can_append(message: bytes, appended: Message, values: Mapping[str, Any]) -> bool:
    """Put values into ``appended``, a suffix for the message; return False if the message must be rewritten.

    A key or value in the message is found by its encoded bytes, which may also occur by chance:
    the request is then rewritten without need, which costs time but gives the same result."""
    for name, value in values.items():
        if isinstance(value, (int, str)):
            if not value or type(appended)(**{name: value}).SerializeToString() in message:
                return False
            setattr(appended, name, value)
        elif value:
            field: Any = getattr(appended, name)
            if isinstance(field, Message):
                if not _can_append(message, field, value):
                    return False
            elif any(key.encode() in message for key in value):
                return False
            elif name == "envs":
                for key in sorted(value):
                    field.add(key=key.encode(), value=value[key].encode())
            elif name == "hugepage_limits":
                for page_size in sorted(value):
                    field.add(page_size=page_size, limit=value[page_size])
            else:
                field.update(value)
    return True


def _edits(prototype: Message, values: Mapping[str, Any]) -> dict[int, Edit]:
    """Return the edits that put values into the fields of a message of the type of ``prototype``. A map, and a list of
    messages with a key, are edited by entry: the last entry with a key counts."""
    edits: dict[int, Edit] = {}
    for name, value in values.items():
        field = prototype.DESCRIPTOR.fields_by_name[name]
        if isinstance(value, (int, str)):
            edits[field.number] = _scalar(value)
        elif not value:
            continue
        elif field.is_repeated:
            edits[field.number] = entries_field({key: _scalar(entry) for key, entry in value.items()})
        elif inner := _edits(getattr(prototype, name), value):
            edits[field.number] = message_field(inner)
    return edits


def _scalar(value: int | str) -> Edit:
    return string_field(value) if isinstance(value, str) else varint_field(value)
