"""The frame layout, and one peer's sender (relay-rules A3, A4, A8); hyperframe is the oracle and parses what is sent.

Also header blocks that stand alone (relay-rules A1, A2; hpack is the oracle), and gRPC's framing, deadlines and texts.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import hyperframe.frame as oracle
import pytest
from hpack import Decoder, Encoder, HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hyperframe.exceptions import HyperframeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import JOINED_BYTES, grpc, headers, http2
from runtimeproxy.wire.headers import AmbiguousPath, Blocks, Header
from runtimeproxy.wire.http2 import CREDIT_STEP, MERGED_BYTES, PAIR_WINDOW, QUEUED_BYTES, FlowControlledSender
from tests.amounts import examples

Patch = pytest.MonkeyPatch
LONGEST = http2.DEFAULT_FRAME_SIZE
STREAMS = st.integers(1, http2.MAX_STREAM_ID)


def parse(data: bytes) -> Iterator[Any]:
    """Yield each frame of a series of complete frames, as hyperframe's class of its type."""
    at = 0
    while at < len(data):
        frame, length = oracle.Frame.parse_frame_header(memoryview(data[at : at + http2.HEAD_BYTES]), strict=True)
        at += http2.HEAD_BYTES + length
        assert at <= len(data), "the last frame is cut"
        frame.parse_body(memoryview(data[at - length : at]))
        yield frame


def clear_frames(out: list[bytes]) -> list[Any]:
    frames = list(parse(b"".join(out)))
    out.clear()
    return frames


BUILT: list[tuple[bytes, oracle.Frame]] = [
    (http2.frame(http2.PING, http2.ACK, 0, b"12345678"), oracle.PingFrame(0, b"12345678", flags=["ACK"])),
    (http2.frame(http2.DATA, http2.END_STREAM, 5), oracle.DataFrame(5, flags=["END_STREAM"])),
    (http2.frame(http2.DATA, 0, 5, b"x" * 70_000), oracle.DataFrame(5, b"x" * 70_000)),
    (http2.window_update(0, 983_041), oracle.WindowUpdateFrame(0, 983_041)),
    *((http2.rst_stream(9, code), oracle.RstStreamFrame(9, code)) for code in (http2.CANCEL, http2.REFUSED_STREAM)),
    (http2.goaway(http2.MAX_STREAM_ID, http2.NO_ERROR, b"why"), oracle.GoAwayFrame(0, 2**31 - 1, 0, b"why")),
    (http2.settings({http2.HEADER_TABLE_SIZE: 0, 0x99: 7}), oracle.SettingsFrame(0, {1: 0, 0x99: 7})),
    (http2.SETTINGS_ACK, oracle.SettingsFrame(0, flags=["ACK"])),
]


def test_frames_are_built_like_hyperframe_and_read_up_to_limit() -> None:
    assert [built for built, _ in BUILT] == [expected.serialize() for _, expected in BUILT]
    assert http2.read_u32(b"x\xff\xff\xff\xff", 1) == 2**31 - 1, "without the reserved bit"
    with pytest.raises(WireError, match="too short"):
        http2.read_u32(b"x123", 1)
    for buffer, limit in ((http2.FrameBuffer(20), 20), (http2.FrameBuffer(), 16_384)):
        longest = (http2.DATA, 0, 2**31 + 5, bytes(limit))
        assert buffer.feed(http2.frame(*longest)) == [(http2.DATA, 0, 5, bytes(limit))]
        with pytest.raises(WireError, match="longer than the receiver allows"):
            buffer.feed(http2.frame(http2.DATA, 0, 1, bytes(limit + 1))[: http2.HEAD_BYTES])


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("size", [0, 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1])
def test_header_block_is_split_into_continuations(size: int, end: bool) -> None:
    block = bytes(place % 251 for place in range(size))
    frames = list(parse(http2.header_frames(3, block, end)))
    more = max(0, size - 1) // LONGEST
    assert [frame.data for frame in frames] == [block[at * LONGEST : (at + 1) * LONGEST] for at in range(more + 1)]
    assert [frame.type for frame in frames] == [http2.HEADERS] + [http2.CONTINUATION] * more
    assert ["END_HEADERS" in frame.flags for frame in frames] == [False] * more + [True]
    assert ["END_STREAM" in frame.flags for frame in frames] == [end] + [False] * more
    assert {frame.stream_id for frame in frames} == {3}


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
    if prefix:
        with pytest.raises(WireError, match="too short"):
            http2.split_block(framed[3], framed[4] & ~http2.PADDED, prefix[:-1])


