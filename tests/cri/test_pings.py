"""PINGs go hop by hop while the other peer is heard of, and end to end once it is silent (relay-rules A9)."""

import pytest

from runtimeproxy.cri.direction import ACKS_AT_ONCE, ALIVE_SECONDS
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
    Settings,
    Side,
    block,
    continuation,
    greeted,
    grpc,
    raw_headers,
)

ASKED, ACKNOWLEDGED = Ping(b"12345678"), Ping(b"12345678", ack=True)
SIDES = pytest.mark.parametrize("from_client", [True, False], ids=["client", "runtime"])


def sides(play: Play, from_client: bool) -> tuple[Side, Side]:
    """Return who sends PINGs, and the other one."""
    return (play.client, play.runtime) if from_client else (play.runtime, play.client)


def numbered(count: int, ack: bool = False) -> list[Ping]:
    return [Ping(b"%08d" % number, ack) for number in range(count)]


# ---- hop by hop


def test_a_ping_beside_a_held_call_is_acknowledged_with_what_its_sender_is_sent_next() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"create"), end=True))
    play.runtime.got()
    play.client.sends(ASKED)
    play.runtime.sends(Ping(b"runtime!"))
    assert play.client.got() == play.runtime.got() == []
    play.call.release(None)
    assert play.runtime.got() == [Data(1, grpc(b"create"), end=True), Ping(b"runtime!", ack=True)]
    answer: list[Frame] = [Headers(1, REPLY), Data(1, grpc(b"")), Headers(1, TRAILERS, end=True)]
    play.runtime.sends(*answer)
    assert play.client.got() == [*answer[:2], ACKNOWLEDGED]
    play.call.answer()
    assert play.client.got() == answer[2:]


@SIDES
def test_acks_leave_in_the_order_of_their_pings(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    peer.sends(*numbered(3))
    other.sends(Credit(1, 1))
    assert peer.got() == [Credit(1, 1), *numbered(3, ack=True)]
    assert other.got() == []


@SIDES
def test_acks_that_nobody_asked_for_pass(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    for _ in range(2):
        peer.sends(ACKNOWLEDGED)
        assert other.got() == [ACKNOWLEDGED]
    other.sends(ASKED)
    assert peer.got() == [], "they make up for no PING that passes later"


# ---- where a frame of ours may stand


@SIDES
def test_acks_stand_behind_a_frame_that_is_cut_through(from_client: bool) -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.got()
    peer, other = sides(play, from_client)
    frame = Data(1, bytes(100)).wire()
    other.sends(frame[:50])
    peer.sends(ASKED)
    assert peer.got_bytes() == frame[:50]
    other.sends(frame[50:70])
    assert peer.got_bytes() == frame[50:70]
    other.sends(frame[70:] + frame[:20])
    assert peer.got_bytes() == frame[70:] + ACKNOWLEDGED.wire() + frame[:20]


@SIDES
def test_acks_stand_outside_of_header_blocks(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    fields = block(VERSION if not from_client else REPLY)
    other.sends(raw_headers(1, fields[:3], whole=False))
    peer.sends(ASKED)
    other.sends(continuation(1, fields[3:6], whole=False))
    assert peer.got_bytes() == b""
    other.sends(continuation(1, fields[6:]))
    assert [type(frame) for frame in peer.got()] == [Headers, Ping]


def test_acks_stand_behind_the_first_settings() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings())
    settings = Settings().wire()
    play.runtime.sends(settings[:5])
    play.client.sends(ASKED)
    assert play.client.got_bytes() == b""
    play.runtime.sends(settings[5:])
    assert play.client.got() == [Settings(((1, 0),)), OPENED, ACKNOWLEDGED]
    assert play.runtime.got() == [Settings(((1, 0),)), OPENED]


# ---- end to end


@SIDES
def test_a_ping_to_a_peer_that_is_silent_passes_and_its_ack_comes_back(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    play.now = ALIVE_SECONDS - 0.001
    peer.sends(ASKED)
    assert other.got() == []
    play.now = ALIVE_SECONDS
    peer.sends(Ping(b"are you?"))
    assert other.got() == [Ping(b"are you?")]
    other.sends(Ping(b"are you?", ack=True))
    assert peer.got() == [ACKNOWLEDGED, Ping(b"are you?", ack=True)], "ACKs keep their order"
    peer.sends(ASKED)
    assert other.got() == [], "it has been heard of"


def test_a_ping_to_a_runtime_that_has_not_said_a_word_passes() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(), ASKED)
    assert play.runtime.got() == [Settings(((1, 0),)), OPENED, ASKED]


@SIDES
def test_behind_a_ping_that_passes_others_pass_until_it_is_acknowledged(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    play.now = ALIVE_SECONDS
    first, second, third = numbered(3)
    peer.sends(first)
    other.sends(Credit(1, 1))
    peer.sends(second)
    assert other.got() == [first, second]
    other.sends(Ping(first.payload, ack=True))
    peer.sends(third)
    assert other.got() == [third], "or the second one would be acknowledged after the third"
    other.sends(Ping(second.payload, ack=True), Ping(third.payload, ack=True))
    assert peer.got() == [Credit(1, 1), *numbered(3, ack=True)]


@SIDES
def test_behind_a_goaway_pings_pass(from_client: bool) -> None:
    """A server that leaves asks by one whether its GOAWAY has arrived, and takes no more calls once that is so."""
    play = greeted()
    peer, other = sides(play, from_client)
    peer.sends(ASKED, GoAway(2**31 - 1), Ping(b"arrived?"))
    assert other.got() == [GoAway(2**31 - 1), Ping(b"arrived?")]
    other.sends(Ping(b"arrived?", ack=True))
    assert peer.got() == [ACKNOWLEDGED, Ping(b"arrived?", ack=True)]
    peer.sends(ASKED)
    assert other.got() == [ASKED]


@SIDES
@pytest.mark.parametrize(
    "odd", [Raw(6, 0, 0, b"1234567"), Raw(6, 0, 0, b"123456789"), Raw(6, 0, 1, b"12345678")], ids=repr
)
def test_what_is_no_ping_by_the_rfc_is_for_its_receiver_to_refuse(odd: Raw, from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    peer.sends(odd)
    assert other.got_bytes() == odd.wire()


# ---- floods


@SIDES
def test_of_a_flood_a_few_acks_wait_and_the_rest_passes(from_client: bool) -> None:
    play = greeted()
    peer, other = sides(play, from_client)
    flood = numbered(100)
    peer.sends(*flood)
    assert other.got() == flood[ACKS_AT_ONCE:]
    assert peer.got() == []
    other.sends(*numbered(100, ack=True)[ACKS_AT_ONCE:])
    assert peer.got() == numbered(100, ack=True)
    peer.sends(ASKED)
    assert other.got() == []


def test_an_ack_of_settings_counts_as_a_word_of_the_runtime() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings())
    play.runtime.sends(Settings(), Ack())
    play.runtime.got()
    play.client.sends(ASKED)
    assert play.runtime.got() == []
