"""gRPC calls on one HTTP/2 connection, the server's side (RFC 9113 and gRPC's PROTOCOL-HTTP2 document).

Owns the streams of a client's calls: frames become whole requests, answers and statuses become frames.
Must not know: sockets, clocks, threads, which methods there are, what a message means.
Invariant: a request is handed out once, when it is whole, and ends once: by an answer, a status, or in ``cancelled``.
What the client can make us keep is bounded: by ``STREAMS``, ``HEADER_LIMIT``, the messages' limit and ``KEPT_BYTES``.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from runtimeproxy.errors import WireError
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.connection import HEADER_LIMIT, ServerConnection

STREAMS = 1000
"""How many calls may be open on a connection."""
KEPT_BYTES = 64 << 20
"""Bytes of requests, and of answers that wait for the client's windows, that are kept for a connection."""
_TOO_LONG_TOGETHER = "the requests of this connection are too long together"

_MAX_HEADER_LIST_SIZE = 0x6
_LONGEST_CACHED_BLOCK = 512
_GZIP = b"gzip"
_ENCODINGS = (b"grpc-accept-encoding", b"identity,gzip")
_TIMEOUT = headers.literal(b"grpc-timeout", b"")[:-1]
"""How the name stands in a block before the value's length, if neither is compressed."""
_LONGEST_TIMEOUT = 10
_AT_ONCE_BYTES = 16 * 1024
"""Answers up to this length, nearly all, are put together in one step if the client's windows allow it."""


class Request(NamedTuple):
    """A whole request; ``seconds`` is how long its client waits, None for ever."""

    stream: int
    path: str
    seconds: float | None
    message: bytes


class _Head(NamedTuple):
    """What counts of a request's headers."""

    path: str
    encoding: bytes
    seconds: float | None
    http_status: bytes
    """What is answered if it is no gRPC request, b"" if it is one."""


@dataclass(slots=True, eq=False)
class _Call:
    """A stream from its headers until its answer has left."""

    head: _Head
    body: bytearray = field(default_factory=bytearray)
    kept: int = 0
    whole: bool = False
    headed: bool = False
    answered: bool = False


