"""A common interface of the fronts, so that one test covers both; a fake runtime and a kubelet of each.

Pods and containers are given in the kubelet's terms. A request is the bytes that are sent for it: in CRI a message, in
Docker mode a head and body. Only a caller's has the Docker API's version in its path, the proxy's own ones have not.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import grpc
from google.protobuf.message import Message
from grpc import StatusCode as Status

from runtimeproxy.wire.http2 import FrameBuffer
from tests.cri import peer
from tests.docker import client as docker_client
from tests.engines import cri
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes import cri_pb2
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd import Injection as DockerInjection
from tests.fakes.dockerd_shapes import ENGINES, go_json
from tests.fakes.dockershim_bodies import Container, Pod, Values
from tests.fakes.runtime import FakeRuntime, Injection, Received
from tests.fakes.runtime_state import RuntimeState
from tests.fakes.shapes import CONTAINERD, SHAPES, Shape
from tests.system.proxy import ProxyInside, ProxyProcess

SECONDS = 30.0
PARENT = "/kubepods/burstable/pod-uid"
SKIP = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
POD = Pod("pod", "pod-uid", cgroup_parent=PARENT)
LIMITS: Values = {"cpu_period": 100000, "cpu_quota": 200000, "cpu_shares": 1024, "memory_limit_in_bytes": 1 << 28}
CONTAINER = Container(
    *("main", BUSYBOX_IMAGE, 0, ("/bin/sh", "-c", "sleep 3600")),
    envs=(("A", "1"), ("B", "2")),
    labels={"app": "web"},
    annotations={"note": "kept"},
    resources={**LIMITS, "oom_score_adj": 999},
)
UPDATE: Values = {"cpu_shares": 512}

_attempts = itertools.count()
"""Makes the names of a run unique: dockerd refuses a used name."""


class Failed(Exception):
    """A failed call: the front's own status (None if the connection ended early), and the text."""

    def __init__(self, status: object, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class Stream(Protocol):
    """A bidirectional stream whose other end echoes; ``read`` raises Failed at the end."""

    async def write(self, data: bytes) -> None: ...
    async def read(self) -> bytes: ...
    async def close(self) -> None: ...


class Caller(Protocol):
    """A kubelet's side of a socket; concurrent calls do not wait for one another.

    Verbs are run_pod, create, start, update, stop, remove, stop_pod, remove_pod, ping, list and images.
    Every failed call raises Failed. A cancelled or late call is cancelled as by the front's clients.
    """

    pods: dict[str, Pod]
    """The created pods by id: a container's create repeats its pod."""

    def __init__(self) -> None:
        self.pods = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    # Implemented by each front. A container of a pod that this caller did not run is like one of ``POD``. A front
    # without annotations in updates omits them. ``request`` contains only the subject of a call. ``broken_request`` is
    # malformed and contains a text. ``id_in`` is the id in a reply to run_pod or create.

    async def close(self) -> None: ...
    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes: ...
    def pod_request(self, pod: Pod) -> bytes: ...
    def container_request(self, pod_id: str, container: Container) -> bytes: ...
    def update_request(self, container_id: str, resources: Values, annotations: Mapping[str, str]) -> bytes: ...
    def request(self, verb: str, subject_id: str = "") -> bytes: ...
    def broken_request(self, verb: str, text: bytes) -> bytes: ...
    def id_in(self, verb: str, reply: bytes) -> str: ...
    async def open_stream(self) -> Stream: ...
    async def call_unheld(self, secret: str) -> None:
        """Make calls that are not held, with a secret in every value; they may fail."""

    def create_request(self, pod_id: str, container: Container = CONTAINER) -> bytes:
        return self.container_request(pod_id, replace(container, attempt=next(_attempts)))

    async def run_pod(self, pod: Pod = POD) -> str:
        new = replace(pod, attempt=next(_attempts))
        pod_id = self.id_in("run_pod", await self.send("run_pod", self.pod_request(new)))
        self.pods[pod_id] = new
        return pod_id

    async def create(self, pod_id: str, container: Container = CONTAINER) -> str:
        return self.id_in("create", await self.send("create", self.create_request(pod_id, container)))

    async def update(
        self, container_id: str, resources: Values = UPDATE, annotations: Mapping[str, str] | None = None
    ) -> None:
        await self.send("update", self.update_request(container_id, resources, annotations or {}))

    async def act(self, verb: str, subject_id: str = "") -> bytes:
        return await self.send(verb, self.request(verb, subject_id))


Runtime = Any
"""A fake runtime; its records omit the proxy's own requests. ``arrived`` are the callers' requests of a verb as bytes,
in order. ``set_fault`` delays a verb's later calls, or answers them with an error of this text. ``reads`` counts the
single pods and containers that the proxy has read by itself. ``vanish`` removes one without any call or event.
``long_list`` sets the length of the list of containers, and returns the reply's message.
"""


@dataclass(frozen=True, slots=True)
class Front:
    """A front.

    Its statuses are those of a call that failed under policy Fail, was refused, or lost the runtime's connection.

    ``exchange`` takes a socket, a verb (ping) and a request, sends it on its own connection, which it drops at the end,
    and returns the reply's message; it raises OSError without a proxy, ConnectionError without a runtime.
    ``default_socket`` is where the runtime listens by default, relative to the root. ``never_imported`` are modules of
    other modes.
    """

    name: str
    flags: Mapping[str, str]
    runtime: Callable[[str], Runtime]
    caller: Callable[[Path | str], Caller]
    exchange: Callable[..., Coroutine[Any, Any, bytes]]
    failed: Any
    refused: Any
    lost: Any
    default_socket: str
    never_imported: Sequence[str]

    def process(self, folder: Path, **more: Any) -> ProxyProcess:
        """Return a proxy of this front as a program; ``more`` as in ``ProxyProcess``."""
        return ProxyProcess(folder, **{**self.flags, **more})

    def inside(self, folder: Path, **flags: str) -> ProxyInside:
        return ProxyInside(folder, **self.flags, **flags)


# ---- CRI

SIZES = dict.fromkeys(("grpc.max_receive_message_length", "grpc.max_send_message_length"), cri.MAX_MESSAGE_BYTES)


def path(method: str, version: str = cri.V1) -> str:
    """Return the path of a CRI method, or a path unchanged."""
    service = "ImageService" if method in cri.IMAGE_METHODS else "RuntimeService"
    return method if method.startswith("/") else f"/{version}.{service}/{method}"


class Client:
    def __init__(self, socket: Path | str, **options: Any) -> None:
        every = SIZES | {"grpc.use_local_subchannel_pool": 1} | options
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", list(every.items()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.channel.close()

    def call(self, method: str, request: Message | bytes = b"", timeout: float | None = SECONDS, **more: Any) -> Any:
        unary: Any = self.channel.unary_unary(path(method))
        return unary(request if isinstance(request, bytes) else request.SerializeToString(), timeout=timeout, **more)


METHODS = {
    **{"run_pod": "RunPodSandbox", "stop_pod": "StopPodSandbox", "remove_pod": "RemovePodSandbox"},
    **{"create": "CreateContainer", "start": "StartContainer", "update": "UpdateContainerResources"},
    **{"stop": "StopContainer", "remove": "RemoveContainer"},
    **{"ping": "Version", "list": "ListContainers", "images": "ListImages"},
}


class CriRuntime(FakeRuntime):
    def __init__(self, socket_path: str, *, shape: Shape = CONTAINERD, keep_received: int | None = None) -> None:
        super().__init__(socket_path, RuntimeState(shape), keep_received)

    def arrived(self, verb: str) -> list[bytes]:
        return [received.message for received in self.requests(METHODS[verb]) if not _is_the_proxys(received)]

    def set_fault(self, verb: str, *, delay_seconds: float = 0.0, text: str = "") -> None:
        code = Status.UNKNOWN if text else None
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


class _CriStream:
    """A call of an unknown service: the fake runtime echoes what it receives."""

    def __init__(self, client: Client) -> None:
        chat: Any = client.channel.stream_stream("/an.unknown.Service/Chat")
        self._call = chat()
        self.write = self._call.write

    async def read(self) -> bytes:
        try:
            return bytes(await self._call.read())
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code(), str(error.details())) from None

    async def close(self) -> None:
        self._call.cancel()


