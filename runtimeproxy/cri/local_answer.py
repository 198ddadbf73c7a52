"""Streams that we answer in a server's place: the answer, and what still comes on them.

Owns how a status of ours looks on the wire.
Must not know: why a call is refused, held calls.
Invariant: nothing of such a stream goes on; its DATA is credited, so that the connection lives.
"""

from typing import Protocol

from runtimeproxy.cri.frame_relay import Data
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import FlowControlledSender


class AnsweredStreamOwner(Protocol):
    """What a dropped stream needs of its connection."""

    client_out: FlowControlledSender
    runtime_out: FlowControlledSender


def refusal(stream: int, code: int, text: str, half_closed: bool) -> bytes:
    """Build a trailers-only answer; RST_STREAM(NO_ERROR) follows unless the client has half-closed (RFC 9113, 8.1)."""
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    status = [(b"grpc-status", str(code).encode()), (b"grpc-message", grpc.percent_encode(text))]
    frames = http2.header_frames(stream, headers.build([*head, *status]), True)
    return frames if half_closed else frames + http2.rst_stream(stream, http2.NO_ERROR)


class LocallyAnsweredStream:
    """A stream that we answered ourselves: what either side still sends on it is dropped, its DATA credited."""

    def __init__(self, owner: AnsweredStreamOwner) -> None:
        self._owner = owner

    def client_data(self, data: Data) -> None:
        self._owner.client_out.credit(data.length)

    def runtime_data(self, data: Data) -> None:
        self._owner.runtime_out.credit(data.length)

    def _drop(self, what: object) -> None:
        """Drop a header block, a reset or credit."""

    client_headers = runtime_headers = client_reset = runtime_reset = client_window = runtime_window = _drop
