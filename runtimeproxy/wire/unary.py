"""Unary gRPC calls on one HTTP/2 connection, the client's side (RFC 9113 and gRPC's PROTOCOL-HTTP2 document).

Owns the streams of our own calls: requests become frames, frames become outcomes.
Must not know: sockets, clocks, what a message means, whether a call is worth repeating.
Invariant: every call that was opened ends exactly once, by an outcome or by ``cancel``; what the peer can make us keep
is bounded: ``HEADER_LIMIT`` for a header block, the reply's limit for a body.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from runtimeproxy.errors import RuntimeProxyError, WireError
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import Outlet

HEADER_LIMIT = 64 * 1024
"""Longest header block that is taken, its frames' heads counted in."""
STREAMS_UNTIL_TOLD = 100
"""How many streams are open at most before the peer's SETTINGS say how many it takes."""

_ENABLE_PUSH = 0x2
_LONGEST_TEXT = 2048
_LONGEST_CACHED_BLOCK = 256
_HTTP_OK = b"200"
_CODES_OF_HTTP = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"429": 14, b"502": 14, b"503": 14, b"504": 14}


class Kind(Enum):
    """How a call failed."""

    UNREACHABLE = "unreachable"
    """The peer never saw it, or said that it did nothing for it."""
    DEADLINE = "deadline"
    BROKEN = "broken"
    """The answer breaks the protocol, is too long, or ends too early."""
    STATUS = "status"
    """The peer answered with an error status."""


class CallFailed(RuntimeProxyError):
    """A call has no answer; ``code`` is the gRPC status code, ``text`` the peer's own if ``kind`` is STATUS."""

    def __init__(self, code: int, text: str, kind: Kind) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.kind = kind


Outcome = bytes | CallFailed


def _broken(text: str, code: int = grpc.INTERNAL) -> CallFailed:
    return CallFailed(code, text, Kind.BROKEN)


@dataclass(slots=True, eq=False)
class _Call:
    """What came of an answer so far."""

    body: bytearray = field(default_factory=bytearray)
    encoding: bytes = b""
    headed: bool = False


@dataclass(slots=True, eq=False)
class _Block:
    """A header block that is being collected."""

    stream: int
    end: bool
    fragment: bytearray = field(default_factory=bytearray)
    size: int = 0

    def add(self, stream: int, fragment: bytes) -> None:
        self.fragment += fragment
        self.size += http2.HEAD_BYTES + len(fragment)
        if stream != self.stream or self.size > HEADER_LIMIT:
            raise WireError("CONTINUATION of another stream, or header block is too long")


