"""A CRI client for tests and the demo: any socket, v1 or v1alpha2, with a kubelet's messages.

Pods use the host's network, so they need no CNI and have neither hostname nor sysctls.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

import grpc
from google.protobuf.message import Message

from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2

V1 = "runtime.v1"
V1ALPHA2 = "runtime.v1alpha2"
VERSIONS = (V1, V1ALPHA2)
MAX_MESSAGE_BYTES = 64 << 20
IMAGE_METHODS = frozenset({"ListImages", "StreamImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"})

HOST_NETWORK = {"network": cri_pb2.NODE, "pid": cri_pb2.CONTAINER}
_REPLIES: Mapping[str, str] = {"GetContainerEvents": "ContainerEventResponse"}
"""Methods whose reply is not named after them."""


def pod_config(
    name: str,
    uid: str,
    *,
    cgroup_parent: str,
    log_directory: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> cri_pb2.PodSandboxConfig:
    metadata = {"name": name, "uid": uid, "namespace": "default"}
    linux = {"cgroup_parent": cgroup_parent, "security_context": {"namespace_options": HOST_NETWORK}}
    return cri_pb2.PodSandboxConfig(
        metadata=metadata, log_directory=log_directory, labels=labels, annotations=annotations, linux=linux
    )


def container_config(
    name: str,
    *,
    command: Sequence[str] = ("/bin/sh", "-c", "sleep 3600"),
    envs: Sequence[tuple[str, bytes]] = (),
    resources: cri_pb2.LinuxContainerResources | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    image: str = BUSYBOX_IMAGE,
) -> cri_pb2.ContainerConfig:
    """Return the config of a container whose log is ``NAME.log`` in its pod's log directory."""
    return cri_pb2.ContainerConfig(
        metadata={"name": name},
        image={"image": image},
        command=command,
        envs=[{"key": key, "value": value} for key, value in envs],
        labels=labels,
        annotations=annotations,
        log_path=f"{name}.log",
        linux={"resources": resources, "security_context": {"namespace_options": HOST_NETWORK}},
    )


class CriClient:
    """A synchronous client; ``version`` is the API's package name, every failed call raises grpc.RpcError."""

    def __init__(self, socket_path: str, version: str = V1, *, timeout_seconds: float = 60.0) -> None:
        size = MAX_MESSAGE_BYTES
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        # A local subchannel pool: two clients of one process are two connections, as two kubelets would be.
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", [*options, ("grpc.use_local_subchannel_pool", 1)])
        self._version = version
        self._timeout_seconds = timeout_seconds

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

    def call(self, method: str, request: Message, timeout_seconds: float | None = None) -> Any:
        call = self._channel.unary_unary(
            self.path(method), request_serializer=_serialize, response_deserializer=_reply(method).FromString
        )
        return call(request, timeout=timeout_seconds or self._timeout_seconds)

    def stream(self, method: str, request: Message) -> Iterator[Any]:
        """Call a server-streaming method; return its replies as they come (with ``cancel()``, as in grpcio)."""
        call = self._channel.unary_stream(
            self.path(method), request_serializer=_serialize, response_deserializer=_reply(method).FromString
        )
        return call(request)

    # ---- pods

    def version(self) -> cri_pb2.VersionResponse:
        return cast("cri_pb2.VersionResponse", self.call("Version", cri_pb2.VersionRequest()))

    def run_pod(self, config: cri_pb2.PodSandboxConfig) -> str:
        return str(self.call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=config)).pod_sandbox_id)

    def pod_status(self, pod_id: str) -> cri_pb2.PodSandboxStatusResponse:
        """Return the verbose status."""
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
        return cast("cri_pb2.PodSandboxStatusResponse", self.call("PodSandboxStatus", request))

    def pods(self) -> list[cri_pb2.PodSandbox]:
        return list(self.call("ListPodSandbox", cri_pb2.ListPodSandboxRequest()).items)

    def stop_pod(self, pod_id: str) -> None:
        self.call("StopPodSandbox", cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod_id))

    def remove_pod(self, pod_id: str) -> None:
        self.call("RemovePodSandbox", cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod_id))

    # ---- containers

    def create(self, pod_id: str, config: cri_pb2.ContainerConfig, pod: cri_pb2.PodSandboxConfig) -> str:
        request = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
        return str(self.call("CreateContainer", request).container_id)

    def start(self, container_id: str) -> None:
        self.call("StartContainer", cri_pb2.StartContainerRequest(container_id=container_id))

    def update(self, container_id: str, resources: cri_pb2.LinuxContainerResources) -> None:
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        self.call("UpdateContainerResources", request)

    def stop(self, container_id: str, grace_seconds: int = 0) -> None:
        self.call("StopContainer", cri_pb2.StopContainerRequest(container_id=container_id, timeout=grace_seconds))

    def remove(self, container_id: str) -> None:
        self.call("RemoveContainer", cri_pb2.RemoveContainerRequest(container_id=container_id))

    def containers(self) -> list[cri_pb2.Container]:
        return list(self.call("ListContainers", cri_pb2.ListContainersRequest()).containers)

    def status(self, container_id: str) -> cri_pb2.ContainerStatusResponse:
        """Return the verbose status."""
        request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
        return cast("cri_pb2.ContainerStatusResponse", self.call("ContainerStatus", request))

    def exec_sync(self, container_id: str, *command: str, timeout_seconds: int = 20) -> cri_pb2.ExecSyncResponse:
        request = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout_seconds)
        return cast("cri_pb2.ExecSyncResponse", self.call("ExecSync", request))

    def environment(self, container_id: str) -> dict[str, bytes]:
        # The main process' own, not that of an exec: the two differ if a runtime gives an exec another one.
        lines = self.exec_sync(container_id, "cat", "/proc/1/environ").stdout.split(b"\0")
        return {key.decode(): value for key, _, value in (line.partition(b"=") for line in lines if line)}

    def exec_url(self, container_id: str, *command: str) -> str:
        request = cri_pb2.ExecRequest(container_id=container_id, cmd=command, stdout=True, stderr=True)
        return str(self.call("Exec", request).url)

    # ---- images

    def images(self) -> list[cri_pb2.Image]:
        return list(self.call("ListImages", cri_pb2.ListImagesRequest()).images)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _reply(method: str) -> type[Message]:
    reply: type[Message] = getattr(cri_pb2, _REPLIES.get(method, f"{method}Response"))
    return reply
