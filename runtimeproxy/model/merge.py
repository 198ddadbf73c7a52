"""Merge the answers of hook servers into one Adjustment, and apply it to the records of pods and containers
(hook-api, "What is sent" and "What an answer means").

The SDK's edits and its tester use the rules for answers, too (hooks/sdk).
Invariant: an answer that repeats the request changes nothing and is never bad, even if the kubelet's values are odd.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, TypeVar

from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, ContainerRecord, HookRequest, PodRecord, Subject, named, overlay
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Part

_ENTRIES = ("labels", "annotations", "envs")


def echo(request: HookRequest) -> fields.HookAnswer:
    pod, container, parent = request.pod, request.container, _parent(request)
    if container is None:
        return fields.HookAnswer(pod.labels, pod.annotations, cgroup_parent=parent, resources=pod.resources)
    return fields.HookAnswer({}, container.annotations, container.envs, parent, container.resources)


def _parent(request: HookRequest) -> str:
    return (request.container and request.container.cgroup_parent) or request.pod.cgroup_parent or ""


def difference(request: HookRequest, answer: fields.HookAnswer) -> Adjustment:
    """Return the changes of an answer; ``combine`` adds the owners, confirmers and conflicts. A key that the answer
    lacks is unchanged."""
    subject = request.container or request.pod
    values: dict[str, Any] = {}
    for name in _ENTRIES:
        if given := getattr(answer, name):
            sent = getattr(subject, name, fields.NO_CHANGES)
            if type(sent) is fields.Envs:
                sent = sent.with_all_of(given)
            values[name] = {key: value for key, value in given.items() if sent.get(key) != value}
    if answer.cgroup_parent and answer.cgroup_parent != _parent(request):
        values["cgroup_parent"] = answer.cgroup_parent
    if answer.resources is not None:
        values |= _changed_resources(subject.resources or fields.NO_RESOURCES, answer.resources)
    return Adjustment(**values)


def _changed_resources(before: fields.Resources, after: fields.Resources) -> dict[str, Any]:
    changes: dict[str, fields.ResourceValue] = {}
    repeated: list[str] = []
    normalised: list[str] = []
    for name in fields.RESOURCE_FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if not new:
            if old and name in fields.TEXT_FIELDS and fields.is_echo(before, after):  # only an echo can clear a cpuset
                changes[name] = new
        elif name in fields.MAP_FIELDS:
            entries = {key: value for key, value in new.items() if old.get(key) != value}
            if entries:
                changes[name] = entries
            repeated += [f"{name}.{key}" for key in new if key not in entries]
        elif new == old:
            repeated.append(name)
        else:
            value = fields.ROWS[name].normal(new)
            if value != new:
                normalised.append(name)
            if value and value == old:
                repeated.append(name)
            elif value:  # a text with an empty normal form is not set
                changes[name] = value
    return {"resources": changes, "confirmed": frozenset(repeated), "normalised": tuple(normalised)}


def applicable(hook_point: HookPoint, change: Adjustment) -> Adjustment:
    for name in _WITHOUT_EFFECT[hook_point.applies]:
        if getattr(change, name):
            return Adjustment(**{name: getattr(change, name) for part in hook_point.applies for name in _FIELDS[part]})
    return change


_FIELDS = {part: (part.value,) for part in Part} | {Part.RESOURCES: ("resources", "confirmed", "normalised")}
_WITHOUT_EFFECT: Mapping[frozenset[Part], tuple[str, ...]] = {
    row.applies: tuple(field for part, names in _FIELDS.items() if part not in row.applies for field in names)
    for row in HOOK_POINTS
}
"""The fields of an Adjustment without effect, by the set of parts that have an effect at a hook point."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule of hook-api that an answer breaks; ``field`` is a name such as "envs" or "resources.cpu_quota". Neither
    field nor rule contains a key or a value."""

    field: str
    rule: str

    def __str__(self) -> str:
        return f"{self.field}: {self.rule}"


def validated(change: Adjustment, sent: HookRequest) -> tuple[Adjustment, tuple[BrokenRule, ...]]:
    """Return the valid part of a change of ``sent``, and the rules that the other values break. A bad value removes its
    field, and the fields that have no meaning without it; in a map only its entry."""
    broken: list[BrokenRule] = []
    good: dict[str, Any] = {}
    for name in _ENTRIES:
        if entries := getattr(change, name):
            good[name] = _good_entries(name, entries, broken)
    parent = change.cgroup_parent
    if parent is not None and (rule := parent_rule(parent, _parent(sent))):
        broken.append(BrokenRule("cgroup_parent", rule))
        parent = None
    resources: dict[str, fields.ResourceValue] = {}
    dropped: set[str] = set()
    for name, value in change.resources.items():
        if name in fields.MAP_FIELDS:
            assert isinstance(value, Mapping)
            if of_map := _good_entries(f"resources.{name}", value, broken):
                resources[name] = of_map
            continue
        row = fields.ROWS[name]
        if row.is_valid(value):
            resources[name] = value
        else:
            broken.append(BrokenRule(f"resources.{name}", f"must be {row.rule}"))
            dropped |= fields.grouped_fields(name)
    if not broken:
        return change, ()
    good["resources"] = {name: value for name, value in resources.items() if name not in dropped}
    good["confirmed"] = change.confirmed - dropped
    return replace(change, cgroup_parent=parent, **good), tuple(dict.fromkeys(broken))


def _good_entries(field: str, entries: Mapping[str, Any], broken: list[BrokenRule]) -> dict[str, Any]:
    """Add the rules that the other entries break to ``broken``."""
    good: dict[str, Any] = {}
    for key, value in entries.items():
        if rule := env_rule(key, value) if field == "envs" else key_rule(key):
            broken.append(BrokenRule(field, rule))
        else:
            good[key] = value
    return good


# Each returns the broken rule, or "".


def key_rule(key: str) -> str:
    return "" if key else "a key must not be empty"


def env_rule(key: str, value: object) -> str:
    # A key with "=" most likely contains a value too, so a bad key is never shown.
    if not key or "=" in key or "\0" in key:
        return 'a key must not be empty and must not contain "=" or NUL'
    return "a value must not contain NUL" if "\0" in str(value) else ""


def parent_rule(path: str, sent: str) -> str:
    """``path`` replaces the cgroup parent ``sent``."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        return 'must be an absolute path without ".." and NUL'
    if sent.rstrip("/").endswith(fields.SLICE) and not path.rstrip("/").endswith(fields.SLICE):
        return f"must be a {fields.SLICE} where one was sent: systemd makes the node's cgroups"
    return ""


