"""The server's side of unary calls, against a client that is written out frame by frame."""

import gzip
from itertools import pairwise

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import grpc, headers, http2, served
from runtimeproxy.wire.connection import HEADER_LIMIT
from runtimeproxy.wire.served import KEPT_BYTES, STREAMS, Request, Served

LIMIT = 1000
PATH = "/package.Service/Method"
Frame = tuple[int, int, int, bytes]
TYPE = (b"content-type", b"application/grpc")
HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), TYPE]
ANSWER = [(b":status", b"200"), TYPE]


def connected(limit: int = LIMIT) -> Served:
    """Return a connection whose client sent its SETTINGS and acknowledged ours."""
    made = Served(limit)
    made.receive(http2.PREFACE + http2.settings({}) + http2.SETTINGS_ACK)
    made.out.clear()
    return made


def sent(connection: Served) -> list[Frame]:
    """Take what the client receives."""
    data = b"".join(connection.out)
    connection.out.clear()
    return http2.FrameBuffer(2**24).feed(data)


def head(stream: int, *more: headers.Header, end: bool = False, fields: list[headers.Header] = HEAD) -> bytes:
    return http2.header_frames(stream, headers.build([*fields, *more]), end)


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    return http2.frame(http2.DATA, http2.END_STREAM if end else 0, stream, payload)


def request(stream: int, message: bytes = b"asked", *more: headers.Header) -> bytes:
    return head(stream, *more) + data(stream, grpc.message(message), end=True)


def ended(frames: list[Frame]) -> dict[bytes, bytes]:
    """Return the fields of the block that ends an answer."""
    [block] = [frame for frame in frames if frame[0] == http2.HEADERS and frame[1] & http2.END_STREAM]
    return dict(headers.read(block[3]))


def status(frames: list[Frame]) -> int:
    return int(ended(frames)[b"grpc-status"])


# The connection.


def test_it_greets_with_its_bounds() -> None:
    settings, window = sent(Served(LIMIT))
    assert (settings[0], settings[2]) == (http2.SETTINGS, 0)
    assert dict(http2.read_settings(settings[3])) == {1: 0, 3: STREAMS, 4: LIMIT + 5 + 16384, 6: HEADER_LIMIT}
    assert (window[0], window[2]) == (http2.WINDOW_UPDATE, 0)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_any_split_of_the_bytes_brings_the_same_request(cuts: list[int]) -> None:
    opening = http2.PREFACE + http2.settings({}) + http2.SETTINGS_ACK + request(1) + request(3, b"")
    connection = Served(LIMIT)
    bounds = [0, *sorted(min(cut, len(opening)) for cut in cuts), len(opening)]
    for start, end in pairwise(bounds):
        connection.receive(opening[start:end])
    assert connection.requests == [Request(1, PATH, None, b"asked"), Request(3, PATH, None, b"")]


@pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"])
def test_what_is_no_http2_is_refused(opening: bytes) -> None:
    with pytest.raises(WireError, match="preface"):
        Served(LIMIT).receive(opening)


def test_blocks_of_a_client_with_a_table_are_read_until_its_ack() -> None:
    connection, encoder = Served(LIMIT), Encoder()
    connection.receive(http2.PREFACE + http2.settings({}))
    for stream in (1, 3):
        block = encoder.encode([*HEAD, (b"grpc-timeout", b"2S")])
        connection.receive(http2.header_frames(stream, block, False) + data(stream, grpc.message(b""), end=True))
    assert connection.requests == [Request(1, PATH, 2.0, b""), Request(3, PATH, 2.0, b"")]
    connection.receive(http2.SETTINGS_ACK)
    with pytest.raises(WireError):
        connection.receive(http2.header_frames(5, encoder.encode(HEAD), False))


def test_pings_are_answered() -> None:
    connection = connected()
    connection.receive(http2.frame(http2.PING, 0, 0, b"12345678"))
    assert sent(connection) == [(http2.PING, http2.ACK, 0, b"12345678")]


