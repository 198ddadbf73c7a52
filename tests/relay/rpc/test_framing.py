"""Unary calls on one connection, against a peer that is scripted frame by frame."""

import gzip
from contextlib import suppress

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.relay.rpc.framing import HEADER_LIMIT, CallFailed, Calls, Kind, Outcome, TooLong, Unprocessed
from runtimeproxy.wire import JOINED_BYTES, grpc, headers, http2

LIMIT = 1000
PATH = "/package.Service/Method"
Frame = tuple[int, int, int, bytes]
HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
GOOD_END = [(b"grpc-status", b"0")]


def sent(calls: Calls) -> list[Frame]:
    data = b"".join(calls.out).removeprefix(http2.PREFACE)
    calls.out.clear()
    return http2.FrameBuffer(2**24).feed(data)


def connected(*messages: bytes) -> Calls:
    """Return a connection on which SETTINGS were exchanged, with calls that send these messages."""
    calls = Calls(LIMIT)
    calls.receive(http2.settings({}) + http2.SETTINGS_ACK)
    for message in messages:
        calls.open(PATH, message, 1.0)
    calls.out.clear()
    return calls


def block(stream: int, fields: list[headers.Header], end: bool = False) -> bytes:
    return http2.header_frames(stream, headers.build(fields), end)


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    return http2.frame(http2.DATA, http2.END_STREAM if end else 0, stream, payload)


def answer(stream: int, message: bytes) -> bytes:
    return block(stream, HEAD) + data(stream, grpc.message(message)) + block(stream, GOOD_END, end=True)


def outcome(calls: Calls) -> Outcome:
    ((_, result),) = calls.ended
    calls.ended.clear()
    return result


def test_request_has_expected_frames() -> None:
    settings, window = http2.FrameBuffer().feed(b"".join(Calls(LIMIT).out).removeprefix(http2.PREFACE))
    room = LIMIT + grpc.PREFIX_BYTES + http2.DEFAULT_FRAME_SIZE
    push, table = (0x2, 0), (http2.HEADER_TABLE_SIZE, 0)
    assert http2.read_settings(settings[3]) == [push, (http2.INITIAL_WINDOW_SIZE, room), table]
    assert window == (http2.WINDOW_UPDATE, 0, 0, (2**20 - 65_535).to_bytes(4))
    calls = connected()
    assert calls.open(PATH, b"message", 1.5) == 1
    head, body = sent(calls)
    assert head[:3] == (http2.HEADERS, http2.END_HEADERS, 1)
    fields = b" ".join(b"=".join(field) for field in headers.read(head[3]))
    request = b":method=POST :scheme=http :path=/package.Service/Method :authority=localhost te=trailers"
    assert fields == request + b" content-type=application/grpc user-agent=runtimeproxy grpc-timeout=1500000u"
    assert body == (http2.DATA, http2.END_STREAM, 1, grpc.message(b"message"))


def test_request_waits_for_peer_windows() -> None:
    calls, message = Calls(LIMIT), b"m" * (JOINED_BYTES + 1)
    narrow, wider = (http2.settings({http2.INITIAL_WINDOW_SIZE: size}) for size in (0, 10))
    calls.receive(narrow)
    calls.out.clear()
    calls.open(PATH, message, 1.0)
    calls.receive(wider + narrow)  # the last SETTINGS of a read apply
    assert http2.DATA not in [kind for kind, *_ in sent(calls)]
    calls.receive(wider)
    parts = [frame for frame in sent(calls) if frame[0] == http2.DATA]
    assert sum(len(payload) for *_, payload in parts) == 10
    calls.receive(http2.window_update(1, 2**30) + http2.window_update(0, 2**30))
    parts += sent(calls)
    assert b"".join(payload for *_, payload in parts) == grpc.message(message)
    assert [flags for _, flags, *_ in parts] == [0] * (len(parts) - 1) + [http2.END_STREAM]
    calls = connected(b"m" * 100_000)
    calls.receive(block(1, [*HEAD, (b"grpc-status", b"8")], end=True))  # an early answer cancels the rest
    assert getattr(outcome(calls), "code", 0) == 8
    assert [frame[0] for frame in sent(calls)] == [http2.RST_STREAM]
    calls.receive(http2.window_update(0, 100_000))
    assert calls.out == []


