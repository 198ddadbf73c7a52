"""The core between calls without connections and a fake runtime, for tests of CRI's calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from runtimeproxy.core.call import CallState, HeldCall, Life, MemoryBudget, Reply
from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.calls import KINDS, CriShared
from runtimeproxy.cri.frame_relay import Streams
from runtimeproxy.cri.reader import CriHeld
from runtimeproxy.cri.routes import Route
from runtimeproxy.errors import BackendError
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.wire import headers
from tests.fakes import cri_pb2 as cri
from tests.fakes.core import Parts

UPDATE = Operation.UPDATE_CONTAINER_RESOURCES
UNKNOWN_FIELD = b"\xfa\x3e\x03new"
"""Field 1007 of any message, which is unknown."""

NAMES: dict[str, Any] = {"name": "web", "uid": "u-1", "namespace": "shop", "attempt": 1}
POD_REQUEST = cri.RunPodSandboxRequest(
    runtime_handler="runc",
    config=cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(**NAMES),
        labels={"qos": "BE"},
        linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kube/u-1"),
    ),
)
CREATE_REQUEST = cri.CreateContainerRequest(
    pod_sandbox_id="p1",
    sandbox_config=POD_REQUEST.config,
    config=cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main", attempt=2),
        envs=[cri.KeyValue(key="A", value=b"1"), cri.KeyValue(key="RAW", value=b"\xff")],
        linux=cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(cpu_shares=1024, cpuset_cpus="0-3")),
    ),
)
POD = PodInfo(id="p1", **NAMES, runtime_handler="runc", labels={"qos": "BE"}, cgroup_parent="/kube/u-1")
REQUESTED = Resources(cpu_shares=1024, cpuset_cpus="0-3")
CONTAINER = ContainerInfo(id="c1", pod_id="p1", name="main", attempt=2, envs={"A": "1"}, resources=REQUESTED)

USUAL = Reply(agreed=True, message=b"")
REPLIES: dict[Operation, Message] = {
    Operation.RUN_POD_SANDBOX: cri.RunPodSandboxResponse(pod_sandbox_id="p1"),
    Operation.CREATE_CONTAINER: cri.CreateContainerResponse(container_id="c1"),
}
NO_QUOTA = cri.LinuxContainerResources(cpu_quota=-1)
UPDATED_POD = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p1", resources=NO_QUOTA)
UPDATED = cri.LinuxContainerResources(memory_limit_in_bytes=2**20)
REQUESTS: dict[Operation, Message] = {
    Operation.RUN_POD_SANDBOX: POD_REQUEST,
    Operation.STOP_POD_SANDBOX: cri.StopPodSandboxRequest(pod_sandbox_id="p1"),
    Operation.REMOVE_POD_SANDBOX: cri.RemovePodSandboxRequest(pod_sandbox_id="p1"),
    Operation.UPDATE_POD_SANDBOX_RESOURCES: UPDATED_POD,
    Operation.CREATE_CONTAINER: CREATE_REQUEST,
    Operation.START_CONTAINER: cri.StartContainerRequest(container_id="c1"),
    UPDATE: cri.UpdateContainerResourcesRequest(container_id="c1", linux=UPDATED),
    Operation.STOP_CONTAINER: cri.StopContainerRequest(container_id="c1", timeout=30),
    Operation.REMOVE_CONTAINER: cri.RemoveContainerRequest(container_id="c1"),
}


def wire(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True) + UNKNOWN_FIELD


class FakeFraming(CriHeld):
    """Replaces the HTTP/2 stream of a held call; it answers a release with ``given``, unless that is None."""

    answers = 0

    def take(self, message: bytes | None, given: Reply | None, proceed: Callable[[HeldCall], None]) -> None:
        self._message, self.given, self.proceed = message, given, proceed
        self.released: list[bytes | None] = []
        self.refused: list[tuple[int, str]] = []

    def send_request(self, message: bytes | None) -> bool:
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        self.released.append(message)
        if self.given is not None:
            self.settle_with(self.given)
        return True

    def send_refusal(self, code: int, text: str) -> bool:
        self.state = CallState.REFUSED
        self.refused.append((code, text))
        return True

    def answer(self) -> None:
        self.answers = 1  # for any number of calls

    def free_budget(self) -> None:
        assert self.answers, "what is counted of a request is counted until its call is over"

    def settle_with(self, reply: Reply) -> None:
        self.reply = reply
        self.proceed(self)

    def end_stream(self) -> None:
        """Simulate the end of the stream by either side while it is held."""
        self.state = CallState.ENDED
        self.settle_with(Reply(agreed=False, answered=False))


@dataclass(eq=False)
class FakeBackend:
    """The runtime's state, and the received updates."""

    known_pods: dict[str, PodInfo] = field(default_factory=dict)
    known_containers: dict[str, ContainerInfo] = field(default_factory=dict)
    pod_is: api_pb2.PodSandboxState = api_pb2.SANDBOX_READY
    container_is: api_pb2.ContainerState = api_pb2.CONTAINER_RUNNING
    error: BackendError | None = None
    queried: list[tuple[str, str]] = field(default_factory=list)
    updates: list[tuple[str, bytes, float]] = field(default_factory=list)
    accepts_unlimited_memory: bool = True
    runtime_name: str = ""
    no_effect: dict[Operation, frozenset[str]] = field(default_factory=dict)
    repeats_until: float = 0.0

    def _query(self, version: str, any_id: str, value: Any) -> Any:
        self.queried.append((version, any_id))
        return value

    async def pod(self, version: str, pod_id: str) -> PodInfo | None:
        return self._query(version, pod_id, self.known_pods.get(pod_id))

    async def container(self, version: str, container_id: str) -> ContainerInfo | None:
        return self._query(version, container_id, self.known_containers.get(container_id))

    async def pod_state(self, version: str, pod_id: str) -> api_pb2.PodSandboxState | None:
        return self._query(version, pod_id, self.pod_is if pod_id in self.known_pods else None)

    async def container_state(self, version: str, container_id: str) -> api_pb2.ContainerState | None:
        return self._query(version, container_id, self.container_is if container_id in self.known_containers else None)

    async def container_life(self, version: str, container_id: str) -> Life | None:
        state = await self.container_state(version, container_id)
        running = state == api_pb2.CONTAINER_RUNNING
        return None if state is None else Life(state != api_pb2.CONTAINER_CREATED, running)

    async def update(self, version: str, request: bytes, seconds: float) -> None:
        self.updates.append((version, request, seconds))
        if self.error is not None:
            raise self.error


