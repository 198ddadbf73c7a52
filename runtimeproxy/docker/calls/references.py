"""Docker's calls that name a container by a reference: start, stop, update, remove; one class for each action.

Owns which operation a call is, given its subject, the update before a start, and which update events are the proxy's.
Must not know: heads, chunks, connections, hook servers.
Invariant: an update's event is expected only where the record will have the update; otherwise the event causes the
container to be read again.
"""

from collections.abc import Mapping
from dataclasses import replace

from runtimeproxy.core.call import DONE, GONE, NOT_DONE, UNANSWERED, CallState, Life, Reply, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.docker import edit, translate
from runtimeproxy.docker.calls.base import DockerCall
from runtimeproxy.docker.reader import Reader
from runtimeproxy.docker.routes import Action, Route
from runtimeproxy.errors import BackendError
from runtimeproxy.model import hookpoints, records
from runtimeproxy.model.hookpoints import REMOVES, HookPoint, Operation
from runtimeproxy.model.records import EffectiveUpdate, RequestedUpdate
from runtimeproxy.model.values import NO_RESOURCES, Adjustment, HookRequest, ResourceValue, Subject
from runtimeproxy.wire.http1 import RequestHead

UPDATE_SECONDS = 10.0
"""Seconds for the extra update of PreStartContainer: Docker's clients send no deadline."""


class ReferenceCall(DockerCall):
    """A call on an existing container or pod sandbox, named by id, id prefix or name."""

    container_operation: Operation
    pod_operation: Operation | None = None
    """The operation if the reference names a pod sandbox; None if such a call has no hook points and just passes."""
    points: tuple[HookPoint, ...]
    """The hook points for whose sake the daemon is asked what a reference names (relay-rules C4)."""

    def __init_subclass__(cls) -> None:
        """Set ``points`` of a subclass: the hook points of both its operations."""
        of_pod = () if cls.pod_operation is None else hookpoints.CONCERNED[cls.pod_operation]
        cls.points = hookpoints.CONCERNED[cls.container_operation] + of_pod

    def __init__(self, reader: Reader, head: RequestHead, route: Route) -> None:
        super().__init__(reader, head, route)
        self.operation = self.container_operation
        self.hook_points = self.points
        self._reference = route.reference
        self._id = ""
        self._found = False
        self._changes_seen: int | None = None
        """``EventFollower.changes`` when the daemon was asked for the subject; None if it was not asked."""

    def begin(self) -> bool:
        """Set the operation if the subject is known."""
        known = self.shared.lookup.known(self._reference)
        if known is not None:
            self._take(self._reference, known)
        return True

    def order_key(self) -> str:
        """Return the subject's id, or the reference as long as the id is not known."""
        return self._id or self._reference

    def subject(self, store: Store) -> Subject | None:
        """Return the subject from the Store; None if it is not there. If a dockerd event has made the Store forget it
        since the call found it, the call is ``state_unknown``.
        """
        known = self.shared.lookup.known(self._id) if self._id else None
        self.state_unknown |= self._found and known is None
        # A subject that only this call has read is not in the Store to be forgotten, but may have changed as well.
        self.state_unknown |= self._changes_seen not in (None, self.shared.events.changes)
        self._found |= known is not None
        return known

    async def read_subject(self, store: Store) -> Subject | None:
        """Read from the daemon what the reference names. Raises BackendError, Unreadable."""
        self._changes_seen = self.shared.events.changes
        found = await self.shared.lookup.read(self._reference)
        if found is None:
            return None
        self._found |= self.shared.lookup.known(found[0]) is not None
        return self._take(*found)

    def _take(self, full_id: str, subject: Subject) -> Subject | None:
        """Set the call's id and operation by its subject and return that; None if the call has no operation."""
        operation = self.pod_operation if subject.container is None else self.container_operation
        if operation is None:
            return None
        self._id, self.operation = full_id, operation
        return subject

    async def life(self, container_id: str) -> Life | None:
        """Read whether a container was started and runs."""
        return await self.shared.lookup.life(container_id)

    async def settle(self) -> Reply:
        """Return the outcome of an unanswered start, stop or remove, read from the container's state."""
        if self.state is not CallState.RELEASED:
            return NOT_DONE
        starts = self.operation is Operation.START_CONTAINER
        life = await self.life(self._id)
        if life is None:
            return NOT_DONE if starts else GONE
        done = life.started if starts else not life.running
        return DONE if done and self.operation not in REMOVES else UNANSWERED


