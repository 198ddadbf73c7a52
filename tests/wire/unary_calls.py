"""A peer of ``wire.unary`` that is written out frame by frame, and reading what the calls did.

Owns the shape of good answers and of what is compared.
Must not know: what a test expects.
"""

from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy.wire.unary import CallFailed, Calls, Outcome

LIMIT = 1000
PATH = "/package.Service/Method"
Frame = tuple[int, int, int, bytes]

HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
GOOD_END = [(b"grpc-status", b"0")]


def sent(calls: Calls) -> list[Frame]:
    """Take what the peer receives, the preface left out."""
    data = b"".join(calls.out).removeprefix(http2.PREFACE)
    calls.out.clear()
    return http2.FrameBuffer(2**24).feed(data)


def connected() -> Calls:
    """Return a connection on which the peer's SETTINGS came and ours were acknowledged."""
    calls = Calls(LIMIT)
    calls.receive(http2.settings({}) + http2.SETTINGS_ACK)
    calls.out.clear()
    return calls


def block(stream: int, fields: list[headers.Header], end: bool = False) -> bytes:
    return http2.header_frames(stream, headers.build(fields), end)


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    return http2.frame(http2.DATA, http2.END_STREAM if end else 0, stream, payload)


def answer(stream: int, message: bytes) -> bytes:
    return block(stream, HEAD) + data(stream, grpc.message(message)) + block(stream, GOOD_END, end=True)


def outcome(calls: Calls, stream: int = 1) -> Outcome:
    """Take the only outcome."""
    ((ended, result),) = calls.ended
    calls.ended.clear()
    assert ended == stream
    return result


def failure(calls: Calls, stream: int = 1) -> CallFailed:
    result = outcome(calls, stream)
    assert isinstance(result, CallFailed)
    return result


def asked(received: bytes) -> tuple[CallFailed, list[Frame]]:
    """Send one request, receive bytes and return the failure with what was sent after it."""
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.out.clear()
    calls.receive(received)
    return failure(calls), sent(calls)
