"""A runtime, a dockerd and a hook server that answer at once, and that send what peers in Go send.

Owns their answers and their processes.
Must not know: what is measured.
Invariant: every answer is made anew, frames and all, from a request that was read whole.

A request costs them the reading; where a CRI message tells of a pod or a container its text is kept, as a log's would
be. Nothing else is done for it.
Run: ``python -m scripts.benchmark.peers cri|docker|hook SOCKET [SECONDS]``. Without SECONDS credit and PING for a
request leave with the answer, as grpc-go's writer puts together what is there; else the answer waits so long behind
them. At the end it prints the calls that it answered as one JSON line: the runtimes those of a load.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from re import compile as pattern

import uvloop
from google.protobuf.message import Message

from runtimeproxy.wire import http2
from scripts.benchmark.goends import READ_BYTES, GrpcEnd, framed, read_message
from scripts.benchmark.node import CONTAINERS, DOCKER_CONTAINERS, PODS, VERSION, container_status, pod_status
from tests.fakes import cri_pb2

SECONDS = 30.0
CHUNKED_BYTES = 2048
"""net/http tells the length of a shorter answer."""
BUFFER_BYTES = 4096
"""net/http's buffer for writing."""
WRITE_BYTES = 32 << 10
"""grpc-go's."""
LOADS = ("h2load", "Docker-Client")
"""How the user agents of a load begin."""
CHANGES = b"\x12\x03\x32\x01\x30\x22\x0b\x0a\x06HOOKED\x12\x011"
"""A hook's answer: container_resources with cpuset_cpus "0", container_envs with HOOKED=1."""
UNIMPLEMENTED = "12"
_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
_REFERENCE = pattern("^(/v[0-9.]+)?(/containers/)c?[0-9a-f]{32,}")
_REASONS = {200: "OK", 201: "Created", 204: "No Content", 404: "Not Found"}

_numbers = count(1000)
"""No pod's that is listed."""
_texts: dict[str, str] = {}
"""What was asked last, by method."""
_answered: Counter[str] = Counter()


# ---- answers

_CRI: dict[str, Callable[..., Message]] = {
    "Version": lambda asked: VERSION,
    "ListPodSandbox": lambda asked: PODS,
    "ListContainers": lambda asked: CONTAINERS,
    "PodSandboxStatus": lambda asked: cri_pb2.PodSandboxStatusResponse(status=pod_status(asked.pod_sandbox_id)),
    "ContainerStatus": lambda asked: cri_pb2.ContainerStatusResponse(status=container_status(asked.container_id)),
    "RunPodSandbox": lambda asked: cri_pb2.RunPodSandboxResponse(pod_sandbox_id=f"{next(_numbers):064x}"),
    "CreateContainer": lambda asked: cri_pb2.CreateContainerResponse(container_id=f"c{next(_numbers):063x}"),
    "StartContainer": lambda asked: cri_pb2.StartContainerResponse(),
    "UpdateContainerResources": lambda asked: cri_pb2.UpdateContainerResourcesResponse(),
}
TOLD = ("RunPodSandbox", "CreateContainer", "UpdateContainerResources")


def _cri(method: str, request: bytes) -> bytes | None:
    """Answer a call to the runtime; None if it is not known."""
    if method not in _CRI:
        return None
    asked = getattr(cri_pb2, f"{method}Request").FromString(request)
    if method in TOLD:
        _texts[method] = str(asked)
    return bytes(_CRI[method](asked).SerializeToString())


def _hook(method: str, request: bytes) -> bytes:
    """Answer a hook call: a container gets a cpuset and an environment entry, a pod nothing."""
    return CHANGES if "Container" in method else b""


_DOCKER: dict[str, Callable[[], tuple[int, object]]] = {
    "GET /_ping": lambda: (200, "OK"),
    "GET /info": lambda: (200, {"CgroupDriver": "cgroupfs", "CgroupVersion": "1"}),
    "GET /containers/json": lambda: (200, DOCKER_CONTAINERS),
    "POST /containers/create": lambda: (201, {"Id": f"c{next(_numbers):063x}", "Warnings": []}),
    "POST /containers/{ref}/start": lambda: (204, None),
    "POST /containers/{ref}/update": lambda: (200, {"Warnings": []}),
}
"""Status and answer: JSON, text, or nothing."""


def _pieces(status: int, answer: object) -> Iterator[bytes]:
    """Make the sends of an answer: what is longer than net/http's buffer leaves in a chunk of its own."""
    text = answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":")) + "\n"
    kind = "text/plain; charset=utf-8" if isinstance(answer, str) else "application/json"
    head = [f"HTTP/1.1 {status} {_REASONS[status]}", "Api-Version: 1.41", "Date: Mon, 23 Nov 2026 12:00:00 GMT"]
    if answer is None:
        yield "\r\n".join([*head, "", ""]).encode()
    elif len(text) < CHUNKED_BYTES:
        yield "\r\n".join([*head, f"Content-Type: {kind}", f"Content-Length: {len(text)}", "", text]).encode()
    else:
        head += [f"Content-Type: {kind}", "Transfer-Encoding: chunked"]
        whole_answer = "\r\n".join([*head, "", f"{len(text):x}", text]).encode()
        yield whole_answer[:BUFFER_BYTES]
        yield whole_answer[BUFFER_BYTES:]
        yield b"\r\n0\r\n\r\n"


