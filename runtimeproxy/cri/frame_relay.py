"""Relay the frames of a CRI connection from one peer to the other and read them on the way, one object per direction.

Frames that the proxy need not handle leave as exactly the bytes that came, in order (relay-rules A1, A3, A8).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from runtimeproxy.core.call import MemoryBudget
from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import Excess
from runtimeproxy.cri.routes import PASSING_OTHER
from runtimeproxy.errors import WireError
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.http2 import PAIR_WINDOW, FlowControlledSender


@dataclass(slots=True)
class Data:
    """A complete DATA frame: ``payload`` without padding, ``length`` as flow control counts it."""

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
        """Send the block on, as its own frames if nothing changes. One that waits may still be dropped, so it must
        not carry the table size update (relay-rules A1)."""
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
    """A stream that is held, answered by the proxy, or sent to the image endpoint; called with what a peer sent."""

    def client_headers(self, block: HeaderBlock) -> None: ...
    def client_data(self, data: Data) -> None: ...
    def client_reset(self, frame: bytes) -> None: ...
    def client_window(self, increment: int) -> None: ...
    def runtime_part(self, part: Data | HeaderBlock) -> None: ...
    def runtime_reset(self, frame: bytes) -> None: ...
    def runtime_window(self, increment: int) -> None: ...


def refusal(stream: int, code: int, text: str, half_closed: bool) -> bytes:
    """Build a gRPC Trailers-Only answer; RST_STREAM(NO_ERROR) follows unless the client half-closed (RFC 9113, 8.1)."""
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    status = [(b"grpc-status", str(code).encode()), (b"grpc-message", grpc.percent_encode(text))]
    frames = http2.header_frames(stream, headers.build([*head, *status]), True)
    return frames if half_closed else frames + http2.rst_stream(stream, http2.NO_ERROR)


@dataclass(frozen=True, slots=True)
class LocallyAnsweredStream:
    """A stream that the proxy answered itself: what either side still sends on it is dropped, its DATA credited."""

    client_out: FlowControlledSender
    runtime_out: FlowControlledSender

    def client_data(self, data: Data) -> None:
        self.client_out.credit(data.length)

    def runtime_part(self, part: Data | HeaderBlock) -> None:
        if isinstance(part, Data):
            self.runtime_out.credit(part.length)

    def _drop(self, what: object) -> None: ...

    client_headers = client_reset = runtime_reset = client_window = runtime_window = _drop


RETIRED_LIMIT = 1_000
"""Ended streams that are remembered, so that late frames on them do not reach a peer that never got the stream."""


class Open(Enum):
    """The state of a passing stream."""

    UNANSWERED = "unanswered"
    ANSWERING = "answering"
    ENDLESS = "endless"


@dataclass(frozen=True, slots=True)
class Shared:
    budget: MemoryBudget
    clock: Callable[[], float]
    counters: MutableMapping[Key, int]
    """The calls that passed, by their series; a series is there before ``FromClient.passed`` counts it."""
    kinds: Mapping[Operation, Callable[..., Any]]
    image_apart: bool
    start_and_stop_pass: Callable[[], bool]
    passes_ambiguous: Callable[[], bool]
    """Called for a request without exactly one :path: return whether it passes."""
    restore_refusal: Callable[[], str]
    """Called for a RestorePod: return why it is refused, "" if it passes."""


class Streams:
    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        self.shared = shared
        self.wake = wake
        """Write what there is to send, outside of a read."""
        self.client_out = FlowControlledSender()
        self.runtime_out = FlowControlledSender()
        self.streams: dict[int, Stream] = {}
        self.open: dict[int, Open] = {}
        self.highest = 0
        """Highest stream that was sent to the runtime."""
        self.ready: deque[object] = deque()
        """What the connection has to act on after the read: held calls to start or to resume, and ``reader`` events."""
        self._retired: deque[int] = deque()

    def answer(self, stream: int, frames: bytes) -> None:
        """Answer a request in the server's place, and drop what still comes on its stream."""
        self.client_out.inject(frames)
        self.runtime_out.forget_window(stream)
        self.streams[stream] = LocallyAnsweredStream(self.client_out, self.runtime_out)
        self.retire(stream)

    def retire(self, stream: int) -> None:
        """Remember an ended stream until RETIRED_LIMIT others have ended and nothing of it waits for the client."""
        self._retired.append(stream)
        if len(self._retired) > RETIRED_LIMIT:
            oldest = self._retired.popleft()
            if oldest in self.client_out.queues:
                self._retired.append(oldest)
            else:
                self.streams.pop(oldest, None)
                self.client_out.forget_window(oldest)


