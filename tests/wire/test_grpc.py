"""Tests of gRPC's framing, deadlines and status texts."""

import gzip
import zlib
from functools import partial

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.wire import JOINED_BYTES, grpc

LIMIT = 1000


def test_message_is_framed_without_copy_of_long_body() -> None:
    for size in (0, 1, JOINED_BYTES, JOINED_BYTES + 1):
        chunks = grpc.chunks(body := bytes(size))
        assert b"".join(chunks) == grpc.message(body)
        assert (chunks[-1] is body) == (size > JOINED_BYTES)
    two = b"\0\0\0\0\2"
    for framed, lacks in ((b"", 5), (two[:4], 1), (two, 2), (b"\1" + two[1:] + b"ab", 0), (two + b"ab!", -1)):
        assert grpc.missing(framed) == grpc.missing(bytearray(framed), 2) == lacks
    with pytest.raises(grpc.TooLong, match="longer than the limit"):
        grpc.missing(b"\0\0\0\0\3", 2)


packed = partial(grpc.message, compressed=True)
PACKED, LONG = gzip.compress(b"body", mtime=0), "longer than the limit"
SIZES = [(1, 0), (LIMIT + 1, LIMIT), (10**7, 10**7 - 1), (10**7, LIMIT)]

REFUSED: list[tuple[bytes, bytes, int, str]] = [
    *((grpc.message(b"ab")[:size], b"", LIMIT, "exactly one whole") for size in (0, 4, 6)),
    *((grpc.message(b"ab") + following, b"", LIMIT, "exactly one whole") for following in (b"c", grpc.message(b"ab"))),
    *((flag + bytes(4), b"", LIMIT, "flag") for flag in (b"\2", b"\xff")),
    (grpc.message(bytes(LIMIT + 1)), b"", LIMIT, LONG),
    *((packed(gzip.compress(bytes(size), mtime=0)), b"gzip", limit, LONG) for size, limit in SIZES),
    *((packed(PACKED), encoding, LIMIT, "unknown compression") for encoding in (b"", b"identity", b"deflate")),
    *((packed(body), b"gzip", LIMIT, "is broken") for body in (zlib.compress(b"body"), PACKED[:-8] + bytes(8))),
    *((packed(body), b"gzip", LIMIT, "one gzip member") for body in (b"", PACKED[:-1], PACKED + b"x", PACKED * 2)),
]


@pytest.mark.parametrize(("framed", "encoding", "limit", "problem"), REFUSED, ids=lambda value: repr(value)[:40])
def test_invalid_framed_message_is_refused(framed: bytes, encoding: bytes, limit: int, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        grpc.open_message(framed, encoding, limit)


READ = [(b"2H", 7200), (b"1M", 60), (b"120S", 120), (b"1500m", 1.5), (b"99999999u", 99.999999), (b"250n", 2.5e-7)]
READ += [(b"0S", 0), *((it, None) for it in (b"", b"S", b"10", b"10s", b"1.5S", b"-1S", b"+1S", b" 1S", b"\xb2S"))]
WRITTEN = [(0.25, b"250000u"), (99.5, b"99500000u"), (100.0, b"100000m"), (99_999.5, b"99999500m")]
WRITTEN += [(100_000.0, b"100000S"), (1e9, b"99999999S"), (0.0, b"1u"), (-3.0, b"1u")]


def test_timeout_header_is_parsed_and_has_finest_unit() -> None:
    for value, seconds in [*READ, (b"123456789S", None)]:
        assert grpc.read_timeout(value) == (seconds if seconds is None else pytest.approx(seconds)), value
    assert [grpc.timeout(seconds) for seconds, _ in WRITTEN] == [value for _, value in WRITTEN]


ENCODED = [("hook server 'a': no", b"hook server 'a': no"), ("100%", b"100%25"), ("two\nlines\x7f", b"two%0Alines%7F")]
ENCODED += [("größer ☺", b"gr%C3%B6%C3%9Fer %E2%98%BA"), ("", b""), ("not UTF-8: \udcff", b"not UTF-8: ?")]


def test_status_text_is_percent_encoded() -> None:
    assert [grpc.percent_encode(text) for text, _ in ENCODED] == [value for _, value in ENCODED]