class Node(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.backend = FakeBackend()

    def shared(self) -> CriShared:
        backend: Any = self.backend
        return CriShared(
            *(MemoryBudget(), self.loop.time, {}, KINDS, False),
            start_and_stop_pass=self.lifecycle.start_and_stop_pass,
            passes_ambiguous=lambda: True,
            restore_refusal=str,
            backend=backend,
            metrics=self.metrics,
        )

    def held(
        self,
        operation: Operation,
        message: bytes | Message | None = None,
        version: str = "v1",
        timeout: bytes | None = None,
        given: Reply | None = USUAL,
    ) -> Any:
        """Return a call of an operation, with the message or the usual one; ``timeout`` is its grpc-timeout."""
        if given is USUAL and operation in REPLIES:
            given = Reply(agreed=True, message=REPLIES[operation].SerializeToString())
        chosen = REQUESTS[operation] if message is None else message
        message = wire(chosen) if isinstance(chosen, Message) else chosen
        fields = [] if timeout is None else headers.walk(headers.build([(b"grpc-timeout", timeout)]))
        kind: Any = type("FakeCall", (FakeFraming, KINDS[operation]), {})
        call = kind(Streams(self.shared(), lambda: None), Route(operation, version), 1, fields, True)
        call.take(message, given, self.lifecycle.proceed)
        return call

    async def run(self, call: Any) -> Any:
        await self.lifecycle.proceed(call)
        return call

    async def do(self, operation: Operation, message: bytes | Message | None = None) -> Any:
        return await self.run(self.held(operation, message))

    def know(self, pod: PodInfo = POD, container: ContainerInfo = CONTAINER, **original: Any) -> None:
        """Put a container with its pod into the Store; ``original`` are fields of the kubelet's container."""
        self.store.commit(Subject(PodRecord(pod, pod)))
        self.store.commit(Subject(PodRecord(pod, pod), ContainerRecord(replace(container, **original), container)))

    @property
    def record(self) -> ContainerRecord:
        record = self.store.container("c1")
        assert record is not None
        return record

    @property
    def pod(self) -> PodRecord:
        pod = self.store.pod("p1")
        assert pod is not None
        return pod

    def notified(self, index: int = -1) -> ContainerInfo:
        container = self.plugins.queried[index].request.container
        assert container is not None
        return container


def changes(released: bytes | None, kind: type[Any]) -> Any:
    """Return the parsed released message, which must still contain the unknown field."""
    assert released is not None
    assert UNKNOWN_FIELD in released
    return kind.FromString(released)
