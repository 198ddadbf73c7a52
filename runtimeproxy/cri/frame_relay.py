"""Relay and read the frames of a CRI connection, with one object per direction.

Frames that the proxy need not handle are sent on unchanged and in order (relay-rules A1, A3, A8).
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
from runtimeproxy.cri.routes import OTHER_SERIES
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
    """A header block of one stream, complete once ``encoded`` is set."""

    blocks: headers.Blocks
    """The header compression of its direction."""
    kind: int
    flags: int
    stream: int
    prefix: bytes
    fragments: list[bytes]
    originals: list[bytes]
    size: int
    end: bool
    """True if END_STREAM is set: the block ends its half of the stream."""
    encoded: bytes = b""
    """The block re-encoded without references to the HPACK dynamic table."""

    def send(self, sink: FlowControlledSender, stream: int, source: FlowControlledSender | None = None) -> None:
        """Send the block on, as its own frames if nothing changes. A queued block may still be dropped, so it must not
        carry the table size update (relay-rules A1)."""
        if self.blocks.standalone:
            block = self.encoded
        elif sink.congested or sink.cut_through:
            block = headers.alone(self.encoded)
        else:
            block = self.blocks.mark(self.encoded)
        if b"".join(self.fragments) == block:
            frames = b"".join(self.originals)
        else:
            frames = http2.block_frames(self.kind, self.flags, stream, self.prefix, block)
        sink.send_frame(stream, frames)


class Stream(Protocol):
    """A stream that is held, answered by the proxy, or sent to the image endpoint; called with a peer's frames."""

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
    """A stream that the proxy answered itself: later frames of either side are dropped, and DATA are credited."""

    to_client: FlowControlledSender
    to_runtime: FlowControlledSender

    def client_data(self, data: Data) -> None:
        self.to_client.credit(data.length)

    def runtime_part(self, part: Data | HeaderBlock) -> None:
        if isinstance(part, Data):
            self.to_runtime.credit(part.length)

    def _drop(self, what: object) -> None: ...

    client_headers = client_reset = runtime_reset = client_window = runtime_window = _drop


RETIRED_LIMIT = 1_000
"""Most ended streams that are stored, so that late frames on them do not reach a peer that never got the stream."""


class StreamState(Enum):
    """The state of a passing stream."""

    UNANSWERED = "unanswered"
    ANSWERING = "answering"
    ENDLESS = "endless"


@dataclass(frozen=True, slots=True)
class Shared:
    budget: MemoryBudget
    clock: Callable[[], float]
    counters: MutableMapping[Key, int]
    """The calls that passed, by their series; a series exists before ``FromClient.passed`` counts it."""
    kinds: Mapping[Operation, Callable[..., Any]]
    separate_image: bool
    start_and_stop_pass: Callable[[], bool]
    passes_ambiguous: Callable[[], bool]
    """Return whether a request without exactly one :path passes."""
    restore_refusal: Callable[[], str]
    """Return why a RestorePod is refused, "" if it passes."""


class Streams:
    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        self.shared = shared
        self.wake = wake
        """Write pending output, outside of a read."""
        self.to_client = FlowControlledSender()
        self.to_runtime = FlowControlledSender()
        self.streams: dict[int, Stream] = {}
        self.open_streams: dict[int, StreamState] = {}
        self.highest_stream = 0
        """Highest stream id that was sent to the runtime."""
        self.ready: deque[object] = deque()
        """Inputs of ``Connection.act`` after the read: held calls to start or to resume, and ``reader`` events."""
        self._retired: deque[int] = deque()

    def answer(self, stream: int, frames: bytes) -> None:
        """Answer a request instead of the server, and drop later frames on its stream."""
        self.to_client.inject(frames)
        self.to_runtime.forget_window(stream)
        self.streams[stream] = LocallyAnsweredStream(self.to_client, self.to_runtime)
        self.retire(stream)

    def retire(self, stream: int) -> None:
        """Store an ended stream until RETIRED_LIMIT others have ended and its queue to the client is empty."""
        self._retired.append(stream)
        if len(self._retired) > RETIRED_LIMIT:
            oldest = self._retired.popleft()
            if oldest in self.to_client.queues:
                self._retired.append(oldest)
            else:
                self.streams.pop(oldest, None)
                self.to_client.forget_window(oldest)


PASSING_BLOCKS = 1_024
PASSING_BLOCK_BYTES = 512
"""Longest header block, in bytes, that is cached as passing; PASSING_BLOCKS are the most in one direction."""

SHORT_DATA_BYTES = 1_024
"""A faster loop relays unpadded DATA frames longer than this, in bytes: long answers have many in a row."""

