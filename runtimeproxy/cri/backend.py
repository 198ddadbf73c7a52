"""The CRI calls that the proxy itself makes: lists and status of pods and containers, PreStart's extra update.

A pod or container that does not exist is None; any other failure is a BackendError. ``CriState`` reads the state for
``core.sync`` in v1 if the runtime has that (docs/architecture.rst).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.cri import api_pb2, messages, status
from runtimeproxy.cri.routes import VERSIONS, runtime_path
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model import merge, no_effect
from runtimeproxy.model.fields import ContainerInfo, PodInfo, PodRecord, Subject
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.no_effect import Fields
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.wire import grpc

STATUS_SECONDS = 10.0
REPEATS_SECONDS = 300.0
"""Seconds after the start in which the runtime may still work on an earlier process's create: two minutes are the
kubelet's deadline, the remainder is for a slow runtime."""
REPLY_LIMIT = 16 * 2**20
ITEMS_PER_ITERATION = 200
"""Items of a list that are read before the event loop may serve calls."""

_INTERRUPTED = frozenset({grpc.CANCELLED, grpc.UNAVAILABLE})
"""gRPC statuses of a runtime that was interrupted, and did not reject the call."""
_ACCEPT_UNLIMITED = frozenset({"containerd"})
"""Names of runtimes that pass a memory limit of -1 to runc; CRI-O and cri-dockerd reject it."""
_REPEAT_CREATES = frozenset({"cri-o"})
"""Names of runtimes that finish a create after its caller has disconnected, and return the result to the next create
with its name (CRI-O's resourcestore). containerd and dockerd refuse a name that is in use."""
_UNRELATED = _INTERRUPTED | {grpc.DEADLINE_EXCEEDED, grpc.RESOURCE_EXHAUSTED, grpc.UNIMPLEMENTED}
"""Statuses that do not concern a single pod or container."""
_FAILURES = {
    grpc.UNAVAILABLE: BackendFailure.UNAVAILABLE,
    grpc.DEADLINE_EXCEEDED: BackendFailure.DEADLINE,
    grpc.UNIMPLEMENTED: BackendFailure.UNIMPLEMENTED,
}


class _Kind(NamedTuple):
    method: str
    list_method: str
    listed: Callable[[bytes], Iterator[PodInfo] | Iterator[ContainerInfo]]


_POD = _Kind("PodSandboxStatus", "ListPodSandbox", status.pods)
_CONTAINER = _Kind("ContainerStatus", "ListContainers", status.containers)


