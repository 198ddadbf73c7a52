"""What just passes: header tables, paths, windows, refused requests (relay-rules A1 to A4)."""

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from runtimeproxy.cri import reader as reader_module
from runtimeproxy.cri.held import HeldStream
from runtimeproxy.cri.reader import AMBIGUOUS
from runtimeproxy.cri.routes import HELD, Route
from runtimeproxy.errors import WireError
from runtimeproxy.hookpoints import UNRECORDED
from tests.cri.peer import (
    CREATE,
    OPENED,
    PREFACE,
    PULL,
    REPLY,
    TRAILERS,
    VERSION,
    Ack,
    Credit,
    Data,
    Fields,
    Frame,
    Headers,
    Play,
    Raw,
    Reset,
    Settings,
    block,
    greeted,
    grpc,
    raw_headers,
    refusal,
)

# ---- A1: header tables


def test_a1_the_table_size_is_0_in_every_passing_settings_and_its_own_entries_are_gone() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(((1, 4096), (3, 9), (1, 0), (0xAA, 7))))
    play.runtime.sends(Settings(((1, 100),)), Settings())
    assert play.runtime.got()[0] == Settings(((3, 9), (0xAA, 7), (1, 0)))
    assert play.client.got() == [Settings(((1, 0),)), OPENED, Settings(((1, 0),))]


def test_a1_before_the_ack_blocks_are_decoded_and_built_anew_without_indexing() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings())
    play.runtime.got_bytes()
    encoder = Encoder()
    secret = NeverIndexedHeaderTuple(b"authorization", b"hidden")
    fields: Fields = (*VERSION, (b"x", b"y"), secret)
    first, second = encoder.encode(list(fields)), encoder.encode(list(fields))
    assert len(second) < len(first)
    play.client.sends(raw_headers(1, b"\x3f\xe1\x1f" + first), raw_headers(3, second))
    data = play.runtime.got_bytes()
    half = len(data) // 2
    assert data[9:half] == data[half + 9 :]
    stripped = Decoder()
    stripped.max_allowed_table_size = stripped.header_table_size = 0
    decoded = stripped.decode(data[9:half], raw=True)
    assert tuple(decoded) == fields
    assert [type(field) is NeverIndexedHeaderTuple for field in decoded] == [*[False] * (len(fields) - 1), True]


def test_a1_after_the_ack_an_index_above_61_ends_the_connection() -> None:
    play = Play()
    encoder = Encoder()
    encoder.encode([(b"x", b"y")])
    play.client.sends(PREFACE, Settings(), Ack())
    with pytest.raises(WireError, match="dynamic table"):
        play.client.sends(raw_headers(1, block(VERSION) + encoder.encode([(b"x", b"y")])))


def test_a1_the_first_block_after_each_ack_starts_with_a_size_update_and_all_others_are_the_same_bytes() -> None:
    play = greeted()
    whole = block(VERSION)
    play.client.sends(raw_headers(1, whole), raw_headers(3, whole))
    assert play.runtime.got_bytes() == raw_headers(1, b"\x20" + whole) + raw_headers(3, whole)
    play.client.sends(Ack(), raw_headers(5, b"\x20" + whole), raw_headers(7, whole))
    assert play.runtime.got_bytes() == Ack().wire() + raw_headers(5, b"\x20" + whole) + raw_headers(7, whole)
    play.client.sends(Ack(), raw_headers(9, whole))
    assert play.runtime.got_bytes() == Ack().wire() + raw_headers(9, b"\x20" + whole)


def test_a1_a_peer_that_announced_a_table_of_0_sees_the_update_though_the_block_that_had_it_was_dropped() -> None:
    play = greeted()
    play.events.may_pass = False
    play.client.sends(raw_headers(1, b"\x20\x83", end=True))
    play.client.sends(Headers(3, VERSION))
    play.runtime.decoder.max_allowed_table_size = 0
    assert play.runtime.got() == [Headers(3, VERSION)]