@given(st.binary(max_size=30), st.integers(0, 40))
def test_padding_is_removed_like_hyperframe(payload: bytes, padding: int) -> None:
    framed, theirs = bytes((padding,)) + payload, oracle.DataFrame(1, flags=["PADDED"])
    assert http2.unpad(framed, http2.END_STREAM) is framed
    try:
        theirs.parse_body(memoryview(framed))
    except HyperframeError:
        with pytest.raises(WireError, match="padding"):
            http2.unpad(framed, http2.PADDED)
    else:
        assert http2.unpad(framed, http2.PADDED) == theirs.data


FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), STREAMS, st.binary(max_size=30)), max_size=6)


@given(FRAMES, st.lists(st.integers(1, 40), max_size=30))
def test_frames_are_collected_from_any_split(frames: list[tuple[int, int, int, bytes]], chunks: list[int]) -> None:
    stream = b"".join(http2.frame(*frame) for frame in frames)
    buffer, received, at = http2.FrameBuffer(), [], 0
    for chunk in [*chunks, len(stream)]:
        received += buffer.feed(stream[at : at + chunk])
        at += chunk
    assert received == frames


PING = http2.frame(http2.PING, 0, 0, b"injected")
TRAILERS = http2.header_frames(1, b"\x88", True)


def started(*waiting: int) -> FlowControlledSender:
    """Return a sender that has sent its SETTINGS; a byte of each ``waiting`` stream waits for its window."""
    sender = FlowControlledSender()
    sender.start()
    sender.out.clear()
    for stream in waiting:
        sender.window = 0
        sender.send_data(stream, b"x", False, None, 0)
    return sender


def data_of(sender: FlowControlledSender) -> list[tuple[int, int, bool]]:
    """Return (stream, length, END_STREAM) of each ready DATA frame, and clear what is ready."""
    return [(frame.stream_id, len(frame.data), "END_STREAM" in frame.flags) for frame in clear_frames(sender.out)]


def test_ping_acks_wait_for_other_frames() -> None:
    sender = FlowControlledSender()
    sender.acks.append(PING)
    sender.acknowledge()
    assert (sender.out, sender.waiting) == ([], True), "nothing precedes the first SETTINGS"
    sender.start()
    sender.start()
    assert len(sender.out) == 1, "the window is opened once"
    sender.out.clear()
    sender.cut_through = True
    sender.acknowledge()
    assert (sender.out, sender.waiting) == ([], True)
    sender.inject(PING)
    sender.boundary()
    assert (sender.out, sender.waiting) == ([PING, PING], False)
    sender.acks.append(PING)
    assert (len(sender.out), sender.waiting) == (2, True)
    sender.acknowledge()
    assert (len(sender.out), sender.waiting) == (3, False)


def test_lower_settings_apply_immediately_and_higher_after_ack() -> None:
    sender = started()
    sender.stream_windows[1] = 0
    sender.send_data(1, bytes(100_000), True, None, 0)
    assert sum(length for _, length, _ in data_of(sender)) == http2.DEFAULT_WINDOW
    sender.open_window(1 << 20)
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 90_000), (http2.MAX_FRAME_SIZE, 20_000), (0x99, 1)])
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 80_000)])
    assert (sender.initial_window, sender.max_frame, sender.frame_limit) == (65_535, 16_384, 20_000)
    assert not sender.widened
    sender.settings_acknowledged()
    assert (sender.initial_window, sender.max_frame, sender.widened) == (80_000, 20_000, True)
    sender.settings_acknowledged()
    sender.settings_acknowledged()  # an ACK without SETTINGS
    sender.catch_up()
    assert data_of(sender) == [(1, 80_000 - 65_535, False)]
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 0)])
    assert (sender.initial_window, sender.widened) == (0, False)
    sender = started()
    sender.send_data(5, b"free", True, None, 0)
    sender.window = 0
    for stream in (1, 3):
        sender.send_data(stream, bytes(20_000), True, None, 0)
    sender.open_window(100_000)  # the streams are sent round robin
    assert data_of(sender) == [(5, 4, True), (1, 16_384, False), (3, 16_384, False), (1, 3616, True), (3, 3616, True)]


