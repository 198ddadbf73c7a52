"""gRPC over HTTP/2: message framing, deadlines, status (the protocol's PROTOCOL-HTTP2 document).

A message is complete when it has the length in its prefix, not when the stream ends (relay-rules A5).
"""

import zlib
from urllib.parse import quote_from_bytes, unquote_to_bytes

from runtimeproxy.errors import WireError
from runtimeproxy.wire import JOINED_BYTES

PREFIX_BYTES = 5
MAX_MESSAGE_BYTES = 2**32 - 1
"""Greatest length that a prefix can announce."""

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

CONTENT_TYPES = frozenset({b"application/grpc", b"application/grpc+proto"})

_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS = 8
_MESSAGE_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")


class TooLong(WireError):
    """A message is longer than its limit after decompression."""


def message(body: bytes, compressed: bool = False) -> bytes:
    """Return a message with its prefix."""
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


def chunks(body: bytes) -> tuple[bytes, ...]:
    """Return a message with its prefix as the chunks to send in order: a long message is not copied."""
    prefix = b"\0" + len(body).to_bytes(4, "big")
    return (prefix + body,) if len(body) <= JOINED_BYTES else (prefix, body)


def missing(framed: bytes | bytearray, limit: int = MAX_MESSAGE_BYTES) -> int:
    """Return how many bytes a framed message lacks: 0 if it is complete, negative if bytes follow it. Raises WireError
    if its compressed flag is neither 0 nor 1, TooLong if it announces more than ``limit`` bytes.
    """
    if len(framed) < PREFIX_BYTES:
        return PREFIX_BYTES - len(framed)
    if framed[0] > 1:
        raise WireError("gRPC message whose compressed flag is neither 0 nor 1")
    length = int.from_bytes(framed[1:PREFIX_BYTES], "big")
    if length > limit:
        raise TooLong("gRPC message is longer than the limit")
    return PREFIX_BYTES + length - len(framed)


def open_message(framed: bytes | bytearray, encoding: bytes, limit: int) -> bytes:
    """Return the decompressed body of exactly one framed message.

    ``encoding`` is the header grpc-encoding (b"" if absent). Raises WireError if the bytes are not one complete
    message, or if the compression is unknown; TooLong if the body would be longer than ``limit`` bytes.
    """
    if missing(framed):
        raise WireError("not exactly one whole gRPC message")
    body = bytes(memoryview(framed)[PREFIX_BYTES:])  # one copy, also of a bytearray
    if framed[0] and encoding != b"gzip":
        raise WireError("gRPC message in an unknown compression")
    plain = _gunzip(body, limit) if framed[0] else body
    if len(plain) > limit:
        raise TooLong("gRPC message is longer than the limit")
    return plain


def _gunzip(body: bytes, limit: int) -> bytes:
    """Return the decompressed body, or its first ``limit`` + 1 bytes if it is longer."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error:
        raise WireError("gRPC message whose gzip data is broken") from None
    # A Go receiver joins several gzip members: reading only the first would hide the rest from the hooks.
    if len(plain) <= limit and (inflater.unused_data or not inflater.eof):
        raise WireError("gRPC message that is not exactly one gzip member")
    return plain


def read_timeout(value: bytes) -> float | None:
    """Return the seconds of a grpc-timeout header; None if it is malformed."""
    digits, unit = value[:-1], value[-1:]
    if not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS or unit not in _UNIT_SECONDS:
        return None
    return int(digits) * _UNIT_SECONDS[unit]


def timeout(seconds: float) -> bytes:
    """Return the grpc-timeout header's value for a time in seconds, in the finest unit that can hold it."""
    for unit in (b"u", b"m", b"S"):
        count = max(int(seconds / _UNIT_SECONDS[unit]), 1)
        if count < 10**_TIMEOUT_DIGITS:
            return str(count).encode() + unit
    return b"99999999S"


def percent_encode(text: str) -> bytes:
    """Return a status text encoded for the grpc-message header; characters without a UTF-8 form become "?"."""
    return quote_from_bytes(text.encode(errors="replace"), safe=_MESSAGE_SAFE).encode()


def percent_decode(value: bytes) -> str:
    """Return the decoded text of a grpc-message header; bytes that are not UTF-8 are replaced."""
    return unquote_to_bytes(value).decode(errors="replace")
