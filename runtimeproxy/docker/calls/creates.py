"""Docker's creates: RunPodSandbox and CreateContainer.

Owns how a create becomes a subject, how an adjustment is put into its body, what its outcome is.
Must not know: heads, chunks, connections, hook servers.
Invariant: the record has what the daemon was asked for, and beside it the kubelet's own values.
"""

from dataclasses import replace
from typing import Generic, TypeVar

from runtimeproxy.core.call import Reply, Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.docker import cgroup, edit, translate
from runtimeproxy.docker.calls.base import ERROR_STATUS, Daemon, DockerCall
from runtimeproxy.docker.cgroup import Driver
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.docker.translate import RequestedContainer, RequestedPod
from runtimeproxy.errors import HookError
from runtimeproxy.model import records
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.values import Adjustment, ContainerRecord, PodInfo, PodRecord, Subject

_A = TypeVar("_A", RequestedPod, RequestedContainer)


class CreateCall(DockerCall, Generic[_A]):
    """A create of a pod sandbox or a container; ``asked`` is what the body asks for, or why that cannot be read."""

    _released: bytes | None = None
    """The edited body; None if the request's own was released."""
    is_kind_known = True
    """False if the request does not show whether it creates a pod sandbox or a container."""

    def __init__(
        self, exchange: HeldExchange, daemon: Daemon, operation: Operation, body: bytes, asked: _A | str
    ) -> None:
        super().__init__(exchange, daemon, operation)
        self._name = exchange.route.name
        self.body = body
        self._asked: _A | str = asked

    @property
    def asked(self) -> _A:
        """Return what the request asks for. Raises Unreadable."""
        if isinstance(self._asked, str):
            raise Unreadable(self._asked)
        return self._asked

    def refuse(self, error: HookError) -> None:
        """Answer as for other calls, but name neither operation nor hook point if it is not known which one it is."""
        if self.is_kind_known:
            super().refuse(error)
        else:
            why = f"hook server {error.plugin!r}: {error.reason.value}: {error.detail}"
            self._exchange.refuse(ERROR_STATUS, f"runtimeproxy: create refused: {why}")

    async def read_made(self, store: Store, made: Subject) -> PodRecord | ContainerRecord | None:
        """Read the pod or container from the daemon."""
        record = made.container or made.pod
        read = await self._daemon.lookup.read(record.effective.id)
        found = None if read is None else read[1].container or read[1].pod
        return found if type(found) is type(record) else None

    def _put(self, body: bytes) -> bytes | None:
        self._released = None if body is self.body else body
        return self._released

    @property
    def released(self) -> _A:
        """Return what the daemon was asked for. An edited body is parsed again, as an edit also obeys dockerd's checks.
        Raises Unreadable.
        """
        if self._released is None:
            return self.asked
        made = translate.read_create(self._released, self._name)
        assert isinstance(made, type(self.asked))
        return made


class CreatePodCall(CreateCall[RequestedPod]):
    """RunPodSandbox."""

    def __init__(self, exchange: HeldExchange, daemon: Daemon, body: bytes, asked: RequestedPod | str) -> None:
        super().__init__(exchange, daemon, Operation.RUN_POD_SANDBOX, body, asked)

    def order_key(self) -> str:
        """Return the pod's namespace, name, uid and attempt: it has no id yet. Raises Unreadable."""
        return self.asked.pod.full_name

    def subject(self, store: Store) -> Subject | None:
        """Return the pod described in the request; None until dockerd's cgroup driver is known, as its parent needs it.
        Raises Unreadable.
        """
        asked, driver = self.asked, self._daemon.lookup.driver
        if driver is None:
            return None
        pod = Lookup.pod_info(asked, driver)
        return Subject(PodRecord(pod, pod))

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the daemon for its cgroup driver and return the pod. Raises BackendError, Unreadable."""
        await self._daemon.lookup.known_driver()
        return self.subject(store)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put the adjustment into Labels and HostConfig."""
        self.leave_out(edit.left_out_of_create(adjustment.resources))
        self._daemon.metrics.normalised(edit.respelt_in_create(adjustment.resources), adjustment.owners)
        path, driver = adjustment.cgroup_parent, self._daemon.lookup.driver
        parent = None if path is None or driver is None else cgroup.to_docker(path, driver)
        return self._put(edit.edit_pod(self.body, adjustment, parent))

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the daemon gave."""
        made = records.created_pod(subject, adjustment, translate.read_created_id(reply.message)).pod
        effective = replace(made.effective, resources=self.released.pod.resources)
        return Subject(PodRecord(made.original, effective))


class CreateContainerCall(CreateCall[RequestedContainer]):
    """CreateContainer: the request describes the container, the Store has its pod."""

    def __init__(self, exchange: HeldExchange, daemon: Daemon, body: bytes, asked: RequestedContainer | str) -> None:
        super().__init__(exchange, daemon, Operation.CREATE_CONTAINER, body, asked)

    def order_key(self) -> str:
        """Return the pod's id with the container's name and attempt: it has no id yet. Raises Unreadable."""
        return self.asked.container.full_name

    def subject(self, store: Store) -> Subject | None:
        """Return the container in its pod from the Store; None if the pod or dockerd's cgroup driver is not known."""
        driver = self._daemon.lookup.driver
        return None if driver is None else self._in(store.pod(self.asked.container.pod_id), driver)

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the daemon for the cgroup driver and the pod as needed, and return the container in its pod."""
        driver = await self._daemon.lookup.known_driver()
        return self._in(await self._daemon.lookup.pod(self.asked.container.pod_id), driver)

    def _in(self, pod: PodRecord | None, driver: Driver) -> Subject | None:
        """Return the container in ``pod``, of which the request repeats only the cgroup parent; None without a pod."""
        if pod is None:
            return None
        asked = self.asked
        repeated = Lookup.pod_info(RequestedPod(PodInfo(), asked.cgroup_parent), driver)
        subject = records.in_pod(pod, repeated, asked.container)
        container = Lookup.container_info(asked, subject.pod, driver)
        return replace(subject, container=ContainerRecord(container, container))

    def unedited(self, store: Store) -> bool:
        """Return whether no pod in the Store has a cgroup parent that a hook set."""
        return not store.has_changed_parents

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put the adjustment into Labels, Env and HostConfig, and the pod's cgroup parent where a hook changed it."""
        self.leave_out(edit.left_out_of_create(adjustment.resources))
        self._daemon.metrics.normalised(edit.respelt_in_create(adjustment.resources), adjustment.owners)
        parent, driver = records.parent_to_put_in(subject.pod, adjustment), self._daemon.lookup.driver
        shown = None if parent is None or driver is None else cgroup.to_docker(parent, driver)
        return self._put(edit.edit_container(self.body, adjustment, shown))

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the daemon gave."""
        made = records.created_container(subject, adjustment, translate.read_created_id(reply.message))
        container = records.container_of(made)
        effective = replace(container.effective, resources=self.released.container.resources)
        return replace(made, container=replace(container, effective=effective))
