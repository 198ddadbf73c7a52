"""The bytes of a message, in order, without the fields that a change names: a change must leave them alone.

The protobuf reader is not the proxy's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Union

from runtimeproxy.model.fields import Adjustment, ResourceValue
from tests.cri.messages import LENGTH_DELIMITED, VARINT, length_delimited, tag
from tests.fakes import cri_pb2 as cri

START_GROUP, END_GROUP = 3, 4
FIXED_BYTES = {1: 8, 5: 4}
KEY, VALUE = 1, 2


@dataclass(frozen=True)
class Entries:
    """Names the map or list entries with these keys; ``wire_type`` is that of their values."""

    keys: frozenset[bytes]
    wire_type: int


Named = Mapping[int, Union[int, Entries, "Named"]]
"""By field number: the wire type of a named scalar, the named entries, or the named fields of a message."""
Leaf = tuple[tuple[int | bytes, ...], bytes]


class Field(NamedTuple):
    number: int
    wire_type: int
    octets: bytes
    value: bytes


def _number(message: bytes, at: int) -> tuple[int, int]:
    end = at
    while message[end] & 0x80:
        end += 1
    digits = message[at : end + 1]
    return sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits)), end + 1


def _end(message: bytes, wire_type: int, at: int) -> tuple[int, int]:
    if wire_type == VARINT:
        return at, _number(message, at)[1]
    if wire_type == LENGTH_DELIMITED:
        length, at = _number(message, at)
        return at, at + length
    if wire_type in FIXED_BYTES:
        return at, at + FIXED_BYTES[wire_type]
    assert wire_type == START_GROUP
    end = at
    while True:
        inner, end = _number(message, end)
        if inner & 7 == END_GROUP:
            return at, end
        _, end = _end(message, inner & 7, end)


def fields(message: bytes) -> Iterator[Field]:
    start = 0
    while start < len(message):
        head, at = _number(message, start)
        at, end = _end(message, head & 7, at)
        yield Field(head >> 3, head & 7, message[start:end], message[at:end])
        start = end


def rest(message: bytes, named: Named, path: tuple[int | bytes, ...] = ()) -> Iterator[Leaf]:
    """Yield the fields that are not named, in order.

    The fields of a message that comes in several parts are yielded at the place of the last part. Of a named entry (the
    last one with its key) everything but the value is yielded.
    """
    found = list(fields(message))
    for at, field in enumerate(found):
        what, place = named.get(field.number), (*path, field.number)
        wire_type = what if isinstance(what, int) else LENGTH_DELIMITED
        if what is None or field.wire_type != wire_type:
            yield place, field.octets
        elif isinstance(what, Entries):
            yield from _rest_of_entry(field, what, _alike(found[at + 1 :], field), place)
        elif isinstance(what, Mapping) and not _alike(found[at + 1 :], field):
            yield from rest(b"".join(part.value for part in _alike(found, field)), what, place)


def _alike(found: list[Field], field: Field) -> list[Field]:
    return [other for other in found if other[:2] == field[:2]]


def _rest_of_entry(entry: Field, named: Entries, later: list[Field], place: tuple[int | bytes, ...]) -> Iterator[Leaf]:
    key = _key(entry.value)
    if key in named.keys and key not in {_key(other.value) for other in later}:
        yield from rest(entry.value, {VALUE: named.wire_type}, (*place, key))
    else:
        yield place, entry.octets


def _key(entry: bytes) -> bytes:
    keys = [field.value for field in fields(entry) if field[:2] == (KEY, LENGTH_DELIMITED)]
    return keys[-1] if keys else b""


def assert_rest_is_untouched(before: bytes, after: bytes, named: Named) -> None:
    """Check that two messages are equal byte by byte but for the named fields; a new entry has its key and a value.

    Where one message begins with the other, only named fields may follow.
    """
    if after.startswith(before):
        before, after = b"", after[len(before) :]
    was, left = list(rest(before, named)), []
    places = {place for place, _ in was}
    for place, octets in rest(after, named):
        if place in places or not any(isinstance(step, bytes) for step in place):
            left.append((place, octets))
        else:
            *_, key, _ = place
            assert isinstance(key, bytes)
            assert octets == tag(KEY, LENGTH_DELIMITED) + length_delimited(key)
    assert left == was


_RESOURCES = cri.LinuxContainerResources.DESCRIPTOR.fields_by_name


def entries(values: Mapping[str, object], wire_type: int = LENGTH_DELIMITED) -> Entries:
    return Entries(frozenset(key.encode() for key in values), wire_type)


def in_resources(changes: Mapping[str, ResourceValue]) -> Named:
    """Name fields of LinuxContainerResources; a swap limit may change with a memory limit."""
    swap = {"memory_swap_limit_in_bytes": 0} if "memory_limit_in_bytes" in changes else {}
    return {_RESOURCES[name].number: _named_resource(name, value) for name, value in (swap | dict(changes)).items()}


def _named_resource(name: str, value: ResourceValue) -> int | Entries:
    if isinstance(value, Mapping):
        return entries(value, VARINT if name == "hugepage_limits" else LENGTH_DELIMITED)
    return LENGTH_DELIMITED if isinstance(value, str) else VARINT


def _parent(change: Adjustment) -> Named:
    return (
        {} if change.cgroup_parent is None else {cri.LinuxPodSandboxConfig.CGROUP_PARENT_FIELD_NUMBER: LENGTH_DELIMITED}
    )


def in_pod(change: Adjustment) -> Named:
    config = cri.PodSandboxConfig
    return {
        cri.RunPodSandboxRequest.CONFIG_FIELD_NUMBER: {
            config.LABELS_FIELD_NUMBER: entries(change.labels),
            config.ANNOTATIONS_FIELD_NUMBER: entries(change.annotations),
            config.LINUX_FIELD_NUMBER: {
                **_parent(change),
                cri.LinuxPodSandboxConfig.RESOURCES_FIELD_NUMBER: in_resources(change.resources),
            },
        }
    }


def in_create(change: Adjustment) -> Named:
    request, config = cri.CreateContainerRequest, cri.ContainerConfig
    resources = {cri.LinuxContainerConfig.RESOURCES_FIELD_NUMBER: in_resources(change.resources)}
    return {
        request.CONFIG_FIELD_NUMBER: {
            config.ENVS_FIELD_NUMBER: entries(change.envs),
            config.ANNOTATIONS_FIELD_NUMBER: entries(change.annotations),
            config.LINUX_FIELD_NUMBER: resources,
        },
        request.SANDBOX_CONFIG_FIELD_NUMBER: {cri.PodSandboxConfig.LINUX_FIELD_NUMBER: _parent(change)},
    }


def in_update(change: Adjustment) -> Named:
    linux, annotations = in_resources(change.resources), entries(change.annotations)
    request = cri.UpdateContainerResourcesRequest
    return {request.LINUX_FIELD_NUMBER: linux, request.ANNOTATIONS_FIELD_NUMBER: annotations}
