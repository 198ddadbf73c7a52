"""Streams that we answer in a server's place: the answer, and what still comes on them.

Owns how a status of ours looks on the wire.
Must not know: why a call is refused, held calls.
Invariant: nothing of such a stream goes on; its DATA is credited, so that the connection lives.
"""

from typing import Protocol

from runtimeproxy.cri.direction import Data, HeaderBlock
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import Outlet


class Owner(Protocol):
    """What a dropped stream needs of its connection."""

    client_out: Outlet
    runtime_out: Outlet


def refusal(stream: int, code: int, text: str, half_closed: bool) -> bytes:
    """Build a trailers-only answer; RST_STREAM(NO_ERROR) follows unless the client has half-closed (RFC 9113, 8.1)."""
    block = headers.build(
        [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", str(code).encode()),
            (b"grpc-message", grpc.percent_encode(text)),
        ]
    )
    frames = http2.header_frames(stream, block, True)
    return frames if half_closed else frames + http2.rst_stream(stream, http2.NO_ERROR)


class DroppedStream:
    """A stream that we answered ourselves: what either side still sends on it is dropped, its DATA credited."""

    def __init__(self, owner: Owner, stream: int) -> None:
        self._owner = owner
        self._stream = stream

    def client_headers(self, block: HeaderBlock) -> None:
        """Drop."""

    def client_data(self, data: Data) -> None:
        """Drop and credit."""
        self._owner.client_out.credit(data.length)

    def client_reset(self, frame: bytes) -> None:
        """Drop: the runtime was told already."""

    def client_window(self, increment: int) -> None:
        """Drop."""

    def runtime_headers(self, block: HeaderBlock) -> None:
        """Drop."""

    def runtime_data(self, data: Data) -> None:
        """Drop and credit."""
        self._owner.runtime_out.credit(data.length)

    def runtime_reset(self, frame: bytes) -> None:
        """Drop."""

    def runtime_window(self, increment: int) -> None:
        """Drop."""
