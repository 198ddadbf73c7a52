"""The streams that are held: one gRPC call whose request waits for the hook servers.

Owns the state of a held stream on the wire: what has come, what waits, what was released, which frame is kept.
Must not know: what a message means, hook servers.
Invariant: the request leaves once, whole and in order, or not at all; of the reply only the frame that ends the stream
is kept (relay-rules A4 to A7, C1).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from runtimeproxy.call import MESSAGE_LIMIT, UNANSWERED, CallState, Reply
from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import Excess
from runtimeproxy.cri.direction import Data, HeaderBlock
from runtimeproxy.cri.refused import refusal
from runtimeproxy.cri.routes import Route
from runtimeproxy.errors import WireError
from runtimeproxy.heldbytes import NO_ROOM, HeldBytes
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import Outlet

REQUEST_FIELDS = frozenset({b"content-type", b"grpc-encoding", b"grpc-timeout"})
REPLY_FIELDS = frozenset({b":status", b"grpc-encoding", b"grpc-status"})
"""The header fields that are kept, as far as ``bounds.FIELD_BYTES``: all of them may be long."""

_BROKEN_OFF = frozenset({b"1", b"4", b"14"})
"""CANCELLED and DEADLINE_EXCEEDED: containerd answers so by itself (relay-rules C1), and may go on with the call.
UNAVAILABLE: gRPC's own word where a connection ends; servers on its C core send it to one who half-closes (run)."""


class Owner(Protocol):
    """What a held stream needs of its connection."""

    client_out: Outlet
    runtime_out: Outlet
    held_bytes: HeldBytes
    clock: Callable[[], float]

    def request_whole(self, held: "HeldStream") -> None: ...
    def reply_settled(self, held: "HeldStream") -> None: ...
    def forget(self, stream: int) -> None: ...
    def drop(self, stream: int) -> None: ...
    def wake(self) -> None: ...


def _nothing() -> None:
    """Stand in for a listener that is not there yet."""


