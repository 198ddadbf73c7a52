"""The values that both fronts and the core share.

Owns what is known of a pod and a container, a hook request, a hook answer and what it is, and an adjustment.
Must not know: any wire format, any front.
Invariant: every value is frozen and absent is not empty: ``None`` means "not said", "" and 0 mean what they are.
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
"""No kernel is built for more CPUs (NR_CPUS in Linux's arch/x86/Kconfig), or for more memory nodes: every runtime
refuses a cpuset that names one above."""
LEAST_QUOTA = 1000
"""The kernel takes no quota below 1 ms (min_cfs_quota_period in kernel/sched/core.c)."""
SLICE = ".slice"
"""The end of each cgroup parent where systemd makes the cgroups: every other one is refused there."""

NO_RESOURCES = Resources()


@dataclass(frozen=True, slots=True)
class PodInfo:
    """What is known of a pod sandbox; ``id`` is "" until the runtime gave one.

    ``cgroup_parent`` is None where the runtime does not tell it: unknown is not "", the runtime's default. Hook servers
    are told "" of both.
    """

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


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """What is known of a container; ``id`` is "" until the runtime gave one.

    ``cgroup_parent`` is the parent that it was created under; "" means its pod's.
    """

    id: str = ""
    pod_id: str = ""
    name: str = ""
    attempt: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod as the kubelet asked for it and as it is after the hooks.

    ``read``: the runtime told it, which does not tell what a hook has replaced, and nobody else knows that: the two are
    alike until a container's create repeats what the kubelet asks for.
    """

    original: PodInfo
    effective: PodInfo
    read: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as the kubelet asked for it and as it is after the hooks.

    ``owners`` pairs resource fields with the plugins that set them, as far as that is known: nobody knows it of a
    container that was read.
    """

    original: ContainerInfo
    effective: ContainerInfo
    owners: tuple[tuple[str, str], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: a pod, or a container together with its pod.

    ``renewed``: the container's call tells more of the pod than the Store knows.
    """

    pod: PodRecord
    container: ContainerRecord | None = None
    renewed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """What a hook server is told; ``container`` is None at the pod's hook points."""

    pod: PodInfo
    container: ContainerInfo | None = None

    @property
    def name(self) -> str:
        """Return what people know it by: namespace/pod or namespace/pod/container."""
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
    """What the hook servers changed, all of them together.

    Maps hold the entries to set and no others. ``resources`` maps field names of ``Resources`` to new values;
    its two map fields hold changed entries only. ``confirmed`` names the resource fields that an answer repeated as
    they were sent: a result that the hook stands for; ``confirmers`` pairs these with plugins. ``owners`` maps
    "resources.cpu_quota", "envs.NAME", "labels.KEY", "annotations.KEY", "cgroup_parent", "resources.unified.KEY",
    "resources.hugepage_limits.2MB" to plugin names.
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

    def __bool__(self) -> bool:
        """Tell whether anything is changed (a confirmed value changes nothing by itself)."""
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

    Where they were equal there was no swap, and is none: so it is with the kubelet's. None is below the memory limit,
    which kernel and runtimes refuse, and none is left where no memory is limited (0).
    """
    assert isinstance(new_memory, int)
    if swap == memory:
        return new_memory
    if swap <= 0:
        return swap
    return max(swap, new_memory) if new_memory else 0


def is_echo(sent: Resources, said: Resources) -> bool:
    """Tell a whole echo from a partial answer: proto3 has no presence, so the numbers must tell."""
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
    """Return the normal form of a number or a text of ``Resources``; of a text that names nothing that is "".

    In a cpuset the kernel takes commas and blanks as separators, as many as there are (lib/bitmap-str.c). A quota below
    its least is one that scaling made.
    """
    if isinstance(value, str):
        return ",".join(_CPUSET_PARTS.findall(value))
    return LEAST_QUOTA if name == "cpu_quota" and 0 < value < LEAST_QUOTA else value