class StopCall(ReferenceCall):
    """StopContainer, StopPodSandbox."""

    container_operation = Operation.STOP_CONTAINER
    pod_operation = Operation.STOP_POD_SANDBOX


class RemoveCall(ReferenceCall):
    """RemoveContainer, RemovePodSandbox."""

    container_operation = Operation.REMOVE_CONTAINER
    pod_operation = Operation.REMOVE_POD_SANDBOX


class StartCall(ReferenceCall):
    """StartContainer: resources that a Pre hook sets go to the daemon in an update before it."""

    container_operation = Operation.START_CONTAINER
    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Update the created container, so that it starts with these resources (hook-api, PreStartContainer).

        Returns the resources that were set. Raises BackendError; if the update may have been applied all the same, the
        call is ``state_unknown`` from then on.
        """
        container = records.container_of(subject).effective
        update = edit.update_body(adjustment.resources, container.resources or NO_RESOURCES)
        self.leave_out(update.left_out)
        self.shared.metrics.normalised(update.respelt, adjustment.owners)
        if not update.resources:
            return {}
        self.shared.events.expect_update(self._id)
        try:
            await self.shared.backend.update(self._id, update.body, UPDATE_SECONDS)
        except BaseException as error:
            self.shared.events.no_update(self._id)
            self.state_unknown |= not (isinstance(error, BackendError) and error.not_done)
            raise
        return update.resources


class UpdateCall(ReferenceCall):
    """UpdateContainerResources: hooks see the kubelet's original values, the daemon gets what differs (hook-api)."""

    container_operation = Operation.UPDATE_CONTAINER_RESOURCES
    _expecting = False

    @read_once
    def said(self) -> EffectiveUpdate:
        """Return what the request asks for and ``edited`` added; an update has no annotations. Raises Unreadable."""
        return EffectiveUpdate(RequestedUpdate(self._reference, translate.read_update(self.body)))

    def order_key(self) -> str:
        """Return the container's id, or the reference. Raises Unreadable if any part of the request cannot be read."""
        _ = self.said
        return super().order_key()

    def hook_request(self, subject: Subject) -> HookRequest:
        """Return the record's original values overlaid by what this request sets."""
        return records.told_of_update(subject, self.said.asked)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put each field into the body whose value would differ in the daemon after the unedited request."""
        effective = records.container_of(subject).effective.resources or NO_RESOURCES
        if "memory_limit_in_bytes" in adjustment.resources:  # a swap limit that a hook only repeated changes with it
            adjustment = replace(adjustment, confirmed=adjustment.confirmed - {"memory_swap_limit_in_bytes"})
        update = edit.edit_update(self.body, records.differing(subject, self.said.asked, adjustment), effective)
        self.leave_out(update.left_out + (("annotations",) if adjustment.annotations else ()))
        self.shared.metrics.normalised(update.respelt, adjustment.owners)
        self.said = replace(self.said, put_in=update.resources)
        return None if update.body is self.body else update.body

    def send_request(self, body: bytes | None) -> bool:
        """Send the request on; expect the daemon's event of it if the record will have the update."""
        self._expecting = self.state is CallState.HOLDING and self._is_recorded()
        if self._expecting:
            self.shared.events.expect_update(self._id)
        return super().send_request(body)

    def _is_recorded(self) -> bool:
        """Return whether the record will have the update: the container is known and the request can be read. Otherwise
        the update's event causes the container to be read again.
        """
        try:
            return bool(self._id and self.said)
        except Unreadable:
            return False

    def answer(self) -> None:
        """Send the daemon's answer; an update that it did not agree to has no event to expect."""
        if self._expecting and self.reply is not None and not self.reply.agreed:
            self._expecting = False
            self.shared.events.no_update(self._id)
        super().answer()

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Return the container with the kubelet's values and the daemon's values updated separately."""
        return records.updated(subject, self.said, adjustment)


BY_REFERENCE: dict[Action, type[ReferenceCall]] = {
    Action.START: StartCall,
    Action.STOP: StopCall,
    Action.UPDATE: UpdateCall,
    Action.REMOVE: RemoveCall,
}