def test_settings_are_acknowledged_and_limit_streams() -> None:
    calls = Calls(LIMIT)
    assert calls.room == 1
    calls.open(PATH, b"", 1.0)
    assert calls.room == 0
    calls.out.clear()
    calls.receive(http2.settings({http2.MAX_FRAME_SIZE: 20_000}))
    assert sent(calls) == [(http2.SETTINGS, http2.ACK, 0, b"")]
    assert (calls.room > 1_000_000, calls.sender.max_frame) == (True, 20_000), "no limit is the default"
    for _ in range(2):
        calls.open(PATH, b"", 1.0)
    calls.receive(http2.settings({http2.MAX_CONCURRENT_STREAMS: 2}) + http2.settings({}))
    assert calls.room == 0
    for stream, room in ((3, 0), (1, 1)):
        calls.cancel(stream)
        assert calls.room == room


def test_header_blocks_are_joined_and_decoded_until_ack() -> None:
    """The server's table is followed until it acknowledged the size of 0; later blocks stand alone."""
    calls, encoder = Calls(LIMIT), Encoder()
    streams = [calls.open(PATH, b"", 1.0) for _ in range(2)]
    calls.receive(http2.settings({}))
    for stream in streams:
        head = encoder.encode(HEAD)
        calls.receive(http2.frame(http2.HEADERS, 0, stream, head[:1]))
        calls.receive(http2.frame(http2.CONTINUATION, http2.END_HEADERS, stream, head[1:]))
        calls.receive(data(stream, REPLY))
    calls.receive(http2.SETTINGS_ACK + b"".join(block(stream, GOOD_END, end=True) for stream in streams))
    assert calls.ended == [(stream, b"ok") for stream in streams]
    with pytest.raises(WireError):
        calls.receive(http2.header_frames(5, encoder.encode(HEAD), end=True))


CUT = http2.frame(http2.HEADERS, 0, 1, headers.build(HEAD))
BROKEN = {
    "lone continuation": (http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1), "out of place"),
    "interleaved": (CUT + http2.frame(http2.DATA, 0, 1, b"x"), "out of place"),
    "other stream": (CUT + http2.frame(http2.CONTINUATION, 0, 3), "another stream"),
    "endless block": (CUT + http2.frame(http2.CONTINUATION, 0, 1) * (HEADER_LIMIT // http2.HEAD_BYTES), "too long"),
    "push": (http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4)), "push is off"),
    "short ping": (http2.frame(http2.PING, 0, 0, b"short"), "PING frame whose length is not 8"),
    "padding": (http2.frame(http2.HEADERS, http2.PADDED | http2.END_HEADERS, 1, b"\x09x"), "padding is longer"),
    "long frame": (http2.frame(http2.DATA, 0, 1, bytes(http2.DEFAULT_FRAME_SIZE + 1)), "longer than the receiver"),
    "long reset": (http2.frame(http2.RST_STREAM, 0, 5, bytes(14)), "RST_STREAM frame whose length is not 4"),
    "ack first": (http2.SETTINGS_ACK, "first frame is not SETTINGS"),
    "long update": (http2.frame(http2.WINDOW_UPDATE, 0, 5, bytes(5)), "length is not 4"),
}


@pytest.mark.parametrize(("received", "problem"), BROKEN.values(), ids=BROKEN)
def test_protocol_error_of_server_is_raised(received: bytes, problem: str) -> None:
    calls = Calls(LIMIT) if "first frame" in problem else connected()
    with pytest.raises(WireError, match=problem):
        calls.receive(received)


