"""Docker's calls that name a container by a reference: start, stop, update, remove; one class an action.

Owns what a reference's subject makes of the call, the update ahead of a start, and which updates are our own.
Must not know: heads, chunks, connections, hook servers.
Invariant: an update is expected as our own only where the record is going to tell of it; else its event has the
container read anew.
"""

from collections.abc import Mapping
from dataclasses import replace

from runtimeproxy import hookpoints, records
from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Call, CallState, Reply, Unreadable, read_once
from runtimeproxy.docker import edit, status, translate
from runtimeproxy.docker.call import Daemon, DockerCall, body_of
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.docker.routes import Action
from runtimeproxy.docker.status import Life
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import HookPoint, Operation
from runtimeproxy.model import NO_RESOURCES, Adjustment, HookRequest, ResourceValue, Subject
from runtimeproxy.records import AskedUpdate, SaidUpdate
from runtimeproxy.store import Store
from runtimeproxy.superseded import outlived

UPDATE_SECONDS = 10.0
"""Time of the extra update of PreStartContainer: Docker's clients send no deadline."""


class ReferenceCall(DockerCall):
    """A call on something that exists: a container or a pod sandbox, by id, id prefix or name."""

    container_operation: Operation
    pod_operation: Operation | None = None
    """What it is where the reference names a pod sandbox; None = nothing that anybody is asked about."""
    if_gone = GONE
    """What became of the call where there is no such container any more."""

    points: tuple[HookPoint, ...]
    """The hook points for whose sake the daemon is asked what a reference names (relay-rules C4)."""

    def __init_subclass__(cls) -> None:
        """Find the hook points of what such a call can be, once for all of them."""
        of_pod = () if cls.pod_operation is None else hookpoints.CONCERNED[cls.pod_operation]
        cls.points = hookpoints.CONCERNED[cls.container_operation] + of_pod

    def __init__(self, exchange: HeldExchange, daemon: Daemon) -> None:
        super().__init__(exchange, daemon, self.container_operation)
        self.concerned = self.points
        self._reference = exchange.route.reference
        self._id = ""
        self._found = False
        self._changes_seen: int | None = None
        """How often the daemon had told of somebody else's changes when it was asked for the subject, if it was."""
        known = daemon.lookup.known(self._reference)
        if known is not None:
            self._take(self._reference, known)

    def order_key(self) -> str:
        """Name the subject by its id, or by the reference as long as that is not known."""
        return self._id or self._reference

    def subject(self, store: Store) -> Subject | None:
        """Look the subject up; an event may have had the Store forget it since."""
        known = self._daemon.lookup.known(self._id) if self._id else None
        self.unsure |= self._found and known is None
        # Nobody forgot what only this call knew, though it may be what was changed.
        self.unsure |= self._changes_seen not in (None, self._daemon.events.changes)
        self._found |= known is not None
        return known

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the daemon what the reference names."""
        self._changes_seen = self._daemon.events.changes
        found = await self._daemon.lookup.read(self._reference)
        if found is None:
            return None
        self._found |= self._daemon.lookup.known(found[0]) is not None
        return self._take(*found)

    def _take(self, full_id: str, subject: Subject) -> Subject | None:
        """Learn from its subject what the call is; None if nobody is asked about it."""
        operation = self.pod_operation if subject.container is None else self.container_operation
        if operation is None:
            return None
        self._id, self.operation = full_id, operation
        return subject

    async def _fate(self, store: Store) -> Reply:
        """Tell by how far the container is."""
        reply = await self._daemon.backend.inspect(self._id)
        if reply is None:
            return self.if_gone
        return DONE if self._is_done(status.read_life(reply)) else UNANSWERED

    def _is_done(self, life: Life) -> bool:
        """Tell whether the call was carried out on what is still there."""
        return False


class StopCall(ReferenceCall):
    """StopContainer, StopPodSandbox."""

    container_operation = Operation.STOP_CONTAINER
    pod_operation = Operation.STOP_POD_SANDBOX

    def _is_done(self, life: Life) -> bool:
        """Tell whether it runs no more."""
        return not life.running


class RemoveCall(ReferenceCall):
    """RemoveContainer, RemovePodSandbox."""

    container_operation = Operation.REMOVE_CONTAINER
    pod_operation = Operation.REMOVE_POD_SANDBOX


class StartCall(ReferenceCall):
    """StartContainer: a Pre hook's resources go ahead of it in an update of their own."""

    container_operation = Operation.START_CONTAINER
    if_gone = NOT_DONE
    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Update the created container: that holds from its first instruction on (hook-api, PreStartContainer)."""
        container = records.container_of(subject).effective
        update = edit.update_body(adjustment.resources, container.resources or NO_RESOURCES)
        self.leave_out(update.left_out)
        if not update.resources:
            return {}
        self._daemon.events.expect_update(self._id)
        try:
            await self._daemon.backend.update(self._id, update.body, UPDATE_SECONDS)
        except BaseException as error:
            self._daemon.events.no_update(self._id)
            self.unsure |= not (isinstance(error, BackendError) and error.not_done)
            raise
        return update.resources

    def _is_done(self, life: Life) -> bool:
        """Tell whether it ever ran."""
        return life.started


class UpdateCall(ReferenceCall):
    """UpdateContainerResources: hooks see the kubelet's originals, the daemon gets what differs (hook-api)."""

    container_operation = Operation.UPDATE_CONTAINER_RESOURCES
    _expecting = False

    def __init__(self, exchange: HeldExchange, daemon: Daemon) -> None:
        super().__init__(exchange, daemon)
        self._body: bytes | str
        """The request's, or in words why that cannot be read."""
        try:
            self._body = body_of(exchange)
        except Unreadable as error:
            self._body = str(error)

    @property
    def kept_bytes(self) -> int:
        """Return the body's length."""
        return len(self._body)

    @property
    def body(self) -> bytes:
        """Return the request's body. Raises Unreadable."""
        if isinstance(self._body, str):
            raise Unreadable(self._body)
        return self._body

    @read_once
    def said(self) -> SaidUpdate:
        """Return what the request asks for, and what ``edited`` put in; it has no place for annotations.

        Raises Unreadable.
        """
        return SaidUpdate(AskedUpdate(self._reference, translate.read_update(self.body)))

    def order_key(self) -> str:
        """Name the container; a request that cannot be read to its end is no request to change."""
        _ = self.said
        return super().order_key()

    def hook_request(self, subject: Subject) -> HookRequest:
        """Tell the record's original values overlaid by what this request sets."""
        return records.told_of_update(subject, self.said.asked)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Put in each field whose result differs from what the daemon would hold after these bytes alone."""
        effective = records.container_of(subject).effective.resources or NO_RESOURCES
        if "memory_limit_in_bytes" in adjustment.resources:  # a swap limit that was only repeated goes with it
            adjustment = replace(adjustment, confirmed=adjustment.confirmed - {"memory_swap_limit_in_bytes"})
        update = edit.edit_update(self.body, records.differing(subject, self.said.asked, adjustment), effective)
        self.leave_out(update.left_out + (("annotations",) if adjustment.annotations else ()))
        self.said = replace(self.said, put_in=update.resources)
        return None if update.body is self.body else update.body

    def send(self, body: bytes | None) -> bool:
        """Send on; the daemon's event of it will be our own, if the record is going to tell of it."""
        self._expecting = self._exchange.state is CallState.HOLDING and self._is_recorded()
        if self._expecting:
            self._daemon.events.expect_update(self._id)
        return super().send(body)

    def _is_recorded(self) -> bool:
        """Tell whether the container is known and the request can be read; else the event has it read anew."""
        try:
            return bool(self._id and self.said)
        except Unreadable:
            return False

    def _take_reply(self) -> None:
        """Take the reply; without the daemon's word on it the container is read anew when it is needed."""
        super()._take_reply()
        reply = self._exchange.reply
        if not self._expecting or reply is None or reply.agreed:
            return
        self._expecting = False
        if reply.answered:
            self._daemon.events.no_update(self._id)
        else:
            self._daemon.events.unsettled_update(self._id)
            self._found, self._changes_seen = False, None  # what is found out of it later is kept

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Keep the kubelet's values and the daemon's apart."""
        return records.updated(subject, self.said, adjustment)

    def superseded(self, by: Call) -> bool:
        """Ask only for what a later update does not name."""
        assert isinstance(by, UpdateCall)
        left = outlived(self.said, by.said)
        if left is not None:
            self.said = left
            self._found = True  # as the later one's commit left it: what was forgotten since is not made of this one
        return left is None

    async def _fate(self, store: Store) -> Reply:
        """Tell by the container's resources."""
        held = await self._daemon.lookup.resources(self._id)
        if held is None:
            return NOT_DONE
        return DONE if records.holds(held, self.said.wanted) else UNANSWERED


BY_REFERENCE: dict[Action, type[ReferenceCall]] = {
    Action.START: StartCall,
    Action.STOP: StopCall,
    Action.UPDATE: UpdateCall,
    Action.REMOVE: RemoveCall,
}