class CriCaller(Caller):
    """A kubelet that speaks CRI; ``options`` are those of its channel, ``of_calls`` those of each call."""

    def __init__(self, socket: Path | str, **options: Any) -> None:
        super().__init__()
        self.of_calls: Mapping[str, Any] = {}
        self._client = Client(socket, **options)

    async def close(self) -> None:
        await self._client.channel.close()

    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes:
        try:
            return bytes(await self._client.call(METHODS[verb], request, timeout=seconds, **self.of_calls))
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code(), str(error.details())) from None

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
        return cri_pb2.CreateContainerResponse.FromString(reply).container_id

    async def open_stream(self) -> _CriStream:
        return _CriStream(self._client)

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


def _pod_config(pod: Pod) -> cri_pb2.PodSandboxConfig:
    config = cri.pod_config(
        pod.name, pod.uid, cgroup_parent=pod.cgroup_parent, labels=pod.labels, annotations=pod.annotations
    )
    config.metadata.attempt = pod.attempt
    return config


async def cri_exchange(socket: Path | str, verb: str = "ping", request: bytes = b"") -> bytes:
    fields = peer.request(path(METHODS[verb]).encode(), (b"te", b"trailers"))
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
    *("cri", {}, CriRuntime, CriCaller, cri_exchange),
    failed=Status.INTERNAL,
    refused=Status.PERMISSION_DENIED,
    lost=Status.UNAVAILABLE,
    default_socket="run/containerd/containerd.sock",
    never_imported=("runtimeproxy.docker", "aiohttp"),
)
CRI_SHAPES = tuple(replace(CRI, name=f"cri {shape.name}", runtime=partial(CriRuntime, shape=shape)) for shape in SHAPES)
"""The front with a runtime of each shape, containerd's first."""


