"""HTTP/2: frames and settings, and sending to one peer by its windows (RFC 9113, 4 to 6; relay-rules A3, A4, A8).

Invariants: building and reading of frames are inverse. The bytes of one stream are sent in the order in which they were
queued. Nothing is inserted into a frame that is cut through, nor before the first SETTINGS. DATA never exceeds the
peer's windows.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from struct import Struct
from typing import Protocol

from runtimeproxy.errors import WireError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

TYPE_AT = 3
"""Index of the type in a frame."""
DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
REFUSED_STREAM = 0x7
CANCEL = 0x8
ENHANCE_YOUR_CALM = 0xB

HEADER_TABLE_SIZE = 0x1
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5

DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

HEAD_BYTES = 9
_HEAD = Struct(">HBBBL")
_SETTING = Struct(">HL")
_U32 = Struct(">L")
read_head = _HEAD.unpack_from
"""Unpack (length's high 16 bits, length's low byte, type, flags, stream id with the reserved bit) at an offset."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def block_frames(kind: int, flags: int, stream: int, prefix: bytes, block: bytes) -> bytes:
    """Return the frames of a header block: HEADERS or PUSH_PROMISE, then CONTINUATION as needed. Of ``flags`` only
    END_STREAM and PRIORITY_FLAG are used; ``prefix`` is the part before the fragment (``split_block``).
    """
    payload = prefix + block
    flags &= END_STREAM | PRIORITY_FLAG
    if len(payload) <= DEFAULT_FRAME_SIZE:
        return frame(kind, flags | END_HEADERS, stream, payload)
    frames = [frame(kind, flags, stream, payload[:DEFAULT_FRAME_SIZE])]
    for at in range(DEFAULT_FRAME_SIZE, len(payload), DEFAULT_FRAME_SIZE):
        last = at + DEFAULT_FRAME_SIZE >= len(payload)
        part = payload[at : at + DEFAULT_FRAME_SIZE]
        frames.append(frame(CONTINUATION, END_HEADERS if last else 0, stream, part))
    return b"".join(frames)


def header_frames(stream: int, block: bytes, end: bool) -> bytes:
    """Return the frames of a header block of the proxy's own."""
    return block_frames(HEADERS, END_STREAM if end else 0, stream, b"", block)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _U32.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _U32.pack(code))


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, _U32.pack(last_stream) + _U32.pack(code) + debug)


