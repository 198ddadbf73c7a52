"""CRI's held calls: a class for each kind of operation; ``HeldCall`` documents each method.

An unchanged message is released as exactly the received bytes.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from runtimeproxy.core import call
from runtimeproxy.core.call import CallState, Life, Reply, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.cri import api_pb2, messages
from runtimeproxy.cri.backend import Backend
from runtimeproxy.cri.frame_relay import Shared
from runtimeproxy.cri.reader import CriHeld
from runtimeproxy.errors import BackendError, BackendFailure, HookError, Reason
from runtimeproxy.model import fields, hookpoints, merge, no_effect
from runtimeproxy.model.fields import Adjustment, ContainerRecord, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.merge import EffectiveUpdate, RequestedUpdate
from runtimeproxy.model.no_effect import Fields
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.wire import grpc

log = logging.getLogger(__name__)

PARSE_FIRST_BYTES = 1 << 20
"""A longer message is parsed before it is released: otherwise its queued bytes and its parsed forms would be in memory
together. A shorter message is parsed while the runtime works."""


@dataclass(frozen=True, slots=True)
class CriShared(Shared):
    backend: Backend
    metrics: Metrics


class CriCall(CriHeld):
    shared: CriShared

    def may_be_repeated(self) -> bool:
        return self.shared.clock() < self.shared.backend.repeats_until

    @property
    def message(self) -> bytes:
        """The request's message. Raises Unreadable."""
        if self._message is None:
            raise Unreadable(self.problem)
        return self._message

    @read_once
    def id(self) -> str:
        """The id in the request. Runtimes also accept a prefix of an id, as crictl's users type it; once the subject
        is known, this is the full id."""
        return messages.read_id(self.message)

    def order_key(self) -> str:
        return self.id

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Return the message to release: the same object if nothing changes."""
        return self.message

    def effective_part(self, sent: Adjustment, ignored_fields: Fields) -> Adjustment:
        """Return the part of ``sent`` that the runtime uses; log the other fields, and record them with the call."""
        used, ignored = no_effect.used(sent, ignored_fields)
        if ignored:
            runtime = self.shared.backend.runtime_name
            self.no_effect += ((f"sent, no effect in {runtime}", ignored),)
            operation, names = self.operation.value, ", ".join(sorted(ignored))
            extra = {"kind": (operation, names), "call": self.call_id}
            log.info("%s: %s: sent, no effect in %s", operation, names, runtime, extra=extra)
        return used

    def release(self, subject: Subject | None, adjustment: Adjustment) -> None:
        message = self._message if subject is None else self.edited(subject, adjustment)
        if subject is None and message is not None and len(message) > PARSE_FIRST_BYTES:
            with suppress(Unreadable):
                self.order_key()
        self.send_request(None if message is self._message else message)

    def refuse(self, error: HookError) -> None:
        """Answer PERMISSION_DENIED for a refusal, INTERNAL for a failure under policy Fail."""
        code = grpc.PERMISSION_DENIED if error.reason is Reason.REFUSED else grpc.INTERNAL
        self.send_refusal(code, f"runtimeproxy: {self.operation.value} refused: {error}")

    def release_buffers(self) -> None:
        self.free_budget()
        if self.operation in hookpoints.UNRECORDED:  # reading its unknown outcome may take minutes
            self._message = None

    async def read_pod(self, pod_id: str, store: Store) -> PodRecord | None:
        """A record in the Store under the full id takes precedence."""
        info = await self.shared.backend.pod(self.version, pod_id)
        return None if info is None else store.read_pod(info)

    async def read_container(self, container_id: str, store: Store) -> ContainerRecord | None:
        info = await self.shared.backend.container(self.version, container_id)
        return None if info is None else store.read_container(info)

    async def life(self, container_id: str) -> Life | None:
        return await self.shared.backend.container_life(self.version, container_id)


class PodCall(CriCall):
    """StopPodSandbox, RemovePodSandbox: the request names a pod by its id."""

    removes_containers = True

    def subject(self, store: Store) -> Subject | None:
        pod = store.pod(self.id)
        if pod is None:
            self.id = store.full_pod_id(self.id)
            pod = store.pod(self.id)
        return None if pod is None else Subject(pod)

    async def read_subject(self, store: Store) -> Subject | None:
        pod = await self.read_pod(self.id, store)
        if pod is None:
            return None
        self.id = pod.effective.id
        return Subject(pod)

    async def settle(self) -> Reply:
        if self.state is not CallState.RELEASED:
            return call.NOT_DONE
        state = await self.shared.backend.pod_state(self.version, self.id)
        if state is None:
            return call.REMOVED
        stopped = state == api_pb2.SANDBOX_NOTREADY
        return call.DONE if stopped and self.operation is Operation.STOP_POD_SANDBOX else call.UNANSWERED


class ContainerCall(CriCall):
    """StopContainer, RemoveContainer: the request names a container by its id."""

    def subject(self, store: Store) -> Subject | None:
        container = store.container(self.id)
        if container is None:
            self.id = store.full_container_id(self.id)
            container = store.container(self.id)
        pod = None if container is None else store.pod(container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read_subject(self, store: Store) -> Subject | None:
        container = store.container(self.id) or await self.read_container(self.id, store)
        if container is None:
            return None
        self.id = container.effective.id
        pod_id = container.effective.pod_id
        pod = store.pod(pod_id) or await self.read_pod(pod_id, store)
        return None if pod is None else merge.subject_of_read(pod, container)

    async def settle(self) -> Reply:
        if self.state is not CallState.RELEASED:
            return call.NOT_DONE
        starts = self.operation is Operation.START_CONTAINER
        state = await self.shared.backend.container_state(self.version, self.id)
        if state is None:
            return call.NOT_DONE if starts else call.REMOVED
        finished = state == api_pb2.CONTAINER_EXITED or (starts and state == api_pb2.CONTAINER_RUNNING)
        return call.DONE if finished and self.operation is not Operation.REMOVE_CONTAINER else call.UNANSWERED

    def settable(
        self, changes: fields.Changes, subject: Subject, requested: Resources | None, adjustment: Adjustment
    ) -> fields.Changes:
        """Return the changes that an update can carry, in its values; report the fields that it cannot set."""
        values, unsupported = messages.values_for_update(
            changes,
            merge.container_of(subject).effective.resources,
            requested,
            accepts_unlimited_memory=self.shared.backend.accepts_unlimited_memory,
        )
        self.note_unsupported(unsupported, "an update", self.shared.metrics.count_unsettable_fields)
        self.shared.metrics.normalised(fields.converted(changes, values), adjustment.owners)
        return values


class RunPodCall(CriCall):
    """RunPodSandbox: the request describes the pod."""

    @read_once
    def requested(self) -> fields.PodInfo:
        return messages.read_pod(self.message)

    def order_key(self) -> str:
        return self.requested.full_name  # it has no id yet

    def subject(self, store: Store) -> Subject | None:
        return Subject(PodRecord(self.requested, self.requested))

    async def read_subject(self, store: Store) -> Subject | None:
        return self.subject(store)  # the runtime does not have it yet

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        values = messages.values_for_create(adjustment, self.requested.resources)
        if values is not adjustment:
            self.shared.metrics.normalised(fields.converted(adjustment.resources, values.resources), adjustment.owners)
        return messages.edit_pod(self.message, values)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        sent, pod_id = messages.values_for_create(adjustment, self.requested.resources), messages.read_id(reply.message)
        ignored = self.shared.backend.no_effect.get(self.operation)
        if ignored and sent.resources and self.requested.runtime_handler in no_effect.PLAIN_HANDLERS:
            return merge.created_pod(subject, self.effective_part(sent, ignored), pod_id, sent.resources)
        return merge.created_pod(subject, sent, pod_id)

    async def read_made(self, store: Store, made: Subject) -> PodRecord | None:
        return await self.read_pod(made.pod.effective.id, store)


class CreateCall(CriCall):
    """CreateContainer: the request describes the container, the Store has its pod."""

    _pod: PodRecord | None = None
    _subject: Subject | None = None
    """The container in ``_pod``."""

    @read_once
    def requested(self) -> tuple[fields.ContainerInfo, fields.PodInfo | None]:
        """The container, and the fields of its pod in this request."""
        return messages.read_container(self.message)

    def order_key(self) -> str:
        return self.requested[0].full_name  # it has no id yet

    def subject(self, store: Store, pod: PodRecord | None = None) -> Subject | None:
        """Return the container in ``pod``, else in its pod from the Store, with the pod's full id."""
        container, requested_pod = self.requested
        pod = pod or store.pod(container.pod_id) or store.pod(store.full_pod_id(container.pod_id))
        if pod is None:
            return None
        if self._subject is not None and self._pod is pod:
            return self._subject
        if container.pod_id != pod.effective.id:  # the request has a prefix of the id
            container = replace(container, pod_id=pod.effective.id)
            self.requested = container, requested_pod
        self._pod, self._subject = pod, merge.in_pod(pod, requested_pod, container)
        return self._subject

    async def read_subject(self, store: Store) -> Subject | None:
        pod = await self.read_pod(self.requested[0].pod_id, store)
        return None if pod is None else self.subject(store, pod)

    def unedited(self, store: Store) -> bool:
        return not store.changed_parents

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        parent = merge.cgroup_parent_to_set(subject.pod, adjustment)
        values = messages.values_for_create(adjustment, self.requested[0].resources)
        if values is not adjustment:
            self.shared.metrics.normalised(fields.converted(adjustment.resources, values.resources), adjustment.owners)
        return messages.edit_container(self.message, values, parent)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        sent = messages.values_for_create(adjustment, self.requested[0].resources)
        if sent and (ignored := self.shared.backend.no_effect.get(self.operation)):
            sent = self.effective_part(sent, ignored)
        return merge.created_container(subject, sent, messages.read_id(reply.message))

    async def read_made(self, store: Store, made: Subject) -> ContainerRecord | None:
        return await self.read_container(merge.container_of(made).effective.id, store)