# ---- Docker

VERSION = "/v1.41"
STOP, REMOVE = "POST /containers/{ref}/stop", "DELETE /containers/{ref}"
ROUTES = {
    **dict.fromkeys(("run_pod", "create"), "POST /containers/create"),
    **{"start": "POST /containers/{ref}/start", "update": "POST /containers/{ref}/update"},
    **{"stop": STOP, "stop_pod": STOP, "remove": REMOVE, "remove_pod": REMOVE},
    **{"ping": "GET /_ping", "list": "GET /containers/json", "images": "GET /images/json"},
}
QUERIES = {"stop": "?t=0", "stop_pod": "?t=10", "remove": "?force=1&v=1", "remove_pod": "?force=1&v=1"}
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
POD_NAME = "name=k8s_POD_"
ENDED = "the connection ended"


class DockerRuntime(FakeDockerd):
    def __init__(self, socket_path: str, **more: Any) -> None:
        super().__init__(socket_path, keep_body_bytes=32 << 20, **more)

    def arrived(self, verb: str) -> list[bytes]:
        pods = [POD_NAME, *self.pod_ids()]
        of_callers = [received for received in self.requests(ROUTES[verb]) if received.target.startswith("/v")]
        of_pods = [any(pod in received.target for pod in pods) for received in of_callers]
        is_pods = verb.endswith("_pod")
        return [received.raw for received, of_pod in zip(of_callers, of_pods, strict=True) if of_pod == is_pods]

    def set_fault(self, verb: str, *, delay_seconds: float = 0.0, text: str = "") -> None:
        status = 500 if text else 0
        self.inject(ROUTES[verb], DockerInjection(delay_seconds=delay_seconds, status=status, message=text))

    def _ids(self, kind: str) -> list[str]:
        label = "io.kubernetes.docker.type"
        return [c.id for c in self.state.containers.values() if (c.config["Labels"] or {}).get(label) == kind]

    def pod_ids(self) -> list[str]:
        return self._ids("podsandbox")

    def container_ids(self) -> list[str]:
        return self._ids("container")

    def reads(self) -> int:
        return sum(not received.target.startswith("/v") for received in self.requests("GET /containers/{ref}/json"))

    def vanish(self, subject_id: str) -> None:
        del self.state.containers[subject_id]

    def long_list(self, count: int, total_bytes: int) -> bytes:
        self.fill_list(count, total_bytes)
        return self.big_list or b""


class _DockerStream:
    """An exec of ``cat`` on a terminal: raw bytes both ways."""

    def __init__(self, client: docker_client.Client) -> None:
        self._client, self.close = client, client.close

    async def write(self, data: bytes) -> None:
        self._client.send(data)

    async def read(self) -> bytes:
        if data := await self._client.reader.read(1 << 16):
            return data
        raise Failed(None, ENDED)


