"""What a call makes of a pod's or a container's record, the same for both fronts (hook-api, "Applied to").

Invariant: original values come from the kubelet alone, so that a hook that scales a value never scales it twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, NO_RESOURCES, SWAP, Changes, Resources, ResourceValue, named, overlay
from runtimeproxy.model.merge import adjusted_container, adjusted_pod, by_field, difference, echo
from runtimeproxy.model.values import (
    NO_ADJUSTMENT,
    SLICE,
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    HookRequest,
    PodInfo,
    PodRecord,
    Subject,
)

V = TypeVar("V")


def hook_view(subject: Subject) -> HookRequest:
    """Return the hook request about a subject in its present state."""
    return HookRequest(subject.pod.effective, None if subject.container is None else subject.container.effective)


def hooked(subject: Subject) -> dict[str, str]:
    """Return the fields in which a container differs from the kubelet's, as in ``Adjustment.owners``: with the plugin
    that set each, as far as the record has it."""
    if subject.container is None:
        return {}
    owners = {f"resources.{name}": plugin for name, plugin in owners_of(subject.container).items()}
    original = HookRequest(subject.pod.effective, subject.container.original)
    names = sorted(by_field(difference(original, echo(hook_view(subject)))))
    return {name: owners.get(name, "at an earlier call") for name in names}


def container_of(subject: Subject) -> ContainerRecord:
    assert subject.container is not None
    return subject.container


def owners_of(container: ContainerRecord) -> dict[str, str]:
    """Return the plugins that set resource fields, as far as known. A swap limit that changed because the memory limit
    did has the same owner."""
    owners = dict(container.owners)
    original, effective = (info.resources or NO_RESOURCES for info in (container.original, container.effective))
    if MEMORY in owners and original.memory_swap_limit_in_bytes != effective.memory_swap_limit_in_bytes:
        owners.setdefault(SWAP, owners[MEMORY])
    return owners


def created_pod(subject: Subject, adjustment: Adjustment, pod_id: str, unused: Changes | None = None) -> Subject:
    """Return the pod as it was created with the hooks' adjustment, under the id that the runtime gave. ``unused`` are
    resources that were sent, too, and that the runtime reports without using them."""
    original = adjusted_pod(subject.pod.original, NO_ADJUSTMENT, pod_id)
    effective = adjusted_pod(original, adjustment, pod_id) if adjustment or unused else original
    return Subject(PodRecord(original, effective, reported=overlay(original.resources, unused) if unused else None))


def created_container(subject: Subject, adjustment: Adjustment, container_id: str) -> Subject:
    """Return the container as it was created with the hooks' adjustment, under the id that the runtime gave."""
    original = adjusted_container(container_of(subject).original, NO_ADJUSTMENT, container_id)
    effective = adjusted_container(original, adjustment, container_id) if adjustment else original
    owners = _owners({}, adjustment.resources, adjustment) if adjustment.resources else ()
    return Subject(subject.pod, ContainerRecord(original, effective, owners), subject.renewed)


def found(made: Subject, record: PodRecord | ContainerRecord) -> Subject:
    """Return what a create's answer names as the runtime has it (``record``), with this create's original values.

    A pod's cgroup parent that the runtime does not report is unknown; overhead and resources that it does not report or
    use are this create's. A variable that it reports and this create does not set counts as the kubelet's, as runtimes
    also report those of the image. A swap limit that equals the memory limit may have been read as not set: it counts
    as set if the kubelet or this create sets both to one value.
    """
    if isinstance(record, PodRecord):
        pod, has, unused = made.pod.original, record.effective, made.pod.reported is not None
        if has.cgroup_parent is None:
            pod = replace(pod, cgroup_parent=None)
        resources = pod.resources if unused or has.resources is None else has.resources
        in_force = replace(has, overhead=has.overhead or pod.overhead, resources=resources)
        return Subject(PodRecord(pod, in_force, reported=has.resources if unused else None))
    sent, effective = container_of(made), record.effective
    if effective.resources is None:
        effective = replace(effective, resources=sent.original.resources)
    runs, requested = effective.resources or NO_RESOURCES, (sent.original.resources, sent.effective.resources)
    without_swap = any(one and 0 < one.memory_swap_limit_in_bytes == one.memory_limit_in_bytes for one in requested)
    if without_swap and runs.memory_limit_in_bytes and not runs.memory_swap_limit_in_bytes:
        effective = _with(effective, replace(runs, memory_swap_limit_in_bytes=runs.memory_limit_in_bytes), {})
    envs = {key: value for key, value in effective.envs.items() if key not in sent.effective.envs}
    original = replace(sent.original, envs={**envs, **sent.original.envs})
    without = lacking(made, Subject(made.pod, ContainerRecord(original, effective)))
    owners = tuple((name, owner) for name, owner in sent.owners if f"resources.{name}" not in without)
    return Subject(made.pod, ContainerRecord(original, effective, owners), made.renewed)