class UpdatePodCall(PodCall):
    """UpdatePodSandboxResources has no hook point; it is held only to update the pod's record."""

    @read_once
    def requested(self) -> tuple[Resources | None, Resources | None]:
        return messages.read_pod_update(self.message)

    def order_key(self) -> str:
        _ = self.requested  # any part of the request that cannot be read raises here
        return self.id

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        pod, (overhead, resources) = subject.pod, self.requested
        original, effective = (
            replace(info, overhead=overhead or info.overhead, resources=resources or info.resources)
            for info in (pod.original, pod.effective)
        )
        return Subject(PodRecord(original, effective, pod.read, None if resources else pod.reported))


class StartCall(ContainerCall):
    """StartContainer: resources that a Pre hook sets go to the runtime in an UpdateContainerResources before it."""

    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, fields.ResourceValue]:
        """Update the created container, so that it starts with these resources (hook-api, PreStartContainer). If a
        failed update may have been applied, the call is ``state_unknown`` from then on."""
        current = merge.container_of(subject).effective.resources
        settable = self.settable(adjustment.resources, subject, None, adjustment)
        resources = {name: value for name, value in settable.items() if value}
        if not resources:
            return {}
        seconds = call.UPDATE_SECONDS if self.deadline is None else self.deadline - self.shared.clock()
        if seconds <= 0:
            raise BackendError("no time is left of the caller's deadline", BackendFailure.DEADLINE, not_done=True)
        request = messages.update_request(self.id, resources, current)
        try:
            await self.shared.backend.update(self.version, request, seconds)
        except BaseException as error:
            self.state_unknown |= not (isinstance(error, BackendError) and error.not_done)
            raise
        ignored = self.shared.backend.no_effect.get(Operation.UPDATE_CONTAINER_RESOURCES)
        return self.effective_part(Adjustment(resources=resources), ignored).resources if ignored else resources


