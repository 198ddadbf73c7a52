"""HTTP/1.1 heads and bodies: each row of the tables, any split of the bytes, edits and the proxy's own answers."""

import json
from collections.abc import Callable
from itertools import product

import pytest

from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage, Body, ChunkedBody, EndlessBody, Framing, Rule, SizedBody
from tests.wire import http1_forms as forms
from tests.wire.http1_forms import breaking, get, head


def refusal(read: Callable[..., object], *arguments: object) -> Rule:
    with pytest.raises(BadMessage) as caught:
        read(*arguments)
    return caught.value.rule


@pytest.mark.parametrize("expected", forms.REQUESTS, ids=lambda row: row.raw[:60])
def test_request_is_read(expected: forms.Request) -> None:
    read = http1.request_head(expected.raw)
    assert (read.raw, read.framing, read.length, read.upgrade, read.expects_continue, read.closes) == expected


@pytest.mark.parametrize("first", ["GET / HTTP/1.1", "HTTP/1.1 200 OK"])
def test_fields_are_ordered_lowercased_and_stripped(first: str) -> None:
    raw = head(first, "Host:  h\t", "x-A:\t b  c ", "DATE:", "X-a: \xe9\xa0", 'Content-Type: a;b="c: d"')
    read = http1.request_head(raw) if first[0] == "G" else http1.response_head(raw, "GET")
    fields = ("host", "h"), ("x-a", "b  c"), ("date", ""), ("x-a", "\xe9\xa0"), ("content-type", 'a;b="c: d"')
    assert read.fields == fields
    assert [read.field(name) for name in ("host", "x-a", "date", "absent")] == ["h", "b  c", "", ""]


def test_request_or_response_is_refused() -> None:
    for raw, rule in forms.REFUSED_REQUESTS:
        assert refusal(http1.request_head, raw) is rule, raw
    for (raw, rule), method in product(forms.REFUSED_RESPONSES, ("GET", "HEAD")):
        assert refusal(http1.response_head, raw, method) is rule, raw


@pytest.mark.parametrize(("raw", "method", "expected"), [(*row[:2], row[2:]) for row in forms.RESPONSES])
def test_response_is_read(raw: bytes, method: str, expected: tuple[object, ...]) -> None:
    read = http1.response_head(raw, method)
    assert (read.raw, read.version) == (raw, (1, int(raw[7:8])))
    assert (read.status, read.framing, read.length, read.closes) == expected


def test_only_short_heads_are_cached_with_method() -> None:
    for start in (get, lambda *fields: head("HTTP/1.1 200 OK", *fields)):
        read = http1.request_head if start is get else lambda octets: http1.response_head(octets, "GET")
        size = http1.CACHED_BYTES - len(start("X: "))
        for length in (size, size + 1):
            raw = start("X: " + "s" * length)
            assert (read(raw) is read(bytes(bytearray(raw)))) == (length == size)
            assert read(raw).field("x") == "s" * length
    sized = head("HTTP/1.1 200 OK", "Content-Length: 5")
    framings = [http1.response_head(sized, method).framing for method in ("GET", "HEAD", "CONNECT")]
    assert framings == [Framing.SIZED, Framing.EMPTY, Framing.UNTIL_CLOSE]


FIRST_LINE = b"GET / HTTP/1.1"
BEGINNINGS = breaking(Rule.LINE_END, b"\n", b"GET /\rHTTP", b"\n\0", FIRST_LINE + b"\n", FIRST_LINE + b"\r\rHost")
BEGINNINGS += breaking(Rule.LINE_END, *(FIRST_LINE + b"\r\nHost: h" + end for end in (b"\n", b"\n\n", b"\r\n\n")))
BEGINNINGS += breaking(Rule.CONTROL, b"\0", b"\0\n", b"GET /\0", b"\x16\x03\x01\0\xa5\x01\0\0")