def combine(earlier: Adjustment, plugin: str, change: Adjustment) -> Adjustment:
    """Add a plugin's changes to those of earlier plugins; if both set a field, the later plugin wins and owns it. Two
    different values are a conflict."""
    values = by_field(change)
    if earlier is fields.NO_ADJUSTMENT:
        return Adjustment(
            change.labels,
            change.annotations,
            change.envs,
            change.cgroup_parent,
            change.resources,
            change.confirmed,
            frozenset(zip(change.confirmed, repeat(plugin))),
            dict.fromkeys(values, plugin),
        )
    before = by_field(earlier)
    conflicts = (
        fields.Conflict(field, owner, plugin)
        for field, value in values.items()
        if (owner := earlier.owners.get(field, plugin)) != plugin and before.get(field) != value
    )
    return Adjustment(
        labels={**earlier.labels, **change.labels},
        annotations={**earlier.annotations, **change.annotations},
        envs={**earlier.envs, **change.envs},
        cgroup_parent=earlier.cgroup_parent if change.cgroup_parent is None else change.cgroup_parent,
        resources=fields.overlaid(earlier.resources, change.resources),
        confirmed=earlier.confirmed | change.confirmed,
        confirmers=earlier.confirmers | {(name, plugin) for name in change.confirmed},
        owners={**earlier.owners, **dict.fromkeys(values, plugin)},
        conflicts=(*earlier.conflicts, *conflicts),
    )


def by_field(adjustment: Adjustment) -> dict[str, fields.Value]:
    maps = {"labels": adjustment.labels, "annotations": adjustment.annotations, "envs": adjustment.envs}
    return fields.flat(maps, adjustment.cgroup_parent, adjustment.resources)


def applied(request: HookRequest, adjustment: Adjustment) -> HookRequest:
    """Return the request with an adjustment applied, as the next plugin gets it. At the container's hook points a new
    cgroup parent is set on the container; the pod stays as it is."""
    if request.container is None:
        return HookRequest(adjusted_pod(request.pod, adjustment, request.pod.id))
    return HookRequest(request.pod, adjusted_container(request.container, adjustment, request.container.id))


def adjusted_pod(pod: fields.PodInfo, adjustment: Adjustment, pod_id: str) -> fields.PodInfo:
    """Return a copy with another id. An unchanged part stays the same object, so that it is stored once."""
    return fields.PodInfo(
        pod_id,
        pod.name,
        pod.uid,
        pod.namespace,
        pod.attempt,
        pod.runtime_handler,
        {**pod.labels, **adjustment.labels} if adjustment.labels else pod.labels,
        {**pod.annotations, **adjustment.annotations} if adjustment.annotations else pod.annotations,
        pod.cgroup_parent if adjustment.cgroup_parent is None else adjustment.cgroup_parent,
        pod.overhead,
        overlay(pod.resources, adjustment.resources) if adjustment.resources else pod.resources,
    )


