"""Docker's held calls: a class for creates and one for each action on an existing container.

Invariant: an unchanged request is released as exactly the received bytes. An update's event is expected only where the
record will have the update; otherwise the event causes the container to be read again.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from runtimeproxy.core import call
from runtimeproxy.core.call import CallState, Life, Reply, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.docker import messages
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.exchange import Action, DockerHeld, Route, Shared
from runtimeproxy.docker.messages import POD_TYPE, RequestedContainer, RequestedPod
from runtimeproxy.docker.reader import Reader
from runtimeproxy.docker.sync import EventFollower, Lookup, container_info
from runtimeproxy.errors import BackendError, HookError
from runtimeproxy.model import fields, hookpoints, merge
from runtimeproxy.model.fields import Adjustment, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.model.hookpoints import REMOVES, HookPoint, Operation
from runtimeproxy.model.merge import EffectiveUpdate, RequestedUpdate
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.wire.http1 import RequestHead

ERROR_STATUS = 500


@dataclass(frozen=True, slots=True)
class DockerShared(Shared):
    backend: Backend
    lookup: Lookup
    events: EventFollower
    metrics: Metrics
    passes_creates: Callable[[], bool]
    """Return whether no create calls a hook server or is edited."""
    has_pod_fail_policy: Callable[[], bool]
    """Return whether a hook server with policy Fail is registered for the create of pods."""


class DockerCall(DockerHeld):
    shared: DockerShared

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Return the body to release; None if nothing changes."""
        return None

    def release(self, subject: Subject | None, adjustment: Adjustment) -> None:
        self.send_request(None if subject is None else self.edited(subject, adjustment))

    def refuse(self, error: HookError) -> None:
        self.send_refusal(ERROR_STATUS, f"runtimeproxy: {self.operation.value} refused: {error}")


