"""ImageService streams where --remote-image-service-endpoint differs: a second connection of the pair (relay-rules A10).

Owns the HTTP/2 endpoint toward the image service and the streams on it.
Must not know: sockets, held calls, what a message means.
Invariant: both window levels are hop by hop; when the image service is away its streams fail and the client's connection lives.
"""

from typing import Protocol

from runtimeproxy.cri.direction import Data, HeaderBlock
from runtimeproxy.cri.held import refusal
from runtimeproxy.errors import WireError
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import Outlet

AWAY = "the image endpoint is not reachable: check --remote-image-service-endpoint and the service behind it"


class Owner(Protocol):
    """What the image connection needs of the pair."""

    client_out: Outlet

    def retire(self, stream: int) -> None: ...


class ImageLink:
    """One connection to the image service."""

    def __init__(self, owner: Owner, client_settings: dict[int, int]) -> None:
        self.owner = owner
        self.out = Outlet()
        self.streams: dict[int, ImageStream] = {}
        self.highest = 0
        """Highest stream id that was sent."""
        self.closing = False
        """True once the service said GOAWAY: new streams need a new link."""
        self._stream_limit = http2.MAX_STREAM_ID
        self._frames = http2.FrameBuffer(max(client_settings.get(http2.MAX_FRAME_SIZE, 0), http2.DEFAULT_FRAME_SIZE))
        self._blocks = headers.Blocks()
        self._block: HeaderCollector | None = None
        self._settings_seen = False
        self.out.out.append(http2.PREFACE + http2.settings({**client_settings, http2.HEADER_TABLE_SIZE: 0}))
        self.out.start()

    def client_settings(self, entries: list[tuple[int, int]]) -> None:
        """Hand the client's later SETTINGS on."""
        settings = dict(entries)
        self._frames.limit = max(self._frames.limit, settings.get(http2.MAX_FRAME_SIZE, 0))
        self.out.inject(http2.settings(settings))

    def open(self, block: HeaderBlock) -> "ImageStream | None":
        """Send a request's headers; None if the service takes no more streams."""
        if len(self.streams) >= self._stream_limit:
            return None
        stream = ImageStream(self, block.stream)
        self.streams[block.stream] = stream
        self.highest = max(self.highest, block.stream)
        self.out.govern(block.stream)
        self.owner.client_out.govern(block.stream)
        stream.client_headers(block)
        return stream

    def receive(self, data: bytes) -> None:
        """Take bytes of the image service. Raises WireError: then the link is to be closed."""
        for kind, flags, stream, payload in self._frames.feed(data):
            if (self._block is None) == (kind == http2.CONTINUATION):
                raise WireError("CONTINUATION out of place")
            if not self._settings_seen and (kind != http2.SETTINGS or flags & http2.ACK):
                raise WireError("the first frame is no SETTINGS")
            self._settings_seen = True
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, flags, stream, payload)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self.out.received(len(payload))
        special = self.streams.get(stream)
        if special is None:
            self.out.credit(len(payload))
            return
        end = bool(flags & http2.END_STREAM)
        special.image_data(http2.unpad(payload, flags), len(payload), end)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        _, fragment = http2.split_block(http2.HEADERS, flags, payload)
        self._block = HeaderCollector(stream, bool(flags & http2.END_STREAM))
        self._continuation(flags, stream, fragment)

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        block = self._block
        assert block is not None
        block.add(stream, payload)
        if flags & http2.END_HEADERS:
            self._block = None
            alone = headers.alone(self._blocks.translate(bytes(block.fragment)))
            if stream in self.streams:
                self.streams[stream].image_headers(alone, block.end)

    def _reset(self, flags: int, stream: int, payload: bytes) -> None:
        code = http2.read_u32(payload)
        if stream in self.streams:
            self.streams[stream].fail(http2.rst_stream(stream, code))

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & http2.ACK:
            self._blocks.acknowledge()
            return
        entries = http2.read_settings(payload)
        self._stream_limit = dict(entries).get(http2.MAX_CONCURRENT_STREAMS, self._stream_limit)
        self.out.apply_settings(entries)
        self.out.inject(http2.SETTINGS_ACK)

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if not flags & http2.ACK:
            self.out.inject(http2.frame(http2.PING, http2.ACK, 0, payload))

    def _push_promise(self, flags: int, stream: int, payload: bytes) -> None:
        raise WireError("the image service pushes a stream")

    def _goaway(self, flags: int, stream: int, payload: bytes) -> None:
        last = http2.read_u32(payload)
        self.closing = True
        for above in [number for number in self.streams if number > last]:
            self.streams[above].fail(http2.rst_stream(above, http2.REFUSED_STREAM))

    def _window_update(self, flags: int, stream: int, payload: bytes) -> None:
        increment = http2.read_u32(payload)
        if stream:
            self.out.open_stream_window(stream, increment)
        else:
            self.out.open_window(increment)

    def close(self) -> None:
        """Take the end of the connection, or its failure to come up: its streams get UNAVAILABLE."""
        self.closing = True
        for stream in list(self.streams.values()):
            stream.unavailable()


