"""The values that both fronts and the core share.

Owns pods, containers, hook requests, hook answers and adjustments, and the difference between an echo and a partial
answer.
Must not know: any wire format, any front.
Invariant: every value is frozen. Absent is not empty: ``None`` means "not given", while "" and 0 are values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

ResourceValue = int | str | Mapping[str, int] | Mapping[str, str]
"""Value of one field of ``Resources``."""


@dataclass(frozen=True, slots=True)
class Resources:
    """LinuxContainerResources of CRI and of the hook protocol (same fields, same numbers).

    Periods and quotas in microseconds, memory in bytes; 0 and "" mean "not set"; -1 quota or memory means unlimited.
    ``hugepage_limits`` maps a page size ("2MB") to bytes.
    """

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    memory_limit_in_bytes: int = 0
    oom_score_adj: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)
    memory_swap_limit_in_bytes: int = 0


RESOURCE_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Resources))
MAP_FIELDS = frozenset({"hugepage_limits", "unified"})
"""The fields of ``Resources`` that merge key by key."""
TEXT_FIELDS = frozenset({"cpuset_cpus", "cpuset_mems"})
"""The fields of ``Resources`` that an echo can clear."""
NUMBER_FIELDS = tuple(name for name in RESOURCE_FIELDS if name not in MAP_FIELDS | TEXT_FIELDS)
HIGHEST_CPU = 8191
"""The highest CPU or memory node that a cpuset may name: no kernel is built for more (NR_CPUS in Linux's
arch/x86/Kconfig), and every runtime refuses a higher one."""
LEAST_QUOTA = 1000
"""Least CPU quota in microseconds that the kernel accepts (min_cfs_quota_period in kernel/sched/core.c)."""
SLICE = ".slice"
"""The suffix of each cgroup parent where systemd manages the cgroups: any other one is refused there."""

NO_RESOURCES = Resources()


@dataclass(frozen=True, slots=True)
class PodInfo:
    """What is known of a pod sandbox; ``id`` is "" until the runtime gave one. ``cgroup_parent`` is None where the
    runtime does not report it; "" is the runtime's default. Hook servers get "" for both."""

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
        """Return the name that is unique in a runtime, which a pod has before it has an id."""
        return f"{self.namespace}/{self.name}/{self.uid}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """What is known of a container; ``id`` is "" until the runtime gave one. ``cgroup_parent`` is the parent that it
    was created under; "" means its pod's."""

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
        """Return the name that is unique in a runtime, which a container has before it has an id."""
        return f"{self.pod_id}/{self.name}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod as the kubelet asked for it and as it is after the hooks.

    ``read``: the record was read from the runtime, which does not report what a hook has replaced. Then both values are
    equal until a container's create repeats what the kubelet asks for. ``reported``: the resources that the runtime
    reports, where it does not use those that hooks set (``no_effect``).
    """

    original: PodInfo
    effective: PodInfo
    read: bool = field(default=False, compare=False)
    reported: Resources | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as the kubelet asked for it and as it is after the hooks. ``owners`` pairs resource fields, of
    maps their entries ("unified.KEY"), with the plugins that set them, as far as known.

    ``read``: the record was read from the runtime. Then what hooks replaced counts as asked, unless it was kept
    (``originals``), as variables never are.
    """

    original: ContainerInfo
    effective: ContainerInfo
    owners: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    read: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: a pod, or a container together with its pod. ``renewed``: the container's call has newer
    knowledge of the pod than the Store."""

    pod: PodRecord
    container: ContainerRecord | None = None
    renewed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """The content of a hook call; ``container`` is None at the pod's hook points."""

    pod: PodInfo
    container: ContainerInfo | None = None

    @property
    def name(self) -> str:
        """Return the name for log lines: namespace/pod or namespace/pod/container."""
        names = (self.pod.namespace, self.pod.name, *(() if self.container is None else (self.container.name,)))
        return "/".join(names)


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What a hook server answered; ``resources`` is None if the answer has no such message."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two plugins set one field to different values; ``winner`` is the later one."""

    field: str
    loser: str
    winner: str


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What all hook servers together changed.

    Maps hold only the entries to set. ``resources`` maps field names of ``Resources`` to new values; its two map fields
    hold changed entries only. ``confirmed`` has the resource fields ("cpu_quota", "unified.KEY") that an answer
    repeated as they were sent, which makes them a result that the hook asked for; ``confirmers`` pairs these with
    plugins. ``owners`` maps "resources.cpu_quota", "envs.NAME", "labels.KEY", "annotations.KEY", "cgroup_parent",
    "resources.unified.KEY", "resources.hugepage_limits.2MB" to plugin names. ``normalised`` names the resource fields
    of one answer that it did not give in their normal form.
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


def overlay(base: Resources | None, changes: Mapping[str, ResourceValue]) -> Resources | None:
    """Return ``base`` with ``changes`` set; map fields are merged key by key. None stays None if nothing changes."""
    if not changes:
        return base
    values: list[Any] = []
    for name in RESOURCE_FIELDS:
        value: Any = getattr(base or NO_RESOURCES, name)
        if name in changes:
            value = {**value, **_entries(changes[name])} if name in MAP_FIELDS else changes[name]
        values.append(value)
    return Resources(*values)


def laid_over(fields: Mapping[str, ResourceValue], changes: Mapping[str, ResourceValue]) -> dict[str, ResourceValue]:
    """Return fields by name with ``changes`` set; map fields are merged key by key."""
    made = dict(fields)
    for name, value in changes.items():
        made[name] = {**_entries(made.get(name, {})), **_entries(value)} if name in MAP_FIELDS else value
    return made


def _entries(value: ResourceValue) -> Mapping[str, Any]:
    assert not isinstance(value, (int, str))
    return value


def swap_beside(memory: int, swap: int, new_memory: ResourceValue) -> int:
    """Return the swap limit (memory included) for a new memory limit, from the two limits as they were.

    If they were equal there was no swap, and stays none, as the kubelet sets it. A swap limit is never below the memory
    limit, which the kernel and the runtimes refuse, and is 0 if no memory limit is left (0).
    """
    assert isinstance(new_memory, int)
    if swap == memory:
        return new_memory
    if swap <= 0:
        return swap
    return max(swap, new_memory) if new_memory else 0


def is_echo(sent: Resources, said: Resources) -> bool:
    """Return whether an answer is a whole echo and not a partial answer. proto3 has no field presence, so it is an echo
    if it repeats all numbers that were sent, and any were."""
    numbers = [name for name in NUMBER_FIELDS if getattr(sent, name)]
    return bool(numbers) and all(getattr(said, name) for name in numbers)


def named(resources: Resources | None) -> dict[str, ResourceValue]:
    """Return the fields of a message that are set (not 0, "" or an empty map)."""
    if resources is None:
        return {}
    fields: dict[str, ResourceValue] = {}
    for name in RESOURCE_FIELDS:
        if value := getattr(resources, name):
            fields[name] = value
    return fields


_CPUSET_PARTS = re.compile(r"[^,\s]+", re.ASCII)


def tidy(name: str, value: int | str) -> int | str:
    """Return the normal form of a number or a text of ``Resources``; "" for a text without any item.

    In a cpuset the kernel takes any number of commas and blanks as a separator (lib/bitmap-str.c). A quota below the
    kernel's least value results from scaling and is raised to it.
    """
    if isinstance(value, str):
        return ",".join(_CPUSET_PARTS.findall(value))
    return LEAST_QUOTA if name == "cpu_quota" and 0 < value < LEAST_QUOTA else value
