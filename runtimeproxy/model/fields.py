"""The fields of pods and containers, one row per resource field, and the values that have them: pods, containers, hook
requests, answers, adjustments.

Invariant: every value is frozen. ``None`` means "not given", while "" and 0 are values.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

Value = int | str
ResourceValue = Value | Mapping[str, int] | Mapping[str, str]
Changes = Mapping[str, ResourceValue]
"""Values to set by field; of a map only the entries to set."""

MEMORY, SWAP = "memory_limit_in_bytes", "memory_swap_limit_in_bytes"
UNLIMITED = -1
HIGHEST_CPU = 8191
"""The highest CPU or memory node in a cpuset: no kernel is built for more (NR_CPUS in Linux's arch/x86/Kconfig), and
every runtime refuses a higher one."""
LEAST_QUOTA = 1000
"""Least CPU quota in microseconds that the kernel accepts (min_cfs_quota_period in kernel/sched/core.c)."""

_CPUSET_PARTS = re.compile(r"[^,\s]+", re.ASCII)
"""The kernel accepts any number of commas and blanks as a separator (lib/bitmap-str.c)."""
_CPU_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9}))?"
"""At most nine digits, to bound the time for a hostile text."""
_CPUSET = re.compile(rf"{_CPU_RANGE}(?:,{_CPU_RANGE})*")
_CPU_RANGES = re.compile(_CPU_RANGE)


def is_cpuset(text: str) -> bool:
    """Return whether a text in its normal form is a list of CPUs or memory nodes, or empty."""
    if text and _CPUSET.fullmatch(text) is None:
        return False
    return all(int(first) <= int(last or first) <= HIGHEST_CPU for first, last in _CPU_RANGES.findall(text))


class Kind(Enum):
    """The kind of a field's value: ``type`` is the type of the value, or of the entries of a map."""

    __hash__ = object.__hash__

    NUMBER = (int, False)
    TEXT = (str, False)
    NUMBERS = (int, True)
    TEXTS = (str, True)

    def __init__(self, type_: type[Value], is_map: bool) -> None:
        self.type = type_
        self.is_map = is_map


@dataclass(frozen=True, slots=True)
class Row:
    """The rules of a field; a map's keys and entries have their own (``merge``).

    ``is_valid`` tests a value in its normal form, which ``normal`` returns. A field of a ``group`` has no effect, or
    another one, without the others. ``in_updates``: an update can change the field.
    """

    kind: Kind
    is_valid: Callable[[Any], bool] = lambda value: True
    rule: str = ""
    normal: Callable[[Any], Any] = lambda value: value
    group: str = ""
    in_updates: bool = True


def _field(kind: Kind, *rules: Any, **more: Any) -> Any:
    metadata = {"row": Row(kind, *rules, **more)}
    if kind.is_map:
        return field(default_factory=dict, metadata=metadata)
    return field(default=kind.type(), metadata=metadata)


_PERIOD = (lambda us: us == 0 or 1000 <= us <= 1_000_000, "0 (not set) or 1000..1000000 microseconds")
_QUOTA = (
    lambda us: us in (-1, 0) or us >= 1000,
    "-1 (unlimited), 0 (not set) or at least 1000 microseconds",
    lambda us: LEAST_QUOTA if 0 < us < LEAST_QUOTA else us,  # a lower one results from scaling
)
_SHARES = (lambda shares: shares >= 0, "0 (not set) or more")
_BYTES = (lambda limit: limit >= -1, "-1 (unlimited), 0 (not set) or a number of bytes")
_SCORE = (lambda score: -1000 <= score <= 1000, "-1000..1000")
_CPUS = (
    is_cpuset,
    f'empty or a list of n and n-m with n <= m <= {HIGHEST_CPU}, such as "0-3,8"',
    lambda text: ",".join(_CPUSET_PARTS.findall(text)),
)


@dataclass(frozen=True, slots=True)
class Resources:
    """LinuxContainerResources of CRI and of the hook protocol (same fields, same numbers).

    Periods and quotas in microseconds, memory in bytes; 0 and "" mean "not set"; -1 quota or memory means unlimited.
    ``hugepage_limits`` maps a page size ("2MB") to bytes. No update changes ``oom_score_adj``: the OCI runtime spec has
    it in ``process``, and ``runc update`` sets only ``linux.resources``.
    """

    cpu_period: int = _field(Kind.NUMBER, *_PERIOD, group="cpu")
    cpu_quota: int = _field(Kind.NUMBER, *_QUOTA, group="cpu")
    cpu_shares: int = _field(Kind.NUMBER, *_SHARES)
    memory_limit_in_bytes: int = _field(Kind.NUMBER, *_BYTES, group="memory")
    oom_score_adj: int = _field(Kind.NUMBER, *_SCORE, in_updates=False)
    cpuset_cpus: str = _field(Kind.TEXT, *_CPUS)
    cpuset_mems: str = _field(Kind.TEXT, *_CPUS)
    hugepage_limits: Mapping[str, int] = _field(Kind.NUMBERS)
    unified: Mapping[str, str] = _field(Kind.TEXTS)
    memory_swap_limit_in_bytes: int = _field(Kind.NUMBER, *_BYTES, group="memory")


ROWS: Mapping[str, Row] = {member.name: member.metadata["row"] for member in fields(Resources)}
RESOURCE_FIELDS = tuple(ROWS)
MAP_FIELDS = frozenset(name for name, row in ROWS.items() if row.kind.is_map)
TEXT_FIELDS = frozenset(name for name, row in ROWS.items() if row.kind is Kind.TEXT)
NUMBER_FIELDS = tuple(name for name, row in ROWS.items() if row.kind is Kind.NUMBER)

NO_RESOURCES = Resources()


def grouped_fields(name: str) -> set[str]:
    group = ROWS[name].group
    return {name} | {member for member, row in ROWS.items() if group and row.group == group}


def normal_form(name: str, value: Value) -> Any:
    """Return the normal form; "" for a text without any item."""
    return ROWS[name].normal(value)


def overlay(base: Resources | None, changes: Mapping[str, Any]) -> Resources | None:
    """Return ``base`` with ``changes`` set; map fields are merged key by key. None stays None if nothing changes."""
    if not changes:
        return base
    before, values = base or NO_RESOURCES, []
    for name in RESOURCE_FIELDS:
        value = getattr(before, name)
        if name in changes:
            value = {**value, **changes[name]} if name in MAP_FIELDS else changes[name]
        values.append(value)
    return Resources(*values)


def overlaid(values: Changes, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Map fields are merged key by key."""
    merged: dict[str, Any] = dict(values)
    for name, value in changes.items():
        merged[name] = {**merged.get(name, {}), **value} if name in MAP_FIELDS else value
    return merged


def is_echo(sent: Resources, answered: Resources) -> bool:
    """Return whether an answer is a complete echo. proto3 has no field presence: an echo sets all numbers that were
    sent, if there were any."""
    numbers = [name for name in NUMBER_FIELDS if getattr(sent, name)]
    return bool(numbers) and all(getattr(answered, name) for name in numbers)


def named(resources: Resources | None) -> dict[str, ResourceValue]:
    """Return the fields that are set (not 0, "" or an empty map)."""
    if resources is None:
        return {}
    return {name: value for name in RESOURCE_FIELDS if (value := getattr(resources, name))}


def flat(
    maps: Mapping[str, Mapping[str, str]], cgroup_parent: str | None, resources: Mapping[str, Any]
) -> dict[str, Value]:
    """Return single values by their names in ``Adjustment.owners``: "labels.KEY", "cgroup_parent",
    "resources.cpu_quota", "resources.unified.KEY". ``maps`` are labels, annotations and envs by these names."""
    values: dict[str, Value] = {}
    for name, entries in maps.items():
        for key, entry in entries.items():
            values[f"{name}.{key}"] = entry
    if cgroup_parent is not None:
        values["cgroup_parent"] = cgroup_parent
    for name, value in resources.items():
        if name in MAP_FIELDS:
            for key, entry in value.items():
                values[f"resources.{name}.{key}"] = entry
        else:
            values[f"resources.{name}"] = value
    return values


def nested(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the arguments from which ``flat`` returns these values, by part."""
    parts: dict[str, Any] = {}
    for name, value in values.items():
        kind = kind_of(name)
        *owners, last = (*kind.split("."), name[len(kind) + 1 :]) if name != kind else kind.split(".")
        level = parts
        for owner in owners:
            level = level.setdefault(owner, {})
        level[last] = value
    return parts


def kind_of(name: str) -> str:
    """Return the name of a value without a map's key: "envs", "resources.unified", "resources.cpu_quota"."""
    part, _, remainder = name.partition(".")
    return f"{part}.{remainder.partition('.')[0]}" if part == "resources" else part


def in_create(changes: Changes) -> Changes:
    """Return changes in the values of a create: CRI-O and cri-dockerd reject unlimited memory as -1, so it is 0."""
    return {**changes, MEMORY: 0} if changes.get(MEMORY) == UNLIMITED else changes


def in_update(changes: Changes, unlimited: int | None) -> dict[str, ResourceValue]:
    """Return the changes that an update can carry. ``unlimited`` is its value for unlimited memory, or None."""
    sent: Mapping[str, ResourceValue | None] = changes
    if changes.get(MEMORY) == UNLIMITED:
        sent = {**changes, MEMORY: unlimited}
    return {name: value for name, value in sent.items() if value is not None and ROWS[name].in_updates}


def unsupported_changes(changes: Changes, sent: Changes, present: Resources) -> tuple[str, ...]:
    """Return the changes that an update cannot make: it does not carry them, or has 0 or "" for them, which leaves the
    container's ``present`` value."""
    return tuple(sorted(name for name in changes if name not in sent or (not sent[name] and getattr(present, name))))


def converted(changes: Changes, sent: Changes) -> tuple[str, ...]:
    """Return the changes for which a request has another value with the same meaning."""
    return tuple(name for name, value in changes.items() if value and sent.get(name, value) != value)


def limits_before(requested: Resources, present: Resources) -> tuple[int, int]:
    """Return the memory limit and the swap limit from which to compute an update's new swap limit: the requested ones
    if the update sets a swap limit, else those of the container."""
    if swap := requested.memory_swap_limit_in_bytes:
        return requested.memory_limit_in_bytes or present.memory_limit_in_bytes, swap
    return present.memory_limit_in_bytes, present.memory_swap_limit_in_bytes


def swap_for(memory: int, swap: int, new_memory: ResourceValue) -> int:
    """Return the swap limit (memory included) for a new memory limit, from the two limits as they were.

    Equal limits mean no swap, as the kubelet sets it, and stay equal. A swap limit is never below the memory limit,
    which the kernel and the runtimes refuse, and is 0 if the new memory limit is 0.
    """
    assert isinstance(new_memory, int)
    if swap == memory:
        return new_memory
    if swap <= 0:
        return swap
    if new_memory in (0, UNLIMITED):
        return new_memory
    return max(swap, new_memory)


NO_CHANGES: Mapping[str, str] = MappingProxyType({})


class Envs(Mapping[str, str]):
    """Encoded variables (``raw``), overridden by later ``changes``.

    ``read`` decodes ``raw``, in which each key is UTF-8. ``with_all_of`` finds keys without decoding; iteration decodes
    all variables once.
    """

    __slots__ = ("_texts", "changes", "raw", "read")

    def __init__(self, raw: bytes, read: Callable[[bytes], Mapping[str, str]], changes: Mapping[str, str]) -> None:
        self.raw: Final = raw
        self.read: Final = read
        self.changes: Final = changes
        self._texts: Mapping[str, str] | None = None

    def __deepcopy__(self, memo: object) -> "Envs":
        return self  # it does not change

    def with_all_of(self, keys: Iterable[str]) -> Mapping[str, str]:
        """Return at least the variables with one of the keys; decodes nothing if ``raw`` has none of the keys."""
        for key in keys:
            if key.encode(errors="surrogatepass") in self.raw:
                return self.decoded()
        return self.changes

    def decoded(self) -> dict[str, str]:
        """Return all variables without caching them, for readers of many values."""
        return {**self.read(self.raw), **self.changes}

    def __bool__(self) -> bool:
        return bool(self.raw or self.changes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Envs):
            if self.raw == other.raw:  # compare only the later changes
                keys = self.changes.keys() | other.changes.keys()
                return self.with_all_of(keys) == other.with_all_of(keys)
            other = other.decoded()
        return self.decoded() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"Envs({len(self.raw)} bytes, {len(self.changes)} changes)"

    def _read(self) -> Mapping[str, str]:
        if self._texts is None:
            self._texts = MappingProxyType(self.decoded())
        return self._texts

    def __getitem__(self, key: str) -> str:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def changed_envs(envs: Mapping[str, str], changes: Mapping[str, str]) -> Mapping[str, str]:
    if type(envs) is Envs:
        return Envs(envs.raw, envs.read, {**envs.changes, **changes})
    return {**envs, **changes}


SLICE = ".slice"
"""The suffix of each cgroup parent where systemd manages the cgroups, which refuses any other one."""


@dataclass(frozen=True, slots=True)
class PodInfo:
    """The known fields of a pod sandbox; ``id`` is "" until the runtime returned it. ``cgroup_parent`` is None where
    the runtime does not report it; "" is the runtime's default. Hook servers get "" for both."""

    id: str = ""
    name: str = ""
    uid: str = ""
    namespace: str = ""
    attempt: int = 0
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str | None = ""
    overhead: Resources | None = None
    resources: Resources | None = None

    @property
    def full_name(self) -> str:
        """Unique in a runtime; a pod has it before it has an id."""
        return f"{self.namespace}/{self.name}/{self.uid}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """The known fields of a container; ``id`` is "" until the runtime returned it. ``cgroup_parent`` is the parent at
    its creation; "" means its pod's."""

    id: str = ""
    pod_id: str = ""
    name: str = ""
    attempt: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.pod_id}/{self.name}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod as the kubelet requested it and as it is after the hooks.

    ``read``: the record was read from the runtime, which does not report what a hook has replaced. Then both values are
    equal until a container's create repeats what the kubelet requests. ``reported``: the resources that the runtime
    reports, where it does not use those that hooks set (``no_effect``).
    """

    original: PodInfo
    effective: PodInfo
    read: bool = field(default=False, compare=False)
    reported: Resources | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as the kubelet requested it and as it is after the hooks. ``owners`` pairs resource fields, of
    maps their entries ("unified.KEY"), with the plugins that set them, as far as known.

    ``read``: the record was read from the runtime. Then a hook's value counts as requested, unless its original was
    retained (``originals``); the originals of variables never are.
    """

    original: ContainerInfo
    effective: ContainerInfo
    owners: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    read: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a call: a pod, or a container together with its pod. ``renewed``: the container's call has newer
    fields of the pod than the Store."""

    pod: PodRecord
    container: ContainerRecord | None = None
    renewed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """``container`` is None at the pod's hook points."""

    pod: PodInfo
    container: ContainerInfo | None = None

    @property
    def name(self) -> str:
        """Return the name for log lines: namespace/pod or namespace/pod/container."""
        pod = f"{self.pod.namespace}/{self.pod.name}"
        return pod if self.container is None else f"{pod}/{self.container.name}"


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """A hook server's answer; ``resources`` is None if it has no such message."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """``winner`` is the later plugin."""

    field: str
    loser: str
    winner: str


@dataclass(frozen=True, slots=True)
class Adjustment:
    """The changes of all hook servers together.

    Maps have only the entries to set, those of ``resources`` too. ``confirmed`` has the resource fields ("cpu_quota",
    "unified.KEY") that an answer repeated as sent, which makes them the hook's result. ``confirmers`` pairs these with
    plugins. ``owners`` maps "resources.cpu_quota", "resources.unified.KEY", "envs.NAME", "labels.KEY",
    "annotations.KEY", "cgroup_parent" to plugin names. ``normalised`` names the resource fields that an answer did not
    have in normal form.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str | None = None
    resources: Mapping[str, ResourceValue] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    confirmers: frozenset[tuple[str, str]] = frozenset()
    owners: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    normalised: tuple[str, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        """Return whether anything is changed (a confirmed value changes nothing by itself)."""
        return bool(self.labels or self.annotations or self.envs or self.resources or self.cgroup_parent is not None)


NO_ADJUSTMENT = Adjustment()


def set_fields(info: PodInfo | ContainerInfo) -> dict[str, Value]:
    """Return the values that are set, without environment variables, named as in ``Adjustment.owners``."""
    maps = {"annotations": info.annotations}
    if isinstance(info, PodInfo):
        maps["labels"] = info.labels
    return flat(maps, info.cgroup_parent or None, named(info.resources))
