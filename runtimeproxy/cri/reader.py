"""The CRI front's state of one pair of connections: its held calls as HTTP/2 streams, both directions, and GOAWAY.

A held call's request waits for the hook servers. Only the frame that ends its reply waits for the Post hooks.
Invariants: a held request is sent once, complete and in order, or never (relay-rules A4 to A7, C1). The last stream id
of a GOAWAY never rises; a refused stream was never sent to the runtime (relay-rules A11).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtimeproxy.core.call import MESSAGE_LIMIT, NO_ROOM, UNANSWERED, CallState, HeldCall, Reply
from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import OPEN_STREAMS, Excess
from runtimeproxy.cri.frame_relay import Data, FrameRelay, HeaderBlock, Shared, Streams, StreamState, refusal
from runtimeproxy.cri.image import ImageLink, ImageStream
from runtimeproxy.cri.routes import ENDLESS, HELD, IMAGE_PREFIXES, OTHER_SERIES, PASSING_SERIES, RESTORES, Route
from runtimeproxy.errors import WireError
from runtimeproxy.model import hookpoints
from runtimeproxy.model.hookpoints import UNRECORDED, Operation
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, headers, http2

REQUEST_FIELDS = frozenset({b"content-type", b"grpc-encoding", b"grpc-timeout"})
REPLY_FIELDS = frozenset({b":status", b"grpc-encoding", b"grpc-status"})
"""The stored header fields of a reply, each up to ``bounds.FIELD_BYTES``, since a peer may send long ones."""

_UNKNOWN_OUTCOME = frozenset({b"1", b"4", b"14"})
"""gRPC statuses that leave the outcome unknown. containerd itself returns CANCELLED and DEADLINE_EXCEEDED (relay-rules
C1), and may continue with the call. UNAVAILABLE is gRPC's status where a connection ends; servers on its C core send it
to a client that half-closes (run)."""

_UNIMPLEMENTED = b"12"

END = Data(b"", 0, True, b"")
"""The end of a request that ends without DATA."""


class CriHeld(HeldCall):
    """A held call's stream. The request's headers were already sent to the runtime; its DATA waits."""

    # Defaults on the class, to save memory: most calls never set these.
    _message: bytes | None = None
    """The decompressed message of a complete request; None if it cannot be read (see ``problem``)."""
    problem = ""
    _request: bytes | bytearray = b""
    """The received body; empty once ``message`` has all of it, since gRPC's five-byte prefix can be rebuilt."""
    _counted_bytes = 0
    _is_complete = False
    _following: bytes | bytearray = b""
    _following_bytes = 0
    _trailers: HeaderBlock | None = None
    _early_reply: Sequence[Data | HeaderBlock] = ()
    _early_bytes = 0
    _reply_body: bytes | bytearray = b""
    retained: Data | HeaderBlock | None = None
    """The frame that ends the runtime's answer, which waits for the Post hooks."""
    _retained_reset = b""

    def __init__(
        self, owner: Streams, route: Route, stream: int, fields: Sequence[headers.Field], half_closed: bool
    ) -> None:
        self.owner = owner
        self.shared = owner.shared
        self.stream = stream
        self.operation: Operation = route.operation
        self.hook_points = hookpoints.CONCERNED[route.operation]
        self.version = route.version
        self.fields = dict(headers.find(fields, REQUEST_FIELDS, bounds.FIELD_BYTES))
        timeout = self.fields.get(b"grpc-timeout")
        if timeout is not None and (seconds := grpc.read_timeout(timeout)) is not None:
            self.deadline = self.shared.clock() + seconds  # it counts from the headers, not from the body
        self._half_closed = half_closed
        self._has_body = not half_closed
        self.reply_fields: dict[bytes, bytes] = {}

    # From the client.

    def client_data(self, data: Data) -> None:
        """Collect the request until it is complete or cannot be read; queue or send the following DATA."""
        owner = self.owner
        self._half_closed |= data.end
        if self._is_complete and self.state is CallState.RELEASED:
            owner.to_runtime.send_data(self.stream, data.payload, data.end, owner.to_client, data.length)
            self._credit_stream(data.length)
            return
        if self._is_complete:
            self._following = _append(self._following, data.payload)  # bounded, as it gets no credit
            self._following_bytes += data.length
            return
        owner.to_client.credit(data.length)
        if not self._half_closed:  # a client that has half-closed sends no more DATA
            self._credit_stream(data.length)
        self._request = _append(self._request, data.payload) if self._request else data.payload
        budget = self.shared.budget
        try:
            self._counted_bytes += len(data.payload)
            if not budget.add(len(data.payload)):
                raise WireError(NO_ROOM)
            if self.fields.get(b"content-type") not in grpc.CONTENT_TYPES:
                raise WireError("content type is not application/grpc")
            if grpc.missing(self._request, MESSAGE_LIMIT) > 0:
                if self._half_closed:
                    raise WireError("request ends inside its message")
                return
            message = grpc.open_message(self._request, self.fields.get(b"grpc-encoding", b""), MESSAGE_LIMIT)
            if not self._request[0]:
                self._request = b""
            else:  # it was compressed, and may have to be sent unchanged: both forms are stored
                self._counted_bytes += len(message)
                if not budget.add(len(message)):
                    raise WireError(NO_ROOM)
            self._message = message
        except WireError as error:
            self.problem = str(error)
        self._is_complete = True
        owner.ready.append(self)

    def _credit_stream(self, length: int) -> None:
        if length and not self._half_closed:
            self.owner.to_client.inject(http2.window_update(self.stream, length))

    def client_headers(self, block: HeaderBlock) -> None:
        self._half_closed = True
        if self.state is CallState.RELEASED:
            block.send(self.owner.to_runtime, self.stream)
            return
        if len(block.encoded) + len(block.originals) * bounds.OVERHEAD_BYTES > bounds.HELD_TRAILERS_BYTES:
            raise Excess("header_block", "trailers of a held call are too long")
        self._trailers = block
        if not self._is_complete:
            self.client_data(END)

    def client_reset(self, frame: bytes) -> None:
        """Pass RST_STREAM on immediately, and drop the stream's queued frames."""
        self.owner.to_client.drop(self.stream)
        self.owner.to_runtime.drop(self.stream)
        self.owner.to_runtime.inject(frame)
        self.retained = None
        self.end_unanswered()

    def client_window(self, increment: int) -> None:
        self.owner.to_runtime.inject(http2.window_update(self.stream, increment))  # replies: end to end

    # From the runtime.

    def runtime_window(self, increment: int) -> None:
        self.owner.to_runtime.open_stream_window(self.stream, increment)  # held requests: hop by hop

    def runtime_part(self, part: Data | HeaderBlock) -> None:
        """Pass and copy a part of the reply. Retain the frame that ends it, and read the reply."""
        if isinstance(part, HeaderBlock):
            self.reply_fields.update(_reply_fields(part.encoded))
        elif len(self._reply_body) <= bounds.REPLY_BYTES:
            self._reply_body = _append(self._reply_body, part.payload) if self._reply_body else part.payload
        if self.state is CallState.RELEASED and not part.end:
            part.send(self.owner.to_client, self.stream, self.owner.to_runtime)
            return
        if isinstance(part, Data):
            self.owner.to_runtime.credit(part.length)
        if self.state is CallState.HOLDING:
            self._buffer_early(part)
            return
        self.retained = part
        fields, reply = self.reply_fields, Reply(agreed=False)
        status = fields.get(b"grpc-status")
        if status == b"0" and fields.get(b":status", b"200") == b"200":
            try:
                encoding = fields.get(b"grpc-encoding", b"")
                reply = Reply(agreed=True, message=grpc.open_message(self._reply_body, encoding, bounds.REPLY_BYTES))
            except WireError:
                pass  # a reply that cannot be read does not count as agreed
        elif status in _UNKNOWN_OUTCOME:
            reply = UNANSWERED
        elif status == _UNIMPLEMENTED and self.operation is Operation.UPDATE_POD_SANDBOX_RESOURCES:
            reply = Reply(agreed=False, no_op=True)  # older runtimes lack the call, and the kubelet ignores that
        if self.reply is None:
            self.reply = reply
            self.owner.ready.append(self)

    def _buffer_early(self, part: Data | HeaderBlock) -> None:
        """Buffer a part of a reply that arrives before the release; its end ends the call. Raises Excess."""
        self._early_reply = (*self._early_reply, part)
        self._early_bytes += bounds.OVERHEAD_BYTES + (part.length if isinstance(part, Data) else 2 * part.size)
        if self._early_bytes > bounds.EARLY_BYTES:
            raise Excess("early_reply", "the runtime answers a call that it was not sent yet")
        if part.end:
            self._flush_early()
            self.end_unanswered()

    def runtime_reset(self, frame: bytes) -> None:
        """Pass RST_STREAM immediately, or after the complete answer before it (RFC 9113, 8.1)."""
        if self.retained is not None:
            self._retained_reset = frame
            return
        self._flush_early()
        self.owner.to_client.drop(self.stream)
        self.owner.to_client.inject(frame)
        self.end_unanswered()

    def _flush_early(self) -> None:
        for part in self._early_reply:
            part.send(self.owner.to_client, self.stream)
        self._early_reply = ()

    # From the lifecycle.

    def send_request(self, message: bytes | None) -> bool:
        """Send the request, its own bytes if ``message`` is None, and the DATA following it. Return False, and send
        nothing, if the call is no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        runtime, following = self.owner.to_runtime, self._following_bytes
        end = self._half_closed and self._has_body and self._trailers is None
        if message is None and self._request:
            chunks: tuple[bytes, ...] = (bytes(self._request),)
        else:
            message = self._message if message is None else message
            chunks = () if message is None else grpc.chunks(message)
        self._request = b""
        for chunk in chunks[:-1]:
            runtime.send_data(self.stream, chunk, False, None, 0)
        source, charge = (self.shared.budget, self._counted_bytes) if self.problem else (None, 0)  # not read again
        self._counted_bytes -= charge
        for chunk in chunks[-1:]:
            runtime.send_data(self.stream, chunk, end and not following, source, charge)
        if following or (end and not chunks):
            runtime.send_data(self.stream, bytes(self._following), end, self.owner.to_client, following)
            self._credit_stream(following)
            self._following, self._following_bytes = b"", 0
        if self._trailers is not None:
            self._trailers.send(runtime, self.stream)
        if self._early_reply:
            self._flush_early()
        self.owner.wake()
        return True

    def send_refusal(self, code: int, text: str) -> bool:
        """Answer the client with a gRPC status instead of the runtime (relay-rules A7); return as ``send_request``."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.REFUSED
        self._free_request()
        self.owner.to_runtime.inject(http2.rst_stream(self.stream, http2.CANCEL))
        self.owner.answer(self.stream, refusal(self.stream, code, text, self._half_closed))
        self.owner.wake()
        return True

    def answer(self) -> None:
        """Send the client the retained frame; from now on the stream passes unchanged."""
        retained, self.retained = self.retained, None
        if retained is None:
            return
        owner = self.owner
        retained.send(owner.to_client, self.stream)
        if self._retained_reset:
            owner.to_client.send_frame(self.stream, self._retained_reset)
        owner.streams.pop(self.stream, None)
        owner.to_runtime.forget_window(self.stream)
        owner.wake()

    def end_unanswered(self) -> None:
        """End the call without the runtime's answer, unless that is complete. The stream passes from now on."""
        if self.retained is not None:
            return
        if self.state is CallState.HOLDING:
            self.state = CallState.ENDED
            self._free_request()
        self.owner.streams.pop(self.stream, None)
        self.owner.to_runtime.forget_window(self.stream)
        if self.reply is None:
            self.reply = UNANSWERED
            self.owner.ready.append(self)

    def free_budget(self) -> None:
        self.shared.budget.credit(self._counted_bytes)
        self._counted_bytes = 0

    def _free_request(self) -> None:
        self.free_budget()
        self.owner.to_client.credit(self._following_bytes)
        self._request, self._following, self._following_bytes = b"", b"", 0


