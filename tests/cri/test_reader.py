"""Frames that pass unchanged: header tables, paths, windows, DATA, SETTINGS, PINGs (relay-rules A1 to A4, A8, A9)."""

import pytest
from hpack import Encoder

from runtimeproxy.cri import frame_relay, routes
from runtimeproxy.cri.frame_relay import ACKS_WAITING, ALIVE_SECONDS
from runtimeproxy.cri.reader import AMBIGUOUS
from runtimeproxy.cri.routes import HELD
from runtimeproxy.model.hookpoints import UNRECORDED
from tests.cri import peer
from tests.cri.peer import Ack, Credit, Data, GoAway, Headers, Ping, Raw, Reset, Settings, Step, client, runtime

QUERY, END, END_3 = Headers(1, peer.VERSION), Headers(1, peer.TRAILERS, end=True), Headers(3, peer.TRAILERS, end=True)
FULL, ALL_BUT_ONE = Data(1, bytes(16_384)), Data(1, bytes(16_383))
WINDOW = [FULL, FULL, FULL, ALL_BUT_ONE]
"""DATA that fill a peer's default window."""
BLOCK = peer.block(peer.VERSION)
CALL = peer.grpc(b"m")
HOLD = Step(client(Headers(3, peer.CREATE), Data(3, CALL, end=True)), to_runtime=[Headers(3, peer.CREATE)], hooked=1)
RELEASE = Step(peer.release, to_runtime=[Data(3, CALL, end=True)])
LAST_BLOCK = peer.block(peer.TRAILERS)
LONG, THEIRS = Data(1, bytes(100)).wire(), Ping(b"theirs!!", ack=True).wire()

PASSING: dict[str, list[Step]] = {
    # A1: the first block after each ACK starts with a size update, all others are the same bytes
    "A1: a size update before the first block after an ACK": [
        Step(
            client(peer.raw_headers(1, BLOCK), peer.raw_headers(3, BLOCK)),
            to_runtime=peer.raw_headers(1, b"\x20" + BLOCK) + peer.raw_headers(3, BLOCK),
        ),
        Step(
            client(Ack(), peer.raw_headers(5, b"\x20" + BLOCK), peer.raw_headers(7, BLOCK)),
            to_runtime=Ack().wire() + peer.raw_headers(5, b"\x20" + BLOCK) + peer.raw_headers(7, BLOCK),
        ),
        Step(client(Ack(), peer.raw_headers(9, BLOCK)), to_runtime=Ack().wire() + peer.raw_headers(9, b"\x20" + BLOCK)),
    ],
    "A1: a size update again after a block that waits in a queue": [
        *(HOLD, RELEASE, Step(runtime(END_3))),
        Step(runtime(*[FULL] * 4), to_client=WINDOW),
        Step(peer.answered, to_client=peer.raw_headers(3, b"\x20" + LAST_BLOCK, end=True)),
        Step(client(Credit(0, 100_000)), to_client=[Data(1, b"\0")]),
        Step(runtime(peer.raw_headers(5, LAST_BLOCK)), to_client=peer.raw_headers(5, b"\x20" + LAST_BLOCK)),
    ],
    # A3, A4: windows
    "A3, A4: credit of the connection never passes, that of a passing stream does": [
        *(Step(client(Credit(0, 5))), Step(runtime(Credit(0, 6)))),
        *(peer.passes(QUERY, Credit(1, 7)), peer.returns(Credit(1, 8))),
    ],
    "A3: what is cut through uses up the window": [
        Step(client(QUERY, *WINDOW, Data(1, b"late")), to_runtime=[QUERY, *WINDOW]),
        Step(runtime(Credit(0, 4)), to_runtime=[Data(1, b"late")]),
    ],
    # A8: DATA pass before their frame is complete
    "A8: DATA leave before their frame is whole, a frame of ours waits for its end": [
        *(peer.passes(QUERY), HOLD),
        *(Step(client(part), to_runtime=part) for part in (LONG[:9], LONG[9:12], LONG[12:50])),
        Step(peer.refuse, to_client=[Headers(3, peer.refusal(13, b"no"), end=True)]),
        Step(client(LONG[50:70]), to_runtime=LONG[50:70]),
        Step(client(LONG[70:], THEIRS), to_runtime=LONG[70:] + Reset(3, 8).wire() + THEIRS),
    ],
    "A8: a reset overtakes, and what waited is credited": [
        Step(client(QUERY, *[FULL] * 20), to_runtime=[QUERY, *WINDOW]),
        Step(client(Reset(1, 8)), to_client=[Credit(0, 2**18)], to_runtime=[Reset(1, 8)]),
    ],
    "A8: nothing more reaches a peer that has reset the stream": [
        peer.passes(QUERY),
        Step(runtime(*[FULL] * 5), to_client=WINDOW),
        Step(client(Reset(1, 8), Credit(0, 2**20)), to_runtime=[Reset(1, 8)]),
    ],
    "A8: a reset without an error follows the whole answer": [
        Step(runtime(*[FULL] * 4, END, Reset(1, 0)), to_client=WINDOW),
        Step(client(Credit(0, 1)), to_client=[Data(1, b"\0"), END, Reset(1, 0)]),
    ],
    # A9: PINGs are hop by hop while the other peer was heard recently
    "A9: an ACK leaves with what its sender is sent next": [
        HOLD,
        Step(client(Ping(b"a client"))),
        Step(runtime(Ping(b"runtime!"))),
        Step(peer.release, to_runtime=[Data(3, CALL, end=True), Ping(b"runtime!", ack=True)]),
        Step(runtime(Headers(3, peer.REPLY)), to_client=[Headers(3, peer.REPLY), Ping(b"a client", ack=True)]),
    ],
}

