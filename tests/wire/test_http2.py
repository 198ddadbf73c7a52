"""Tests of the frame layout; hyperframe is the oracle."""

import hyperframe.frame as oracle
import pytest
from hyperframe.exceptions import HyperframeError
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from tests.wire.frames import parse

LONGEST = http2.DEFAULT_FRAME_SIZE
"""Longest frame that is built: the least MAX_FRAME_SIZE of a peer."""

STREAMS = st.integers(1, http2.MAX_STREAM_ID)
CODES = st.integers(0, 2**32 - 1)


def pattern(size: int) -> bytes:
    return bytes(place % 251 for place in range(size))


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (http2.frame(http2.PING, http2.ACK, 0, b"12345678"), oracle.PingFrame(0, b"12345678", flags=["ACK"])),
        (http2.frame(http2.DATA, http2.END_STREAM, 5), oracle.DataFrame(5, flags=["END_STREAM"])),
        (http2.frame(http2.DATA, 0, 5, b"x" * 70_000), oracle.DataFrame(5, b"x" * 70_000)),
        (http2.window_update(0, 983_041), oracle.WindowUpdateFrame(0, 983_041)),
        (http2.window_update(7, http2.MAX_WINDOW), oracle.WindowUpdateFrame(7, http2.MAX_WINDOW)),
        (http2.rst_stream(9, http2.CANCEL), oracle.RstStreamFrame(9, 8)),
        (http2.rst_stream(9, http2.REFUSED_STREAM), oracle.RstStreamFrame(9, 7)),
        (http2.goaway(http2.MAX_STREAM_ID, http2.NO_ERROR), oracle.GoAwayFrame(0, 2**31 - 1, 0)),
        (http2.goaway(3, 2, b"why"), oracle.GoAwayFrame(0, 3, 2, b"why")),
        (http2.settings({http2.HEADER_TABLE_SIZE: 0, 0x99: 7}), oracle.SettingsFrame(0, {1: 0, 0x99: 7})),
        (http2.settings({}), oracle.SettingsFrame(0)),
        (http2.SETTINGS_ACK, oracle.SettingsFrame(0, flags=["ACK"])),
    ],
)
def test_frames_are_built_like_hyperframe(built: bytes, expected: oracle.Frame) -> None:
    assert built == expected.serialize()


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("size", [0, 1, LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1])
def test_header_block_is_split_into_continuations(size: int, end: bool) -> None:
    frames = [frame for frame, _ in parse(http2.header_frames(3, pattern(size), end))]
    assert b"".join(frame.data for frame in frames) == pattern(size)
    assert {frame.stream_id for frame in frames} == {3}
    more = len(frames) - 1
    assert [frame.type for frame in frames] == [http2.HEADERS] + [http2.CONTINUATION] * more
    assert [len(frame.data) for frame in frames[:-1]] == [LONGEST] * more
    assert len(frames[-1].data) <= LONGEST
    assert ["END_HEADERS" in frame.flags for frame in frames] == [False] * more + [True]
    assert ["END_STREAM" in frame.flags for frame in frames] == [end] + [False] * more


def test_u32_is_read_without_reserved_bit() -> None:
    assert http2.read_u32(b"x\xff\xff\xff\xff", 1) == 2**31 - 1
    with pytest.raises(WireError, match="too short"):
        http2.read_u32(b"x123", 1)


def test_settings_out_of_range_or_truncated_are_refused() -> None:
    window, frame = http2.INITIAL_WINDOW_SIZE, http2.MAX_FRAME_SIZE
    allowed = [(window, 0), (window, 2**31 - 1), (frame, 16_384), (frame, 2**24 - 1)]
    assert http2.read_settings(http2.settings_payload(allowed)) == allowed
    broken = [http2.settings_payload([*allowed, entry]) for entry in ((window, 2**31), (frame, 16_383), (frame, 2**24))]
    for payload in (*broken, bytes(1), bytes(5), bytes(7)):
        with pytest.raises(WireError, match="SETTINGS"):
            http2.read_settings(payload)


@pytest.mark.parametrize("padding", [None, 0, 9])
@pytest.mark.parametrize("flags", [[], ["PRIORITY"], None], ids=["plain", "priority", "push promise"])
def test_header_block_is_split_from_other_fields(padding: int | None, flags: list[str] | None) -> None:
    make = oracle.PushPromiseFrame if flags is None else oracle.HeadersFrame
    padded = [] if padding is None else ["PADDED"]
    framed = make(1, data=b"block", pad_length=padding or 0, flags=[*(flags or []), *padded]).serialize()
    prefix, fragment = http2.split_block(framed[3], framed[4], framed[http2.HEAD_BYTES :])
    assert fragment == b"block"
    assert len(prefix) == (4 if flags is None else 5 * len(flags))


@given(st.binary(max_size=30), st.integers(0, 40))
def test_padding_is_removed_like_hyperframe(payload: bytes, padding: int) -> None:
    framed = bytes((padding,)) + payload
    theirs = oracle.DataFrame(1, flags=["PADDED"])
    try:
        theirs.parse_body(memoryview(framed))
    except HyperframeError:
        with pytest.raises(WireError, match="padding"):
            http2.unpad(framed, http2.PADDED)
    else:
        assert http2.unpad(framed, http2.PADDED) == theirs.data
    assert http2.unpad(framed, http2.END_STREAM) is framed


CUT = [(http2.HEADERS, http2.PRIORITY_FLAG, b"1234"), (http2.PUSH_PROMISE, 0, b"123")]
CUT += [(http2.HEADERS, http2.PRIORITY_FLAG | http2.PADDED, b"\x0212345")]


@pytest.mark.parametrize(("kind", "flags", "payload"), CUT)
def test_block_too_short_for_its_fixed_fields_is_refused(kind: int, flags: int, payload: bytes) -> None:
    with pytest.raises(WireError, match="too short"):
        http2.split_block(kind, flags, payload)


FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), STREAMS, st.binary(max_size=30)), max_size=6)


@given(FRAMES, st.lists(st.integers(1, 40), max_size=30))
def test_frames_are_collected_from_any_split(frames: list[tuple[int, int, int, bytes]], chunks: list[int]) -> None:
    stream = b"".join(http2.frame(*frame) for frame in frames)
    buffer, received, at = http2.FrameBuffer(), [], 0
    for chunk in [*chunks, len(stream)]:
        received += buffer.feed(stream[at : at + chunk])
        at += chunk
    assert received == frames


@pytest.mark.parametrize(("buffer", "limit"), [(http2.FrameBuffer(20), 20), (http2.FrameBuffer(), 16_384)])
def test_frame_above_limit_is_refused_at_head(buffer: http2.FrameBuffer, limit: int) -> None:
    assert buffer.feed(http2.frame(http2.DATA, 0, 2**31 + 5, bytes(limit))) == [(http2.DATA, 0, 5, bytes(limit))]
    with pytest.raises(WireError, match="longer than the receiver allows"):
        buffer.feed(http2.frame(http2.DATA, 0, 1, bytes(limit + 1))[: http2.HEAD_BYTES])
