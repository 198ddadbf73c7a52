"""ImageService streams on a second connection, if --remote-image-service-endpoint differs (relay-rules A10).

Flow control is hop by hop for connection and streams. Without the image service its streams fail, and the client's
connection stays open.
"""

from typing import NoReturn

from runtimeproxy.cri.bounds import IMAGE_STREAMS_UNTIL_SETTINGS
from runtimeproxy.cri.frame_relay import Data, HeaderBlock, Streams, refusal
from runtimeproxy.errors import WireError
from runtimeproxy.relay.rpc.framing import ClientConnection
from runtimeproxy.wire import grpc, headers, http2

UNREACHABLE = "the image endpoint is not reachable: check --remote-image-service-endpoint and its service"


class ImageLink(ClientConnection):
    def __init__(self, owner: Streams, client_settings: dict[int, int]) -> None:
        super().__init__(client_settings, IMAGE_STREAMS_UNTIL_SETTINGS)
        self.owner = owner
        self.streams: dict[int, ImageStream] = {}

    def client_settings(self, entries: list[tuple[int, int]]) -> None:
        settings = dict(entries)
        self._frames.limit = max(self._frames.limit, settings.get(http2.MAX_FRAME_SIZE, 0))
        self.sender.inject(http2.settings(settings))

    def open(self, block: HeaderBlock) -> "ImageStream | None":
        """Open a stream with a request's headers and return it; None if the service accepts no more streams."""
        if len(self.streams) >= self.stream_limit:
            return None
        stream = ImageStream(self, block.stream)
        self.streams[block.stream] = stream
        self.sender.stream_windows[block.stream] = 0
        self.owner.to_client.stream_windows[block.stream] = 0
        stream.client_headers(block)
        return stream

    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        if stream in self.streams:
            self.streams[stream].image_data(payload, length, end)
        else:
            self.sender.credit(length)

    def block(self, stream: int, block: bytes, end: bool) -> None:
        headers.check(block)
        if stream in self.streams:
            self.streams[stream].image_headers(headers.alone(block), end)

    def reset(self, stream: int, code: int) -> None:
        if stream in self.streams:
            self.streams[stream].fail(http2.rst_stream(stream, code))

    def goaway(self, last_stream: int) -> None:
        """Reset the streams above ``last_stream`` with REFUSED_STREAM: the service did not process them."""
        for stream in [number for number in self.streams if number > last_stream]:
            self.streams[stream].fail(http2.rst_stream(stream, http2.REFUSED_STREAM))

    def close(self) -> None:
        """End all streams with UNAVAILABLE: the connection has ended or failed."""
        self.closing = True
        for stream in list(self.streams.values()):
            stream.unavailable()


class ImageStream:
    """One ImageService call, with the client's stream id on both connections."""

    def __init__(self, link: ImageLink, stream: int) -> None:
        self._link = link
        self._client, self._service = link.owner.to_client, link.sender
        self._stream = stream
        self._half_closed = False
        self._answered = False
        self.ended = False
        """True once the image service's stream has ended or was reset."""

    def client_headers(self, block: HeaderBlock) -> None:
        if self.ended:
            return
        self._half_closed |= block.end
        frames = http2.header_frames(self._stream, headers.alone(block.encoded), block.end)
        self._service.send_frame(self._stream, frames)

    def client_data(self, data: Data) -> None:
        """Send DATA on as the image service's windows allow. The client's stream window is credited immediately, its
        connection window only when the bytes were sent: that bounds the queued bytes."""
        self._half_closed |= data.end
        if self.ended:
            self._client.credit(data.length)
            return
        self._service.send_data(self._stream, data.payload, data.end, self._client, data.length)
        if data.length and not data.end:
            self._client.inject(http2.window_update(self._stream, data.length))

    def client_reset(self, frame: bytes) -> None:
        self._client.drop(self._stream)
        if self.ended:
            return
        self._service.drop(self._stream)
        self._service.inject(frame)
        self._forget()

    def client_window(self, increment: int) -> None:
        self._client.open_stream_window(self._stream, increment)

    def image_headers(self, block: bytes, end: bool) -> None:
        self._answered = True
        self._client.send_frame(self._stream, http2.header_frames(self._stream, block, end))
        if end:
            self._answer_complete()

    def image_data(self, payload: bytes, length: int, end: bool) -> None:
        self._client.send_data(self._stream, payload, end, self._service, length)
        if end:
            self._answer_complete()
        elif length:
            self._service.inject(http2.window_update(self._stream, length))

    def _answer_complete(self) -> None:
        """Forget the stream; reset it toward the service if the request was not sent completely."""
        if not self._half_closed or self._stream in self._service.queues:
            self._service.inject(http2.rst_stream(self._stream, http2.CANCEL))
        self._forget()

    def fail(self, frame: bytes) -> None:
        """End the stream toward the client with ``frame``, and drop its queued frames."""
        self._client.drop(self._stream)
        self._client.inject(frame)
        self._forget()

    def unavailable(self) -> None:
        """End the stream with UNAVAILABLE, or RST_STREAM once its answer has begun."""
        if self._answered:
            self.fail(http2.rst_stream(self._stream, http2.CANCEL))
        else:
            self.fail(refusal(self._stream, grpc.UNAVAILABLE, UNREACHABLE, self._half_closed))

    def _forget(self) -> None:
        self.ended = True
        self._link.streams.pop(self._stream, None)
        self._service.forget_window(self._stream)
        self._link.owner.retire(self._stream)

    def _never_sent(self, what: object) -> NoReturn:
        raise WireError("the runtime answers a stream that it was not sent")

    runtime_part = runtime_reset = _never_sent

    def runtime_window(self, increment: int) -> None:
        """Ignore credit for a stream that the runtime never got."""
