"""Put an adjustment into the bytes of a CRI request.

Owns which part of an adjustment goes to which field of which request, and the extra update of PreStartContainer.
Must not know: how a field is rewritten (``wire.protobuf``), who asked for a change.
Invariant: a request differs in the changed fields only, and without a change the result is the same object
(hook-api, "What an answer means"). Raises WireError where a request is not protobuf.

**Changes are appended where that has the same meaning**: a second message that has only the changes follows the
request. A parser reads the two as one (protobuf.dev, "Last One Wins"): the last number, text or map entry of a key
counts, messages merge field by field, lists are concatenated. These parsers do so: gogo/protobuf, which runtimes use up
to cri-api 0.33 (api.pb.go makes a message only ``if m.Linux == nil``), google.golang.org/protobuf (internal/impl,
``consumeMessageInfo``), C++ (``MergePartialFromCodedStream``) and Rust's prost (``merge_field``).
A request is rewritten instead where a field is cleared, since 0 and "" are not written, where an entry of a list (envs,
huge pages) replaces one with its key, and where a value or a key may already be in the request, so that an adjustment
that changes nothing still returns the same object.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from google.protobuf.message import Message

from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.translate import RESOURCE_TABLE, Kind
from runtimeproxy.model.values import NO_RESOURCES, Adjustment, Resources, ResourceValue, overlay, swap_beside
from runtimeproxy.wire.protobuf import Edit, entries_field, message_field, rewrite, string_field, varint_field

Changes = Mapping[str, ResourceValue]
Edits = dict[int, Edit]

_POD = api_pb2.RunPodSandboxRequest
_POD_CONFIG = api_pb2.PodSandboxConfig
_POD_LINUX = api_pb2.LinuxPodSandboxConfig
_CREATE = api_pb2.CreateContainerRequest
_CONTAINER_CONFIG = api_pb2.ContainerConfig
_CONTAINER_LINUX = api_pb2.LinuxContainerConfig
_UPDATE = api_pb2.UpdateContainerResourcesRequest

_MEMORY = "memory_limit_in_bytes"
_SWAP = "memory_swap_limit_in_bytes"
_UNLIMITED = -1
_NOT_IN_UPDATES = frozenset({"oom_score_adj"})
"""Fields that no update changes: the OCI runtime spec has ``oomScoreAdj`` in ``process``, ``runc update`` sets only
``linux.resources``."""


class SettableValues(NamedTuple):
    """The resources to put into an update, and the names of those that an update cannot set."""

    resources: Changes
    left_out: tuple[str, ...]


def edit_pod(message: bytes, adjustment: Adjustment) -> bytes:
    """Put labels, annotations, cgroup parent and resources into a RunPodSandboxRequest."""
    labels, annotations, resources = adjustment.labels, adjustment.annotations, adjustment.resources
    parent = adjustment.cgroup_parent
    if not (labels or annotations or resources or parent is not None):
        return message
    more = _POD()
    config = more.config
    if (
        _keys_absent(message, labels, annotations)
        and _can_append(message, config.linux.resources, resources)
        and (parent is None or _can_append(message, config.linux, {"cgroup_parent": parent}))
    ):
        config.labels.update(labels)
        config.annotations.update(annotations)
        return message + more.SerializeToString()
    inside = {
        **_texts(_POD_CONFIG.LABELS_FIELD_NUMBER, labels),
        **_texts(_POD_CONFIG.ANNOTATIONS_FIELD_NUMBER, annotations),
        **_inside(
            _POD_CONFIG.LINUX_FIELD_NUMBER,
            {**_cgroup_parent(parent), **_resources(_POD_LINUX.RESOURCES_FIELD_NUMBER, resources)},
        ),
    }
    return rewrite(message, _inside(_POD.CONFIG_FIELD_NUMBER, inside))


def edit_container(message: bytes, adjustment: Adjustment, cgroup_parent: str | None) -> bytes:
    """Put annotations, envs and resources into a CreateContainerRequest, and a cgroup parent into its pod's config.

    ``cgroup_parent`` is the parent to create the container under, None to leave the kubelet's; the adjustment's own
    field is ignored, since the parent may also come from the pod's record.
    """
    envs, annotations, resources = adjustment.envs, adjustment.annotations, adjustment.resources
    if not (envs or annotations or resources or cgroup_parent is not None):
        return message
    more = _CREATE()
    config = more.config
    if (
        _keys_absent(message, envs, annotations)
        and _can_append(message, config.linux.resources, resources)
        and (cgroup_parent is None or _can_append(message, more.sandbox_config.linux, {"cgroup_parent": cgroup_parent}))
    ):
        for key in sorted(envs):
            config.envs.add(key=key.encode(), value=envs[key].encode())
        config.annotations.update(annotations)
        return message + more.SerializeToString()
    inside = {
        **_texts(_CONTAINER_CONFIG.ENVS_FIELD_NUMBER, envs),
        **_texts(_CONTAINER_CONFIG.ANNOTATIONS_FIELD_NUMBER, annotations),
        **_inside(_CONTAINER_CONFIG.LINUX_FIELD_NUMBER, _resources(_CONTAINER_LINUX.RESOURCES_FIELD_NUMBER, resources)),
    }
    in_pod = _inside(_POD_CONFIG.LINUX_FIELD_NUMBER, _cgroup_parent(cgroup_parent))
    edits = {**_inside(_CREATE.CONFIG_FIELD_NUMBER, inside), **_inside(_CREATE.SANDBOX_CONFIG_FIELD_NUMBER, in_pod)}
    return rewrite(message, edits)


def edit_update(message: bytes, resources: Changes, annotations: Mapping[str, str]) -> bytes:
    """Put resources and annotations into an UpdateContainerResourcesRequest; 0 and "" leave a field unset."""
    if not (resources or annotations):
        return message
    more = _UPDATE()
    if _keys_absent(message, annotations) and _can_append(message, more.linux, resources):
        more.annotations.update(annotations)
        return message + more.SerializeToString()
    edits = {
        **_resources(_UPDATE.LINUX_FIELD_NUMBER, resources),
        **_texts(_UPDATE.ANNOTATIONS_FIELD_NUMBER, annotations),
    }
    return rewrite(message, edits)


def values_for_create(adjustment: Adjustment, asked: Resources | None) -> Adjustment:
    """Return the adjustment in the values that a create request takes; ``asked`` are the request's own resources.
    Unlimited memory is 0 in a create: CRI-O and cri-dockerd reject -1. A swap limit changes with the memory limit.
    """
    changes = adjustment.resources
    if _MEMORY not in changes:
        return adjustment
    memory = 0 if changes[_MEMORY] == _UNLIMITED else changes[_MEMORY]
    held = asked or NO_RESOURCES
    swap = _swap(held.memory_limit_in_bytes, held.memory_swap_limit_in_bytes, memory)
    return replace(adjustment, resources={**swap, **changes, _MEMORY: memory})


def respelt(changes: Changes, said: Changes) -> list[str]:
    """Return the names of the changes for which a request has another value that means the same."""
    return [name for name, value in changes.items() if value and said.get(name, value) != value]


def values_for_update(
    changes: Changes,
    present: Resources | None,
    asked: Resources | None = None,
    *,
    accepts_unlimited_memory: bool = False,
) -> SettableValues:
    """Split changes into those that an update can carry and the names of those that it cannot set.

    ``present`` is what the container has, ``asked`` what the update requests by itself. In an update 0 and "" leave a
    field unchanged, and no runtime changes the OOM score of a process that it has started.
    ``accepts_unlimited_memory``: the runtime accepts -1 as "no memory limit"; where the container has no limit anyhow,
    0 says so to every runtime. A swap limit changes with the memory limit.
    """
    held, request = present or NO_RESOURCES, asked or NO_RESOURCES
    said = {name: value for name, value in changes.items() if name not in _NOT_IN_UPDATES}
    if said.get(_MEMORY) == _UNLIMITED and held.memory_limit_in_bytes <= 0:
        said[_MEMORY] = 0
    elif said.get(_MEMORY) == _UNLIMITED and not accepts_unlimited_memory:
        del said[_MEMORY]
    if said.get(_MEMORY):
        memory, swap = request.memory_limit_in_bytes or held.memory_limit_in_bytes, request.memory_swap_limit_in_bytes
        if not swap:
            memory, swap = held.memory_limit_in_bytes, held.memory_swap_limit_in_bytes
        said = {**_swap(memory, swap, said[_MEMORY]), **said}
    cleared = {name for name, value in said.items() if not value and getattr(held, name)}
    return SettableValues(said, tuple(sorted(cleared | (changes.keys() - said.keys()))))


def _swap(memory: int, swap: int, new_memory: ResourceValue) -> Changes:
    """Return the change of the swap limit that a new memory limit needs; a swap limit that is not set stays unset."""
    if swap <= 0:
        return {}
    new_swap = _UNLIMITED if new_memory == _UNLIMITED else swap_beside(memory, swap, new_memory)
    return {} if new_swap == swap else {_SWAP: new_swap}


def without_fixed_fields(resources: Resources | None) -> Resources | None:
    """Return the resources of an update without the fields that no runtime changes."""
    if resources is None or not resources.oom_score_adj:
        return resources
    return overlay(resources, dict.fromkeys(_NOT_IN_UPDATES, 0))


def update_request(container_id: str, changes: Changes, base: Resources | None) -> bytes:
    """Make an UpdateContainerResourcesRequest that has only the changed fields. ``base`` is what the container has: a
    map field is sent with all its entries, since a runtime may merge or replace it.
    """
    changed = overlay(base, changes)
    values = {name: getattr(changed, name) for name in changes}
    return edit_update(api_pb2.Identified(id=container_id).SerializeToString(), values, {})


# -- changes appended to the request ---------------------------------------------------------------------------------


def _keys_absent(message: bytes, *entries: Mapping[str, object]) -> bool:
    """Return whether a message certainly has none of the keys, as their bytes occur nowhere in it."""
    return not any(key.encode() in message for keys in entries for key in keys)


def _can_append(message: bytes, more: Message, changes: Changes) -> bool:
    """Put changed fields into ``more``, which is to be appended to the message; return False if it must be rewritten.

    A value that the message already has is searched for by its encoded bytes, which may also occur by chance: the
    request is then rewritten without need, which costs time but gives the same result.
    """
    for name, value in changes.items():
        if not value:
            return False
        if isinstance(value, (int, str)):
            setattr(more, name, value)
            if type(more)(**{name: value}).SerializeToString() in message:
                return False
        elif not _keys_absent(message, value):
            return False
        else:
            _ENTRIES[name](more, value)
    return True


def _add_limits(more: api_pb2.LinuxContainerResources, limits: Mapping[str, int]) -> None:
    for page_size in sorted(limits):
        more.hugepage_limits.add(page_size=page_size, limit=limits[page_size])


_ENTRIES: dict[str, Callable[[Any, Any], None]] = {
    "hugepage_limits": _add_limits,
    "unified": lambda more, entries: more.unified.update(entries),
}


# -- changes within the request --------------------------------------------------------------------------------------


def _inside(number: int, edits: Edits) -> Edits:
    return {number: message_field(edits)} if edits else {}


def _texts(number: int, values: Mapping[str, str]) -> Edits:
    """Edit a map<string,string> or a list of KeyValue, in both of which the last entry with a key counts."""
    return {number: _text_entries(values)} if values else {}


def _cgroup_parent(parent: str | None) -> Edits:
    return {} if parent is None else {_POD_LINUX.CGROUP_PARENT_FIELD_NUMBER: string_field(parent)}


def _resources(number: int, changes: Changes) -> Edits:
    """Edit the LinuxContainerResources in field ``number``."""
    table = ((*RESOURCE_TABLE[name], value) for name, value in changes.items())
    return _inside(number, {inner: _TO_WIRE[kind](value) for inner, kind, value in table})


def _text_entries(values: Mapping[str, str]) -> Edit:
    return entries_field({key: string_field(value) for key, value in values.items()})


def _limit_entries(values: Mapping[str, int]) -> Edit:
    return entries_field({page_size: varint_field(limit) for page_size, limit in values.items()})


_TO_WIRE: dict[Kind, Callable[[Any], Edit]] = {
    Kind.NUMBER: varint_field,
    Kind.TEXT: string_field,
    Kind.LIMITS: _limit_entries,
    Kind.MAP: _text_entries,
}
