"""A kubelet's calls, one at a time on one connection, through clients that send what Go's do.

Owns the clients, and what has to be made before a call.
Must not know: who listens, limits.
Invariant: a call that fails or whose answer is not whole raises; what a call is about was made on the same connection.
"""

import json
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from runtimeproxy.wire import http2
from scripts.benchmark.cases import (
    CREATE,
    CRI,
    DOCKER,
    DOCKER_CREATE,
    DOCKER_LISTED,
    DOCKER_POD,
    DOCKER_START,
    DOCKER_UPDATE,
    DOCKER_VERSION,
    LISTED,
    RUN,
    START,
    UPDATE,
    VERSION,
    Case,
)
from scripts.benchmark.goends import READ_BYTES, GrpcEnd, framed, read_message
from scripts.benchmark.h2load import Run
from scripts.benchmark.node import CONTAINER, POD, RESOURCES, docker_body
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from tests.fakes import cri_pb2

SECONDS = 30.0
_HEAD = (
    *((":method", "POST"), (":scheme", "http"), (":authority", "localhost"), ("content-type", "application/grpc")),
    *(("user-agent", "grpc-go/1.85.0"), ("te", "trailers")),
)

Call = Callable[[], object]


class Client(ABC):
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(SECONDS)
        self._sock.connect(str(path))
        self._waiting = b""
        self.answered = 0
        """When the last answer was whole, in nanoseconds of the monotonic clock."""
        self.made: Counter[str] = Counter()
        """The calls by their routes."""

    @abstractmethod
    def prepare(self, route: str) -> Call:
        """Make what calls of a route are about; return one that can be made again and again. Raises DemoError."""

    def flush(self) -> None:
        """Send what waits for the next call to leave with it, as Go's writer does when none comes."""
        if self._waiting:
            self._sock.sendall(self._waiting)
            self._waiting = b""

    def settle(self, seconds: float) -> None:
        """Let so many seconds pass in which nothing comes; what comes is answered."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _read(self) -> bytes:
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise DemoError("the connection ended before the answer")
        return data


class CriClient(Client):
    """Calls in CRI mode."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._end = GrpcEnd()
        self._stream = -1
        self._waiting = http2.PREFACE + self._end.settings()

    def call(self, method: str, request: Message) -> Any:
        """Make a call; return the answer. Raises DemoError."""
        self.made[method] += 1
        self._stream = stream = self._stream + 2
        block = self._end.encode((*_HEAD, (":path", f"/runtime.v1.RuntimeService/{method}")))
        body = self._end.data(stream, framed(request.SerializeToString()), end=True)
        self._waiting += http2.header_frames(stream, block, False) + body
        self.flush()
        answer = bytearray()
        while not self._take(stream, answer):
            self.flush()
        self.answered = time.monotonic_ns()
        return getattr(cri_pb2, f"{method}Response").FromString(bytes(answer[5:]))

    def _take(self, stream: int, answer: bytearray) -> bool:
        """Take what comes next; tell whether it ends the call. Raises DemoError."""
        ended = False
        for kind, flags, of, payload in self._end.frames(self._read()):
            self._waiting += self._end.beside(kind, flags, payload)
            if of != stream:
                continue
            if kind == http2.DATA:
                answer += payload
            elif kind == http2.RST_STREAM:
                raise DemoError("a call was reset")
            elif kind == http2.HEADERS:
                fields = self._end.decode(flags, payload)
                ended = bool(flags & http2.END_STREAM)
                if ended and fields.get("grpc-status") != "0":
                    raise DemoError(f"a call failed: {fields}")
        return ended

    def settle(self, seconds: float) -> None:
        """Let so many seconds pass in which nothing comes; what comes is answered."""
        self._sock.settimeout(seconds)
        try:
            while True:
                self.flush()
                self._take(0, bytearray())
        except TimeoutError:
            self._sock.settimeout(SECONDS)

    def prepare(self, route: str) -> Call:
        """Make what calls of a route are about; return one that can be made again and again. Raises DemoError."""
        request = self._request(route)
        return lambda: self.call(route, request)

    def _request(self, route: str) -> Message:
        if route in (VERSION.route, LISTED.route):
            return cri_pb2.VersionRequest() if route == VERSION.route else cri_pb2.ListContainersRequest()
        run = cri_pb2.RunPodSandboxRequest(config=POD)
        if route == RUN.route:
            return run
        pod_id = self.call(RUN.route, run).pod_sandbox_id
        create = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=CONTAINER, sandbox_config=POD)
        if route == CREATE.route:
            return create
        made = self.call(CREATE.route, create).container_id
        if route == START.route:
            return cri_pb2.StartContainerRequest(container_id=made)
        assert route == UPDATE.route
        return cri_pb2.UpdateContainerResourcesRequest(container_id=made, linux=RESOURCES)