class HeldStream:
    """One held call. Its request's headers have gone to the runtime already; its DATA waits."""

    def __init__(self, owner: Owner, route: Route, block: HeaderBlock) -> None:
        self.owner = owner
        self.stream = block.stream
        self.route = route
        self.began = owner.clock()
        """When its headers came: the caller's time runs from then on, not from its message's end."""
        self.fields = _some_fields(block, REQUEST_FIELDS)
        self.state = CallState.HOLDING
        self.message: bytes | None = None
        """The request's body once it is whole, its compression undone; None if it cannot be read: see ``problem``."""
        self.problem = ""
        self.reply: Reply | None = None
        self.on_ended: Callable[[], object] = _nothing
        self.on_reply: Callable[[], object] = _nothing
        self._request = bytearray()
        """What has come of the request; nothing once ``message`` is all of it: a prefix can be made again."""
        self._counted = 0
        self._whole = False
        self._late = bytearray()
        self._late_length = 0
        self._trailers: HeaderBlock | None = None
        self._half_closed = block.end
        self._has_body = not block.end
        self._early: list[Data | HeaderBlock] = []
        self._early_bytes = 0
        self._reply_body = bytearray()
        self._reply_fields: dict[bytes, bytes] = {}
        self._kept: Data | HeaderBlock | None = None
        self._kept_reset = b""

    # From the client.

    def client_data(self, data: Data) -> None:
        """Collect the request, or queue what follows it."""
        owner = self.owner
        self._half_closed |= data.end
        if self.state is CallState.RELEASED:
            owner.runtime_out.send_data(self.stream, data.payload, data.end, owner.client_out, data.length)
            self._credit_stream(data.length)
        elif self._whole:
            self._late += data.payload  # without credit, so that it cannot grow without bound
            self._late_length += data.length
        else:
            owner.client_out.credit(data.length)
            self._credit_stream(data.length)
            self._collect(data.payload)

    def _credit_stream(self, length: int) -> None:
        if length and not self._half_closed:
            self.owner.client_out.inject(http2.window_update(self.stream, length))

    def _collect(self, payload: bytes) -> None:
        self._request += payload
        try:
            self._count(len(payload))
            if self._is_whole():
                self._open()
            else:
                self.owner.held_bytes.comes(self, self._counted)
        except WireError as error:
            self.give_up(str(error))

    def _count(self, length: int) -> None:
        self._counted += length
        if not self.owner.held_bytes.add(self, length):
            raise WireError(NO_ROOM)

    def _open(self) -> None:
        message = grpc.open_message(self._request, self.fields.get(b"grpc-encoding", b""), MESSAGE_LIMIT)
        if self._request[0]:
            self._count(len(message))
        else:
            self._request = bytearray()
        self.message = message
        self._request_whole()

    def give_up(self, problem: str) -> None:
        """Take the request as one that cannot be read."""
        self.problem = problem
        self._request_whole()

    def _request_whole(self) -> None:
        self._whole = True
        self.owner.held_bytes.whole(self)
        self.owner.request_whole(self)

    def _is_whole(self) -> bool:
        if self.fields.get(b"content-type") not in grpc.CONTENT_TYPES:
            raise WireError("content type is not application/grpc")
        if len(self._request) >= grpc.PREFIX_BYTES:
            length = grpc.message_length(self._request)
            if length > MESSAGE_LIMIT:
                raise WireError("message is longer than the limit")
            if len(self._request) >= grpc.PREFIX_BYTES + length:
                return True
        if self._half_closed:
            raise WireError("request ends inside its message")
        return False

    def start(self) -> None:
        """Take a request that ended with its headers: it has no message."""
        if self._half_closed:
            self._collect(b"")

    def client_headers(self, block: HeaderBlock) -> None:
        """Queue the request's trailers behind its message."""
        self._half_closed = True
        if self.state is CallState.RELEASED:
            self.owner.runtime_out.send_frame(self.stream, block.frames())
            return
        if len(block.alone) + len(block.originals) * bounds.PIECE_BYTES > bounds.HELD_TRAILERS_BYTES:
            raise Excess("header_block", "trailers of a held call are too long")
        self._trailers = block
        if not self._whole:
            self._collect(b"")

    def client_reset(self, frame: bytes) -> None:
        """Pass the client's cancel; it overtakes what waits."""
        self.owner.client_out.drop(self.stream)
        self.owner.runtime_out.drop(self.stream)
        self.owner.runtime_out.inject(frame)
        self._kept = None
        self._end(UNANSWERED)

    def client_window(self, increment: int) -> None:
        """Pass the client's credit: replies are end to end."""
        self.owner.runtime_out.inject(http2.window_update(self.stream, increment))

    # From the runtime.

    def runtime_window(self, increment: int) -> None:
        """Take the runtime's credit: the request is hop by hop."""
        self.owner.runtime_out.open_stream_window(self.stream, increment)

    def runtime_headers(self, block: HeaderBlock) -> None:
        """Pass the reply's headers, or keep the block that ends it."""
        self._reply_fields.update(_some_fields(block, REPLY_FIELDS))
        self._reply(block)

    def runtime_data(self, data: Data) -> None:
        """Pass the reply's DATA while copying it."""
        if len(self._reply_body) <= bounds.REPLY_BYTES:
            self._reply_body += data.payload
        self._reply(data)

    def _reply(self, part: Data | HeaderBlock) -> None:
        """Hold back what comes before the release, and the frame that ends the stream after it."""
        if self.state is CallState.HOLDING:
            self._keep_early(part)
            self._credit(part)
            if part.end:
                self._flush_early()
                self._end(UNANSWERED)
        elif part.end:
            self._kept = part
            self._credit(part)
            self._settle(self._read_reply())
        else:
            self._pass(part, self.owner.runtime_out)

    def _keep_early(self, part: Data | HeaderBlock) -> None:
        self._early.append(part)
        self._early_bytes += bounds.PIECE_BYTES + (part.length if isinstance(part, Data) else 2 * part.size)
        if self._early_bytes > bounds.EARLY_BYTES:
            raise Excess("early_reply", "a call is answered at length that was not sent yet")

    def _credit(self, part: Data | HeaderBlock) -> None:
        if isinstance(part, Data):
            self.owner.runtime_out.credit(part.length)

    def _pass(self, part: Data | HeaderBlock, source: Outlet | None = None) -> None:
        """Send a part of the reply to the client; ``source`` is credited for it unless it was before."""
        if isinstance(part, Data):
            part.send(self.owner.client_out, self.stream, source)
        else:
            self.owner.client_out.send_frame(self.stream, part.frames())

    def _read_reply(self) -> Reply:
        fields = self._reply_fields
        if fields.get(b":status", b"200") != b"200" or fields.get(b"grpc-status") != b"0":
            return UNANSWERED if fields.get(b"grpc-status") in _BROKEN_OFF else Reply(agreed=False)
        try:
            encoding = fields.get(b"grpc-encoding", b"")
            return Reply(agreed=True, message=grpc.open_message(self._reply_body, encoding, bounds.REPLY_BYTES))
        except WireError:
            return Reply(agreed=False)

    def runtime_reset(self, frame: bytes) -> None:
        """Pass the runtime's reset at once, or behind the whole answer that it follows (RFC 9113, 8.1)."""
        if self._kept is not None:
            self._kept_reset = frame
            return
        self._flush_early()
        self.owner.client_out.drop(self.stream)
        self.owner.client_out.inject(frame)
        self._end(UNANSWERED)

    def _flush_early(self) -> None:
        for part in self._early:
            self._pass(part)
        self._early.clear()

    # From the lifecycle.

    def release(self, message: bytes | None) -> bool:
        """Send the request on: its own bytes if ``message`` is None, else that message uncompressed.

        Returns False if the call is no longer held; then nothing is sent.
        """
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        self._send_request(self._pieces() if message is None else grpc.pieces(message))
        self._request = bytearray()
        self._flush_early()
        self.owner.wake()
        return True

    def _pieces(self) -> tuple[bytes, ...]:
        """Return the request as it came; nothing if it has no message."""
        if self.message is not None and not self._request:
            return grpc.pieces(self.message)
        return (bytes(self._request),) if self._request else ()

    def _send_request(self, pieces: Sequence[bytes]) -> None:
        """Send the message, what came behind it, and the end in DATA or trailers, if the headers were not the end."""
        runtime = self.owner.runtime_out
        end = self._half_closed and self._has_body and self._trailers is None
        late = bool(self._late_length)
        for piece in pieces[:-1]:
            runtime.send_data(self.stream, piece, False, None, 0)
        for piece in pieces[-1:]:
            unread = self if self.problem else None
            runtime.send_data(self.stream, piece, end and not late, unread, self._counted)
        if late or (end and not pieces):
            runtime.send_data(self.stream, bytes(self._late), end, self.owner.client_out, self._late_length)
            self._credit_stream(self._late_length)
            self._late, self._late_length = bytearray(), 0
        if self._trailers is not None:
            runtime.send_frame(self.stream, self._trailers.frames())

    def refuse(self, code: int, text: str) -> bool:
        """Answer the client with a status in the runtime's place (relay-rules A7). Returns False if no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.REFUSED
        owner = self.owner
        self._free_request()
        owner.runtime_out.inject(http2.rst_stream(self.stream, http2.CANCEL))
        owner.client_out.inject(refusal(self.stream, code, text, self._half_closed))
        owner.drop(self.stream)
        owner.wake()
        self._forget_listeners()
        return True

    def answer(self) -> None:
        """Let the kept frame go; the stream just passes from here on."""
        if self._kept is None:
            return
        self._pass(self._kept)
        self._kept = None
        if self._kept_reset:
            self.owner.client_out.send_frame(self.stream, self._kept_reset)
        self.owner.forget(self.stream)
        self.owner.wake()

    @property
    def kept(self) -> bool:
        """Tell whether an answer of the runtime waits for the Post hooks."""
        return self._kept is not None

    @property
    def is_answering(self) -> bool:
        """Tell whether the beginning of the runtime's answer has gone to the client."""
        return self.state is CallState.RELEASED and bool(self._reply_fields)

    def connection_lost(self) -> None:
        """Take the end of the client's or the runtime's connection."""
        if self._kept is None:
            self._end(UNANSWERED)

    def _end(self, reply: Reply) -> None:
        """End the call without the runtime's agreement."""
        ended: Callable[[], object] = _nothing
        if self.state is CallState.HOLDING:
            self.state, ended = CallState.ENDED, self.on_ended
            self._free_request()
        self.owner.forget(self.stream)
        self._settle(reply)
        ended()

    def _settle(self, reply: Reply) -> None:
        if self.reply is None:
            self.reply = reply
            self.on_reply()
            self.owner.reply_settled(self)
            self._forget_listeners()

    def _forget_listeners(self) -> None:
        """Leave no cycle for the garbage collector: they lead to the call and its task, and these keep the stream."""
        self.on_reply = self.on_ended = _nothing

    def credit(self, length: int) -> None:
        """Know that a request that nobody has read has left."""
        self.free()

    def free(self) -> None:
        """Count nothing of the request any more: it is not kept."""
        self.owner.held_bytes.free(self, self._counted)
        self._counted = 0

    def _free_request(self) -> None:
        self.free()
        self._request = bytearray()
        self.owner.client_out.credit(self._late_length)
        self._late = bytearray()
        self._late_length = 0


def _some_fields(block: HeaderBlock, names: frozenset[bytes]) -> dict[bytes, bytes]:
    limit = bounds.FIELD_BYTES
    return {name: value[:limit] for name, value in headers.read(block.alone) if name in names}
