"""CRI's calls as the core sees them: one class a kind of operation.

Owns how a held stream's message becomes a subject, how an adjustment is put into it, what its outcome is.
Must not know: frames, windows, hook servers.
Invariant: a message that nobody changed is released as the very bytes that came.
"""

from abc import abstractmethod
from asyncio import AbstractEventLoop, Future
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from runtimeproxy import hookpoints, records
from runtimeproxy.call import NOT_DONE, Call, CallState, Reply, Unreadable
from runtimeproxy.cri import edit, fate, translate
from runtimeproxy.cri.backend import Backend
from runtimeproxy.cri.held import HeldStream
from runtimeproxy.errors import BackendError, HookError, Reason
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import (
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    HookRequest,
    PodInfo,
    PodRecord,
    ResourceValue,
    Subject,
    named,
    overlay,
)
from runtimeproxy.records import AskedUpdate
from runtimeproxy.store import Store
from runtimeproxy.telemetry import Recorder
from runtimeproxy.wire import grpc

UPDATE_SECONDS = 10.0
"""Time of the extra update of PreStartContainer where the caller gave no deadline."""


READ_FIRST_BYTES = 1 << 20
"""A longer message is read before it is released: else what the runtime takes at once would be there beside all forms
of the message. A shorter one is read while the runtime works."""


class CriCall(Call):
    """A held call; the subclasses know their messages."""

    def __init__(self, held: HeldStream, backend: Backend, recorder: Recorder, loop: AbstractEventLoop) -> None:
        self.operation: Operation = held.route.operation
        self.concerned = hookpoints.concerned(self.operation)
        self._held = held
        self._backend = backend
        self._recorder = recorder
        self._loop = loop
        self._version = held.route.version
        seconds = grpc.read_timeout(held.fields.get(b"grpc-timeout", b""))
        self.deadline: float | None = None if seconds is None else held.began + seconds
        self._reply: Future[Reply] = loop.create_future()
        held.on_reply = self._take_reply

    @property
    def message(self) -> bytes:
        """Return the request's message. Raises Unreadable."""
        if self._held.message is None:
            raise Unreadable(self._held.problem)
        return self._held.message

    @property
    def kept_bytes(self) -> int:
        """Return the message's length."""
        return len(self._held.message or b"")

    def _take_reply(self) -> None:
        if not self._reply.done() and self._held.reply is not None:
            self._reply.set_result(self._held.reply)

    @cached_property
    def id(self) -> str:
        """Return the id in the first field of the requests that have one. Raises Unreadable.

        Runtimes take the beginning of an id for it, too, as crictl's users type it: it is the whole one once the
        subject is known.
        """
        return translate.read_id(self.message)

    def order_key(self) -> str:
        """Name the subject by its id."""
        return self.id

    def hook_request(self, subject: Subject) -> HookRequest:
        """Tell what is known now."""
        return records.told(subject)

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Need nothing; StartContainer does."""
        return {}

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Return the message as it is released: the same object if nothing changes."""
        return self.message

    @property
    def has_left(self) -> bool:
        """Tell that the request is here: none leaves before the lifecycle has looked at it."""
        return False

    def unedited(self, store: Store) -> bool:
        """Know of nothing; CreateContainer does."""
        return True

    def release(self, subject: Subject | None, adjustment: Adjustment) -> Future[Reply]:
        """Edit and send on; the runtime's answer comes later."""
        message = self._held.message if subject is None else self.edited(subject, adjustment)
        if subject is None and message is not None and len(message) > READ_FIRST_BYTES:
            with suppress(Unreadable):
                self.order_key()
        self._held.release(None if message is self._held.message else message)
        return self._reply

    def refuse(self, error: HookError) -> None:
        """Answer PERMISSION_DENIED for a refusal, INTERNAL for a failure under policy Fail."""
        code = grpc.PERMISSION_DENIED if error.reason is Reason.REFUSED else grpc.INTERNAL
        self._held.refuse(code, f"runtimeproxy: {self.operation.value} refused: {error}")

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Leave the subject as it is."""
        return subject

    def answer(self, reply: Reply) -> None:
        """Let the kept frame go."""
        self._held.answer()

    def over(self) -> None:
        """Count nothing of the request any more."""
        self._held.free()

    async def settle(self, store: Store) -> Reply:
        """Ask the runtime, if it was given the request at all."""
        return await self._fate(store) if self._held.state is CallState.RELEASED else NOT_DONE

    @abstractmethod
    async def _fate(self, store: Store) -> Reply:
        """Ask the runtime what became of the call."""

    async def read_pod(self, pod_id: str, store: Store) -> PodRecord | None:
        """Read a pod from the runtime: what it tells is taken as the kubelet's original, too (design, section 6).

        What the Store knows under its whole id stands.
        """
        info = await self._backend.pod(self._version, pod_id)
        return None if info is None else store.pod(info.id) or PodRecord(info, info, read=True)

    async def read_container(self, container_id: str, store: Store) -> ContainerRecord | None:
        """Read a container from the runtime, in the same way."""
        info = await self._backend.container(self._version, container_id)
        return None if info is None else store.container(info.id) or ContainerRecord(info, info)


class PodCall(CriCall):
    """StopPodSandbox, RemovePodSandbox: a pod by its id."""

    def subject(self, store: Store) -> Subject | None:
        """Look the pod up."""
        pod = store.pod(self.id)
        if pod is None:
            self.id = store.whole_pod_id(self.id)
            pod = store.pod(self.id)
        return None if pod is None else Subject(pod)

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the runtime for the pod."""
        pod = await self.read_pod(self.id, store)
        if pod is None:
            return None
        self.id = pod.effective.id
        return Subject(pod)

    async def _fate(self, store: Store) -> Reply:
        """Tell by the pod's state."""
        return fate.of_pod(self.operation, await self._backend.pod_state(self._version, self.id))


