"""Docker's creates: RunPodSandbox and CreateContainer.

Owns how a create becomes a subject, how an adjustment is put into its body, what its outcome is.
Must not know: heads, chunks, connections, hook servers.
Invariant: the record has what was sent to the daemon, and the kubelet's own values next to it.
"""

from dataclasses import replace

from runtimeproxy.core.call import Reply, Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.docker import cgroup, edit, translate
from runtimeproxy.docker.calls.base import ERROR_STATUS, DockerCall
from runtimeproxy.docker.cgroup import Driver
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.docker.reader import Reader
from runtimeproxy.docker.resources import POD_TYPE
from runtimeproxy.docker.routes import Route
from runtimeproxy.docker.translate import RequestedContainer, RequestedPod
from runtimeproxy.errors import HookError
from runtimeproxy.model import hookpoints, records
from runtimeproxy.model.hookpoints import HookPoint, Operation
from runtimeproxy.model.values import Adjustment, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.wire.http1 import RequestHead


class CreateCall(DockerCall):
    """A create: its body shows whether that is a pod sandbox, a container of a pod, or another container."""

    operation = Operation.CREATE_CONTAINER
    hook_points: tuple[HookPoint, ...] = ()
    is_kind_known = True
    """False if the request does not show whether it creates a pod sandbox or a container."""
    _requested: RequestedPod | RequestedContainer | None = None
    _unreadable = ""
    """Why there is no ``requested``."""
    _released: bytes | None = None
    """The edited body; None if the request's own was released."""

    def __init__(self, reader: Reader, head: RequestHead, route: Route) -> None:
        super().__init__(reader, head, route)
        self._name = route.name

    def begin(self) -> bool:
        """Read the body, and set the operation by it. The create of a container that no pod has is plain. If no create
        needs an edit, the request is sent on first: the daemon works while the body is parsed.

        An unreadable body may not show what it creates. That counts as a pod if hook servers may refuse pods.
        """
        body = b""
        try:
            body = self.body
            if self.shared.creates_pass():
                self.already_sent = self.send_request(None)
            self._requested = translate.read_create(body, self._name) if translate.is_pods(body) else None
            of_pod = isinstance(self._requested, RequestedPod)
            self.is_plain = self._requested is None
        except Unreadable as error:
            kind = translate.kind_of_unreadable(body, self._name)
            self._unreadable, self.is_kind_known = str(error), kind is not None
            of_pod = kind == POD_TYPE or (kind is None and self.shared.pods_fail())
        if self.is_plain:
            self.send_request(None)
            return False
        self.operation = Operation.RUN_POD_SANDBOX if of_pod else Operation.CREATE_CONTAINER
        self.hook_points = hookpoints.CONCERNED[self.operation]
        return True

    @property
    def requested(self) -> RequestedPod | RequestedContainer:
        """Return what the request asks for. Raises Unreadable."""
        if self._requested is None:
            raise Unreadable(self._unreadable)
        return self._requested

    def refuse(self, error: HookError) -> None:
        """Answer as for other calls, but name neither operation nor hook point if it is not known which one it is."""
        if self.is_kind_known:
            super().refuse(error)
        else:
            why = f"hook server {error.plugin!r}: {error.reason.value}: {error.detail}"
            self.send_refusal(ERROR_STATUS, f"runtimeproxy: create refused: {why}")

    def order_key(self) -> str:
        """Return the full name of the pod or container: it has no id yet. Raises Unreadable."""
        requested = self.requested
        return requested.pod.full_name if isinstance(requested, RequestedPod) else requested.container.full_name

    def subject(self, store: Store) -> Subject | None:
        """Return the pod described in the request, or the container in its pod from the Store; None if dockerd's cgroup
        driver is not known, as the parent needs it, or the container's pod. Raises Unreadable.
        """
        requested, driver = self.requested, self.shared.lookup.driver
        if driver is None:
            return None
        if isinstance(requested, RequestedContainer):
            return self._in(store.pod(requested.container.pod_id), requested, driver)
        pod = Lookup.pod_info(requested, driver)
        return Subject(PodRecord(pod, pod))

    async def read_subject(self, store: Store) -> Subject | None:
        """Query the daemon for the cgroup driver and the container's pod as needed. Raises BackendError, Unreadable."""
        requested, driver = self.requested, await self.shared.lookup.known_driver()
        if isinstance(requested, RequestedContainer):
            return self._in(await self.shared.lookup.pod(requested.container.pod_id), requested, driver)
        return self.subject(store)

    @staticmethod
    def _in(pod: PodRecord | None, requested: RequestedContainer, driver: Driver) -> Subject | None:
        """Return the container in ``pod``, of which the request repeats only the cgroup parent; None without a pod."""
        if pod is None:
            return None
        repeated = Lookup.pod_info(RequestedPod(PodInfo(), requested.cgroup_parent), driver)
        subject = records.in_pod(pod, repeated, requested.container)
        container = Lookup.container_info(requested, subject.pod, driver)
        return replace(subject, container=ContainerRecord(container, container))

    def unedited(self, store: Store) -> bool:
        """Return whether no pod in the Store has a cgroup parent that a hook set."""
        return self.operation is Operation.RUN_POD_SANDBOX or not store.has_changed_parents

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put the adjustment into Labels, Env and HostConfig, and the pod's cgroup parent where a hook changed it."""
        self.leave_out(edit.left_out_of_create(adjustment.resources))
        self.shared.metrics.normalised(edit.respelt_in_create(adjustment.resources), adjustment.owners)
        of_pod, driver = subject.container is None, self.shared.lookup.driver
        path = adjustment.cgroup_parent if of_pod else records.parent_to_put_in(subject.pod, adjustment)
        parent = None if path is None or driver is None else cgroup.to_docker(path, driver)
        body = (edit.edit_pod if of_pod else edit.edit_container)(self.body, adjustment, parent)
        self._released = None if body is self.body else body
        return self._released

    @property
    def _sent(self) -> RequestedPod | RequestedContainer:
        """Return what was sent to the daemon. An edited body is parsed again, as an edit also obeys dockerd's checks.
        Raises Unreadable.
        """
        if self._released is None:
            return self.requested
        made = translate.read_create(self._released, self._name)
        assert made is not None
        return made

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the daemon gave, and the resources that were sent."""
        made_id, sent = translate.read_created_id(reply.message), self._sent
        if isinstance(sent, RequestedPod):
            pod = records.created_pod(subject, adjustment, made_id).pod
            return Subject(PodRecord(pod.original, replace(pod.effective, resources=sent.pod.resources)))
        made = records.created_container(subject, adjustment, made_id)
        container = records.container_of(made)
        effective = replace(container.effective, resources=sent.container.resources)
        return replace(made, container=replace(container, effective=effective))

    async def read_made(self, store: Store, made: Subject) -> PodRecord | ContainerRecord | None:
        """Read the pod or container from the daemon."""
        record = made.container or made.pod
        read = await self.shared.lookup.read(record.effective.id)
        found = None if read is None else read[1].container or read[1].pod
        return found if type(found) is type(record) else None
