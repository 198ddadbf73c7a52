"""A CRI client for tests and the demo: any socket, v1 or v1alpha2, with a kubelet's messages.

Pods use the host's network, so they need no CNI and have neither hostname nor sysctls.
"""

from collections.abc import Sequence
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2

V1 = "runtime.v1"
V1ALPHA2 = "runtime.v1alpha2"
VERSIONS = (V1, V1ALPHA2)
MAX_MESSAGE_BYTES, SECONDS = 64 << 20, 60.0
IMAGE_METHODS = frozenset({"ListImages", "StreamImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"})

HOST_NETWORK = {"network": cri_pb2.NODE, "pid": cri_pb2.CONTAINER}


def pod_config(name: str, uid: str, *, cgroup_parent: str, **more: Any) -> cri_pb2.PodSandboxConfig:
    metadata = {"name": name, "uid": uid, "namespace": "default"}
    linux = {"cgroup_parent": cgroup_parent, "security_context": {"namespace_options": HOST_NETWORK}}
    return cri_pb2.PodSandboxConfig(metadata=metadata, linux=linux, **more)


def container_config(
    name: str,
    *,
    command: Sequence[str] = ("/bin/sh", "-c", "sleep 3600"),
    envs: Sequence[tuple[str, bytes]] = (),
    resources: cri_pb2.LinuxContainerResources | None = None,
    image: str = BUSYBOX_IMAGE,
    **more: Any,
) -> cri_pb2.ContainerConfig:
    """Return the config of a container whose log is ``NAME.log`` in its pod's log directory."""
    named = {"metadata": {"name": name}, "log_path": f"{name}.log", "image": {"image": image}}
    linux = {"resources": resources, "security_context": {"namespace_options": HOST_NETWORK}}
    envs_of = [{"key": key, "value": value} for key, value in envs]
    return cri_pb2.ContainerConfig(**named, linux=linux, command=command, envs=envs_of, **more)


class CriClient:
    """A synchronous client; ``version`` is the API's package name, every failed call raises grpc.RpcError."""

    def __init__(self, socket_path: str, version: str = V1) -> None:
        size = MAX_MESSAGE_BYTES
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        # A local subchannel pool: two clients of one process are two connections, as two kubelets would be.
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", [*options, ("grpc.use_local_subchannel_pool", 1)])
        self._version = version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def path(self, method: str) -> str:
        """Return the method's HTTP/2 :path."""
        service = "ImageService" if method in IMAGE_METHODS else "RuntimeService"
        return f"/{self._version}.{service}/{method}"

    def call(self, method: str, request: Message) -> Any:
        reply: type[Message] = getattr(cri_pb2, f"{method}Response")
        call = self._channel.unary_unary(self.path(method), type(request).SerializeToString, reply.FromString)
        return call(request, timeout=SECONDS)

    def _do(self, method: str, **fields: Any) -> Any:
        return self.call(method, getattr(cri_pb2, f"{method}Request")(**fields))

    def version(self) -> Any:
        return self._do("Version")

    # ---- pods; a status is verbose

    def run_pod(self, config: cri_pb2.PodSandboxConfig) -> str:
        return str(self._do("RunPodSandbox", config=config).pod_sandbox_id)

    def pod_status(self, pod_id: str) -> Any:
        return self._do("PodSandboxStatus", pod_sandbox_id=pod_id, verbose=True)

    def pods(self) -> list[cri_pb2.PodSandbox]:
        return list(self._do("ListPodSandbox").items)

    def stop_pod(self, pod_id: str) -> None:
        self._do("StopPodSandbox", pod_sandbox_id=pod_id)

    def remove_pod(self, pod_id: str) -> None:
        self._do("RemovePodSandbox", pod_sandbox_id=pod_id)

    # ---- containers

    def create(self, pod_id: str, config: cri_pb2.ContainerConfig, pod: cri_pb2.PodSandboxConfig) -> str:
        return str(self._do("CreateContainer", pod_sandbox_id=pod_id, config=config, sandbox_config=pod).container_id)

    def start(self, container_id: str) -> None:
        self._do("StartContainer", container_id=container_id)

    def update(self, container_id: str, resources: cri_pb2.LinuxContainerResources) -> None:
        self._do("UpdateContainerResources", container_id=container_id, linux=resources)

    def stop(self, container_id: str, grace_seconds: int = 0) -> None:
        self._do("StopContainer", container_id=container_id, timeout=grace_seconds)

    def remove(self, container_id: str) -> None:
        self._do("RemoveContainer", container_id=container_id)

    def containers(self) -> list[cri_pb2.Container]:
        return list(self._do("ListContainers").containers)

    def status(self, container_id: str) -> Any:
        return self._do("ContainerStatus", container_id=container_id, verbose=True)

    def exec_sync(self, container_id: str, *command: str) -> Any:
        return self._do("ExecSync", container_id=container_id, cmd=command, timeout=20)

    def environment(self, container_id: str) -> dict[str, bytes]:
        # That of the main process, since a runtime may give an exec another one.
        lines = self.exec_sync(container_id, "cat", "/proc/1/environ").stdout.split(b"\0")
        return {key.decode(): value for key, _, value in (line.partition(b"=") for line in lines if line)}

    def images(self) -> list[cri_pb2.Image]:
        return list(self._do("ListImages").images)