class UpdateCall(ContainerCall):
    """UpdateContainerResources: hooks see the kubelet's original values, the runtime gets the changes (hook-api)."""

    @read_once
    def update(self) -> EffectiveUpdate:
        """The values of the request and those that ``edited`` added."""
        return EffectiveUpdate(RequestedUpdate(*messages.read_update(self.message)))

    def order_key(self) -> str:
        _ = self.update  # any part of the request that cannot be read raises here
        return self.id

    def hook_request(self, subject: Subject) -> fields.HookRequest:
        return merge.update_hook_request(subject, self.update.requested)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put each field into the message whose value would differ in the runtime after the unedited message."""
        differing = merge.differing(subject, self.update.requested, adjustment)
        resources = self.settable(differing, subject, self.update.requested.resources, adjustment)
        message = messages.edit_update(self.message, resources, adjustment.annotations)
        self.update = EffectiveUpdate(self.update.requested, resources, adjustment.annotations)
        return message

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        requested, put_in, added = self.update.requested, self.update.added_resources, self.update.annotations
        resources, annotations = messages.without_fixed_fields(requested.resources), requested.annotations
        if ignored := self.shared.backend.no_effect.get(self.operation):
            used = self.effective_part(Adjustment(annotations=added, resources=put_in), ignored)
            put_in, added = used.resources, used.annotations
            used, _ = no_effect.used(Adjustment(annotations=annotations, resources=fields.named(resources)), ignored)
            resources, annotations = Resources(**used.resources), used.annotations  # type: ignore[arg-type]
        requested = RequestedUpdate(requested.container_id, resources, annotations)
        return merge.updated(subject, EffectiveUpdate(requested, put_in, added), adjustment)


KINDS: dict[Operation, type[CriCall]] = {
    Operation.RUN_POD_SANDBOX: RunPodCall,
    Operation.STOP_POD_SANDBOX: PodCall,
    Operation.REMOVE_POD_SANDBOX: PodCall,
    Operation.UPDATE_POD_SANDBOX_RESOURCES: UpdatePodCall,
    Operation.CREATE_CONTAINER: CreateCall,
    Operation.START_CONTAINER: StartCall,
    Operation.UPDATE_CONTAINER_RESOURCES: UpdateCall,
    Operation.STOP_CONTAINER: ContainerCall,
    Operation.REMOVE_CONTAINER: ContainerCall,
}