@pytest.mark.parametrize("congested", [True, False], ids=["behind a queue", "inside a DATA frame"])
def test_a1_a_block_that_may_yet_be_dropped_is_not_the_one_that_counts(congested: bool) -> None:
    play = greeted()
    play.runtime.decoder.max_allowed_table_size = 0
    call = _held_call(play)
    play.runtime.got()
    play.runtime.sends(Headers(1, TRAILERS, end=True))
    play.runtime.sends(*[Data(3, bytes(16_384))] * 4 if congested else [Data(3, bytes(100)).wire()[:50]])
    call.answer()
    play.client.sends(Reset(1, 8))
    play.client.got_bytes()
    if congested:
        play.client.sends(Credit(0, 100_000))
        play.client.got()
    else:
        play.runtime.sends(bytes(59))
        play.client.got_bytes()
    play.runtime.sends(raw_headers(5, block(TRAILERS), end=True))
    assert play.client.got_bytes() == raw_headers(5, b"\x20" + block(TRAILERS), end=True)


def _held_call(play: Play) -> HeldStream:
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"m"), end=True))
    play.call.release(None)
    return play.call


# ---- A2: the path

STAND_INS = {
    "index 4": b"\x04",
    "index 5": b"\x05",
    "literal name": b"\x00\x05:path",
    "Huffman name": b"\x00\x84\xb9\x58\xd3\x3f",
    "incremental": b"\x44",
    "never indexed": b"\x14",
}


@pytest.mark.parametrize("name", STAND_INS.values(), ids=STAND_INS.keys())
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a2_a_held_method_is_recognised_however_its_path_is_written(name: bytes, acknowledged: bool) -> None:
    play = greeted() if acknowledged else Play()
    if not acknowledged:
        play.client.sends(PREFACE, Settings())
    path = dict(CREATE)[b":path"]
    rest = block([field for field in CREATE if field[0] != b":path"])
    play.client.sends(raw_headers(1, rest + name + bytes((len(path),)) + path), Data(1, grpc(b"m")))
    assert play.call.message == b"m"


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize(
    "fields", [(*VERSION, VERSION[2]), (*CREATE, VERSION[2]), VERSION[:2], ((b":method", b"GET"),)], ids=repr
)
def test_a2_none_or_two_paths_pass_or_are_refused_as_the_front_says(fields: Fields, acknowledged: bool) -> None:
    play = greeted()
    if acknowledged:
        play.client.sends(Headers(1, VERSION, end=True))
        play.runtime.got()
    play.client.sends(Headers(3, fields))
    assert play.runtime.got() == [Headers(3, fields)]
    play.events.may_pass = False
    play.client.sends(Headers(5, fields, end=True), Headers(7, fields), Data(7, b"dropped"))
    assert play.runtime.got() == []
    text = AMBIGUOUS.encode()
    answers = [Headers(5, refusal(13, text), end=True), Headers(7, refusal(13, text), end=True), Reset(7, 0)]
    assert play.client.got() == answers


@pytest.mark.parametrize("route", HELD.items(), ids=lambda route: route[0].decode())
def test_a_call_that_changes_no_record_passes_where_nobody_is_asked(route: tuple[bytes, Route]) -> None:
    path, held = route
    play = greeted()
    fields = [(name, path if name == b":path" else value) for name, value in CREATE]
    play.events.unrecorded_pass = True
    for stream in (1, 3):  # the second block is one index each
        play.client.sends(Headers(stream, fields), Data(stream, grpc(b"m"), end=True))
    passes = held.operation in UNRECORDED
    assert [call.stream for call in play.events.calls] == ([] if passes else [1, 3])
    assert (Data(3, grpc(b"m"), end=True) in play.runtime.got()) is passes
    play.events.unrecorded_pass = False
    play.client.sends(Headers(5, fields), Data(5, grpc(b"m"), end=True))
    assert play.events.calls[-1].stream == 5


# ---- A3: connection windows


def test_a3_each_side_gets_1_mib_once_after_its_first_settings() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(), Settings())
    assert play.runtime.got() == [Settings(((1, 0),)), OPENED, Settings(((1, 0),))]
    assert play.client.got() == []
    play.runtime.sends(Settings(), Settings())
    assert play.client.got() == [Settings(((1, 0),)), OPENED, Settings(((1, 0),))]


def test_a3_a_window_update_of_the_connection_never_passes() -> None:
    play = greeted()
    play.client.sends(Credit(0, 5))
    play.runtime.sends(Credit(0, 6))
    assert play.client.got() == play.runtime.got() == []


