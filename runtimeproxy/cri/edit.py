"""An adjustment put into the bytes of a CRI request.

Owns which part of an adjustment goes to which field of which request, and the extra update of PreStartContainer.
Must not know: how a field is rewritten (``wire.protobuf``), who asked for a change.
Invariant: a request differs in the changed fields only, and without a change it is the very same object
(hook-api, "What an answer means"; design.md section 3). Raises WireError where a request is no protobuf.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.translate import RESOURCE_TABLE, Kind
from runtimeproxy.model import NO_RESOURCES, Adjustment, Resources, ResourceValue, overlay, swap_beside
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
"""The runtime spec has it beside the process, not among the resources that ``runc update`` sets."""


class Said(NamedTuple):
    """The resources to put into an update, and the names of those that it cannot bring about."""

    resources: Changes
    left_out: tuple[str, ...]


def edit_pod(message: bytes, adjustment: Adjustment) -> bytes:
    """Put labels, annotations, cgroup parent and resources into a RunPodSandboxRequest."""
    linux = {
        **_cgroup_parent(adjustment.cgroup_parent),
        **_resources(_POD_LINUX.RESOURCES_FIELD_NUMBER, adjustment.resources),
    }
    config = {
        **_texts(_POD_CONFIG.LABELS_FIELD_NUMBER, adjustment.labels),
        **_texts(_POD_CONFIG.ANNOTATIONS_FIELD_NUMBER, adjustment.annotations),
        **_inside(_POD_CONFIG.LINUX_FIELD_NUMBER, linux),
    }
    return _rewrite(message, _inside(_POD.CONFIG_FIELD_NUMBER, config))


def edit_container(message: bytes, adjustment: Adjustment, cgroup_parent: str | None) -> bytes:
    """Put annotations, envs and resources into a CreateContainerRequest, and a cgroup parent into its pod's config.

    ``cgroup_parent`` is the parent to create the container under, None to leave the kubelet's; the adjustment's own is
    not looked at, since it may also come from the pod's record.
    """
    config = {
        **_texts(_CONTAINER_CONFIG.ENVS_FIELD_NUMBER, adjustment.envs),
        **_texts(_CONTAINER_CONFIG.ANNOTATIONS_FIELD_NUMBER, adjustment.annotations),
        **_inside(
            _CONTAINER_CONFIG.LINUX_FIELD_NUMBER,
            _resources(_CONTAINER_LINUX.RESOURCES_FIELD_NUMBER, adjustment.resources),
        ),
    }
    pod_config = _inside(_POD_CONFIG.LINUX_FIELD_NUMBER, _cgroup_parent(cgroup_parent))
    edits = _inside(_CREATE.CONFIG_FIELD_NUMBER, config) | _inside(_CREATE.SANDBOX_CONFIG_FIELD_NUMBER, pod_config)
    return _rewrite(message, edits)


def edit_update(message: bytes, resources: Changes, annotations: Mapping[str, str]) -> bytes:
    """Put resources and annotations into an UpdateContainerResourcesRequest; 0 and "" leave a field unset."""
    edits = {
        **_resources(_UPDATE.LINUX_FIELD_NUMBER, resources),
        **_texts(_UPDATE.ANNOTATIONS_FIELD_NUMBER, annotations),
    }
    return _rewrite(message, edits)


def said_in_create(changes: Changes, asked: Resources | None) -> Changes:
    """Return the changes to put into a create that has ``asked``.

    Unlimited memory is 0 there: CRI-O and cri-dockerd refuse -1. A swap limit moves with a memory limit.
    """
    if _MEMORY not in changes:
        return changes
    memory = 0 if changes[_MEMORY] == _UNLIMITED else changes[_MEMORY]
    held = asked or NO_RESOURCES
    return {**_swap(held.memory_limit_in_bytes, held.memory_swap_limit_in_bytes, memory), **changes, _MEMORY: memory}


def said_in_update(
    changes: Changes, present: Resources | None, asked: Resources | None = None, *, lifts_memory: bool = False
) -> Said:
    """Tell which changes of a container that has ``present`` an update can carry, and which it cannot bring about.

    ``asked`` is what the update says by itself. 0 and "" leave what is, and no runtime changes the OOM score of a
    process that it has started. ``lifts_memory``: the runtime takes -1 for no memory limit; where there is none anyhow
    0 says so, to every runtime. A swap limit moves with a memory limit.
    """
    held, request = present or NO_RESOURCES, asked or NO_RESOURCES
    said = {name: value for name, value in changes.items() if name not in _NOT_IN_UPDATES}
    if said.get(_MEMORY) == _UNLIMITED and held.memory_limit_in_bytes <= 0:
        said[_MEMORY] = 0
    elif said.get(_MEMORY) == _UNLIMITED and not lifts_memory:
        del said[_MEMORY]
    if said.get(_MEMORY):
        memory, swap = request.memory_limit_in_bytes or held.memory_limit_in_bytes, request.memory_swap_limit_in_bytes
        if not swap:
            memory, swap = held.memory_limit_in_bytes, held.memory_swap_limit_in_bytes
        said = {**_swap(memory, swap, said[_MEMORY]), **said}
    cleared = {name for name, value in said.items() if not value and getattr(held, name)}
    return Said(said, tuple(sorted(cleared | (changes.keys() - said.keys()))))


def _swap(memory: int, swap: int, new_memory: ResourceValue) -> Changes:
    """Return the change of a swap limit that goes with one of the memory limit; one that is not set stays so."""
    if swap <= 0:
        return {}
    new_swap = _UNLIMITED if new_memory == _UNLIMITED else swap_beside(memory, swap, new_memory)
    return {} if new_swap == swap else {_SWAP: new_swap}


def taken_in_update(resources: Resources | None) -> Resources | None:
    """Return what a runtime makes of an update that names what none changes."""
    return None if resources is None else overlay(resources, dict.fromkeys(_NOT_IN_UPDATES, 0))


def update_request(container_id: str, changes: Changes, base: Resources | None) -> bytes:
    """Make an UpdateContainerResourcesRequest that carries only the changed fields.

    ``base`` is what the container has: a map field is sent whole, as a runtime may merge it or replace it.
    """
    changed = overlay(base, changes)
    values = {name: getattr(changed, name) for name in changes}
    return edit_update(api_pb2.Identified(id=container_id).SerializeToString(), values, {})


def _rewrite(message: bytes, edits: Edits) -> bytes:
    """Save the walk through the message where there is nothing to do."""
    return rewrite(message, edits) if edits else message


def _inside(number: int, edits: Edits) -> Edits:
    return {number: message_field(edits)} if edits else {}


def _texts(number: int, values: Mapping[str, str]) -> Edits:
    """Edit a map<string,string> or a list of KeyValue: of entries with one key the last is the one that counts."""
    return {number: _text_entries(values)} if values else {}


def _cgroup_parent(parent: str | None) -> Edits:
    return {} if parent is None else {_POD_LINUX.CGROUP_PARENT_FIELD_NUMBER: string_field(parent)}


def _resources(number: int, changes: Changes) -> Edits:
    """Edit a LinuxContainerResources in a field."""
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
