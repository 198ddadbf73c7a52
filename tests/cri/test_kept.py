"""What is kept of a peer is bounded, and a peer that breaks the protocol is told (fault matrix X1)."""

import weakref
from collections.abc import Callable, Iterator

import pytest

from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import Excess
from runtimeproxy.errors import WireError
from runtimeproxy.wire.flow import QUEUED_FRAMES
from tests.cri.peer import (
    CREATE,
    PREFACE,
    PULL,
    REPLY,
    TRAILERS,
    VERSION,
    Credit,
    Data,
    Frame,
    GoAway,
    Headers,
    Play,
    Raw,
    Reset,
    Settings,
    block,
    continuation,
    greeted,
    grpc,
    raw_headers,
)

VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)


def streams(count: int, fragment: bytes = VERSION_BLOCK) -> Iterator[tuple[int, bytes]]:
    """Yield so many new streams: the id, and the frame that opens it."""
    for stream in range(1, 2 * count, 2):
        yield stream, raw_headers(stream, fragment)


# ---- What is kept of a peer


@pytest.mark.parametrize("fragment", [VERSION_BLOCK, CREATE_BLOCK], ids=["passing", "held"])
def test_a_connection_has_no_more_streams_than_the_limit(fragment: bytes) -> None:
    play = greeted()
    for _, opened in streams(bounds.OPEN_STREAMS, fragment):
        play.client.sends(opened)
        play.runtime.got_bytes()
    with pytest.raises(Excess) as raised:
        play.client.sends(raw_headers(2 * bounds.OPEN_STREAMS + 1, fragment))
    assert raised.value.kind == "open_streams"


def test_no_more_streams_are_open_than_the_limit_before_the_settings_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtimeproxy.cri.reader.OPEN_STREAMS", 3)
    play = Play()
    play.client.sends(PREFACE, Settings(), *[Headers(stream, VERSION) for stream in (1, 3, 5)])
    with pytest.raises(Excess):
        play.client.sends(Headers(7, VERSION))


def test_a_request_counts_as_held_until_its_call_is_over() -> None:
    """It is kept until then, whether it has left or waits for the runtime's credit."""
    play = greeted()
    play.runtime.sends(Settings(((4, 0),)))
    for stream in (1, 3, 5):
        play.client.sends(Headers(stream, CREATE), Data(stream, grpc(bytes(95)), end=True))
    answered, cancelled, lost = play.events.calls
    for call in play.events.calls:
        assert call.release(b"x" * 500)
    play.runtime.sends(Credit(1, 505), Headers(1, TRAILERS, end=True))
    play.client.sends(Reset(3, 8))
    assert play.held_bytes.count == 300
    answered.answer()
    assert play.held_bytes.count == 300, "its Post hooks may be told still"
    answered.free()
    assert play.held_bytes.count == 200
    cancelled.free()
    assert play.held_bytes.count == 100
    play.reader.closed()
    lost.free()
    assert play.held_bytes.count == 0


def test_a_request_that_has_not_been_released_counts_no_more_when_its_connection_has_ended() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(bytes(95))[:50]))
    play.client.sends(Headers(3, CREATE), Data(3, grpc(bytes(95)), end=True))
    assert play.held_bytes.count == 150
    play.reader.client_gone()
    assert play.held_bytes.count == 0


def test_of_the_header_fields_only_those_that_count_are_kept() -> None:
    play = greeted()
    long = (b"x-long", b"v" * 16_000)
    play.client.sends(Headers(1, (*CREATE, (b"grpc-timeout", b"1S"), long)))
    (held,) = play.reader.held
    assert held.fields == {b"content-type": b"application/grpc", b"grpc-timeout": b"1S"}


@pytest.mark.parametrize(
    "frames",
    [
        [Headers(1, ((b"x", bytes(5_000)),), end=True)],
        [raw_headers(1, b"\x82", whole=False), *[Raw(9, 0, 1).wire()] * 10, Raw(9, 4, 1).wire()],
    ],
    ids=["bytes", "frames"],
)
def test_trailers_of_a_held_request_are_not_kept_at_length(frames: list[Frame | bytes]) -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE))
    with pytest.raises(Excess, match="trailers of a held call"):
        play.client.sends(*frames)


@pytest.mark.parametrize(
    "frame", [Data(1, b"x"), Data(1, bytes(16_384)), Headers(1, REPLY)], ids=["one", "all", "head"]
)
def test_an_answer_that_comes_before_its_request_was_sent_is_not_kept_at_length(frame: Frame) -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE))
    with pytest.raises(Excess) as raised:
        play.runtime.sends(*[frame] * 3_000)
    assert raised.value.kind == "early_reply"