Send = Callable[[FlowControlledSender, int], None]
BOUNDS: dict[str, tuple[Send, int]] = {
    "frames of all streams": (lambda sender, at: sender.send_frame((1, 3)[at % 2], b""), http2.QUEUED_FRAMES - 3),
    "bytes without credit": (lambda sender, at: sender.send_frame(3, bytes(QUEUED_BYTES // 4 if at < 4 else 1)), 4),
    "own frames": (lambda sender, _: sender.inject(PING), http2.QUEUED_FRAMES),
    "SETTINGS without their ACK": (lambda sender, _: sender.settings_announced([]), 100 - 1),
}


@pytest.mark.parametrize(("send", "most"), BOUNDS.values(), ids=BOUNDS)
def test_queued_frames_are_bounded(send: Send, most: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(http2, "QUEUED_SETTINGS", 100)
    sender = started(1, 3)
    sender.send_frame(5, b"is not queued")
    sender.send_frame(5, bytes(QUEUED_BYTES), 100)  # flow-controlled
    sender.cut_through = True
    for number in range(most):
        send(sender, number)
    assert not sender.overfull
    send(sender, most)
    assert sender.overfull


@pytest.mark.parametrize("forget", ["drop", "forget_window", "drop_all"])
def test_sent_or_dropped_frames_are_not_counted(forget: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(http2, "QUEUED_FRAMES", 100)
    sender = started(1)
    for _ in range(3):
        sender.send_frame(1, bytes(QUEUED_BYTES // 2))
        sender.open_window(1)
        sender.send_data(1, b"x", False, None, 0)
    for size in (*[QUEUED_BYTES] * 3, *[0] * 100):
        sender.send_frame(1, bytes(size))
        getattr(sender, forget)(*(() if forget == "drop_all" else (1,)))
        sender.send_data(1, b"x", False, None, 0)
    assert not sender.overfull


@pytest.mark.parametrize("increment", [1, 2**31 - 1])
def test_window_above_limit_is_refused(increment: int) -> None:
    sender, most = started(), http2.MAX_WINDOW - http2.DEFAULT_WINDOW
    sender.stream_windows[1] = 0
    sender.open_window(most)
    sender.open_stream_window(1, most)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.open_window(increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.open_stream_window(1, increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.DEFAULT_WINDOW + 1)])
    sender.forget_window(1)  # a stream that has ended no longer counts
    sender.stream_windows[3] = 0
    sender.open_stream_window(3, 1)
    sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW - 1)])
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW)])
    with pytest.raises(WireError, match="WINDOW_UPDATE of 0"):
        sender.open_window(0)