def settings(entries: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, settings_payload(entries.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def settings_payload(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the payload of a SETTINGS frame from (identifier, value) pairs."""
    return b"".join(_SETTING.pack(identifier, value) for identifier, value in entries)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return a SETTINGS payload's (identifier, value) pairs. Raises WireError if they are illegal (RFC 9113, 6.5)."""
    if len(payload) % 6:
        raise WireError("SETTINGS frame whose length is not a multiple of 6")
    entries = list(_SETTING.iter_unpack(payload))
    for identifier, value in entries:
        if identifier == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise WireError("SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1")
        if identifier == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value <= 2**24 - 1:
            raise WireError("SETTINGS_MAX_FRAME_SIZE out of range")
    return entries


def read_u32(payload: bytes, offset: int = 0) -> int:
    """Return 31 bits (a stream id, an increment), without the reserved bit. Raises WireError if they are cut short."""
    if len(payload) < offset + 4:
        raise WireError("frame is too short for its type")
    value: int = _U32.unpack_from(payload, offset)[0]
    return value & 0x7FFF_FFFF


def unpad(payload: bytes, flags: int) -> bytes:
    """Return a DATA payload without its padding. Raises WireError if that exceeds the payload (RFC 9113, 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise WireError("padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def split_block(kind: int, flags: int, payload: bytes) -> tuple[bytes, bytes]:
    """Split a HEADERS or PUSH_PROMISE payload into (priority or promised stream id, fragment), without padding. Raises
    WireError if they do not fit (RFC 9113, 6.2 and 6.6).
    """
    fragment = unpad(payload, flags) if flags & PADDED else payload
    if kind == PUSH_PROMISE:
        size = 4
    elif flags & PRIORITY_FLAG:
        size = 5
    else:
        return b"", fragment
    if len(fragment) < size:
        raise WireError("frame is too short for its type")
    return fragment[:size], fragment[size:]


class FrameBuffer:
    """Collects complete frames from any split of the bytes. For the proxy's own connections, which process frames one
    by one; a relay cuts DATA through instead.
    """

    def __init__(self, limit: int = DEFAULT_FRAME_SIZE) -> None:
        self.limit = limit
        """Longest payload that is accepted, in bytes; a longer one raises WireError."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """Return the frames that are now complete as (type, flags, stream, payload). Raises WireError."""
        self._buffer += data
        frames = []
        at, end = 0, len(self._buffer)
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, stream = read_head(self._buffer, at)
            length = high << 8 | low
            if length > self.limit:
                raise WireError("frame is longer than the receiver allows")
            if end - at < HEAD_BYTES + length:
                break
            at += HEAD_BYTES + length
            frames.append((kind, flags, stream & MAX_STREAM_ID, bytes(self._buffer[at - length : at])))
        del self._buffer[:at]
        return frames


PAIR_WINDOW = 2**20
"""Most bytes of DATA that may wait in each direction of a pair: the connection window that is opened to each peer."""
CREDIT_STEP = 2**18
"""Connection credit is returned in steps of this many bytes."""
QUEUED_FRAMES = 16_384
"""Most frames queued for a peer, over all streams: one costs far more memory than its bytes. Envoy: 10,000."""
QUEUED_SETTINGS = 2_500
"""Most SETTINGS that wait for their ACK."""
QUEUED_BYTES = 4 << 20
"""Most bytes of queued frames without flow control: trailers and resets that follow their stream's DATA."""
MERGED_BYTES = 4_096
"""Consecutive queued DATA payloads are merged up to this many bytes. A client may open no window for a long time;
merging limits the queued frames that its credit allows."""


class Source(Protocol):
    """Interface of a source of DATA, which gets the credit once the DATA were sent or dropped."""

    def credit(self, length: int) -> None: ...


class FlowControlledSender:
    """The frames for one peer that wait for credit or a frame boundary, and the credit of that peer."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        """Bytes ready for the socket, in order."""
        self.window = DEFAULT_WINDOW
        """How many bytes of DATA the peer still accepts on the connection."""
        self.initial_window = DEFAULT_WINDOW
        self._announced = deque([(DEFAULT_WINDOW, DEFAULT_FRAME_SIZE)])
        """INITIAL_WINDOW_SIZE and MAX_FRAME_SIZE as last acknowledged, then those of each later SETTINGS."""
        self.max_frame = DEFAULT_FRAME_SIZE
        """Longest frame that may be sent to the peer now."""
        self.frame_limit = DEFAULT_FRAME_SIZE
        """Longest frame that may be on its way to the peer: the largest size that it ever allowed."""
        self.cut_through = False
        """True while a DATA frame is only partly written."""
        self.outstanding = 0
        """Bytes of DATA received from the peer and not yet credited back."""
        self.last_read_at = -inf
        """When bytes of the peer were read last, in seconds on the reader's clock."""
        self.acks: list[bytes] = []
        """The ACKs of the peer's PINGs, which wait to be sent together with other data."""
        self.passed = 0
        """Number of the peer's PINGs that were passed on and not acknowledged yet."""
        self._pending_credit = 0
        self._started = False
        self._own_frames: list[bytes] = []
        self._queued_frames = 0
        self._queued_bytes = 0
        self.overfull = False
        """True once more is queued than allowed; the connection must be ended then."""
        self.queues: OrderedDict[int, deque[_QueueItem]] = OrderedDict()
        """The items that wait for the peer's credit, by stream."""
        self.stream_windows: dict[int, int] = {}
        """The streams whose windows are hop by hop: the difference of each from INITIAL_WINDOW_SIZE, 0 to begin with.
        It may be negative."""
        self.widened = False
        """True while ``catch_up`` is due."""

    # Sending to the peer.

    def start(self) -> None:
        """Note that the first SETTINGS were sent to the peer: open the pair's window, and let other frames follow."""
        if not self._started:
            self._started = True
            self._own_frames.insert(0, window_update(0, PAIR_WINDOW - DEFAULT_WINDOW))
            self._send_own_frames()
            self.drain()

    def inject(self, frames: bytes) -> None:
        """Send frames of the proxy's own at the next frame boundary, after the first SETTINGS."""
        self._own_frames.append(frames)
        self._send_own_frames()
        if len(self._own_frames) > QUEUED_FRAMES:
            self.overfull = True

    def acknowledge(self) -> None:
        """Send the queued ACKs of PINGs, if a frame may be inserted now."""
        if self._started and not self.cut_through:
            self.out += self.acks
            self.acks.clear()

    def boundary(self) -> None:
        """Note that the frame that was cut through is complete."""
        self.cut_through = False
        self.acknowledge()
        self._send_own_frames()
        self.drain()

    def _send_own_frames(self) -> None:
        if self._started and not self.cut_through:
            self.out += self._own_frames
            self._own_frames.clear()

    @property
    def waiting(self) -> bool:
        """Return whether anything is queued for the next frame boundary."""
        return bool(self._own_frames or self.queues or self.acks)

    @property
    def congested(self) -> bool:
        """Return whether frames wait for the peer's credit."""
        return bool(self.queues)

    def send_data(self, stream: int, payload: bytes, end: bool, source: Source | None, charge: int) -> None:
        """Send DATA as the windows allow, split as needed, or queue it after the earlier items of its stream.
        ``charge`` bytes are credited to ``source`` once the payload was sent (None: they were credited before).
        """
        length, offset = len(payload), self.stream_windows.get(stream)
        room = min(self.window, self.max_frame)
        if offset is not None:
            room = min(room, self.initial_window + offset)
        if length > room or stream in self.queues or self.cut_through or not self._started:
            item = _QueueItem(memoryview(payload), end, False, charge, source)
            if stream not in self.queues or not self.queues[stream][-1].merge(item):
                self._append(stream, item)
            return
        self.window -= length
        if offset is not None:
            self.stream_windows[stream] = offset - length
        self.out.append(frame(DATA, END_STREAM if end else 0, stream, payload))
        if source is not None:
            source.credit(charge)

    def send_frame(self, stream: int, frames: bytes, cost: int = 0, source: Source | None = None) -> None:
        """Send complete frames after the queued items of their stream; ``cost`` is their flow-controlled length."""
        if cost > self.window or stream in self.queues or self.cut_through or not self._started:
            self._append(stream, _QueueItem(frames, False, True, cost, source))
            return
        self.window -= cost
        self.out.append(frames)
        if source is not None:
            source.credit(cost)

    def _append(self, stream: int, item: "_QueueItem") -> None:
        self.queues.setdefault(stream, deque()).append(item)
        self._queued_frames += 1
        self._queued_bytes += item.uncontrolled_bytes
        self._send_stream(stream)
        if self._queued_frames > QUEUED_FRAMES or self._queued_bytes > QUEUED_BYTES:
            self.overfull = True

    def _send_stream(self, stream: int) -> None:
        while self._started and not self.cut_through and stream in self.queues and self._send_next(stream):
            pass

    def drop(self, stream: int) -> None:
        """Drop the queued items of a stream that was reset, and credit them."""
        for item in self.queues.pop(stream, ()):
            self._release(item)

    def drop_all(self) -> None:
        """Drop all queues and the pending ACKs, as the connection has ended."""
        self.acks.clear()
        for stream in list(self.queues):
            self.drop(stream)

    def _release(self, item: "_QueueItem") -> None:
        self._queued_frames -= 1
        self._queued_bytes -= item.uncontrolled_bytes
        if item.source is not None:
            item.source.credit(item.charge)

    # Windows given by the peer.

    def forget_window(self, stream: int) -> None:
        """Forget the window of a stream that has ended, and drop its queued items."""
        if stream in self.queues:
            self.drop(stream)
        self.stream_windows.pop(stream, None)

    def settings_announced(self, entries: list[tuple[int, int]]) -> None:
        """Apply SETTINGS of the peer that another party acknowledges: lower values apply immediately (relay-rules A4).

        Higher values apply after their ACK: gRPC's C core resets a stream whose DATA precede it (tested). Raises
        WireError as ``apply_settings`` does.
        """
        initial, max_frame = self._announced[-1]
        for identifier, value in entries:
            if identifier == INITIAL_WINDOW_SIZE:
                initial = value
            elif identifier == MAX_FRAME_SIZE:
                max_frame = value
                self.frame_limit = max(self.frame_limit, value)
        self._announced.append((initial, max_frame))
        if len(self._announced) > QUEUED_SETTINGS:
            self.overfull = True
        self._apply_announced()

    def settings_acknowledged(self) -> None:
        """Note that the ACK of the peer's oldest unacknowledged SETTINGS is sent."""
        if len(self._announced) > 1:
            self._announced.popleft()
            self._apply_announced()

    def _apply_announced(self) -> None:
        initial, max_frame = map(min, zip(*self._announced, strict=True))
        self.apply_settings([(INITIAL_WINDOW_SIZE, initial), (MAX_FRAME_SIZE, max_frame)])

    def apply_settings(self, entries: list[tuple[int, int]]) -> None:
        """Apply the peer's SETTINGS; ``catch_up`` sends the DATA that they allow. Raises WireError if a window exceeds
        2^31-1."""
        for identifier, value in entries:
            if identifier == MAX_FRAME_SIZE:
                self.max_frame = value
                self.frame_limit = max(self.frame_limit, value)
        initial = dict(entries).get(INITIAL_WINDOW_SIZE, self.initial_window)  # the last one counts
        if initial + max(self.stream_windows.values(), default=0) > MAX_WINDOW:
            raise _too_wide()
        self.widened |= initial > self.initial_window
        self.initial_window = initial

    def catch_up(self) -> None:
        """Send the DATA that wider stream windows allow; due once all bytes read from the peer are processed."""
        self.widened = False
        for stream in [stream for stream in self.queues if stream in self.stream_windows]:
            self._send_stream(stream)

    def open_window(self, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE on stream 0. Raises WireError."""
        if not increment:
            raise WireError("WINDOW_UPDATE of 0 on the connection")
        self.window += increment
        if self.window > MAX_WINDOW:
            raise _too_wide()
        if self.queues:
            self.drain()

    def open_stream_window(self, stream: int, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE on a stream that is hop by hop; others are ignored. Raises WireError."""
        if stream in self.stream_windows:
            offset = self.stream_windows[stream] + increment
            if self.initial_window + offset > MAX_WINDOW:
                raise _too_wide()
            self.stream_windows[stream] = offset
            self._send_stream(stream)

    def drain(self) -> None:
        """Send queued items, one of each stream at a time, as far as the windows allow."""
        if self.cut_through or not self._started:
            return
        stuck = 0
        while stuck < len(self.queues):
            stream = next(iter(self.queues))
            stuck += 1
            if self._send_next(stream):
                stuck = 0
            if stream in self.queues:
                self.queues.move_to_end(stream)

    def _send_next(self, stream: int) -> bool:
        queue = self.queues[stream]
        item = queue[0]
        if item.is_whole:
            if item.charge > self.window:
                return False
            self.window -= item.charge
            self.out.append(bytes(item.payload))
        elif not self._send_part(stream, item):
            return False
        elif item.payload:
            return True
        queue.popleft()
        self._release(item)
        if not queue:
            del self.queues[stream]
        return True

    def _send_part(self, stream: int, item: "_QueueItem") -> bool:
        payload = item.payload
        size = min(len(payload), self.window, self.max_frame)
        if stream in self.stream_windows:
            size = min(size, max(self.initial_window + self.stream_windows[stream], 0))
            self.stream_windows[stream] -= size
        if payload and not size:
            return False
        self.window -= size
        item.payload = payload[size:]
        end = item.end and not item.payload
        self.out.append(frame(DATA, END_STREAM if end else 0, stream, bytes(payload[:size])))
        return True

    # Windows given to the peer.

    def received(self, length: int) -> None:
        """Count DATA that the peer sent. Raises WireError if it exceeds the connection window."""
        self.outstanding += length
        if self.outstanding > PAIR_WINDOW:
            raise WireError("DATA above the connection window")

    def relayed(self, length: int) -> None:
        """Count DATA that the peer sent and that is sent immediately. Raises WireError above the connection window."""
        self.outstanding += length
        if self.outstanding > PAIR_WINDOW:
            raise WireError("DATA above the connection window")
        self._pending_credit += length
        if self._pending_credit >= CREDIT_STEP:
            self._send_credit()

    def credit(self, length: int) -> None:
        """Return credit for DATA that was sent, retained or dropped, in steps of CREDIT_STEP."""
        self._pending_credit += length
        if self._pending_credit >= CREDIT_STEP:
            self._send_credit()

    def _send_credit(self) -> None:
        self.inject(window_update(0, self._pending_credit))
        self.outstanding -= self._pending_credit
        self._pending_credit = 0


@dataclass(slots=True)
class _QueueItem:
    """An item of a stream's queue: complete frames (``is_whole``), or a payload that may be split."""

    payload: bytes | memoryview
    """The unsent bytes; a memoryview if they are sent in parts, so that they are never copied."""
    end: bool
    is_whole: bool
    charge: int
    source: Source | None

    @property
    def uncontrolled_bytes(self) -> int:
        """Return the number of queued bytes without flow control."""
        return len(self.payload) if self.is_whole and not self.charge else 0

    def merge(self, later: "_QueueItem") -> bool:
        """Append a later item's payload and return True if both are short and of the same source; else return False."""
        size = len(self.payload) + len(later.payload)
        if self.is_whole or self.end or self.source is not later.source or size > MERGED_BYTES:
            return False
        self.payload = memoryview(bytes(self.payload) + later.payload)
        self.end = later.end
        self.charge += later.charge
        return True


def _too_wide() -> WireError:
    return WireError("flow control window above 2^31-1")