class DockerCaller(Caller):
    """A kubelet that speaks through dockershim; ``version`` is the prefix of every path."""

    def __init__(self, socket: Path | str, *, version: str = VERSION) -> None:
        super().__init__()
        self._socket = str(socket)
        self._version = version
        self._idle: list[docker_client.Client] = []
        self._tunnels: list[docker_client.Client] = []

    async def close(self) -> None:
        for client in (*self._idle, *self._tunnels):
            await client.close()

    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes:
        return (await self._answer(request, seconds)).body

    async def _answer(self, data: bytes, seconds: float = SECONDS) -> docker_client.Answer:
        self._idle = [client for client in self._idle if not client.reader.at_eof()]
        client = self._idle.pop() if self._idle else await docker_client.Client.connect(self._socket)
        try:
            async with asyncio.timeout(seconds):
                client.send(data)
                answer = await client.answer()
        except BaseException as error:
            client.abort()
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
                raise Failed(None, ENDED if not isinstance(error, TimeoutError) else "its time has ended") from None
            raise
        if answer.headers.get("connection") == "close":
            await client.close()
        else:
            self._idle.append(client)
        return _checked(answer)

    async def run_pod(self, pod: Pod = POD) -> str:
        pod_id = await super().run_pod(pod)
        await self.act("start", pod_id)
        return pod_id

    def _request(self, method: str, path: str, body: Any = None, *lines: str) -> bytes:
        return docker_client.request(method, self._version + path, b"" if body is None else go_json(body), *lines)

    def pod_request(self, pod: Pod) -> bytes:
        body = bodies.sandbox_body(pod, PAUSE_IMAGE, "cgroupfs")
        return self._request("POST", f"/containers/create?name={bodies.sandbox_name(pod)}", body)

    def container_request(self, pod_id: str, container: Container) -> bytes:
        pod = self.pods.get(pod_id, POD)
        body = bodies.container_body(pod, container, pod_id, "cgroupfs")
        return self._request("POST", f"/containers/create?name={bodies.container_name(pod, container)}", body)

    def update_request(self, container_id: str, resources: Values, annotations: Mapping[str, str]) -> bytes:
        return self._request("POST", f"/containers/{container_id}/update", bodies.update_body(resources, True))

    def request(self, verb: str, subject_id: str = "") -> bytes:
        method, _, path = ROUTES[verb].partition(" ")
        body = bodies.update_body({}, True) if verb == "update" else None
        return self._request(method, path.replace("{ref}", subject_id) + QUERIES.get(verb, ""), body)

    def broken_request(self, verb: str, text: bytes) -> bytes:
        method, _, path = ROUTES[verb].partition(" ")
        target = self._version + path.replace("{ref}", text.decode())
        if verb == "start":
            return docker_client.request(method, target)
        body = b'{"Labels":{"io.kubernetes.docker.type":"podsandbox","secret":"' + text
        return docker_client.request(method, target, body)

    def id_in(self, verb: str, reply: bytes) -> str:
        return str(json.loads(reply)["Id"])

    async def open_stream(self) -> _DockerStream:
        container_id = await self.create(await self.run_pod())
        await self.act("start", container_id)
        config = {**bodies.exec_body(["cat"]), "AttachStdin": True, "Tty": True}
        reply = json.loads((await self._answer(self._request("POST", f"/containers/{container_id}/exec", config))).body)
        client = await docker_client.Client.connect(self._socket)
        self._tunnels.append(client)
        client.send(self._request("POST", f"/exec/{reply['Id']}/start", {"Detach": False, "Tty": True}, *UPGRADE))
        assert b" 101 " in await client.reader.readuntil(b"\r\n\r\n")
        return _DockerStream(client)

    async def call_unheld(self, secret: str) -> None:
        auth = f"X-Registry-Auth: {secret}"
        container_id = await self.create(await self.run_pod())
        for data in (
            self._request("POST", f"/containers/{container_id}/exec", bodies.exec_body(["/bin/sh", "-c", secret])),
            self._request("POST", f"/images/create?fromImage={secret}&tag=1", None, auth),
            self._request("GET", f"/{secret}/{secret}?{secret}={secret}", None, f"Authorization: {secret}"),
            self._request("POST", f"/containers/{secret}/start"),
            self._request("POST", f"/containers/create?name={secret}", {"Image": secret, "Env": [f"A={secret}"]}),
            f"GET /{secret} HTTP/1.1\r\n{secret}\r\n\r\n".encode(),
            f"GET /{secret} HTTP/9.{secret}\r\n\r\n".encode(),
            f"POST /{secret} HTTP/1.1\r\nContent-Length: {secret}\r\nTransfer-Encoding: {secret}\r\n\r\n".encode(),
            f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{secret}".encode(),
        ):
            with suppress(Failed):
                await self._answer(data, seconds=1)


def _checked(answer: docker_client.Answer) -> docker_client.Answer:
    if answer.status < 400:
        return answer
    raise Failed(answer.status, answer.message if "json" in answer.headers.get("content-type", "") else "")


async def docker_exchange(
    socket: Path | str, verb: str = "ping", request: bytes = b"", *, version: str = VERSION
) -> bytes:
    client = await docker_client.Client.connect(str(socket))
    try:
        client.send(request or DockerCaller(socket, version=version).request(verb))
        return _checked(await client.answer()).body
    except (Failed, asyncio.IncompleteReadError) as error:
        raise ConnectionError(str(error)) from None
    finally:
        client.abort()


DOCKER = Front(
    *("docker", {"backend_runtime_mode": "Docker"}, DockerRuntime, DockerCaller, docker_exchange),
    failed=500,
    refused=500,
    lost=None,
    default_socket="run/docker.sock",
    never_imported=("runtimeproxy.cri",),
)

DOCKER_ENGINES = tuple(
    replace(
        DOCKER,
        name=f"docker {engine.name}",
        runtime=partial(DockerRuntime, engine=engine),
        caller=partial(DockerCaller, version=f"/v{engine.api}"),
        exchange=partial(docker_exchange, version=f"/v{engine.api}"),
    )
    for engine in ENGINES
)
"""The front with each version of the daemon, the oldest first; its clients use the daemon's newest API."""
