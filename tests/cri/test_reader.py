"""The reader of a connection: passing frames, held calls (relay-rules A1 to A9, A13, C1, C2, C5; fault matrix S5)."""

import gzip
import weakref
from typing import Any

import pytest
from hpack import Encoder

from runtimeproxy.core.call import NO_ROOM, UNANSWERED, CallState, Reply
from runtimeproxy.cri import bounds, frame_relay, routes
from runtimeproxy.cri.frame_relay import ACKS_WAITING, ALIVE_SECONDS
from runtimeproxy.cri.reader import AMBIGUOUS
from runtimeproxy.model.hookpoints import UNRECORDED
from runtimeproxy.wire import JOINED_BYTES
from tests.cri import peer
from tests.cri.peer import CREATE, REPLY, VERSION, Ack, Credit, Data, GoAway, Headers, Ping, Raw, Reset, Settings, Step

client, runtime, grpc, raw_headers = peer.client, peer.runtime, peer.grpc, peer.raw_headers
QUERY, END, END_3 = Headers(1, VERSION), Headers(1, peer.TRAILERS, end=True), Headers(3, peer.TRAILERS, end=True)
FULL = Data(1, bytes(16_384))
WINDOW = [FULL, FULL, FULL, Data(1, bytes(16_383))]  # DATA that fill a peer's default window
STEP = 2**18  # credit is given in steps of this many bytes
BLOCK = peer.block(VERSION)
CALL = grpc(b"m")
HOLD_3 = Step(client(Headers(3, CREATE), Data(3, CALL, end=True)), to_runtime=[Headers(3, CREATE)], hooked=1)
RELEASE_3 = Step(peer.release, to_runtime=[Data(3, CALL, end=True)])
SIZED, LAST_BLOCK = b"\x20" + BLOCK, peer.block(peer.TRAILERS)
SECOND = Ack().wire() + raw_headers(5, SIZED) + raw_headers(7, BLOCK)
LONG, THEIRS = Data(1, bytes(100)).wire(), Ping(b"theirs!!", ack=True).wire()