_PREFIX_FLAGS = http2.PADDED | http2.PRIORITY_FLAG
_LAYOUT_FLAGS = http2.END_HEADERS | _PREFIX_FLAGS
_HEAD_BYTES, _MAX_STREAM_ID = http2.HEAD_BYTES, http2.MAX_STREAM_ID  # local names, for speed: every frame needs them
_DATA, _HEADERS, _END_HEADERS, _END_STREAM = http2.DATA, http2.HEADERS, http2.END_HEADERS, http2.END_STREAM
_CONTINUATION, _USUAL_BYTES = http2.CONTINUATION, http2.DEFAULT_FRAME_SIZE  # every peer accepts frames of this size
_PING_BYTES = 8

ALIVE_SECONDS = 1.0
"""Seconds of silence after which a peer may have hung, so that PINGs pass to it: keepalive PINGs start even later."""
ACKS_WAITING = 16
"""Most of the proxy's own ACKs that wait to be sent; grpc-go has at most one PING under way."""


class FrameRelay(ABC):
    """Relays the frames that the peer ``source`` sends to ``sink``."""

    from_client: bool
    piped = False
    bypasses_frames = False
    """True while ``bypass`` handles the bytes: before the first frame, and if they are not HTTP/2."""

    def __init__(self, reader: Streams, source: FlowControlledSender, sink: FlowControlledSender) -> None:
        self._reader = reader
        self._clock = reader.shared.clock
        self._goaway_seen = False
        self.source = source
        self.sink = sink
        self.streams = reader.streams
        self.blocks = headers.Blocks()
        self.passing_blocks: dict[bytes, Key] = {}
        """Header blocks that pass on any stream, each with its series."""
        self._buffer = bytearray()
        self._needed_bytes = _HEAD_BYTES
        self._missing_bytes = 0
        self._block: HeaderBlock | None = None
        self._settings_seen = False
        self._any_legal = False
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
        if self.bypasses_frames and not (data := self.bypass(data)):
            return
        self.source.last_read_at = self._clock()
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed_bytes:
                return
            data, self._buffer = bytes(self._buffer), bytearray()
        at, start = self._continue_frame(data) if self._missing_bytes else (0, 0)
        end, needed = len(data), _HEAD_BYTES
        source, sink, streams, read_head = self.source, self.sink, self.streams, http2.read_head
        try:
            while at + _HEAD_BYTES <= end:
                high, low, kind, flags, stream = read_head(data, at)
                stream &= _MAX_STREAM_ID
                length = high << 8 | low
                after = at + _HEAD_BYTES + length
                passing = self._any_legal and stream not in streams and not sink.queues and length <= sink.frame_limit
                if passing and (following := self._passes(kind, flags, stream, data, after - length, after)):
                    at = following
                    continue
                if length > _USUAL_BYTES or kind == _CONTINUATION or not self._any_legal:
                    self._check_frame(kind, length)
                if after > end:
                    needed = after - at
                    break
                if start < at:
                    sink.out.append(data[start:at])
                frame = data[at:after]
                at = start = after
                self._handlers.get(kind, self._pass_frame)(flags, stream, frame[_HEAD_BYTES:], frame)
                if sink.overfull or source.overfull:
                    raise Excess("queue", "too many frames wait for a peer's credit")
        finally:
            # Also after a WireError: a complete answer before the illegal frame must not be lost.
            if start < at:
                sink.out.append(data[start:at])
                if at > end:
                    self._missing_bytes = at - end
                    sink.cut_through = True
        if at < end:
            self._needed_bytes = needed
            self._buffer += data[at:]

    def _relay_data(self, data: bytes, at: int) -> int:
        """Pass consecutive DATA frames without flags, counted in one sum; return where the next frame starts."""
        sink, streams, read_head = self.sink, self.streams, http2.read_head
        last, limit, room = len(data) - _HEAD_BYTES, sink.frame_limit, sink.window
        while at <= last:
            high, low, kind, flags, stream = read_head(data, at)
            length = high << 8 | low
            if kind != _DATA or flags or not 0 < length <= limit or length > room or stream & _MAX_STREAM_ID in streams:
                break
            room -= length
            at += _HEAD_BYTES + length
        self.source.relayed(sink.window - room)
        sink.window = room
        return at

    def _continue_frame(self, data: bytes) -> tuple[int, int]:
        """Return the offsets of the next frame, perhaps beyond the data, and of the unsent bytes. The latter is 0, to
        send the remainder of a cut frame in one slice with the following bytes, unless other frames wait in between."""
        at, self._missing_bytes = self._missing_bytes, 0
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
        before the frame is complete, and following DATA frames may pass with it (relay-rules A3, A8)."""
        if kind == _DATA:
            length = after - at
            if length > self.sink.window:
                return 0
            if length > SHORT_DATA_BYTES and not flags:
                return self._relay_data(data, at - _HEAD_BYTES)
            self.sink.window -= length
            self.source.relayed(length)
            if flags & _END_STREAM and not self.from_client:
                self._reader.open_streams.pop(stream, None)
            return after
        if after > len(data):
            return 0
        if kind == _HEADERS:
            if flags & _LAYOUT_FLAGS != _END_HEADERS or not self.blocks.standalone:
                return 0
            block = data[at:after]
            end = bool(flags & _END_STREAM)
            if block in self.passing_blocks:
                self.passed(stream, end, self.passing_blocks[block])
                return after
            return after if len(block) <= bounds.BLOCK_BYTES and self.passes_block(stream, block, end) else 0
        return 0 if kind in self._handlers and (kind != http2.WINDOW_UPDATE or not stream or after - at != 4) else after

    def remember(self, block: bytes, key: Key = OTHER_SERIES) -> None:
        """Cache a header block that passes: peers repeat them, and decoding a block costs more than a lookup."""
        if len(block) <= PASSING_BLOCK_BYTES:
            if len(self.passing_blocks) == PASSING_BLOCKS:
                self.passing_blocks.clear()
            self.passing_blocks[block] = key

    def _pass_frame(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self.sink.out.append(frame)

    def _data(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self.source.received(len(payload))
        end = bool(flags & _END_STREAM)
        data = Data(http2.unpad(payload, flags) if flags & http2.PADDED else payload, len(payload), end, frame)
        handled = self.streams.get(stream)
        if handled is not None:
            (handled.client_data if self.from_client else handled.runtime_part)(data)
            return
        if end and not self.from_client:  # a stream counts as open until the runtime ends it
            self._reader.open_streams.pop(stream, None)
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
            if kind != _HEADERS or flags & _PREFIX_FLAGS:
                prefix, payload = http2.split_block(kind, flags, payload)
            end = bool(flags & _END_STREAM)
            block = HeaderBlock(self.blocks, kind, flags, stream, prefix, [payload], [frame], len(payload), end)
        if block.size > bounds.BLOCK_BYTES or len(block.originals) > bounds.BLOCK_FRAMES:
            raise Excess("header_block", "header block is too long")
        self._any_legal = bool(flags & _END_HEADERS)
        self._block = None if self._any_legal else block
        if not self._any_legal:
            return
        block.encoded = self.blocks.translate(b"".join(block.fragments))
        handled = self.streams.get(stream)
        if block.kind == http2.PUSH_PROMISE:
            block.send(self.sink, stream)
        elif handled is not None:
            (handled.client_headers if self.from_client else handled.runtime_part)(block)
        elif self.passes_block(stream, block.encoded, block.end):
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
        self._settings_seen = self._any_legal = True
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
            handled = self.streams[stream]
            (handled.client_window if self.from_client else handled.runtime_window)(increment)
        else:  # it passes, but not faster: frames of other streams wait for the peer's credit
            self.sink.out.append(frame)

    def _reset(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        code = http2.read_u32(payload)
        handled = self.streams.get(stream)
        if handled is not None:
            (handled.client_reset if self.from_client else handled.runtime_reset)(frame)
            return
        self._reader.open_streams.pop(stream, None)
        self.source.drop(stream)
        if code == http2.NO_ERROR and stream in self.sink.queues:
            self.sink.send_frame(stream, frame)  # the complete answer before it must not be lost (RFC 9113, 8.1)
        else:
            self.sink.drop(stream)
            self.sink.out.append(frame)

    def _ping(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        """Acknowledge a PING instead of a peer that sent bytes recently; else pass the PING on, and later its ACK
        (docs/architecture.rst, "PINGs"). ACKs are sent in the order of their PINGs."""
        source, sink = self.source, self.sink
        if flags & http2.ACK:
            sink.passed = max(sink.passed - 1, 0)
            sink.acknowledge()
        elif (
            source.last_read_at - sink.last_read_at < ALIVE_SECONDS
            and len(source.acks) < ACKS_WAITING
            and not (source.passed or self._goaway_seen or stream)
            and len(payload) == _PING_BYTES
        ):
            source.acks.append(http2.frame(http2.PING, http2.ACK, 0, payload))
            return
        else:
            source.passed += 1
        sink.out.append(frame)

    def _goaway(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        self._goaway_seen = True
        self.sink.out.append(frame)

    def bypass(self, data: bytes) -> bytes:
        """Pass bytes that are not frames, and return the following bytes."""
        self.sink.out.append(data)
        return b""

    @abstractmethod
    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        """Return whether the headers or trailers of a new or passing stream pass unchanged. Raises WireError."""

    @abstractmethod
    def passed(self, stream: int, end: bool, key: Key) -> None:
        """Called when a cached header block has passed on a stream; ``end`` is its END_STREAM."""

    def handle_request(self, block: HeaderBlock) -> None:  # noqa: B027
        """Called for a request that ``passes_block`` does not let pass: answer it, or send it on."""

    def settings(self, entries: list[tuple[int, int]]) -> None:  # noqa: B027
        """Called with the entries of each SETTINGS frame that was passed on."""
