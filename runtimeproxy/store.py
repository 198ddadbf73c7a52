"""The Store: pods and containers by id, in memory, so that hook servers can be stateless (mission, "four components").

Owns the records between a create and its remove (design section 6).
Must not know: who writes or reads, when a record is due, any runtime; there is no disk behind it.
Invariant: every record lies under its own non-empty id, and only frozen values come out.
"""

from typing import NamedTuple

from runtimeproxy.model import ContainerRecord, PodRecord, Subject


class Snapshot(NamedTuple):
    """All records at one moment, oldest first."""

    pods: tuple[PodRecord, ...]
    containers: tuple[ContainerRecord, ...]


class Counts(NamedTuple):
    """Numbers of records."""

    pods: int
    containers: int


class Store:
    """Records by id; the id is that of the effective value, matched exactly."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self._moved: set[str] = set()

    @property
    def has_moved_pods(self) -> bool:
        """Tell whether any pod's cgroup parent is not the one that the kubelet asked for."""
        return bool(self._moved)

    def pod(self, pod_id: str) -> PodRecord | None:
        """Return the pod of this id, or None if it is not known."""
        return self._pods.get(pod_id)

    def container(self, container_id: str) -> ContainerRecord | None:
        """Return the container of this id, or None if it is not known."""
        return self._containers.get(container_id)

    def containers_of(self, pod_id: str) -> tuple[ContainerRecord, ...]:
        """Return the containers of a pod, oldest first."""
        return tuple(record for record in self._containers.values() if record.effective.pod_id == pod_id)

    def commit(self, subject: Subject) -> None:
        """Keep what the runtime agreed to: the container if there is one, and the pod if it has an id.

        A container may come with a pod that nobody could read, so its pod's id may be empty; a pod that is known stays
        as it is: the container's call may hold an older value of it.
        Raises ValueError, keeping nothing, if what the subject is about has no id.
        """
        pod_id = subject.pod.effective.id
        if subject.container is not None:
            self._keep_container(subject.container)
        elif not pod_id:
            raise ValueError("a pod record without an id cannot be kept: commit it after the runtime gave the id")
        if pod_id and (subject.container is None or pod_id not in self._pods):
            self._keep_pod(pod_id, subject.pod)

    def forget_pod(self, pod_id: str) -> None:
        """Drop a pod and its containers; an unknown id is no error."""
        self._pods.pop(pod_id, None)
        self._moved.discard(pod_id)
        for record in self.containers_of(pod_id):
            del self._containers[record.effective.id]

    def forget_container(self, container_id: str) -> None:
        """Drop a container; an unknown id is no error."""
        self._containers.pop(container_id, None)

    def snapshot(self) -> Snapshot:
        """Return all records as one value, which later commits do not change."""
        return Snapshot(tuple(self._pods.values()), tuple(self._containers.values()))

    def counts(self) -> Counts:
        """Return how many pods and containers are known."""
        return Counts(len(self._pods), len(self._containers))

    def _keep_pod(self, pod_id: str, record: PodRecord) -> None:
        self._pods[pod_id] = record
        if record.effective.cgroup_parent != record.original.cgroup_parent:
            self._moved.add(pod_id)
        else:
            self._moved.discard(pod_id)

    def _keep_container(self, record: ContainerRecord) -> None:
        if not record.effective.id:
            raise ValueError("a container record without an id cannot be kept: commit it after the runtime gave the id")
        self._containers[record.effective.id] = record