@pytest.mark.parametrize(
    "frames",
    [
        data(1, b"x"),
        data(2, b"x"),
        head(2),
        head(0),
        head(1) + head(1),
        head(3) + head(1, end=True) + data(4, b""),
        http2.rst_stream(1, http2.CANCEL),
        http2.rst_stream(0, http2.CANCEL),
        http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4)),
        http2.frame(http2.PING, 0, 0, b"short"),
        http2.frame(http2.DATA, 0, 1, bytes(http2.DEFAULT_FRAME_SIZE + 1)),
        http2.window_update(0, 2**31 - 1),
        http2.frame(http2.HEADERS, 0, 1, b"") + http2.frame(http2.CONTINUATION, 0, 1, b"") * (HEADER_LIMIT // 9),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xbe"),
    ],
    ids=str,
)
def test_a_client_that_breaks_the_protocol_is_refused(frames: bytes) -> None:
    with pytest.raises(WireError):
        connected().receive(frames)


def test_a_broken_client_is_told_why_with_the_last_stream() -> None:
    connection = connected()
    connection.receive(request(5))
    connection.refuse("no")
    assert sent(connection) == [(http2.GOAWAY, 0, 0, b"\0\0\0\x05" + b"\0\0\0\x01" + b"no")]


def test_frames_that_come_late_for_a_stream_are_let_pass() -> None:
    connection = connected()
    connection.receive(request(3))
    connection.receive(data(3, b"late") + head(3, end=True))  # it is whole, and open still
    connection.answer(3, b"")
    connection.receive(data(3, b"late", end=True) + head(3, end=True) + http2.rst_stream(3, 0) + head(1))
    connection.receive(http2.window_update(3, 1) + http2.goaway(0, 0))
    assert (len(connection.requests), connection.cancelled, connection.idle) == (1, [], True)


# Requests.


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"1500m", 1.5), (b"2S", 2.0), (b"1999874u", 1.999874), (b"soon", None), (b"", None)]
)
@pytest.mark.parametrize("behind", [[], [(b"user-agent", b"a")]])
def test_the_deadline_is_read_wherever_it_stands(
    value: bytes, seconds: float | None, behind: list[headers.Header]
) -> None:
    connection = connected()
    for stream in (1, 3):
        connection.receive(request(stream, b"", (b"grpc-timeout", value), *behind))
    assert connection.requests == [Request(1, PATH, seconds, b""), Request(3, PATH, seconds, b"")]


def test_a_value_that_looks_like_the_deadline_is_none() -> None:
    inside = headers.literal(b"grpc-timeout", b"1S")
    connection = connected()
    connection.receive(request(1, b"", (b"grpc-timeout", b"5S"), (b"x", inside)))
    assert [asked.seconds for asked in connection.requests] == [5.0]


def test_long_headers_are_read_too() -> None:
    connection = connected()
    connection.receive(request(1, b"", (b"x", b"y" * 600), (b"grpc-timeout", b"3S")))
    assert connection.requests == [Request(1, PATH, 3.0, b"")]


def test_a_request_comes_in_pieces_and_may_end_with_trailers() -> None:
    connection = connected()
    framed = grpc.message(b"abcdef")
    connection.receive(head(1) + data(1, framed[:3]) + data(1, framed[3:7]) + head(3) + data(3, framed))
    assert connection.requests == []
    connection.receive(data(1, framed[7:], end=True) + head(3, end=True, fields=[(b"x", b"y")]))
    assert connection.requests == [Request(1, PATH, None, b"abcdef"), Request(3, PATH, None, b"abcdef")]


def test_gzip_is_undone() -> None:
    connection = connected()
    framed = grpc.message(gzip.compress(b"plain"), compressed=True)
    connection.receive(head(1, (b"grpc-encoding", b"gzip")) + data(1, framed, end=True))
    assert connection.requests == [Request(1, PATH, None, b"plain")]


TOO_LONG = grpc.message(gzip.compress(bytes(LIMIT + 1), mtime=0), compressed=True)


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ([], b"\0\0\0\0", grpc.INTERNAL),
        ([], b"", grpc.INTERNAL),
        ([], grpc.message(b"a") + grpc.message(b"b"), grpc.INTERNAL),
        ([], b"\2" + grpc.message(b"a")[1:], grpc.INTERNAL),
        ([], grpc.message(bytes(LIMIT + 1)), grpc.RESOURCE_EXHAUSTED),
        ([(b"grpc-encoding", b"gzip")], TOO_LONG, grpc.RESOURCE_EXHAUSTED),
        ([(b"grpc-encoding", b"gzip")], grpc.message(b"no gzip", compressed=True), grpc.INTERNAL),
        ([(b"grpc-encoding", b"snappy")], grpc.message(b"?", compressed=True), grpc.UNIMPLEMENTED),
        ([], grpc.message(b"?", compressed=True), grpc.UNIMPLEMENTED),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_request_that_cannot_be_read_is_answered(
    fields: list[headers.Header], body: bytes, code: int, pieces: int
) -> None:
    connection = connected()
    if pieces == 1:
        connection.receive(head(1, *fields) + data(1, body, end=True))
    else:
        connection.receive(head(1, *fields) + data(1, body))
        connection.receive(data(1, b"", end=True))
    fields_told = ended(sent(connection))
    assert (int(fields_told[b"grpc-status"]), connection.requests, connection.idle) == (code, [], True)
    assert (fields_told.get(b"grpc-accept-encoding") is not None) == (code == grpc.UNIMPLEMENTED)


