"""rdt: limit cache ways and memory bandwidth of a pod, by its own resctrl group or that of its QoS class.

Invariant: a node that cannot limit (no RDT, no free class, a kernel that refuses) never stops a pod; only an unreadable
annotation is an error. A restarted server needs no state: the groups are on disk.

A container joins the group in one of two ways. Before its start: the annotation io.kubernetes.cri.rdt-class, by which
containerd and CRI-O let runc join the group. After its start: this hook moves its threads, the only way in Docker mode.
Until then it runs in its parent's group, and its cache contents of that time stay there.
"""

import argparse
import errno
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..lib.koordinator import CLASSES, RESCTRL, Objects, kube_qos, member, qos, read_json
from ..lib.nodehook import NodeHook
from ..lib.resctrl import ROOT, Machine, Range, Resctrl, Wish, schemata, unknown_ids
from ..sdk import ContainerContext, Malformed, PodContext, main

LOG = logging.getLogger(__name__)

RDT_CLASS = "io.kubernetes.cri.rdt-class"
"""The container annotation that containerd and CRI-O read."""
POD_PREFIX = "koordlet-"
ROUNDS = 10
"""Largest number of lists of a container's threads; new threads of later rounds are ignored."""
MAX_WRITTEN = 1024
"""Largest number of groups whose last limits are recorded: more than any machine has."""

_T = TypeVar("_T")

_ANNOTATION = f"annotation {RESCTRL}"
_PER_CACHE = "schemataPerCache"
_NO_GROUP: Mapping[int | None, str] = {
    errno.ENOSPC: f"no class of service is free; rmdir groups {POD_PREFIX}* whose pods ended while no server saw it"
}

_HELP_ANNOTATION = f"""set the container annotation {RDT_CLASS}, which is the default, so that runc joins the
group before the container's first instruction. A containerd without RDT (rdt_config_file) then refuses the create
unless its ignore_rdt_not_enabled_errors is true; one with RDT may refuse groups that it has not made itself. Without
the annotation, threads are moved right after the start"""


class Rdt(NodeHook):
    """Put pods into resctrl groups. Source of the rules: koordlet's Resctrl hook and its RDT strategy."""

    def __init__(self, resctrl: Resctrl | None = None) -> None:
        super().__init__()
        self._given = resctrl
        self.resctrl = resctrl or Resctrl()
        self.annotate = True
        self._machine = Machine()
        self._written: dict[str, Wish] = {}
        """The last limits written to each group by this process."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--resctrl-root", type=Path, default=ROOT, metavar="DIR", help="where resctrl is mounted (%(default)s)"
        )
        parser.add_argument(
            "--rdt-class-annotation", action=argparse.BooleanOptionalAction, default=True, help=_HELP_ANNOTATION
        )

    def configure(self, arguments: argparse.Namespace) -> None:
        """Apply the flags, and log once which resources cannot be limited."""
        super().configure(arguments)
        self.resctrl = self._given or Resctrl(arguments.resctrl_root)
        self.annotate = arguments.rdt_class_annotation
        self._machine = self.resctrl.machine()
        for note in self._machine.notes:
            LOG.warning("%s: %s", self.resctrl.root, note)
        if not self._machine:
            LOG.warning(
                "no RDT on this node: %s offers neither L3 nor MB; pods run without groups. If the CPU has RDT, mount "
                "its file system (mount -t resctrl resctrl %s)",
                *(self.resctrl.root, self.resctrl.root),
            )

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Create the group of a pod that has the annotation. Raises Malformed."""
        wish = _wish(pod.annotations) if self._check() else None
        if wish is None:
            return
        if unknown_ids(self._machine, wish):
            LOG.warning(
                "%s/%s: the %s names cache ids that this node does not have; the others are limited",
                *(pod.namespace, pod.name, _ANNOTATION),
            )
        self._limit(_pod_group(pod.uid), wish)

    def pre_create_container(self, container: ContainerContext) -> None:
        """Ensure that the container's group exists, and pass its name to the runtime. Raises Malformed.

        A pod's group normally exists already, unless this server was unavailable when the sandbox was created, or the
        group was removed: a containerd with RDT removes unknown groups when it starts.
        """
        group, wish = self._membership(container)
        if wish is None:
            return
        if self._ensured(group, wish) and self.annotate:
            container.annotations[RDT_CLASS] = group

    def post_start_container(self, container: ContainerContext) -> None:
        """Move the container's threads into its group, unless the runtime has done so. The group is ensured again: a
        late second stop of a dead sandbox may have removed it while it was empty. Raises Malformed."""
        group, wish = self._membership(container)
        if wish is None or not self._ensured(group, wish):
            return
        try:
            path = self.cgroups.container(container.cgroup_parent, container.id)
            if path is None:
                ended = "a container has ended already, or --cgroup-root does not have its cgroup"
                self._warn("cgroup", None, self.cgroups.absent or ended)
            else:
                self._move(group, path)
        except OSError as error:
            self._warn("move", error.errno, f"threads of a container stay where they are: {error.strerror}")

    def post_stop_pod_sandbox(self, pod: PodContext) -> None:
        """Remove the pod's group, unless threads are in it. The kubelet stops a dead sandbox again before its removal,
        when the pod may already run in a new one."""
        group = _pod_group(pod.uid)
        self._written.pop(group, None)
        try:
            if self.resctrl.exists(group) and not self.resctrl.tasks(group):
                self.resctrl.remove(group)
        except OSError as error:
            self._warn("rmdir", error.errno, f"the group of a pod that has ended stays: {error.strerror}")

    def _check(self) -> Machine:
        """Return the resources that the node can limit; if there were none, check again: resctrl may be mounted now."""
        if not self._machine:
            self._machine = self.resctrl.machine()
        return self._machine

    def _membership(self, container: ContainerContext) -> tuple[str, Wish | None]:
        """Return a container's group and its limits, None for no limits. Raises Malformed."""
        if not self._check():
            return "", None
        wish = _wish(container.pod.annotations)
        if wish is not None:
            return _pod_group(container.pod.uid), wish
        group = _class_group(container)
        settings = self.node.settings.rdt.get(group)
        if settings is None or not settings.enable:
            return "", None
        return group, Wish(l3=settings.l3, mb=settings.mb)

    def _ensured(self, group: str, wish: Wish) -> bool:
        """Ensure that a group exists with its limits; return whether it exists. Unchanged limits are not written again:
        a write interrupts the CPUs of a cache."""
        return (self._written.get(group) == wish and self.resctrl.exists(group)) or self._limit(group, wish)

    def _limit(self, group: str, wish: Wish) -> bool:
        """Write limits, if any, into a group, and create it if missing; return whether the group exists."""
        lines = schemata(self._machine, wish)
        if not lines:
            return self.resctrl.exists(group)
        try:
            self._write(group, wish, lines)
        except FileNotFoundError:
            return self._make(group, wish, lines)
        except OSError as error:
            self._warn_refused(error)
        return True

    def _make(self, group: str, wish: Wish, lines: str) -> bool:
        """Create a group with limits; return whether it exists.

        If the kernel refuses its limits it is removed again, because there are few classes. The kernel creates the
        group's files with it, and another thread may have created it meanwhile.
        """
        try:
            new = self.resctrl.make(group)
        except OSError as error:
            self._warn("mkdir", error.errno, f"no group can be made: {_NO_GROUP.get(error.errno, error.strerror)}")
            return False
        try:
            self._write(group, wish, lines)
        except OSError as error:
            self._warn_refused(error)
            if new:
                with suppress(OSError):  # the refusal is logged, this error is not
                    self.resctrl.remove(group)
        return self.resctrl.exists(group)

    def _write(self, group: str, wish: Wish, lines: str) -> None:
        self._written.pop(group, None)
        self.resctrl.limit(group, lines)
        if len(self._written) >= MAX_WRITTEN:
            self._written.clear()  # most of these groups no longer exist
        self._written[group] = wish

    def _warn_refused(self, error: OSError) -> None:
        why = ": ".join(filter(None, (error.strerror, self.resctrl.last_status())))
        self._warn("schemata", error.errno, f"limits are refused: {why}")

    def _move(self, group: str, path: str) -> None:
        """Move all threads of a cgroup, listing them until none is new; threads of a moved thread are in the group."""
        there = set(self.resctrl.tasks(group))
        for _ in range(ROUNDS):
            new = [tid for tid in self.cgroups.tids(path) if tid not in there]
            if not new:
                return
            for tid in new:
                self.resctrl.move(group, tid)
            there.update(new)
        self._warn("rounds", None, f"new threads appeared in each of {ROUNDS} rounds; the last may be left out")

    def _warn(self, what: str, number: int | None, text: str) -> None:
        self.warn_once((what, number), "%s: %s. Pods run all the same", self.resctrl.root, text)


