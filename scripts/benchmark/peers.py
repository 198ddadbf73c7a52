"""A runtime, a dockerd and a hook server that answer immediately, and send what peers written in Go send.

An answer is framed once its request is complete. A request costs only its parsing; a short CRI message about a pod or a
container is also formatted as text, as for a log. SIGUSR1 makes creates wait for their answers until SIGUSR2.

Run: ``python -m scripts.benchmark.peers cri|docker|hook SOCKET [SECONDS [LIST_BYTES [TRANSFER_BYTES]]]``. Without
SECONDS the credit and PING for a request are sent together with the answer, as grpc-go's writer merges what is queued;
otherwise the answer follows them after that time. At the end it prints the number of calls that it answered as one JSON
line; runtimes count only those of a load. Events of its dockerd cannot be followed.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from re import IGNORECASE
from re import compile as pattern

import uvloop
from google.protobuf.message import Message

from runtimeproxy.wire import http2
from scripts.benchmark import cases, node
from scripts.benchmark.cases import CREATES, CRI, DOCKER, EXPORT, IMPORT
from scripts.benchmark.ends import READ_BYTES, SECONDS, GrpcEnd, framed, split
from scripts.benchmark.loads import BLOCK, BUFFER_BYTES, LAST_CHUNK, import_result
from tests.fakes import cri_pb2

CHUNKED_BYTES, BUFFERED_BYTES, WRITE_BYTES = 2048, 4096, 32 << 10
"""net/http sends a Content-Length with a shorter answer; its write buffer, and that of grpc-go."""
LONG_BYTES = 1 << 20
"""Longer messages are not formatted as text, and are sent by a thread while others are answered."""
LOADS = ("h2load", "Docker-Client")
"""The beginnings of the user agents of load generators."""
CHANGES = b"\x12\x03\x32\x01\x30\x22\x0b\x0a\x06HOOKED\x12\x011"
"""A hook's answer: container_resources with cpuset_cpus "0", container_envs with HOOKED=1."""
UNIMPLEMENTED = "12"
INSPECT = "GET /containers/{ref}/json"
LISTED = cases.DOCKER_LISTED.route
_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
_REFERENCE = pattern("^(/v[0-9.]+)?(/containers/)c?[0-9a-f]{32,}")
_LENGTH = pattern(r"content-length: *(\d+)", IGNORECASE)
_OF_LOAD = pattern(f"user-agent: ({'|'.join(LOADS)})", IGNORECASE)
_REASONS = {200: "OK", 201: "Created", 204: "No Content", 404: "Not Found"}
_OK = "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n"

_numbers = count(1000)
"""Numbers for ids that no listed pod has."""
_texts: dict[str, str] = {}
"""The text of the last request, by method."""
_answered: Counter[str] = Counter()
_made: dict[str, tuple[str, bytes]] = {}
"""Docker's containers by id: name, and body of the create."""


class Gate:
    """Delays the answers of creates while it is shut."""

    _waiting: list[Callable[[], None]] | None = None

    def shut(self) -> None:
        self._waiting = []

    def open(self) -> None:
        waiting, self._waiting = self._waiting, None
        for reply in waiting or ():
            reply()

    def stops(self, route: str, reply: Callable[[], None]) -> bool:
        """Return whether a reply has to wait until the gate opens: it is a create's and the gate is shut."""
        if self._waiting is None or route not in (CREATES[CRI].route, CREATES[DOCKER].route):
            return False
        self._waiting.append(reply)
        return True


gate = Gate()


# ---- answers