class Served(ServerConnection):
    """The calls of one client's connection.

    ``out`` collects bytes for it, ``requests`` those to be served, ``cancelled`` the streams of those whose end it did
    not wait for.
    """

    def __init__(self, max_message_bytes: int) -> None:
        # A whole request fits into the stream's window, so that no window of a stream is ever opened further.
        window = min(max_message_bytes + grpc.PREFIX_BYTES + http2.DEFAULT_FRAME_SIZE, http2.MAX_WINDOW)
        super().__init__(
            {
                http2.MAX_CONCURRENT_STREAMS: STREAMS,
                http2.INITIAL_WINDOW_SIZE: window,
                _MAX_HEADER_LIST_SIZE: HEADER_LIMIT,
            }
        )
        self.out = self.outlet.out
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self._max_message_bytes = max_message_bytes
        self._at_once_bytes = min(max_message_bytes, _AT_ONCE_BYTES)
        self._calls: dict[int, _Call] = {}
        self._leaving: set[int] = set()
        """The streams that were answered while the client's windows were used up."""
        self._highest = 0
        self._kept = 0
        self._left = False

    @property
    def idle(self) -> bool:
        """Tell whether no call is open, and none is still to be sent its answer."""
        return not self._calls

    def receive(self, data: bytes) -> None:
        """Take the client's bytes. Raises WireError: then the connection is of no more use."""
        super().receive(data)
        for stream in [stream for stream in self._leaving if not self.outlet.waits(stream)]:
            self._forget(stream)
        if self.outlet.overfull:
            raise WireError("the client makes more frames wait than it may")

    # Requests.

    def block(self, stream: int, block: bytes, end: bool) -> None:
        """Take a request's headers, or its trailers."""
        head = _read_head(block)
        call = self._calls.get(stream)
        if call is not None and not call.whole and not call.answered:
            if not end:
                raise WireError("headers in the middle of a request")
            self._complete(stream, call, bytes(call.body))
        elif call is None and stream > self._highest:
            self._open(stream, head, end)
        else:
            self._known(stream)

    def _known(self, stream: int) -> None:
        """Let pass what comes late for a stream that ended. Raises WireError if there never was one."""
        if stream > self._highest or not stream & 1:
            raise WireError("frame of a stream that was not opened")

    def _open(self, stream: int, head: _Head, end: bool) -> None:
        if not stream & 1:
            raise WireError("client's stream with an even number")
        self._highest = stream
        if self._left:
            return  # above what GOAWAY told: the client knows that nothing is done for it
        if len(self._calls) >= STREAMS:
            self.outlet.inject(http2.rst_stream(stream, http2.REFUSED_STREAM))
            return
        self.outlet.govern(stream)
        call = self._calls[stream] = _Call(head, whole=end)
        if head.http_status:
            self._end(stream, call, headers.build([(b":status", head.http_status)]))
        elif end:
            self._fail(stream, grpc.INTERNAL, "the request has no message")

    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        """Collect a request's body."""
        self.outlet.credit(length)
        call = self._calls.get(stream)
        if call is None or call.whole or call.answered:
            self._known(stream)
            return
        if end and not call.body:
            self._complete(stream, call, payload)
            return
        call.body += payload
        self._keep(call, len(payload))
        if self._too_long(call.body):
            self._fail(stream, grpc.RESOURCE_EXHAUSTED, f"the request is longer than {self._max_message_bytes} bytes")
        elif self._kept > KEPT_BYTES:
            self._fail(stream, grpc.RESOURCE_EXHAUSTED, _TOO_LONG_TOGETHER)
        elif end:
            self._complete(stream, call, bytes(call.body))

    def _keep(self, call: _Call, count: int) -> None:
        call.kept += count
        self._kept += count

    def _too_long(self, body: bytearray) -> bool:
        announced = int.from_bytes(body[1 : grpc.PREFIX_BYTES], "big") if len(body) >= grpc.PREFIX_BYTES else 0
        return max(announced, len(body) - grpc.PREFIX_BYTES) > self._max_message_bytes

    def _complete(self, stream: int, call: _Call, framed: bytes) -> None:
        """Hand a request out; one that cannot be read is answered here."""
        call.whole = True
        call.body = bytearray()
        encoding = call.head.encoding
        if framed[:1] == b"\1" and encoding != _GZIP:
            text = f"the compression {encoding.decode(errors='replace')!r} is not known here"
            self._fail(stream, grpc.UNIMPLEMENTED, text, (_ENCODINGS,))
            return
        try:
            message = grpc.open_message(framed, encoding, self._max_message_bytes)
        except grpc.TooLong as error:
            self._fail(stream, grpc.RESOURCE_EXHAUSTED, str(error))
        except WireError as error:
            self._fail(stream, grpc.INTERNAL, str(error))
        else:
            self._keep(call, len(message) - call.kept)
            if self._kept > KEPT_BYTES:
                self._fail(stream, grpc.RESOURCE_EXHAUSTED, _TOO_LONG_TOGETHER)
            else:
                self.requests.append(Request(stream, call.head.path, call.head.seconds, message))

    def reset(self, stream: int, code: int) -> None:
        """End a call whose client does not wait for it."""
        self._known(stream)
        call = self._calls.get(stream)
        if call is not None:
            self._forget(stream)
            if call.whole and not call.answered:
                self.cancelled.append(stream)

    def goaway(self, last_stream: int) -> None:
        """Take the client's farewell: it closes the connection when its calls have ended."""

    # Answers.

    def answer(self, stream: int, message: bytes) -> None:
        """Send the only message of an answer, and its good end; nothing if the client does not wait for it."""
        call = self._calls.get(stream)
        framed = grpc.PREFIX_BYTES + len(message)
        if call is None or call.headed or framed > self._at_once_bytes or not self.outlet.take(stream, framed):
            self.tell(stream, message)
            self.end(stream, grpc.OK, "")
            return
        body = http2.frame(http2.DATA, 0, stream, grpc.message(message))
        self.out.append(http2.header_frames(stream, _ANSWER, end=False) + body)
        self.out.append(http2.header_frames(stream, _GOOD_END, end=True))
        self._forget(stream)

    def tell(self, stream: int, message: bytes) -> None:
        """Send a message of an answer; one that is too long is a status in its place."""
        call = self._calls.get(stream)
        if call is None or call.answered:
            return
        if len(message) > self._max_message_bytes:
            self._fail(stream, grpc.RESOURCE_EXHAUSTED, f"the answer is longer than {self._max_message_bytes} bytes")
            return
        if not call.headed:
            call.headed = True
            self.outlet.send_frame(stream, http2.header_frames(stream, _ANSWER, end=False))
        self.outlet.send_data(stream, grpc.message(message), False, None, 0)
        if self.outlet.waits(stream):
            self._keep(call, len(message))
            if self._kept > KEPT_BYTES:
                self._forget(stream)
                self.outlet.inject(http2.rst_stream(stream, http2.ENHANCE_YOUR_CALM))

    def end(self, stream: int, code: int, text: str) -> None:
        """End a call with a status; nothing if the client does not wait for it."""
        call = self._calls.get(stream)
        if call is not None and not call.answered:
            self._end(stream, call, _trailers(call.headed, code, text))

    def _fail(self, stream: int, code: int, text: str, more: tuple[headers.Header, ...] = ()) -> None:
        call = self._calls[stream]
        self._end(stream, call, _trailers(call.headed, code, text, more))

    def _end(self, stream: int, call: _Call, block: bytes) -> None:
        frames = http2.header_frames(stream, block, end=True)
        if not call.whole:
            frames += http2.rst_stream(stream, http2.NO_ERROR)  # the rest of the request is of no use
        call.answered = True
        self.outlet.send_frame(stream, frames)
        if self.outlet.waits(stream):
            self._leaving.add(stream)
        else:
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        self._kept -= self._calls.pop(stream).kept
        self._leaving.discard(stream)
        self.outlet.ungovern(stream)

    def leave(self) -> None:
        """Say that calls that are not open yet will not be served (GOAWAY)."""
        if not self._left:
            self._left = True
            self.outlet.inject(http2.goaway(self._highest, http2.NO_ERROR))

    def refuse(self, text: str) -> None:
        """Say why the connection is closed: the client broke the protocol (GOAWAY)."""
        self.outlet.inject(http2.goaway(self._highest, http2.PROTOCOL_ERROR, text.encode()))


