"""Merge the answers of hook servers into one Adjustment (hook-api, "What an answer means").

Invariant: an answer that repeats what was sent changes nothing and is never bad, however odd the kubelet's values are.

The SDK's edits and its tester use these rules (hooks/sdk), so that both sides apply the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from runtimeproxy.model import fields
from runtimeproxy.model.fields import MAP_FIELDS, NO_RESOURCES, RESOURCE_FIELDS, TEXT_FIELDS, Resources, ResourceValue
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Part
from runtimeproxy.model.values import (
    NO_ADJUSTMENT,
    NO_CHANGES,
    SLICE,
    Adjustment,
    Conflict,
    ContainerInfo,
    Envs,
    HookAnswer,
    HookRequest,
    PodInfo,
    changed,
)

_ENTRIES = ("labels", "annotations", "envs")
"""The parts of an answer that are maps."""


def echo(request: HookRequest) -> HookAnswer:
    """Return the answer that repeats the request: the values that every answer is compared with."""
    pod, container, parent = request.pod, request.container, _parent(request)
    if container is None:
        return HookAnswer(pod.labels, pod.annotations, cgroup_parent=parent, resources=pod.resources)
    return HookAnswer({}, container.annotations, container.envs, parent, container.resources)


def _parent(request: HookRequest) -> str:
    """Return the cgroup parent that was sent."""
    return (request.container and request.container.cgroup_parent) or request.pod.cgroup_parent or ""


def difference(request: HookRequest, answer: HookAnswer) -> Adjustment:
    """Return what an answer changes of the request; ``combine`` adds the owners, confirmers and conflicts. A key that
    the answer lacks stays as it is."""
    subject = request.container or request.pod
    values: dict[str, Any] = {}
    for name in _ENTRIES:
        if given := getattr(answer, name):
            sent = getattr(subject, name, NO_CHANGES)
            if type(sent) is Envs:
                sent = sent.with_all_of(given)
            values[name] = {key: value for key, value in given.items() if sent.get(key) != value}
    if answer.cgroup_parent and answer.cgroup_parent != _parent(request):
        values["cgroup_parent"] = answer.cgroup_parent
    if answer.resources is not None:
        values |= _changed_resources(subject.resources or NO_RESOURCES, answer.resources)
    return Adjustment(**values)


def _changed_resources(before: Resources, after: Resources) -> dict[str, Any]:
    """Return the fields of an Adjustment that an answer's resources determine."""
    changes: dict[str, ResourceValue] = {}
    repeated: list[str] = []
    normalised: list[str] = []
    for name in RESOURCE_FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if not new:
            if old and name in TEXT_FIELDS and fields.is_echo(before, after):  # only an echo can clear a cpuset
                changes[name] = new
        elif name in MAP_FIELDS:
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
            elif value:  # a text that is empty in its normal form is not set
                changes[name] = value
    return {"resources": changes, "confirmed": frozenset(repeated), "normalised": tuple(normalised)}


def limited(point: HookPoint, change: Adjustment) -> Adjustment:
    """Return the part of a change that has an effect at this hook point."""
    for field in _WITHOUT_EFFECT[point.applies]:
        if getattr(change, field):
            return Adjustment(**{field: getattr(change, field) for part in point.applies for field in _FIELDS[part]})
    return change


_FIELDS = {part: (part.value,) for part in Part} | {Part.RESOURCES: ("resources", "confirmed", "normalised")}
"""The fields of an Adjustment that belong to each part."""