def adjusted_container(
    container: fields.ContainerInfo, adjustment: Adjustment, container_id: str
) -> fields.ContainerInfo:
    return fields.ContainerInfo(
        container_id,
        container.pod_id,
        container.name,
        container.attempt,
        {**container.annotations, **adjustment.annotations} if adjustment.annotations else container.annotations,
        overlay(container.resources, adjustment.resources) if adjustment.resources else container.resources,
        fields.changed_envs(container.envs, adjustment.envs) if adjustment.envs else container.envs,
        container.cgroup_parent if adjustment.cgroup_parent is None else adjustment.cgroup_parent,
    )


V = TypeVar("V")


def hook_view(subject: Subject) -> HookRequest:
    return HookRequest(subject.pod.effective, None if subject.container is None else subject.container.effective)


def hooked_fields(subject: Subject) -> dict[str, str]:
    """Return the fields of a container that differ from the kubelet's, with the plugin that set each, as far as
    known. The names are those of ``Adjustment.owners``."""
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
    original, effective = (info.resources or fields.NO_RESOURCES for info in (container.original, container.effective))
    if fields.MEMORY in owners and original.memory_swap_limit_in_bytes != effective.memory_swap_limit_in_bytes:
        owners.setdefault(fields.SWAP, owners[fields.MEMORY])
    return owners


def created_pod(subject: Subject, adjustment: Adjustment, pod_id: str, unused: fields.Changes | None = None) -> Subject:
    """Return the pod as created with the hooks' adjustment, under the id that the runtime returned. ``unused`` are
    resources that were also sent, and that the runtime reports without using them."""
    original = adjusted_pod(subject.pod.original, fields.NO_ADJUSTMENT, pod_id)
    effective = adjusted_pod(original, adjustment, pod_id) if adjustment or unused else original
    return Subject(PodRecord(original, effective, reported=overlay(original.resources, unused) if unused else None))


def created_container(subject: Subject, adjustment: Adjustment, container_id: str) -> Subject:
    original = adjusted_container(container_of(subject).original, fields.NO_ADJUSTMENT, container_id)
    effective = adjusted_container(original, adjustment, container_id) if adjustment else original
    owners = _owners({}, adjustment.resources, adjustment) if adjustment.resources else ()
    return Subject(subject.pod, ContainerRecord(original, effective, owners), subject.renewed)


def as_reported(made: Subject, record: PodRecord | ContainerRecord) -> Subject:
    """Return the subject of a create as the runtime reports it (``record``), with this create's original values.

    A pod's unreported cgroup parent is unknown; unreported or unused overhead and resources are this create's. A
    reported variable that this create does not set counts as the kubelet's: runtimes also report those of the image. A
    swap limit that equals the memory limit may be read as not set: it counts as set if the kubelet or this create sets
    both to one value.
    """
    if isinstance(record, PodRecord):
        pod, reported, unused = made.pod.original, record.effective, made.pod.reported is not None
        if reported.cgroup_parent is None:
            pod = replace(pod, cgroup_parent=None)
        resources = pod.resources if unused or reported.resources is None else reported.resources
        in_force = replace(reported, overhead=reported.overhead or pod.overhead, resources=resources)
        return Subject(PodRecord(pod, in_force, reported=reported.resources if unused else None))
    sent, effective = container_of(made), record.effective
    if effective.resources is None:
        effective = replace(effective, resources=sent.original.resources)
    in_use, requested = effective.resources or fields.NO_RESOURCES, (sent.original.resources, sent.effective.resources)
    without_swap = any(item and 0 < item.memory_swap_limit_in_bytes == item.memory_limit_in_bytes for item in requested)
    if without_swap and in_use.memory_limit_in_bytes and not in_use.memory_swap_limit_in_bytes:
        effective = _with(effective, replace(in_use, memory_swap_limit_in_bytes=in_use.memory_limit_in_bytes), {})
    envs = {key: value for key, value in effective.envs.items() if key not in sent.effective.envs}
    original = replace(sent.original, envs={**envs, **sent.original.envs})
    missing = missing_fields(made, Subject(made.pod, ContainerRecord(original, effective)))
    owners = tuple((name, owner) for name, owner in sent.owners if f"resources.{name}" not in missing)
    return Subject(made.pod, ContainerRecord(original, effective, owners), made.renewed)


