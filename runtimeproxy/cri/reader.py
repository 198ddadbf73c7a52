"""The CRI front's state of one pair of connections: both directions, and the streams that do not pass unchanged.

Owns what is decided when a request's headers, SETTINGS, GOAWAY or the end of a connection come.
Must not know: sockets, hook servers; the clock is a parameter.
Invariant: bytes come in by ``FrameRelay.feed`` and go out by ``FlowControlledSender.out``; whatever is not held,
refused or an image call passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtimeproxy.core.call import CallState
from runtimeproxy.cri.bounds import OPEN_STREAMS, Excess
from runtimeproxy.cri.frame_relay import FrameRelay, HeaderBlock, Open, Shared, Streams, refusal
from runtimeproxy.cri.goaway import ENDLESS, Goaway
from runtimeproxy.cri.held import END, CriHeld, held_calls
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.cri.routes import HELD, IMAGE_PREFIXES, PASSING, PASSING_OTHER, RESTORES, Route
from runtimeproxy.model.hookpoints import UNRECORDED
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.headers import Field

_UNANSWERED, _ANSWERING = Open.UNANSWERED, Open.ANSWERING

AMBIGUOUS = (
    "runtimeproxy: request whose method cannot be read, and a hook server with failure policy Fail is registered"
)


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
        self.from_client = FromClient(self)
        self.from_runtime = FromRuntime(self, self.runtime_out, self.client_out)
        self.goaway = Goaway(self, self.from_client.known)

    @property
    def held(self) -> list[CriHeld]:
        return held_calls(self)

    def held_route(self, path: bytes) -> Route | None:
        """Return the route of a call to hold; None for one that passes."""
        route = HELD.get(path)
        if route is not None and route.operation in UNRECORDED and self.shared.start_and_stop_pass():
            return None
        return route

    def pipe(self, data: bytes) -> None:
        """Pass a client's bytes from ``data`` on, and the runtime's, unread (relay-rules A14)."""
        self.from_client.pipe()
        self.from_runtime.pipe()
        self.from_client.feed(data)

    def client_gone(self) -> None:
        """End the client's calls that are not yet released (relay-rules C5)."""
        for held in self.held:
            if held.state is CallState.HOLDING:
                held.connection_lost()

    @property
    def keeps_answers(self) -> bool:
        """Return whether answers of the runtime wait for Post hooks."""
        return any(held.kept for held in self.held)

    def runtime_gone(self) -> None:
        """End the calls that wait for the runtime's answer."""
        for held in self.held:
            held.connection_lost()

    def closed(self) -> None:
        """Drop what still waits for a peer: both connections are closed."""
        self.client_out.drop_all()
        self.runtime_out.drop_all()

    def leave(self, client: bool, code: int, why: str) -> None:
        """Send GOAWAY with ``code`` to the peer that broke the protocol: the client, or else the runtime. The frame
        leaves only where one may: after the first SETTINGS, and not inside a DATA frame.
        """
        last = min(self.goaway.last, max(self.highest, self.goaway.highest_image)) if client else 0
        (self.client_out if client else self.runtime_out).inject(http2.goaway(last, code, why.encode()))

    def check_open(self) -> None:
        """Raise Excess if the client has opened too many streams."""
        if max(len(self.open), len(self.streams)) > OPEN_STREAMS:
            raise Excess("open_streams", "too many streams are open")

    def open_image(self, block: HeaderBlock) -> None:
        """Send a request to the image endpoint, over a new link if there is none."""
        if self.image is None or self.image.closing:
            self.image = ImageLink(self, self.client_settings)
            self.ready.append(self.image)
        stream = self.image.open(block)
        if stream is not None:
            self.streams[block.stream] = stream
            self.goaway.highest_image = max(self.goaway.highest_image, block.stream)
        else:
            self.answer(block.stream, http2.rst_stream(block.stream, http2.REFUSED_STREAM))


