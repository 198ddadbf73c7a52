"""Parse dockerd's inspect of a pod or a container into values of ``model``: the values that its create requested.

Readers raise only ``Unreadable``, whose text has none of the bytes. A part that is missing, null or of a wrong type
counts as unknown; the other parts are still used. dockerd adds to a create (moby's daemon/commit.go and
daemon/daemon_unix.go, 20.10 to 28) the image's env entries and labels with new keys, Runtime where none was requested,
and MemorySwap: 2 x Memory where it was 0, -1 where the kernel does not account for swap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.docker import messages
from runtimeproxy.docker.messages import Labels, RequestedContainer, RequestedPod, reads_json
from runtimeproxy.model.fields import ROWS, Resources
from runtimeproxy.wire.json import INT64, Object, Table, read_members

DEFAULT_RUNTIME = "runc"
"""The DefaultRuntime of a daemon whose configuration names none."""

_KUBELET_PREFIXES = ("io.kubernetes.", f"{messages.LABEL_PREFIX}io.kubernetes.")

_MEMBERS: Mapping[str, Any] = {
    **dict.fromkeys(("Id", "Name", "Image"), str),
    "Config": {"Labels": Object, "Env": list},
    "HostConfig": {
        **dict.fromkeys(("CgroupParent", "Runtime"), str),
        **{key: ROWS[name].kind.type for name, key in messages.RESOURCE_TABLE.items()},
    },
}
"""The members read of an inspected container or image, with their types; an Object or a list contains texts."""
_INFO: Table = {"driver": ("CgroupDriver", str), "runtime": ("DefaultRuntime", str)}
_TOP: Table = {"name": ("Name", str), "config": ("Config", Object), "host": ("HostConfig", Object)}
_CONFIG: Table = {**messages.LABELS, "env": messages.ENV_AND_HOST["env"]}
_STATE: Table = {"state": ("State", Object)}
_STATUS: Table = {"status": ("Status", str)}


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """Values that an image adds to its containers."""

    labels: Labels = field(default_factory=dict)
    env: Sequence[str] = ()


@reads_json
def read_info(reply: bytes) -> tuple[str, str]:
    """Return the daemon's cgroup driver and its default runtime of GET /info. Raises Unreadable."""
    info = read_members(messages.document(reply), _INFO)
    return info["driver"], info["runtime"]


@reads_json
def parse_inspect(reply: bytes, full_id: str = "") -> Object:
    """Return the members of ``_MEMBERS`` of an inspected container or image; ``full_id`` replaces a missing id.
    Raises Unreadable."""
    members = _select_members(messages.document(reply), _MEMBERS)
    if members.get("Id"):
        return members
    return Object((*(entry for entry in members if entry[0] != "Id"), ("Id", full_id)))


def _select_members(owner: Object, parts: Mapping[str, Any]) -> Object:
    members: list[tuple[str, Any]] = []
    for name, member_type in parts.items():
        value = owner.get(name)
        if isinstance(member_type, Mapping):
            members.append((name, _select_members(value if isinstance(value, Object) else Object(), member_type)))
        elif type(value) is not member_type or (member_type is int and value not in INT64):
            continue
        elif member_type is Object:
            members.append((name, Object([(key, text) for key, text in value if isinstance(text, str)])))
        else:
            members.append((name, [text for text in value if isinstance(text, str)] if member_type is list else value))
    return Object(members)


def read_image(reply: bytes) -> ImageDefaults:
    return ImageDefaults(**read_members(parse_inspect(reply).get("Config"), _CONFIG))


