"""The values that both fronts and the core share: pods, containers, environments, hook requests, answers, adjustments.

Every value is frozen. ``None`` means "not given", while "" and 0 are values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from runtimeproxy.model.fields import Resources, ResourceValue, Value, flat, named

NO_CHANGES: Mapping[str, str] = MappingProxyType({})


class Envs(Mapping[str, str]):
    """Encoded variables (``raw``), overridden by those that were set since (``changes``).

    ``read`` decodes ``raw``, which has each key as its UTF-8. ``with_all_of`` looks up some keys without decoding;
    iteration decodes all variables once.
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
        """Return variables among which are those with one of the keys; decodes nothing if ``raw`` has none of them."""
        for key in keys:
            if key.encode(errors="surrogatepass") in self.raw:
                return self.decoded()
        return self.changes

    def decoded(self) -> dict[str, str]:
        """Return all variables, decoded and not kept: for readers of many values, once each."""
        return {**self.read(self.raw), **self.changes}

    def __bool__(self) -> bool:
        return bool(self.raw or self.changes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Envs):
            if self.raw == other.raw:  # only the variables set since are compared
                keys = self.changes.keys() | other.changes.keys()
                return self.with_all_of(keys) == other.with_all_of(keys)
            other = other.decoded()
        return self.decoded() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"Envs({len(self.raw)} bytes, {len(self.changes)} changes)"

    # Methods of a mapping, which decode all variables.

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


def changed(envs: Mapping[str, str], changes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with ``changes`` set."""
    if type(envs) is Envs:
        return Envs(envs.raw, envs.read, {**envs.changes, **changes})
    return {**envs, **changes}


SLICE = ".slice"
"""The suffix of each cgroup parent where systemd manages the cgroups: any other one is refused there."""


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
        pod = f"{self.pod.namespace}/{self.pod.name}"
        return pod if self.container is None else f"{pod}/{self.container.name}"


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

    Maps hold only the entries to set, those of ``resources`` too. ``confirmed`` has the resource fields ("cpu_quota",
    "unified.KEY") that an answer repeated as they were sent, which makes them the hook's result; ``confirmers`` pairs
    these with plugins. ``owners`` maps "resources.cpu_quota", "resources.unified.KEY", "envs.NAME", "labels.KEY",
    "annotations.KEY", "cgroup_parent" to plugin names. ``normalised`` names the resource fields of one answer that it
    did not give in their normal form.
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
