"""Both ends of a connection as Go's libraries behave, grpc-go on HTTP/2 and net/http on HTTP/1.1; a kubelet's calls.

An end sends more than its calls: SETTINGS, ACKs, and for each DATA frame credit with a PING (at most one PING is
without its ACK, as in grpc-go's estimator of the bandwidth-delay product). A kubelet makes one call at a time on one
connection; a call that fails, or whose answer is not complete, raises.
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
from hpack import Decoder, Encoder

from runtimeproxy.wire import http2
from scripts.benchmark import cases, node
from scripts.demonstration.processes import DemoError
from tests.fakes import cri_pb2

SECONDS = 30.0
READ_BYTES = 1 << 20
PING = b"\x02\x04\x10\x10\x09\x0e\x07\x07"
"""The payload of PINGs of grpc-go's estimator."""
WINDOW = 256 << 20
"""Wide enough for everything sent here: the estimator would widen its window as more data arrive."""
_HEAD = (
    *((":method", "POST"), (":scheme", "http"), (":authority", "localhost"), ("content-type", "application/grpc")),
    *(("user-agent", "grpc-go/1.85.0"), ("te", "trailers")),
)

Call = Callable[[], object]
Field = tuple[str, str]


def framed(message: bytes) -> bytes:
    """Return a message with gRPC's prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class GrpcEnd:
    """One end of a grpc-go connection. Header blocks, whose coding costs Python ten times what it costs Go, are cached
    until their table grows."""

    def __init__(self) -> None:
        self.frames = http2.FrameBuffer().feed
        """Return the frames that are complete: kind, flags, stream, payload."""
        self._encoder, self._decoder = Encoder(), Decoder()
        self._encoded: dict[tuple[Field, ...], bytes] = {}
        self._decoded: dict[bytes, dict[str, str]] = {}
        self._pinged = False

    def settings(self) -> bytes:
        """Return what is sent first, by a client after its preface: the windows at which the estimator ends up."""
        return http2.settings({http2.INITIAL_WINDOW_SIZE: WINDOW}) + http2.window_update(0, WINDOW)

    def control_frames(self, kind: int, flags: int, payload: bytes) -> bytes:
        """Return the frames that the connection itself sends for a received one."""
        if kind == http2.DATA and payload:
            credit = http2.window_update(0, len(payload))
            if self._pinged:
                return credit
            self._pinged = True
            return credit + http2.frame(http2.PING, 0, 0, PING)
        if kind == http2.PING:
            if not flags & http2.ACK:
                return http2.frame(http2.PING, http2.ACK, 0, payload)
            self._pinged = False
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            size = dict(http2.read_settings(payload)).get(http2.HEADER_TABLE_SIZE)
            if size is not None:
                self._encoder.header_table_size = min(size, 4096)
            return http2.SETTINGS_ACK
        return b""

    def encode(self, fields: tuple[Field, ...]) -> bytes:
        """Return a header block, which may refer to earlier ones."""
        block = self._encoded.get(fields)
        if block is None:
            entries = len(self._encoder.header_table.dynamic_entries)
            block = self._encoder.encode(fields)
            if entries == len(self._encoder.header_table.dynamic_entries):
                self._encoded[fields] = block
            else:
                self._encoded.clear()
        return block

    def decode(self, flags: int, payload: bytes) -> dict[str, str]:
        """Return the fields of a header block that is contained in one frame."""
        _, block = http2.split_block(http2.HEADERS, flags, payload)
        fields = self._decoded.get(block)
        if fields is None:
            entries = len(self._decoder.header_table.dynamic_entries)
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
            if entries == len(self._decoder.header_table.dynamic_entries):
                self._decoded[block] = fields
            else:
                self._decoded.clear()
        return fields


def split(body: bytes) -> list[bytes]:
    """Return the parts of a body, one per DATA frame."""
    return [body[at : at + http2.DEFAULT_FRAME_SIZE] for at in range(0, len(body), http2.DEFAULT_FRAME_SIZE)]


def read_message(data: bytes) -> tuple[str, dict[str, str], bytes] | None:
    """Return first line, fields by lower-case name and body of an HTTP/1.1 message; None if it is not complete."""
    head, ended, body = data.partition(b"\r\n\r\n")
    if not ended:
        return None
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if "transfer-encoding" in fields:
        is_whole = body.endswith(b"\r\n0\r\n\r\n")
    else:
        is_whole = len(body) >= int(fields.get("content-length", 0))
    return (first, fields, body) if is_whole else None


class Client(ABC):
    """One connection; ``made`` counts the calls by route."""

    def __init__(self, path: Path, made: Counter[str] | None = None, seconds: float = SECONDS) -> None:
        self.made = Counter() if made is None else made
        self._seconds = seconds
        self.answered = 0
        """When the last answer was complete, in nanoseconds of the monotonic clock."""
        self._waiting = b""
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(seconds)
        self._sock.connect(str(path))
        self.close = self._sock.close

    @abstractmethod
    def prepare(self, route: str) -> Call:
        """Create what a route's calls need; return a repeatable call. Raises DemoError."""

    @abstractmethod
    def container(self) -> str:
        """Create a container in a new pod; return its id. Raises DemoError."""

    def flush(self) -> None:
        """Send what is buffered for the next call, as Go's writer does when there is none."""
        if self._waiting:
            self._sock.sendall(self._waiting)
            self._waiting = b""

    def settle(self, seconds: float) -> None:
        """Wait until nothing was received for so many seconds; PINGs are answered."""
        time.sleep(seconds)

    def _read(self) -> bytes:
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise DemoError("the connection ended before the answer")
        return data


