"""HTTP/2 frames and settings: how they are read, and how the proxy's own are built (RFC 9113, sections 4 to 6)."""

from collections.abc import Iterable
from struct import Struct

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


def block_frames(
    kind: int, flags: int, stream: int, prefix: bytes, block: bytes, max_frame: int = DEFAULT_FRAME_SIZE
) -> bytes:
    """Return the frames of a header block: HEADERS or PUSH_PROMISE, then CONTINUATION as needed. Of ``flags`` only
    END_STREAM and PRIORITY_FLAG are used; ``prefix`` is the part before the fragment (``split_block``).
    """
    payload = prefix + block
    flags &= END_STREAM | PRIORITY_FLAG
    first = frame(kind, flags | (END_HEADERS if len(payload) <= max_frame else 0), stream, payload[:max_frame])
    starts = range(max_frame, len(payload), max_frame)
    return first + b"".join(
        frame(CONTINUATION, END_HEADERS if at == starts[-1] else 0, stream, payload[at : at + max_frame])
        for at in starts
    )


def header_frames(stream: int, block: bytes, end: bool, max_frame: int = DEFAULT_FRAME_SIZE) -> bytes:
    """Return the frames of a header block of the proxy's own."""
    return block_frames(HEADERS, END_STREAM if end else 0, stream, b"", block, max_frame)


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
    """Collects whole frames from any split of the bytes. For the proxy's own connections, which process frames one by
    one; a relay cuts DATA through instead.
    """

    def __init__(self, limit: int = DEFAULT_FRAME_SIZE) -> None:
        self.limit = limit
        """Longest payload that is accepted, in bytes; a longer one raises WireError."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """Return the frames that are now whole as (type, flags, stream, payload). Raises WireError."""
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
