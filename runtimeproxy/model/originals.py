"""The kubelet's original values of a pod or a container, where hooks replaced them: no runtime reports them.

Owns which fields of a record hooks replaced, how a record is restored from them and from what the runtime reports, and
their form as JSON.
Must not know: where they are kept, and for how long.
Invariant: an original value is restored only for the subject it was kept of, and only as long as the runtime does not
report another value than the hook's. An environment value is never kept.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runtimeproxy.model.values import (
    MAP_FIELDS,
    NO_RESOURCES,
    RESOURCE_FIELDS,
    TEXT_FIELDS,
    ContainerInfo,
    ContainerRecord,
    PodInfo,
    PodRecord,
    Resources,
    named,
)

Value = int | str
Fields = dict[str, Value]
"""Values by field, named as in ``Adjustment.owners``; fields that are not set are absent."""
Pair = tuple[Value | None, Value | None]
"""The kubelet's value and the hook's; None means not set."""
Name = tuple[Value, ...]
"""The kubelet's identification: namespace, name, uid, attempt of a pod; pod id, name, attempt of a container."""

_NAMES: tuple[tuple[type, ...], ...] = ((str, str, str, int), (str, str, int))
_NUMBERS = range(-(2**63), 2**63)
_MAPS = {"labels": str, "annotations": str, "resources.unified": str, "resources.hugepage_limits": int}
"""The fields that have an entry per key, and the type of their values."""
_KINDS: dict[str, type] = {"cgroup_parent": str} | {
    f"resources.{name}": str if name in TEXT_FIELDS else int for name in RESOURCE_FIELDS if name not in MAP_FIELDS
}
"""The other fields, and the type of their values."""


class BrokenOriginals(ValueError):
    """Kept values cannot be read; the text says why, without values."""


@dataclass(frozen=True, slots=True)
class OriginalValues:
    """What hooks replaced of one subject; ``owners`` pairs resource fields with the plugins that set them, and of a pod
    those that the runtime reports without using them with ""."""

    name: Name
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    owners: tuple[tuple[str, str], ...] = ()


# -- of a record, and back -------------------------------------------------------------------------------------------


def original_values_of(record: PodRecord | ContainerRecord) -> OriginalValues | None:
    """Return the values to keep of a record; None if hooks replaced nothing that can be kept."""
    effective = record.effective
    if isinstance(record, PodRecord) and record.reported is not None:
        effective = replace(record.effective, resources=record.reported)
    if record.original == effective:
        return None
    asked, hooked = _fields(record.original), _fields(effective)
    names = sorted(asked.keys() | hooked.keys())
    pairs = {name: (asked.get(name), hooked.get(name)) for name in names if asked.get(name) != hooked.get(name)}
    if not pairs:
        return None
    owners = record.owners if isinstance(record, ContainerRecord) else ()
    if effective is not record.effective:
        owners = tuple((name.removeprefix("resources."), "") for name in pairs)
    return OriginalValues(_name(record.effective), pairs, _of(pairs, owners))


def restored_pod(info: PodInfo, kept: OriginalValues) -> PodRecord:
    """Return the record of a pod that was read from the runtime, with the kept values restored."""
    if kept.name != _name(info):
        return PodRecord(info, info, read=True)
    original, effective, standing = _restored(info, kept)
    unused = {f"resources.{name}": standing[f"resources.{name}"][0] for name, _ in _of(standing, kept.owners)}
    if not unused:
        return PodRecord(original, effective)
    return PodRecord(original, _with(effective, unused), reported=effective.resources)


def restored_container(info: ContainerInfo, kept: OriginalValues) -> ContainerRecord:
    """Return the record of a container that was read from the runtime, with the kept values restored."""
    if kept.name != _name(info):
        return ContainerRecord(info, info, read=True)
    original, effective, standing = _restored(info, kept)
    return ContainerRecord(original, effective, _of(standing, kept.owners), read=True)


_I = TypeVar("_I", PodInfo, ContainerInfo)


