"""The client side of unary gRPC calls on HTTP/2 connections of the proxy's own (RFC 9113 and gRPC's PROTOCOL-HTTP2
document).

Invariant: every opened call ends exactly once, by an outcome or by ``cancel``. Buffered data is bounded:
``HEADER_LIMIT`` for a header block, the reply's limit for a body.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from runtimeproxy.errors import RuntimeProxyError, WireError
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.http2 import FlowControlledSender

STREAMS_UNTIL_SETTINGS = 1
"""Most streams that are open before the peer's SETTINGS set how many it accepts."""

HEADER_LIMIT = 64 * 1024
"""Longest header block that is accepted, in bytes, including the heads of its frames."""

_BLOCK_SHAPE = http2.END_HEADERS | http2.PADDED | http2.PRIORITY_FLAG

_ENABLE_PUSH = 0x2
_LONGEST_TEXT = 2048
_LONGEST_CACHED_BLOCK = 256
_HTTP_OK = b"200"
_CODES_OF_HTTP = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"429": 14, b"502": 14, b"503": 14, b"504": 14}


class Kind(Enum):
    """How a call failed."""

    UNREACHABLE = "unreachable"
    """The peer never got the call, or reports that it did not process it."""
    DEADLINE = "deadline"
    BROKEN = "broken"
    """The reply breaks the protocol, is too long, or ends too early."""
    STATUS = "status"
    """The peer replied with an error status."""


class CallFailed(RuntimeProxyError):
    """A call without a reply. ``code`` is the gRPC status code, ``text`` the peer's message if ``kind`` is STATUS."""

    def __init__(self, code: int, text: str, kind: Kind) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.kind = kind


class Unprocessed(CallFailed):
    """The peer reports that it did not process a call, so it may be sent again (RFC 9113, 8.7)."""

    def __init__(self) -> None:
        super().__init__(grpc.UNAVAILABLE, "the peer took no more calls on this connection", Kind.UNREACHABLE)


