"""HTTP/1.1 messages read by h11 and by the proxy: the same message with the same end, or a form listed as refused.

h11 reads requests as a server and responses as a client, framing of bodies included.
"""

from collections.abc import Sequence
from typing import NamedTuple

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage, Framing, RequestHead, Rule
from tests.amounts import examples
from tests.wire import http1_forms as forms
from tests.wire.http1_forms import get, head

pytestmark = pytest.mark.slow

WIDE = 8 << 20
"""h11's limit of bytes; the proxy's own limits have tests of their own."""


class Message(NamedTuple):
    """A parser's result; ``end`` is where the message ended, -1 if it did not."""

    first: tuple[str, str] | int
    fields: Sequence[tuple[str, str]]
    body: bytes
    end: int


Reading = Message | Rule | None
"""A message, the proxy's refusal, or None for h11's and for an incomplete head."""


def ours(stream: bytes, method: str | None = None) -> Reading:
    """Return the proxy's reading of the first message: a request, or the response to a request with ``method``."""
    try:
        end = http1.head_end(stream)
        if not end:
            return None
        read = http1.request_head(stream[:end]) if method is None else http1.response_head(stream[:end], method)
        retained: list[bytes | bytearray] = []
        body = http1.follow(read.framing, read.length)
        body = http1.ChunkedBody(retained.append) if read.framing is Framing.CHUNKED else body
        stop = body.feed(stream, end) if body else end
    except BadMessage as refusal:
        return refusal.rule
    whole = body is None or body.done or read.framing is Framing.UNTIL_CLOSE
    payload = b"".join(retained) if read.framing is Framing.CHUNKED else stream[end:stop]
    first = (read.method, read.target) if isinstance(read, RequestHead) else read.status
    return Message(first, read.fields, payload, stop if whole else -1)


def theirs(stream: bytes, method: str | None = None) -> Reading:
    """Return h11's reading of the first message; all bytes are there, then the connection ends."""
    peer = h11.Connection(h11.SERVER if method is None else h11.CLIENT, max_incomplete_event_size=WIDE)
    if method is not None:
        peer.send(h11.Request(method=method, target="/", headers=[("Host", "h"), ("Upgrade", "tcp")]))
        peer.send(h11.EndOfMessage())
    peer.receive_data(stream)
    try:
        begun = event = peer.next_event()
        body = b""
        while isinstance(event, h11.Request | h11.Response | h11.Data):
            event = peer.next_event()
            body += bytes(event.data) if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None
    if not isinstance(begun, h11.Request | h11.Response | h11.InformationalResponse):
        return None
    ended = event is not h11.NEED_DATA or (method is not None and ends_with_the_connection(peer))
    first = (text(begun.method), text(begun.target)) if isinstance(begun, h11.Request) else begun.status_code
    fields = [(text(name), text(value)) for name, value in begun.headers]
    return Message(first, fields, body, len(stream) - len(peer.trailing_data[0]) if ended else -1)


def ends_with_the_connection(peer: h11.Connection) -> bool:
    """Signal the end of the connection to h11; return whether the message has ended."""
    peer.receive_data(b"")
    try:
        return isinstance(peer.next_event(), h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return False


def text(octets: bytes) -> str:
    return bytes(octets).decode("latin-1")


READ_BY_H11 = {Rule.LINE_END, Rule.FOLDED, Rule.CONTROL, Rule.TARGET, Rule.VERSION, Rule.HOST, Rule.CONTENT_LENGTH}
READ_BY_H11 |= {Rule.CODING_OF_1_0, Rule.TWO_FRAMINGS, Rule.EXPECT}
READ_BY_H11 |= {Rule.CHUNK_SIZE, Rule.CHUNK_LINE_BYTES, Rule.TRAILER, Rule.TRAILER_BYTES}
"""The rules of the list that h11 is milder about; a message that breaks another one is refused by both."""


WHITE_TO_H11 = (b"\x0b", b"\x0c")
"""Bytes in values that h11 refuses and the proxy lets pass in responses: the daemon's fields are its own."""


def compare(stream: bytes, method: str | None = None) -> tuple[Reading, Reading]:
    """Read with both; fail unless they agree or the form is on the list."""
    mine, other = ours(stream, method), theirs(stream, method)
    if isinstance(mine, Message) and isinstance(other, Message):
        fields = [(name, value.lower() if name == "transfer-encoding" else value) for name, value in mine.fields]
        assert mine._replace(fields=fields) == other, "h11 gives the value of Transfer-Encoding in lower case"
    elif isinstance(mine, Message):
        assert method, "h11 refuses a request that we accept"
        assert any(octet in stream for octet in WHITE_TO_H11), "h11 refuses a response that we accept"
    elif isinstance(mine, Rule) and isinstance(other, Message) and other.end >= 0:
        assert mine in READ_BY_H11
    return mine, other


LAST_CHUNK = b"0\r\n\r\n"
"""Five bytes: complete as a chunked body and for Content-Length: 5."""
REFUSED_HEADS = [*((None, *row) for row in forms.REFUSED_REQUESTS), *(("GET", *row) for row in forms.REFUSED_RESPONSES)]
REFUSED = [
    *((raw + LAST_CHUNK, method, rule) for method, raw, rule in REFUSED_HEADS if raw.find(b"\r\n\r\n") == len(raw) - 4),
    *((get("Transfer-Encoding: chunked") + raw + b"\r\n\r\n", None, rule) for raw, rule in forms.REFUSED_CHUNKED),
]


def test_rules_that_h11_is_milder_about_have_a_form_that_it_reads() -> None:
    read = set()
    for stream, method, rule in REFUSED:
        mine, other = compare(stream, method)
        assert mine is rule
        if isinstance(other, Message) and other.end >= 0:
            read.add(rule)
    assert read == READ_BY_H11


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
def test_generated_responses(
    first: str, lines: list[str], body: bytes, noise: list[tuple[int, bytes]], method: str
) -> None:
    compare(spoiled(head(first, *lines) + body, noise), method)