class Calls:
    """The calls of one connection; ``out`` collects bytes for the peer, ``ended`` the outcomes by stream."""

    def __init__(self, max_reply_bytes: int) -> None:
        self._outlet = Outlet()
        self.out = self._outlet.out
        self.ended: list[tuple[int, Outcome]] = []
        self.closing = False
        """True once the connection takes no more calls (GOAWAY, or stream ids used up)."""
        self._max_reply_bytes = max_reply_bytes
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._stream_limit = STREAMS_UNTIL_TOLD
        self._told = False
        self._frames = http2.FrameBuffer()
        self._blocks: headers.Blocks | None = headers.Blocks()
        self._block: _Block | None = None
        # A whole reply fits into the stream's window, so that no window of a stream is ever opened further.
        window = min(max_reply_bytes + grpc.PREFIX_BYTES + http2.DEFAULT_FRAME_SIZE, http2.MAX_WINDOW)
        settings = {http2.HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: window}
        self.out.append(http2.PREFACE + http2.settings(settings))
        self._outlet.start()

    @property
    def free(self) -> bool:
        """Tell whether the peer takes one more call now."""
        return len(self._calls) < self._stream_limit

    def open(self, path: str, message: bytes, seconds: float) -> int:
        """Send a request that has so many seconds; return its stream."""
        stream = self._next_stream
        self._next_stream += 2
        self.closing |= self._next_stream > http2.MAX_STREAM_ID
        self._calls[stream] = _Call()
        block = _request_head(path) + headers.literal(b"grpc-timeout", grpc.timeout(seconds))
        self._outlet.govern(stream)
        self.out.append(http2.header_frames(stream, block, end=False))
        self._outlet.send_data(stream, grpc.message(message), True, None, 0)
        return stream

    def cancel(self, stream: int) -> None:
        """End a call that the caller no longer waits for."""
        if self._calls.pop(stream, None) is not None:
            self._reset(stream)

    def _reset(self, stream: int) -> None:
        self._outlet.ungovern(stream)
        self._outlet.inject(http2.rst_stream(stream, http2.CANCEL))

    def receive(self, data: bytes) -> None:
        """Take the peer's bytes. Raises WireError: then the connection is of no more use."""
        for kind, flags, stream, payload in self._frames.feed(data):
            if (self._block is None) == (kind == http2.CONTINUATION):
                raise WireError("CONTINUATION out of place")
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, flags, stream, payload)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._outlet.received(len(payload))
        self._outlet.credit(len(payload))
        call = self._calls.get(stream)
        if call is None:
            return
        body = call.body
        body += http2.unpad(payload, flags)
        if not call.headed:
            self._abort(stream, _broken("the answer begins without headers"))
        elif self._too_long(body):
            text = f"the answer is longer than {self._max_reply_bytes} bytes"
            self._abort(stream, _broken(text, grpc.RESOURCE_EXHAUSTED))
        elif flags & http2.END_STREAM:
            self._end(stream, _broken("the answer ends without grpc-status"))

    def _too_long(self, body: bytearray) -> bool:
        if len(body) < grpc.PREFIX_BYTES:
            return False
        announced = int.from_bytes(body[1 : grpc.PREFIX_BYTES], "big")
        return max(announced, len(body) - grpc.PREFIX_BYTES) > self._max_reply_bytes

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        _, fragment = http2.split_block(http2.HEADERS, flags, payload)
        self._block = _Block(stream, bool(flags & http2.END_STREAM))
        self._continuation(flags, stream, fragment)

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        block = self._block
        assert block is not None
        block.add(stream, payload)
        if flags & http2.END_HEADERS:
            self._block = None
            # Read it even if nobody waits for it: before the ACK the peer's header table depends on every block.
            head = _read_head(self._alone(bytes(block.fragment)))
            call = self._calls.get(stream)
            if call is not None:
                self._take_head(stream, call, head, block.end)

    def _alone(self, block: bytes) -> bytes:
        return block if self._blocks is None else self._blocks.translate(block)

    def _take_head(self, stream: int, call: _Call, head: "_Head", end: bool) -> None:
        if end:
            self._end(stream, self._outcome(call, head))
        elif head.informational and not call.headed:
            return
        elif call.headed or head.fault:
            self._abort(stream, head.fault or _broken("the answer has headers after its message"))
        else:
            call.headed = True
            call.encoding = head.encoding

    def _outcome(self, call: _Call, head: "_Head") -> Outcome:
        """Read the answer of a stream that ends with these headers."""
        if head.status is None:
            return (None if call.headed else head.fault) or _broken("the answer ends without grpc-status")
        if head.status == grpc.OK:
            try:
                return grpc.open_message(call.body, call.encoding, self._max_reply_bytes)
            except WireError as error:
                return _broken(str(error))
        return CallFailed(head.status, head.text, _KINDS.get(head.status, Kind.STATUS))

    def _end(self, stream: int, outcome: Outcome) -> None:
        """End a call whose stream the peer has ended; what was not sent of it yet is never sent."""
        del self._calls[stream]
        self.ended.append((stream, outcome))
        if self._outlet.waits(stream):
            self._reset(stream)
        else:
            self._outlet.ungovern(stream)

    def _abort(self, stream: int, failure: CallFailed) -> None:
        """End a call whose answer is no use while the peer still sends it."""
        del self._calls[stream]
        self.ended.append((stream, failure))
        self._reset(stream)

    def _rst(self, flags: int, stream: int, payload: bytes) -> None:
        code = http2.read_u32(payload)
        if stream in self._calls:
            refused = code == http2.REFUSED_STREAM
            failure = _unprocessed() if refused else _broken(f"the peer reset the call (HTTP/2 error {code})")
            self._drop(stream, failure)

    def _drop(self, stream: int, failure: CallFailed) -> None:
        del self._calls[stream]
        self.ended.append((stream, failure))
        self._outlet.ungovern(stream)

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & http2.ACK:
            self._blocks = None
            return
        entries = http2.read_settings(payload)
        unnamed = self._stream_limit if self._told else http2.MAX_STREAM_ID  # no limit is the default (RFC 9113, 6.5.2)
        self._stream_limit = dict(entries).get(http2.MAX_CONCURRENT_STREAMS, unnamed)
        self._told = True
        self._outlet.apply_settings(entries)
        self._outlet.inject(http2.SETTINGS_ACK)

    def _push(self, flags: int, stream: int, payload: bytes) -> None:
        raise WireError("PUSH_PROMISE although push is off")

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise WireError("PING frame whose length is not 8")
        if not flags & http2.ACK:
            self._outlet.inject(http2.frame(http2.PING, http2.ACK, 0, payload))

    def _goaway(self, flags: int, stream: int, payload: bytes) -> None:
        last = http2.read_u32(payload)
        self.closing = True
        for above in [number for number in self._calls if number > last]:
            self._drop(above, _unprocessed())

    def _window_update(self, flags: int, stream: int, payload: bytes) -> None:
        increment = http2.read_u32(payload)
        if stream:
            self._outlet.open_stream_window(stream, increment)
        else:
            self._outlet.open_window(increment)


