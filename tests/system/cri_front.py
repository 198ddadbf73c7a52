"""The CRI front for tests: a fake CRI runtime, and a kubelet's gRPC calls. A request is the message's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from runtimeproxy.wire.http2 import FrameBuffer
from tests.cri import peer
from tests.engines import cri
from tests.fakes import cri_pb2
from tests.fakes.dockershim_bodies import Container, Pod, Values
from tests.fakes.runtime import FakeRuntime, Injection, Received
from tests.fakes.runtime_state import RuntimeState
from tests.fakes.shapes import CONTAINERD, SHAPES, Shape
from tests.system import clients
from tests.system.fronts import POD, SECONDS, Caller, Failed, Front

METHODS = {
    "run_pod": "RunPodSandbox",
    "create": "CreateContainer",
    "start": "StartContainer",
    "update": "UpdateContainerResources",
    "stop": "StopContainer",
    "remove": "RemoveContainer",
    "update_pod": "UpdatePodSandboxResources",
    "stop_pod": "StopPodSandbox",
    "remove_pod": "RemovePodSandbox",
    "pod_status": "PodSandboxStatus",
    "ping": "Version",
    "list": "ListContainers",
    "images": "ListImages",
}


class CriRuntime(FakeRuntime):
    def __init__(self, socket_path: str, *, shape: Shape = CONTAINERD, keep_received: int | None = None) -> None:
        super().__init__(socket_path, RuntimeState(shape), keep_received)

    def arrived(self, verb: str) -> list[bytes]:
        return [received.message for received in self.requests(METHODS[verb]) if not _is_the_proxys(received)]

    def set_fault(self, verb: str, *, delay_seconds: float = 0.0, text: str = "") -> None:
        code = grpc.StatusCode.UNKNOWN if text else None
        self.inject(METHODS[verb], Injection(delay_seconds=delay_seconds, code=code, details=text))

    def pod_ids(self) -> list[str]:
        return list(self.state.pods)

    def container_ids(self) -> list[str]:
        return list(self.state.containers)

    def reads(self) -> int:
        return sum(map(_is_the_proxys, self.requests("PodSandboxStatus") + self.requests("ContainerStatus")))

    def vanish(self, subject_id: str) -> None:
        (self.state.pods if subject_id in self.state.pods else self.state.containers).pop(subject_id)

    def long_list(self, count: int, total_bytes: int) -> bytes:
        self.state.fill_list(count, total_bytes)
        return self.state.big_list or b""


def _is_the_proxys(received: Received) -> bool:
    return dict(received.metadata).get("user-agent") == "runtimeproxy"


class _Stream:
    """A call of an unknown service: the fake runtime echoes what it receives."""

    def __init__(self, client: clients.Client) -> None:
        self._call: Any = client.channel.stream_stream("/an.unknown.Service/Chat")()
        self.write = self._call.write

    async def read(self) -> bytes:
        try:
            return bytes(await self._call.read())
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None

    async def close(self) -> None:
        self._call.cancel()


class CriCaller(Caller):
    """A kubelet that speaks CRI; ``options`` are those of its channel, ``of_calls`` those of each call."""

    def __init__(self, socket: Path | str, **options: Any) -> None:
        super().__init__()
        self.of_calls: Mapping[str, Any] = {}
        self._client = clients.Client(socket, **options)

    async def close(self) -> None:
        await self._client.channel.close()

    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes:
        try:
            return bytes(await self._client.call(METHODS[verb], request, timeout=seconds, **self.of_calls))
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None

    def pod_request(self, pod: Pod) -> bytes:
        return cri_pb2.RunPodSandboxRequest(config=_pod_config(pod)).SerializeToString()

    def container_request(self, pod_id: str, container: Container) -> bytes:
        config = cri.container_config(
            container.name,
            command=container.command,
            envs=[(key, value.encode()) for key, value in container.envs],
            labels=container.labels,
            annotations=container.annotations,
            image=container.image,
            resources=cri_pb2.LinuxContainerResources(**container.resources) if container.resources else None,
        )
        config.metadata.attempt = container.attempt
        config.args.extend(container.args)
        pod = _pod_config(self.pods.get(pod_id, POD))
        request = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
        return request.SerializeToString()

    def update_request(self, container_id: str, resources: Values, annotations: Mapping[str, str]) -> bytes:
        linux = cri_pb2.LinuxContainerResources(**resources)
        request = cri_pb2.UpdateContainerResourcesRequest(
            container_id=container_id, linux=linux, annotations=annotations
        )
        return request.SerializeToString()

    def request(self, verb: str, subject_id: str = "") -> bytes:
        return cri_pb2.StartContainerRequest(container_id=subject_id).SerializeToString()

    def broken_request(self, verb: str, text: bytes) -> bytes:
        return b"\x0a\x05\xff" + text

    def id_in(self, verb: str, reply: bytes) -> str:
        if verb == "run_pod":
            return cri_pb2.RunPodSandboxResponse.FromString(reply).pod_sandbox_id
        if verb == "create":
            return cri_pb2.CreateContainerResponse.FromString(reply).container_id
        return cri_pb2.PodSandboxStatusResponse.FromString(reply).status.id

    async def open_stream(self) -> _Stream:
        return _Stream(self._client)

    async def call_unheld(self, secret: str) -> None:
        text, container_id = secret.encode(), (await self.create(await self.run_pod())).encode()
        auth = b"".join(_field(number, text) for number in (1, 2, 3, 5, 6))
        for method, message in (
            ("Exec", _field(1, container_id) + _field(2, b"/bin/sh") + _field(2, text)),
            ("ExecSync", _field(1, container_id) + _field(2, b"/bin/sh") + _field(2, text)),
            ("PullImage", _field(1, _field(1, text)) + _field(2, auth)),
            (f"/no.such.Service/{secret}", text),
        ):
            with suppress(grpc.aio.AioRpcError):
                await self._client.call(method, message, metadata=(("authorization", secret),))


def _field(number: int, value: bytes) -> bytes:
    """Return an encoded field that the tests' cri.proto does not have; the value has less than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


