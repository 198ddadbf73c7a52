"""Unary calls on one connection, against a peer that is written out frame by frame."""

import gzip

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import JOINED_BYTES, grpc, headers, http2
from runtimeproxy.wire.connection import HEADER_LIMIT
from runtimeproxy.wire.unary import ACKS_AT_ONCE, STREAMS_UNTIL_TOLD, Calls, Kind, TooLong, Unprocessed
from tests.wire.unary_calls import (
    GOOD_END,
    HEAD,
    LIMIT,
    PATH,
    answer,
    asked,
    block,
    connected,
    data,
    failure,
    outcome,
    sent,
)

# The request.


def test_the_connection_begins_with_preface_settings_and_window() -> None:
    calls = Calls(LIMIT)
    assert b"".join(calls.out).startswith(http2.PREFACE)
    settings, window = sent(calls)
    assert (settings[0], settings[2]) == (http2.SETTINGS, 0)
    assert dict(http2.read_settings(settings[3])) == {1: 0, 2: 0, 4: LIMIT + 5 + 16384}
    assert (window[0], window[2]) == (http2.WINDOW_UPDATE, 0)


def test_a_request_on_the_wire() -> None:
    calls = connected()
    assert calls.open(PATH, b"message", 1.5) == 1
    head, body = sent(calls)
    assert head[:3] == (http2.HEADERS, http2.END_HEADERS, 1)
    assert headers.read(head[3]) == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"runtimeproxy"),
        (b"grpc-timeout", b"1500000u"),
    ]
    assert body == (http2.DATA, http2.END_STREAM, 1, grpc.message(b"message"))


def test_streams_are_odd_and_rise() -> None:
    calls = connected()
    assert [calls.open(PATH, b"", 1.0) for _ in range(3)] == [1, 3, 5]


def test_stream_ids_can_be_used_up() -> None:
    calls = connected()
    calls._next_stream = http2.MAX_STREAM_ID - 2
    calls.open(PATH, b"", 1.0)
    assert not calls.closing
    assert calls.open(PATH, b"", 1.0) == http2.MAX_STREAM_ID
    assert calls.closing


def test_a_request_waits_for_the_peers_windows_and_frame_size() -> None:
    calls = Calls(LIMIT)
    calls.receive(http2.settings({http2.INITIAL_WINDOW_SIZE: 10, http2.MAX_FRAME_SIZE: 16384}))
    calls.out.clear()
    calls.open(PATH, b"m" * 20_000, 1.0)
    framed = grpc.message(b"m" * 20_000)
    assert [frame[3] for frame in sent(calls) if frame[0] == http2.DATA] == [framed[:10]]
    calls.receive(http2.window_update(1, 2**20))
    first, rest = sent(calls)
    assert (len(first[3]), first[1]) == (16384, 0)
    assert (first[3] + rest[3], rest[1]) == (framed[10:], http2.END_STREAM)


@pytest.mark.parametrize("size", [70_000, JOINED_BYTES + 1])
def test_a_request_waits_for_the_connection_window(size: int) -> None:
    calls = connected()
    calls.open(PATH, b"m" * size, 1.0)
    assert sum(len(frame[3]) for frame in sent(calls) if frame[0] == http2.DATA) == 65_535
    calls.receive(http2.window_update(1, size) + http2.window_update(0, size))
    assert sum(len(frame[3]) for frame in sent(calls)) == size + 5 - 65_535


def test_the_number_of_streams_obeys_the_peer() -> None:
    calls = Calls(LIMIT)
    assert calls.room == STREAMS_UNTIL_TOLD == 1
    calls.open(PATH, b"", 1.0)
    assert calls.room == 0
    calls.receive(http2.settings({}))
    assert calls.room > 1_000_000
    calls.open(PATH, b"", 1.0)
    calls.open(PATH, b"", 1.0)
    calls.receive(http2.settings({http2.MAX_CONCURRENT_STREAMS: 2}))
    assert calls.room == 0
    calls.cancel(3)
    calls.receive(http2.settings({}))
    assert calls.room == 0
    calls.cancel(1)
    assert calls.room == 1