@pytest.mark.parametrize(("beginning", "rule"), BEGINNINGS)
def test_invalid_beginning_of_head_is_refused_immediately(beginning: bytes, rule: Rule) -> None:
    buffer, caught = bytearray(b"\r"), None
    for size in range(1, len(beginning) + 1):
        buffer[1:] = beginning[:size]
        try:
            assert http1.head_end(buffer, 1, size) == 0
        except BadMessage as refused:
            caught = refused.rule
            break
    assert caught is rule
    assert refusal(http1.head_end, buffer, 1) is refusal(http1.head_end, b"body\r\n\r\n" + beginning, 8) is rule


def test_head_above_limits_is_refused() -> None:
    room = http1.HEAD_LIMIT - len(get("X: "))
    longest, longer = get("X: " + "x" * room), get("X: " + "x" * (room + 1))
    for before in (b"", b"12345"):
        assert http1.head_end(before + longest + b"body", len(before)) == len(before) + http1.HEAD_LIMIT
        assert http1.head_end(before + longest[:-1], len(before)) == 0
        for octets in (longer, longer[:-1], longest[:-1] + b"x", longer + longer):
            assert refusal(http1.head_end, before + octets, len(before)) is Rule.HEAD_BYTES
    assert http1.request_head(longest).field("x") == "x" * room
    many = [f"X-{number}: y" for number in range(http1.FIELDS_LIMIT - 1)]
    assert len(http1.request_head(get(*many)).fields) == http1.FIELDS_LIMIT
    assert refusal(http1.request_head, get(*many, "X: y")) is Rule.FIELDS


CODING, CHANGED = "Transfer-Encoding: chunked", "Content-Length: 70"
FRAMINGS = [([], [CHANGED]), (["A: b", "CONTENT-length:5", "C: d"], ["A: b", CHANGED, "C: d"])]
FRAMINGS += [(["A: b", CODING, "C:\xe9 "], ["A: b", CHANGED, "C:\xe9 "]), (["trailer: X", CODING], [CHANGED])]
FRAMINGS += [(["A: b", CODING, "Trailer: X", "Trailer: Y"], ["A: b", CHANGED])]
FRAMINGS += [(["TE: trailers", "Trailers: x"], ["TE: trailers", "Trailers: x", CHANGED])]


def test_length_changes_only_framing_and_answer_is_like_dockerd() -> None:
    for fields, changed in FRAMINGS:
        assert http1.with_length(get(*fields), 70) == get(*changed)
    text = 'hook server "a": no\r\n\x00 é'
    for status, close in ((400, True), (500, False)):
        answer = http1.response(status, text, close=close)
        end = http1.head_end(answer)
        read = http1.response_head(answer[:end], "POST")
        assert (read.status, read.closes, read.length) == (status, close, len(answer) - end)
        assert (read.field("content-type"), json.loads(answer[end:])) == ("application/json", {"message": text})


SHORT = 200
"""Bodies are split at every index up to this one."""


def fed(body: Body, stream: bytes, cuts: list[int]) -> int:
    """Feed a stream in chunks; return where the body ended, or the length of the stream."""
    at = 0
    for cut in [*cuts, len(stream)]:
        consumed = body.feed(chunk := stream[at : at + cut])
        at += consumed
        assert consumed == len(chunk) or body.done
        if body.done:
            break
    return at


FOLLOWERS = [(Framing.EMPTY, 0, None), (Framing.SIZED, 0, None), (Framing.SIZED, 1, SizedBody)]
FOLLOWERS += [(Framing.CHUNKED, 0, ChunkedBody), (Framing.UNTIL_CLOSE, 0, EndlessBody)]
UNREAD = [(SizedBody(5), [2, 3], [True, True], True), (SizedBody(5), [2, 4, 3], [True, False, True], True)]
UNREAD += [(SizedBody(5), [4], [True], False), (EndlessBody(), [2, 400], [True, True], False)]