class UpdatePodCall(PodCall):
    """UpdatePodSandboxResources: has no hook point, keeps the record right."""

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Take over what the request sets."""
        _, overhead, resources = translate.read_pod_update(self.message)

        def updated(pod: PodInfo) -> PodInfo:
            return replace(pod, overhead=overhead or pod.overhead, resources=resources or pod.resources)

        pod = subject.pod
        return Subject(PodRecord(updated(pod.original), updated(pod.effective), pod.read))

    async def _fate(self, store: Store) -> Reply:
        """Tell by the pod's resources."""
        _, overhead, resources = translate.read_pod_update(self.message)
        return fate.of_pod_update(await self._backend.pod(self._version, self.id), overhead, resources)


class RunPodCall(CriCall):
    """RunPodSandbox: the pod is in the request."""

    @cached_property
    def asked(self) -> PodInfo:
        """Return the pod as the kubelet asks for it. Raises Unreadable."""
        return translate.read_pod(self.message)

    def order_key(self) -> str:
        """Name the pod by what the kubelet calls it: it has no id yet."""
        return f"{self.asked.namespace}/{self.asked.name}/{self.asked.uid}/{self.asked.attempt}"

    def subject(self, store: Store) -> Subject | None:
        """Read the pod."""
        return Subject(PodRecord(self.asked, self.asked))

    async def read_subject(self, store: Store) -> Subject | None:
        """Need nobody: the request has it all."""
        return self.subject(store)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the sandbox config."""
        return edit.edit_pod(self.message, adjustment)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        return records.created_pod(subject, adjustment, translate.read_id(reply.message))

    async def _fate(self, store: Store) -> Reply:
        """Look for the pod among those that the runtime has."""
        return fate.of_run_pod(self.asked, await self._backend.pods(self._version), store)


class CreateCall(CriCall):
    """CreateContainer: the container is in the request, its pod in the Store."""

    @cached_property
    def asked(self) -> tuple[ContainerInfo, str]:
        """Return the container as the kubelet asks for it, and the cgroup parent that this request gives its pod.

        Raises Unreadable.
        """
        return translate.read_container(self.message)

    def order_key(self) -> str:
        """Name the container by its pod and name: it has no id yet."""
        container, _ = self.asked
        return f"{container.pod_id}/{container.name}/{container.attempt}"

    def subject(self, store: Store) -> Subject | None:
        """Look the pod up."""
        container, _ = self.asked
        return self._in(store.pod(container.pod_id) or store.pod(store.whole_pod_id(container.pod_id)))

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the runtime for the pod."""
        container, _ = self.asked
        return self._in(await self.read_pod(container.pod_id, store))

    def _in(self, pod: PodRecord | None) -> Subject | None:
        """Return the container in its pod; the kubelet's own cgroup parent of that stands in the request."""
        if pod is None:
            return None
        container, cgroup_parent = self.asked
        if container.pod_id != pod.effective.id:  # but its beginning
            container = replace(container, pod_id=pod.effective.id)
            self.asked = container, cgroup_parent
        return Subject(records.pod_of_create(pod, cgroup_parent), ContainerRecord(container, container))

    def unedited(self, store: Store) -> bool:
        """Tell that no pod has a cgroup parent that a hook gave it."""
        return not store.has_moved_pods

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the container config, and the pod's cgroup parent where a hook changed it."""
        parent = records.parent_to_put_in(subject.pod, adjustment)
        return edit.edit_container(self.message, adjustment, parent)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        return records.created_container(subject, adjustment, translate.read_id(reply.message))

    async def _fate(self, store: Store) -> Reply:
        """Look for the container among those of its pod."""
        container, _ = self.asked
        return fate.of_create(container, await self._backend.containers(self._version, container.pod_id), store)


