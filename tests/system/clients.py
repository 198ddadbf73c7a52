"""The asynchronous gRPC client of the system tests: bytes in and out, with what the calls of a kubelet carry.

Messages are sent as they were given, bytes that no library would make among them.
"""

from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tests.engines import cri
from tests.fakes import cri_pb2

SECONDS = 30.0
PARENT = "/kubepods/burstable/pod-uid"


class Client:
    """One connection to a socket; ``version`` is the API's package name."""

    def __init__(self, socket: Path | str, version: str = cri.V1, **options: Any) -> None:
        size = cri.MAX_MESSAGE_BYTES
        every = {
            "grpc.max_receive_message_length": size,
            "grpc.max_send_message_length": size,
            "grpc.use_local_subchannel_pool": 1,
        }
        self.version = version
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", list((every | options).items()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.channel.close()

    def path(self, method: str) -> str:
        """Name a CRI method, or return a path as it is."""
        if method.startswith("/"):
            return method
        service = "ImageService" if method in cri.IMAGE_METHODS else "RuntimeService"
        return f"/{self.version}.{service}/{method}"

    def call(self, method: str, request: Message | bytes = b"", timeout: float | None = SECONDS, **more: Any) -> Any:
        """Start a unary call; awaited it is the reply's bytes."""
        unary: Any = self.channel.unary_unary(self.path(method))
        return unary(_bytes(request), timeout=timeout, **more)

    def stream(self, method: str, request: Message | bytes = b"", **more: Any) -> Any:
        """Start a server-streaming call; its ``read()`` gives a reply's bytes."""
        unary: Any = self.channel.unary_stream(self.path(method))
        return unary(_bytes(request), **more)

    def both(self, method: str, **more: Any) -> Any:
        both: Any = self.channel.stream_stream(self.path(method))
        return both(**more)

    async def run_pod(self, config: cri_pb2.PodSandboxConfig | None = None) -> str:
        request = cri_pb2.RunPodSandboxRequest(config=config or pod())
        return cri_pb2.RunPodSandboxResponse.FromString(await self.call("RunPodSandbox", request)).pod_sandbox_id

    async def create(self, pod_id: str, config: cri_pb2.ContainerConfig | None = None) -> str:
        reply = await self.call("CreateContainer", create_request(pod_id, config))
        return cri_pb2.CreateContainerResponse.FromString(reply).container_id


def _bytes(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def pod(name: str = "pod", **more: Any) -> cri_pb2.PodSandboxConfig:
    """Return a pod's config; ``more`` as in ``cri.pod_config``."""
    return cri.pod_config(name, f"{name}-uid", cgroup_parent=PARENT, **more)


def container(name: str = "main", **more: Any) -> cri_pb2.ContainerConfig:
    """Return the config of a container with something in every field; ``more`` as in ``cri.container_config``."""
    resources = cri_pb2.LinuxContainerResources(
        cpu_period=100000, cpu_quota=200000, cpu_shares=1024, memory_limit_in_bytes=1 << 28, oom_score_adj=999
    )
    defaults: dict[str, Any] = {
        "resources": resources,
        "envs": [("A", b"1"), ("B", b"2")],
        "labels": {"app": "web"},
        "annotations": {"note": "kept"},
    }
    return cri.container_config(name, **(defaults | more))


def create_request(
    pod_id: str, config: cri_pb2.ContainerConfig | None = None, sandbox: cri_pb2.PodSandboxConfig | None = None
) -> cri_pb2.CreateContainerRequest:
    return cri_pb2.CreateContainerRequest(
        pod_sandbox_id=pod_id, config=config or container(), sandbox_config=sandbox or pod()
    )
