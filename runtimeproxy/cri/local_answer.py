"""Streams that the proxy answers in the server's place: the answer, and the frames that still come on them.

Owns how a gRPC status of the proxy's own is encoded.
Must not know: why a call is refused, held calls.
Invariant: nothing of such a stream is passed on; its DATA is credited, so that the connection window stays open.
"""

from runtimeproxy.cri.frames import Data
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.flow import FlowControlledSender


def refusal(stream: int, code: int, text: str, half_closed: bool) -> bytes:
    """Build a gRPC Trailers-Only answer; RST_STREAM(NO_ERROR) follows unless the client half-closed (RFC 9113, 8.1)."""
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    status = [(b"grpc-status", str(code).encode()), (b"grpc-message", grpc.percent_encode(text))]
    frames = http2.header_frames(stream, headers.build([*head, *status]), True)
    return frames if half_closed else frames + http2.rst_stream(stream, http2.NO_ERROR)


class LocallyAnsweredStream:
    """A stream that the proxy answered itself: what either side still sends on it is dropped, its DATA credited."""

    def __init__(self, client_out: FlowControlledSender, runtime_out: FlowControlledSender) -> None:
        self._client_out = client_out
        self._runtime_out = runtime_out

    def client_data(self, data: Data) -> None:
        self._client_out.credit(data.length)

    def runtime_data(self, data: Data) -> None:
        self._runtime_out.credit(data.length)

    def _drop(self, what: object) -> None:
        """Drop a header block, a reset or credit."""

    client_headers = runtime_headers = client_reset = runtime_reset = client_window = runtime_window = _drop