class Backend:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._client = UnaryClient(endpoint, max_reply_bytes=REPLY_LIMIT)
        self.accepts_unlimited_memory = False
        """True if the runtime accepts -1 in an update as "no memory limit"; False until that is known."""
        self.runtime_name = ""
        self.no_effect: Mapping[Operation, Fields] = {}
        self.repeats_until = 0.0
        """Time on the event loop's clock until which the runtime may answer a create with the result of an earlier
        process's create."""
        self._serves_cri = False

    async def identify(self, version: str) -> None:
        """Read the runtime's name and version, and set the attributes by them; a failed call changes nothing."""
        if reply := await self._version(version):
            self.runtime_name = reply.runtime_name
            self.accepts_unlimited_memory = reply.runtime_name in _ACCEPT_UNLIMITED
            self.no_effect = no_effect.of_runtime(reply.runtime_name, reply.runtime_version)
            if reply.runtime_name in _REPEAT_CREATES and not self.repeats_until:
                self.repeats_until = asyncio.get_running_loop().time() + REPEATS_SECONDS

    async def serves_cri(self) -> bool:
        """Return whether the runtime answers Version on a separate connection, or has answered it here before."""
        if not self._serves_cri:
            separate = Backend(self._endpoint)
            try:
                replies = [await separate._version(version) for version in VERSIONS]
            finally:
                await separate.close()
            self._serves_cri = any(reply and reply.runtime_name for reply in replies)
        return self._serves_cri

    async def _version(self, version: str) -> api_pb2.VersionResponse | None:
        with suppress(BackendError, Unreadable):
            return messages.decode(api_pb2.VersionResponse, await self._query(version, "Version", b""))
        return None

    # A pod or container and its state; None if there is none. All of these raise BackendError, Unreadable.

    async def pod(self, version: str, pod_id: str) -> PodInfo | None:
        reply = await self._status(version, _POD, pod_id)
        return None if reply is None else status.read_pod_status(reply, pod_id)

    async def container(self, version: str, container_id: str) -> ContainerInfo | None:
        """Read a container, with its pod's id from ListContainers if the verbose ContainerStatus lacks it."""
        reply = await self._status(version, _CONTAINER, container_id)
        if reply is None:
            return None
        info = status.read_container_status(reply, container_id)
        if info.pod_id:
            return info
        for listed in status.containers(await self._list(version, _CONTAINER, info.id)):
            if listed.id == info.id and not listed.pod_id:
                raise Unreadable("neither ContainerStatus nor ListContainers names the container's pod")
            if listed.id == info.id:
                return replace(info, pod_id=listed.pod_id)
        return None

    async def pod_state(self, version: str, pod_id: str) -> api_pb2.PodSandboxState | None:
        reply = await self._status(version, _POD, pod_id, verbose=False)
        return None if reply is None else status.read_pod_state(reply)

    async def container_state(self, version: str, container_id: str) -> api_pb2.ContainerState | None:
        reply = await self._status(version, _CONTAINER, container_id, verbose=False)
        return None if reply is None else status.read_container_state(reply)

    async def container_life(self, version: str, container_id: str) -> Life | None:
        reply = await self._status(version, _CONTAINER, container_id, verbose=False)
        return None if reply is None else status.read_container_life(reply)

    # All pods or containers, by id and metadata. Raises BackendError; the iterator raises Unreadable.

    async def pods(self, version: str) -> Iterator[PodInfo]:
        return status.pods(await self._list(version, _POD))

    async def containers(self, version: str) -> Iterator[ContainerInfo]:
        return status.containers(await self._list(version, _CONTAINER))

    async def _status(self, version: str, kind: _Kind, any_id: str, *, verbose: bool = True) -> bytes | None:
        """Read a status, verbose first, then plain; None if there is no such pod or container.

        The verbose part has other sources, which may fail alone: then containerd's sandbox controllers answer NOT_FOUND
        for a pod that exists. Not every runtime answers NOT_FOUND for a missing pod or container (cri-dockerd:
        UNKNOWN), so after another status a list decides."""
        for is_verbose in (True, False) if verbose else (False,):
            try:
                request = status.status_request(any_id, verbose=is_verbose)
                return await self._client.call(runtime_path(version, kind.method), request, STATUS_SECONDS)
            except CallFailed as error:
                if error.code in _UNRELATED:
                    raise _backend_error(kind.method, error) from None
                last_error = error
        if last_error.code == grpc.NOT_FOUND:
            return None
        if any(item.id.startswith(any_id) for item in kind.listed(await self._list(version, kind, any_id))):
            raise _backend_error(kind.method, last_error)
        return None

    async def _list(self, version: str, kind: _Kind, any_id: str = "") -> bytes:
        return await self._query(version, kind.list_method, status.list_request(any_id))

    async def _query(self, version: str, method: str, request: bytes) -> bytes:
        try:
            return await self._client.call(runtime_path(version, method), request, STATUS_SECONDS)
        except CallFailed as error:
            raise _backend_error(method, error) from None

    async def update(self, version: str, request: bytes, seconds: float) -> None:
        """Send the proxy's own UpdateContainerResources, with a timeout in seconds. Raises BackendError, whose
        ``not_done`` is True if the runtime certainly did not apply the update."""
        try:
            await self._client.call(runtime_path(version, "UpdateContainerResources"), request, seconds)
        except CallFailed as error:
            rejected = error.kind is Kind.STATUS and error.code not in _INTERRUPTED
            not_done = rejected or error.kind is Kind.UNREACHABLE
            failure = _FAILURES.get(error.code, BackendFailure.OTHER)
            raise BackendError(f"UpdateContainerResources: {error}", failure, not_done=not_done) from None

    async def close(self) -> None:
        await self._client.close()


def _backend_error(method: str, error: CallFailed) -> BackendError:
    """Return the error of a call for the log, without the runtime's text, which may repeat values."""
    reason = f"gRPC status {error.code}" if error.kind is Kind.STATUS else str(error)
    return BackendError(f"{method}: {reason}", _FAILURES.get(error.code, BackendFailure.OTHER))


class CriState:
    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._version = VERSIONS[0]

    async def listed(self) -> Listed:
        """Return all ids, and identify the runtime and its CRI version. Raises BackendError, Unreadable."""
        try:
            return await self._listed(VERSIONS[0])
        except BackendError as error:
            if error.kind is not BackendFailure.UNIMPLEMENTED:
                raise
        return await self._listed(VERSIONS[1])

    async def _listed(self, version: str) -> Listed:
        pods = await self._backend.pods(version)
        self._version = version
        await self._backend.identify(version)
        return Listed(await _ids(self._drop_lost(pods)), await _ids(await self._backend.containers(version)))

    def _drop_lost(self, pods: Iterator[PodInfo]) -> Iterator[PodInfo]:
        """Yield the pods. Drop each pod whose id now has another uid, with its containers: the state was lost."""
        for pod in pods:
            stored = self._store.pod(pod.id)
            if stored is not None and pod.uid and stored.effective.uid not in ("", pod.uid):
                for container in self._store.containers_of(pod.id):
                    self._store.drop(container.effective.id)
                self._store.drop(pod.id)
            yield pod

    async def pod(self, pod_id: str) -> PodRecord | None:
        info = await self._backend.pod(self._version, pod_id)
        return None if info is None else self._store.read_pod(info)

    async def container(self, container_id: str) -> Subject | None:
        """Read a container, and its pod unless the Store has it. Raises BackendError, Unreadable."""
        info = await self._backend.container(self._version, container_id)
        if info is None:
            return None
        pod = self._store.pod(info.pod_id) or await self.pod(info.pod_id)
        return None if pod is None else merge.subject_of_read(pod, self._store.read_container(info))


async def _ids(items: Iterator[PodInfo] | Iterator[ContainerInfo]) -> list[str]:
    ids: list[str] = []
    for item in items:
        ids.append(item.id)
        if len(ids) % ITEMS_PER_ITERATION == 0:
            await asyncio.sleep(0)
    return ids