def _failed(error: grpc.aio.AioRpcError) -> Failed:
    return Failed(error.code(), str(error.details()))


def _pod_config(pod: Pod) -> cri_pb2.PodSandboxConfig:
    config = cri.pod_config(
        pod.name, pod.uid, cgroup_parent=pod.cgroup_parent, labels=pod.labels, annotations=pod.annotations
    )
    config.metadata.attempt = pod.attempt
    return config


async def exchange(socket: Path | str, verb: str = "ping", request: bytes = b"") -> bytes:
    fields = peer.request(clients.path(METHODS[verb]).encode(), (b"te", b"trailers"))
    frames = (peer.Settings(), peer.Headers(1, fields), peer.Data(1, peer.grpc(request), end=True))
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(peer.PREFACE + b"".join(frame.wire() for frame in frames))
        buffer, data = FrameBuffer(), bytearray()
        while received := await reader.read(65536):
            for kind, flags, stream, payload in buffer.feed(received):
                if stream == 1 and kind == peer.DATA:
                    data += payload
                elif stream == 1 and kind == peer.HEADERS and flags & peer.END_STREAM:
                    assert data, "the call has failed"
                    return bytes(data[5:])
        raise ConnectionError("the connection has ended")
    finally:
        writer.close()


CRI = Front(
    name="cri",
    flags={},
    runtime=CriRuntime,
    caller=CriCaller,
    exchange=exchange,
    failed=grpc.StatusCode.INTERNAL,
    refused=grpc.StatusCode.PERMISSION_DENIED,
    lost=grpc.StatusCode.UNAVAILABLE,
    default_socket="run/containerd/containerd.sock",
    never_imported=("runtimeproxy.docker", "aiohttp"),
)

CRI_SHAPES = tuple(replace(CRI, name=f"cri {shape.name}", runtime=partial(CriRuntime, shape=shape)) for shape in SHAPES)
"""The front with a runtime of each shape, containerd's first."""