class TooLong(CallFailed):
    """The reply is longer than the caller accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(grpc.RESOURCE_EXHAUSTED, f"the answer is longer than {limit} bytes", Kind.BROKEN)


Outcome = bytes | CallFailed


def _broken(text: str, code: int = grpc.INTERNAL) -> CallFailed:
    return CallFailed(code, text, Kind.BROKEN)


class ClientConnection(ABC):
    """The client's end of an HTTP/2 connection of the proxy's own; ``sender.out`` collects the bytes for the server.

    Buffered data is bounded. Raises WireError if the server breaks the protocol.
    """

    waiting_acks = 0
    """Most ACKs of PINGs that wait in ``sender.acks`` to be sent with other data."""

    def __init__(self, settings: dict[int, int], streams_until_settings: int) -> None:
        self.sender = FlowControlledSender()
        self.stream_limit = streams_until_settings
        """How many streams may be open, as the server's SETTINGS allow."""
        self.closing = False
        """True once the peer accepts no new streams."""
        self.greeted = False
        """True once the server's SETTINGS were received."""
        self._acknowledged = False
        """True once the server acknowledged the table size of 0, so that each header block must stand alone. Before
        that each block is translated, also one that no call waits for: the decoder's dynamic table depends on it."""
        self._frames = http2.FrameBuffer(settings.get(http2.MAX_FRAME_SIZE, http2.DEFAULT_FRAME_SIZE))
        self._blocks = headers.Blocks()
        self._fragment: bytearray | None = None
        """The received part of an unfinished header block, else None; the next three fields belong to it."""
        self._block_stream = self._block_bytes = 0
        self._block_ends = False
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            http2.HEADERS: self._headers,
            http2.CONTINUATION: self._continuation,
            http2.RST_STREAM: self._reset,
            http2.SETTINGS: self._settings,
            http2.PUSH_PROMISE: self._push,
            http2.GOAWAY: self._goaway,
        }
        self.sender.out.append(http2.PREFACE + http2.settings({**settings, http2.HEADER_TABLE_SIZE: 0}))
        self.sender.start()

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Raises WireError, after which the connection must not be used any more."""
        sender = self.sender
        for kind, flags, stream, payload in self._frames.feed(data):
            if (self._fragment is None) == (kind == http2.CONTINUATION):
                raise WireError("CONTINUATION out of place")
            if not self.greeted and (kind != http2.SETTINGS or flags & http2.ACK):
                raise WireError("the first frame is not SETTINGS")
            if kind == http2.DATA:
                sender.received(len(payload))
                part = http2.unpad(payload, flags) if flags & http2.PADDED else payload
                self.data(stream, part, len(payload), bool(flags & http2.END_STREAM))
            elif kind == http2.HEADERS and flags & _BLOCK_SHAPE == http2.END_HEADERS:  # nearly all of them
                block = payload if self._acknowledged else self._blocks.translate(payload)
                self.block(stream, block, bool(flags & http2.END_STREAM))
            elif kind == http2.WINDOW_UPDATE:
                if len(payload) != 4:
                    raise WireError("WINDOW_UPDATE frame whose length is not 4")
                increment = int.from_bytes(payload) & http2.MAX_STREAM_ID
                if stream:
                    sender.open_stream_window(stream, increment)
                else:
                    sender.open_window(increment)
            elif kind == http2.PING:
                if len(payload) != 8:
                    raise WireError("PING frame whose length is not 8")
                if not flags & http2.ACK:
                    sender.acks.append(http2.frame(http2.PING, http2.ACK, 0, payload))
                    if len(sender.acks) > self.waiting_acks:
                        sender.acknowledge()
            elif (handler := self._handlers.get(kind)) is not None:
                handler(flags, stream, payload)
        if sender.widened:
            sender.catch_up()

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        _, fragment = http2.split_block(http2.HEADERS, flags, payload)
        self._fragment = bytearray()
        self._block_stream, self._block_bytes, self._block_ends = stream, 0, bool(flags & http2.END_STREAM)
        self._continuation(flags, stream, fragment)

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        assert self._fragment is not None
        self._fragment += payload
        self._block_bytes += http2.HEAD_BYTES + len(payload)
        if stream != self._block_stream or self._block_bytes > HEADER_LIMIT:
            raise WireError("CONTINUATION of another stream, or header block is too long")
        if flags & http2.END_HEADERS:
            block, self._fragment = bytes(self._fragment), None
            self.block(stream, block if self._acknowledged else self._blocks.translate(block), self._block_ends)

    def _reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise WireError("RST_STREAM frame whose length is not 4")
        self.reset(stream, int.from_bytes(payload))

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & http2.ACK:
            self._acknowledged = True
            self._blocks.acknowledge()
            return
        entries = http2.read_settings(payload)
        # Without an entry the number is unlimited (RFC 9113, 6.5.2).
        unnamed = self.stream_limit if self.greeted else http2.MAX_STREAM_ID
        self.stream_limit = dict(entries).get(http2.MAX_CONCURRENT_STREAMS, unnamed)
        self.greeted = True
        self.sender.apply_settings(entries)
        self.sender.inject(http2.SETTINGS_ACK)

    def _push(self, flags: int, stream: int, payload: bytes) -> None:
        raise WireError("PUSH_PROMISE although push is off")

    def _goaway(self, flags: int, stream: int, payload: bytes) -> None:
        self.closing = True
        self.goaway(http2.read_u32(payload))

    # Handlers of frames on streams, for the subclass.

    @abstractmethod
    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        """Called for DATA, without its padding; ``length`` must be credited to the sender once the data is consumed."""

    @abstractmethod
    def block(self, stream: int, block: bytes, end: bool) -> None:
        """Called for a complete header block, which must stand alone. Raises WireError."""

    @abstractmethod
    def reset(self, stream: int, code: int) -> None:
        """Called for RST_STREAM."""

    @abstractmethod
    def goaway(self, last_stream: int) -> None:
        """Called for GOAWAY: streams above the last one were not processed."""


class _Call:
    """The received part of a reply."""

    body: bytes | bytearray = b""
    encoding = b""
    headed = False


class Calls(ClientConnection):
    """The calls of one connection. ``out`` collects bytes for the peer, ``acks`` the ACKs of PINGs that may be sent a
    little later, ``ended`` the outcomes by stream.
    """

    waiting_acks = 16

    def __init__(self, max_reply_bytes: int) -> None:
        # A whole reply fits into the stream's window, so a stream needs no WINDOW_UPDATE.
        window = min(max_reply_bytes + grpc.PREFIX_BYTES + http2.DEFAULT_FRAME_SIZE, http2.MAX_WINDOW)
        super().__init__({_ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: window}, STREAMS_UNTIL_SETTINGS)
        self.out = self.sender.out
        self.acks = self.sender.acks
        self.ended: list[tuple[int, Outcome]] = []
        self._max_reply_bytes = max_reply_bytes
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self.granted = 0
        """Calls that wait to be opened, with room reserved for them."""

    @property
    def room(self) -> int:
        """Return how many more calls the peer accepts now, in addition to those that were granted room."""
        return max(self.stream_limit - len(self._calls) - self.granted, 0)

    def open(self, path: str, message: bytes, seconds: float) -> int:
        """Send a request with a timeout in seconds; return its stream."""
        stream = self._next_stream
        self._next_stream += 2
        self.closing |= self._next_stream > http2.MAX_STREAM_ID
        self._calls[stream] = _Call()
        timeout = grpc.timeout(seconds)
        block = _request_head(path) + bytes((len(timeout),)) + timeout
        self.sender.stream_windows[stream] = 0
        self.out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))
        *first, last = grpc.chunks(message)
        for chunk in first:
            self.sender.send_data(stream, chunk, False, None, 0)
        self.sender.send_data(stream, last, True, None, 0)
        return stream

    def cancel(self, stream: int) -> None:
        """Reset the stream of a call whose caller no longer waits."""
        if self._calls.pop(stream, None) is not None:
            self._cancel(stream)

    def _cancel(self, stream: int) -> None:
        self.sender.forget_window(stream)
        self.sender.inject(http2.rst_stream(stream, http2.CANCEL))

    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        """Collect the body of a reply."""
        self.sender.credit(length)
        call = self._calls.get(stream)
        if call is None:
            return
        if not call.body:
            call.body = payload
        else:  # a long reply
            call.body = call.body if isinstance(call.body, bytearray) else bytearray(call.body)
            call.body += payload
        prefix = call.body[: grpc.PREFIX_BYTES]
        announced = int.from_bytes(prefix[1:]) if len(prefix) == grpc.PREFIX_BYTES else 0
        if not call.headed:
            self._end(stream, _broken("the answer begins without headers"), reset=True)
        elif max(announced, len(call.body) - grpc.PREFIX_BYTES) > self._max_reply_bytes:
            self._end(stream, TooLong(self._max_reply_bytes), reset=True)
        elif end:
            self._end(stream, _broken("the answer ends without grpc-status"), stream in self.sender.queues)

    def block(self, stream: int, block: bytes, end: bool) -> None:
        """Process the headers or trailers of a reply."""
        head = _cached_head(block) if len(block) <= _LONGEST_CACHED_BLOCK else _read_head(block)
        call = self._calls.get(stream)
        if call is None:
            return
        outcome: Outcome
        if end:
            if head.status is None:
                unfinished = call.headed or head.good
                outcome = _broken("the answer ends without grpc-status") if unfinished else head.fault()
            elif head.status == grpc.OK:
                try:
                    outcome = grpc.open_message(call.body, call.encoding, self._max_reply_bytes)
                except grpc.TooLong:
                    outcome = TooLong(self._max_reply_bytes)
                except WireError as error:
                    outcome = _broken(str(error))
            elif head.status == grpc.DEADLINE_EXCEEDED:
                outcome = CallFailed(head.status, "the peer reports that the deadline has expired", Kind.DEADLINE)
            else:
                outcome = CallFailed(head.status, head.text, Kind.STATUS)
            self._end(stream, outcome, stream in self.sender.queues)
        elif head.good and not call.headed:
            call.headed = True
            call.encoding = head.encoding
        elif call.headed or not head.informational:
            fault = _broken("the answer has headers after its message") if head.good else head.fault()
            self._end(stream, fault, reset=True)

    def _end(self, stream: int, outcome: Outcome, reset: bool) -> None:
        """End a call; ``reset`` if the peer has not ended its stream, or part of the request is not sent yet."""
        del self._calls[stream]
        self.ended.append((stream, outcome))
        if reset:
            self._cancel(stream)
        else:
            self.sender.forget_window(stream)

    def reset(self, stream: int, code: int) -> None:
        """End a call whose stream the peer reset."""
        if stream in self._calls:
            refused = code == http2.REFUSED_STREAM
            failure = Unprocessed() if refused else _broken(f"the peer reset the call (HTTP/2 error {code})")
            self._end(stream, failure, reset=False)

    def goaway(self, last_stream: int) -> None:
        """End the calls that the peer did not process."""
        for above in [number for number in self._calls if number > last_stream]:
            self._end(above, Unprocessed(), reset=False)


@lru_cache(maxsize=64)
def _request_head(path: str) -> bytes:
    """Return the header block of a request, up to the value of grpc-timeout."""
    return headers.build(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"runtimeproxy"),
            (b"grpc-timeout", b""),
        )
    )[:-1]


@dataclass(frozen=True, slots=True)
class _Head:
    """The relevant fields of a header block; ``status`` is None if it has no grpc-status. ``good``: it begins a reply.
    ``informational``: the reply's own headers will follow.
    """

    http_status: bytes
    encoding: bytes
    status: int | None
    text: str
    good: bool
    informational: bool

    def fault(self) -> CallFailed:
        """Return why this header block does not begin a reply."""
        if self.http_status != _HTTP_OK:
            shown = self.http_status.decode("ascii", "replace")[:3]
            return _broken(f"HTTP status {shown!r} in place of an answer", _CODES_OF_HTTP.get(self.http_status, 2))
        return _broken("the answer is not gRPC", grpc.UNKNOWN)


def _read_head(block: bytes) -> _Head:
    fields = dict(headers.read(block))
    http_status, status = fields.get(b":status", b""), fields.get(b"grpc-status")
    return _Head(
        http_status=http_status,
        encoding=fields.get(b"grpc-encoding", b"identity"),
        status=None if status is None else _status(status),
        text=grpc.percent_decode(fields.get(b"grpc-message", b"")[: 3 * _LONGEST_TEXT])[:_LONGEST_TEXT],
        good=http_status == _HTTP_OK and fields.get(b"content-type", b"").startswith(b"application/grpc"),
        informational=http_status[:1] == b"1",
    )


_cached_head = lru_cache(maxsize=256)(_read_head)
"""Header blocks by their bytes: a server's good replies have few different ones."""


def _status(value: bytes) -> int:
    is_valid = value.isdigit() and len(value) <= 2 and int(value) <= 16
    return int(value) if is_valid else grpc.UNKNOWN