def test_a_request_without_a_body_is_answered() -> None:
    connection = connected()
    connection.receive(head(1, end=True))
    assert status(sent(connection)) == grpc.INTERNAL


@pytest.mark.parametrize("length", [LIMIT + 1, 2**32 - 1])
def test_a_request_that_will_be_too_long_is_answered_at_once(length: int) -> None:
    connection = connected()
    connection.receive(head(1) + data(1, b"\0" + length.to_bytes(4, "big")))
    frames = sent(connection)
    assert status(frames) == grpc.RESOURCE_EXHAUSTED
    assert frames[-1] == (http2.RST_STREAM, 0, 1, bytes(4))
    connection.receive(data(1, b"more") + data(1, b"", end=True))
    assert (sent(connection), connection.requests, connection.idle) == ([], [], True)


@pytest.mark.parametrize(
    ("fields", "http_status"),
    [
        ([(b":method", b"GET"), TYPE], b"405"),
        ([(b":method", b"POST")], b"415"),
        ([(b":method", b"POST"), (b"content-type", b"application/json")], b"415"),
        ([(b":method", b"POST"), (b"content-type", b"application/grpcx")], b"415"),
    ],
)
@pytest.mark.parametrize("end", [False, True])
def test_what_is_no_grpc_gets_an_http_status(fields: list[headers.Header], http_status: bytes, end: bool) -> None:
    connection = connected()
    connection.receive(head(1, fields=fields, end=end))
    frames = sent(connection)
    assert ended(frames) == {b":status": http_status}
    assert [frame[0] for frame in frames] == [http2.HEADERS, *([] if end else [http2.RST_STREAM])]


