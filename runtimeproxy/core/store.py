"""The Store: pods and containers by id, in memory, so that hook servers can be stateless (docs/architecture.rst).

Owns the records between a create and its remove (design section 6), and what is kept of the kubelet's own values for
subjects whose record is to be read anew.
Must not know: who writes or reads, when a record is due, any runtime; there is no disk behind it.
Invariant: every record lies under its own non-empty id, and only frozen values come out. What is buried never returns:
its id does, where a later call shows that the runtime uses it anew.
Of an id there is a record or something kept, not both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from runtimeproxy.model import originals as form
from runtimeproxy.model.interner import StringInterner
from runtimeproxy.model.originals import OriginalValues, kept_of, restored_container, restored_pod
from runtimeproxy.model.values import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject

BURIED = 4096
"""How many buried ids are remembered: far more than calls that can be under way when their subject is destroyed."""

WHOLE_ID = 64
"""The length of the ids that containerd, CRI-O and dockerd give: nobody means the beginning of a longer one."""


class Snapshot(NamedTuple):
    """All records at one moment, oldest first."""

    pods: tuple[PodRecord, ...]
    containers: tuple[ContainerRecord, ...]


class Counts(NamedTuple):
    """Numbers of records."""

    pods: int
    containers: int


@dataclass(slots=True, eq=False)
class Watch:
    """Ids since the watch began: of what was kept, with the pods of containers, and of what was dropped or changed."""

    kept: set[str] = field(default_factory=set)
    voided: set[str] = field(default_factory=set)


class Store:
    """Records by id; the id is that of the effective value, matched exactly."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self._of_pod: dict[str, dict[str, None]] = {}
        """The ids of the containers of each pod, oldest first; the pod itself may be unknown."""
        self._kept: dict[str, bytes] = {}
        """As texts: most are of containers that nobody asks for soon, and they take a quarter of the memory so."""
        self.remembers = False
        """Whether it is known what hooks have replaced in earlier processes, too: what is not kept is the kubelet's."""
        self.has_moved_pods = False
        """Whether any pod's cgroup parent is not the one that the kubelet asked for, or nobody knows that."""
        self._moved: set[str] = set()
        self._buried: dict[str, int] = {}
        """The moment of each burial."""
        self.moment: Callable[[], int] = count(1).__next__
        """Returns a number for this moment, higher than those of earlier ones."""
        self.watched = False
        """Whether anybody watches."""
        self._watches: list[Watch] = []
        self._texts = StringInterner()
        self.on_change: Callable[[str], object] | None = None
        """Is called with the id of what hooks may have replaced values of: there is more to keep of it, or less."""

    def pod(self, pod_id: str) -> PodRecord | None:
        """Return the pod of this id, or None if it is not known."""
        return self._pods.get(pod_id)

    def container(self, container_id: str) -> ContainerRecord | None:
        """Return the container of this id, or None if it is not known."""
        return self._containers.get(container_id)

    def whole_pod_id(self, beginning: str) -> str:
        """Return the id of the only pod whose id begins so; the beginning itself if there is none, or another."""
        return _whole(self._pods, beginning)

    def whole_container_id(self, beginning: str) -> str:
        """Return the id of the only container whose id begins so; the beginning itself if there is none, or another."""
        return _whole(self._containers, beginning)

    def containers_of(self, pod_id: str) -> tuple[ContainerRecord, ...]:
        """Return the containers of a pod, oldest first."""
        return tuple(self._containers[container_id] for container_id in self._of_pod.get(pod_id, ()))

    def ids(self) -> set[str]:
        """Return the ids of all pods and containers."""
        return self._pods.keys() | self._containers.keys()

    # What the runtime tells.

    def read_pod(self, info: PodInfo) -> PodRecord:
        """Return the record of a pod as the runtime tells it: the known one, else one of it and of what is kept."""
        known = self._pods.get(info.id)
        if known is None and (kept := self.original_values(info.id)) is not None:
            return restored_pod(info, kept)
        return known or PodRecord(info, info, read=not self.remembers)

    def read_container(self, info: ContainerInfo) -> ContainerRecord:
        """Return the record of a container as the runtime tells it, in the same way."""
        known = self._containers.get(info.id)
        if known is None and (kept := self.original_values(info.id)) is not None:
            return restored_container(info, kept)
        return known or ContainerRecord(info, info)

    # What is kept of the kubelet's own values.

    def keep(self, kept: Mapping[str, bytes]) -> None:
        """Take over what an earlier process has kept, as texts by id."""
        self._kept.update(kept)

    def original_values(self, any_id: str) -> OriginalValues | None:
        """Return what is to be kept of an id, of its record or since that was forgotten; None if there is nothing."""
        record = self._pods.get(any_id) or self._containers.get(any_id)
        if record is not None:
            return kept_of(record)
        text = self._kept.get(any_id)
        try:
            return None if text is None else form.read(text)
        except form.BrokenOriginals:
            return None

    def kept_ids(self) -> set[str]:
        """Return the ids of which something is kept without a record."""
        return set(self._kept)

    def _changed(self, any_id: str, *records: PodRecord | ContainerRecord | None) -> None:
        """Tell of an id if any of its records, the one before and the one now, is not just as the kubelet asked."""
        hooked = self._kept.pop(any_id, None) is not None
        for record in records:
            hooked |= record is not None and record.original is not record.effective
        if hooked and self.on_change is not None:
            self.on_change(any_id)

    # What is committed.

    def commit(self, subject: Subject, released: int = 0) -> None:
        """Keep what the runtime agreed to: the container if there is one, and the pod if it has an id.

        A container may come with a pod that nobody could read, so its pod's id may be empty; a pod that is known stays
        as it is unless the call renewed it: the container's call may hold an older value of it. What is buried is not
        kept, but where the call was ``released`` at a later moment: a runtime that lost its state gives ids anew.
        Raises ValueError, keeping nothing, if what the subject is about has no id.
        """
        pod_id = subject.pod.effective.id
        if subject.container is not None:
            self._keep_container(subject.container, released)
        elif not pod_id:
            raise ValueError("a pod record without an id cannot be kept: commit it after the runtime gave the id")
        if pod_id and (subject.container is None or subject.renewed or pod_id not in self._pods):
            self._keep_pod(pod_id, subject.pod, released)

    def _is_buried(self, any_id: str, released: int) -> bool:
        buried = self._buried.get(any_id, 0) > released
        if not buried:
            self._buried.pop(any_id, None)
        return buried

    def _keep_pod(self, pod_id: str, record: PodRecord, released: int) -> None:
        if self._is_buried(pod_id, released):
            return
        for watch in self._watches:
            watch.kept.add(pod_id)
        known = self._pods.get(pod_id)
        if known is record:
            return
        self._pods[pod_id] = self._texts.pod(record)
        self._changed(pod_id, known, record)
        parent = record.effective.cgroup_parent
        if parent != record.original.cgroup_parent or (record.read and parent):
            self._moved.add(pod_id)
        else:
            self._moved.discard(pod_id)
        self.has_moved_pods = bool(self._moved)

    def _keep_container(self, record: ContainerRecord, released: int) -> None:
        container_id, pod_id = record.effective.id, record.effective.pod_id
        if not container_id:
            raise ValueError("a container record without an id cannot be kept: commit it after the runtime gave the id")
        if self._is_buried(container_id, released):
            return
        for watch in self._watches:
            watch.kept.update((container_id, pod_id))
        known = self._containers.get(container_id)
        if known is record:
            return
        if known is not None and known.effective.pod_id != pod_id:
            self._leave_pod(known)
        self._containers[container_id] = self._texts.container(record)
        self._changed(container_id, known, record)
        self._of_pod.setdefault(pod_id, {})[container_id] = None

    # What is dropped.

    def forget(self, any_id: str) -> None:
        """Drop a container or a pod, to be read anew; an unknown id is no error.

        A pod's containers stay. What the kubelet asked for where a hook replaced it is kept: no runtime tells it.
        """
        kept = self.original_values(any_id)
        self._drop(any_id)
        if kept is not None:
            self._kept[any_id] = form.write(kept)

    def drop(self, any_id: str) -> None:
        """Drop what the runtime has no more, and all that is kept of it."""
        self._changed(any_id, *self._drop(any_id))

    def _drop(self, any_id: str) -> tuple[PodRecord | None, ContainerRecord | None]:
        self.invalidate(any_id)
        self._moved.discard(any_id)
        self.has_moved_pods = bool(self._moved)
        pod, container = self._pods.pop(any_id, None), self._containers.pop(any_id, None)
        if container is not None:
            self._leave_pod(container)
        return pod, container

    def tombstone(self, any_id: str) -> None:
        """Drop what the runtime destroyed for good, and keep nothing of it any more.

        The word of it may come before a call that is under way commits what was true a moment ago.
        """
        self.drop(any_id)
        self._buried[any_id] = self.moment()
        if len(self._buried) > BURIED:
            del self._buried[next(iter(self._buried))]

    def bury_pod(self, pod_id: str) -> None:
        """Bury a pod and its containers."""
        for record in self.containers_of(pod_id):
            self.tombstone(record.effective.id)
        self.tombstone(pod_id)

    def _leave_pod(self, record: ContainerRecord) -> None:
        pod_id = record.effective.pod_id
        del self._of_pod[pod_id][record.effective.id]
        if not self._of_pod[pod_id]:
            del self._of_pod[pod_id]

    # Who reads the runtime beside the calls.

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Note what is kept and dropped for as long as the context lasts."""
        watch = Watch()
        self._watches.append(watch)
        self.watched = True
        try:
            yield watch
        finally:
            self._watches.remove(watch)
            self.watched = bool(self._watches)

    def invalidate(self, any_id: str) -> None:
        """Tell those who watch that what they have read of this id may hold no longer."""
        for watch in self._watches:
            watch.voided.add(any_id)

    # All records.

    def snapshot(self) -> Snapshot:
        """Return all records as one value, which later commits do not change."""
        return Snapshot(tuple(self._pods.values()), tuple(self._containers.values()))

    def counts(self) -> Counts:
        """Return how many pods and containers are known."""
        return Counts(len(self._pods), len(self._containers))


def _whole(ids: Iterable[str], beginning: str) -> str:
    if len(beginning) >= WHOLE_ID:
        return beginning
    found = [any_id for any_id in ids if any_id.startswith(beginning)] if beginning else []
    return found[0] if len(found) == 1 else beginning