def missing_fields(made: Subject, subject: Subject) -> frozenset[str]:
    """Return the fields of a create that its subject lacks, named as in ``Adjustment.owners``. A runtime may report the
    full path of a slice, which systemd finds by the last part."""
    desired, reported = echo(hook_view(made)), echo(hook_view(subject))
    names = frozenset(by_field(difference(hook_view(subject), desired)))
    requested, actual = desired.cgroup_parent or "", reported.cgroup_parent or ""
    same_slice = requested.endswith(fields.SLICE) and requested.rpartition("/")[2] == actual.rpartition("/")[2]
    return names - {"cgroup_parent"} if same_slice else names


def without_parent(made: Subject) -> PodRecord | ContainerRecord:
    """Return a create's record without a hook's cgroup parent for the pod: an earlier create may have created it."""
    if made.container is not None:
        return made.container
    effective = replace(made.pod.effective, cgroup_parent=made.pod.original.cgroup_parent)
    return replace(made.pod, effective=effective)


def in_pod(pod: PodRecord, given: fields.PodInfo | None, container: fields.ContainerInfo) -> Subject:
    """Return the subject of a container's create, with the pod updated by the fields that the create repeats.

    ``given`` has the kubelet's newest names, labels, annotations, cgroup parent, overhead and resources of the pod;
    without names only the parent. They fill unknown fields and replace the kubelet's earlier values, not the hooks'. A
    cgroup parent "" counts as not given. If the names are those of another pod, the runtime has lost its state and
    reuses the id: the old pod's fields are dropped.
    """
    made = ContainerRecord(container, container)
    if given is None:
        return Subject(pod, made)
    earlier, present = pod.original, pod.effective
    names = (given.name, given.uid, given.namespace)
    if any(names) and names != (earlier.name, earlier.uid, earlier.namespace):
        new_pod = replace(given, id=present.id)
        return Subject(PodRecord(new_pod, new_pod), made, renewed=True)
    parent = given.cgroup_parent or earlier.cgroup_parent
    labels, annotations = (given.labels, given.annotations) if any(names) else (earlier.labels, earlier.annotations)
    overhead, resources = given.overhead or earlier.overhead, given.resources or earlier.resources
    before = (earlier.cgroup_parent, earlier.labels, earlier.annotations, earlier.overhead, earlier.resources)
    if not pod.read and (parent, labels, annotations, overhead, resources) == before:
        return Subject(pod, made)
    original = replace(
        earlier, cgroup_parent=parent, labels=labels, annotations=annotations, overhead=overhead, resources=resources
    )
    of_hooks = _from_hooks(pod.read, named(earlier.resources), named(present.resources), named(resources))
    effective = replace(
        present,
        cgroup_parent=present.cgroup_parent if _is_hooks_parent(pod, parent) else parent,
        labels={**labels, **_from_hooks(pod.read, earlier.labels, present.labels, labels)},
        annotations={**annotations, **_from_hooks(pod.read, earlier.annotations, present.annotations, annotations)},
        overhead=overhead,
        resources=overlay(resources, of_hooks),
    )
    same = effective == original and pod.reported is None
    return Subject(PodRecord(original, original if same else effective, reported=pod.reported), made, renewed=True)


def _is_hooks_parent(pod: PodRecord, given: str | None) -> bool:
    """Return whether a hook set a pod's cgroup parent; ``given`` is the kubelet's. For a pod that was read this is
    unknown: it counts as a hook's, unless its form shows that the node's cgroup driver has changed."""
    present = pod.effective.cgroup_parent
    if not pod.read or not present or not given:
        return present != pod.original.cgroup_parent
    return present.endswith(fields.SLICE) == given.endswith(fields.SLICE)


def _from_hooks(
    read: bool, original: Mapping[str, V], present: Mapping[str, V], given: Mapping[str, V]
) -> dict[str, V]:
    """Return the entries that hooks have set; of a pod that was ``read``, those that the kubelet does not set."""
    if read:
        return {key: value for key, value in present.items() if key not in given}
    return {key: value for key, value in present.items() if original.get(key) != value}


def subject_of_read(pod: PodRecord, container: ContainerRecord) -> Subject:
    """Return the subject of a container that was read; its cgroup parent replaces the pod's unreported one."""
    parent = container.effective.cgroup_parent
    if pod.effective.cgroup_parent is not None or not parent:
        return Subject(pod, container)
    original, effective = (replace(info, cgroup_parent=parent) for info in (pod.original, pod.effective))
    return Subject(PodRecord(original, effective, pod.read, pod.reported), container, renewed=True)


