"""A CRI runtime whose answers are ready: what is measured of a proxy that reads a full node is the proxy's own time.

A runtime in Python makes an answer in several times what it takes the proxy to read it. The bytes are those that the
tests' fake runtime answers, which are containerd's (``tests.fakes.spec``).
Owns the answers, and as much of HTTP/2 as a client that behaves needs.
Must not know: what a message means.
Invariant: no call changes anything; an answer is made at most once.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, cast

import grpc as grpcio
from google.protobuf.message import Message

from runtimeproxy.wire import grpc, headers, http2
from tests.fakes import cri_pb2
from tests.fakes.runtime_state import Refused, RuntimeState

_HEADERS = headers.build([(b":status", b"200"), (b"content-type", b"application/grpc")])
_GOOD = headers.build([(b"grpc-status", b"0"), (b"grpc-message", b"")])
_NAMES = ("Version", "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus")
_METHODS = {f"/{name}".encode(): name for name in _NAMES}
"""The others are not known."""
_UNKNOWN = ""

Answer = tuple[bytes, bytes]
"""A message with its prefix, b"" if there is none, and the block of the trailers."""


class PreparedRuntime:
    """Listens on a socket, and answers from a state that stays as it is."""

    def __init__(self, socket_path: str, state: RuntimeState) -> None:
        self.state = state
        self._socket_path = socket_path
        self._answers: dict[tuple[str, bytes], Answer] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        requests: list[Message] = [cri_pb2.ListPodSandboxRequest(), cri_pb2.ListContainersRequest()]
        requests += [cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=one, verbose=True) for one in self.state.pods]
        requests += [cri_pb2.ContainerStatusRequest(container_id=one, verbose=True) for one in self.state.containers]
        for request in requests:
            method = type(request).__name__.removesuffix("Request")
            self.answer(method, grpc.message(request.SerializeToString()))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self.answer), self._socket_path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        os.unlink(self._socket_path)

    def answer(self, method: str, framed: bytes) -> Answer:
        """Return the answer to a request with its prefix."""
        known = self._answers.get((method, framed))
        if known is None:
            known = self._answers[method, framed] = self._made(method, framed[grpc.PREFIX_BYTES :])
        return known

    def _made(self, method: str, message: bytes) -> Answer:
        try:
            if method == _UNKNOWN:
                raise Refused(grpcio.StatusCode.UNIMPLEMENTED, "not prepared")
            return grpc.message(self.state.answer("v1", method, message)), _GOOD
        except Refused as refused:
            number, _ = refused.code.value
            status = (b"grpc-status", str(number).encode())
            return b"", headers.build([(b":status", b"200"), (b"content-type", b"application/grpc"), status])


class _Connection(asyncio.Protocol):
    """One connection; its client's stream windows take whole answers, and of a request's head only the path counts."""

    def __init__(self, answer: Callable[[str, bytes], Answer]) -> None:
        self._answer = answer
        self._frames = http2.FrameBuffer()
        self._preface = len(http2.PREFACE)
        self._window = http2.DEFAULT_WINDOW
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Frames, each with what it costs of the connection's window."""
        self._asked: dict[int, str] = {}
        """The method of each stream that has no answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say first what the client waits for."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(http2.settings({}))

    def data_received(self, data: bytes) -> None:
        """Answer every request that ends in these bytes, as far as the window reaches."""
        self._preface, data = max(self._preface - len(data), 0), data[self._preface :]
        for kind, flags, stream, payload in self._frames.feed(data):
            self._take(kind, flags, stream, payload)
        out = []
        while self._waiting and self._waiting[0][0] <= self._window:
            cost, frame = self._waiting.popleft()
            self._window -= cost
            out.append(frame)
        if out:
            self._transport.write(b"".join(out))

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.SETTINGS and not flags & http2.ACK:
            self._waiting.append((0, http2.SETTINGS_ACK))
        elif kind == http2.PING and not flags & http2.ACK:
            self._waiting.append((0, http2.frame(http2.PING, http2.ACK, 0, payload)))
        elif kind == http2.WINDOW_UPDATE and not stream:
            self._window += http2.read_u32(payload)
        elif kind == http2.HEADERS:
            # Through a proxy the path comes as it is: nobody may index it, and gRPC's clients use no Huffman code.
            self._asked[stream] = next((name for text, name in _METHODS.items() if text in payload), _UNKNOWN)
        elif kind == http2.DATA and flags & http2.END_STREAM:
            self._waiting.append((0, http2.window_update(0, len(payload))))
            self._waiting += _frames(stream, *self._answer(self._asked.pop(stream), payload))


def _frames(stream: int, message: bytes, trailers: bytes) -> Iterator[tuple[int, bytes]]:
    """Make the frames of an answer, each with what it costs; one without a message is its trailers alone."""
    if message:
        yield 0, http2.header_frames(stream, _HEADERS, False)
    for at in range(0, len(message), http2.DEFAULT_FRAME_SIZE):
        part = message[at : at + http2.DEFAULT_FRAME_SIZE]
        yield len(part), http2.frame(http2.DATA, 0, stream, part)
    yield 0, http2.header_frames(stream, trailers, True)