@headers.cache_short_inputs
def _reply_fields(block: bytes) -> Sequence[headers.Header]:
    return headers.find(headers.walk(block), REPLY_FIELDS, bounds.FIELD_BYTES)


def _append(retained: bytes | bytearray, more: bytes) -> bytes | bytearray:
    joined = retained if isinstance(retained, bytearray) else bytearray(retained)
    joined += more
    return joined


_UNANSWERED, _ANSWERING = StreamState.UNANSWERED, StreamState.ANSWERING
_HANDLED = ENDLESS | RESTORES

AMBIGUOUS = (
    "runtimeproxy: request whose method cannot be read, and a hook server with failure policy Fail is registered"
)
NO_ANSWER = "the runtime ended its connection before it answered"


@dataclass(frozen=True, slots=True)
class NotHttp2:
    """The first bytes of a client that does not speak HTTP/2: call ``Reader.pipe``, or close."""

    data: bytes


class Reader(Streams):
    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        super().__init__(shared, wake)
        self.image: ImageLink | None = None
        self.client_settings: dict[int, int] = {}
        self.last_id = http2.MAX_STREAM_ID
        """The last stream id of a GOAWAY to the client; streams above it are refused."""
        self.highest_image = 0
        self._goaway_sent = False
        self._is_refusing = False
        self.from_client = FromClient(self)
        self.from_runtime = FromRuntime(self, self.to_runtime, self.to_client)

    @property
    def held(self) -> list[CriHeld]:
        return [stream for stream in self.streams.values() if isinstance(stream, CriHeld)]

    @property
    def has_waiting_answers(self) -> bool:
        return any(held.retained for held in self.held)

    def pipe(self, data: bytes) -> None:
        """Pass all bytes of both sides unread, beginning with the client's ``data`` (relay-rules A14)."""
        for relay in (self.from_client, self.from_runtime):
            relay.piped = relay.bypasses_frames = True
        self.from_client.feed(data)

    def check_open(self) -> None:
        if max(len(self.open_streams), len(self.streams)) > OPEN_STREAMS:
            raise Excess("open_streams", "too many streams are open")

    def client_closed(self) -> None:
        """End the client's calls that are not yet released (relay-rules C5)."""
        for held in self.held:
            if held.state is CallState.HOLDING:
                held.end_unanswered()

    def runtime_closed(self) -> None:
        for held in self.held:
            held.end_unanswered()

    def fail_open_calls(self) -> None:
        """Answer each call that the runtime will not answer completely; the client's connection stays open."""
        for stream, state in self.open_streams.items():
            self.to_client.send_frame(stream, _no_answer(stream, state is not _UNANSWERED))
        self.open_streams.clear()
        for held in self.held:
            if not held.retained:
                has_begun = held.state is CallState.RELEASED and bool(held.reply_fields)
                self.to_client.send_frame(held.stream, _no_answer(held.stream, has_begun))

    def closed(self) -> None:
        self.to_client.drop_all()
        self.to_runtime.drop_all()

    def send_goaway(self, client: bool, code: int, reason: str) -> None:
        """Send GOAWAY to the peer that broke the protocol, the client or else the runtime, if a frame may be sent."""
        last = min(self.last_id, max(self.highest_stream, self.highest_image)) if client else 0
        (self.to_client if client else self.to_runtime).inject(http2.goaway(last, code, reason.encode()))

    def drain(self, refusing: bool) -> None:
        """Send GOAWAY, with ``refusing`` also the final one with the last stream; each once. A client that has opened
        no stream has connected for its first call, and gets none until ``refusing``."""
        if not self._goaway_sent and (refusing or self.highest_stream or self.highest_image):
            self._goaway_sent = True
            self.to_client.inject(http2.goaway(self.last_id, http2.NO_ERROR))
        if refusing and not self._is_refusing:
            self._is_refusing = True
            self._limit_streams(max(self.highest_stream, self.highest_image))
            self.to_client.inject(http2.goaway(self.last_id, http2.NO_ERROR))

    def _limit_streams(self, last: int) -> None:
        self.last_id = min(self.last_id, last)
        self.from_client.passing_blocks.clear()  # a new stream must no longer pass by its cached headers

    def runtime_goaway(self, payload: bytes, frame: bytes) -> bytes:
        """Return the GOAWAY for the client that corresponds to the runtime's. Its last stream id is raised to the
        highest image stream, but never above an earlier one. Calls above the runtime's own id are reset."""
        own = http2.read_u32(payload)
        lost = [held for held in self.held if held.stream > own]
        for held in lost:
            held.end_unanswered()
        above = [stream for stream in self.open_streams if stream > own]
        for stream in above:
            del self.open_streams[stream]
        self._limit_streams(max(own, self.highest_image))
        if self.last_id > own:
            for stream in sorted([*above, *(held.stream for held in lost)]):
                self.to_client.inject(http2.rst_stream(stream, http2.REFUSED_STREAM))
        return frame if self.last_id == own else http2.goaway(self.last_id, http2.read_u32(payload, 4), payload[8:])

    def unfinished(self) -> tuple[int, int, int]:
        """Return the numbers of calls without an answer, of answers that have begun, and of endless streams. An answer
        that waits for the client's credit counts as a call; calls that wait for the image service do not count."""
        count = Counter(self.open_streams.values())
        waiting = self.to_client.queues.keys() - self.open_streams.keys() - self.streams.keys()
        for stream in self.to_client.queues:
            if isinstance(image := self.streams.get(stream), ImageStream) and image.ended:
                waiting.add(stream)
        return len(self.held) + count[_UNANSWERED] + len(waiting), count[_ANSWERING], count[StreamState.ENDLESS]