def test_cancel_resets_stream_once_and_drops_late_answer() -> None:
    calls = connected(b"")
    calls.cancel(1)
    calls.cancel(1)
    assert sent(calls) == [(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")]
    padding = http2.frame(http2.DATA, http2.PADDED, 1, b"\xff" + bytes(255))
    calls.receive(padding * (http2.CREDIT_STEP // 256 + 1))  # it is credited like data
    calls.receive(block(1, HEAD) + block(1, GOOD_END, end=True) + http2.rst_stream(1, http2.CANCEL))
    calls.receive(http2.frame(0x42, 0, 0, b"of an unknown type"))
    assert (calls.ended, [frame[0] for frame in sent(calls)]) == ([], [http2.WINDOW_UPDATE])


def test_ping_acks_are_delayed_up_to_limit() -> None:
    calls = connected()
    pings = [http2.frame(http2.PING, 0, 0, bytes([number] * 8)) for number in range(Calls.waiting_acks + 1)]
    acks = [http2.frame(http2.PING, http2.ACK, 0, ping[http2.HEAD_BYTES :]) for ping in pings]
    calls.receive(acks[0] + b"".join(pings[:-1]))
    assert (calls.out, calls.acks) == ([], acks[:-1])
    calls.receive(pings[-1])
    assert (calls.out, calls.acks) == (acks, [])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("length", [0, LIMIT, LIMIT + 1])
def test_plain_and_compressed_answer_have_same_limit(length: int, compressed: bool) -> None:
    text, encoding = b"x" * length, b"gzip" if compressed else b"identity"
    body, calls = grpc.message(gzip.compress(text) if compressed else text, compressed=compressed), connected(b"")
    calls.receive(block(1, [*HEAD, (b"grpc-encoding", encoding)]) + data(1, body) + block(1, GOOD_END, end=True))
    assert length > LIMIT or outcome(calls) == text
    assert length <= LIMIT or isinstance(outcome(calls), TooLong)


def status(value: bytes, text: bytes = b"") -> bytes:
    return block(1, [*HEAD, (b"grpc-status", value), (b"grpc-message", text)], end=True)


CANCELLED = [(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")]
REPLY = b"\0\0\0\0\2ok"
BEGUN, ENDED = block(1, HEAD), block(1, GOOD_END, end=True)
NO_STATUS, NOT_ONE = "the answer ends without grpc-status", "not exactly one whole gRPC message"
RESET = "the peer reset the call (HTTP/2 error"
CODES_OF_HTTP = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"503": 14, b"418": 2, b"": 2}
TOO_LONG = (b"\0" + (LIMIT + 1).to_bytes(4), grpc.message(b"x" * LIMIT) + b"x")
NO_GRPC = "HTTP status '{}' in place of an answer"
UNPROCESSED = (http2.rst_stream(1, http2.REFUSED_STREAM), http2.goaway(0, 0))
FAILURES: list[tuple[bytes, int, Kind, str, list[Frame]]] = [
    (status(b"7", b"no%20way%21"), 7, Kind.STATUS, "no way!", []),
    (status(b"7", b"x" * 9000), 7, Kind.STATUS, "x" * 2048, []),
    (status(b"13"), 13, Kind.STATUS, "", []),
    *((status(unknown), 2, Kind.STATUS, "", []) for unknown in (b"17", b"x", b"-1", b"9" * 5000)),
    (status(b"4", b"A=1"), 4, Kind.DEADLINE, "the peer reports that the deadline has expired", []),
    *((received, 13, Kind.BROKEN, NOT_ONE, []) for received in (status(b"0"), BEGUN + ENDED)),
    *((BEGUN + data(1, body) + ENDED, 13, Kind.BROKEN, NOT_ONE, []) for body in (REPLY * 2, REPLY[:-1])),
    (BEGUN + data(1, b"\1" + REPLY[1:]) + ENDED, 13, Kind.BROKEN, "gRPC message in an unknown compression", []),
    (block(1, HEAD, end=True), 13, Kind.BROKEN, NO_STATUS, []),
    (BEGUN + block(1, [(b"x", b"y")], end=True), 13, Kind.BROKEN, NO_STATUS, []),
    (BEGUN + data(1, REPLY, end=True), 13, Kind.BROKEN, NO_STATUS, []),
    (BEGUN + BEGUN, 13, Kind.BROKEN, "the answer has headers after its message", CANCELLED),
    (data(1, b"x"), 13, Kind.BROKEN, "the answer begins without headers", CANCELLED),
    (http2.rst_stream(1, 2), 13, Kind.BROKEN, f"{RESET} 2)", []),
    (http2.frame(http2.RST_STREAM, 0, 1, b"\x88\0\0\1"), 13, Kind.BROKEN, f"{RESET} {0x88000001})", []),
    (block(1, [HEAD[0], (b"content-type", b"text/html")]), 2, Kind.BROKEN, "the answer is not gRPC", CANCELLED),
    *(
        (block(1, [(b":status", value)], end), code, Kind.BROKEN, NO_GRPC.format(value.decode()), after)
        for value, code in CODES_OF_HTTP.items()
        for end, after in ((True, []), (False, CANCELLED))
    ),
    *((BEGUN + data(1, body), 8, Kind.BROKEN, "the answer is longer than 1000 bytes", CANCELLED) for body in TOO_LONG),
    *((it, 14, Kind.UNREACHABLE, "the peer took no more calls on this connection", []) for it in UNPROCESSED),
]
"""The received bytes, the failure of the call, and the sent frames."""


@pytest.mark.parametrize(("received", "code", "kind", "text", "after"), FAILURES)
def test_failure_has_code_kind_and_text(received: bytes, code: int, kind: Kind, text: str, after: list[Frame]) -> None:
    calls = connected(b"")
    calls.receive(received)
    failed = outcome(calls)
    assert isinstance(failed, CallFailed)
    assert (failed.code, failed.kind, failed.text, str(failed), sent(calls)) == (code, kind, text, text, after)
    assert isinstance(failed, Unprocessed) == (kind is Kind.UNREACHABLE)
    assert isinstance(failed, TooLong) == (code == 8)


def test_calls_end_in_any_order_and_above_goaway_unprocessed() -> None:
    framed, calls = grpc.message(b"message"), connected(b"")
    parts = [block(1, HEAD), *(data(1, part) for part in (framed[:3], framed[3:8], framed[8:]))]
    for octet in b"".join([*parts, block(1, GOOD_END, end=True)]):
        calls.receive(bytes((octet,)))
    assert outcome(calls) == b"message", "in any parts"
    calls = connected(b"", b"", b"", b"")
    calls.receive(block(5, [(b":status", b"103"), (b"link", b"x")]))
    calls.receive(answer(5, b"5") + http2.goaway(3, 0) + answer(3, b"3") + answer(1, b"1"))
    assert calls.closing
    _, (stream, unprocessed) = calls.ended[:2]
    assert isinstance(unprocessed, Unprocessed)
    assert [stream, *calls.ended[:1], *calls.ended[2:]] == [7, (5, b"5"), (3, b"3"), (1, b"1")]
    calls = connected()
    calls._next_stream = http2.MAX_STREAM_ID - 2
    calls.open(PATH, b"", 1.0)
    assert not calls.closing
    assert (calls.open(PATH, b"", 1.0), calls.closing) == (http2.MAX_STREAM_ID, True), "stream ids are exhausted"


PAYLOADS = st.binary(max_size=30) | st.sampled_from([headers.build(HEAD), headers.build(GOOD_END), grpc.message(b"x")])
FRAMES = st.builds(http2.frame, st.integers(0, 10), st.integers(0, 255), st.sampled_from([0, 1, 3, 5]), PAYLOADS)


@given(st.lists(FRAMES, max_size=12))
def test_call_ends_at_most_once_for_any_frames(frames: list[bytes]) -> None:
    calls = connected()
    streams = {calls.open(PATH, b"", 1.0) for _ in range(2)}
    with suppress(WireError):
        for frame in frames:
            calls.receive(frame)
    ended = [stream for stream, _ in calls.ended]
    assert len(ended) == len(set(ended))
    assert set(ended) <= streams