def _pod_group(uid: str) -> str:
    """Return the name of a pod's group, as koordlet forms it. Raises Malformed."""
    if not uid or "/" in uid or not uid.isprintable():
        raise Malformed("pod uid", "it names the pod's group: printable, and without a slash")
    return POD_PREFIX + uid


def _class_group(container: ContainerContext) -> str:
    """Return the group of a pod's class, "" for none; a pod without Koordinator's label has its Kubernetes class."""
    qos_class = qos(container.pod.labels)
    if qos_class or not container.cgroup_parent:  # without a cgroup it would count as Guaranteed
        return CLASSES.get(qos_class, "")
    return CLASSES[kube_qos(container.cgroup_parent)]


def _wish(annotations: Mapping[str, str]) -> Wish | None:
    """Return a pod's own limits, None if it has none. Raises Malformed."""
    annotation = read_json(annotations, RESCTRL, dict)
    if annotation is None:
        return None
    cache, bandwidth = member(annotation, "llc", dict), member(annotation, "mb", dict)
    common = _range(member(cache, "schemata", dict)), member(member(bandwidth, "schemata", dict), "percent", int)
    ranges = {_cache_id(item): _needed(_range(item)) for item in member(cache, _PER_CACHE, Objects, [])}
    percents = {
        _cache_id(item): _needed(member(item, "percent", int)) for item in member(bandwidth, _PER_CACHE, Objects, [])
    }
    try:
        return Wish(*common, ranges, percents)
    except ValueError as error:
        raise Malformed(_ANNOTATION, str(error)) from None


def _range(value: Any) -> Range | None:
    ends = member(value, "range", list)
    if ends is None:
        return None
    if len(ends) != 2 or not all(type(end) is int for end in ends):
        raise Malformed(_ANNOTATION, "range must be a list of two whole percentages, from and to")
    return ends[0], ends[1]


def _cache_id(value: Any) -> int:
    cache_id: int | None = member(value, "cacheID", int)
    return _needed(cache_id)


def _needed(value: _T | None) -> _T:
    if value is None:
        raise Malformed(_ANNOTATION, f"each entry of {_PER_CACHE} needs cacheID, and range (llc) or percent (mb)")
    return value


if __name__ == "__main__":
    main(Rdt())