PASSING: dict[str, list[Step]] = {
    # A1: the first block after each ACK starts with a size update, all others are the same bytes
    "A1: a size update before the first block after an ACK": [
        Step(client(raw_headers(1, BLOCK), raw_headers(3, BLOCK)), (), raw_headers(1, SIZED) + raw_headers(3, BLOCK)),
        Step(client(SECOND), to_runtime=SECOND),
        Step(client(Ack(), raw_headers(9, BLOCK)), to_runtime=Ack().wire() + raw_headers(9, SIZED)),
    ],
    "A1: a size update again after a block that waits in a queue": [
        *(HOLD_3, RELEASE_3, Step(runtime(END_3)), Step(runtime(*[FULL] * 4), to_client=WINDOW)),
        Step(peer.answered, to_client=raw_headers(3, b"\x20" + LAST_BLOCK, end=True)),
        Step(client(Credit(0, 100_000)), to_client=[Data(1, b"\0")]),
        Step(runtime(raw_headers(5, LAST_BLOCK)), to_client=raw_headers(5, b"\x20" + LAST_BLOCK)),
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
        *(peer.passes(QUERY), HOLD_3),
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
        *(peer.passes(QUERY), Step(runtime(*[FULL] * 5), to_client=WINDOW)),
        Step(client(Reset(1, 8), Credit(0, 2**20)), to_runtime=[Reset(1, 8)]),
    ],
    "A8: a reset without an error follows the whole answer": [
        Step(runtime(*[FULL] * 4, END, Reset(1, 0)), to_client=WINDOW),
        Step(client(Credit(0, 1)), to_client=[Data(1, b"\0"), END, Reset(1, 0)]),
    ],
    # A9: PINGs are hop by hop while the other peer was heard recently
    "A9: an ACK leaves with what its sender is sent next": [
        *(HOLD_3, Step(client(Ping(b"a client"))), Step(runtime(Ping(b"runtime!")))),
        Step(peer.release, to_runtime=[Data(3, CALL, end=True), Ping(b"runtime!", ack=True)]),
        Step(runtime(Headers(3, REPLY)), to_client=[Headers(3, REPLY), Ping(b"a client", ack=True)]),
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
FLOOD, ACKS = ([Ping(b"%08d" % number, ack) for number in range(100)] for ack in (False, True))
PING, PONG, LAST = FLOOD[0], ACKS[0], GoAway(2**31 - 1)
# The sender: the peer that sends the PINGs or the responder; its frames; the frames to pinger and responder.
PINGS: dict[str, list[Any]] = {
    "ACKs follow a frame that is cut through": [
        *(("other", [LONG[:50]], LONG[:50], []), ("peer", [PING], [], []), ("other", [LONG[50:70]], LONG[50:70], [])),
        ("other", [LONG[70:], LONG[:20]], LONG[70:] + PONG.wire() + LONG[:20], []),
    ],
    "after a PING that passes others pass until it is acknowledged": [
        *(("silence", FLOOD[:1], [], FLOOD[:1]), ("other", [Credit(1, 1)], [Credit(1, 1)], [])),
        *(("peer", FLOOD[1:2], [], FLOOD[1:2]), ("other", ACKS[:1], ACKS[:1], [])),
        *(("peer", FLOOD[2:3], [], FLOOD[2:3]), ("other", ACKS[1:3], ACKS[1:3], [])),
    ],
    # By a PING a closing server finds out whether its GOAWAY has arrived, and then accepts no more calls.
    "after a GOAWAY PINGs pass": [
        ("peer", [PING, LAST, FLOOD[1]], [], [LAST, FLOOD[1]]),
        *(("other", [ACKS[1]], [PONG, ACKS[1]], []), ("peer", [PING], [], [PING])),
    ],
    "ACKs are sent outside header blocks": [
        *(("other", [raw_headers(1, BLOCK[:3], end_headers=False)], [], []), ("peer", [PING], [], [])),
        ("other", [peer.continuation(1, BLOCK[3:6], end_headers=False)], b"", []),
        ("other", [peer.continuation(1, BLOCK[6:])], [Headers(1, VERSION), PONG], []),
    ],
    "of a flood a few ACKs wait and the rest passes": [
        *(("peer", FLOOD, [], FLOOD[ACKS_WAITING:]), ("other", ACKS[ACKS_WAITING:], ACKS, []), ("peer", [PING], [], []))
    ],
}
TWO_PATHS = [(*fields, VERSION[2]) for fields in (VERSION, CREATE)]
RESTORES = [peer.request(path) for path in sorted(routes.RESTORES)]
UNKNOWN = [b"/grpc.health.v1.Health/Check", b"/runtime.v2.RuntimeService/Version", b"/runtime.v1.ImageServices/Pull"]
OTHERS = [Ping(b"12345678", ack=True), Ack(), GoAway(7, 2, b"why"), Raw(0xEE, 0xFF, 0x8000_0001, b"unknown")]
OTHERS += [Data(1, b"x", pad=0), Reset(1, 5), Raw(6, 0, 0, b"1234567"), Raw(6, 0, 1, b"12345678")]

MESSAGE = grpc(b"the request")
HEAD, OPEN, WHOLE = Headers(1, CREATE), Data(1, MESSAGE), Data(1, MESSAGE, end=True)
ANSWER: list[peer.Frame] = [Headers(1, REPLY), Data(1, grpc(b"the reply"))]
CANCEL, REFUSED = Reset(1, 8), Headers(1, peer.refusal(13, b"no"), end=True)
CREDITS = [Credit(1, 16_384)] * 15
PACKED = (*CREATE, (b"grpc-encoding", b"gzip"))
LATE_CREDIT = Credit(0, STEP + len(MESSAGE))

HOLD = Step(client(HEAD, WHOLE), to_runtime=[HEAD], hooked=1)
HOLD_OPEN = Step(client(HEAD, OPEN), to_client=[Credit(1, len(MESSAGE))], to_runtime=[HEAD], hooked=1)
RELEASE, ANSWERING = Step(peer.release, to_runtime=[WHOLE]), peer.returns(*ANSWER)
RETAINED = [HOLD, RELEASE, ANSWERING, Step(runtime(END))]


def only(status: bytes) -> list[peer.Frame]:
    return [Headers(1, (*REPLY, (b"grpc-status", status)), end=True)]


def chunks(message: bytes) -> list[peer.Raw]:
    return [Data(1, message[at : at + 16_384]) for at in range(0, len(message), 16_384)]


LARGE = grpc(bytes(20_010))

HOLDING: dict[str, list[Step]] = {
    "A5: hooks are called once the message is as long as its prefix": [
        Step(client(HEAD, Data(1, MESSAGE[:3])), to_client=[Credit(1, 3)], to_runtime=[HEAD]),
        Step(client(Data(1, MESSAGE[3:-1])), to_client=[Credit(1, len(MESSAGE) - 4)]),
        Step(client(Data(1, MESSAGE[-1:])), to_client=[Credit(1, 1)], hooked=1),
    ],
    "A5: later DATA are joined and follow the message, as do frames after the release": [
        *(HOLD_OPEN, Step(client(Data(1, b"late"), Data(1, b"r")))),
        Step(peer.release, to_client=[Credit(1, 5)], to_runtime=[OPEN, Data(1, b"later")]),
        Step(client(Data(1, b"after", pad=3), END), to_client=[Credit(1, 9)], to_runtime=[Data(1, b"after"), END]),
    ],
    "A5: a reset overtakes": [HOLD_OPEN, peer.passes(CANCEL), Step(lambda play: play.call.send_request(None))],
    # A4: the request half of a held stream is hop by hop
    "A4: the message is credited immediately, later DATA are not": [
        Step(client(HEAD, *chunks(grpc(bytes(STEP - 5)))), [*CREDITS, Credit(0, STEP), CREDITS[0]], [HEAD], hooked=1),
        Step(client(*[FULL] * 20)),
    ],
    "A4: late DATA are credited when they leave": [
        *(Step(peer.Greets(runtime=Settings(((4, 2**20),)))), HOLD_OPEN, Step(client(*[FULL] * 16))),
        Step(peer.release, to_client=[Credit(1, STEP)], to_runtime=[OPEN, *[FULL] * 3, Data(1, bytes(16_367))]),
        Step(runtime(Credit(0, 2**20)), to_client=[LATE_CREDIT], to_runtime=[*[FULL] * 12, Data(1, bytes(17))]),
    ],
    "A4: a release obeys windows and frame size, that credit is ours": [
        Step(peer.Greets(runtime=Settings(((4, 10), (5, 16_384))))),
        Step(
            client(HEAD, *chunks(LARGE)), to_client=[Credit(1, 16_384), Credit(1, 3_631)], to_runtime=[HEAD], hooked=1
        ),
        Step(peer.release, to_runtime=[Data(1, LARGE[:10])]),
        Step(runtime(Credit(1, 5)), to_runtime=[Data(1, LARGE[10:15])]),
        Step(runtime(Settings(((4, 20_010),))), to_client=[Settings(((4, 20_010), (1, 0)))]),
        Step(client(Ack()), to_runtime=[Ack(), Data(1, LARGE[15:16_399]), Data(1, LARGE[16_399:])]),
    ],
    "A4: the client's credit for the answer passes": [HOLD, peer.passes(Credit(1, 77))],
    "A4: credit for another call passes while a request waits for credit": [
        peer.passes(Headers(3, peer.VERSION, end=True)),
        Step(runtime(Settings(((4, 0),))), to_client=[Settings(((4, 0), (1, 0)))]),
        Step(client(Headers(5, CREATE), Data(5, MESSAGE, end=True)), to_runtime=[Headers(5, CREATE)], hooked=1),
        Step(peer.release),
        peer.passes(Credit(3, 100), Headers(7, peer.VERSION)),
    ],
    # A6: answers
    "A6: only the end of an answer is kept": [*RETAINED, Step(peer.answered, to_client=[END]), Step(peer.answered)],
    "A6: an end in DATA is kept too, and a later reset follows it": [
        *(HOLD_OPEN, Step(peer.release, to_runtime=[OPEN])),
        Step(runtime(Headers(1, REPLY), Data(1, b"x", end=True), Reset(1, 0)), to_client=[Headers(1, REPLY)]),
        Step(peer.answered, to_client=[Data(1, b"x", end=True), Reset(1, 0)]),
    ],
    "A6: an answer that comes before the release waits for it": [
        *(HOLD, Step(runtime(Headers(1, REPLY), Data(1, b"early", pad=1)))),
        Step(peer.release, to_client=[Headers(1, REPLY), Data(1, b"early", pad=1)], to_runtime=[WHOLE]),
    ],
    "A6: an answer obeys the client's window and is credited later": [
        *(HOLD, RELEASE, Step(runtime(*[FULL] * 16), to_client=WINDOW)),
        Step(client(Credit(0, 2**20)), to_client=[Data(1, bytes(1)), *[FULL] * 12], to_runtime=[Credit(0, STEP)]),
    ],
    "A6: nothing reaches a client that has cancelled": [*RETAINED, peer.passes(CANCEL), Step(peer.answered)],
    # A7: refusals
    "A7: a refusal resets and answers": [HOLD, Step(peer.refuse, to_client=[REFUSED], to_runtime=[CANCEL])],
    "A7: what came or still comes on a refused stream is dropped and credited": [
        *(HOLD_OPEN, Step(client(*[FULL] * 16))),
        Step(peer.refuse, to_client=[LATE_CREDIT, REFUSED, Reset(1, 0)], to_runtime=[CANCEL]),
        Step(runtime(Headers(1, REPLY), *[FULL] * 16, END, Credit(1, 3), CANCEL), to_runtime=[Credit(0, STEP)]),
        Step(client(*[FULL] * 16, END, Credit(1, 4), CANCEL), to_client=[Credit(0, STEP)]),
    ],
}
READ, FAILED = Reply(True, b"the reply"), Reply(False)
PACKED_ANSWER = [Headers(1, (*REPLY, (b"grpc-encoding", b"gzip"))), Data(1, grpc(gzip.compress(b"r"), 1))]
REPLIES: dict[str, tuple[list[peer.Frame], Reply]] = {
    "one message and status 0": ([*ANSWER, END], READ),
    "early hints ahead": ([Headers(1, ((b":status", b"103"),)), *ANSWER, END], READ),
    "gzip": ([*PACKED_ANSWER, END], Reply(True, b"r")),
    "no message": (only(b"0"), FAILED),
    "NOT_FOUND": (only(b"5"), FAILED),
    **{f"status {code!r}": (only(code), UNANSWERED) for code in (b"1", b"4", b"14")},
    "status 00": ([*ANSWER, Headers(1, ((b"grpc-status", b"00"),), end=True)], FAILED),
    "no status": ([*ANSWER, Headers(1, ((b"x", b"y"),), end=True)], FAILED),
    "no trailers": ([*ANSWER, Data(1, b"", end=True)], FAILED),
    "two messages": ([*ANSWER, *ANSWER[1:], END], FAILED),
    "HTTP error": ([Headers(1, ((b":status", b"503"),)), *ANSWER[1:], END], FAILED),
    "reset": ([Headers(1, REPLY), Reset(1, 2)], UNANSWERED),
}
LENGTHY = bytes(range(256)) * (JOINED_BYTES // 256) + b"x"
PACKED_LONG = grpc(gzip.compress(LENGTHY), 1)
PROTO = (*CREATE[:4], (b"content-type", b"application/grpc+proto"))
ENDS = ([peer.refuse], [client(CANCEL)], [peer.release, runtime(*ANSWER, END), peer.answered])
CLOSED = [
    pytest.param(client(CANCEL), False, UNANSWERED, id="A5: cancel of a held call"),
    pytest.param(lambda play: play.reader.client_closed(), False, UNANSWERED, id="C5: client gone, held"),
    pytest.param(lambda play: play.reader.runtime_closed(), False, UNANSWERED, id="C5: runtime gone, held"),
    pytest.param(client(CANCEL), True, UNANSWERED, id="C2: cancel of a released call"),
    pytest.param(lambda play: play.reader.client_closed(), True, None, id="C5: client gone, released"),
    pytest.param(lambda play: play.reader.runtime_closed(), True, UNANSWERED, id="C5: runtime gone, released"),
]
COMPLETE = [
    pytest.param(PROTO, MESSAGE, b"the request", b"changed", grpc(b"changed"), id="grpc+proto"),
    pytest.param(PACKED, grpc(gzip.compress(b"a"), 1), b"a", b"b", grpc(b"b"), id="gzip is undone"),
    pytest.param(CREATE, grpc(LENGTHY), LENGTHY, LENGTHY[::-1], grpc(LENGTHY[::-1]), id="long, changed"),
    pytest.param(CREATE, grpc(LENGTHY), LENGTHY, b"short", grpc(b"short"), id="long, shortened"),
    pytest.param(PACKED, PACKED_LONG, LENGTHY, None, PACKED_LONG, id="gzip, unchanged"),
]
UNREADABLE = [
    pytest.param(CREATE, [Data(1, b"\x00\x01\x00\x00\x01")], "longer than the limit", id="prefix above the limit"),
    pytest.param(CREATE, [Data(1, MESSAGE + b"\x00")], "not exactly one", id="second message"),
    pytest.param(CREATE, [Data(1, MESSAGE[:4], end=True)], "ends inside", id="cut by END_STREAM"),
    pytest.param(CREATE, [END], "ends inside", id="trailers only"),
    pytest.param(CREATE, [], "ends inside", id="no body"),
    pytest.param(CREATE, [Data(1, grpc(b"x", 1))], "unknown compression", id="compression"),
    pytest.param((*CREATE[:4], (b"content-type", b"application/grpc+json")), [OPEN], "content type", id="json"),
    pytest.param(CREATE[:4], [OPEN], "content type", id="no content type"),
]


@pytest.mark.parametrize("steps", [OPENING, *PASSING.values(), *HOLDING.values()], ids=["opening", *PASSING, *HOLDING])
def test_conversation_has_these_effects(steps: list[Step]) -> None:
    peer.converse(*steps, play=peer.Play() if steps is OPENING else None)


@pytest.fixture(params=[True, False], ids=["acknowledged", "before the ACK"])
def play(request: pytest.FixtureRequest) -> peer.Play:
    """Return a play with an image service; before the ACK of the client's SETTINGS, or after it and a request."""
    play = peer.Play(separate_image=True)
    if request.param:
        play.greet().client.sends(Headers(1, VERSION, end=True))
    else:
        play.client.sends(peer.PREFACE, Settings())
        play.runtime.sends(Settings())
        play.client.got()
    play.runtime.got()
    play.counters.update(dict.fromkeys(play.counters, 0))
    return play


def counted(play: peer.Play) -> dict[str, int]:
    return {label: count for (_, (label, *_)), count in play.counters.items() if count}


def test_a1_indexed_fields_before_ack_keep_their_values() -> None:
    """A peer indexes header fields until it has the other side's SETTINGS (promise 4)."""
    frames = [Headers(stream, (*VERSION, (b"x-a", b"1"))) for stream in (1, 3)]
    for sender, receiver, first in (("client", "runtime", [peer.PREFACE]), ("runtime", "client", [])):
        play, encoder = peer.Play(), Encoder()
        blocks = [raw_headers(frame.stream, encoder.encode(frame.fields)) for frame in frames]
        assert len(blocks[1]) < len(blocks[0]), "it is indexed"
        getattr(play, sender).sends(*first, Settings(), *blocks)
        assert getattr(play, receiver).got()[-2:] == frames


def test_a1_push_promise_blocks_are_translated() -> None:
    play = peer.Play()
    pushes = Raw(5, 0x4, 1, b"\x00\x00\x00\x02" + b"\x40\x01a\x01b"), Raw(5, 0x4, 1, b"\x00\x00\x00\x04\xbe")
    play.runtime.sends(Settings(), *pushes)
    frames = [Raw(5, 0x4, 1, bytes((0, 0, 0, promised)) + b"\x00\x01a\x01b").wire() for promised in (2, 4)]
    assert play.client.received_bytes().endswith(b"".join(frames))


@pytest.mark.parametrize("fields", [*TWO_PATHS, VERSION[:2], *RESTORES], ids=repr)
def test_a2_ambiguous_or_restore_passes_or_is_refused(fields: peer.Fields, play: peer.Play) -> None:
    queries: list[peer.Frame] = [Headers(3, fields), Data(3, CALL, end=True)]
    play.client.sends(*queries)
    assert play.runtime.got() == queries
    play.passes_ambiguous, play.restore_refusal = False, "no"
    play.client.sends(Headers(5, fields, end=True), Headers(7, fields), Data(7, b"dropped"))
    assert play.runtime.got() == []
    refusal = peer.refusal(12, b"no") if fields in RESTORES else peer.refusal(13, AMBIGUOUS.encode())
    assert play.client.got() == [Headers(5, refusal, end=True), Headers(7, refusal, end=True), Reset(7, 0)]
    assert counted(play) == {"RestorePod" if fields in RESTORES else "other": 1}


@pytest.mark.parametrize("path", [*routes.PASSING_SERIES, *UNKNOWN], ids=bytes.decode)
def test_call_passes_or_is_held_by_path(path: bytes, play: peer.Play) -> None:
    """A call without a hook point is counted once by its method and may pass without hook servers (start and stop)."""
    fields, play.start_and_stop_pass = peer.request(path), True
    for stream in (3, 5, 7):  # the later blocks are cached
        play.client.sends(Headers(stream, fields), Data(stream, CALL, end=True))
    play.client.sends(Headers(5, fields, end=True))  # trailers, which may contain anything
    held = path in routes.HELD and routes.HELD[path].operation not in UNRECORDED
    method = path.decode().rpartition("/")[2] if path in routes.PASSING_SERIES else "other"
    assert counted(play) == ({} if held else {method: 3})
    assert [call.stream for call in play.calls] == [3, 5, 7] * held
    assert len(play.links) == (b".ImageService/" in path)
    assert (Data(3, CALL, end=True) in play.runtime.got()) is not (held or bool(play.links))
    play.start_and_stop_pass = False
    play.client.sends(Headers(9, fields), Data(9, CALL, end=True))
    assert [call.stream for call in play.calls][-1:] == [9] * (path in routes.HELD)


@pytest.mark.parametrize("end", [Data(1, b"", True), Data(1, b"12", True), Reset(1, 8), END], ids=repr)
@pytest.mark.parametrize("congested", [True, False])
def test_stream_is_open_until_runtime_ends_it(end: peer.Frame, congested: bool) -> None:
    play = peer.Play().greet()
    play.client.sends(Headers(1, VERSION, end=True), Headers(3, VERSION), Data(3, b"x", True))
    play.runtime.sends(Headers(1, REPLY), Headers(3, REPLY), *[Data(3, bytes(16_384))] * (4 * congested))
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
    play.client.sends(raw_headers(1, b"\x20\x83"), *[Raw(1, 0x4, stream, b"\x83") for stream in (3, 5)])
    play.client.sends(Reset(1, 8), Reset(3, 8), Headers(7, VERSION))
    play.runtime.decoder.max_allowed_table_size = 0
    assert play.runtime.got() == [Reset(1, 8), Headers(7, VERSION)]
    assert sorted(play.reader.streams) == [3, 5]


def test_a8_plain_data_pass_up_to_other_frames() -> None:
    play = peer.Play().greet()
    play.client.sends(QUERY, Headers(3, VERSION))
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
    play.client.sends(QUERY, Raw(1, 0x4, reserved, peer.block(CREATE)), Data(1, bytes(2_000)))
    play.client.sends(Raw(0, 0, reserved, CALL[:5]), Raw(0, 1, 3, CALL[5:]))
    assert play.call._message == b"m"


@pytest.mark.parametrize("frame", OTHERS, ids=repr)
def test_a9_other_frames_pass_byte_by_byte(frame: peer.Frame) -> None:
    play = peer.Play().greet()
    play.client.sends(frame)
    play.runtime.sends(frame)
    assert play.runtime.received_bytes() == play.client.received_bytes() == frame.wire()


@pytest.mark.parametrize("from_client", [True, False], ids=["client", "runtime"])
@pytest.mark.parametrize("steps", PINGS.values(), ids=PINGS)
def test_a9_pings_are_acknowledged_or_pass(steps: list[Any], from_client: bool) -> None:
    play = peer.converse(peer.passes(QUERY))
    pinger, responder = (play.client, play.runtime) if from_client else (play.runtime, play.client)
    for sender, sent, at_pinger, at_responder in steps:
        if sender == "silence":
            play.now = ALIVE_SECONDS
        (responder if sender == "other" else pinger).sends(*sent)
        for side, expected in ((pinger, at_pinger), (responder, at_responder)):
            assert (side.received_bytes() if isinstance(expected, bytes) else side.got()) == expected


@pytest.mark.parametrize(("fields", "frames", "problem"), UNREADABLE)
def test_a5_unreadable_request_passes_unchanged(fields: peer.Fields, frames: list[peer.Frame], problem: str) -> None:
    play = peer.Play().greet()
    sent = [Headers(1, fields, end=not frames), *frames]
    play.client.sends(*sent)
    assert play.call._message is None
    assert problem in play.call.problem
    assert play.call.send_request(None)
    assert play.runtime.got() == sent


@pytest.mark.parametrize(("fields", "body", "read", "new", "out"), COMPLETE)
def test_message_is_read_and_sent(fields: peer.Fields, body: bytes, read: bytes, new: bytes | None, out: bytes) -> None:
    """Promise 10: a long request's bytes are counted once, and its decompressed message as well."""
    play = peer.Play().greet(runtime=Settings(((4, 2**24),)))
    play.runtime.sends(Credit(0, 2**24))
    play.client.sends(Headers(1, fields), *chunks(body), Data(1, b"", end=True))
    assert play.call._message == read
    assert play.budget.count == len(body) + len(read) * (fields is PACKED)
    assert play.call.send_request(new)
    data = [frame for frame in play.runtime.got() if isinstance(frame, peer.Raw) and frame.kind == peer.DATA]
    assert b"".join(frame.body for frame in data) == out
    assert [bool(frame.flags) for frame in data] == [False] * (len(data) - 1) + [True]


def test_deadline_counts_from_headers() -> None:
    play = peer.Play().greet()
    play.now = 3.0
    play.client.sends(Headers(1, (*CREATE, (b"grpc-timeout", b"5S"), (b"x-long", b"v" * 16_000))), Data(1, MESSAGE[:4]))
    [held] = play.reader.held
    assert held.fields == {b"content-type": b"application/grpc", b"grpc-timeout": b"5S"}, "no others are kept"
    play.now = 5.0
    play.client.sends(Data(1, MESSAGE[4:], end=True))
    assert play.call.deadline == 8.0


def test_a4_held_bytes_of_process_are_bounded() -> None:
    play = peer.Play(process_limit=40).greet()
    play.client.sends(HEAD, Data(1, grpc(bytes(30))), Headers(3, CREATE), Data(3, grpc(bytes(30))[:10]))
    first, second = play.calls
    assert (first.problem, second.problem) == ("", NO_ROOM)
    assert play.budget.count == 45
    first.send_request(None)
    play.runtime.sends(END)
    first.answer()
    first.free_budget()
    assert second.send_refusal(8, "füll")
    assert Headers(3, peer.refusal(8, b"f%C3%BCll"), end=True) in play.client.got()
    assert (second.state, play.budget.count) == (CallState.REFUSED, 0)
    assert not second.send_refusal(7, "twice")
    assert not second.send_request(None)


def test_a4_inflated_message_is_counted() -> None:
    play = peer.Play(process_limit=1_500).greet()
    packed = grpc(gzip.compress(bytes(1_000)), 1)
    for stream in (1, 3):
        play.client.sends(Headers(stream, PACKED), Data(stream, packed, end=True))
    assert [(call._message, call.problem) for call in play.calls] == [(bytes(1_000), ""), (None, NO_ROOM)]
    assert play.budget.count == 2 * len(packed) + 2_000
    play.runtime.got()
    for call in play.calls:
        assert call.send_request(None)
        call.free_budget()
    assert play.runtime.got() == [Data(1, packed, end=True), Data(3, packed, end=True)]
    assert play.budget.count == 0


def test_a4_request_counts_until_call_is_freed() -> None:
    """It may have been sent or wait for the runtime's credit: Post hooks may need it after the answer."""
    play = peer.Play().greet()
    play.runtime.sends(Settings(((4, 0),)))
    for stream in (1, 3, 5):
        play.client.sends(Headers(stream, CREATE), Data(stream, grpc(bytes(95)), end=True))
    done, cancelled, lost = play.calls
    for call in play.calls:
        assert call.send_request(b"x" * 500)
    play.runtime.sends(Credit(1, 505), END)
    play.client.sends(Reset(3, 8))
    done.answer()
    assert play.budget.count == 300
    done.free_budget()
    cancelled.free_budget()
    play.budget.limit = 40
    play.client.sends(Headers(11, CREATE), Data(11, grpc(bytes(50))))
    assert play.call.problem == NO_ROOM
    assert play.call.send_request(None)
    play.runtime.sends(Credit(11, 54))
    assert play.budget.count == 155, "an unreadable request counts until it is sent"
    play.runtime.sends(Credit(11, 1))
    assert play.budget.count == 100
    play.budget.limit = 1_000
    play.client.sends(Headers(13, CREATE), Data(13, grpc(bytes(95))[:50]))
    play.client.sends(Headers(15, CREATE), Data(15, grpc(bytes(95)), end=True))
    assert play.budget.count == 250
    play.reader.client_closed()
    assert play.budget.count == 100, "held requests do not count when the client has closed"
    play.reader.closed()
    lost.free_budget()
    assert play.budget.count == 0


@pytest.mark.parametrize(("frames", "reply"), REPLIES.values(), ids=REPLIES)
def test_a13_success_is_status_0_and_one_message(frames: list[peer.Frame], reply: Reply) -> None:
    play = peer.converse(HOLD, RELEASE)
    play.runtime.sends(*frames)
    assert (play.call.reply, play.settled) == (reply, [play.call])
    play.call.answer()
    assert play.client.got() == frames
    assert not play.reader.held


def test_a13_answer_above_limit_passes_unbuffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REPLY_BYTES", 100)
    play = peer.converse(HOLD, RELEASE)
    frames: list[peer.Frame] = [Headers(1, REPLY), Data(1, grpc(bytes(200))), Data(1, bytes(300))]
    play.runtime.sends(*frames, END)
    assert play.client.got() == frames
    assert play.call.reply == Reply(False)
    assert len(play.call._reply_body) == 205


@pytest.mark.parametrize("end", [END, Data(1, b"x", end=True), Reset(1, 2)], ids=repr)
def test_c1_runtime_end_while_held_passes_and_ends_call(end: peer.Frame) -> None:
    play = peer.converse(HOLD_OPEN)
    call = play.call
    play.runtime.sends(Headers(1, REPLY), end)
    assert play.client.got() == [Headers(1, REPLY), end]
    assert (play.call.state, play.call.reply, play.settled) == (CallState.ENDED, UNANSWERED, [call])
    assert not play.call.send_request(b"late")
    assert not play.call.send_refusal(13, "late")
    play.call.answer()
    assert play.client.got() == play.runtime.got() == []
    play.client.sends(Data(1, b"late"))
    assert play.runtime.got() == [Data(1, b"late")]
    assert play.budget.count == 0


@pytest.mark.parametrize(("end", "released", "reply"), CLOSED)
def test_only_held_call_ends_with_stream_or_connection(end: peer.Act, released: bool, reply: Reply) -> None:
    play = peer.converse(HOLD, *[RELEASE, ANSWERING] * released)
    end(play)
    assert play.call.state is (CallState.RELEASED if released else CallState.ENDED)
    assert (play.call.reply, play.settled) == (reply, [play.call] if reply else [])
    assert not play.reader.has_waiting_answers


@pytest.mark.parametrize("ends", ENDS, ids=["refused", "cancelled", "answered"])
def test_call_is_freed_without_garbage_collector(ends: list[peer.Act]) -> None:
    """Thousands of calls in reference cycles would wait for the garbage collector."""
    play = peer.converse(HOLD)
    reference = weakref.ref(play.call)
    for act in ends:
        act(play)
    play.calls.clear()
    play.settled.clear()
    assert reference() is None


@pytest.mark.parametrize(("method", "no_op"), [(b"UpdatePodSandboxResources", True), (b"RunPodSandbox", False)])
def test_unimplemented_pod_resize_is_no_failure(method: bytes, no_op: bool) -> None:
    """The kubelet ignores it: older runtimes do not have the call."""
    head = Headers(1, peer.request(b"/runtime.v1.RuntimeService/" + method))
    play = peer.converse(Step(client(head, WHOLE), to_runtime=[head], hooked=1), RELEASE)
    play.runtime.sends(*only(b"12"))
    assert play.call.reply == Reply(agreed=False, no_op=no_op)