Answer = Callable[[str, bytes], bytes | None]
"""Returns the answer's message for a method and its request; None if the method is unknown."""
_CRI: dict[str, Callable[..., Message]] = {
    "Version": lambda request: node.VERSION,
    "Status": lambda request: cri_pb2.StatusResponse(
        status=cri_pb2.RuntimeStatus(conditions=[cri_pb2.RuntimeCondition(type="RuntimeReady", status=True)])
    ),
    "PodSandboxStatus": lambda request: cri_pb2.PodSandboxStatusResponse(
        status=cri_pb2.PodSandboxStatus(
            id=request.pod_sandbox_id, metadata=node.POD_NAME, labels=node.LABELS, annotations=node.ANNOTATIONS
        )
    ),
    "ContainerStatus": lambda request: cri_pb2.ContainerStatusResponse(
        status=cri_pb2.ContainerStatus(
            id=request.container_id, metadata=node.NAME, labels=node.LABELS, annotations=node.ANNOTATIONS
        )
    ),
    "RunPodSandbox": lambda request: cri_pb2.RunPodSandboxResponse(pod_sandbox_id=f"{next(_numbers):064x}"),
    "CreateContainer": lambda request: cri_pb2.CreateContainerResponse(container_id=f"c{next(_numbers):063x}"),
    "StartContainer": lambda request: cri_pb2.StartContainerResponse(),
    "UpdateContainerResources": lambda request: cri_pb2.UpdateContainerResourcesResponse(),
    "ExecSync": lambda request: cri_pb2.ExecSyncResponse(stdout=b"ready\n"),
}
LOGGED = ("RunPodSandbox", "CreateContainer", "UpdateContainerResources")


