"""Tests of the followers of bodies: each row of the tables, any split of the bytes, and the payload of chunked ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import PASSING_CHUNKS, BadMessage, Body, ChunkedBody, EndlessBody, Framing, Rule, SizedBody
from tests.wire.http1_forms import CHUNKED, REFUSED_CHUNKED
from tests.wire.test_http1 import refusal

SHORT = 200
"""Bodies are cut at every place up to this one."""

EXTENSIONS = st.sampled_from([b"", b";a", b';a="b c"', b";"])
TRAILERS = st.lists(st.sampled_from([b"X-Sum: 1\r\n", b"Y:\r\n", b"Content-Lengths: 9\r\n"]), max_size=3)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    written = draw(st.sampled_from([b"%x", b"%X", b"%03x", b"%015X"]))
    lines = [(written % len(piece)) + draw(EXTENSIONS) + b"\r\n" + piece + b"\r\n" for piece in pieces]
    last = b"0" + draw(EXTENSIONS) + b"\r\n" + b"".join(draw(TRAILERS)) + b"\r\n"
    return b"".join(lines) + last, b"".join(pieces)


CUTS = st.lists(st.integers(1, 60), max_size=40)


def fed(body: Body, stream: bytes, cuts: list[int]) -> int:
    """Feed a stream in pieces; return where the body ended, or the length of the stream."""
    at = 0
    for cut in [*cuts, len(stream)]:
        piece = stream[at : at + cut]
        taken = body.feed(piece)
        at += taken
        assert taken == len(piece) or body.done
        if body.done:
            break
    return at


@given(st.integers(1, 100), st.binary(max_size=40), CUTS)
def test_sized_body_ends_after_its_length(length: int, behind: bytes, cuts: list[int]) -> None:
    body = SizedBody(length)
    assert fed(body, bytes(length) + behind, cuts) == length
    assert body.done


FOLLOWERS = [(Framing.EMPTY, 0, None), (Framing.SIZED, 0, None), (Framing.SIZED, 1, SizedBody)]
FOLLOWERS += [(Framing.CHUNKED, 0, ChunkedBody), (Framing.UNTIL_CLOSE, 0, EndlessBody)]


@pytest.mark.parametrize(("framing", "length", "kind"), FOLLOWERS)
def test_each_framing_has_its_follower(framing: Framing, length: int, kind: type[Body] | None) -> None:
    body = http1.follow(framing, length)
    assert (body and type(body)) == kind
    assert body is None or not body.done


UNREAD = [(SizedBody(5), [2, 3], [True, True], True), (SizedBody(5), [2, 4, 3], [True, False, True], True)]
UNREAD += [(SizedBody(5), [4], [True], False), (EndlessBody(), [2, 400], [True, True], False)]


@pytest.mark.parametrize(("body", "sizes", "passed", "done"), UNREAD)
def test_bytes_pass_unread_up_to_the_end(body: Body, sizes: list[int], passed: list[bool], done: bool) -> None:
    assert [body.passes(bytes(500), size) for size in sizes] == passed
    assert body.done is done
    assert done or body.feed(b"abc", 2) == 3


@pytest.mark.parametrize(
    ("read", "offered", "passes", "behind"),
    [
        (b"5\r\n", b"12345", True, b"\r\n0\r\n\r\n"),
        (b"5\r\n1", b"234", True, b"5\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n3\r\nab", True, b"c\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n3\r\nabc", True, b"\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n3\r\n", True, b"abc\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n0\r\n\r\n", True, b""),
        (b"5\r\n1", b"2345\r\n", True, b"0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n3", False, b"\r\nabc\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n3;x\r\nabc", False, b"\r\n0\r\n\r\n"),
        (b"5\r\n1", b"2345\r\n0\r\n", False, b"\r\n"),
        (b"5\r\n1", b"2345\r\n0\r\nX: 1\r\n\r\n", False, b""),
        (b"5\r\n1", b"2345\r\n0\r\n\r\nHTTP/1.1", False, b""),
        (b"5", b"\r\n12345", False, b"\r\n0\r\n\r\n"),
        (b"5\r\n12345", b"\r\n3\r\nabc", True, b"\r\n0\r\n\r\n"),
        (b"5\r\n12345", b"\r\n", True, b"0\r\n\r\n"),
        (b"5\r\n12345", b"\r", False, b"\n0\r\n\r\n"),
        (b"", b"5\r\n12345\r\n", True, b"3\r\nabc\r\n0\r\n\r\n"),
        (b"5\r\n12345\r\n", b"3\r\nabc\r\n2\r\nde\r\n", True, b"0\r\n\r\n"),
        (b"5\r\n12345\r\n", b"0\r\n\r\n", True, b""),
        (b"5\r\n12345\r\n3", b"\r\nabc", False, b"\r\n0\r\n\r\n"),
        (b"5\r\n12345\r\n0\r\n", b"\r\n", False, b""),
        (b"", b"1\r\nx\r\n" * PASSING_CHUNKS, True, b"0\r\n\r\n"),
        (b"", b"1\r\nx\r\n" * (PASSING_CHUNKS + 1), False, b"0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("cuts", [[], [1] * 40])
def test_chunks_pass_unread_if_they_begin_in_the_plain_way(
    read: bytes, offered: bytes, passes: bool, behind: bytes, cuts: list[int]
) -> None:
    """The buffer behind the offered bytes contains those of an earlier read; what does not pass is read as usual."""
    body = ChunkedBody()
    body.feed(read)
    assert body.passes(bytearray(offered + b"\r\n0\r\n\r\n"), len(offered)) is passes
    end = fed(body, behind if passes else offered + behind, cuts)
    assert body.done
    assert end == (len(behind) if passes else len((offered + behind).removesuffix(b"HTTP/1.1")))


@given(chunked(), st.binary(max_size=10), CUTS)
def test_offering_pieces_first_changes_nothing(body: tuple[bytes, bytes], behind: bytes, cuts: list[int]) -> None:
    raw, at = body[0] + behind, 0
    offered = ChunkedBody()
    for cut in [*cuts, len(raw)]:
        piece = raw[at : at + cut]
        at += len(piece) if offered.passes(bytearray(piece + raw), len(piece)) else offered.feed(piece)
        if offered.done:
            break
    assert (at, offered.done) == (len(body[0]), True)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize(("raw", "payload"), CHUNKED, ids=lambda octets: octets[:40])
def test_chunked_body_is_followed_to_its_end(raw: bytes, payload: bytes, kind: type[bytes] | type[bytearray]) -> None:
    body = ChunkedBody()
    assert (body.feed(kind(b"head" + raw + b"GET /"), 4), body.done) == (4 + len(raw), True)
    assert body.feed(b"GET /") == 0
    assert http1.dechunk(kind(raw)) == payload
    for place in range(1, min(len(raw), SHORT)):
        assert fed(ChunkedBody(), raw + b"GET", [place]) == len(raw)


@given(chunked(), st.binary(max_size=10), CUTS)
def test_chunked_body_ends_alike_for_any_split(body: tuple[bytes, bytes], behind: bytes, cuts: list[int]) -> None:
    raw, payload = body
    kept: list[bytes | bytearray] = []
    assert fed(ChunkedBody(kept.append), raw + behind, cuts) == len(raw)
    assert b"".join(kept) == payload == http1.dechunk(raw)


@pytest.mark.parametrize(("raw", "rule"), REFUSED_CHUNKED, ids=lambda value: repr(value)[:40])
def test_broken_chunked_body_is_refused_however_it_is_cut(raw: bytes, rule: Rule) -> None:
    for cuts in ([], [1] * len(raw), *([place] for place in range(1, len(raw)) if len(raw) <= SHORT)):
        assert refusal(fed, ChunkedBody(), raw, cuts) is rule


@pytest.mark.parametrize("raw", [b"", b"5", b"5\r", b"5\r\nhello", b"5\r\nhello\r\n", b"0\r\n\r", b"0\r\n\r\nx"])
def test_only_a_whole_chunked_body_has_a_payload(raw: bytes) -> None:
    assert refusal(http1.dechunk, raw) is Rule.WHOLE_BODY


@given(st.binary(max_size=60), CUTS)
def test_arbitrary_bytes_have_the_same_outcome_in_any_split(noise: bytes, cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> tuple[int, bool] | Rule:
        body = ChunkedBody()
        try:
            return fed(body, noise, cuts), body.done
        except BadMessage as refusal:
            return refusal.rule

    assert outcome([]) == outcome(cuts) == outcome([1] * len(noise))