class HeaderCollector:
    """A header block of the image service that is being collected."""

    def __init__(self, stream: int, end: bool) -> None:
        self.stream = stream
        self.end = end
        self.fragment = bytearray()

    def add(self, stream: int, fragment: bytes) -> None:
        """Append a fragment. Raises WireError if it is another stream's or the block gets too long."""
        self.fragment += fragment
        if stream != self.stream or len(self.fragment) > 65_536:
            raise WireError("CONTINUATION of another stream, or header block is too long")


_HANDLERS = {
    http2.DATA: ImageLink._data,
    http2.HEADERS: ImageLink._headers,
    http2.CONTINUATION: ImageLink._continuation,
    http2.RST_STREAM: ImageLink._reset,
    http2.SETTINGS: ImageLink._settings,
    http2.PUSH_PROMISE: ImageLink._push_promise,
    http2.PING: ImageLink._ping,
    http2.GOAWAY: ImageLink._goaway,
    http2.WINDOW_UPDATE: ImageLink._window_update,
}


class ImageStream:
    """One ImageService call: the client's stream id on both connections, windows hop by hop."""

    def __init__(self, link: ImageLink, stream: int) -> None:
        self._link = link
        self._stream = stream
        self._half_closed = False
        self._answered = False
        self._ended = False

    def client_headers(self, block: HeaderBlock) -> None:
        """Send the request's headers or trailers to the image service."""
        if self._ended:
            return
        self._half_closed |= block.end
        frames = http2.header_frames(self._stream, headers.alone(block.alone), block.end)
        self._link.out.send_frame(self._stream, frames)

    def client_data(self, data: Data) -> None:
        """Send DATA as the image service takes it.

        The stream's credit is given back at once: the connection's, given when the bytes have left, bounds what waits.
        """
        self._half_closed |= data.end
        client = self._link.owner.client_out
        if self._ended:
            client.credit(data.length)
            return
        self._link.out.send_data(self._stream, data.payload, data.end, client, data.length)
        if data.length and not data.end:
            client.inject(http2.window_update(self._stream, data.length))

    def client_reset(self, frame: bytes) -> None:
        """Pass the client's cancel."""
        self._link.owner.client_out.drop(self._stream)
        if self._ended:
            return
        self._link.out.drop(self._stream)
        self._link.out.inject(frame)
        self._forget()

    def client_window(self, increment: int) -> None:
        """Take the client's credit."""
        self._link.owner.client_out.open_stream_window(self._stream, increment)

    def image_headers(self, block: bytes, end: bool) -> None:
        """Send the reply's headers or trailers to the client."""
        self._answered = True
        self._link.owner.client_out.send_frame(self._stream, http2.header_frames(self._stream, block, end))
        if end:
            self._answer_complete()

    def image_data(self, payload: bytes, length: int, end: bool) -> None:
        """Send the reply's DATA as the client takes it."""
        self._link.owner.client_out.send_data(self._stream, payload, end, self._link.out, length)
        if end:
            self._answer_complete()
        elif length:
            self._link.out.inject(http2.window_update(self._stream, length))

    def _answer_complete(self) -> None:
        """Forget the stream; the service is told if the rest of the request will not come."""
        if not self._half_closed or self._link.out.waits(self._stream):
            self._link.out.inject(http2.rst_stream(self._stream, http2.CANCEL))
        self._forget()

    def fail(self, frame: bytes) -> None:
        """End the stream toward the client with a frame of ours."""
        self._link.owner.client_out.drop(self._stream)
        self._link.owner.client_out.inject(frame)
        self._forget()

    def unavailable(self) -> None:
        """End the stream because the image service is away: UNAVAILABLE, or a reset inside an answer."""
        if self._answered:
            self.fail(http2.rst_stream(self._stream, http2.CANCEL))
        else:
            self.fail(refusal(self._stream, grpc.UNAVAILABLE, AWAY, self._half_closed))

    def _forget(self) -> None:
        self._ended = True
        self._link.streams.pop(self._stream, None)
        self._link.out.ungovern(self._stream)
        self._link.owner.retire(self._stream)

    # The main runtime never speaks on this stream.

    def runtime_headers(self, block: HeaderBlock) -> None:
        """Refuse: the runtime never saw this stream."""
        raise WireError("the runtime answers a stream that it was not sent")

    def runtime_data(self, data: Data) -> None:
        """Refuse: the runtime never saw this stream."""
        raise WireError("the runtime answers a stream that it was not sent")

    def runtime_reset(self, frame: bytes) -> None:
        """Refuse: the runtime never saw this stream."""
        raise WireError("the runtime answers a stream that it was not sent")

    def runtime_window(self, increment: int) -> None:
        """Ignore: credit for a stream that it was not sent."""