def _no_answer(stream: int, has_begun: bool) -> bytes:
    return http2.rst_stream(stream, http2.CANCEL) if has_begun else refusal(stream, grpc.UNAVAILABLE, NO_ANSWER, False)


class FromClient(FrameRelay):
    from_client = True
    bypasses_frames = True
    _reader: Reader

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader, reader.to_client, reader.to_runtime)
        self._preface = b""

    def bypass(self, data: bytes) -> bytes:
        """Check and pass the HTTP/2 connection preface, and return the following bytes. In a pipe pass all bytes."""
        missing = len(http2.PREFACE) - len(self._preface)
        if self.piped:
            return super().bypass(data)
        self._preface += data[:missing]
        if not http2.PREFACE.startswith(self._preface):
            self._reader.ready.append(NotHttp2(data))
            return b""
        self.sink.out.append(data[:missing])
        self.bypasses_frames = len(self._preface) < len(http2.PREFACE)
        return data[missing:]

    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        """Pass trailers and the headers of a request. Also pass those of a held request: streams open in order, and the
        runtime's deadline starts with the headers."""
        reader = self._reader
        if stream <= reader.highest_stream:
            headers.check(block)
            return True
        fields = headers.walk(block)
        try:
            path = headers.path(fields)
        except headers.AmbiguousPath:
            return False
        shared = reader.shared
        if stream > reader.last_id or path in _HANDLED or (shared.separate_image and path.startswith(IMAGE_PREFIXES)):
            return False
        route = HELD.get(path)
        if route is None or (route.operation in UNRECORDED and shared.start_and_stop_pass()):
            key = PASSING_SERIES.get(path, OTHER_SERIES)
            shared.counters.setdefault(key, 0)
            if route is None and reader.last_id == http2.MAX_STREAM_ID:  # after a GOAWAY each stream is checked
                self.remember(block, key)
            self.passed(stream, end, key)
            return True
        held: CriHeld = shared.kinds[route.operation](reader, route, stream, fields, end)
        reader.highest_stream = stream
        self.streams[stream] = held
        self.sink.stream_windows[stream] = 0
        if len(self.streams) > OPEN_STREAMS:
            reader.check_open()
        if end:
            held.client_data(END)  # there is no message
        return True

    def passed(self, stream: int, end: bool, key: Key) -> None:
        reader = self._reader
        if stream > reader.highest_stream:
            reader.shared.counters[key] += 1
            reader.open_streams[stream] = _UNANSWERED
            reader.highest_stream = stream
            if len(reader.open_streams) > OPEN_STREAMS:
                reader.check_open()

    def handle_request(self, block: HeaderBlock) -> None:
        reader, shared, stream = self._reader, self._reader.shared, block.stream
        if stream > reader.last_id:  # REFUSED_STREAM means that the request was not processed
            reader.answer(stream, http2.rst_stream(stream, http2.REFUSED_STREAM))
            return
        try:
            path = headers.path(headers.walk(block.encoded))
        except headers.AmbiguousPath:
            path = b""
            if not shared.passes_ambiguous():
                reader.answer(stream, refusal(stream, grpc.INTERNAL, AMBIGUOUS, block.end))
                return
        if path in RESTORES and (refusal_text := shared.restore_refusal()):
            reader.answer(stream, refusal(stream, grpc.UNIMPLEMENTED, refusal_text, block.end))
            return
        key = PASSING_SERIES.get(path, OTHER_SERIES)
        shared.counters[key] = shared.counters.get(key, 0) + 1
        if shared.separate_image and path.startswith(IMAGE_PREFIXES):
            self._open_image(block)
        else:
            reader.open_streams[stream] = StreamState.ENDLESS if path in ENDLESS else _UNANSWERED
            reader.highest_stream = stream
            block.send(self.sink, stream)
        reader.check_open()

    def _open_image(self, block: HeaderBlock) -> None:
        reader = self._reader
        if reader.image is None or reader.image.closing:
            reader.image = ImageLink(reader, reader.client_settings)
            reader.ready.append(reader.image)
        image = reader.image.open(block)
        if image is None:
            reader.answer(block.stream, http2.rst_stream(block.stream, http2.REFUSED_STREAM))
            return
        self.streams[block.stream] = image
        reader.highest_image = max(reader.highest_image, block.stream)

    def settings(self, entries: list[tuple[int, int]]) -> None:
        self._reader.client_settings.update(entries)
        if self._reader.image is not None:
            self._reader.image.client_settings(entries)


class FromRuntime(FrameRelay):
    from_client = False
    _reader: Reader

    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        headers.check(block)
        self.remember(block)
        self.passed(stream, end)
        return True

    def passed(self, stream: int, end: bool, key: Key = OTHER_SERIES) -> None:
        streams = self._reader.open_streams
        if end:
            streams.pop(stream, None)
        elif streams.get(stream) is _UNANSWERED:
            streams[stream] = _ANSWERING

    def _goaway(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        super()._goaway(flags, stream, payload, self._reader.runtime_goaway(payload, frame))