# Before the SETTINGS are exchanged: the preface may come in pieces; the table's size is 0 in all SETTINGS, their own
# entries for it go; a PING to a runtime that has not sent anything passes.
OWN, ZERO = Settings(((1, 4096), (3, 9), (1, 0), (0xAA, 7))).wire(), Settings(((1, 0),))
OPENING = [
    Step(client(peer.PREFACE[:5]), to_runtime=peer.PREFACE[:5]),
    Step(client(peer.PREFACE[5:] + OWN[:3]), to_runtime=peer.PREFACE[5:]),
    Step(client(OWN[3:]), to_runtime=peer.wire(Settings(((3, 9), (0xAA, 7), (1, 0))), peer.OPENED)),
    Step(client(Ping(b"12345678")), to_runtime=Ping(b"12345678").wire()),
    Step(runtime(Settings(((1, 100),)), Settings()), to_client=[ZERO, peer.OPENED, ZERO]),
]


@pytest.mark.parametrize("steps", [*PASSING.values(), OPENING], ids=[*PASSING, "A1, A9: opening"])
def test_passing_conversation_has_these_effects(steps: list[Step]) -> None:
    peer.converse(*steps, play=peer.Play() if steps is OPENING else None)


@pytest.fixture(params=[True, False], ids=["acknowledged", "before the ACK"])
def play(request: pytest.FixtureRequest) -> peer.Play:
    """Return a play with an image service; before the ACK of the client's SETTINGS, or after it and a request."""
    play = peer.Play(separate_image=True)
    if request.param:
        play.greet().client.sends(Headers(1, peer.VERSION, end=True))
    else:
        play.client.sends(peer.PREFACE, Settings())
        play.runtime.sends(Settings())
        play.client.got()
    play.runtime.got()
    play.counters.update(dict.fromkeys(play.counters, 0))
    return play


def counted(play: peer.Play) -> dict[str, int]:
    """Return how many calls passed, by method."""
    return {label: count for (_, (label, *_)), count in play.counters.items() if count}


