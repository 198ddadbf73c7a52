"""The Store: pods and containers by id, in memory, so that hook servers can be stateless (mission, "four components").

Owns the records between a create and its remove (design section 6).
Must not know: who writes or reads, when a record is due, any runtime; there is no disk behind it.
Invariant: every record lies under its own non-empty id, and only frozen values come out. What is buried never returns.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.texts import Texts

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
        self._moved: set[str] = set()
        self._buried: dict[str, None] = {}
        self._watches: list[Watch] = []
        self._texts = Texts()

    @property
    def has_moved_pods(self) -> bool:
        """Tell whether any pod's cgroup parent is not the one that the kubelet asked for, or nobody knows that."""
        return bool(self._moved)

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
        """Return the record of a pod as the runtime tells it: the known one, else one made of it."""
        return self._pods.get(info.id) or PodRecord(info, info, read=True)

    def read_container(self, info: ContainerInfo) -> ContainerRecord:
        """Return the record of a container as the runtime tells it: the known one, else one made of it."""
        return self._containers.get(info.id) or ContainerRecord(info, info)

    # What is kept.

    def commit(self, subject: Subject) -> None:
        """Keep what the runtime agreed to: the container if there is one, and the pod if it has an id.

        A container may come with a pod that nobody could read, so its pod's id may be empty; a pod that is known stays
        as it is unless the call renewed it: the container's call may hold an older value of it. What is buried is not
        kept.
        Raises ValueError, keeping nothing, if what the subject is about has no id.
        """
        pod_id = subject.pod.effective.id
        if subject.container is not None:
            self._keep_container(subject.container)
        elif not pod_id:
            raise ValueError("a pod record without an id cannot be kept: commit it after the runtime gave the id")
        if pod_id and (subject.container is None or subject.renewed or pod_id not in self._pods):
            self._keep_pod(pod_id, subject.pod)

    def _keep_pod(self, pod_id: str, record: PodRecord) -> None:
        if pod_id in self._buried:
            return
        self._kept(pod_id)
        if self._pods.get(pod_id) is record:
            return
        self._pods[pod_id] = self._texts.pod(record)
        parent = record.effective.cgroup_parent
        if parent != record.original.cgroup_parent or (record.read and parent):
            self._moved.add(pod_id)
        else:
            self._moved.discard(pod_id)

    def _keep_container(self, record: ContainerRecord) -> None:
        container_id, pod_id = record.effective.id, record.effective.pod_id
        if not container_id:
            raise ValueError("a container record without an id cannot be kept: commit it after the runtime gave the id")
        if container_id in self._buried:
            return
        self._kept(container_id)
        self._kept(pod_id)
        known = self._containers.get(container_id)
        if known is record:
            return
        if known is not None and known.effective.pod_id != pod_id:
            self._leave_pod(known)
        self._containers[container_id] = self._texts.container(record)
        self._of_pod.setdefault(pod_id, {})[container_id] = None

    # What is dropped.

    def forget(self, any_id: str) -> None:
        """Drop a container or a pod, to be read anew; an unknown id is no error.

        A pod's containers stay: the runtime does not tell what the kubelet asked for where a hook replaced it.
        """
        self.void(any_id)
        self._pods.pop(any_id, None)
        self._moved.discard(any_id)
        record = self._containers.pop(any_id, None)
        if record is not None:
            self._leave_pod(record)

    def bury(self, any_id: str) -> None:
        """Drop what the runtime destroyed for good, and keep nothing of that id any more.

        The word of it may come before a call that is under way commits what was true a moment ago.
        """
        self.forget(any_id)
        self._buried[any_id] = None
        if len(self._buried) > BURIED:
            del self._buried[next(iter(self._buried))]

    def bury_pod(self, pod_id: str) -> None:
        """Bury a pod and its containers."""
        for record in self.containers_of(pod_id):
            self.bury(record.effective.id)
        self.bury(pod_id)

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
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    @property
    def watched(self) -> bool:
        """Tell whether anybody watches."""
        return bool(self._watches)

    def void(self, any_id: str) -> None:
        """Tell those who watch that what they have read of this id may hold no longer."""
        for watch in self._watches:
            watch.voided.add(any_id)

    def _kept(self, any_id: str) -> None:
        for watch in self._watches:
            watch.kept.add(any_id)

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