def test_cancel_resets_the_stream_once() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.out.clear()
    calls.cancel(1)
    calls.cancel(1)
    assert sent(calls) == [(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")]
    assert calls.ended == []


def test_a_late_answer_to_a_cancelled_call_is_dropped_and_credited() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.cancel(1)
    calls.out.clear()
    for _ in range(20):
        calls.receive(data(1, bytes(16384)))
    calls.receive(block(1, HEAD) + block(1, GOOD_END, end=True) + http2.rst_stream(1, http2.CANCEL))
    assert calls.ended == []
    assert [frame[0] for frame in sent(calls)] == [http2.WINDOW_UPDATE]


# The answer.


def test_an_answer() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.receive(answer(1, b"reply"))
    assert outcome(calls) == b"reply"


def test_answers_in_any_order() -> None:
    calls = connected()
    streams = [calls.open(PATH, b"", 1.0) for _ in range(3)]
    for stream in reversed(streams):
        calls.receive(answer(stream, str(stream).encode()))
    assert calls.ended == [(5, b"5"), (3, b"3"), (1, b"1")]


def test_pings_are_answered_behind_what_is_sent_next_and_a_flood_of_them_at_once() -> None:
    calls = connected()
    pings = [http2.frame(http2.PING, 0, 0, bytes([number] * 8)) for number in range(ACKS_AT_ONCE + 1)]
    acks = [http2.frame(http2.PING, http2.ACK, 0, ping[http2.HEAD_BYTES :]) for ping in pings]
    calls.out.clear()
    calls.receive(b"".join(pings[:-1]))
    assert (calls.out, calls.acks) == ([], acks[:-1])
    calls.receive(pings[-1])
    assert (calls.out, calls.acks) == (acks, [])


@given(st.binary(max_size=LIMIT), st.lists(st.integers(1, 400)))
def test_any_split_of_the_bytes_gives_the_same_answer(message: bytes, cuts: list[int]) -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    framed = grpc.message(message)
    half = len(framed) // 2
    received = block(1, HEAD) + data(1, framed[:half]) + data(1, framed[half:]) + block(1, GOOD_END, end=True)
    for size in cuts:
        calls.receive(received[:size])
        received = received[size:]
    calls.receive(received)
    assert outcome(calls) == message


def test_padding_priority_continuation_and_early_headers() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    fields = headers.build(HEAD)
    calls.receive(block(1, [(b":status", b"103"), (b"link", b"x")]))
    flags = http2.PADDED | http2.PRIORITY_FLAG
    calls.receive(http2.frame(http2.HEADERS, flags, 1, b"\x02" + bytes(5) + fields[:4] + bytes(2)))
    calls.receive(http2.frame(http2.CONTINUATION, 0, 1, fields[4:9]))
    calls.receive(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, fields[9:]))
    calls.receive(http2.frame(http2.DATA, http2.PADDED, 1, b"\x03" + grpc.message(b"reply") + bytes(3)))
    calls.receive(block(1, GOOD_END, end=True))
    assert outcome(calls) == b"reply"


def test_a_peer_may_use_a_header_table_until_it_acknowledged_our_settings() -> None:
    calls = Calls(LIMIT)
    encoder = Encoder()
    calls.receive(http2.settings({}))
    for stream in (1, 3):
        calls.open(PATH, b"", 1.0)
        calls.receive(http2.header_frames(stream, encoder.encode(HEAD), False))
        calls.receive(data(stream, grpc.message(b"reply")))
        calls.receive(http2.header_frames(stream, encoder.encode(GOOD_END), True))
        assert outcome(calls, stream) == b"reply"
    calls.receive(http2.SETTINGS_ACK)
    calls.open(PATH, b"", 1.0)
    calls.receive(answer(5, b"reply"))
    assert outcome(calls, 5) == b"reply"


@pytest.mark.parametrize("length", [0, LIMIT, LIMIT + 1])
def test_a_compressed_answer(length: int) -> None:
    packed, calls = grpc.message(gzip.compress(b"x" * length), compressed=True), connected()
    calls.open(PATH, b"", 1.0)
    calls.receive(block(1, [*HEAD, (b"grpc-encoding", b"gzip")]) + data(1, packed) + block(1, GOOD_END, end=True))
    assert length > LIMIT or outcome(calls) == b"x" * length
    assert length <= LIMIT or isinstance(failure(calls), TooLong)


def test_a_long_run_of_answers_is_credited() -> None:
    calls = connected()
    for stream in range(1, 4000, 2):
        calls.open(PATH, b"", 1.0)
        calls.receive(http2.window_update(0, 5))
        calls.receive(answer(stream, b"r" * LIMIT))
        assert outcome(calls, stream) == b"r" * LIMIT
    credited = sum(http2.read_u32(frame[3]) for frame in sent(calls) if frame[0] == http2.WINDOW_UPDATE)
    assert credited > 2000 * LIMIT - 2**20


# Failures that the peer tells.


@pytest.mark.parametrize(
    ("fields", "code", "text", "kind"),
    [
        ([(b"grpc-status", b"7"), (b"grpc-message", b"no%20way%21")], 7, "no way!", Kind.STATUS),
        ([(b"grpc-status", b"13")], 13, "", Kind.STATUS),
        ([(b"grpc-status", b"4"), (b"grpc-message", b"A=1")], 4, "the peer says that the time is over", Kind.DEADLINE),
        ([(b"grpc-status", b"17")], 2, "", Kind.STATUS),
        ([(b"grpc-status", b"x")], 2, "", Kind.STATUS),
        ([(b"grpc-status", b"-1")], 2, "", Kind.STATUS),
        ([(b"grpc-status", b"9" * 5000)], 2, "", Kind.STATUS),
        ([(b"grpc-status", b"7"), (b"grpc-message", b"x" * 9000)], 7, "x" * 2048, Kind.STATUS),
        ([(b"grpc-status", b"0")], 13, "not exactly one whole gRPC message", Kind.BROKEN),
    ],
)
def test_trailers_only(fields: list[headers.Header], code: int, text: str, kind: Kind) -> None:
    failed, after = asked(block(1, [*HEAD, *fields], end=True))
    assert (failed.code, failed.text, failed.kind) == (code, text, kind)
    assert str(failed) == text
    assert after == []


def test_a_status_after_a_message() -> None:
    received = block(1, HEAD) + data(1, grpc.message(b"x")) + block(1, [(b"grpc-status", b"8")], end=True)
    failed, _ = asked(received)
    assert (failed.code, failed.kind) == (8, Kind.STATUS)


@pytest.mark.parametrize(
    ("status", "code"), [(b"400", 13), (b"401", 16), (b"403", 7), (b"404", 12), (b"503", 14), (b"418", 2), (b"", 2)]
)
@pytest.mark.parametrize("end", [True, False])
def test_an_http_status_in_place_of_an_answer(status: bytes, code: int, end: bool) -> None:
    failed, after = asked(block(1, [(b":status", status), (b"content-type", b"text/plain")], end))
    assert (failed.code, failed.kind) == (code, Kind.BROKEN)
    assert "HTTP status" in failed.text
    assert [frame[0] for frame in after] == ([] if end else [http2.RST_STREAM])


REQUEST_AGAIN = b"\0\0\0\0\2ok"


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (block(1, [(b":status", b"200"), (b"content-type", b"text/html")]), "is not gRPC"),
        (block(1, HEAD, end=True), "ends without grpc-status"),
        (block(1, HEAD) + block(1, [(b"x", b"y")], end=True), "ends without grpc-status"),
        (block(1, HEAD) + data(1, REQUEST_AGAIN, end=True), "ends without grpc-status"),
        (block(1, HEAD) + block(1, HEAD), "headers after its message"),
        (data(1, b"x"), "begins without headers"),
        (block(1, HEAD) + block(1, GOOD_END, end=True), "not exactly one whole gRPC message"),
        (block(1, HEAD) + data(1, REQUEST_AGAIN * 2) + block(1, GOOD_END, end=True), "not exactly one whole"),
        (block(1, HEAD) + data(1, REQUEST_AGAIN[:-1]) + block(1, GOOD_END, end=True), "not exactly one whole"),
        (block(1, HEAD) + data(1, b"\x01" + REQUEST_AGAIN[1:]) + block(1, GOOD_END, end=True), "unknown compression"),
        (block(1, HEAD) + data(1, b"\x02" + REQUEST_AGAIN[1:]) + block(1, GOOD_END, end=True), "compressed flag"),
        (http2.rst_stream(1, 2), "reset the call (HTTP/2 error 2)"),
    ],
)
def test_broken_answers(received: bytes, text: str) -> None:
    failed, _ = asked(received)
    assert failed.kind is Kind.BROKEN
    assert text in failed.text


