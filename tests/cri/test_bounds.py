"""A peer that breaks the protocol gets GOAWAY and its connection ends; buffered data of a peer are bounded.

relay-rules A1, A3, A8; fault matrix X1.
"""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import Excess
from runtimeproxy.errors import WireError
from runtimeproxy.relay.connection import Connection
from tests.cri import peer
from tests.cri.peer import VERSION, Ack, Credit, Data, GoAway, Headers, Ping, Raw, Reset, Settings, client, runtime
from tests.cri.test_front import Scene

HELD, TRAILERS = Headers(1, peer.CREATE), Headers(1, peer.TRAILERS)
CREDIT_BYTES = 13
"""Length of a WINDOW_UPDATE, which answers each part of a held request."""


READS = [([False] * 3, False), ([False] * 4, True), ([False, False, False, True] * 3, False)]


@pytest.mark.parametrize(("delivered", "ended"), READS, ids=["up to the limit", "beyond it", "read in between"])
async def test_unread_answers_end_connection(
    monkeypatch: pytest.MonkeyPatch, delivered: list[bool], ended: bool
) -> None:
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 3 * (CREDIT_BYTES + bounds.OVERHEAD_BYTES))
    scene = await Scene().greet()
    await scene.send(scene.client, HELD)
    for is_delivered in delivered:
        monkeypatch.setattr(Connection, "delivered", is_delivered)
        await scene.send(scene.client, Data(1, b"x"))
    broken = scene.metrics.counted("connections_broken", side="client", kind="unread")
    has_ended = scene.ended()
    scene.close()
    assert (has_ended, broken) == (ended, int(ended))


def frame_of(length: int, kind: int = 0xEE) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, 0)) + bytes(4)


CUT = peer.raw_headers(1, peer.block(VERSION), end_headers=False)
PAD = b"\x00\x01a\x7f\xe1\x7f" + b"v" * 16_352  # one literal field of 16,358 bytes
FULL = Data(1, bytes(16_384))
CUT_TRAILERS = peer.raw_headers(1, b"\x82", end_headers=False), *[Raw(9, 0, 1)] * 10, Raw(9, 4, 1)
OPEN, TAKES_MORE = peer.Greets(), peer.Greets(runtime=Settings(((5, 2**21),)))

BROKEN: dict[str, tuple[list[peer.Act], str]] = {
    "frame too long": ([OPEN, client(frame_of(16_385))], "frame_size: frame is longer than the receiver"),
    "CONTINUATION first": ([OPEN, client(peer.continuation(1, b""))], "protocol: .*CONTINUATION out of place"),
    "PING inside": ([OPEN, client(CUT, Ping(bytes(8)))], "CONTINUATION out of place"),
    "other stream": ([OPEN, client(CUT, peer.continuation(3, b""))], "another stream"),
    "64 KiB": ([OPEN, client(CUT, *[peer.continuation(1, PAD, False)] * 5)], "header_block: .*too long"),
    "512 frames": ([OPEN, client(CUT, *[peer.continuation(1, b"", False)] * 512)], "header_block: .*too long"),
    "padding of held DATA": ([OPEN, client(HELD), client(Raw(0, 0x8, 1, b"\x02x"))], "padding"),
    "RST_STREAM cut": ([OPEN, client(Raw(3, 0, 1, b"123"))], "too short"),
    "WINDOW_UPDATE of 0 cut": ([OPEN, client(Raw(8, 0, 0, b"123"))], "WINDOW_UPDATE of a wrong length"),
    "no credit": ([OPEN, client(Credit(0, 0))], "WINDOW_UPDATE of 0"),
    "too much credit": ([OPEN, client(Credit(0, 2**31 - 1))], "above 2"),
    "SETTINGS out of range": ([OPEN, client(Settings(((5, 100),)))], "MAX_FRAME_SIZE"),
    "index above 61 after the ACK": ([OPEN, client(peer.raw_headers(1, b"\xbe"))], "dynamic table"),
    # 1 MiB of DATA waits, but for the 65,535 bytes that the runtime's window allows
    "above the window": ([OPEN, client(Headers(1, VERSION), *[FULL] * 64, Data(1, b"x"))], "above the connection wind"),
    "no SETTINGS, ACK": ([client(peer.PREFACE, Ack())], "not SETTINGS"),
    "no SETTINGS, HEADERS": ([client(peer.PREFACE, Headers(1, VERSION))], "not SETTINGS"),
    "no SETTINGS, DATA": ([client(peer.PREFACE, Data(1, b"x"))], "not SETTINGS"),
    # by their heads
    "long unknown frame": ([TAKES_MORE, client(frame_of(65_536 + 262))], "longer than what is collected"),
    "long HEADERS": ([TAKES_MORE, client(frame_of(65_536 + 262, kind=1))], "longer than what is collected"),
    "long DATA": ([TAKES_MORE, client(frame_of(2**20 + 1, kind=0))], "longer than what is collected"),
    "DATA that the receiver does not take": ([TAKES_MORE, client(frame_of(2**21 + 1, kind=0))], "than the receiver"),
    # what is buffered
    "frames that wait": ([OPEN, runtime(*[FULL] * 4), runtime(*[TRAILERS] * 16_384)], "queue: too many frames wait"),
    "trailers of a held call": (
        [OPEN, client(HELD), client(Headers(1, ((b"x", bytes(5_000)),), True))],
        "header_block",
    ),
    "frames of its trailers": ([OPEN, client(HELD), client(*CUT_TRAILERS)], "header_block"),
    "early DATA of one byte": ([OPEN, client(HELD), runtime(*[Data(1, b"x")] * 3_000)], "early_reply"),
    "early DATA": ([OPEN, client(HELD), runtime(*[FULL] * 3_000)], "early_reply"),
    "early headers": ([OPEN, client(HELD), runtime(*[Headers(1, peer.REPLY)] * 3_000)], "early_reply"),
}