def cgroup_parent_to_set(pod: PodRecord, adjustment: Adjustment) -> str | None:
    """Return the cgroup parent to set in a container's create: that of this call's hooks, else that of the pod's hooks;
    None leaves the kubelet's."""
    if adjustment.cgroup_parent is not None:
        return adjustment.cgroup_parent
    is_hooked = pod.effective.cgroup_parent != pod.original.cgroup_parent
    return pod.effective.cgroup_parent if is_hooked else None


def _owners(owners: dict[str, str], set_now: fields.Changes, adjustment: Adjustment) -> tuple[tuple[str, str], ...]:
    for field_name in fields.flat({}, None, set_now):
        name = field_name.removeprefix("resources.")
        owners.pop(name, None)
        if owner := adjustment.owners.get(field_name):
            owners[name] = owner
    return tuple(owners.items())


def prepared(subject: Subject, resources: fields.Changes, adjustment: Adjustment) -> Subject:
    """Return the container after the extra update of PreStartContainer."""
    container = container_of(subject)
    owners = _owners(dict(container.owners), resources, adjustment)
    effective = _with(container.effective, overlay(container.effective.resources, resources), {})
    return Subject(subject.pod, ContainerRecord(container.original, effective, owners, container.read))


def _with(
    container: fields.ContainerInfo, resources: fields.Resources | None, annotations: Mapping[str, str]
) -> fields.ContainerInfo:
    merged = {**container.annotations, **annotations} if annotations else container.annotations
    return replace(container, annotations=merged, resources=resources)


@dataclass(frozen=True, slots=True)
class RequestedUpdate:
    """The fields of an UpdateContainerResources; 0 and "" mean not set."""

    container_id: str
    resources: fields.Resources | None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EffectiveUpdate:
    """An update as it is sent: the caller's request, and the fields added for the hook servers."""

    requested: RequestedUpdate
    added_resources: fields.Changes = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def update_hook_request(subject: Subject, requested: RequestedUpdate) -> HookRequest:
    """Return the hook request of an update: the record's original values, overridden by what the update sets."""
    container = container_of(subject)
    resources = overlay(container.original.resources, named(requested.resources))
    return HookRequest(subject.pod.effective, _with(container.effective, resources, requested.annotations))


def differing(subject: Subject, requested: RequestedUpdate, adjustment: Adjustment) -> dict[str, fields.ResourceValue]:
    """Return the fields whose result differs from that of the unchanged request alone. A plugin that repeats a value as
    sent thereby withdraws its own earlier change, but not that of another plugin."""
    container = container_of(subject)
    owners = owners_of(container)
    repeated = {
        name for name in adjustment.confirmed if name not in owners or (name, owners[name]) in adjustment.confirmers
    }
    request, original = named(requested.resources), container.original.resources or fields.NO_RESOURCES
    present = container.effective.resources or fields.NO_RESOURCES
    differences: dict[str, fields.ResourceValue] = {}
    for name in sorted({name.partition(".")[0] for name in (*adjustment.resources, *repeated)}):
        requests, changes = request.get(name), adjustment.resources.get(name)
        desired, current = getattr(original, name), getattr(present, name)
        if name in fields.MAP_FIELDS:
            requests, changes = requests or {}, changes or {}
            desired, current = {**desired, **requests, **changes}, {**current, **requests}  # type: ignore[dict-item]
            repeated_keys = [key for key in desired if key in changes or f"{name}.{key}" in repeated]  # type: ignore[operator]
            desired = {key: desired[key] for key in repeated_keys if current.get(key) != desired[key]}
            current = {}
        else:
            current = current if requests is None else requests
            desired = changes if changes is not None else desired if requests is None else requests
        if desired != current:
            differences[name] = desired
    return differences


def updated(subject: Subject, update: EffectiveUpdate, adjustment: Adjustment) -> Subject:
    """Return the container after an update; ``adjustment`` has the owners of the added fields. The kubelet's values and
    the runtime's stay separate; a field that was sent empty left the runtime's value unchanged."""
    before, requested = container_of(subject), named(update.requested.resources)
    base, present, annotations = before.original, before.effective, update.requested.annotations
    original = effective = _with(base, overlay(base.resources, requested), annotations)
    if base is not present or update.added_resources or update.annotations:
        in_force = {name: value for name, value in fields.overlaid(requested, update.added_resources).items() if value}
        effective = _with(present, overlay(present.resources, in_force), {**annotations, **update.annotations})
    names = fields.flat({}, None, requested)
    owners = {name: plugin for name, plugin in before.owners if f"resources.{name}" not in names}
    owned = _owners(owners, update.added_resources, adjustment)
    return Subject(subject.pod, ContainerRecord(original, effective, owned, before.read))