_WITHOUT_EFFECT: Mapping[frozenset[Part], tuple[str, ...]] = {
    point.applies: tuple(field for part, names in _FIELDS.items() if part not in point.applies for field in names)
    for point in HOOK_POINTS
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


def judged(change: Adjustment, sent: HookRequest) -> tuple[Adjustment, tuple[BrokenRule, ...]]:
    """Return the good part of a change of ``sent``, and each rule that the rest breaks. A bad value removes its own
    field, and the fields that have no meaning without it; in a map only its own entry."""
    broken: list[BrokenRule] = []
    good: dict[str, Any] = {}
    for name in _ENTRIES:
        if entries := getattr(change, name):
            good[name] = _good_entries(name, entries, broken)
    parent = change.cgroup_parent
    if parent is not None and (rule := parent_rule(parent, _parent(sent))):
        broken.append(BrokenRule("cgroup_parent", rule))
        parent = None
    resources: dict[str, ResourceValue] = {}
    lost: set[str] = set()
    for name, value in change.resources.items():
        if name in MAP_FIELDS:
            assert isinstance(value, Mapping)
            if of_map := _good_entries(f"resources.{name}", value, broken):
                resources[name] = of_map
            continue
        row = fields.ROWS[name]
        if row.holds(value):
            resources[name] = value
        else:
            broken.append(BrokenRule(f"resources.{name}", f"must be {row.rule}"))
            lost |= fields.together(name)
    if not broken:
        return change, ()
    good["resources"] = {name: value for name, value in resources.items() if name not in lost}
    good["confirmed"] = change.confirmed - lost
    return replace(change, cgroup_parent=parent, **good), tuple(dict.fromkeys(broken))


def _good_entries(field: str, entries: Mapping[str, Any], broken: list[BrokenRule]) -> dict[str, Any]:
    """Return the good entries of a map; the rules that the others break are added to ``broken``."""
    good: dict[str, Any] = {}
    for key, value in entries.items():
        if rule := env_rule(key, value) if field == "envs" else key_rule(key):
            broken.append(BrokenRule(field, rule))
        else:
            good[key] = value
    return good


def key_rule(key: str) -> str:
    """Return the rule that a key breaks; "" if none."""
    return "" if key else "a key must not be empty"


def env_rule(key: str, value: object) -> str:
    """Return the rule that an environment variable breaks; "" if none."""
    # A key with "=" most likely contains a value too, so a bad key is never shown.
    if not key or "=" in key or "\0" in key:
        return 'a key must not be empty and must not contain "=" or NUL'
    return "a value must not contain NUL" if "\0" in str(value) else ""


def parent_rule(path: str, sent: str) -> str:
    """Return the rule that a cgroup parent breaks as a replacement for the one that was sent; "" if none."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        return 'must be an absolute path without ".." and NUL'
    if sent.rstrip("/").endswith(SLICE) and not path.rstrip("/").endswith(SLICE):
        return f"must be a {SLICE} where one was sent: systemd makes the node's cgroups"
    return ""


def combine(earlier: Adjustment, plugin: str, change: Adjustment) -> Adjustment:
    """Add a plugin's changes to those of the plugins before it; where both set a field the later one wins and owns it.
    If another plugin owns it with a different value, that is a conflict."""
    values = by_field(change)
    if earlier is NO_ADJUSTMENT:
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
        Conflict(field, owner, plugin)
        for field, value in values.items()
        if (owner := earlier.owners.get(field, plugin)) != plugin and before.get(field) != value
    )
    return Adjustment(
        labels={**earlier.labels, **change.labels},
        annotations={**earlier.annotations, **change.annotations},
        envs={**earlier.envs, **change.envs},
        cgroup_parent=earlier.cgroup_parent if change.cgroup_parent is None else change.cgroup_parent,
        resources=fields.laid_over(earlier.resources, change.resources),
        confirmed=earlier.confirmed | change.confirmed,
        confirmers=earlier.confirmers | {(name, plugin) for name in change.confirmed},
        owners={**earlier.owners, **dict.fromkeys(values, plugin)},
        conflicts=(*earlier.conflicts, *conflicts),
    )


def by_field(adjustment: Adjustment) -> dict[str, fields.Value]:
    """Return the value of each field, by the names that ``Adjustment.owners`` uses."""
    maps = {"labels": adjustment.labels, "annotations": adjustment.annotations, "envs": adjustment.envs}
    return fields.flat(maps, adjustment.cgroup_parent, adjustment.resources)


def applied(request: HookRequest, adjustment: Adjustment) -> HookRequest:
    """Return the request with an adjustment applied, as the next plugin gets it. At the container's hook points a new
    cgroup parent is set on the container; the pod stays as it is."""
    if request.container is None:
        return HookRequest(adjusted_pod(request.pod, adjustment, request.pod.id))
    return HookRequest(request.pod, adjusted_container(request.container, adjustment, request.container.id))


# Both make a copy with another id. A part without a change stays the same object, so it is stored once.


def adjusted_pod(pod: PodInfo, adjustment: Adjustment, pod_id: str) -> PodInfo:
    changes = adjustment
    return PodInfo(
        pod_id,
        pod.name,
        pod.uid,
        pod.namespace,
        pod.attempt,
        pod.runtime_handler,
        {**pod.labels, **changes.labels} if changes.labels else pod.labels,
        {**pod.annotations, **changes.annotations} if changes.annotations else pod.annotations,
        pod.cgroup_parent if changes.cgroup_parent is None else changes.cgroup_parent,
        pod.overhead,
        fields.overlay(pod.resources, changes.resources) if changes.resources else pod.resources,
    )


def adjusted_container(container: ContainerInfo, adjustment: Adjustment, container_id: str) -> ContainerInfo:
    changes = adjustment
    return ContainerInfo(
        container_id,
        container.pod_id,
        container.name,
        container.attempt,
        {**container.annotations, **changes.annotations} if changes.annotations else container.annotations,
        fields.overlay(container.resources, changes.resources) if changes.resources else container.resources,
        changed(container.envs, changes.envs) if changes.envs else container.envs,
        container.cgroup_parent if changes.cgroup_parent is None else changes.cgroup_parent,
    )