class FromClient(FrameRelay):
    """The direction from the client to the runtime."""

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
        """Pass trailers and requests of methods that are not held, and start holding calls whose headers may pass."""
        reader = self._reader
        if stream <= reader.highest:
            headers.check(block)
            return True
        fields = headers.walk(block)
        try:
            path = headers.path(fields)
        except headers.AmbiguousPath:
            return False
        route = reader.held_route(path)
        if stream > reader.goaway.last or path in ENDLESS or path in RESTORES or (end and route is not None):
            return False
        if reader.shared.image_apart and path.startswith(IMAGE_PREFIXES):
            return False
        if route is None:
            key = PASSING.get(path, PASSING_OTHER)
            reader.shared.counters.setdefault(key, 0)
            if path not in HELD:
                self.remember(block, key)
            self.passed(stream, end, key)
        else:
            self._hold(route, stream, fields, end)
        return True

    def passed(self, stream: int, end: bool, key: Key) -> None:
        reader = self._reader
        if stream > reader.highest:
            reader.shared.counters[key] += 1
            reader.open[stream] = _UNANSWERED
            reader.highest = stream
            if len(reader.open) > OPEN_STREAMS:
                reader.check_open()

    def headers(self, block: HeaderBlock) -> None:
        if block.stream <= self._reader.highest:
            block.send(self.sink, block.stream)
        else:
            self._request(block)

    def _request(self, block: HeaderBlock) -> None:
        reader = self._reader
        if block.stream > reader.goaway.last:  # REFUSED_STREAM says that the request was not processed
            reader.answer(block.stream, http2.rst_stream(block.stream, http2.REFUSED_STREAM))
            return
        fields = headers.walk(block.alone)
        try:
            path = headers.path(fields)
        except headers.AmbiguousPath:
            path = b""
            if not reader.shared.passes_ambiguous():
                reader.answer(block.stream, refusal(block.stream, grpc.INTERNAL, AMBIGUOUS, block.end))
                return
        if path in RESTORES and (refused := reader.shared.restore_refusal()):
            reader.answer(block.stream, refusal(block.stream, grpc.UNIMPLEMENTED, refused, block.end))
            return
        image = reader.shared.image_apart and path.startswith(IMAGE_PREFIXES)
        route = None if image else reader.held_route(path)
        if route is None:
            key = PASSING.get(path, PASSING_OTHER)
            counters = reader.shared.counters
            counters[key] = counters.get(key, 0) + 1
        if image:
            reader.open_image(block)
        elif route is not None:
            held = self._hold(route, block.stream, fields, block.end)
            block.send(self.sink, block.stream)
            if block.end:
                held.client_data(END)  # there is no message
        else:
            reader.open[block.stream] = Open.ENDLESS if path in ENDLESS else _UNANSWERED
            reader.highest = block.stream
            block.send(self.sink, block.stream)
        reader.check_open()

    def _hold(self, route: Route, stream: int, fields: Sequence[Field], half_closed: bool) -> CriHeld:
        """Hold a call. Its headers go on at once: streams open in order, and the runtime's deadline starts then."""
        reader = self._reader
        held: CriHeld = reader.shared.kinds[route.operation](reader, route, stream, fields, half_closed)
        reader.highest = stream
        self.streams[stream] = held
        self.sink.stream_windows[stream] = 0
        if len(self.streams) > OPEN_STREAMS:
            reader.check_open()
        return held

    def settings(self, entries: list[tuple[int, int]]) -> None:
        """Keep the client's settings for the image endpoint, and send them to one that is connected."""
        self._reader.client_settings.update(entries)
        if self._reader.image is not None:
            self._reader.image.client_settings(entries)


class FromRuntime(FrameRelay):
    """The direction from the runtime to the client."""

    from_client = False
    _reader: Reader

    def passes_block(self, stream: int, block: bytes, end: bool) -> bool:
        headers.check(block)
        self.remember(block)
        self.passed(stream, end)
        return True

    def passed(self, stream: int, end: bool, key: Key = PASSING_OTHER) -> None:
        """Note that a reply's headers or trailers passed: the answer has begun, or ended."""
        streams = self._reader.open
        if end:
            streams.pop(stream, None)
        elif streams.get(stream) is _UNANSWERED:
            streams[stream] = _ANSWERING

    def headers(self, block: HeaderBlock) -> None:
        self.passed(block.stream, block.end)
        block.send(self.sink, block.stream)

    def ended(self, stream: int) -> None:
        self._reader.open.pop(stream, None)

    def goaway(self, payload: bytes, frame: bytes) -> bytes:
        """Return the runtime's GOAWAY with its last stream id adapted; see ``Goaway.runtime_goaway``."""
        return self._reader.goaway.runtime_goaway(payload, frame)