class CreateCall(DockerCall):
    """A create: its body shows whether that is a pod sandbox, a container of a pod, or another container."""

    operation = Operation.CREATE_CONTAINER
    hook_points: tuple[HookPoint, ...] = ()
    has_kind = True
    """False if the request does not show whether it creates a pod sandbox or a container."""
    _requested: RequestedPod | RequestedContainer | None = None
    _unreadable = ""
    _released: bytes | None = None
    """The edited body; None if the request's own was released."""

    def identify(self) -> bool:
        """Read the body, and set the operation by it. The create of a container without a pod is plain. If no create
        needs an edit, the request is sent on first: the daemon works while the body is parsed.

        An unreadable body may not show its kind. Then it counts as a pod if hook servers may refuse pods."""
        body = b""
        try:
            body = self.body
            if self.shared.passes_creates():
                self.already_sent = self.send_request(None)
            self._requested = messages.read_create(body, self.route.name) if messages.may_belong_to_pod(body) else None
            is_pod = isinstance(self._requested, RequestedPod)
            self.is_plain = self._requested is None
        except Unreadable as error:
            kind = messages.kind_of_unreadable(body, self.route.name)
            self._unreadable, self.has_kind = str(error), kind is not None
            is_pod = kind == POD_TYPE or (kind is None and self.shared.has_pod_fail_policy())
        if self.is_plain:
            self.send_request(None)
            return False
        self.operation = Operation.RUN_POD_SANDBOX if is_pod else Operation.CREATE_CONTAINER
        self.hook_points = hookpoints.CONCERNED[self.operation]
        return True

    @property
    def requested(self) -> RequestedPod | RequestedContainer:
        """Raises Unreadable."""
        if self._requested is None:
            raise Unreadable(self._unreadable)
        return self._requested

    def refuse(self, error: HookError) -> None:
        """Answer as for other calls, but name neither operation nor hook point if the kind is unknown."""
        if self.has_kind:
            super().refuse(error)
        else:
            reason = f"hook server {error.plugin!r}: {error.reason.value}: {error.detail}"
            self.send_refusal(ERROR_STATUS, f"runtimeproxy: create refused: {reason}")

    def order_key(self) -> str:
        requested = self.requested  # it has no id yet
        return requested.pod.full_name if isinstance(requested, RequestedPod) else requested.container.full_name

    def subject(self, store: Store, pod: PodRecord | None = None) -> Subject | None:
        """Return the pod described in the request, or the container in ``pod``, else in its pod from the Store. None if
        the container's pod is unknown, or dockerd's cgroup driver, which the parent needs. Raises Unreadable."""
        requested, driver = self.requested, self.shared.lookup.driver
        if driver is None:
            return None
        parent = messages.to_cri(requested.cgroup_parent, driver)
        if isinstance(requested, RequestedPod):
            info = replace(requested.pod, cgroup_parent=parent)
            return Subject(PodRecord(info, info))
        pod = pod or store.pod(requested.container.pod_id)
        if pod is None:
            return None  # the request repeats only the cgroup parent of its pod
        subject = merge.in_pod(pod, PodInfo(cgroup_parent=parent), requested.container)
        container = container_info(requested, subject.pod, driver)
        return replace(subject, container=ContainerRecord(container, container))

    async def read_subject(self, store: Store) -> Subject | None:
        requested, pod = self.requested, None
        await self.shared.lookup.cached_driver()
        if isinstance(requested, RequestedContainer):
            pod = await self.shared.lookup.pod(requested.container.pod_id)
        return self.subject(store, pod)

    def unedited(self, store: Store) -> bool:
        return self.operation is Operation.RUN_POD_SANDBOX or not store.changed_parents

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put the adjustment into Labels, Env and HostConfig, and the pod's cgroup parent where a hook changed it."""
        unsupported, normalised = messages.check_create_fields(adjustment.resources)
        self.note_unsupported(unsupported, "Docker", self.shared.metrics.count_unsettable_fields)
        self.shared.metrics.normalised(normalised, adjustment.owners)
        is_pod, driver = subject.container is None, self.shared.lookup.driver
        path = adjustment.cgroup_parent if is_pod else merge.cgroup_parent_to_set(subject.pod, adjustment)
        parent = None if path is None or driver is None else messages.to_docker(path, driver)
        body = messages.edit_create(self.body, adjustment, parent, is_pod=is_pod)
        self._released = None if body is self.body else body
        return self._released

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the daemon's id and the sent resources. An edited body is parsed again, as an edit also obeys dockerd's
        checks."""
        created_id = messages.read_created_id(reply.message)
        sent = self.requested if self._released is None else messages.read_create(self._released, self.route.name)
        if isinstance(sent, RequestedPod):
            pod = merge.created_pod(subject, adjustment, created_id).pod
            return Subject(PodRecord(pod.original, replace(pod.effective, resources=sent.pod.resources)))
        assert sent is not None
        created = merge.created_container(subject, adjustment, created_id)
        container = merge.container_of(created)
        effective = replace(container.effective, resources=sent.container.resources)
        return replace(created, container=replace(container, effective=effective))

    async def read_made(self, store: Store, made: Subject) -> PodRecord | ContainerRecord | None:
        record = made.container or made.pod
        read = await self.shared.lookup.read(record.effective.id)
        current = None if read is None else read[1].container or read[1].pod
        return current if type(current) is type(record) else None


class ReferenceCall(DockerCall):
    """A call on an existing container or pod sandbox, named by id, id prefix or name."""

    container_operation: Operation
    pod_operation: Operation | None = None
    """None if such a call on a pod sandbox passes without hook points."""
    lookup_hook_points: tuple[HookPoint, ...]
    """The hook points for which the daemon is queried to resolve a reference (relay-rules C4)."""

    def __init_subclass__(cls) -> None:
        pod_hook_points = () if cls.pod_operation is None else hookpoints.CONCERNED[cls.pod_operation]
        cls.lookup_hook_points = hookpoints.CONCERNED[cls.container_operation] + pod_hook_points

    def __init__(self, reader: Reader, head: RequestHead, route: Route) -> None:
        super().__init__(reader, head, route)
        self.operation = self.container_operation
        self.hook_points = self.lookup_hook_points
        self._reference = route.reference
        self._id = ""
        self._was_stored = False
        self._changes_seen: int | None = None
        """``EventFollower.foreign_changes`` when the daemon was queried for the subject; None if it was not."""

    def identify(self) -> bool:
        stored = self.shared.lookup.stored(self._reference)
        if stored is not None:
            self._set_subject(self._reference, stored)
        return True

    def order_key(self) -> str:
        return self._id or self._reference

    def subject(self, store: Store) -> Subject | None:
        """Return the subject from the Store, or None. If a dockerd event has removed it from the Store since the call
        read it, the call is ``state_unknown``."""
        stored = self.shared.lookup.stored(self._id) if self._id else None
        self.state_unknown |= self._was_stored and stored is None
        # A subject that only this call has read is not in the Store, but may have changed as well.
        self.state_unknown |= self._changes_seen not in (None, self.shared.events.foreign_changes)
        self._was_stored |= stored is not None
        return stored

    async def read_subject(self, store: Store) -> Subject | None:
        self._changes_seen = self.shared.events.foreign_changes
        result = await self.shared.lookup.read(self._reference)
        if result is None:
            return None
        self._was_stored |= self.shared.lookup.stored(result[0]) is not None
        return self._set_subject(*result)

    def _set_subject(self, full_id: str, subject: Subject) -> Subject | None:
        """Set the call's id and operation by its subject; return the subject, None if the call has no operation."""
        operation = self.pod_operation if subject.container is None else self.container_operation
        if operation is None:
            return None
        self._id, self.operation = full_id, operation
        return subject

    async def life(self, container_id: str) -> Life | None:
        return await self.shared.lookup.life(container_id)

    async def settle(self) -> Reply:
        if self.state is not CallState.RELEASED:
            return call.NOT_DONE
        starts = self.operation is Operation.START_CONTAINER
        life = await self.life(self._id)
        if life is None:
            return call.NOT_DONE if starts else call.REMOVED
        done = life.started if starts else not life.running
        return call.DONE if done and self.operation not in REMOVES else call.UNANSWERED


