"""A gRPC client on Python's h2: a test controls every header and every frame."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import h2.config
import h2.connection
import h2.events

from runtimeproxy.wire import http2

Fields = Sequence[tuple[bytes | str, bytes | str]]
PREFIX_BYTES = 5


@dataclass(slots=True)
class Answer:
    """What came back: the fields of headers and trailers together, the DATA as on the wire."""

    fields: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None

    @property
    def status(self) -> int:
        """Return grpc-status, -1 if it is missing."""
        return int(self.fields.get(b"grpc-status", b"-1"))

    @property
    def message(self) -> bytes:
        return bytes(self.data[PREFIX_BYTES:])


class H2Client:
    """One connection."""

    def __init__(self, socket: Path | str) -> None:
        self._socket = str(socket)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._answers: dict[int, tuple[Answer, asyncio.Future[Answer]]] = {}
        self._moved = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        self._h2.initiate_connection()
        self._flush()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    async def call(self, path: str, message: bytes, more: Fields = ()) -> Answer:
        """Make a unary call. Raises ConnectionError if the connection ends first."""
        return await (await self.open(path, message, more))

    async def open(self, path: str, message: bytes, more: Fields = ()) -> asyncio.Future[Answer]:
        """Send a unary request; return the future answer. Raises ConnectionError."""
        if self._ended:
            raise _end()
        stream = self._h2.get_next_available_stream_id()
        basic = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        grpc_fields = [("content-type", "application/grpc"), ("te", "trailers")]
        self._h2.send_headers(stream, [*basic, *grpc_fields, *more])
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[stream] = Answer(), future
        await self._send(stream, b"\0" + len(message).to_bytes(4, "big") + message)
        return future

    async def _send(self, stream: int, body: bytes) -> None:
        at = 0
        while at < len(body):
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(body) - at)
            if size <= 0:
                self._moved.clear()
                self._flush()
                await self._moved.wait()
                continue
            self._h2.send_data(stream, body[at : at + size])
            at += size
        self._h2.end_stream(stream)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())

    async def _read(self) -> None:
        frames = http2.FrameBuffer()
        try:
            while data := await self._reader.read(65536):
                for kind, flags, stream, payload in frames.feed(data):
                    if kind != http2.GOAWAY:  # h2 accepts nothing more after one; RFC 9113, 6.8: open streams go on
                        for event in self._h2.receive_data(http2.frame(kind, flags, stream, payload)):
                            self._take(event)
                self._flush()
                self._moved.set()
        except ConnectionError:
            pass  # an end like any other
        finally:  # however it ended, nothing more is waited for
            self._ended = True
            for _, future in self._answers.values():
                if not future.done():
                    future.set_exception(_end())

    def _take(self, event: h2.events.Event) -> None:
        answer, future = self._answers.get(getattr(event, "stream_id", None) or 0, (None, None))
        if answer is None or future is None:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            answer.fields.update(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            answer.data += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code)
        if isinstance(event, h2.events.StreamReset | h2.events.StreamEnded) and not future.done():
            future.set_result(answer)


def _end() -> ConnectionError:
    return ConnectionError("the connection has ended")