@pytest.mark.parametrize("payload", [b"\0" + (LIMIT + 1).to_bytes(4, "big"), grpc.message(b"x" * LIMIT) + b"x"])
def test_an_answer_that_is_too_long_is_cancelled_at_once(payload: bytes) -> None:
    failed, after = asked(block(1, HEAD) + data(1, payload))
    assert (type(failed), failed.code, failed.kind) == (TooLong, 8, Kind.BROKEN)
    assert failed.text == "the answer is longer than 1000 bytes"
    assert after == [(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")]


def test_an_answer_before_the_request_was_taken_whole_cancels_the_rest() -> None:
    calls = connected()
    calls.open(PATH, b"m" * 100_000, 1.0)
    calls.out.clear()
    calls.receive(block(1, [*HEAD, (b"grpc-status", b"8")], end=True))
    assert failure(calls).code == 8
    assert [frame[0] for frame in sent(calls)] == [http2.RST_STREAM]
    calls.receive(http2.window_update(0, 100_000))
    assert calls.out == []


@pytest.mark.parametrize("received", [http2.rst_stream(1, http2.REFUSED_STREAM), http2.goaway(0, 0)])
def test_a_call_that_was_never_begun(received: bytes) -> None:
    failed, _ = asked(received)
    assert isinstance(failed, Unprocessed)
    assert (failed.code, failed.kind) == (14, Kind.UNREACHABLE)


def test_goaway_ends_later_calls_and_lets_earlier_ones_finish() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.open(PATH, b"", 1.0)
    calls.receive(http2.goaway(1, 0))
    assert calls.closing
    assert failure(calls, 3).kind is Kind.UNREACHABLE
    calls.receive(answer(1, b"reply"))
    assert outcome(calls) == b"reply"


# The connection.


def test_frames_of_unknown_types_mean_nothing() -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.receive(http2.frame(0xFA, 0xFF, 1, b"x") + http2.frame(http2.PRIORITY, 0, 1, bytes(5)) + answer(1, b"reply"))
    assert outcome(calls) == b"reply"


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "longer than the receiver allows"),
        (http2.frame(http2.CONTINUATION, 0, 1, b""), "CONTINUATION out of place"),
        (http2.frame(http2.HEADERS, 0, 1, b"") + http2.SETTINGS_ACK, "CONTINUATION out of place"),
        (http2.frame(http2.HEADERS, 0, 1, b"") + http2.frame(http2.CONTINUATION, 4, 3, b""), "another stream"),
        (http2.frame(http2.HEADERS, 4, 1, b"\xbe"), "dynamic table"),
        (http2.frame(http2.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), "header block"),
        (http2.frame(http2.PUSH_PROMISE, 4, 1, bytes(5)), "PUSH_PROMISE although"),
        (http2.frame(http2.PING, 0, 0, b"short"), "PING frame"),
        (http2.frame(http2.SETTINGS, 0, 0, b"x"), "SETTINGS frame"),
        (http2.frame(http2.GOAWAY, 0, 0, b""), "too short"),
        (http2.frame(http2.RST_STREAM, 0, 1, b""), "RST_STREAM frame whose length"),
        (http2.frame(http2.WINDOW_UPDATE, 0, 1, b""), "length is not 4"),
        (http2.window_update(0, 0), "WINDOW_UPDATE of 0"),
        (http2.window_update(0, http2.MAX_WINDOW), "above 2^31-1"),
        (http2.window_update(1, http2.MAX_WINDOW), "above 2^31-1"),
        (http2.frame(http2.DATA, http2.PADDED, 1, b"\x05xx"), "padding"),
    ],
)
def test_a_peer_that_breaks_the_protocol(received: bytes, text: str) -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    with pytest.raises(WireError, match=text.replace("^", r"\^")):
        calls.receive(received)


