"""The CRI front's state of one pair of connections: both directions, and the end of the client's connection (GOAWAY).

Bytes come in by ``FrameRelay.feed`` and go out by ``FlowControlledSender.out``; whatever is not held, refused or an
image call passes. The last stream id of a GOAWAY never rises; a stream that is refused was never sent to the runtime
(relay-rules A11).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from runtimeproxy.core.call import CallState
from runtimeproxy.cri.bounds import OPEN_STREAMS, Excess
from runtimeproxy.cri.frame_relay import FrameRelay, HeaderBlock, Open, Shared, Streams, refusal
from runtimeproxy.cri.held import END, CriHeld
from runtimeproxy.cri.image import ImageLink, ImageStream
from runtimeproxy.cri.routes import ENDLESS, HELD, IMAGE_PREFIXES, PASSING, PASSING_OTHER, RESTORES
from runtimeproxy.model.hookpoints import UNRECORDED
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, headers, http2

_UNANSWERED, _ANSWERING = Open.UNANSWERED, Open.ANSWERING
_HANDLED = ENDLESS | RESTORES

AMBIGUOUS = (
    "runtimeproxy: request whose method cannot be read, and a hook server with failure policy Fail is registered"
)
GONE = "the runtime ended its connection before it answered"


@dataclass(frozen=True, slots=True)
class NotHttp2:
    """The client turned out not to speak HTTP/2 by these bytes: call ``Reader.pipe``, or close."""

    data: bytes


class Reader(Streams):
    """State of one pair of connections."""

    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        super().__init__(shared, wake)
        self.image: ImageLink | None = None
        self.client_settings: dict[int, int] = {}
        self.last = http2.MAX_STREAM_ID
        """The last stream id that a GOAWAY has sent to the client; streams that it opens above are refused."""
        self.highest_image = 0
        """Highest stream id that was sent to the image endpoint."""
        self._announced = False
        self._refusing = False
        self.from_client = FromClient(self)
        self.from_runtime = FromRuntime(self, self.runtime_out, self.client_out)

    @property
    def held(self) -> list[CriHeld]:
        return [stream for stream in self.streams.values() if isinstance(stream, CriHeld)]

    @property
    def keeps_answers(self) -> bool:
        """Return whether answers of the runtime wait for Post hooks."""
        return any(held.kept for held in self.held)

    def pipe(self, data: bytes) -> None:
        """Pass a client's bytes from ``data`` on, and the runtime's, unread (relay-rules A14)."""
        self.from_client.pipe()
        self.from_runtime.pipe()
        self.from_client.feed(data)

    def check_open(self) -> None:
        """Raise Excess if the client has opened too many streams."""
        if max(len(self.open), len(self.streams)) > OPEN_STREAMS:
            raise Excess("open_streams", "too many streams are open")

    # The end of a connection.

    def client_gone(self) -> None:
        """End the client's calls that are not yet released (relay-rules C5)."""
        for held in self.held:
            if held.state is CallState.HOLDING:
                held.end_unanswered()

    def runtime_gone(self) -> None:
        for held in self.held:
            held.end_unanswered()

    def answer_unanswered(self) -> None:
        """Answer each call whose answer will not come, or not to its end; the client's connection stays open."""
        for stream, how in self.open.items():
            self.client_out.send_frame(stream, _no_answer(stream, how is not _UNANSWERED))
        self.open.clear()
        for held in self.held:
            if not held.kept:
                self.client_out.send_frame(held.stream, _no_answer(held.stream, held.is_answering))

    def closed(self) -> None:
        self.client_out.drop_all()
        self.runtime_out.drop_all()

    def leave(self, client: bool, code: int, why: str) -> None:
        """Send GOAWAY to the peer that broke the protocol, the client or else the runtime, if a frame may leave now."""
        last = min(self.last, max(self.highest, self.highest_image)) if client else 0
        (self.client_out if client else self.runtime_out).inject(http2.goaway(last, code, why.encode()))

    def drain(self, refusing: bool) -> None:
        """Send GOAWAY, with ``refusing`` that of the last stream; each once. A client that has opened no stream yet has
        connected for a call that is still to come, and gets none until ``refusing``."""
        if not self._announced and (refusing or self.highest or self.highest_image):
            self._announced = True
            self.client_out.inject(http2.goaway(self.last, http2.NO_ERROR))
        if refusing and not self._refusing:
            self._refusing = True
            self._end_at(max(self.highest, self.highest_image))
            self.client_out.inject(http2.goaway(self.last, http2.NO_ERROR))

    def _end_at(self, last: int) -> None:
        self.last = min(self.last, last)
        self.from_client.known.clear()  # a new stream must no longer pass because of its remembered headers

    def runtime_goaway(self, payload: bytes, frame: bytes) -> bytes:
        """Return the GOAWAY to send the client for the runtime's. Its last stream id is raised to the highest image
        stream, but never above one that was sent before. Calls above the runtime's own id are reset."""
        own = http2.read_u32(payload)
        lost = [held for held in self.held if held.stream > own]
        for held in lost:
            held.end_unanswered()
        above = [stream for stream in self.open if stream > own]
        for stream in above:
            del self.open[stream]
        self._end_at(max(own, self.highest_image))
        if self.last > own:
            for stream in sorted([*above, *(held.stream for held in lost)]):
                self.client_out.inject(http2.rst_stream(stream, http2.REFUSED_STREAM))
        return frame if self.last == own else http2.goaway(self.last, http2.read_u32(payload, 4), payload[8:])

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many calls wait for their answers, how many answers have begun, and how many streams are endless.
        An answer that waits for the client's credit counts among the first; calls that wait for the image service do
        not count.
        """
        count = Counter(self.open.values())
        waiting = self.client_out.queues.keys() - self.open.keys() - self.streams.keys()
        for stream in self.client_out.queues:
            if isinstance(image := self.streams.get(stream), ImageStream) and image.ended:
                waiting.add(stream)
        return len(self.held) + count[_UNANSWERED] + len(waiting), count[_ANSWERING], count[Open.ENDLESS]


def _no_answer(stream: int, begun: bool) -> bytes:
    return http2.rst_stream(stream, http2.CANCEL) if begun else refusal(stream, grpc.UNAVAILABLE, GONE, False)


class FromClient(FrameRelay):
    from_client = True
    _unread = True
    _reader: Reader

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader, reader.client_out, reader.runtime_out)
        self._preface = b""

    def opening(self, data: bytes) -> bytes:
        """Check and pass the HTTP/2 connection preface, and return what follows it. In a pipe pass all."""
        missing = len(http2.PREFACE) - len(self._preface)
        if self.piped:
            return super().opening(data)
        self._preface += data[:missing]
        if not http2.PREFACE.startswith(self._preface):
            self._reader.ready.append(NotHttp2(data))
            return b""
        self.sink.out.append(data[:missing])
        self._unread = len(self._preface) < len(http2.PREFACE)
        return data[missing:]

    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        """Pass trailers and the headers of a request, also of one that is held from now on: streams open in order, and
        the runtime's deadline starts then."""
        reader = self._reader
        if stream <= reader.highest:
            headers.check(block)
            return True
        fields = headers.walk(block)
        try:
            path = headers.path(fields)
        except headers.AmbiguousPath:
            return False
        shared = reader.shared
        if stream > reader.last or path in _HANDLED or (shared.image_apart and path.startswith(IMAGE_PREFIXES)):
            return False
        route = HELD.get(path)
        if route is None or (route.operation in UNRECORDED and shared.start_and_stop_pass()):
            key = PASSING.get(path, PASSING_OTHER)
            shared.counters.setdefault(key, 0)
            if route is None and reader.last == http2.MAX_STREAM_ID:  # after a GOAWAY each stream is checked
                self.remember(block, key)
            self.passed(stream, end, key)
            return True
        held: CriHeld = shared.kinds[route.operation](reader, route, stream, fields, end)
        reader.highest = stream
        self.streams[stream] = held
        self.sink.stream_windows[stream] = 0
        if len(self.streams) > OPEN_STREAMS:
            reader.check_open()
        if end:
            held.client_data(END)  # there is no message
        return True

    def passed(self, stream: int, end: bool, key: Key) -> None:
        reader = self._reader
        if stream > reader.highest:
            reader.shared.counters[key] += 1
            reader.open[stream] = _UNANSWERED
            reader.highest = stream
            if len(reader.open) > OPEN_STREAMS:
                reader.check_open()

    def handle_request(self, block: HeaderBlock) -> None:
        reader, shared, stream = self._reader, self._reader.shared, block.stream
        if stream > reader.last:  # REFUSED_STREAM says that the request was not processed
            reader.answer(stream, http2.rst_stream(stream, http2.REFUSED_STREAM))
            return
        try:
            path = headers.path(headers.walk(block.alone))
        except headers.AmbiguousPath:
            path = b""
            if not shared.passes_ambiguous():
                reader.answer(stream, refusal(stream, grpc.INTERNAL, AMBIGUOUS, block.end))
                return
        if path in RESTORES and (refused := shared.restore_refusal()):
            reader.answer(stream, refusal(stream, grpc.UNIMPLEMENTED, refused, block.end))
            return
        key = PASSING.get(path, PASSING_OTHER)
        shared.counters[key] = shared.counters.get(key, 0) + 1
        if shared.image_apart and path.startswith(IMAGE_PREFIXES):
            self._open_image(block)
        else:
            reader.open[stream] = Open.ENDLESS if path in ENDLESS else _UNANSWERED
            reader.highest = stream
            block.send(self.sink, stream)
        reader.check_open()

    def _open_image(self, block: HeaderBlock) -> None:
        """Send a request to the image endpoint, over a new link if there is none."""
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
        """Keep the client's settings for the image endpoint, and send them to one that is connected."""
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

    def passed(self, stream: int, end: bool, key: Key = PASSING_OTHER) -> None:
        streams = self._reader.open
        if end:
            streams.pop(stream, None)
        elif streams.get(stream) is _UNANSWERED:
            streams[stream] = _ANSWERING

    def _goaway(self, flags: int, stream: int, payload: bytes, frame: bytes) -> None:
        super()._goaway(flags, stream, payload, self._reader.runtime_goaway(payload, frame))