class ContainerCall(CriCall):
    """StopContainer, RemoveContainer: a container by its id, with its pod."""

    def subject(self, store: Store) -> Subject | None:
        """Look the container and its pod up."""
        container = store.container(self.id)
        if container is None:
            self.id = store.whole_container_id(self.id)
            container = store.container(self.id)
        pod = None if container is None else store.pod(container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the runtime for what the Store lacks."""
        container = store.container(self.id) or await self.read_container(self.id, store)
        if container is None:
            return None
        self.id = container.effective.id
        pod_id = container.effective.pod_id
        pod = store.pod(pod_id) or await self.read_pod(pod_id, store)
        return None if pod is None else Subject(pod, container)

    async def _fate(self, store: Store) -> Reply:
        """Tell by the container's state."""
        return fate.of_container(self.operation, await self._backend.container_state(self._version, self.id))


class StartCall(ContainerCall):
    """StartContainer: a Pre hook's resources go ahead of it in an update of their own."""

    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Update the created container: that holds from its first instruction on (hook-api, PreStartContainer)."""
        present = records.container_of(subject).effective.resources
        said = edit.said_in_update(adjustment.resources, present)
        self._recorder.left_out(self.operation.value, said.left_out, by="an update")
        resources = {name: value for name, value in said.resources.items() if value}
        if not resources:
            return {}
        seconds = UPDATE_SECONDS if self.deadline is None else self.deadline - self._loop.time()
        if seconds <= 0:
            raise BackendError("no time is left of the caller's deadline", grpc.DEADLINE_EXCEEDED, not_done=True)
        request = edit.update_request(self.id, resources, present)
        try:
            await self._backend.update(self._version, request, seconds)
        except BaseException as error:
            self.unsure = not (isinstance(error, BackendError) and error.not_done)
            raise
        return resources


class UpdateCall(ContainerCall):
    """UpdateContainerResources: hooks see the kubelet's originals, the runtime gets what differs (hook-api)."""

    _put_in: Mapping[str, ResourceValue] = {}
    """The fields that ``edited`` set in the message."""

    @cached_property
    def asked(self) -> AskedUpdate:
        """Return what the request asks for. Raises Unreadable."""
        return AskedUpdate(*translate.read_update(self.message))

    def order_key(self) -> str:
        """Name the container; a request that cannot be read to its end is no request to change."""
        _ = self.asked
        return self.id

    def hook_request(self, subject: Subject) -> HookRequest:
        """Tell the record's original values overlaid by what this request sets."""
        return records.told_of_update(subject, self.asked)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put in each field whose result differs from what the runtime would hold after these bytes alone."""
        differing = records.differing(subject, self.asked, adjustment)
        said = edit.said_in_update(differing, records.container_of(subject).effective.resources)
        self._recorder.left_out(self.operation.value, said.left_out, by="an update")
        message = edit.edit_update(self.message, said.resources, adjustment.annotations)
        self._put_in = said.resources
        return message

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Keep the kubelet's values and the runtime's apart."""
        return records.updated(subject, self.asked, adjustment, self._put_in)

    async def _fate(self, store: Store) -> Reply:
        """Tell by the container's resources."""
        wanted = named(overlay(self.asked.resources, self._put_in))
        return fate.of_update(await self._backend.container(self._version, self.id), wanted)


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