KNOWN_BLOCKS = 1_024
KNOWN_BLOCK_BYTES = 512
"""Longest header block, in bytes, that is remembered as passing; KNOWN_BLOCKS are the most in one direction."""

SHORT_DATA_BYTES = 1_024
"""Unpadded DATA frames longer than this, in bytes, are relayed by a faster loop: long answers have many in a row."""

_AROUND = http2.PADDED | http2.PRIORITY_FLAG
_SHAPE = http2.END_HEADERS | _AROUND
_HEAD_BYTES, _MAX_STREAM_ID = http2.HEAD_BYTES, http2.MAX_STREAM_ID  # local names, for speed: every frame needs them
_DATA, _HEADERS, _END_HEADERS, _END_STREAM = http2.DATA, http2.HEADERS, http2.END_HEADERS, http2.END_STREAM
_CONTINUATION, _USUAL_BYTES = http2.CONTINUATION, http2.DEFAULT_FRAME_SIZE  # every peer accepts frames of this size
_PING_BYTES = 8

ALIVE_SECONDS = 1.0
"""Seconds of silence after which a peer may have hung, so that PINGs pass to it: keepalive PINGs come even later."""
ACKS_WAITING = 16
"""Most ACKs of the proxy's own that wait to be sent; grpc-go has at most one PING under way."""


