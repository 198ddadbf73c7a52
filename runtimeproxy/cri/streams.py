"""The streams of one pair of connections that do not pass unchanged, and what all connections of a front share.

Owns which streams are handled, how their DATA and header blocks are sent on, the proxy's own answers, and for how long
late frames of ended streams are dropped.
Must not know: sockets, why a stream does not pass.
Invariant: bytes leave by the two senders only; a padded frame is never split, a header block is re-encoded only if it
has to be (relay-rules A1, A8), and DATA of a stream that the proxy answered are credited, so that the connection window
stays open.
"""

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from runtimeproxy.core.memory_budget import MemoryBudget
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import FlowControlledSender


@dataclass(slots=True)
class Data:
    """A complete DATA frame: payload without padding, flow-controlled length in bytes, and the frame as it came."""

    payload: bytes
    length: int
    end: bool
    frame: bytes

    def send(self, sink: FlowControlledSender, stream: int, source: FlowControlledSender | None = None) -> None:
        """Send the DATA on, split as the windows allow; a padded frame is never split (relay-rules A8)."""
        if len(self.payload) == self.length:
            sink.send_data(stream, self.payload, self.end, source, self.length)
        else:
            sink.send_frame(stream, self.frame, self.length, source)


@dataclass(slots=True)
class HeaderBlock:
    """A header block of one stream, complete once ``alone`` is set."""

    blocks: headers.Blocks
    """The header compression of the direction that it came in."""
    kind: int
    flags: int
    stream: int
    prefix: bytes
    fragments: list[bytes]
    originals: list[bytes]
    size: int
    end: bool
    """True if END_STREAM is set: the block ends its half of the stream."""
    alone: bytes = b""
    """The block re-encoded so that it does not depend on the HPACK dynamic table."""

    def send(self, sink: FlowControlledSender, stream: int, source: FlowControlledSender | None = None) -> None:
        """Send the block on, after what waits of its stream: its own frames if nothing has to change, else new ones. A
        block that waits may still be dropped, so it must not carry the table size update (relay-rules A1).
        """
        if self.blocks.standalone:
            block = self.alone
        elif sink.congested or sink.cut_through:
            block = headers.alone(self.alone)
        else:
            block = self.blocks.mark(self.alone)
        if b"".join(self.fragments) == block:
            frames = b"".join(self.originals)
        else:
            frames = http2.block_frames(self.kind, self.flags, stream, self.prefix, block)
        sink.send_frame(stream, frames)


class Stream(Protocol):
    """A stream that does not pass unchanged: held, answered by the proxy, or sent to the image endpoint. Each method is
    called for a frame or header block that the client or the runtime sent on the stream.
    """

    def client_headers(self, block: HeaderBlock) -> None: ...
    def client_data(self, data: Data) -> None: ...
    def client_reset(self, frame: bytes) -> None: ...
    def client_window(self, increment: int) -> None: ...
    def runtime_headers(self, block: HeaderBlock) -> None: ...
    def runtime_data(self, data: Data) -> None: ...
    def runtime_reset(self, frame: bytes) -> None: ...
    def runtime_window(self, increment: int) -> None: ...


def refusal(stream: int, code: int, text: str, half_closed: bool) -> bytes:
    """Build a gRPC Trailers-Only answer; RST_STREAM(NO_ERROR) follows unless the client half-closed (RFC 9113, 8.1)."""
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    status = [(b"grpc-status", str(code).encode()), (b"grpc-message", grpc.percent_encode(text))]
    frames = http2.header_frames(stream, headers.build([*head, *status]), True)
    return frames if half_closed else frames + http2.rst_stream(stream, http2.NO_ERROR)


class LocallyAnsweredStream:
    """A stream that the proxy answered itself: what either side still sends on it is dropped, its DATA credited."""

    def __init__(self, client_out: FlowControlledSender, runtime_out: FlowControlledSender) -> None:
        self._client_out = client_out
        self._runtime_out = runtime_out

    def client_data(self, data: Data) -> None:
        self._client_out.credit(data.length)

    def runtime_data(self, data: Data) -> None:
        self._runtime_out.credit(data.length)

    def _drop(self, what: object) -> None:
        """Drop a header block, a reset or credit."""

    client_headers = runtime_headers = client_reset = runtime_reset = client_window = runtime_window = _drop


RETIRED_LIMIT = 1_000
"""Ended streams that are remembered, so that late frames on them do not reach a peer that never got the stream."""


class Open(Enum):
    """The state of a passing stream: no answer yet, its answer has begun, or it has no end (``goaway.ENDLESS``)."""

    UNANSWERED = "unanswered"
    ANSWERING = "answering"
    ENDLESS = "endless"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of a front share."""

    budget: MemoryBudget
    clock: Callable[[], float]
    """The event loop's clock."""
    counters: MutableMapping[Key, int]
    """The calls that passed, by their series; a series is there before ``FromClient.passed`` counts it."""
    kinds: Mapping[Operation, Callable[..., Any]]
    """The class of held call for each operation."""
    image_apart: bool
    start_and_stop_pass: Callable[[], bool]
    """Return whether a start or a stop passes without being held."""
    passes_ambiguous: Callable[[], bool]
    """Called for a request without exactly one :path: return whether it passes."""
    restore_refusal: Callable[[], str]
    """Called for a RestorePod: return why it is refused, "" if it passes."""


class Streams:
    """The streams of a pair that are handled, by number."""

    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        self.shared = shared
        self.wake = wake
        """Called when there are bytes to send outside of a read: write them."""
        self.client_out = FlowControlledSender()
        self.runtime_out = FlowControlledSender()
        self.streams: dict[int, Stream] = {}
        self.open: dict[int, Open] = {}
        """Passing streams that the runtime has not ended."""
        self.highest = 0
        """Highest id of a stream that was sent to the runtime."""
        self.ready: deque[object] = deque()
        """What the connection has to act on after the read: held calls to start or to resume, and ``reader`` events."""
        self._retired: deque[int] = deque()

    def forget(self, stream: int) -> None:
        """Stop handling a stream: its frames pass unchanged from now on."""
        self.streams.pop(stream, None)
        self.runtime_out.forget_window(stream)

    def drop(self, stream: int) -> None:
        """Drop what still comes on a stream that the proxy answered itself."""
        self.runtime_out.forget_window(stream)
        self.streams[stream] = LocallyAnsweredStream(self.client_out, self.runtime_out)
        self.retire(stream)

    def answer(self, stream: int, frames: bytes) -> None:
        """Answer a request in the server's place, and drop what still comes on its stream."""
        self.client_out.inject(frames)
        self.drop(stream)

    def retire(self, stream: int) -> None:
        """Remember an ended stream until RETIRED_LIMIT others have ended and nothing of it waits for the client."""
        self._retired.append(stream)
        if len(self._retired) > RETIRED_LIMIT:
            oldest = self._retired.popleft()
            if self.client_out.waits(oldest):
                self._retired.append(oldest)
            else:
                self.streams.pop(oldest, None)
                self.client_out.forget_window(oldest)
