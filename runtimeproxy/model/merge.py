"""Merge the answers of hook servers into one Adjustment (hook-api, "What an answer means").

Owns what an answer changes, which of its fields are bad, how the answers of several plugins add up, and who owns each
field.
Must not know: how an answer came, whom to call next, policies, how an adjustment gets into a request.
Invariant: an answer that repeats what was sent changes nothing and is never bad, however odd the kubelet's values are.

The SDK's edits and its tester use these rules (hooks/sdk), so that both sides apply the same ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeVar

from runtimeproxy.model import fields
from runtimeproxy.model.fields import MAP_FIELDS, NO_RESOURCES, RESOURCE_FIELDS, TEXT_FIELDS, ResourceValue, Value
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Part
from runtimeproxy.model.values import (
    NO_ADJUSTMENT,
    SLICE,
    Adjustment,
    Conflict,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    changed,
    found_in,
)

V = TypeVar("V")


def echo(request: HookRequest) -> HookAnswer:
    """Return the answer that repeats the request: the values that every answer is compared with."""
    pod, container = request.pod, request.container
    if container is None:
        return HookAnswer(
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=pod.cgroup_parent or "",
            resources=pod.resources,
        )
    return HookAnswer(
        annotations=container.annotations,
        envs=container.envs,
        cgroup_parent=container.cgroup_parent or pod.cgroup_parent or "",
        resources=container.resources,
    )


# -- what an answer changes ------------------------------------------------------------------------------------------


def difference(request: HookRequest, answer: HookAnswer) -> Adjustment:
    """Return what an answer changes of the request; ``combine`` adds the owners, confirmers and conflicts."""
    sent = echo(request)
    values: dict[str, Any] = {}
    for name, compare in _COMPARE.items():
        if getattr(answer, name):
            values |= compare(sent, answer)
    return Adjustment(**values)


def limited(point: HookPoint, change: Adjustment) -> Adjustment:
    """Return the part of a change that has an effect at this hook point."""
    for field in _WITHOUT_EFFECT[point.applies]:
        if getattr(change, field):
            return Adjustment(**{field: getattr(change, field) for part in point.applies for field in _FIELDS[part]})
    return change


def _entries(sent: Mapping[str, V], said: Mapping[str, V]) -> dict[str, V]:
    """Return the entries to set: new keys and new values; a key that the answer lacks stays as it is."""
    entries = {}
    for key, value in said.items():
        if key not in sent or sent[key] != value:
            entries[key] = value
    return entries


def _cgroup_parent(sent: HookAnswer, said: HookAnswer) -> dict[str, Any]:
    return {} if said.cgroup_parent == sent.cgroup_parent else {"cgroup_parent": said.cgroup_parent}


def _resources(sent: HookAnswer, said: HookAnswer) -> dict[str, Any]:
    before, after = sent.resources or NO_RESOURCES, said.resources
    assert after is not None
    changed: dict[str, ResourceValue] = {}
    repeated: list[str] = []
    normalised: list[str] = []
    for name in RESOURCE_FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if not new:
            if old and name in TEXT_FIELDS and fields.is_echo(before, after):  # only an echo can clear a cpuset
                changed[name] = new
            continue
        if name in MAP_FIELDS:
            entries = _entries(old, new)
            if entries:
                changed[name] = entries
            repeated += [f"{name}.{key}" for key in new if key not in entries]
            continue
        if new == old:
            repeated.append(name)
            continue
        value = fields.tidy(name, new)
        if value != new:
            normalised.append(name)
        if value == old:
            if value:
                repeated.append(name)
        elif value:  # a text that is empty in its normal form is not set
            changed[name] = value
    return {"resources": changed, "confirmed": frozenset(repeated), "normalised": tuple(normalised)}


_COMPARE: Mapping[str, Callable[[HookAnswer, HookAnswer], dict[str, Any]]] = {
    "labels": lambda sent, said: {"labels": _entries(sent.labels, said.labels)},
    "annotations": lambda sent, said: {"annotations": _entries(sent.annotations, said.annotations)},
    "envs": lambda sent, said: {"envs": _entries(found_in(sent.envs, said.envs), said.envs)},
    "cgroup_parent": _cgroup_parent,
    "resources": _resources,
}
"""Functions that return the difference between a part of an answer and what was sent, as fields of an Adjustment."""

_FIELDS: Mapping[Part, tuple[str, ...]] = {
    Part.LABELS: ("labels",),
    Part.ANNOTATIONS: ("annotations",),
    Part.ENVS: ("envs",),
    Part.CGROUP_PARENT: ("cgroup_parent",),
    Part.RESOURCES: ("resources", "confirmed", "normalised"),
}
"""The fields of an Adjustment that belong to each part."""

_WITHOUT_EFFECT: Mapping[frozenset[Part], tuple[str, ...]] = {
    point.applies: tuple(field for part, names in _FIELDS.items() if part not in point.applies for field in names)
    for point in HOOK_POINTS
}
"""The fields of an Adjustment without effect, by the set of parts that have an effect at a hook point."""


# -- which fields of an answer are bad -------------------------------------------------------------------------------


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
    for name in ("labels", "annotations", "envs"):
        if entries := getattr(change, name):
            good[name] = _good_entries(name, entries, broken)
    parent = change.cgroup_parent
    if parent is not None and (rule := parent_rule(parent, echo(sent).cgroup_parent)):
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


# -- how answers add up ----------------------------------------------------------------------------------------------


def combine(earlier: Adjustment, plugin: str, change: Adjustment) -> Adjustment:
    """Add a plugin's changes to those of the plugins before it; where both set a field the later one wins.

    The plugin becomes the owner of each field it set. If another plugin owns the field with a different value, that is
    a conflict.
    """
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
    return Adjustment(
        labels={**earlier.labels, **change.labels},
        annotations={**earlier.annotations, **change.annotations},
        envs={**earlier.envs, **change.envs},
        cgroup_parent=earlier.cgroup_parent if change.cgroup_parent is None else change.cgroup_parent,
        resources=fields.laid_over(earlier.resources, change.resources),
        confirmed=earlier.confirmed | change.confirmed,
        confirmers=earlier.confirmers | {(name, plugin) for name in change.confirmed},
        owners={**earlier.owners, **dict.fromkeys(values, plugin)},
        conflicts=earlier.conflicts + _conflicts(earlier, plugin, values),
    )


def _conflicts(earlier: Adjustment, plugin: str, values: Mapping[str, object]) -> tuple[Conflict, ...]:
    before = by_field(earlier)
    return tuple(
        Conflict(field, owner, plugin)
        for field, value in values.items()
        if (owner := earlier.owners.get(field, plugin)) != plugin and before.get(field) != value
    )


def by_field(adjustment: Adjustment) -> dict[str, Value]:
    """Return the value of each field, by the names that ``Adjustment.owners`` uses."""
    maps = {"labels": adjustment.labels, "annotations": adjustment.annotations, "envs": adjustment.envs}
    return fields.flat(maps, adjustment.cgroup_parent, adjustment.resources)


# -- the request of the next plugin ----------------------------------------------------------------------------------


def applied(request: HookRequest, adjustment: Adjustment) -> HookRequest:
    """Return the request with an adjustment applied, as the next plugin gets it. At the container's hook points a new
    cgroup parent is set on the container; the pod stays as it is."""
    if request.container is None:
        return HookRequest(adjusted_pod(request.pod, adjustment, request.pod.id))
    return HookRequest(request.pod, adjusted_container(request.container, adjustment, request.container.id))


# A part without a change stays the same object, so it is stored once.


def adjusted_pod(pod: PodInfo, adjustment: Adjustment, pod_id: str) -> PodInfo:
    """Return the pod with an adjustment applied, under this id."""
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
    """Return the container with an adjustment applied, under this id."""
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
