"""The kubelet's original values of a pod or a container, where hooks replaced them: no runtime reports them.

Invariant: an original value is restored only for its own subject, and only while the runtime reports no value other
than the hook's. The value of an environment variable is never retained.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runtimeproxy.model import fields
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Value, kind_of, set_fields

Pair = tuple[Value | None, Value | None]
"""The kubelet's value and the hook's; None means not set."""
Name = tuple[Value, ...]
"""The kubelet's identification: namespace, name, uid, attempt of a pod; pod id, name, attempt of a container."""

_NAMES: tuple[tuple[type, ...], ...] = ((str, str, str, int), (str, str, int))
_NUMBERS = range(-(2**63), 2**63)
_TYPES: dict[str, tuple[type, bool]] = {
    **{"cgroup_parent": (str, False), "labels": (str, True), "annotations": (str, True)},
    **{f"resources.{name}": row.kind.value for name, row in fields.ROWS.items()},
}
"""The type of each field's values, and whether they have keys, by ``kind_of`` their names."""


@dataclass(frozen=True, slots=True)
class OriginalValues:
    """``owners`` pairs resource fields with the plugins that set them, or, of a pod, with "" if the runtime reports
    them without using them."""

    name: Name
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    owners: tuple[tuple[str, str], ...] = ()


def original_values_of(record: PodRecord | ContainerRecord) -> OriginalValues | None:
    """None if hooks replaced nothing that can be retained."""
    effective = record.effective
    if isinstance(record, PodRecord) and record.reported is not None:
        effective = replace(record.effective, resources=record.reported)
    if record.original == effective:
        return None
    requested, hooked = set_fields(record.original), set_fields(effective)
    names = sorted({name for name, _ in requested.items() ^ hooked.items()})
    pairs = {name: (requested.get(name), hooked.get(name)) for name in names}
    if not pairs:
        return None
    owners = record.owners if isinstance(record, ContainerRecord) else ()
    if effective is not record.effective:
        owners = tuple((name.removeprefix("resources."), "") for name in pairs)
    return OriginalValues(_name(record.effective), pairs, _owners_of(pairs, owners))


def restored_pod(info: PodInfo, retained: OriginalValues) -> PodRecord:
    """Return the record of a pod that was read from the runtime, with its original values restored."""
    if retained.name != _name(info):
        return PodRecord(info, info, read=True)
    original, effective, valid = _restored(info, retained)
    unused = {f"resources.{name}": valid[f"resources.{name}"][0] for name, _ in _owners_of(valid, retained.owners)}
    if not unused:
        return PodRecord(original, effective)
    return PodRecord(original, _with(effective, unused), reported=effective.resources)


def restored_container(info: ContainerInfo, retained: OriginalValues) -> ContainerRecord:
    """Return the record of a container that was read from the runtime, with its original values restored."""
    if retained.name != _name(info):
        return ContainerRecord(info, info, read=True)
    original, effective, valid = _restored(info, retained)
    return ContainerRecord(original, effective, _owners_of(valid, retained.owners), read=True)


_I = TypeVar("_I", PodInfo, ContainerInfo)


def _restored(info: _I, retained: OriginalValues) -> tuple[_I, _I, Mapping[str, Pair]]:
    """Return the original value, the effective value, and the pairs that are still valid. An unreported field has the
    hook's value; if the runtime reports another value, another client has set it since."""
    reported = set_fields(info)
    valid = {name: pair for name, pair in retained.pairs.items() if reported.get(name) in (None, pair[1])}
    if not valid:
        return info, info, valid
    effective = _with(info, {name: hooked for name, (_, hooked) in valid.items() if reported.get(name) != hooked})
    return _with(effective, {name: original for name, (original, _) in valid.items()}), effective, valid


def _owners_of(pairs: Mapping[str, Pair], owners: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, plugin) for name, plugin in owners if f"resources.{name}" in pairs)


def _name(info: PodInfo | ContainerInfo) -> Name:
    if isinstance(info, PodInfo):
        return info.namespace, info.name, info.uid, info.attempt
    return info.pod_id, info.name, info.attempt


def _with(info: _I, values: Mapping[str, Value | None]) -> _I:
    """None unsets a field; resources without any field become None."""
    if not values:
        return info
    made = fields.nested({name: value for name, value in {**set_fields(info), **values}.items() if value is not None})
    resources = fields.Resources(**made.get("resources", {}))
    parts = {
        "cgroup_parent": made.get("cgroup_parent", ""),
        "labels": made.get("labels", {}),
        "annotations": made.get("annotations", {}),
        "resources": None if resources == fields.NO_RESOURCES else resources,
    }
    changed: dict[str, Any] = {part: parts[part] for part in {name.partition(".")[0] for name in values}}
    return replace(info, **changed)


def write(retained: OriginalValues) -> bytes:
    return json.dumps([retained.name, retained.pairs, retained.owners], separators=(",", ":")).encode()


def read(text: bytes) -> OriginalValues:
    """Parse the output of ``write``. Raises ValueError for anything else; the text has the reason, without values."""
    try:
        name, pairs, owners = json.loads(text)
        retained = OriginalValues(
            tuple(name),
            {field: (original, hooked) for field, (original, hooked) in pairs.items()},
            tuple((field, plugin) for field, plugin in owners),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, or of another shape
        raise ValueError("it is not a list of a name, pairs and owners") from None
    if tuple(map(type, retained.name)) not in _NAMES:
        raise ValueError("it has no subject")
    if not all(_is_value(field, value) for field, pair in retained.pairs.items() for value in pair):
        raise ValueError("a field has a value that it cannot have")
    if len(retained.name) == len(_NAMES[1]) and any(field.startswith("labels.") for field in retained.pairs):
        raise ValueError("a container has a label")
    if not all(f"resources.{field}" in retained.pairs and type(plugin) is str for field, plugin in retained.owners):
        raise ValueError("an owner owns nothing")
    return retained


def _is_value(field: str, value: object) -> bool:
    """Return whether a value is valid for a field; None is valid for every known field."""
    kind = kind_of(field)
    type_, has_keys = _TYPES.get(kind, (None, False))
    if type_ is None or has_keys is (field == kind):
        return False
    return value is None or (type(value) is type_ and (type_ is str or value in _NUMBERS))