def test_an_image_service_that_has_not_said_how_many_streams_it_takes_gets_so_many() -> None:
    play = greeted(image_apart=True)
    for _, opened in streams(bounds.IMAGE_STREAMS_UNTIL_TOLD, block(PULL)):
        play.client.sends(opened)
    assert play.client.got_bytes() == b""
    last = 2 * bounds.IMAGE_STREAMS_UNTIL_TOLD + 1
    play.client.sends(Headers(last, PULL))
    assert play.client.got() == [Reset(last, 7)]


def test_a_client_without_a_window_gets_nothing_and_few_frames_are_kept() -> None:
    """The runtime sends the smallest DATA there are, far less than the pair's window allows."""
    play = Play().greet(client=Settings(((4, 0),)))
    play.client.sends(Headers(1, VERSION))
    play.runtime.sends(Data(1, b"x").wire() * (2**16 - 1))
    play.client.got_bytes()
    play.runtime.sends(Data(1, b"x").wire() * QUEUED_FRAMES)
    assert play.client.got_bytes() == b""
    with pytest.raises(Excess, match="too many frames wait"):
        play.runtime.sends(Data(1, b"x"))


# ---- Telling the peer


@pytest.mark.parametrize("client", [True, False])
def test_the_peer_that_broke_the_protocol_is_told(client: bool) -> None:
    play = greeted()
    play.client.sends(Headers(5, VERSION))
    play.runtime.got()
    play.reader.leave(client, 0xB, "too much")
    told = [GoAway(5 if client else 0, 0xB, b"too much")]
    assert (play.client.got(), play.runtime.got()) == ((told, []) if client else ([], told))


def test_the_last_stream_that_is_told_counts_image_calls_and_never_rises() -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, VERSION), Headers(3, PULL))
    play.reader.leave(True, 1, "")
    assert play.client.got() == [GoAway(3, 1)]
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.runtime.sends(GoAway(1))
    play.client.got()
    play.reader.leave(True, 1, "")
    assert play.client.got() == [GoAway(1, 1)]


def before_settings(play: Play) -> None:
    play.client.sends(PREFACE)


def inside_data(play: Play) -> None:
    play.greet()
    play.runtime.sends(Data(1, bytes(100)).wire()[:50])
    play.client.got_bytes()


@pytest.mark.parametrize("prepare", [before_settings, inside_data])
def test_nobody_is_told_where_no_frame_may_stand(prepare: Callable[[Play], None]) -> None:
    play = Play()
    prepare(play)
    play.reader.leave(True, 1, "broken")
    assert play.client.got_bytes() == b""


# ---- Header blocks that cost much to read


@pytest.mark.parametrize(
    ("fragment", "problem"),
    [
        pytest.param(b"\xbe" * 60_000, "cannot be decoded", id="HPACK bomb"),
        pytest.param(b"\x20" * 60_000, "too many table size updates", id="size updates"),
        pytest.param(b"\x3f\xe1\x1f\x20\x20\x82", "too many table size updates", id="three of them"),
        pytest.param(b"\x3f", "cannot be decoded", id="size update cut"),
        pytest.param(b"\x82" * 1_000, "too many fields", id="fields"),
    ],
)
def test_a_block_that_costs_much_to_decode_ends_the_connection(fragment: bytes, problem: str) -> None:
    play = Play()
    big = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
    play.client.sends(PREFACE, Settings(), raw_headers(1, VERSION_BLOCK + big))
    pieces = [fragment[at : at + 16_384] for at in range(0, len(fragment), 16_384)]
    more = [continuation(3, piece, whole=False) for piece in pieces[1:]]
    with pytest.raises(WireError, match=problem):
        play.client.sends(raw_headers(3, pieces[0], whole=False), *more, continuation(3, b""))


# ---- What is left behind


class Listener:
    """Stands for a call, which its task and its stream keep."""

    def told(self) -> None:
        """Take whatever happened."""


def refused(play: Play) -> None:
    play.call.refuse(7, "no")


def answered(play: Play) -> None:
    play.call.release(None)
    play.runtime.sends(Headers(1, REPLY), Data(1, grpc(b"")), Headers(1, TRAILERS, end=True))
    play.call.answer()


def cancelled(play: Play) -> None:
    play.client.sends(Reset(1, 8))


@pytest.mark.parametrize("end", [refused, answered, cancelled])
def test_a_stream_whose_call_is_over_keeps_nobody(end: Callable[[Play], None]) -> None:
    """Thousands of calls that keep themselves would wait for the garbage collector."""
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"m"), end=True))
    listener = Listener()
    play.call.on_reply = play.call.on_ended = listener.told
    there = weakref.ref(listener)
    del listener
    end(play)
    assert there() is None