def test_bytes_pass_unread_up_to_end_of_body() -> None:
    for framing, length, kind in FOLLOWERS:
        body = http1.follow(framing, length)
        assert (body and type(body)) is kind
    for body, sizes, passed, done in UNREAD:
        assert [body.passes(bytes(500), size) for size in sizes] == passed
        assert body.done is done
        assert done or body.feed(b"abc", 2) == 3


END, MIDDLE, WHOLE = b"0\r\n\r\n", b"5\r\n1", b"5\r\n12345"
PASSING = [
    *((MIDDLE, b"234", b"5\r\n" + END), (MIDDLE, b"2345\r\n3\r\nabc", b"\r\n" + END), (MIDDLE, b"2345\r\n", END)),
    *((MIDDLE, b"2345\r\n3\r\n", b"abc\r\n" + END), (MIDDLE, b"2345\r\n" + END, b"")),
    *((WHOLE, b"\r\n3\r\nabc", b"\r\n" + END), (WHOLE + b"\r\n", b"3\r\nabc\r\n2\r\nde\r\n", END)),
    (b"", b"1\r\nx\r\n" * http1.PASSING_CHUNKS, END),
]
NOT_PASSING = [
    *((MIDDLE, b"2345\r\n3", b"\r\nabc\r\n" + END), (MIDDLE, b"2345\r\n3;x\r\nabc", b"\r\n" + END)),
    *((MIDDLE, b"2345\r\n0\r\nX: 1\r\n\r\n", b""), (MIDDLE, b"2345\r\n" + END + b"HTTP/1.1", b"")),
    *((b"5", b"\r\n12345", b"\r\n" + END), (WHOLE, b"\r", b"\n" + END), (WHOLE + b"\r\n0\r\n", b"\r\n", b"")),
    (b"", b"1\r\nx\r\n" * (http1.PASSING_CHUNKS + 1), END),
]


@pytest.mark.parametrize(("read", "offered", "following"), PASSING + NOT_PASSING)
@pytest.mark.parametrize("cuts", [[], [1] * 40])
def test_chunks_pass_unread_when_in_plain_form(read: bytes, offered: bytes, following: bytes, cuts: list[int]) -> None:
    """The buffer after the offered bytes contains those of an earlier read; what does not pass is read as usual."""
    body, passes = ChunkedBody(), (read, offered, following) in PASSING
    body.feed(read)
    assert body.passes(bytearray(offered + b"\r\n0\r\n\r\n"), len(offered)) is passes
    end = fed(body, following if passes else offered + following, cuts)
    assert body.done
    assert end == (len(following) if passes else len((offered + following).removesuffix(b"HTTP/1.1")))


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize(("raw", "payload"), forms.CHUNKED, ids=lambda octets: octets[:40])
def test_chunked_body_end_is_found(raw: bytes, payload: bytes, kind: type[bytes] | type[bytearray]) -> None:
    body = ChunkedBody()
    assert (body.feed(kind(b"head" + raw + b"GET /"), 4), body.done) == (4 + len(raw), True)
    assert body.feed(b"GET /") == 0
    assert http1.dechunk(kind(raw)) == payload
    assert refusal(http1.dechunk, raw + b"x") is Rule.WHOLE_BODY
    for index in range(min(len(raw), SHORT)):
        assert fed(ChunkedBody(), raw + b"GET", [index]) == len(raw)
        assert refusal(http1.dechunk, raw[:index]) is Rule.WHOLE_BODY


@pytest.mark.parametrize(("raw", "rule"), forms.REFUSED_CHUNKED, ids=lambda value: repr(value)[:40])
def test_broken_chunked_body_is_refused_for_any_split(raw: bytes, rule: Rule) -> None:
    for cuts in ([], [1] * len(raw), *([index] for index in range(1, min(len(raw), SHORT)))):
        assert refusal(fed, ChunkedBody(), raw, cuts) is rule