@pytest.mark.parametrize(("acts", "problem"), BROKEN.values(), ids=BROKEN)
def test_broken_protocol_or_excess_ends_connection(acts: list[peer.Act], problem: str) -> None:
    play = peer.Play()
    for act in acts[:-1]:
        act(play)
    with pytest.raises(WireError) as raised:
        acts[-1](play)
    assert re.search(problem, f"{bounds.classify(raised.value)[0]}: {raised.value}")


def test_frames_before_invalid_frame_pass() -> None:
    play = peer.Play().greet()
    play.runtime.sends(Headers(3, peer.REPLY))
    play.client.got()
    with pytest.raises(WireError):
        play.runtime.sends(Headers(1, peer.REPLY), Data(1, b"answer"), TRAILERS, frame_of(16_385))
    assert len(play.client.got()) == 3


FRAMES = st.builds(
    Raw, st.integers(0, 10), st.integers(0, 0x3F), st.sampled_from([0, 1, 3, 0x8000_0001]), st.binary(max_size=40)
)


@given(st.lists(st.tuples(FRAMES | st.binary(max_size=200), st.booleans()), max_size=20), st.booleans())
def test_random_frames_raise_only_wire_errors(frames: list[tuple[Raw | bytes, bool]], separate_image: bool) -> None:
    play = peer.Play(separate_image).greet()
    play.client.sends(Headers(1, peer.CREATE))
    with suppress(WireError):
        for frame, from_client in frames:
            (play.client if from_client else play.runtime).sends(frame)


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("fields", [VERSION, peer.CREATE], ids=["passing", "held"])
def test_open_streams_are_bounded(fields: peer.Fields, acknowledged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimeproxy.cri.reader.OPEN_STREAMS", 3)
    play = peer.Play().greet() if acknowledged else peer.Play()
    play.client.sends(*[peer.PREFACE, Settings()] * (not acknowledged), *[Headers(at, fields) for at in (1, 3, 5)])
    with pytest.raises(Excess) as raised:
        play.client.sends(Headers(7, fields))
    assert raised.value.kind == "open_streams"


def test_image_streams_are_limited_before_settings() -> None:
    play, last = peer.Play(separate_image=True).greet(), 2 * bounds.IMAGE_STREAMS_UNTIL_SETTINGS + 1
    play.client.sends(*[Headers(stream, peer.PULL) for stream in range(1, last, 2)])
    assert play.client.received_bytes() == b""
    play.client.sends(Headers(last, peer.PULL))
    assert play.client.got() == [Reset(last, 7)]


@pytest.mark.parametrize(("faulty", "last"), [("client", 3), ("runtime", 0)])
def test_goaway_to_faulty_peer_has_last_stream_id(faulty: str, last: int) -> None:
    """Image calls count."""
    play = peer.Play(separate_image=True).greet()
    play.client.sends(Headers(1, VERSION), Headers(3, peer.PULL))
    play.runtime.got()
    play.reader.send_goaway(faulty == "client", 0xB, "too much")
    goaway, other_peer = getattr(play, faulty), play.runtime if faulty == "client" else play.client
    assert (goaway.got(), other_peer.got()) == ([GoAway(last, 0xB, b"too much")], [])


@pytest.mark.parametrize("inside", [False, True], ids=["before SETTINGS", "inside DATA"])
def test_goaway_is_not_sent_where_frames_are_illegal(inside: bool) -> None:
    play = peer.Play().greet() if inside else peer.Play()
    (play.runtime if inside else play.client).sends(Data(1, bytes(100)).wire()[:50] if inside else peer.PREFACE)
    play.client.received_bytes()
    play.reader.send_goaway(True, 1, "broken")
    assert play.client.received_bytes() == b""
