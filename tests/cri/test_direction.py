"""Frames of one direction: DATA cut through, header blocks, checks that end a connection (relay-rules A1, A3, A8)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from tests.cri.peer import (
    CREATE,
    OPENED,
    PREFACE,
    REPLY,
    TRAILERS,
    VERSION,
    Ack,
    Credit,
    Data,
    Frame,
    GoAway,
    Headers,
    Ping,
    Play,
    Raw,
    Reset,
    Settings,
    block,
    continuation,
    greeted,
    raw_headers,
)

ROOMY = Settings(((4, 2**20), (5, 2**20)))
"""A peer that takes frames and streams of 1 MiB."""

# ---- A8: DATA is cut through


def test_a8_data_leave_before_their_frame_is_whole() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.got()
    frame = Data(1, b"0123456789", end=True).wire()
    for part in (frame[:9], frame[9:12], frame[12:]):
        play.client.sends(part)
        assert play.runtime.got_bytes() == part


def test_a8_frames_of_our_own_wait_for_the_boundary_of_a_frame_that_is_cut_through() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.got()
    frame = Data(1, bytes(100)).wire()
    play.client.sends(frame[:50])
    play.reader.runtime_out.inject(Ping(b"ourframe").wire())
    play.client.sends(frame[50:70])
    assert play.runtime.got_bytes() == frame[:70]
    play.client.sends(frame[70:], Ping(b"theirs!!", ack=True))
    assert play.runtime.got_bytes() == frame[70:] + Ping(b"ourframe").wire() + Ping(b"theirs!!", ack=True).wire()


def test_a8_data_behind_the_receivers_credit_wait_and_are_split_but_padded_frames_leave_whole() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION), Headers(5, VERSION))
    play.client.sends(
        *[Data(1, bytes(16_000))] * 4, Data(1, b"x" * 2_000), Data(3, b"y" * 990, pad=9), Data(5, b"", True)
    )
    assert play.runtime.got()[-2:] == [Data(1, b"x" * 1_535), Data(5, b"", True)]
    play.runtime.sends(Credit(0, 465 + 999))
    assert play.runtime.got() == [Data(1, b"x" * 465)]
    play.runtime.sends(Credit(0, 1))
    assert play.runtime.got() == [Data(3, b"y" * 990, pad=9)]


def test_a8_what_is_longer_than_the_whole_connection_window_is_split() -> None:
    play = Play().greet(runtime=ROOMY)
    play.client.sends(Headers(1, VERSION), Data(1, bytes(70_000), end=True))
    assert play.runtime.got()[1:] == [Data(1, bytes(65_535))]
    play.runtime.sends(Credit(0, 70_000))
    assert play.runtime.got() == [Data(1, bytes(4_465), end=True)]


def test_a8_trailers_stay_behind_their_streams_data_and_acks_overtake() -> None:
    play = greeted()
    play.runtime.sends(Headers(1, REPLY))
    play.client.got()
    play.runtime.sends(*[Data(1, bytes(16_383))] * 4, Data(1, b"abc" * 10), Headers(1, TRAILERS, end=True))
    overtaking = [Headers(3, TRAILERS, end=True), Ping(b"overtake", ack=True)]
    play.runtime.sends(*overtaking)
    assert play.client.got()[5:] == overtaking
    play.client.sends(Credit(0, 100))
    assert play.client.got() == [Data(1, (b"abc" * 10)[3:]), Headers(1, TRAILERS, end=True)]


def test_a8_a_reset_overtakes_and_what_waited_is_credited() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), *[Data(1, bytes(16_383))] * 20)
    play.runtime.got()
    play.client.sends(Reset(1, 8))
    assert play.runtime.got() == [Reset(1, 8)]
    assert play.client.got() == [Credit(0, 17 * 16_383)]


def test_a8_nothing_more_reaches_a_peer_that_has_reset_the_stream() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.sends(*[Data(1, bytes(16_384))] * 5)
    play.client.got()
    play.client.sends(Reset(1, 8), Credit(0, 2**20))
    assert play.client.got() == []


def test_a8_a_reset_without_an_error_waits_behind_the_whole_answer() -> None:
    play = greeted()
    play.runtime.sends(*[Data(1, bytes(16_384))] * 4, Headers(1, TRAILERS, end=True), Reset(1, 0))
    play.client.got()
    play.client.sends(Credit(0, 1))
    assert play.client.got() == [Data(1, bytes(1)), Headers(1, TRAILERS, end=True), Reset(1, 0)]


# ---- A8, A9: other frames pass as they are


@pytest.mark.parametrize(
    "frame",
    [
        Ping(b"12345678", ack=True),
        Ack(),
        Credit(1, 10),
        GoAway(7, 2, b"why"),
        Raw(2, 0, 9, bytes(5)),
        Raw(0xEE, 0xFF, 0x8000_0001, b"unknown"),
        Data(1, b"x", pad=0),
        Data(1, b""),
        Reset(1, 5),
    ],
    ids=repr,
)
def test_a9_frames_that_nobody_has_a_stake_in_pass_as_the_very_bytes(frame: Raw) -> None:
    play = greeted()
    play.client.sends(frame)
    play.runtime.sends(frame)
    assert play.runtime.got_bytes() == play.client.got_bytes() == frame.wire()


def test_a9_no_settings_and_no_ping_are_ours() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(((3, 100),)), Headers(1, VERSION, end=True))
    play.runtime.sends(Settings(((3, 200),)), Ack(), Headers(1, REPLY), Headers(1, TRAILERS, end=True))
    play.client.sends(Ack())
    assert play.runtime.got() == [Settings(((3, 100), (1, 0))), OPENED, Headers(1, VERSION, end=True), Ack()]
    assert play.client.got() == [
        Settings(((3, 200), (1, 0))),
        OPENED,
        Ack(),
        Headers(1, REPLY),
        Headers(1, TRAILERS, end=True),
    ]


# ---- A1: header blocks in pieces


def test_a1_a_block_in_pieces_with_priority_and_padding_passes_as_its_own_frames() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION, end=True))
    play.runtime.got()
    whole = block(VERSION)
    head = Raw(1, 0x1 | 0x8 | 0x20, 3, b"\x04" + b"\x00\x00\x00\x01\x10" + whole[:5] + bytes(4)).wire()
    frames = (
        head + continuation(3, whole[5:9], whole=False) + continuation(3, b"", whole=False) + continuation(3, whole[9:])
    )
    for byte in frames:
        play.client.sends(bytes((byte,)))
    assert play.runtime.got_bytes() == frames


def test_a1_a_block_that_must_change_keeps_its_priority_and_is_split_at_16384_bytes() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(), Raw(1, 0x1 | 0x20, 1, b"\x00\x00\x00\x01\x10" + block(VERSION)[:3]).wire())
    long = b"\x40\x01a\x7f\xa1\x9b\x01" + b"v" * 20_000  # a value of 20,000 bytes, to be put in the dynamic table
    play.client.sends(continuation(1, block(VERSION)[3:] + long[:10_000], whole=False), continuation(1, long[10_000:]))
    out = play.runtime.got_bytes().removeprefix(PREFACE)
    first = out[out.index(b"\x00\x40\x00\x01") :]
    assert first[3:14] == b"\x01\x21\x00\x00\x00\x01\x00\x00\x00\x01\x10"
    assert first[9 + 16_384 + 3 : 9 + 16_384 + 9] == b"\x09\x04\x00\x00\x00\x01"


def test_a1_push_promises_are_blocks_too() -> None:
    play = Play()
    play.runtime.sends(
        Settings(), Raw(5, 0x4, 1, b"\x00\x00\x00\x02" + b"\x40\x01a\x01b"), Raw(5, 0x4, 1, b"\x00\x00\x00\x04\xbe")
    )
    alone = b"\x00\x01a\x01b"
    frames = [Raw(5, 0x4, 1, bytes((0, 0, 0, promised)) + alone).wire() for promised in (2, 4)]
    assert play.client.got_bytes().endswith(b"".join(frames))


# ---- Bounds and hostile input


def frame_of(length: int, kind: int = 0xEE) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, 0)) + bytes(4)


BLOCK = block(VERSION)
PAD = b"\x00\x01a\x7f\xe1\x7f" + b"v" * 16_352  # one literal field of 16,358 bytes


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        pytest.param([frame_of(16_385)], "longer than the receiver", id="frame too long"),
        pytest.param([frame_of(16_385, kind=0)], "longer than the receiver", id="DATA too long"),
        pytest.param([continuation(1, b"")], "CONTINUATION out of place", id="CONTINUATION first"),
        pytest.param([raw_headers(1, BLOCK), continuation(1, b"")], "CONTINUATION out of place", id="block was whole"),
        pytest.param(
            [raw_headers(1, BLOCK, whole=False), Ping(bytes(8))], "CONTINUATION out of place", id="PING inside"
        ),
        pytest.param(
            [raw_headers(1, BLOCK, whole=False), Data(1, b"x")], "CONTINUATION out of place", id="DATA inside"
        ),
        pytest.param([raw_headers(1, BLOCK, whole=False), Headers(3, VERSION)], "out of place", id="HEADERS inside"),
        pytest.param([raw_headers(1, BLOCK, whole=False), continuation(3, b"")], "another stream", id="other stream"),
        pytest.param([raw_headers(1, BLOCK, whole=False), *[continuation(1, PAD, False)] * 5], "too long", id="64 KiB"),
        pytest.param(
            [raw_headers(1, BLOCK, whole=False), *[continuation(1, b"", False)] * 512], "too long", id="512 frames"
        ),
        pytest.param([Raw(1, 0x4 | 0x8, 1, b"\x09" + BLOCK[:5])], "padding", id="padding of HEADERS"),
        pytest.param([Headers(1, CREATE), Raw(0, 0x8, 1, b"\x02x")], "padding", id="padding of held DATA"),
        pytest.param([Raw(1, 0x4 | 0x20, 1, b"1234")], "too short", id="priority cut"),
        pytest.param([Raw(3, 0, 1, b"123")], "too short", id="RST_STREAM cut"),
        pytest.param([Raw(8, 0, 0, b"123")], "WINDOW_UPDATE of a wrong length", id="WINDOW_UPDATE of 0 cut"),
        pytest.param([Raw(8, 0, 1, b"12345")], "WINDOW_UPDATE of a wrong length", id="WINDOW_UPDATE too long"),
        pytest.param([Credit(0, 0)], "WINDOW_UPDATE of 0", id="no credit"),
        pytest.param([Credit(0, 2**31 - 1)], "above 2", id="too much credit"),
        pytest.param([Raw(4, 0, 0, b"12345")], "multiple of 6", id="SETTINGS cut"),
        pytest.param([Settings(((5, 100),))], "MAX_FRAME_SIZE", id="SETTINGS out of range"),
        pytest.param([raw_headers(1, b"\xbe")], "dynamic table", id="index above 61 after the ACK"),
        pytest.param([raw_headers(1, BLOCK + b"\x40")], "ends inside a field", id="block cut"),
        pytest.param([raw_headers(1, BLOCK + b"\x82" * 300)], "too many fields", id="fields"),
    ],
)
def test_a_peer_that_breaks_the_protocol_ends_the_connection(frames: list[Raw | bytes], problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        greeted().client.sends(*frames)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (frame_of(65_536 + 262), "longer than what is collected"),
        (frame_of(65_536 + 262, kind=1), "longer than what is collected"),
        (frame_of(2**20 + 1, kind=0), "longer than what is collected"),
        (frame_of(2**21 + 1, kind=0), "longer than the receiver"),
    ],
    ids=["unknown", "HEADERS", "DATA", "DATA that the receiver does not take"],
)
def test_a_frame_is_not_collected_to_see_that_it_is_too_long(head: bytes, problem: str) -> None:
    play = Play().greet(runtime=Settings(((5, 2**21),)))
    with pytest.raises(WireError, match=problem):
        play.client.sends(head)


def test_bounds_of_a_block_hold_for_one_long_frame_and_are_reached_before_they_end_anything() -> None:
    play = Play().greet(runtime=Settings(((5, 2**20),)))
    field = b"\x00\x01a\x7f\x81\x7e" + b"v" * 16_256
    fits = BLOCK + (field * 5)[: len(field) * 4]
    rest = 65_536 - len(fits)
    fits += b"\x00\x01b" + b"\x7f" + _rest(rest - 6) + b"w" * (rest - 6)
    assert len(fits) == 65_536
    play.client.sends(Raw(1, 0x5, 1, fits), raw_headers(3, BLOCK, whole=False))
    play.client.sends(*[continuation(3, b"", whole=False)] * 510, continuation(3, b""))
    assert [frame.stream for frame in play.runtime.got() if isinstance(frame, Headers)] == [1, 3]
    with pytest.raises(WireError, match="too long"):
        play.client.sends(Raw(1, 0x5, 5, fits + b"\x82"))


def _rest(length: int) -> bytes:
    """Return the two bytes that end an HPACK length of 7 bits prefix."""
    return bytes(((length - 127) & 0x7F | 0x80, (length - 127) >> 7))


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([b"GET / HTTP/1.1\r\n"], "does not speak HTTP/2"),
        ([PREFACE[:-1] + b"x"], "does not speak HTTP/2"),
        ([PREFACE, Ack()], "no SETTINGS"),
        ([PREFACE, Headers(1, VERSION)], "no SETTINGS"),
        ([PREFACE, Data(1, b"x")], "no SETTINGS"),
    ],
    ids=["HTTP/1", "last byte", "ACK", "HEADERS", "DATA"],
)
def test_the_connection_starts_with_preface_and_settings(frames: list[Raw | bytes], problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        Play().client.sends(*frames)


def test_a3_data_above_the_pairs_window_end_the_connection() -> None:
    play = greeted()
    data = [Data(1, bytes(16_384))] * 4
    play.client.sends(Headers(1, VERSION), *data * 16)  # 1 MiB: all but 65,535 bytes wait
    with pytest.raises(WireError, match="above the connection window"):
        play.client.sends(Data(1, b"x"))


def test_frames_without_cost_wait_in_bounded_numbers() -> None:
    play = greeted()
    play.runtime.sends(*[Data(1, bytes(16_384))] * 4)
    with pytest.raises(WireError, match="too many frames wait"):
        play.runtime.sends(*[Headers(1, TRAILERS)] * 16_384)


def test_what_came_whole_before_a_broken_frame_goes_on() -> None:
    play = greeted()
    answer = Headers(1, REPLY).wire() + Data(1, b"answer").wire() + Headers(1, TRAILERS, end=True).wire()
    play.runtime.sends(Headers(3, REPLY))
    play.client.got()
    with pytest.raises(WireError):
        play.runtime.sends(answer, frame_of(16_385))
    assert [type(frame) for frame in play.client.got()] == [Headers, Data, Headers]


def test_the_reserved_bit_of_a_stream_id_hides_nothing() -> None:
    play = greeted()
    play.client.sends(Raw(1, 0x4, 0x8000_0001, block(CREATE)), Raw(0, 0x1, 1, b"\x00\x00\x00\x00\x01m"))
    assert play.call.message == b"m"


def test_the_reserved_bit_hides_no_data_behind_those_that_pass() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, CREATE))
    play.runtime.got()
    play.client.sends(Data(1, b"passes"), Raw(0, 0, 0x8000_0003, b"\x00\x00\x00\x00\x01"), Raw(0, 1, 3, b"m"))
    assert play.runtime.got() == [Data(1, b"passes")]
    assert play.call.message == b"m"


def test_data_one_behind_the_other_pass_up_to_what_ends_their_stream_is_empty_or_no_data() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.runtime.got()
    frames: list[Frame] = [Data(1, b"a" * 20), Data(3, b"b"), Data(1, b""), Data(3, b"c", pad=2), Data(1, b"d")]
    frames.append(Data(1, b"e", True))
    frames += [Ping(b"between!", ack=True), Data(3, b"f")]
    play.client.sends(*frames, Data(3, b"g" * 100).wire()[:-50])
    sent = b"".join(frame.wire() for frame in (*frames, Data(3, b"g" * 100)))
    assert play.runtime.got_bytes() == sent[:-50]
    assert list(play.reader.open) == [1, 3]
    assert play.reader.client_out.outstanding == 128, "padding counts, too"
    assert play.reader.runtime_out.window == 65_535 - 128


def test_reset_and_goaway_of_random_length_break_nothing_else() -> None:
    with pytest.raises(WireError, match="too short"):
        greeted().runtime.sends(Raw(7, 0, 0, b"123"))


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_random_bytes_raise_nothing_but_wire_errors(pieces: list[bytes], from_client: bool) -> None:
    play = greeted()
    with suppress(WireError):
        for piece in pieces:
            (play.client if from_client else play.runtime).sends(piece)


RANDOM_FRAMES = st.builds(
    Raw, st.integers(0, 10), st.integers(0, 0x3F), st.sampled_from([0, 1, 3, 0x8000_0001]), st.binary(max_size=40)
)


@given(st.lists(st.tuples(RANDOM_FRAMES, st.booleans()), max_size=20), st.booleans())
def test_random_frames_raise_nothing_but_wire_errors(frames: list[tuple[Raw, bool]], image_apart: bool) -> None:
    play = greeted(image_apart)
    play.client.sends(Headers(1, CREATE))
    with suppress(WireError):
        for frame, from_client in frames:
            (play.client if from_client else play.runtime).sends(frame)