def test_a3_credit_is_given_for_what_has_left_with_its_padding_in_steps() -> None:
    play = greeted()
    frames = [Data(1, bytes(16_128), pad=255)] * 16
    assert sum(len(frame.wire()) - 9 for frame in frames) == 2**18
    play.client.sends(Headers(1, VERSION), *frames)
    assert play.client.got() == []
    play.runtime.sends(Credit(0, 2**18 - 65_536))
    assert play.client.got() == []
    play.runtime.sends(Credit(0, 1))
    assert play.client.got() == [Credit(0, 2**18)]


def test_a3_a_window_is_used_up_by_what_is_cut_through() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), *[Data(1, bytes(16_384))] * 3, Data(1, bytes(16_383)), Data(1, b"late"))
    assert play.runtime.got()[-1] == Data(1, bytes(16_383))
    play.runtime.sends(Credit(0, 4))
    assert play.runtime.got() == [Data(1, b"late")]


# ---- A4: stream windows of passing streams


def test_a4_credit_of_a_passing_stream_passes() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Credit(1, 7))
    play.runtime.sends(Credit(1, 8))
    assert play.runtime.got() == [Headers(1, VERSION), Credit(1, 7)]
    assert play.client.got() == [Credit(1, 8)]


def test_streams_of_methods_that_nobody_has_a_stake_in_pass_both_ways() -> None:
    play = greeted()
    play.client.sends(
        Headers(1, VERSION), Data(1, grpc(b"q")), Headers(1, TRAILERS, end=True), Headers(3, PULL, end=True)
    )
    asked = [Headers(1, VERSION), Data(1, grpc(b"q")), Headers(1, TRAILERS, end=True), Headers(3, PULL, end=True)]
    assert play.runtime.got() == asked
    answer: list[Frame] = [
        Headers(1, REPLY),
        Data(1, grpc(b"a")),
        Headers(1, TRAILERS, end=True),
        Headers(3, TRAILERS, end=True),
    ]
    play.runtime.sends(*answer)
    assert play.client.got() == answer
    assert not play.reader.open


@pytest.mark.parametrize(
    "end", [Data(1, b"", True), Data(1, b"12", True), Reset(1, 8), Headers(1, TRAILERS, end=True)], ids=repr
)
@pytest.mark.parametrize("congested", [True, False])
def test_a_stream_is_open_until_the_runtime_ends_it(end: Data | Reset | Headers, congested: bool) -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION, end=True), Headers(3, VERSION), Data(3, b"x", True))
    play.runtime.sends(Headers(1, REPLY), Headers(3, REPLY), *[Data(3, bytes(16_384))] * (4 * congested))
    assert set(play.reader.open) == {1, 3}
    play.runtime.sends(end)
    assert set(play.reader.open) == {3}
    play.client.sends(Reset(3, 8))
    assert not play.reader.open


def test_before_the_ack_trailers_pass_too() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(), Headers(1, VERSION), Headers(1, TRAILERS, end=True))
    assert play.runtime.got()[2:] == [Headers(1, VERSION), Headers(1, TRAILERS, end=True)]


def test_trailers_that_come_after_the_runtime_ended_the_stream_harm_nobody() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.sends(Headers(1, TRAILERS, end=True))
    play.client.sends(Headers(1, TRAILERS, end=True))
    assert play.runtime.got() == [Headers(1, VERSION), Headers(1, TRAILERS, end=True)]
    play.client.sends(Headers(3, CREATE), Data(3, grpc(b"m"), end=True))
    play.call.release(None)
    play.runtime.sends(Headers(3, TRAILERS, end=True))
    play.call.answer()
    play.client.sends(Headers(3, TRAILERS, end=True))
    assert play.runtime.got()[-1] == Headers(3, TRAILERS, end=True)


def test_ended_streams_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "RETIRED_LIMIT", 2)
    play = greeted()
    play.events.may_pass = False
    for stream in (1, 3, 5):
        play.client.sends(Raw(1, 0x4, stream, b"\x83"))
    play.client.sends(Reset(1, 8), Reset(3, 8))
    assert play.runtime.got() == [Reset(1, 8)]
    assert sorted(play.reader.streams) == [3, 5]