class FrameRelay(ABC):
    """Relays the frames that the peer ``source`` sends to ``sink``."""

    from_client: bool
    piped = False
    unread = False
    """True while ``opening`` handles the bytes: before the first frame, and if they are no HTTP/2."""

    def __init__(self, reader: Streams, source: FlowControlledSender, sink: FlowControlledSender) -> None:
        self._reader = reader
        self._clock = reader.shared.clock
        self._leaving = False
        self.source = source
        self.sink = sink
        self.streams = reader.streams
        self.blocks = headers.Blocks()
        self.known: dict[bytes, Key] = {}
        """Header blocks that pass on any stream, each with the series that counts them."""
        self._buffer = bytearray()
        self._need = _HEAD_BYTES
        self._cut = 0
        self._block: HeaderBlock | None = None
        self._settings_seen = False
        self._orderly = False
        """True while any frame but CONTINUATION is legal: after the first SETTINGS, outside a header block."""
        self._handlers: dict[int, Callable[[int, int, bytes, bytes], None]] = {
            http2.DATA: self._data,
            http2.HEADERS: self._block_frame,
            http2.PUSH_PROMISE: self._block_frame,
            http2.CONTINUATION: self._block_frame,
            http2.RST_STREAM: self._reset,
            http2.SETTINGS: self._settings,
            http2.PING: self._ping,
            http2.GOAWAY: self._goaway,
            http2.WINDOW_UPDATE: self._window_update,
        }

    def feed(self, data: bytes) -> None:
        """Relay bytes of the source, split at any point. Raises WireError."""
        if self.unread and not (data := self.opening(data)):
            return
        self.source.last_read_at = self._clock()
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return
            data, self._buffer = bytes(self._buffer), bytearray()
        at, start = self._continue_cut(data) if self._cut else (0, 0)
        end, need = len(data), _HEAD_BYTES
        source, sink, streams, read_head = self.source, self.sink, self.streams, http2.read_head
        try:
            while at + _HEAD_BYTES <= end:
                high, low, kind, flags, stream = read_head(data, at)
                stream &= _MAX_STREAM_ID
                length = high << 8 | low
                after = at + _HEAD_BYTES + length
                nobodys = self._orderly and stream not in streams and not sink.queues and length <= sink.frame_limit
                if nobodys and (following := self._passes(kind, flags, stream, data, after - length, after)):
                    at = following
                    continue
                if length > _USUAL_BYTES or kind == _CONTINUATION or not self._orderly:
                    self._check_frame(kind, length)
                if after > end:
                    need = after - at
                    break
                if start < at:
                    sink.out.append(data[start:at])
                frame = data[at:after]
                at = start = after
                self._handlers.get(kind, self._other)(flags, stream, frame[_HEAD_BYTES:], frame)
                if sink.overfull or source.overfull:
                    raise Excess("queue", "too many frames wait for a peer's credit")
        finally:
            # Also after a WireError: a complete answer that came before the illegal frame must not be lost.
            if start < at:
                sink.out.append(data[start:at])
                if at > end:
                    self._cut = at - end
                    sink.cut_through = True
        if at < end:
            self._need = need
            self._buffer += data[at:]

    def _relay_data(self, data: bytes, at: int) -> int:
        """Pass consecutive DATA frames without flags, counted in one sum; return where the next frame starts."""
        sink, streams, read_head = self.sink, self.streams, http2.read_head
        last, limit, left = len(data) - _HEAD_BYTES, sink.frame_limit, sink.window
        while at <= last:
            high, low, kind, flags, stream = read_head(data, at)
            length = high << 8 | low
            if kind != _DATA or flags or not 0 < length <= limit or length > left or stream & _MAX_STREAM_ID in streams:
                break
            left -= length
            at += _HEAD_BYTES + length
        self.source.relayed(sink.window - left)
        sink.window = left
        return at

    def _continue_cut(self, data: bytes) -> tuple[int, int]:
        """Return where the next frame starts, perhaps beyond the data, and where the bytes not yet sent start: 0, so
        that the rest of the cut frame leaves in one slice with what follows it, unless other frames wait in between."""
        at, self._cut = self._cut, 0
        if at > len(data) or not self.sink.waiting:
            self.sink.cut_through = False
            return at, 0
        self.sink.out.append(data[:at])
        self.sink.boundary()
        return at, at

    def _check_frame(self, kind: int, length: int) -> None:
        if length > self.sink.frame_limit:
            raise Excess("frame_size", "frame is longer than the receiver allows", http2.PROTOCOL_ERROR)
        if length > (PAIR_WINDOW if kind == http2.DATA else bounds.COLLECTED_BYTES):
            raise Excess("frame_size", "frame is longer than what is collected of one")
        if (self._block is None) == (kind == http2.CONTINUATION):
            raise WireError("CONTINUATION out of place")
        if not self._settings_seen and kind != http2.SETTINGS:
            raise WireError("the first frame is not SETTINGS")

    def _passes(self, kind: int, flags: int, stream: int, data: bytes, at: int, after: int) -> int:
        """Return the offset after a frame that passes unchanged, or 0 if the frame needs its handler. DATA pass even
        before the frame is complete, and DATA frames that follow may pass with it (relay-rules A3, A8)."""
        if kind == _DATA:
            length = after - at
            if length > self.sink.window:
                return 0
            if length > SHORT_DATA_BYTES and not flags:
                return self._relay_data(data, at - _HEAD_BYTES)
            self.sink.window -= length
            self.source.relayed(length)
            if flags & _END_STREAM and not self.from_client:
                self._reader.open.pop(stream, None)
            return after
        if after > len(data):
            return 0
        if kind == _HEADERS:
            if flags & _SHAPE != _END_HEADERS or not self.blocks.standalone:
                return 0
            block = data[at:after]
            end = bool(flags & _END_STREAM)
            if block in self.known:
                self.passed(stream, end, self.known[block])
                return after
            return after if len(block) <= bounds.BLOCK_BYTES and self.passes_block(stream, block, end) else 0
        return 0 if kind in self._handlers and (kind != http2.WINDOW_UPDATE or not stream or after - at != 4) else after

    def remember(self, block: bytes, key: Key = PASSING_OTHER) -> None:
        """Remember a header block that passes: peers repeat them, and decoding each one costs more than a lookup."""
        if len(block) <= KNOWN_BLOCK_BYTES:
            if len(self.known) == KNOWN_BLOCKS:
                self.known.clear()
            self.known[block] = key

    def _other(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self.sink.out.append(frame)

    def _data(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self.source.received(len(payload))
        end = bool(flags & _END_STREAM)
        data = Data(http2.unpad(payload, flags) if flags & http2.PADDED else payload, len(payload), end, frame)
        special = self.streams.get(stream)
        if special is not None:
            (special.client_data if self.from_client else special.runtime_part)(data)
            return
        if end and not self.from_client:  # a stream counts as open until the runtime ends it
            self._reader.open.pop(stream, None)
        data.send(self.sink, stream, self.source)

    def _block_frame(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        kind, block = frame[http2.TYPE_AT], self._block
        if kind == _CONTINUATION:
            if block is None or stream != block.stream:
                raise WireError("CONTINUATION of another stream")
            block.fragments.append(payload)
            block.originals.append(frame)
            block.size += len(payload)
        else:
            prefix = b""
            if kind != _HEADERS or flags & _AROUND:
                prefix, payload = http2.split_block(kind, flags, payload)
            end = bool(flags & _END_STREAM)
            block = HeaderBlock(self.blocks, kind, flags, stream, prefix, [payload], [frame], len(payload), end)
        if block.size > bounds.BLOCK_BYTES or len(block.originals) > bounds.BLOCK_FRAMES:
            raise Excess("header_block", "header block is too long")
        self._orderly = bool(flags & _END_HEADERS)
        self._block = None if self._orderly else block
        if not self._orderly:
            return
        block.alone = self.blocks.translate(b"".join(block.fragments))
        special = self.streams.get(stream)
        if block.kind == http2.PUSH_PROMISE:
            block.send(self.sink, stream)
        elif special is not None:
            (special.client_headers if self.from_client else special.runtime_part)(block)
        elif self.passes_block(stream, block.alone, block.end):
            block.send(self.sink, stream)
        else:
            self.handle_request(block)

    def _settings(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        if flags & http2.ACK:
            if not self._settings_seen:
                raise WireError("the first frame is not SETTINGS")
            self.blocks.acknowledge()
            self.sink.out.append(frame)
            self.sink.settings_acknowledged()
            if self.sink.widened:
                self.sink.catch_up()
            return
        entries = http2.read_settings(payload)
        passed = [entry for entry in entries if entry[0] != http2.HEADER_TABLE_SIZE] + [(http2.HEADER_TABLE_SIZE, 0)]
        self.sink.out.append(http2.frame(http2.SETTINGS, flags, stream, http2.settings_payload(passed)))
        self._settings_seen = self._orderly = True
        self.source.settings_announced(entries)
        self.settings(passed)
        self.sink.start()

    def _window_update(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        if len(payload) != 4:
            raise WireError("WINDOW_UPDATE of a wrong length")
        increment = int.from_bytes(payload, "big") & _MAX_STREAM_ID  # the increment has 31 bits, too
        if not stream:
            self.source.open_window(increment)
        elif stream in self.streams:
            special = self.streams[stream]
            (special.client_window if self.from_client else special.runtime_window)(increment)
        else:  # it passes; it came here because frames of other streams wait for the peer's credit
            self.sink.out.append(frame)

    def _reset(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        code = http2.read_u32(payload)
        special = self.streams.get(stream)
        if special is not None:
            (special.client_reset if self.from_client else special.runtime_reset)(frame)
            return
        self._reader.open.pop(stream, None)
        self.source.drop(stream)
        if code == http2.NO_ERROR and stream in self.sink.queues:
            self.sink.send_frame(stream, frame)  # the complete answer before it must not be lost (RFC 9113, 8.1)
        else:
            self.sink.drop(stream)
            self.sink.out.append(frame)

    def _ping(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        """Acknowledge a PING in the place of a peer that sent bytes recently; else pass it on, as its ACK
        (docs/architecture.rst, "PINGs"). ACKs leave in the order of their PINGs."""
        source, sink = self.source, self.sink
        if flags & http2.ACK:
            sink.passed = max(sink.passed - 1, 0)
            sink.acknowledge()
        elif (
            source.last_read_at - sink.last_read_at < ALIVE_SECONDS
            and len(source.acks) < ACKS_WAITING
            and not (source.passed or self._leaving or stream)
            and len(payload) == _PING_BYTES
        ):
            source.acks.append(http2.frame(http2.PING, http2.ACK, 0, payload))
            return
        else:
            source.passed += 1
        sink.out.append(frame)

    def _goaway(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self._leaving = True
        self.sink.out.append(frame)

    def opening(self, data: bytes) -> bytes:
        """Pass bytes that are not frames and return the rest."""
        self.sink.out.append(data)
        return b""

    @abstractmethod
    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        """Return whether headers or trailers of a stream that passes or is new pass unchanged. Raises WireError."""

    @abstractmethod
    def passed(self, stream: int, end: bool, key: Key) -> None:
        """Called when a remembered header block has passed on a stream; ``end`` is its END_STREAM."""

    def handle_request(self, block: HeaderBlock) -> None:  # noqa: B027
        """Called for a request that ``passes_block`` does not let pass: answer it, or send it on."""

    def settings(self, entries: list[tuple[int, int]]) -> None:  # noqa: B027
        """Called with the entries of each SETTINGS frame as they were passed on."""