_ANSWER_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_ANSWER = headers.build(_ANSWER_HEADERS)
_GOOD_END = headers.build([(b"grpc-status", b"0")])


@lru_cache(maxsize=64)
def _trailers(headed: bool, code: int, text: str, more: tuple[headers.Header, ...] = ()) -> bytes:
    """Build the block that ends an answer, its headers included if none went before."""
    status = (b"grpc-status", str(code).encode())
    told = ((b"grpc-message", grpc.percent_encode(text)),) if text else ()
    return headers.build((*(() if headed else _ANSWER_HEADERS), status, *told, *more))


def _read_head(block: bytes) -> _Head:
    """Read a request's headers: all but the deadline, which often comes last, are the same in many of them."""
    before, _, rest = block.rpartition(_TIMEOUT)
    whole = 0 < len(rest) <= _LONGEST_TIMEOUT and rest[0] == len(rest) - 1
    if whole and 0 < len(before) <= _LONGEST_CACHED_BLOCK:
        try:
            path, encoding, _, http_status = _cached_head(before)
        except WireError:
            return _head(block)  # the name stood inside of another field
        return _Head(path, encoding, grpc.read_timeout(rest[1:]), http_status)
    return _head(block)


def _head(block: bytes) -> _Head:
    fields = dict(headers.read(block))
    content_type = fields.get(b"content-type", b"")
    http_status = b""
    if fields.get(b":method") != b"POST":
        http_status = b"405"
    elif not content_type.startswith(b"application/grpc") or content_type[16:17] not in (b"", b"+", b";"):
        http_status = b"415"
    return _Head(
        path=fields.get(b":path", b"").decode("latin-1"),
        encoding=fields.get(b"grpc-encoding", b"identity"),
        seconds=grpc.read_timeout(fields.get(b"grpc-timeout", b"")),
        http_status=http_status,
    )


_cached_head = lru_cache(maxsize=64)(_head)
