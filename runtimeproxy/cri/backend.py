"""What the CRI front asks the runtime itself: lists and status of pods and containers, PreStart's extra update.

Owns these calls and their errors.
Must not know: held streams, the Store.
Invariant: NotFound is an answer (None); everything else that fails is a BackendError.
"""

from collections.abc import Iterator
from dataclasses import replace

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2, listing, status
from runtimeproxy.cri.routes import runtime_path
from runtimeproxy.errors import BackendError
from runtimeproxy.model import ContainerInfo, PodInfo
from runtimeproxy.relay.unary import CallFailed, Kind, UnaryClient
from runtimeproxy.wire import grpc

STATUS_SECONDS = 10.0
REPLY_LIMIT = 16 * 2**20

_BROKEN_OFF = frozenset({grpc.CANCELLED, grpc.UNAVAILABLE})
"""Statuses by which a runtime says that it was not allowed to finish, and not that it refuses."""


class Backend:
    """A client of the runtime's own socket."""

    def __init__(self, endpoint: str) -> None:
        self._client = UnaryClient(endpoint, max_reply_bytes=REPLY_LIMIT)

    async def pod(self, version: str, pod_id: str) -> PodInfo | None:
        """Read a pod sandbox; None if there is none. Raises BackendError, Unreadable."""
        reply = await self._status(version, "PodSandboxStatus", status.pod_status_request(pod_id))
        return None if reply is None else status.read_pod_status(reply)

    async def container(self, version: str, container_id: str) -> ContainerInfo | None:
        """Read a container; None if there is none. Raises BackendError, Unreadable, also if nobody tells its pod."""
        reply = await self._status(version, "ContainerStatus", status.container_status_request(container_id))
        if reply is None:
            return None
        info = status.read_container_status(reply)
        return info if info.pod_id else await self._with_pod(version, info)

    async def _with_pod(self, version: str, info: ContainerInfo) -> ContainerInfo | None:
        """Look in the list for a container's pod: a status need not name it, its verbose part is the runtime's own."""
        request = listing.containers_request(container_id=info.id)
        for listed in listing.containers(await self._ask(version, "ListContainers", request)):
            if listed.id == info.id and not listed.pod_id:
                raise Unreadable("neither ContainerStatus nor ListContainers names the container's pod")
            if listed.id == info.id:
                return replace(info, pod_id=listed.pod_id)
        return None

    async def pod_state(self, version: str, pod_id: str) -> api_pb2.PodSandboxState | None:
        """Read whether a pod sandbox is ready; None if there is none. Raises BackendError, Unreadable."""
        request = status.pod_status_request(pod_id, verbose=False)
        reply = await self._status(version, "PodSandboxStatus", request)
        return None if reply is None else status.read_pod_state(reply)

    async def container_state(self, version: str, container_id: str) -> api_pb2.ContainerState | None:
        """Read how far a container is; None if there is none. Raises BackendError, Unreadable."""
        request = status.container_status_request(container_id, verbose=False)
        reply = await self._status(version, "ContainerStatus", request)
        return None if reply is None else status.read_container_state(reply)

    async def pods(self, version: str) -> Iterator[PodInfo]:
        """List all pod sandboxes, by id and metadata. Raises BackendError; the iterator raises Unreadable."""
        return listing.pods(await self._ask(version, "ListPodSandbox", listing.PODS_REQUEST))

    async def containers(self, version: str, pod_id: str = "") -> Iterator[ContainerInfo]:
        """List all containers, or those of a pod, by id and metadata.

        Raises BackendError; the iterator raises Unreadable.
        """
        return listing.containers(await self._ask(version, "ListContainers", listing.containers_request(pod_id)))

    async def _status(self, version: str, method: str, request: bytes) -> bytes | None:
        try:
            return await self._ask(version, method, request)
        except BackendError as error:
            if error.code == grpc.NOT_FOUND:
                return None
            raise

    async def _ask(self, version: str, method: str, request: bytes) -> bytes:
        try:
            return await self._client.call(runtime_path(version, method), request, STATUS_SECONDS)
        except CallFailed as error:
            raise BackendError(f"{method}: {_reason(error)}", error.code) from None

    async def update(self, version: str, request: bytes, seconds: float) -> None:
        """Send an UpdateContainerResources of our own. Raises BackendError, which tells whether it may yet be done."""
        try:
            await self._client.call(runtime_path(version, "UpdateContainerResources"), request, seconds)
        except CallFailed as error:
            rejected = error.kind is Kind.STATUS and error.code not in _BROKEN_OFF
            not_done = rejected or error.kind is Kind.UNREACHABLE
            raise BackendError(f"UpdateContainerResources: {error}", error.code, not_done=not_done) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _reason(error: CallFailed) -> str:
    """Say why a call failed, without the runtime's words, which may repeat values: it is logged."""
    return f"gRPC status {error.code}" if error.kind is Kind.STATUS else str(error)