_HANDLERS = {
    http2.DATA: Calls._data,
    http2.HEADERS: Calls._headers,
    http2.CONTINUATION: Calls._continuation,
    http2.RST_STREAM: Calls._rst,
    http2.SETTINGS: Calls._settings,
    http2.PUSH_PROMISE: Calls._push,
    http2.PING: Calls._ping,
    http2.GOAWAY: Calls._goaway,
    http2.WINDOW_UPDATE: Calls._window_update,
}

_KINDS = {grpc.DEADLINE_EXCEEDED: Kind.DEADLINE}


def _unprocessed() -> CallFailed:
    return CallFailed(grpc.UNAVAILABLE, "the peer took no more calls on this connection", Kind.UNREACHABLE)


@lru_cache(maxsize=64)
def _request_head(path: str) -> bytes:
    """Build the header block of a request up to the deadline."""
    return headers.build(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"runtimeproxy"),
        )
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """What counts of a header block; ``status`` is None if it has no grpc-status."""

    http_status: bytes
    content_type: bytes
    encoding: bytes
    status: int | None
    text: str

    @property
    def informational(self) -> bool:
        return self.http_status[:1] == b"1"

    @property
    def fault(self) -> CallFailed | None:
        """Say why this is not the beginning of an answer, None if it is."""
        if self.http_status != _HTTP_OK:
            shown = self.http_status.decode("ascii", "replace")[:3]
            return _broken(f"HTTP status {shown!r} in place of an answer", _CODES_OF_HTTP.get(self.http_status, 2))
        if not self.content_type.startswith(b"application/grpc"):
            return _broken("the answer is not gRPC", grpc.UNKNOWN)
        return None


def _read_head(block: bytes) -> _Head:
    return _cached_head(block) if len(block) <= _LONGEST_CACHED_BLOCK else _head(block)


def _head(block: bytes) -> _Head:
    fields = dict(headers.read(block))
    status = fields.get(b"grpc-status")
    return _Head(
        http_status=fields.get(b":status", b""),
        content_type=fields.get(b"content-type", b""),
        encoding=fields.get(b"grpc-encoding", b"identity"),
        status=None if status is None else _status(status),
        text=grpc.percent_decode(fields.get(b"grpc-message", b"")[: 3 * _LONGEST_TEXT])[:_LONGEST_TEXT],
    )


_cached_head = lru_cache(maxsize=256)(_head)
"""A server's answers to good calls have few different header blocks."""


def _status(value: bytes) -> int:
    known = value.isdigit() and len(value) <= 2 and int(value) <= 16
    return int(value) if known else grpc.UNKNOWN