def test_full_connection_window_is_credited_in_steps() -> None:
    sender, passing = started(), started()
    for _ in range(CREDIT_STEP // 1024):
        passing.relayed(1024)
    assert (passing.out, passing.outstanding) == ([http2.window_update(0, CREDIT_STEP)], 0)
    sender.received(PAIR_WINDOW)
    sender.credit(CREDIT_STEP)
    sender.received(CREDIT_STEP)
    for count in (sender.received, sender.relayed):
        with pytest.raises(WireError, match="above the connection window"):
            count(1)


def test_short_queued_data_of_one_source_is_merged() -> None:
    source, sender = started(), started(1)
    for _ in range(2 * MERGED_BYTES // 64):
        sender.send_data(1, b"y" * 64, False, source, 64)
        sender.send_data(1, b"", False, source, 0)
    sender.send_data(1, b"z", True, source, CREDIT_STEP)
    sender.send_data(3, bytes(MERGED_BYTES), False, None, 0)
    assert len(sender.queues[1]) == 4
    sender.open_window(1 + MERGED_BYTES)
    assert data_of(sender) == [(1, 1, False), (3, MERGED_BYTES, False)]
    sender.open_window(100_000)
    assert data_of(sender) == [(1, MERGED_BYTES, False), (1, MERGED_BYTES, False), (1, 1, True)]
    assert [frame.window_increment for frame in clear_frames(source.out)] == [CREDIT_STEP + 2 * MERGED_BYTES]
    sender = started(1)
    sender.send_data(1, b"of another source", False, source, 0)
    sender.send_frame(1, TRAILERS)
    sender.send_data(1, b"after whole frames", True, None, 0)
    sender.send_data(1, b"after the end", True, None, 0)
    assert len(sender.queues[1]) == 5


WHOLE = 3_000
"""Bytes of a frame on stream 5, which is never split; the windows of 1 and 3 are hop by hop."""
KINDS = ["data", "data", "data", "window", "stream window", "settings", "cut"]
ACTIONS = st.tuples(st.sampled_from(KINDS), st.sampled_from([1, 3, 5]), st.sampled_from([1, WHOLE, 100_000]))
FINAL_ACTIONS = [("boundary", 1, 0), *(("stream window", stream, 2**24) for stream in (1, 3)), ("window", 1, 2**24)]


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(ACTIONS, max_size=60))
def test_data_arrive_in_order_within_windows(actions: list[tuple[str, int, int]]) -> None:
    sender, source, window, given, returned = started(), started(), http2.DEFAULT_WINDOW, 0, 0
    sender.stream_windows.update({1: 0, 3: 0})
    initial, windows = window, {1: window, 3: window, 5: 2**31}
    sent, arrived = ({stream: bytearray() for stream in windows} for _ in range(2))
    for kind, stream, size in [*actions, *FINAL_ACTIONS]:
        match kind:
            case "data" if given - returned + size <= PAIR_WINDOW and (stream != 5 or size == WHOLE):
                payload = bytes((given + place) % 251 for place in range(size))
                given += size
                sent[stream] += payload
                source.received(size)
                if stream == 5:
                    sender.send_frame(stream, http2.frame(http2.DATA, 0, stream, payload), size, source)
                else:
                    sender.send_data(stream, payload, False, source, size)
            case "window":
                window += size
                sender.open_window(size)
            case "stream window":  # ignored on stream 5
                windows[stream] += size
                sender.open_stream_window(stream, size)
            case "settings":
                windows |= {stream: windows[stream] + size - initial for stream in (1, 3)}
                initial = size
                sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, size)])
                sender.catch_up()
            case "cut" if not sender.cut_through:
                sender.cut_through = True
            case "cut" | "boundary" if sender.cut_through:
                sender.boundary()
        assert not sender.cut_through or not sender.out
        for frame in clear_frames(sender.out):
            arrived[frame.stream_id] += frame.data
            window -= len(frame.data)
            windows[frame.stream_id] -= len(frame.data)
            assert windows[frame.stream_id] >= 0
        assert window == sender.window >= 0
        returned += sum(frame.window_increment for frame in clear_frames(source.out))
        for stream, data in arrived.items():
            assert sent[stream].startswith(data)
            blocked = sender.cut_through or windows[stream] <= 0 or window < (WHOLE if stream == 5 else 1)
            assert blocked or data == sent[stream], "DATA wait without a reason"
    assert arrived == sent
    assert not sender.congested
    assert given - returned == source.outstanding < CREDIT_STEP


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
UNFIT: list[tuple[bytes, bytes, int, str]] = [
    *((grpc.message(b"ab")[:size], b"", LIMIT, "exactly one whole") for size in (0, 4, 6)),
    *((grpc.message(b"ab") + following, b"", LIMIT, "exactly one whole") for following in (b"c", grpc.message(b"ab"))),
    *((flag + bytes(4), b"", LIMIT, "flag") for flag in (b"\2", b"\xff")),
    (grpc.message(bytes(LIMIT + 1)), b"", LIMIT, LONG),
    *((packed(gzip.compress(bytes(size), mtime=0)), b"gzip", limit, LONG) for size, limit in SIZES),
    *((packed(PACKED), encoding, LIMIT, "unknown compression") for encoding in (b"", b"identity", b"deflate")),
    *((packed(body), b"gzip", LIMIT, "is broken") for body in (zlib.compress(b"body"), PACKED[:-8] + bytes(8))),
    *((packed(body), b"gzip", LIMIT, "one gzip member") for body in (b"", PACKED[:-1], PACKED + b"x", PACKED * 2)),
]