def test_a1_indexed_fields_before_ack_keep_their_values() -> None:
    """A peer indexes header fields until it has the other side's SETTINGS (promise 4)."""
    frames = [Headers(stream, (*peer.VERSION, (b"x-a", b"1"))) for stream in (1, 3)]
    for sender, receiver, first in (("client", "runtime", [peer.PREFACE]), ("runtime", "client", [])):
        play, encoder = peer.Play(), Encoder()
        blocks = [peer.raw_headers(frame.stream, encoder.encode(frame.fields)) for frame in frames]
        assert len(blocks[1]) < len(blocks[0]), "it is indexed"
        getattr(play, sender).sends(*first, Settings(), *blocks)
        assert getattr(play, receiver).got()[-2:] == frames


def test_a1_push_promise_blocks_are_translated() -> None:
    play = peer.Play()
    pushes = Raw(5, 0x4, 1, b"\x00\x00\x00\x02" + b"\x40\x01a\x01b"), Raw(5, 0x4, 1, b"\x00\x00\x00\x04\xbe")
    play.runtime.sends(Settings(), *pushes)
    frames = [Raw(5, 0x4, 1, bytes((0, 0, 0, promised)) + b"\x00\x01a\x01b").wire() for promised in (2, 4)]
    assert play.client.received_bytes().endswith(b"".join(frames))


TWO_PATHS = [(*fields, peer.VERSION[2]) for fields in (peer.VERSION, peer.CREATE)]
RESTORES = [peer.request(path) for path in sorted(routes.RESTORES)]


@pytest.mark.parametrize("fields", [*TWO_PATHS, peer.VERSION[:2], *RESTORES], ids=repr)
def test_a2_ambiguous_or_restore_passes_or_is_refused(fields: peer.Fields, play: peer.Play) -> None:
    """Ambiguous is a request with none or two paths."""
    queries: list[peer.Frame] = [Headers(3, fields), Data(3, CALL, end=True)]
    play.client.sends(*queries)
    assert play.runtime.got() == queries
    play.passes_ambiguous, play.restore_refusal = False, "no"
    play.client.sends(Headers(5, fields, end=True), Headers(7, fields), Data(7, b"dropped"))
    assert play.runtime.got() == []
    refusal = peer.refusal(12, b"no") if fields in RESTORES else peer.refusal(13, AMBIGUOUS.encode())
    assert play.client.got() == [Headers(5, refusal, end=True), Headers(7, refusal, end=True), Reset(7, 0)]
    assert counted(play) == {"RestorePod" if fields in RESTORES else "other": 1}


UNKNOWN_PATHS = [b"/grpc.health.v1.Health/Check", b"/runtime.v2.RuntimeService/Version"]
UNKNOWN_PATHS += [b"/runtime.v1.ImageServiceOther/PullImage"]


@pytest.mark.parametrize("path", [*routes.PASSING_SERIES, *UNKNOWN_PATHS], ids=bytes.decode)
def test_call_passes_or_is_held_by_path(path: bytes, play: peer.Play) -> None:
    """A call without a hook point is counted once by its method and may pass without hook servers (start and stop)."""
    fields, play.start_and_stop_pass = peer.request(path), True
    for stream in (3, 5, 7):  # the later blocks are cached
        play.client.sends(Headers(stream, fields), Data(stream, CALL, end=True))
    play.client.sends(Headers(5, fields, end=True))  # trailers, which may contain anything
    held = path in HELD and HELD[path].operation not in UNRECORDED
    method = path.decode().rpartition("/")[2] if path in routes.PASSING_SERIES else "other"
    assert counted(play) == ({} if held else {method: 3})
    assert [call.stream for call in play.calls] == [3, 5, 7] * held
    assert len(play.links) == (b".ImageService/" in path)
    assert (Data(3, CALL, end=True) in play.runtime.got()) is not (held or bool(play.links))
    play.start_and_stop_pass = False
    play.client.sends(Headers(9, fields), Data(9, CALL, end=True))
    assert [call.stream for call in play.calls][-1:] == [9] * (path in HELD)


