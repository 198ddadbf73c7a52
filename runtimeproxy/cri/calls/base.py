"""The base classes of CRI's held calls: one class for each kind of operation.

Owns how a held message becomes a subject, how an adjustment is put into it, what its outcome is.
Must not know: frames, windows, hook servers.
Invariant: an unchanged message is released as exactly the bytes that came.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass

from runtimeproxy.core.call import DONE, GONE, NOT_DONE, UNANSWERED, CallState, Life, Reply, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.cri import api_pb2, translate
from runtimeproxy.cri.backend import Backend
from runtimeproxy.cri.held import CriHeld
from runtimeproxy.cri.streams import Shared
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model import hookpoints, no_effect, records
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.no_effect import Fields
from runtimeproxy.model.values import Adjustment, ContainerRecord, PodRecord, Subject
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.wire import grpc

log = logging.getLogger(__name__)

READ_FIRST_BYTES = 1 << 20
"""A longer message is parsed before it is released, since parsing it afterwards would keep the bytes queued for the
runtime in memory together with every parsed form. A shorter one is parsed while the runtime works."""


@dataclass(frozen=True, slots=True)
class Runtime(Shared):
    """What the calls of all connections share."""

    backend: Backend
    metrics: Metrics


class CriCall(CriHeld):
    """What the calls of all operations have in common; each subclass reads one kind of message."""

    shared: Runtime

    def may_be_repeated(self) -> bool:
        """Return whether CRI-O may still answer with what a create of an earlier process made."""
        return self.shared.clock() < self.shared.backend.repeats_until

    @property
    def message(self) -> bytes:
        """Return the request's message. Raises Unreadable."""
        if self._message is None:
            raise Unreadable(self.problem)
        return self._message

    @read_once
    def id(self) -> str:
        """Return the id in the request's first field. Raises Unreadable. Runtimes also accept the beginning of an id,
        as crictl's users type it; once the subject is known this is the full id.
        """
        return translate.read_id(self.message)

    def order_key(self) -> str:
        """Return the subject's id. Raises Unreadable."""
        return self.id

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Return the message to release: the same object if nothing changes."""
        return self.message

    def used(self, sent: Adjustment, unused: Fields) -> Adjustment:
        """Return the part of what was sent that the runtime uses; the rest is logged, and recorded with the call."""
        used, lost = no_effect.used(sent, unused)
        if lost:
            runtime = self.shared.backend.runtime_name
            self.no_effect += ((f"sent, no effect in {runtime}", lost),)
            operation, names = self.operation.value, ", ".join(sorted(lost))
            extra = {"kind": (operation, names), "call": self.call_id}
            log.info("%s: %s: sent, no effect in %s", operation, names, runtime, extra=extra)
        return used

    def leave_out(self, names: tuple[str, ...]) -> None:
        """Report the resource fields that a hook server set and that an update cannot set."""
        self.no_effect += (("left out: an update cannot set it", frozenset(f"resources.{name}" for name in names)),)
        self.shared.metrics.left_out(self.operation.value, names, by="an update", call=self.call_id)

    def release(self, subject: Subject | None, adjustment: Adjustment) -> None:
        """Edit the message and send it on."""
        message = self._message if subject is None else self.edited(subject, adjustment)
        if subject is None and message is not None and len(message) > READ_FIRST_BYTES:
            with suppress(Unreadable):
                self.order_key()
        self.send_request(None if message is self._message else message)

    def refuse(self, error: HookError) -> None:
        """Answer PERMISSION_DENIED for a refusal, INTERNAL for a failure under policy Fail."""
        code = grpc.PERMISSION_DENIED if error.reason is Reason.REFUSED else grpc.INTERNAL
        self.send_refusal(code, f"runtimeproxy: {self.operation.value} refused: {error}")

    def release_buffers(self) -> None:
        """Return the request's bytes to the memory budget. Of a call that changes no record the message is dropped,
        too: it may wait for minutes until its unknown outcome is read from the runtime.
        """
        self.free()
        if self.operation in hookpoints.UNRECORDED:
            self._message = None

    async def read_pod(self, pod_id: str, store: Store) -> PodRecord | None:
        """Read a pod from the runtime; a record that the Store has under the full id takes precedence."""
        info = await self.shared.backend.pod(self.version, pod_id)
        return None if info is None else store.read_pod(info)

    async def read_container(self, container_id: str, store: Store) -> ContainerRecord | None:
        """Read a container from the runtime; a record that the Store has under the full id takes precedence."""
        info = await self.shared.backend.container(self.version, container_id)
        return None if info is None else store.read_container(info)

    async def life(self, container_id: str) -> Life | None:
        """Read whether a container was started and runs, from its status."""
        return await self.shared.backend.container_life(self.version, container_id)


class PodCall(CriCall):
    """StopPodSandbox, RemovePodSandbox: the request names a pod by its id."""

    removes_containers = True

    def subject(self, store: Store) -> Subject | None:
        """Return the pod from the Store, by its id or the beginning of it."""
        pod = store.pod(self.id)
        if pod is None:
            self.id = store.whole_pod_id(self.id)
            pod = store.pod(self.id)
        return None if pod is None else Subject(pod)

    async def read_subject(self, store: Store) -> Subject | None:
        """Read the pod from the runtime."""
        pod = await self.read_pod(self.id, store)
        if pod is None:
            return None
        self.id = pod.effective.id
        return Subject(pod)

    async def settle(self) -> Reply:
        """Return the outcome of an unanswered stop or remove, read from the pod's state."""
        if self.state is not CallState.RELEASED:
            return NOT_DONE
        state = await self.shared.backend.pod_state(self.version, self.id)
        if state is None:
            return GONE
        stopped = state == api_pb2.SANDBOX_NOTREADY
        return DONE if stopped and self.operation is Operation.STOP_POD_SANDBOX else UNANSWERED


class ContainerCall(CriCall):
    """StopContainer, RemoveContainer: the request names a container by its id."""

    def subject(self, store: Store) -> Subject | None:
        """Return the container, by its id or the beginning of it, and its pod from the Store."""
        container = store.container(self.id)
        if container is None:
            self.id = store.whole_container_id(self.id)
            container = store.container(self.id)
        pod = None if container is None else store.pod(container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read_subject(self, store: Store) -> Subject | None:
        """Read from the runtime what the Store lacks of the container and its pod."""
        container = store.container(self.id) or await self.read_container(self.id, store)
        if container is None:
            return None
        self.id = container.effective.id
        pod_id = container.effective.pod_id
        pod = store.pod(pod_id) or await self.read_pod(pod_id, store)
        return None if pod is None else records.subject_of_read(pod, container)

    async def settle(self) -> Reply:
        """Return the outcome of an unanswered start, stop or remove, read from the container's state."""
        if self.state is not CallState.RELEASED:
            return NOT_DONE
        starts = self.operation is Operation.START_CONTAINER
        state = await self.shared.backend.container_state(self.version, self.id)
        if state is None:
            return NOT_DONE if starts else GONE
        ran = state == api_pb2.CONTAINER_EXITED or (starts and state == api_pb2.CONTAINER_RUNNING)
        return DONE if ran and self.operation is not Operation.REMOVE_CONTAINER else UNANSWERED