def _restored(info: _I, kept: OriginalValues) -> tuple[_I, _I, Mapping[str, Pair]]:
    """Return the original value, the effective value, and the kept pairs that still hold. What the runtime does not
    report is as the hook set it; if it reports another value, somebody else has set that since."""
    told = _fields(info)
    standing = {name: pair for name, pair in kept.pairs.items() if told.get(name) in (None, pair[1])}
    if not standing:
        return info, info, standing
    effective = _with(info, {name: hooked for name, (_, hooked) in standing.items() if told.get(name) != hooked})
    return _with(effective, {name: asked for name, (asked, _) in standing.items()}), effective, standing


def _of(pairs: Mapping[str, Pair], owners: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, plugin) for name, plugin in owners if f"resources.{name}" in pairs)


def _name(info: PodInfo | ContainerInfo) -> Name:
    if isinstance(info, PodInfo):
        return info.namespace, info.name, info.uid, info.attempt
    return info.pod_id, info.name, info.attempt


def _fields(info: PodInfo | ContainerInfo) -> Fields:
    fields: Fields = {f"annotations.{key}": value for key, value in info.annotations.items()}
    if isinstance(info, PodInfo):
        fields |= {f"labels.{key}": value for key, value in info.labels.items()}
    if info.cgroup_parent:
        fields["cgroup_parent"] = info.cgroup_parent
    for name, value in named(info.resources).items():
        if isinstance(value, Mapping):
            fields |= {f"resources.{name}.{key}": entry for key, entry in value.items()}
        else:
            fields[f"resources.{name}"] = value
    return fields


def _with(info: _I, values: Mapping[str, Value | None]) -> _I:
    """Return a value with fields set, or unset where they are None; resources without any field become None."""
    if not values:
        return info
    changed: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for name, value in values.items():
        part, _, key = name.partition(".")
        if part == "cgroup_parent":
            changed[part] = value or ""
        elif part == "resources":
            _set_resource(resources, info.resources or NO_RESOURCES, key, value)
        else:
            _set_entry(changed.setdefault(part, dict(getattr(info, part))), key, value)
    if resources:
        made = replace(info.resources or NO_RESOURCES, **resources)
        changed["resources"] = None if made == NO_RESOURCES else made
    return replace(info, **changed)


def _set_resource(changed: dict[str, Any], known: Resources, name: str, value: Value | None) -> None:
    name, _, key = name.partition(".")
    if name in MAP_FIELDS:
        _set_entry(changed.setdefault(name, dict(getattr(known, name))), key, value)
    else:
        changed[name] = getattr(NO_RESOURCES, name) if value is None else value


def _set_entry(entries: dict[str, Value], key: str, value: Value | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value


# -- as JSON ---------------------------------------------------------------------------------------------------------


def write(kept: OriginalValues) -> bytes:
    """Return kept values as JSON."""
    return json.dumps([kept.name, kept.pairs, kept.owners], separators=(",", ":")).encode()


def read(text: bytes) -> OriginalValues:
    """Parse the output of ``write``. Raises BrokenOriginals for anything else."""
    try:
        name, pairs, owners = json.loads(text)
        kept = OriginalValues(
            tuple(name),
            {field: (asked, hooked) for field, (asked, hooked) in pairs.items()},
            tuple((field, plugin) for field, plugin in owners),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, or of another shape
        raise BrokenOriginals("it is not a list of a name, pairs and owners") from None
    if tuple(map(type, kept.name)) not in _NAMES:
        raise BrokenOriginals("it has no subject")
    if not all(_is_value(field, value) for field, pair in kept.pairs.items() for value in pair):
        raise BrokenOriginals("a field has a value that it cannot have")
    if len(kept.name) == len(_NAMES[1]) and any(field.startswith("labels.") for field in kept.pairs):
        raise BrokenOriginals("a container has a label")
    if not all(f"resources.{field}" in kept.pairs and type(plugin) is str for field, plugin in kept.owners):
        raise BrokenOriginals("an owner owns nothing")
    return kept


def _is_value(field: str, value: object) -> bool:
    """Return whether a value is valid for a field; None is valid for every known field."""
    kind = _KINDS.get(field) or next((kind for name, kind in _MAPS.items() if field.startswith(f"{name}.")), None)
    if kind is None or value is None:
        return kind is not None
    return type(value) is kind and (kind is str or value in _NUMBERS)