@pytest.mark.parametrize("end", [Data(1, b"", True), Data(1, b"12", True), Reset(1, 8), END], ids=repr)
@pytest.mark.parametrize("congested", [True, False])
def test_stream_is_open_until_runtime_ends_it(end: peer.Frame, congested: bool) -> None:
    play = peer.Play().greet()
    play.client.sends(Headers(1, peer.VERSION, end=True), Headers(3, peer.VERSION), Data(3, b"x", True))
    play.runtime.sends(Headers(1, peer.REPLY), Headers(3, peer.REPLY), *[Data(3, bytes(16_384))] * (4 * congested))
    assert set(play.reader.open_streams) == {1, 3}
    play.runtime.sends(end)
    assert set(play.reader.open_streams) == {3}
    play.client.sends(Reset(3, 8))
    assert not play.reader.open_streams


def test_refused_streams_are_stored_up_to_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size update of a dropped block is in the next block (relay-rules A1)."""
    monkeypatch.setattr(frame_relay, "RETIRED_LIMIT", 2)
    play = peer.Play().greet()
    play.passes_ambiguous = False
    play.client.sends(peer.raw_headers(1, b"\x20\x83"), *[Raw(1, 0x4, stream, b"\x83") for stream in (3, 5)])
    play.client.sends(Reset(1, 8), Reset(3, 8), Headers(7, peer.VERSION))
    play.runtime.decoder.max_allowed_table_size = 0
    assert play.runtime.got() == [Reset(1, 8), Headers(7, peer.VERSION)]
    assert sorted(play.reader.streams) == [3, 5]


def test_a8_plain_data_pass_up_to_other_frames() -> None:
    play = peer.Play().greet()
    play.client.sends(QUERY, Headers(3, peer.VERSION))
    play.runtime.got()
    frames: list[peer.Frame] = [Data(1, b"a" * 20), Data(3, b"b"), Data(1, b""), Data(3, b"c", pad=2), Data(1, b"d")]
    frames += [Data(1, b"e", True), Ping(b"between!", ack=True), Data(3, b"f"), Data(3, b"g" * 100)]
    sent = b"".join(frame.wire() for frame in frames)
    play.client.sends(sent[:-50])
    assert (play.runtime.received_bytes(), [*play.reader.open_streams]) == (sent[:-50], [1, 3])
    assert play.reader.to_client.outstanding == 128, "padding counts, too"
    assert play.reader.to_runtime.window == 65_535 - 128


def test_reserved_bit_of_stream_id_is_ignored() -> None:
    play, reserved = peer.Play().greet(), 0x8000_0003
    play.client.sends(QUERY, Raw(1, 0x4, reserved, peer.block(peer.CREATE)), Data(1, bytes(2_000)))
    play.client.sends(Raw(0, 0, reserved, CALL[:5]), Raw(0, 1, 3, CALL[5:]))
    assert play.call._message == b"m"


OTHERS = [Ping(b"12345678", ack=True), Ack(), GoAway(7, 2, b"why"), Raw(0xEE, 0xFF, 0x8000_0001, b"unknown")]
OTHERS += [Data(1, b"x", pad=0), Reset(1, 5), Raw(6, 0, 0, b"1234567"), Raw(6, 0, 1, b"12345678")]


@pytest.mark.parametrize("frame", OTHERS, ids=repr)
def test_a9_other_frames_pass_byte_by_byte(frame: peer.Frame) -> None:
    play = peer.Play().greet()
    play.client.sends(frame)
    play.runtime.sends(frame)
    assert play.runtime.received_bytes() == play.client.received_bytes() == frame.wire()


REQUESTED, ACKNOWLEDGED = Ping(b"12345678"), Ping(b"12345678", ack=True)
ARRIVED = Ping(b"arrived?"), Ping(b"arrived?", ack=True)
LAST = GoAway(2**31 - 1)
PingSteps = list[tuple[str, list[peer.Frame | bytes], bytes | list[peer.Frame], bytes | list[peer.Frame]]]
"""The sender: the peer that sends the PINGs or the responder; its frames; the frames to pinger and responder."""


FLOOD, ACKS = ([Ping(b"%08d" % number, ack) for number in range(100)] for ack in (False, True))
PINGS: dict[str, PingSteps] = {
    "ACKs follow a frame that is cut through": [
        ("other", [LONG[:50]], LONG[:50], []),
        ("peer", [REQUESTED], [], []),
        ("other", [LONG[50:70]], LONG[50:70], []),
        ("other", [LONG[70:], LONG[:20]], LONG[70:] + ACKNOWLEDGED.wire() + LONG[:20], []),
    ],
    "after a PING that passes others pass until it is acknowledged": [
        ("silence", FLOOD[:1], [], FLOOD[:1]),
        ("other", [Credit(1, 1)], [Credit(1, 1)], []),
        ("peer", FLOOD[1:2], [], FLOOD[1:2]),
        ("other", ACKS[:1], ACKS[:1], []),
        ("peer", FLOOD[2:3], [], FLOOD[2:3]),
        ("other", ACKS[1:3], ACKS[1:3], []),
    ],
    # By a PING a closing server finds out whether its GOAWAY has arrived, and then accepts no more calls.
    "after a GOAWAY PINGs pass": [
        ("peer", [REQUESTED, LAST, ARRIVED[0]], [], [LAST, ARRIVED[0]]),
        ("other", [ARRIVED[1]], [ACKNOWLEDGED, ARRIVED[1]], []),
        ("peer", [REQUESTED], [], [REQUESTED]),
    ],
    "ACKs are sent outside header blocks": [
        ("other", [peer.raw_headers(1, BLOCK[:3], end_headers=False)], [], []),
        ("peer", [REQUESTED], [], []),
        ("other", [peer.continuation(1, BLOCK[3:6], end_headers=False)], b"", []),
        ("other", [peer.continuation(1, BLOCK[6:])], [Headers(1, peer.VERSION), ACKNOWLEDGED], []),
    ],
    "of a flood a few ACKs wait and the rest passes": [
        ("peer", FLOOD, [], FLOOD[ACKS_WAITING:]),
        ("other", ACKS[ACKS_WAITING:], ACKS, []),
        ("peer", [REQUESTED], [], []),
    ],
}


@pytest.mark.parametrize("from_client", [True, False], ids=["client", "runtime"])
@pytest.mark.parametrize("steps", PINGS.values(), ids=PINGS)
def test_a9_pings_are_acknowledged_or_pass(steps: PingSteps, from_client: bool) -> None:
    play = peer.converse(peer.passes(QUERY))
    pinger, responder = (play.client, play.runtime) if from_client else (play.runtime, play.client)
    for sender, sent, at_pinger, at_responder in steps:
        if sender == "silence":
            play.now = ALIVE_SECONDS
        (responder if sender == "other" else pinger).sends(*sent)
        for side, expected in ((pinger, at_pinger), (responder, at_responder)):
            assert (side.received_bytes() if isinstance(expected, bytes) else side.got()) == expected


CHUNKS = [b"P", b"R", b"UT / HTTP/1.1\r\n"], [peer.PREFACE[:7], peer.PREFACE[7:-1], b"x"]


@pytest.mark.parametrize("chunks", CHUNKS)
def test_a14_client_without_preface_is_piped(chunks: list[bytes]) -> None:
    play = peer.Play()
    for chunk in chunks:
        play.reader.from_client.feed(chunk)
    play.act()
    assert play.not_http2_bytes == chunks[-1:]
    assert b"".join(play.reader.to_runtime.out) == b"".join(chunks[:-1])
    play.reader.pipe(chunks[-1])
    more, answer = b"\0" * 40, b"HTTP/1.1 200 OK\r\n\r\n"
    play.reader.from_client.feed(more)
    play.reader.from_runtime.feed(answer)
    assert b"".join(play.reader.to_runtime.out) == b"".join(chunks) + more
    assert b"".join(play.reader.to_client.out) == answer