def lacking(made: Subject, subject: Subject) -> frozenset[str]:
    """Return the fields of a create that its subject does not have as created, named as in ``Adjustment.owners``. A
    runtime may report the whole path of a slice, which systemd finds by the last part."""
    wanted, reported = echo(hook_view(made)), echo(hook_view(subject))
    names = frozenset(by_field(difference(hook_view(subject), wanted)))
    requested, has = wanted.cgroup_parent or "", reported.cgroup_parent or ""
    same_slice = requested.endswith(SLICE) and requested.rpartition("/")[2] == has.rpartition("/")[2]
    return names - {"cgroup_parent"} if same_slice else names


def without_parent(made: Subject) -> PodRecord | ContainerRecord:
    """Return what a create makes without a hook's cgroup parent for the pod: an earlier create may have made it."""
    if made.container is not None:
        return made.container
    effective = replace(made.pod.effective, cgroup_parent=made.pod.original.cgroup_parent)
    return replace(made.pod, effective=effective)


def in_pod(pod: PodRecord, given: PodInfo | None, container: ContainerInfo) -> Subject:
    """Return the subject of a container's create, with the pod brought up to date by what the create repeats of it.

    ``given`` has the kubelet's newest names, labels, annotations, cgroup parent, overhead and resources of the pod,
    without names only the parent: they fill what is unknown and replace its earlier values, while values that hooks
    have set stay. A cgroup parent "" counts as not given. If the names are those of another pod, the runtime has lost
    its state and reuses the id: what is known of the old pod is dropped.
    """
    made = ContainerRecord(container, container)
    if given is None:
        return Subject(pod, made)
    known, present = pod.original, pod.effective
    names = (given.name, given.uid, given.namespace)
    if any(names) and names != (known.name, known.uid, known.namespace):
        other = replace(given, id=present.id)
        return Subject(PodRecord(other, other), made, renewed=True)
    parent = given.cgroup_parent or known.cgroup_parent
    labels, annotations = (given.labels, given.annotations) if any(names) else (known.labels, known.annotations)
    overhead, resources = given.overhead or known.overhead, given.resources or known.resources
    before = (known.cgroup_parent, known.labels, known.annotations, known.overhead, known.resources)
    if not pod.read and (parent, labels, annotations, overhead, resources) == before:
        return Subject(pod, made)
    original = replace(
        known, cgroup_parent=parent, labels=labels, annotations=annotations, overhead=overhead, resources=resources
    )
    of_hooks = _of_hooks(pod.read, named(known.resources), named(present.resources), named(resources))
    effective = replace(
        present,
        cgroup_parent=present.cgroup_parent if _is_hooks_parent(pod, parent) else parent,
        labels={**labels, **_of_hooks(pod.read, known.labels, present.labels, labels)},
        annotations={**annotations, **_of_hooks(pod.read, known.annotations, present.annotations, annotations)},
        overhead=overhead,
        resources=overlay(resources, of_hooks),
    )
    same = effective == original and pod.reported is None
    return Subject(PodRecord(original, original if same else effective, reported=pod.reported), made, renewed=True)


def _is_hooks_parent(pod: PodRecord, given: str | None) -> bool:
    """Return whether a pod's cgroup parent was set by a hook; ``given`` is the kubelet's. For a pod that was read this
    is unknown: it counts as a hook's, unless its form shows that the node's cgroup driver was changed."""
    present = pod.effective.cgroup_parent
    if not pod.read or not present or not given:
        return present != pod.original.cgroup_parent
    return present.endswith(SLICE) == given.endswith(SLICE)


def _of_hooks(read: bool, known: Mapping[str, V], present: Mapping[str, V], asked: Mapping[str, V]) -> dict[str, V]:
    """Return the entries that hooks have set; of a pod that was ``read``, those that the kubelet does not give."""
    if read:
        return {key: value for key, value in present.items() if key not in asked}
    return {key: value for key, value in present.items() if known.get(key) != value}


def subject_of_read(pod: PodRecord, container: ContainerRecord) -> Subject:
    """Return the subject of a container that was read; its cgroup parent stands in for a pod's that is not reported."""
    parent = container.effective.cgroup_parent
    if pod.effective.cgroup_parent is not None or not parent:
        return Subject(pod, container)
    original, effective = (replace(info, cgroup_parent=parent) for info in (pod.original, pod.effective))
    return Subject(PodRecord(original, effective, pod.read, pod.reported), container, renewed=True)