class StopCall(ReferenceCall):
    container_operation = Operation.STOP_CONTAINER
    pod_operation = Operation.STOP_POD_SANDBOX


class RemoveCall(ReferenceCall):
    container_operation = Operation.REMOVE_CONTAINER
    pod_operation = Operation.REMOVE_POD_SANDBOX


class StartCall(ReferenceCall):
    """StartContainer: resources that a Pre hook sets go to the daemon in an update before it."""

    container_operation = Operation.START_CONTAINER
    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, fields.ResourceValue]:
        """Update the created container, so that it starts with these resources (hook-api, PreStartContainer). If a
        failed update may have been applied, the call is ``state_unknown`` from then on."""
        container = merge.container_of(subject).effective
        update = messages.edit_update(b"{}", adjustment.resources, container.resources or fields.NO_RESOURCES)
        self.note_unsupported(update.unsupported, "Docker", self.shared.metrics.count_unsettable_fields)
        self.shared.metrics.normalised(update.normalised, adjustment.owners)
        if not update.resources:
            return {}
        self.shared.events.expect_update(self._id)
        try:
            await self.shared.backend.update(self._id, update.body, call.UPDATE_SECONDS)
        except BaseException as error:
            self.shared.events.cancel_update(self._id)
            self.state_unknown |= not (isinstance(error, BackendError) and error.not_done)
            raise
        return update.resources


class UpdateCall(ReferenceCall):
    """UpdateContainerResources: hooks see the kubelet's original values, the daemon gets the changes (hook-api)."""

    container_operation = Operation.UPDATE_CONTAINER_RESOURCES
    _expects_event = False

    @read_once
    def update(self) -> EffectiveUpdate:
        """The values of the request and those that ``edited`` added; it has no annotations. Raises Unreadable."""
        return EffectiveUpdate(RequestedUpdate(self._reference, messages.read_update(self.body)))

    def order_key(self) -> str:
        _ = self.update  # any part of the request that cannot be read raises here
        return super().order_key()

    def hook_request(self, subject: Subject) -> fields.HookRequest:
        return merge.update_hook_request(subject, self.update.requested)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put each field into the body whose value would differ in the daemon after the unedited request."""
        effective = merge.container_of(subject).effective.resources or fields.NO_RESOURCES
        if fields.MEMORY in adjustment.resources:  # a swap limit that a hook only repeated changes with it
            adjustment = replace(adjustment, confirmed=adjustment.confirmed - {fields.SWAP})
        update = messages.edit_update(self.body, merge.differing(subject, self.update.requested, adjustment), effective)
        unsupported = update.unsupported + (("annotations",) if adjustment.annotations else ())
        self.note_unsupported(unsupported, "Docker", self.shared.metrics.count_unsettable_fields)
        self.shared.metrics.normalised(update.normalised, adjustment.owners)
        self.update = replace(self.update, added_resources=update.resources)
        return None if update.body is self.body else update.body

    def send_request(self, body: bytes | None) -> bool:
        """Expect the daemon's event if the record will have the update: the container is in the Store and the request
        can be read."""
        self._expects_event = False
        if self.state is CallState.HOLDING:
            with suppress(Unreadable):
                self._expects_event = bool(self._id and self.update)
        if self._expects_event:
            self.shared.events.expect_update(self._id)
        return super().send_request(body)

    def answer(self) -> None:
        if self._expects_event and self.reply is not None and not self.reply.agreed:
            self._expects_event = False
            self.shared.events.cancel_update(self._id)
        super().answer()

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        return merge.updated(subject, self.update, adjustment)


BY_REFERENCE: dict[Action, type[ReferenceCall]] = {
    Action.START: StartCall,
    Action.STOP: StopCall,
    Action.UPDATE: UpdateCall,
    Action.REMOVE: RemoveCall,
}
