"""The Store: records of pods and containers by id, in memory, for stateless hook servers (docs/architecture.rst).

Invariant: a subject with a tombstone never returns; its id does if a later call shows that the runtime uses it again.
For one id there is a record or retained original values, never both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from runtimeproxy.model import originals
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.model.interner import StringInterner
from runtimeproxy.model.originals import OriginalValues, original_values_of, restored_container, restored_pod

MAX_TOMBSTONES = 4096
"""Largest number of tombstones: far more than the calls under way at the destruction of their subject."""
FULL_ID_LENGTH = 64
"""Length of the full ids of containerd, CRI-O and dockerd: a text of this length is never the prefix of another id."""


class Snapshot(NamedTuple):
    """All records, oldest first."""

    pods: tuple[PodRecord, ...]
    containers: tuple[ContainerRecord, ...]


@dataclass(slots=True, eq=False)
class Watch:
    """Ids noted since the watch began; ``retained`` are those committed, with the pods of containers."""

    retained: set[str] = field(default_factory=set)
    invalidated: set[str] = field(default_factory=set)


class Store:
    """Records by id, which is the id in the effective value; ids are matched exactly. ``pod`` and ``container`` return
    the record of an id, None if it is not known."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self.pod: Callable[[str], PodRecord | None] = self._pods.get
        self.container: Callable[[str], ContainerRecord | None] = self._containers.get
        self.full_pod_id = partial(_complete_id, self._pods)
        self.full_container_id = partial(_complete_id, self._containers)
        self._of_pod: dict[str, dict[str, None]] = {}
        """The ids of the containers of each pod, oldest first; the pod itself may be unknown."""
        self._retained: dict[str, bytes] = {}
        """Original values without a record, as JSON: it takes a quarter of the memory, and few are needed soon."""
        self.keep: Callable[[Mapping[str, bytes]], None] = self._retained.update
        self.remembers = False
        """True if the originals of earlier processes are known: a value without an original is the kubelet's."""
        self.changed_parents: set[str] = set()
        """The ids of pods whose cgroup parent differs from the one that the kubelet requested, or may differ."""
        self._tombstones: dict[str, int] = {}
        self.moment: Callable[[], int] = count(1).__next__
        """Return a number for the present moment, higher than those of earlier moments."""
        self.watches: list[Watch] = []
        self._interner = StringInterner()
        self.on_change: Callable[[str], object] | None = None
        """Called with the id of a subject whose original values may have changed."""

    def containers_of(self, pod_id: str) -> tuple[ContainerRecord, ...]:
        return tuple(self._containers[container_id] for container_id in self._of_pod.get(pod_id, ()))

    def ids(self) -> set[str]:
        return self._pods.keys() | self._containers.keys()

    def read_pod(self, info: PodInfo) -> PodRecord:
        """Return the stored record of a pod that was read, else one made of ``info`` and its original values."""
        stored = self._pods.get(info.id)
        if stored is None and (retained := self.original_values(info.id)) is not None:
            return restored_pod(info, retained)
        return stored or PodRecord(info, info, read=not self.remembers)

    def read_container(self, info: ContainerInfo) -> ContainerRecord:
        stored = self._containers.get(info.id)
        if stored is None and (retained := self.original_values(info.id)) is not None:
            return restored_container(info, retained)
        return stored or ContainerRecord(info, info, read=True)

    def original_values(self, any_id: str) -> OriginalValues | None:
        """Return the original values of an id: its record's, else those retained without one; None without any."""
        record = self._pods.get(any_id) or self._containers.get(any_id)
        if record is not None:
            return original_values_of(record)
        text = self._retained.get(any_id)
        try:
            return None if text is None else originals.read(text)
        except ValueError:
            return None

    def keep_originals(self, record: PodRecord | ContainerRecord, released: int) -> None:
        """Retain the original values of a record that is not stored, unless its id has others. A subject with a
        tombstone is treated as in ``commit``."""
        any_id, values = record.effective.id, original_values_of(record)
        if values is None or self.original_values(any_id) is not None or self._has_tombstone(any_id, released):
            return
        self._retained[any_id] = originals.write(values)
        if self.on_change is not None:
            self.on_change(any_id)

    def ids_of_originals(self) -> set[str]:
        """Return the ids that have original values without a record."""
        return set(self._retained)

    def _report_change(self, any_id: str, *records: PodRecord | ContainerRecord | None) -> None:
        hooked = self._retained.pop(any_id, None) is not None
        for record in records:
            hooked |= record is not None and record.original is not record.effective
        if hooked and self.on_change is not None:
            self.on_change(any_id)

    def commit(self, subject: Subject, released: int = 0) -> None:
        """Store what the runtime agreed to: the container if there is one, and the pod if it has an id.

        A container may come with a pod that could not be read, so its pod's id may be empty. A known pod stays as it is
        unless the call renewed it: the call of a container may hold an older value of the pod. A subject with a
        tombstone is not stored, unless the call was ``released`` at a later moment: a runtime that lost its state
        reuses ids. Raises ValueError, storing nothing, if the subject has no id.
        """
        pod_id = subject.pod.effective.id
        if subject.container is not None:
            self._store_container(subject.container, released)
        elif not pod_id:
            raise ValueError("a pod record without an id cannot be kept: commit it after the runtime gave the id")
        if pod_id and (subject.container is None or subject.renewed or pod_id not in self._pods):
            self._store_pod(pod_id, subject.pod, released)

    def _has_tombstone(self, any_id: str, released: int) -> bool:
        is_destroyed = self._tombstones.get(any_id, 0) > released
        if not is_destroyed:
            self._tombstones.pop(any_id, None)
        return is_destroyed

    def _store_pod(self, pod_id: str, record: PodRecord, released: int) -> None:
        if self._has_tombstone(pod_id, released):
            return
        for watch in self.watches:
            watch.retained.add(pod_id)
        stored = self._pods.get(pod_id)
        if stored is record:
            return
        self._pods[pod_id] = self._interner.pod(record)
        self._report_change(pod_id, stored, record)
        parent = record.effective.cgroup_parent
        self.changed_parents.discard(pod_id)
        if parent != record.original.cgroup_parent or (record.read and parent):
            self.changed_parents.add(pod_id)

    def _store_container(self, record: ContainerRecord, released: int) -> None:
        container_id, pod_id = record.effective.id, record.effective.pod_id
        if not container_id:
            raise ValueError("a container record without an id cannot be kept: commit it after the runtime gave the id")
        if self._has_tombstone(container_id, released):
            return
        for watch in self.watches:
            watch.retained.update((container_id, pod_id))
        stored = self._containers.get(container_id)
        if stored is record:
            return
        if stored is not None and stored.effective.pod_id != pod_id:
            self._leave_pod(stored)
        self._containers[container_id] = self._interner.container(record)
        self._report_change(container_id, stored, record)
        self._of_pod.setdefault(pod_id, {})[container_id] = None

    def forget(self, any_id: str) -> None:
        """Drop the record of a container or a pod, to be re-read. A pod's containers stay. The kubelet's original
        values are retained where hooks replaced them: no runtime reports them."""
        retained = self.original_values(any_id)
        self._drop(any_id)
        if retained is not None:
            self._retained[any_id] = originals.write(retained)

    def drop(self, any_id: str) -> None:
        self._report_change(any_id, *self._drop(any_id))

    def _drop(self, any_id: str) -> tuple[PodRecord | None, ContainerRecord | None]:
        self.invalidate(any_id)
        self.changed_parents.discard(any_id)
        pod, container = self._pods.pop(any_id, None), self._containers.pop(any_id, None)
        if container is not None:
            self._leave_pod(container)
        return pod, container

    def tombstone(self, any_id: str, *, alone: bool = False) -> None:
        """Drop all of an id whose subject the runtime destroyed, and ignore later commits of it: a call under way may
        commit an older state. A pod's containers are destroyed with it, unless ``alone`` is set."""
        for container_id in () if alone else tuple(self._of_pod.get(any_id, ())):
            self.tombstone(container_id)
        self.drop(any_id)
        self._tombstones[any_id] = self.moment()
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _leave_pod(self, record: ContainerRecord) -> None:
        pod_id = record.effective.pod_id
        del self._of_pod[pod_id][record.effective.id]
        if not self._of_pod[pod_id]:
            del self._of_pod[pod_id]

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        watch = Watch()
        self.watches.append(watch)
        try:
            yield watch
        finally:
            self.watches.remove(watch)

    def invalidate(self, any_id: str) -> None:
        """Note in all watches that what was read of this id may no longer be true."""
        for watch in self.watches:
            watch.invalidated.add(any_id)

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self._pods.values()), tuple(self._containers.values()))

    def counts(self) -> tuple[int, int]:
        """Return the numbers of pods and of containers."""
        return len(self._pods), len(self._containers)


def _complete_id(ids: Iterable[str], beginning: str) -> str:
    """Return the only id that begins with this text; the text itself if none or several do."""
    if len(beginning) >= FULL_ID_LENGTH:
        return beginning
    matches = [any_id for any_id in ids if any_id.startswith(beginning)] if beginning else []
    return matches[0] if len(matches) == 1 else beginning