@reads_json
def read_inspect(
    inspected: Object, defaults: ImageDefaults | None, default_runtime: str = DEFAULT_RUNTIME
) -> RequestedPod | RequestedContainer | None:
    """Return the values that a container was created with; None if it belongs to no pod. ``inspected`` is a result of
    ``parse_inspect``. ``defaults`` are removed, None if the image no longer exists. Raises Unreadable."""
    top = read_members(inspected, _TOP)
    name, host, config = top["name"], top["host"], read_members(top["config"], _CONFIG)
    defaults = defaults or ImageDefaults()
    labels = _requested_labels(config["labels"], defaults.labels, name)
    container_id = messages.id_of(inspected)
    if labels.get(messages.TYPE_LABEL) not in messages.TYPES:
        return None
    value = messages.requested(name, labels, _requested_env(config["env"], defaults.env), host)
    if host.get("CgroupParent") is None:
        value = replace(value, cgroup_parent=None)
    if isinstance(value, RequestedContainer):
        limits = value.container.resources  # dockershim sets a swap limit equal to the memory limit
        limits = limits and _requested_swap(limits, uncounted=limits.memory_limit_in_bytes)
        return replace(value, container=replace(value.container, id=container_id, resources=limits))
    handler = "" if value.pod.runtime_handler == default_runtime else value.pod.runtime_handler
    limits = value.pod.resources and _requested_swap(value.pod.resources, uncounted=0)  # dockershim sets none
    return replace(value, pod=replace(value.pod, id=container_id, runtime_handler=handler, resources=limits))


_LIFE_BY_STATUS = {
    "created": Life(started=False, running=False),
    **dict.fromkeys(("running", "paused", "restarting"), Life(started=True, running=True)),
    **dict.fromkeys(("removing", "exited", "dead"), Life(started=True, running=False)),
}


@reads_json
def read_state(reply: bytes) -> Life:
    """Read the State of an inspected container. Raises Unreadable."""
    state = read_members(messages.document(reply), _STATE)["state"]
    try:
        return _LIFE_BY_STATUS[read_members(state, _STATUS)["status"]]
    except KeyError:
        raise Unreadable("inspected container in a state that is not known") from None


def _requested_labels(merged: Labels, image_labels: Labels, name: str) -> dict[str, str]:
    """Remove the image's labels. The kubelet's labels stay if the name has dockershim's form: an image that was
    committed from a pod's container has them, too."""
    prefixes = _KUBELET_PREFIXES if messages.parse_name(name) else ()
    return {key: value for key, value in merged.items() if image_labels.get(key) != value or key.startswith(prefixes)}


def _requested_env(merged: Sequence[str], image_env: Sequence[str]) -> list[str]:
    """Return the request's own env entries; dockerd appends the image's entries.

    It adds all of them if the request has none, else the first entry of each new key (runconfig's merge). Of several
    possible splits, return the one with the fewest own entries. If no split is possible with this image, remove all
    entries that the image has."""
    if list(merged) == list(image_env):
        return []
    offered: dict[str, str] = {}
    for entry in image_env:
        offered.setdefault(_key(entry), entry)
    position = {entry: number for number, entry in enumerate(offered.values())}
    begin, following = len(merged), len(position)
    while begin and position.get(merged[begin - 1], following) < following:  # in the image's order, so perhaps added
        begin -= 1
        following = position[merged[begin]]
    own = {_key(entry) for entry in merged[:begin]}
    missing = sum(key not in own for key in offered)
    doubled = sum(_key(entry) in own for entry in merged[begin:])
    for end in range(begin, len(merged) + 1):
        if end and missing == len(merged) - end and not doubled:
            return list(merged[:end])
        if end < len(merged):
            if _key(merged[end]) in own:
                doubled -= 1
            else:
                own.add(_key(merged[end]))
                missing -= 1
    image_entries = set(image_env)
    return [entry for entry in merged if entry not in image_entries]


def _key(entry: str) -> str:
    return entry.partition("=")[0]


def _requested_swap(resources: Resources, uncounted: int) -> Resources:
    """Return the resources with the requested swap limit, ``uncounted`` if the kernel does not account for swap."""
    memory, swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    if memory > 0 and swap in (2 * memory, -1):
        return replace(resources, memory_swap_limit_in_bytes=uncounted if swap == -1 else 0)
    return resources
