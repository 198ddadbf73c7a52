"""Responses of HTTP/1.1 read by h11 as a client and by the proxy: the same message, or a form listed as refused.

Whole connections with requests are compared in tests/docker/test_boundaries.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage, Framing, Rule
from tests.amounts import examples
from tests.wire.http1_forms import head

pytestmark = pytest.mark.slow

WIDE = 8 << 20
"""h11's limit of bytes; the proxy's own limits have tests of their own."""


class Message(NamedTuple):
    """A parser's result; ``end`` is where the message ended, -1 if it did not."""

    status: int
    fields: Sequence[tuple[str, str]]
    body: bytes
    end: int


Reading = Message | Rule | None
"""A message, the proxy's refusal, or None for h11's and for an incomplete head."""


def ours(stream: bytes, method: str) -> Reading:
    """Return the proxy's reading of the response to a request with ``method``."""
    try:
        end = http1.head_end(stream)
        if not end:
            return None
        read = http1.response_head(stream[:end], method)
        retained: list[bytes | bytearray] = []
        body = http1.follow(read.framing, read.length)
        body = http1.ChunkedBody(retained.append) if read.framing is Framing.CHUNKED else body
        stop = body.feed(stream, end) if body else end
    except BadMessage as refusal:
        return refusal.rule
    whole = body is None or body.done or read.framing is Framing.UNTIL_CLOSE
    payload = b"".join(retained) if read.framing is Framing.CHUNKED else stream[end:stop]
    return Message(read.status, read.fields, payload, stop if whole else -1)


def theirs(stream: bytes, method: str) -> Reading:
    """Return h11's reading; all bytes are there, then the connection ends."""
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=WIDE)
    peer.send(h11.Request(method=method, target="/", headers=[("Host", "h"), ("Upgrade", "tcp")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(stream)
    try:
        begun = event = peer.next_event()
        body = b""
        while isinstance(event, h11.Response | h11.Data):
            event = peer.next_event()
            body += bytes(event.data) if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None
    if not isinstance(begun, h11.Response | h11.InformationalResponse):
        return None
    ended = event is not h11.NEED_DATA or ends_with_the_connection(peer)
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in begun.headers]
    return Message(begun.status_code, fields, body, len(stream) - len(peer.trailing_data[0]) if ended else -1)


def ends_with_the_connection(peer: h11.Connection) -> bool:
    """Signal the end of the connection to h11; return whether the message has ended."""
    peer.receive_data(b"")
    try:
        return isinstance(peer.next_event(), h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return False


READ_BY_H11 = {Rule.LINE_END, Rule.FOLDED, Rule.CONTROL, Rule.TARGET, Rule.VERSION, Rule.HOST, Rule.CONTENT_LENGTH}
READ_BY_H11 |= {Rule.CODING_OF_1_0, Rule.TWO_FRAMINGS, Rule.EXPECT}
READ_BY_H11 |= {Rule.CHUNK_SIZE, Rule.CHUNK_LINE_BYTES, Rule.TRAILER, Rule.TRAILER_BYTES}
"""The rules of the list that h11 is milder about; a message that breaks another one is refused by both."""


WHITE_TO_H11 = (b"\x0b", b"\x0c")
"""Bytes in values that h11 refuses and the proxy lets pass in responses: the daemon's fields are its own."""


LINES = ["Content-Length: 5", "content-length:05", "Content-Length: 0", "Content-Length: 5, 5", "Content-Length: +5"]
LINES += ["Transfer-Encoding: chunked", "Transfer-Encoding:\tCHUNKED ", "Transfer-Encoding: gzip, chunked"]
LINES += ["Connection: close", "Connection: Upgrade", "Upgrade: tcp", "Expect: 100-continue", "Expect: x", "Host: i"]
LINES += ["X: y", "X:", "X: \t\xe9 z\t", " folded", "X : y", "X", "Content-Length : 5", "X: a\rb", "X: a\nY: b"]
LINES += ["X: \0", "", "X: \x0b", "X: \x01", "Trailer: X"]
BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n"]
BODIES += [b"5\nhello\n0\n\n", b"5 \r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"0\r\n x\r\n\r\n"]
BODIES += [b"0\r\nX: y\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n"]
STATUS_LINES = ["HTTP/1.1 200 OK", "HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified", "HTTP/1.1 404"]
STATUS_LINES += ["HTTP/1.0 200 OK", "HTTP/1.1 101 UPGRADED", "HTTP/1.1 100 Continue", "HTTP/1.1 099 Odd"]
STATUS_LINES += ["HTTP/1.2 200 OK", "HTTP/1.1 2000 OK"]
SOME_LINES, BODY = st.lists(st.sampled_from(LINES), max_size=3), st.sampled_from(BODIES)
OCTETS = st.sampled_from([*(bytes((octet,)) for octet in range(256)), b"\r\n", b""])
NOISE = st.lists(st.tuples(st.integers(0, 150), OCTETS), max_size=2)


def spoiled(stream: bytes, noise: list[tuple[int, bytes]]) -> bytes:
    """Return a stream with octets inserted; an empty one removes the octet at its place."""
    for at, octets in noise:
        stream = stream[:at] + octets + stream[at + (not octets) :]
    return stream


@settings(max_examples=examples(1000))
@given(st.sampled_from(STATUS_LINES), SOME_LINES, BODY, NOISE, st.sampled_from(["GET", "HEAD", "POST"]))
def test_generated_responses_are_read_as_by_h11(
    first: str, lines: list[str], body: bytes, noise: list[tuple[int, bytes]], method: str
) -> None:
    stream = spoiled(head(first, *lines) + body, noise)
    mine, other = ours(stream, method), theirs(stream, method)
    if isinstance(mine, Message) and isinstance(other, Message):
        fields = [(name, value.lower() if name == "transfer-encoding" else value) for name, value in mine.fields]
        assert mine._replace(fields=fields) == other, "h11 gives the value of Transfer-Encoding in lower case"
    elif isinstance(mine, Message):
        assert any(octet in stream for octet in WHITE_TO_H11), "h11 refuses a response that we accept"
    elif isinstance(mine, Rule) and isinstance(other, Message) and other.end >= 0:
        assert mine in READ_BY_H11