@pytest.mark.parametrize("size", [0, 1, 16384])
def test_a_header_block_without_end_is_bounded(size: int) -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    calls.receive(http2.frame(http2.HEADERS, 0, 1, b""))
    with pytest.raises(WireError, match="too long"):  # noqa: PT012
        for _ in range(HEADER_LIMIT // 9 + 1):
            calls.receive(http2.frame(http2.CONTINUATION, 0, 1, bytes(size)))


@given(st.binary(max_size=300))
def test_any_bytes_end_the_connection_or_the_call_or_are_waited_for(received: bytes) -> None:
    calls = connected()
    calls.open(PATH, b"", 1.0)
    try:
        calls.receive(received)
    except WireError:
        pass
    assert len(calls.ended) <= 1


_FRAMES = st.builds(
    http2.frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 3, 5]),
    st.binary(max_size=30) | st.sampled_from([headers.build(HEAD), headers.build(GOOD_END), grpc.message(b"x")]),
)


@given(st.lists(_FRAMES, max_size=12))
def test_any_frames_end_each_call_at_most_once(frames: list[bytes]) -> None:
    calls = connected()
    streams = {calls.open(PATH, b"", 1.0) for _ in range(2)}
    try:
        for frame in frames:
            calls.receive(frame)
    except WireError:
        pass
    ended = [stream for stream, _ in calls.ended]
    assert len(ended) == len(set(ended))
    assert set(ended) <= streams