@pytest.mark.parametrize("content_type", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_the_forms_of_the_content_type_are_known(content_type: bytes) -> None:
    connection = connected()
    connection.receive(head(1, fields=[*HEAD[:3], (b"content-type", content_type)]) + data(1, bytes(5), end=True))
    assert len(connection.requests) == 1


def test_a_cancel_is_told_once_and_only_of_requests_that_were_handed_out() -> None:
    connection = connected()
    connection.receive(head(1) + request(3) + request(5))
    connection.answer(5, b"")
    connection.receive(b"".join(http2.rst_stream(stream, http2.CANCEL) for stream in (1, 3, 3, 5)))
    assert (connection.cancelled, connection.idle) == ([3], True)
    sent(connection)
    connection.answer(3, b"late")
    connection.tell(3, b"late")
    assert sent(connection) == []


def test_more_streams_than_may_be_open_are_refused() -> None:
    connection = connected()
    connection.receive(b"".join(head(1 + 2 * number) for number in range(STREAMS + 1)))
    last = 1 + 2 * STREAMS
    assert sent(connection) == [(http2.RST_STREAM, 0, last, b"\0\0\0\x07")]
    connection.receive(http2.rst_stream(1, http2.CANCEL) + request(last + 2))
    assert [asked.stream for asked in connection.requests] == [last + 2]


def test_a_flood_of_resets_keeps_nothing() -> None:
    connection = connected()
    for number in range(1, 2000, 2):
        connection.receive(request(number) + http2.rst_stream(number, http2.CANCEL))
        connection.requests.clear()
    assert (connection.idle, len(connection.cancelled), connection._kept) == (True, 1000, 0)


def test_requests_that_are_too_long_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KEPT_BYTES", 1500)
    connection = connected()
    connection.receive(head(1) + data(1, grpc.message(bytes(900))[:900]))
    connection.receive(head(3) + data(3, grpc.message(bytes(900))[:900]))
    assert (status(sent(connection)), KEPT_BYTES > 1500) == (grpc.RESOURCE_EXHAUSTED, True)
    connection.receive(http2.rst_stream(1, http2.CANCEL) + request(5, bytes(900)))
    assert len(connection.requests) == 1
    zipped = grpc.message(gzip.compress(bytes(900)), compressed=True)
    connection.receive(head(7, (b"grpc-encoding", b"gzip")) + data(7, zipped, end=True))
    assert (status(sent(connection)), len(connection.requests)) == (grpc.RESOURCE_EXHAUSTED, 1)


# Answers.


def test_an_answer_on_the_wire() -> None:
    connection = connected()
    connection.receive(request(1))
    assert not connection.idle
    connection.answer(1, b"told")
    first, body, last = sent(connection)
    assert (first[:3], headers.read(first[3])) == ((http2.HEADERS, http2.END_HEADERS, 1), ANSWER)
    assert body == (http2.DATA, 0, 1, grpc.message(b"told"))
    assert last[:3] == (http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1)
    assert headers.read(last[3]) == [(b"grpc-status", b"0")]
    assert connection.idle


def test_several_messages_and_a_status() -> None:
    connection = connected()
    connection.receive(request(1))
    connection.tell(1, b"a")
    connection.tell(1, b"b")
    connection.end(1, grpc.UNAVAILABLE, "späte 100%")
    connection.end(1, grpc.OK, "")
    frames = sent(connection)
    assert [frame[3] for frame in frames if frame[0] == http2.DATA] == [grpc.message(b"a"), grpc.message(b"b")]
    assert ended(frames) == {b"grpc-status": b"14", b"grpc-message": b"sp%C3%A4te 100%25"}


def test_a_status_alone_is_one_block() -> None:
    connection = connected()
    connection.receive(request(1))
    connection.end(1, grpc.NOT_FOUND, "none")
    [frame] = sent(connection)
    assert headers.read(frame[3]) == [*ANSWER, (b"grpc-status", b"5"), (b"grpc-message", b"none")]


def test_an_answer_that_is_too_long_is_a_status() -> None:
    connection = connected()
    connection.receive(request(1))
    connection.answer(1, bytes(LIMIT + 1))
    assert status(sent(connection)) == grpc.RESOURCE_EXHAUSTED


def test_an_answer_waits_for_the_windows_and_its_end_for_it() -> None:
    connection = connected()
    connection.receive(http2.settings({http2.INITIAL_WINDOW_SIZE: 7}) + request(1) + request(3))
    sent(connection)
    connection.answer(1, b"told")
    assert [frame[0] for frame in sent(connection)] == [http2.HEADERS, http2.DATA]
    connection.answer(1, b"again")
    connection.receive(data(1, b"late", end=True) + head(1, end=True))
    assert (sent(connection), connection.idle) == ([], False)
    connection.receive(http2.window_update(1, 2))
    assert [frame[3] for frame in sent(connection)] == [b"ld", headers.build([(b"grpc-status", b"0")])]
    assert connection._kept == len(b"asked"), "the other one is still open"
    connection.answer(3, b"")
    assert connection.idle


def test_a_client_that_takes_no_answers_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KEPT_BYTES", 1500)
    connection = connected()
    connection.receive(http2.settings({http2.INITIAL_WINDOW_SIZE: 0}) + request(1) + request(3))
    connection.answer(1, bytes(900))
    sent(connection)
    connection.answer(3, bytes(900))
    assert sent(connection)[-1] == (http2.RST_STREAM, 0, 3, b"\0\0\0\x0b")
    connection.receive(http2.rst_stream(1, http2.CANCEL))
    assert (connection.idle, connection._kept, connection.cancelled) == (True, 0, [])


def test_a_client_that_makes_too_many_frames_wait_is_refused() -> None:
    connection = connected()
    connection.outlet.overfull = True
    with pytest.raises(WireError, match="wait"):
        connection.receive(b"")


# The farewell.


def test_after_goaway_new_calls_are_let_pass_and_open_ones_answered() -> None:
    connection = connected()
    connection.receive(request(1))
    connection.leave()
    connection.leave()
    assert sent(connection) == [(http2.GOAWAY, 0, 0, b"\0\0\0\x01" + bytes(4))]
    connection.receive(request(3))
    connection.answer(1, b"")
    assert (len(connection.requests), status(sent(connection)), connection.idle) == (1, grpc.OK, True)