@pytest.mark.parametrize(("framed", "encoding", "limit", "problem"), UNFIT, ids=lambda value: repr(value)[:40])
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


CALL = b"/runtime.v1.RuntimeService/RunPodSandbox"
huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
NAMES = st.one_of(st.sampled_from([name for name, _ in HeaderTable.STATIC_TABLE]), st.binary(min_size=1, max_size=12))
FIELDS = st.one_of(st.sampled_from(HeaderTable.STATIC_TABLE), st.tuples(NAMES, st.binary(max_size=200)))
MARKED = st.lists(st.builds(lambda field, sensitive: (*field, sensitive), FIELDS, st.booleans()), max_size=8)
"""Header fields, each with whether it is sensitive, so that it must never be indexed."""
Marked = list[tuple[bytes, bytes, bool]]


def decode(block: bytes, strict: bool = False) -> list[Header]:
    """Return the fields decoded by a peer whose table is 0; a strict one requires a size update (RFC 7541, 4.2)."""
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    if not strict:
        decoder.header_table_size = 0
    return list(decoder.decode(block, raw=True))


def string(text: bytes, coded: bool = False) -> bytes:
    raw = huffman(text) if coded else text
    return bytes((len(raw) | coded << 7,)) + raw


def find_path(block: bytes) -> bytes:
    return headers.path(headers.walk(block))


@given(MARKED, st.booleans(), st.booleans())
def test_standalone_block_is_read_like_hpack(fields: Marked, coded: bool, updated: bool) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    block = encoder.encode(fields, huffman=coded)
    block = block if updated else block.removeprefix(b"\x20")
    assert headers.read(block) == decode(block) == [field[:2] for field in fields]
    headers.check(block)


REFUSED = {
    "dynamic table": [b"\x80", b"\xbe", b"\xff\x00", b"\x7f\x00\x01v", b"\x0f\x2f\x01v", b"\x1f\x2f\x01v"],
    "inside a header block": [b"\x82\x20"],
    "above the limit": [b"\x21", b"\x20\x3f\xe1\x1f"],
    "too long": [b"\xff\x80\x80\x80\x80\x00"],
    "ends inside a field": [b"\xff", b"\xff\x80", b"\x3f", b"\x04", b"\x00", b"\x00\x01n", b"\x04\x7f"],
    "runs over the end": [b"\x04\x02v", b"\x00\x05name"],
}


@pytest.mark.parametrize(("problem", "blocks"), REFUSED.items())
def test_block_that_is_not_standalone_is_refused(problem: str, blocks: list[bytes]) -> None:
    for block, reader in product(blocks, (headers.check, headers.read, find_path)):
        with pytest.raises(WireError, match=problem) as caught:
            reader(block)
        assert not isinstance(caught.value, AmbiguousPath)
    broken = b"\x00" + string(b"n") + b"\x81\x00"
    headers.check(broken)
    with pytest.raises(WireError, match="Huffman"):
        headers.read(broken)


NAMED = [b"\x04", b"\x05", b"\x44", b"\x15", b"\x00" + string(b":path"), b"\x40" + string(b":path")]
NAMED += [b"\x00" + string(b":path", coded=True), b"\x10" + string(b":path", coded=True)]
"""The name of a path: index 4 or 5, a literal, as Huffman; not indexed, indexed or never indexed."""
PATHS = [(name + string(CALL, coded), CALL) for name in NAMED for coded in (False, True)]


@pytest.mark.parametrize(("block", "path"), [*PATHS, (b"\x84", b"/"), (b"\x85", b"/index.html")])
def test_path_is_found_in_every_encoding(block: bytes, path: bytes) -> None:
    around = b"\x20\x83" + block + b"\x00" + string(b"path", coded=True) + string(b"/other")
    assert find_path(around) == path
    with pytest.raises(AmbiguousPath, match="2 :path"):
        find_path(around + block)


