"""Either end of a connection as Go's libraries behave: grpc-go on HTTP/2, net/http on HTTP/1.1.

Owns what such an end sends beside its calls: SETTINGS, credit with a PING for each DATA that comes, ACKs.
Must not know: sockets, what is asked, what is measured.
Invariant: one PING at a time is without its ACK (grpc-go's estimator of the bandwidth-delay product).
"""

from typing import TypeVar

from hpack import Decoder, Encoder

from runtimeproxy.wire import http2

READ_BYTES = 1 << 20
PING = b"\x02\x04\x10\x10\x09\x0e\x07\x07"
"""What grpc-go's estimator puts into its PING."""
WINDOW = 256 << 20
"""Wide enough for all that is sent here: the estimator widens it as more comes."""

Field = tuple[str, str]
_Of = TypeVar("_Of")
_Is = TypeVar("_Is")


def _remember(known: dict[_Of, _Is], of: _Of, found: _Is, lasting: bool) -> None:
    """Remember a block, which costs Python ten times what it costs Go, until the table that it refers to grows."""
    if lasting:
        known[of] = found
    else:
        known.clear()


def framed(message: bytes) -> bytes:
    """Put gRPC's prefix before a message."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class GrpcEnd:
    """One end of a connection of grpc-go's."""

    def __init__(self) -> None:
        self._buffer = http2.FrameBuffer()
        self._encoder, self._decoder = Encoder(), Decoder()
        self._encoded: dict[tuple[Field, ...], bytes] = {}
        self._decoded: dict[bytes, dict[str, str]] = {}
        self._pinged = False

    def settings(self) -> bytes:
        """Return what is sent first, a client's behind its preface: the windows to which the estimator comes."""
        return http2.settings({http2.INITIAL_WINDOW_SIZE: WINDOW}) + http2.window_update(0, WINDOW)

    def frames(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """Return the frames that are whole: kind, flags, stream, payload."""
        return self._buffer.feed(data)

    def beside(self, kind: int, flags: int, payload: bytes) -> bytes:
        """Return what a frame is answered by the connection itself."""
        if kind == http2.DATA and payload:
            credit = http2.window_update(0, len(payload))
            if self._pinged:
                return credit
            self._pinged = True
            return credit + http2.frame(http2.PING, 0, 0, PING)
        if kind == http2.PING:
            if not flags & http2.ACK:
                return http2.frame(http2.PING, http2.ACK, 0, payload)
            self._pinged = False
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            size = dict(http2.read_settings(payload)).get(http2.HEADER_TABLE_SIZE)
            if size is not None:
                self._encoder.header_table_size = min(size, 4096)
            return http2.SETTINGS_ACK
        return b""

    def encode(self, fields: tuple[Field, ...]) -> bytes:
        """Return a header block, which refers to those before."""
        block = self._encoded.get(fields)
        if block is None:
            known = len(self._encoder.header_table.dynamic_entries)
            block = self._encoder.encode(fields)
            _remember(self._encoded, fields, block, known == len(self._encoder.header_table.dynamic_entries))
        return block

    def decode(self, flags: int, payload: bytes) -> dict[str, str]:
        """Read a header block that stands in one frame."""
        _, block = http2.split_block(http2.HEADERS, flags, payload)
        fields = self._decoded.get(block)
        if fields is None:
            known = len(self._decoder.header_table.dynamic_entries)
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
            _remember(self._decoded, block, fields, known == len(self._decoder.header_table.dynamic_entries))
        return fields

    def data(self, stream: int, body: bytes, end: bool = False) -> bytes:
        """Return the DATA frames of a body."""
        size = http2.DEFAULT_FRAME_SIZE
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        return b"".join(
            http2.frame(http2.DATA, http2.END_STREAM if end and number == len(pieces) else 0, stream, piece)
            for number, piece in enumerate(pieces, 1)
        )


def read_message(data: bytes) -> tuple[str, dict[str, str], bytes] | None:
    """Read an HTTP/1.1 message: first line, fields by their names in lower case, body; None if its end has not come."""
    head, ended, body = data.partition(b"\r\n\r\n")
    if not ended:
        return None
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if "transfer-encoding" in fields:
        is_whole = body.endswith(b"\r\n0\r\n\r\n")
    else:
        is_whole = len(body) >= int(fields.get("content-length", 0))
    return (first, fields, body) if is_whole else None