class DockerClient(Client):
    """Calls in Docker mode."""

    def call(self, route: str, target: str, body: bytes = b"") -> Any:
        """Make a call; return the answer, read if it is JSON. Raises DemoError."""
        method = route.partition(" ")[0]
        head = [f"{method} /v1.41{target} HTTP/1.1", "Host: docker", "User-Agent: Go-http-client/1.1"]
        if method == "POST":
            head.append(f"Content-Length: {len(body)}")
        if body:
            head.append("Content-Type: application/json")
        self._waiting = "\r\n".join([*head, "Accept-Encoding: gzip", "", ""]).encode() + body
        self.flush()
        data = self._read()
        while (answer := read_message(data)) is None:
            data += self._read()
        self.answered = time.monotonic_ns()
        first, fields, content = answer
        if not first.startswith("HTTP/1.1 2"):
            raise DemoError(f"{method} {target} failed: {first}")
        self.made[route] += 1
        if "transfer-encoding" in fields:
            content = content.split(b"\r\n")[1]
        return json.loads(content) if fields.get("content-type") == "application/json" else content

    def prepare(self, route: str) -> Call:
        """Make what calls of a route are about; return one that can be made again and again. Raises DemoError."""
        if route in (DOCKER_VERSION.route, DOCKER_LISTED.route):
            return lambda: self.call(route, route.partition(" ")[2])
        pod_id = self._created(*_create("POD", "podsandbox", ""))
        self.made = Counter({DOCKER_POD: 1})
        target, body = _create("main", "container", pod_id)
        if route == DOCKER_CREATE.route:
            return lambda: self.call(route, target, body)
        named = route.partition(" ")[2].replace("{ref}", self._created(target, body))
        assert route in (DOCKER_START.route, DOCKER_UPDATE.route)
        update = b'{"CpuShares":256}' if route == DOCKER_UPDATE.route else b""
        return lambda: self.call(route, named, update)

    def _created(self, target: str, body: bytes) -> str:
        return str(self.call(DOCKER_CREATE.route, target, body)["Id"])


def _create(name: str, kind: str, pod_id: str) -> tuple[str, bytes]:
    body = json.dumps(docker_body(name, kind, pod_id), separators=(",", ":"))
    return f"/containers/create?name=k8s_{name}_web_default_u1_0", body.encode()


CLIENTS: dict[str, type[Client]] = {CRI: CriClient, DOCKER: DockerClient}


class Kubelet:
    """The calls of a case on a way, on a connection of their own."""

    def __init__(self, served: Served, case: Case, way: str) -> None:
        assert case.pause is not None
        self._served, self._way, self._pause = served, way, case.pause
        self._client = CLIENTS[case.mode](served.socket(way))
        served.connections.callback(self._client.close)
        self._call = self._client.prepare(case.route)

    def run(self, calls: int) -> Run:
        """Make calls, one after the other. Raises DemoError if one fails."""
        began, took = time.perf_counter(), []
        for _ in range(calls):
            if self._pause:
                self._client.flush()
                time.sleep(self._pause)
            start = time.perf_counter_ns()
            self._call()
            took.append((time.perf_counter_ns() - start) // 1000)
        seconds = time.perf_counter() - began
        for route, made in self._client.made.items():
            self._served.made[self._way, route] += made
        self._client.made.clear()
        return Run(tuple(took), seconds)