def test_path_without_slash_gets_one_and_none_is_ambiguous() -> None:
    """As grpc-go accepted it (CVE-2026-33186)."""
    for path in (CALL[1:], b"", b"*"):
        assert find_path(b"\x04" + string(path)) == b"/" + path
    for block in (b"", b"\x20", b"\x83\x86", b"\x00" + string(b":Path") + string(CALL)):
        with pytest.raises(AmbiguousPath, match="0 :path"):
            find_path(block)


LENGTHS = [0, 126, 127, 128, 254, 255, 127 + 128**2, 127 + 128**2 - 1]
"""Values at which an integer needs one byte more (RFC 7541, 5.1)."""


@given(st.lists(FIELDS, max_size=8))
@example([(b"x" * min(size or 1, 255), b"v" * size) for size in LENGTHS])
def test_built_block_is_read_by_strict_peer(fields: list[Header]) -> None:
    block = headers.build(fields)
    assert decode(block, strict=True) == fields == headers.read(block)


@given(st.lists(st.tuples(MARKED, st.none() | st.integers(0, 4096), st.booleans()), max_size=6))
def test_block_before_ack_is_rebuilt_for_any_encoder(sent: list[tuple[Marked, int | None, bool]]) -> None:
    blocks, encoder, oracle = Blocks(), Encoder(), Decoder()
    for fields, table_size, coded in sent:
        if table_size is not None:
            encoder.header_table_size = table_size
        original = encoder.encode(fields, huffman=coded)
        block = blocks.mark(blocks.translate(original))
        there, here = list(oracle.decode(original, raw=True)), decode(block)
        assert here == there == [field[:2] for field in fields] == headers.read(block)
        assert [*map(type, here)] == [*map(type, there)], "a field that is never to be indexed stays one"
        assert block[:1] == b"" or block[0] < 0x20, "no size update, nothing indexed"
    assert not blocks.standalone


def test_broken_block_before_ack_is_refused() -> None:
    """So is one that repeats a reference too often."""
    broken = [b"\x82\x20", b"\x3f\xe2\x1f", b"\xc0", b"\x00", b"\x04\x81\x00", b"\x00\x05nam"]
    for block in (*broken, b"\x3f", b"\x3f\xe1", b"\x20\x3f"):
        with pytest.raises(WireError, match="cannot be decoded"):
            Blocks().translate(block)
        with pytest.raises(HPACKDecodingError):
            Decoder().decode(block)
    blocks, value = Blocks(), b"v" * 4_000
    blocks.translate(b"\x40\x01k\x7f\xa1\x1e" + value)
    assert len(blocks.translate(b"\xbe" * 16)) > 16 * len(value)
    with pytest.raises(WireError, match="cannot be decoded"):
        blocks.translate(b"\xbe" * 17)


@pytest.mark.parametrize("block", [b"\x83", b"\x20\x83"])
def test_first_block_after_each_ack_starts_with_one_size_update(block: bytes) -> None:
    blocks = Blocks()
    translated = blocks.translate(b"\x83")
    for _ in range(2):
        blocks.acknowledge()
        assert not blocks.standalone
        first = blocks.mark(blocks.translate(block))
        assert (first, blocks.standalone) == (b"\x20\x83", True)
        assert decode(first, strict=True) == [(b":method", b"POST")]
        assert blocks.mark(blocks.translate(block)) is block, "later ones are not touched"
    blocks.acknowledge()
    assert blocks.mark(translated) == b"\x20" + translated, "also one that was translated before"


@pytest.mark.parametrize("field", [b"\x82", b"\x00\x01a\x01b", b"\x20"])
def test_block_with_too_many_fields_is_refused(field: bytes) -> None:
    new, acknowledged = Blocks(), Blocks()
    acknowledged.acknowledge()
    for blocks in (acknowledged,) if field == b"\x20" else (new, acknowledged):
        assert blocks.translate(field * headers.FIELDS_LIMIT)
        with pytest.raises(WireError, match="too many fields"):
            blocks.translate(field * (headers.FIELDS_LIMIT + 1))
    for updates in (b"\x20\x3f\xe1\x1f", b"\x3f\xe1\x1f"):
        assert Blocks().translate(updates + b"\x82") == b"\x02\x03GET"
        with pytest.raises(WireError, match="too many table size updates"):
            Blocks().translate(updates + b"\x20\x20" + b"\x82")