class CriClient(Client):
    """A kubelet in CRI mode."""

    def __init__(self, path: Path, made: Counter[str] | None = None, seconds: float = SECONDS) -> None:
        super().__init__(path, made, seconds)
        self._end = GrpcEnd()
        self._stream = -1
        self._waiting = http2.PREFACE + self._end.settings()

    def call(self, method: str, request: Message) -> Any:
        """Make a call and return the answer. Raises DemoError."""
        self.made[method] += 1
        self._stream = stream = self._stream + 2
        block = self._end.encode((*_HEAD, (":path", f"/runtime.v1.RuntimeService/{method}")))
        *parts, last = split(framed(request.SerializeToString()))
        body = b"".join(http2.frame(http2.DATA, 0, stream, part) for part in parts)
        body += http2.frame(http2.DATA, http2.END_STREAM, stream, last)
        self._waiting += http2.header_frames(stream, block, False) + body
        self.flush()
        answer = bytearray()
        while not self._take(stream, answer):
            self.flush()
        self.answered = time.monotonic_ns()
        return getattr(cri_pb2, f"{method}Response").FromString(bytes(answer[5:]))

    def _take(self, stream: int, answer: bytearray) -> bool:
        """Process the next bytes; return whether they end the call. Raises DemoError."""
        ended = False
        for kind, flags, of, payload in self._end.frames(self._read()):
            self._waiting += self._end.control_frames(kind, flags, payload)
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
        self._sock.settimeout(seconds)
        try:
            while True:
                self.flush()
                self._take(0, bytearray())
        except TimeoutError:
            self._sock.settimeout(self._seconds)

    def prepare(self, route: str) -> Call:
        request: Message
        if route in (cases.VERSION.route, cases.LISTED.route):
            request = getattr(cri_pb2, f"{route}Request")()
        elif route == cases.RUN.route:
            request = cri_pb2.RunPodSandboxRequest(config=node.pod_config())
        elif route == cases.CREATE.route:
            request = self.create_request()
        elif route == cases.START.route:
            request = cri_pb2.StartContainerRequest(container_id=self.container())
        else:
            request = cri_pb2.UpdateContainerResourcesRequest(container_id=self.container(), linux=node.RESOURCES)
        return lambda: self.call(route, request)

    def create_request(self) -> cri_pb2.CreateContainerRequest:
        """Run a pod; return the request of a container's create in it. Raises DemoError."""
        pod = node.pod_config()
        pod_id = self.call(cases.RUN.route, cri_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id
        return cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=node.container_config(), sandbox_config=pod)

    def container(self) -> str:
        return str(self.call(cases.CREATE.route, self.create_request()).container_id)


class DockerClient(Client):
    """A kubelet in Docker mode."""

    def call(self, route: str, target: str, body: bytes = b"") -> Any:
        """Make a call and return the answer, parsed if it is JSON. Raises DemoError."""
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
        path = route.partition(" ")[2]
        if route in (cases.DOCKER_VERSION.route, cases.DOCKER_LISTED.route):
            return lambda: self.call(route, path)
        if route == cases.DOCKER_CREATE.route:
            target, body = self.create_request()
            return lambda: self.call(route, target, body)
        named = path.replace("{ref}", self.container())
        update = b'{"CpuShares":256}' if route == cases.DOCKER_UPDATE.route else b""
        return lambda: self.call(route, named, update)

    def create_request(self) -> tuple[str, bytes]:
        """Run a pod; return target and body of a container's create in it. Raises DemoError."""
        pod_id = self.call(cases.DOCKER_CREATE.route, *_create("POD", "podsandbox", ""))["Id"]
        self.made[cases.DOCKER_CREATE.route] -= 1
        self.made[cases.DOCKER_POD] += 1
        return _create("main", "container", pod_id)

    def container(self) -> str:
        return str(self.call(cases.DOCKER_CREATE.route, *self.create_request())["Id"])


def _create(name: str, kind: str, pod_id: str) -> tuple[str, bytes]:
    body = json.dumps(node.docker_body(name, kind, pod_id), separators=(",", ":"))
    return f"/containers/create?name=k8s_{name}_web_default_u1_0", body.encode()


CLIENTS: dict[str, type[CriClient] | type[DockerClient]] = {cases.CRI: CriClient, cases.DOCKER: DockerClient}