def _padding(short: int, list_bytes: int) -> str:
    """Return the padding for each container of a list that would have ``short`` bytes without it."""
    return "x" * (max(list_bytes - short, 0) // node.LISTED)


def cri(list_bytes: int) -> Answer:
    """Return a runtime's answers; the list of containers has about ``list_bytes`` bytes."""
    listed = {"ListPodSandbox": node.PODS.SerializeToString()}
    listed["ListContainers"] = node.containers(_padding(node.containers().ByteSize(), list_bytes)).SerializeToString()

    def answer(method: str, request: bytes) -> bytes | None:
        if method not in _CRI:
            return listed.get(method)
        message = getattr(cri_pb2, f"{method}Request", cri_pb2.VersionRequest).FromString(request)
        if method in LOGGED and len(request) < LONG_BYTES:
            _texts[method] = str(message)
        return bytes(_CRI[method](message).SerializeToString())

    return answer


def _hook(method: str, request: bytes) -> bytes:
    """Return the answer of a hook call: a container gets a cpuset and a variable, a pod nothing."""
    return CHANGES if "Container" in method else b""


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


_DOCKER: dict[str, Callable[[], tuple[int, object]]] = {
    cases.DOCKER_VERSION.route: lambda: (200, "OK"),
    "GET /info": lambda: (200, {"CgroupDriver": "cgroupfs", "CgroupVersion": "1"}),
    cases.DOCKER_START.route: lambda: (204, None),
    cases.DOCKER_UPDATE.route: lambda: (200, {"Warnings": []}),
}
"""Status and answer by route: JSON, text, or nothing."""


def _reply(status: int, answer: object) -> Iterator[bytes]:
    """Yield the writes of an answer: several, with chunked framing, for one longer than net/http's buffer."""
    text = answer if isinstance(answer, str) else _json(answer)
    kind = "application/json" if text.endswith("\n") else "text/plain; charset=utf-8"
    head = [f"HTTP/1.1 {status} {_REASONS[status]}", "Api-Version: 1.41", "Date: Mon, 23 Nov 2026 12:00:00 GMT"]
    if answer is None:
        yield "\r\n".join([*head, "", ""]).encode()
    elif len(text) < CHUNKED_BYTES:
        yield "\r\n".join([*head, f"Content-Type: {kind}", f"Content-Length: {len(text)}", "", text]).encode()
    else:
        head += [f"Content-Type: {kind}", "Transfer-Encoding: chunked"]
        whole = "\r\n".join([*head, "", f"{len(text):x}", text]).encode()
        yield whole[:BUFFERED_BYTES]
        yield whole[BUFFERED_BYTES:]
        yield b"\r\n" + LAST_CHUNK


# ---- connections

Later = Callable[[Callable[[], None]], object]


class GrpcConnection:
    """A connection of a gRPC server; its streams' windows are large enough for any answer. ``later`` delays answers."""

    def __init__(self, sock: socket.socket, answer: Answer, later: Later | None, counts_all: bool = False) -> None:
        self._sock, self._later, self._answer, self._counts_all = sock, later, answer, counts_all
        self._end = GrpcEnd()
        self._preface = len(http2.PREFACE)
        self._window = http2.DEFAULT_WINDOW
        self._out: deque[tuple[int, bytes]] = deque([(0, self._end.settings())])
        """Frames, each with its flow-controlled length."""
        self._requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._send()

    def received(self, data: bytes) -> None:
        self._preface, data = max(self._preface - len(data), 0), data[self._preface :]
        for kind, flags, stream, payload in self._end.frames(data):
            if control := self._end.control_frames(kind, flags, payload):
                self._out.append((0, control))
            if kind == http2.HEADERS:
                self._requests[stream] = self._end.decode(flags, payload), bytearray()
            elif kind == http2.WINDOW_UPDATE and not stream:
                # At most this much at a time: the peer may wait for more credit without reading.
                self._window = min(self._window + http2.read_u32(payload), LONG_BYTES)
            elif kind == http2.DATA:
                self._requests[stream][1].extend(payload)
                if flags & http2.END_STREAM:
                    self._end_of_request(stream)
        self._send()

    def _end_of_request(self, stream: int) -> None:
        method = self._requests[stream][0][":path"].rpartition("/")[2]
        if gate.stops(method, partial(self._send_reply, stream, method)):
            return
        if self._later is None:
            self._reply(stream, method)
        else:
            self._later(partial(self._send_reply, stream, method))

    def _send_reply(self, stream: int, method: str) -> None:
        self._reply(stream, method)
        self._send()

    def _send(self) -> None:
        out = bytearray()
        while self._out and self._out[0][0] <= self._window:
            cost, frame = self._out.popleft()
            self._window -= cost
            out += frame
        for at in range(0, len(out), WRITE_BYTES):
            self._sock.sendall(out[at : at + WRITE_BYTES])

    def _reply(self, stream: int, method: str) -> None:
        fields, body = self._requests.pop(stream)
        message, end = self._answer(method, bytes(body[5:])), self._end
        _answered[method] += self._counts_all or fields.get("user-agent", "").startswith(LOADS)
        if message is None:
            status = (*_HEADERS, ("grpc-status", UNIMPLEMENTED), ("grpc-message", "not served"))
            self._out.append((0, http2.header_frames(stream, end.encode(status), True)))
            return
        self._out.append((0, http2.header_frames(stream, end.encode(_HEADERS), False)))
        self._out += [(len(part), http2.frame(http2.DATA, 0, stream, part)) for part in split(framed(message))]
        trailers = end.encode((("grpc-status", "0"), ("grpc-message", "")))
        self._out.append((0, http2.header_frames(stream, trailers, True)))


class HttpConnection:
    """A connection of dockerd; ``leave`` removes it from the event loop: a long transfer has a thread of its own."""

    def __init__(
        self, sock: socket.socket, leave: Callable[[], object], listed: Sequence[bytes], transfer_bytes: int
    ) -> None:
        self._sock, self._leave, self._listed, self._transfer_bytes = sock, leave, listed, transfer_bytes
        self._data = bytearray()
        self._whole = 0
        """Length of the request in bytes, 0 as long as its head is not complete."""

    def received(self, data: bytes) -> None:
        self._data += data
        if not self._whole:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            first, _, self._head = self._data[: end + 2].decode().partition("\r\n")
            length = _LENGTH.search(self._head)
            self._length = int(length[1]) if length else 0
            self._whole = end + 4 + self._length
            method, self._target, _ = first.split(" ")
            path = _REFERENCE.sub(r"\1\2{ref}", self._target.partition("?")[0])
            self._route = f"{method} {path.removeprefix('/v1.41')}"
            if self._route in (EXPORT.route, IMPORT.route):
                self._leave()
                _answered[self._route] += 1
                transfer = self._export if self._route == EXPORT.route else self._import
                threading.Thread(target=transfer, args=(bytes(self._data[self._whole :]),), daemon=True).start()
                return
        if len(self._data) >= self._whole:
            answer = partial(self._answer, bytes(self._data[self._whole - self._length : self._whole]))
            self._data, self._whole = bytearray(), 0
            if not gate.stops(self._route, answer):
                answer()

    def _answer(self, body: bytes) -> None:
        _answered[self._route] += _OF_LOAD.search(self._head) is not None
        out: Sequence[bytes]
        if self._route == LISTED:
            out = self._listed
        elif self._route == cases.DOCKER_CREATE.route:
            made = f"c{next(_numbers):063x}"
            if len(body) < LONG_BYTES:
                _made[made] = self._target.partition("name=")[2], body
            out = list(_reply(201, {"Id": made, "Warnings": []}))
        elif self._route == INSPECT and (name_and_body := _made.get(self._target.split("/")[-2])):
            name, config = name_and_body[0], json.loads(name_and_body[1])
            out = list(_reply(200, {"Name": f"/{name}", "Config": config, "HostConfig": config["HostConfig"]}))
        elif self._route in _DOCKER:
            out = list(_reply(*_DOCKER[self._route]()))
        else:
            out = list(_reply(404, {"message": "no such thing"}))
        if sum(map(len, out)) > LONG_BYTES:
            threading.Thread(target=self._send, args=(out,), daemon=True).start()
        else:
            self._send(out)
        if "Connection: close" in self._head:
            self._leave()
            self._sock.close()

    def _send(self, out: Sequence[bytes]) -> None:
        for part in out:
            self._sock.sendall(part)

    def _export(self, begun: bytes) -> None:
        with self._sock as sock, suppress(OSError):  # the client closes once it has read enough
            sock.settimeout(None)
            sock.sendall(f"{_OK}Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(self._transfer_bytes // BUFFER_BYTES):
                sock.sendall(BLOCK)
            sock.sendall(LAST_CHUNK)

    def _import(self, begun: bytes) -> None:
        """Read up to the last chunk; the data are zero bytes, so they cannot contain it."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        count, tail = len(begun), begun
        with self._sock as sock:
            sock.settimeout(None)
            while not tail.endswith(LAST_CHUNK):
                got = sock.recv_into(buffer)
                if not got:
                    return
                count += got
                tail = (tail + bytes(buffer[max(got - len(LAST_CHUNK), 0) : got]))[-len(LAST_CHUNK) :]
            body = import_result(count)
            sock.sendall(f"{_OK}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            sock.sendall(b"%x\r\n%b\r\n%b" % (len(body), body, LAST_CHUNK))


Connection = GrpcConnection | HttpConnection


def connections(
    kind: str, seconds: float, list_bytes: int, transfer_bytes: int
) -> Callable[[socket.socket, Callable[[], object]], Connection]:
    """Return the factory for connections of a runtime, a dockerd, or a hook server."""
    if kind == DOCKER:
        short = len(_json(node.docker_containers()))
        listed = list(_reply(200, node.docker_containers(_padding(short, list_bytes))))
        return lambda sock, leave: HttpConnection(sock, leave, listed, transfer_bytes)
    later = partial(asyncio.get_running_loop().call_later, seconds) if seconds else None
    answer = cri(list_bytes) if kind == CRI else _hook
    return lambda sock, leave: GrpcConnection(sock, answer, later, kind != CRI)


async def serve(path: str, make: Callable[[socket.socket, Callable[[], object]], Connection]) -> None:
    """Serve until SIGTERM, then print the counts."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number, act in {signal.SIGTERM: stopped.set, signal.SIGUSR1: gate.shut, signal.SIGUSR2: gate.open}.items():
        loop.add_signal_handler(number, act)

    def accept() -> None:
        sock, _ = listener.accept()
        sock.settimeout(SECONDS)
        with suppress(BrokenPipeError):  # a client that only checks whether we listen
            loop.add_reader(sock, receive, sock, make(sock, partial(loop.remove_reader, sock)))

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
        listener.listen(4096)
        loop.add_reader(listener, accept)
        gc.freeze()
        await stopped.wait()
        loop.remove_reader(listener)
    os.unlink(path)
    print(json.dumps({route: calls for route, calls in _answered.items() if calls}), flush=True)


async def main(kind: str, path: str, seconds: str = "0", list_bytes: str = "0", transfer_bytes: str = "0") -> None:
    await serve(path, connections(kind, float(seconds), int(list_bytes), int(transfer_bytes)))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