def parent_to_put_in(pod: PodRecord, adjustment: Adjustment) -> str | None:
    """Return the cgroup parent to put into a container's create; None leaves the kubelet's. It is the one of this
    call's hooks, else the one that the pod's hooks gave the pod."""
    if adjustment.cgroup_parent is not None:
        return adjustment.cgroup_parent
    hooked = pod.effective.cgroup_parent != pod.original.cgroup_parent
    return pod.effective.cgroup_parent if hooked else None


def _owners(known: dict[str, str], set_now: Changes, adjustment: Adjustment) -> tuple[tuple[str, str], ...]:
    """Return the owners of resource fields, of a map field those of its entries."""
    for field_name in fields.flat({}, None, set_now):
        name = field_name.removeprefix("resources.")
        known.pop(name, None)
        if owner := adjustment.owners.get(field_name):
            known[name] = owner
    return tuple(known.items())


def prepared(subject: Subject, resources: Changes, adjustment: Adjustment) -> Subject:
    """Return the container with what the extra update of PreStartContainer set."""
    container = container_of(subject)
    owners = _owners(dict(container.owners), resources, adjustment)
    effective = _with(container.effective, overlay(container.effective.resources, resources), {})
    return Subject(subject.pod, ContainerRecord(container.original, effective, owners, container.read))


def _with(container: ContainerInfo, resources: Resources | None, annotations: Mapping[str, str]) -> ContainerInfo:
    return ContainerInfo(
        container.id,
        container.pod_id,
        container.name,
        container.attempt,
        {**container.annotations, **annotations} if annotations else container.annotations,
        resources,
        container.envs,
        container.cgroup_parent,
    )


@dataclass(frozen=True, slots=True)
class RequestedUpdate:
    """What an UpdateContainerResources asks for; 0 and "" mean not set."""

    container_id: str
    resources: Resources | None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EffectiveUpdate:
    """An update as it is sent: what its caller requested, and what was added for the hook servers."""

    requested: RequestedUpdate
    put_in: Changes = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def update_hook_request(subject: Subject, requested: RequestedUpdate) -> HookRequest:
    """Return the hook request of an update: the record's original values, overridden by what the update sets."""
    container = container_of(subject)
    resources = overlay(container.original.resources, named(requested.resources))
    return HookRequest(subject.pod.effective, _with(container.effective, resources, requested.annotations))


def differing(subject: Subject, requested: RequestedUpdate, adjustment: Adjustment) -> dict[str, ResourceValue]:
    """Return the fields whose result differs from what the runtime would hold after the unchanged request alone. A
    plugin that repeats a value as sent thereby withdraws its own earlier change, but not one of another plugin."""
    container = container_of(subject)
    owners = owners_of(container)
    repeated = {
        name for name in adjustment.confirmed if name not in owners or (name, owners[name]) in adjustment.confirmers
    }
    request, original = named(requested.resources), container.original.resources or NO_RESOURCES
    present = container.effective.resources or NO_RESOURCES
    found: dict[str, ResourceValue] = {}
    for name in sorted({name.partition(".")[0] for name in (*adjustment.resources, *repeated)}):
        asks, changes = request.get(name), adjustment.resources.get(name)
        wanted, holds = getattr(original, name), getattr(present, name)
        if name in fields.MAP_FIELDS:
            asks, changes = asks or {}, changes or {}
            wanted, holds = {**wanted, **asks, **changes}, {**holds, **asks}  # type: ignore[dict-item]
            said = [key for key in wanted if key in changes or f"{name}.{key}" in repeated]  # type: ignore[operator]
            wanted = {key: wanted[key] for key in said if holds.get(key) != wanted[key]}
            holds = {}
        else:
            holds = holds if asks is None else asks
            wanted = changes if changes is not None else wanted if asks is None else asks
        if wanted != holds:
            found[name] = wanted
    return found


def updated(subject: Subject, said: EffectiveUpdate, adjustment: Adjustment) -> Subject:
    """Return the container after an update; ``adjustment`` says which plugins set what was added. The kubelet's values
    and the runtime's stay apart; a field that was released empty left the runtime's value as it was."""
    before, requested = container_of(subject), named(said.requested.resources)
    known, present, annotations = before.original, before.effective, said.requested.annotations
    original = effective = _with(known, overlay(known.resources, requested), annotations)
    if known is not present or said.put_in or said.annotations:
        held = {name: value for name, value in fields.laid_over(requested, said.put_in).items() if value}
        effective = _with(present, overlay(present.resources, held), {**annotations, **said.annotations})
    names = fields.flat({}, None, requested)
    owners = {name: plugin for name, plugin in before.owners if f"resources.{name}" not in names}
    owned = _owners(owners, said.put_in, adjustment)
    return Subject(subject.pod, ContainerRecord(original, effective, owned, before.read))