# ---- connections

Later = Callable[[Callable[[], None]], object]


class GrpcConnection:
    """A connection of a gRPC server's; ``later`` makes the answer wait."""

    def __init__(
        self, sock: socket.socket, later: Later | None, answer: Callable[[str, bytes], bytes | None], counts_all: bool
    ) -> None:
        self._sock, self._later, self._answer, self._counts_all = sock, later, answer, counts_all
        self._end = GrpcEnd()
        self._preface = len(http2.PREFACE)
        self._requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        sock.sendall(self._end.settings())

    def received(self, data: bytes) -> None:
        """Take the client's bytes."""
        self._preface, data = max(self._preface - len(data), 0), data[self._preface :]
        out = b""
        for kind, flags, stream, payload in self._end.frames(data):
            out += self._end.beside(kind, flags, payload)
            if kind == http2.HEADERS:
                self._requests[stream] = self._end.decode(flags, payload), bytearray()
            elif kind == http2.DATA:
                self._requests[stream][1].extend(payload)
                if flags & http2.END_STREAM:
                    if self._later is None:
                        out += self._reply(stream)
                    else:
                        self._later(partial(self._send_reply, stream))
        self._send(out)

    def _send_reply(self, stream: int) -> None:
        self._send(self._reply(stream))

    def _send(self, out: bytes) -> None:
        for at in range(0, len(out), WRITE_BYTES):
            self._sock.sendall(out[at : at + WRITE_BYTES])

    def _reply(self, stream: int) -> bytes:
        fields, body = self._requests.pop(stream)
        method = fields[":path"].rpartition("/")[2]
        message, end = self._answer(method, bytes(body[5:])), self._end
        _answered[method] += self._counts_all or fields.get("user-agent", "").startswith(LOADS)
        if message is None:
            status = (*_HEADERS, ("grpc-status", UNIMPLEMENTED), ("grpc-message", "not served"))
            return http2.header_frames(stream, end.encode(status), True)
        return (
            http2.header_frames(stream, end.encode(_HEADERS), False)
            + end.data(stream, framed(message))
            + http2.header_frames(stream, end.encode((("grpc-status", "0"), ("grpc-message", ""))), True)
        )


class HttpConnection:
    """A connection of an HTTP/1.1 server's."""

    def __init__(self, sock: socket.socket, later: Later | None) -> None:
        self._sock = sock
        self._received = b""

    def received(self, data: bytes) -> None:
        """Take the client's bytes."""
        self._received += data
        request = read_message(self._received)
        if request is not None:
            self._received = b""
            for piece in self._reply(*request):
                self._sock.sendall(piece)

    def _reply(self, first: str, fields: dict[str, str], body: bytes) -> Iterator[bytes]:
        method, target, _ = first.split(" ")
        path = _REFERENCE.sub(r"\1\2{ref}", target.partition("?")[0])
        route = f"{method} {path.removeprefix('/v1.41')}"
        _answered[route] += fields.get("user-agent", "").startswith(LOADS)
        return _pieces(*(_DOCKER[route]() if route in _DOCKER else (404, {"message": "no such thing"})))


Connection = GrpcConnection | HttpConnection
KINDS: dict[str, Callable[[socket.socket, Later | None], Connection]] = {
    "cri": partial(GrpcConnection, answer=_cri, counts_all=False),
    "docker": HttpConnection,
    "hook": partial(GrpcConnection, answer=_hook, counts_all=True),
}


async def serve(kind: str, path: str, seconds: float) -> None:
    """Serve until SIGTERM, then print the counts."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    later = partial(loop.call_later, seconds) if seconds else None

    def accept() -> None:
        sock, _ = listener.accept()
        sock.settimeout(SECONDS)
        with suppress(BrokenPipeError):  # somebody looks whether we listen
            loop.add_reader(sock, receive, sock, KINDS[kind](sock, later))

    def receive(sock: socket.socket, connection: Connection) -> None:
        data = b""
        with suppress(ConnectionResetError):
            data = sock.recv(READ_BYTES)
        if data:
            connection.received(data)
        else:
            loop.remove_reader(sock)
            sock.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        loop.add_reader(listener, accept)
        gc.freeze()
        await stopped.wait()
        loop.remove_reader(listener)
    os.unlink(path)
    print(json.dumps({route: calls for route, calls in _answered.items() if calls}))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0))
