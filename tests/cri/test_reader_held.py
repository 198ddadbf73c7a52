"""Held calls: calls of hooks, sent and buffered data, their end (relay-rules A4 to A7, A13, C1, C2, C5)."""

import gzip
import weakref

import pytest

from runtimeproxy.core.call import NO_ROOM, UNANSWERED, CallState, Reply
from runtimeproxy.cri import bounds
from runtimeproxy.wire import JOINED_BYTES
from tests.cri import peer
from tests.cri.peer import CREATE, REPLY, Ack, Credit, Data, Headers, Reset, Settings, Step, client, grpc, runtime

MESSAGE = grpc(b"the request")
HEAD, OPEN, WHOLE = Headers(1, CREATE), Data(1, MESSAGE), Data(1, MESSAGE, end=True)
CREDIT = Credit(1, len(MESSAGE))
ANSWER: list[peer.Frame] = [Headers(1, REPLY), Data(1, grpc(b"the reply"))]
END = Headers(1, peer.TRAILERS, end=True)
CANCEL, REFUSED = Reset(1, 8), Headers(1, peer.refusal(13, b"no"), end=True)
FULL = Data(1, bytes(16_384))
PACKED = (*CREATE, (b"grpc-encoding", b"gzip"))
STEP = 2**18
"""Credit is given in steps of this many bytes."""
LATE_CREDIT = Credit(0, STEP + len(MESSAGE))

HOLD = Step(client(HEAD, WHOLE), to_runtime=[HEAD], hooked=1)
HOLD_OPEN = Step(client(HEAD, OPEN), to_client=[CREDIT], to_runtime=[HEAD], hooked=1)
RELEASE, RELEASE_OPEN = Step(peer.release, to_runtime=[WHOLE]), Step(peer.release, to_runtime=[OPEN])
ANSWERING = peer.returns(*ANSWER)
RETAINED = [HOLD, RELEASE, ANSWERING, Step(runtime(END))]


def chunks(message: bytes) -> list[peer.Raw]:
    return [Data(1, message[at : at + 16_384]) for at in range(0, len(message), 16_384)]


LARGE = grpc(bytes(20_010))

CONVERSATIONS: dict[str, list[Step]] = {
    "A5: hooks are called once the message is as long as its prefix": [
        Step(client(HEAD, Data(1, MESSAGE[:3])), to_client=[Credit(1, 3)], to_runtime=[HEAD]),
        Step(client(Data(1, MESSAGE[3:-1])), to_client=[Credit(1, len(MESSAGE) - 4)]),
        Step(client(Data(1, MESSAGE[-1:])), to_client=[Credit(1, 1)], hooked=1),
    ],
    "A5: later DATA are joined and follow the message, as do frames after the release": [
        HOLD_OPEN,
        Step(client(Data(1, b"late"), Data(1, b"r"))),
        Step(peer.release, to_client=[Credit(1, 5)], to_runtime=[OPEN, Data(1, b"later")]),
        Step(client(Data(1, b"after", pad=3), END), to_client=[Credit(1, 9)], to_runtime=[Data(1, b"after"), END]),
    ],
    "A5: a reset overtakes the held request": [
        *(HOLD_OPEN, peer.passes(CANCEL), Step(lambda play: play.call.send_request(None)))
    ],
    # A4: the request half of a held stream is hop by hop
    "A4: the message is credited immediately, later DATA are not": [
        Step(
            client(HEAD, *chunks(grpc(bytes(STEP - 5)))),
            to_client=[*[Credit(1, 16_384)] * 15, Credit(0, STEP), Credit(1, 16_384)],
            to_runtime=[HEAD],
            hooked=1,
        ),
        Step(client(*[FULL] * 20)),
    ],
    "A4: late DATA are credited when they leave": [
        Step(peer.Greets(runtime=Settings(((4, 2**20),)))),
        HOLD_OPEN,
        Step(client(*[FULL] * 16)),
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
    "A6: an answer passes as it comes, and only its end is kept": [
        *(*RETAINED, Step(peer.answered, to_client=[END]), Step(peer.answered))
    ],
    "A6: an end in DATA is kept too, and a later reset follows it": [
        HOLD_OPEN,
        RELEASE_OPEN,
        Step(runtime(Headers(1, REPLY), Data(1, b"x", end=True), Reset(1, 0)), to_client=[Headers(1, REPLY)]),
        Step(peer.answered, to_client=[Data(1, b"x", end=True), Reset(1, 0)]),
    ],
    "A6: an answer that comes before the release waits for it": [
        HOLD,
        Step(runtime(Headers(1, REPLY), Data(1, b"early", pad=1))),
        Step(peer.release, to_client=[Headers(1, REPLY), Data(1, b"early", pad=1)], to_runtime=[WHOLE]),
    ],
    "A6: an answer obeys the client's window and is credited later": [
        HOLD,
        RELEASE,
        Step(runtime(*[FULL] * 16), to_client=[FULL, FULL, FULL, Data(1, bytes(16_383))]),
        Step(client(Credit(0, 2**20)), to_client=[Data(1, bytes(1)), *[FULL] * 12], to_runtime=[Credit(0, STEP)]),
    ],
    "A6: nothing reaches a client that has cancelled": [*RETAINED, peer.passes(CANCEL), Step(peer.answered)],
    # A7: refusals
    "A7: a refusal resets and answers": [HOLD, Step(peer.refuse, to_client=[REFUSED], to_runtime=[CANCEL])],
    "A7: what came or still comes on a refused stream is dropped and credited": [
        HOLD_OPEN,
        Step(client(*[FULL] * 16)),
        Step(peer.refuse, to_client=[LATE_CREDIT, REFUSED, Reset(1, 0)], to_runtime=[CANCEL]),
        Step(runtime(Headers(1, REPLY), *[FULL] * 16, END, Credit(1, 3), CANCEL), to_runtime=[Credit(0, STEP)]),
        Step(client(*[FULL] * 16, END, Credit(1, 4), CANCEL), to_client=[Credit(0, STEP)]),
    ],
}


@pytest.mark.parametrize("steps", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_held_call_conversation_has_these_effects(steps: list[Step]) -> None:
    peer.converse(*steps)


@pytest.mark.parametrize(
    ("fields", "frames", "problem"),
    [
        pytest.param(CREATE, [Data(1, b"\x00\x01\x00\x00\x01")], "longer than the limit", id="prefix above the limit"),
        pytest.param(CREATE, [Data(1, MESSAGE + b"\x00")], "not exactly one", id="second message"),
        pytest.param(CREATE, [Data(1, MESSAGE[:4], end=True)], "ends inside", id="cut by END_STREAM"),
        pytest.param(CREATE, [END], "ends inside", id="trailers only"),
        pytest.param(CREATE, [], "ends inside", id="no body"),
        pytest.param(CREATE, [Data(1, grpc(b"x", 1))], "unknown compression", id="compression"),
        pytest.param((*CREATE[:4], (b"content-type", b"application/grpc+json")), [OPEN], "content type", id="json"),
        pytest.param(CREATE[:4], [OPEN], "content type", id="no content type"),
    ],
)
def test_a5_unreadable_request_passes_unchanged(fields: peer.Fields, frames: list[peer.Frame], problem: str) -> None:
    play = peer.Play().greet()
    sent = [Headers(1, fields, end=not frames), *frames]
    play.client.sends(*sent)
    assert play.call._message is None
    assert problem in play.call.problem
    assert play.call.send_request(None)
    assert play.runtime.got() == sent


LONG = bytes(range(256)) * (JOINED_BYTES // 256) + b"x"
PACKED_LONG = grpc(gzip.compress(LONG), 1)
PROTO = (*CREATE[:4], (b"content-type", b"application/grpc+proto"))


@pytest.mark.parametrize(
    ("fields", "body", "read", "changed", "leaves"),
    [
        pytest.param(PROTO, MESSAGE, b"the request", b"changed", grpc(b"changed"), id="grpc+proto"),
        pytest.param(PACKED, grpc(gzip.compress(b"a"), 1), b"a", b"b", grpc(b"b"), id="gzip is undone"),
        pytest.param(CREATE, grpc(LONG), LONG, LONG[::-1], grpc(LONG[::-1]), id="long, changed"),
        pytest.param(CREATE, grpc(LONG), LONG, b"short", grpc(b"short"), id="long, shortened"),
        pytest.param(PACKED, PACKED_LONG, LONG, None, PACKED_LONG, id="gzip, unchanged"),
    ],
)
def test_message_is_read_and_sent_complete(
    fields: peer.Fields, body: bytes, read: bytes, changed: bytes | None, leaves: bytes
) -> None:
    """Promise 10: a long request's bytes are counted once, and its decompressed message as well."""
    play = peer.Play().greet(runtime=Settings(((4, 2**24),)))
    play.runtime.sends(Credit(0, 2**24))
    play.client.sends(Headers(1, fields), *chunks(body), Data(1, b"", end=True))
    assert play.call._message == read
    assert play.budget.count == len(body) + len(read) * (fields is PACKED)
    assert play.call.send_request(changed)
    data = [frame for frame in play.runtime.got() if isinstance(frame, peer.Raw) and frame.kind == peer.DATA]
    assert b"".join(frame.body for frame in data) == leaves
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
    limit, play.budget.limit = play.budget.limit, 40
    play.client.sends(Headers(11, CREATE), Data(11, grpc(bytes(50))))
    assert play.call.problem == NO_ROOM
    assert play.call.send_request(None)
    play.runtime.sends(Credit(11, 54))
    assert play.budget.count == 155, "an unreadable request counts until it is sent"
    play.runtime.sends(Credit(11, 1))
    assert play.budget.count == 100
    play.budget.limit = limit
    play.client.sends(Headers(13, CREATE), Data(13, grpc(bytes(95))[:50]))
    play.client.sends(Headers(15, CREATE), Data(15, grpc(bytes(95)), end=True))
    assert play.budget.count == 250
    play.reader.client_closed()
    assert play.budget.count == 100, "held requests do not count when the client has closed"
    play.reader.closed()
    lost.free_budget()
    assert play.budget.count == 0


def only(status: bytes) -> list[peer.Frame]:
    return [Headers(1, (*REPLY, (b"grpc-status", status)), end=True)]


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


@pytest.mark.parametrize(
    ("end", "released", "reply"),
    [
        pytest.param(client(CANCEL), False, UNANSWERED, id="A5: cancel of a held call"),
        pytest.param(lambda play: play.reader.client_closed(), False, UNANSWERED, id="C5: client gone, held"),
        pytest.param(lambda play: play.reader.runtime_closed(), False, UNANSWERED, id="C5: runtime gone, held"),
        pytest.param(client(CANCEL), True, UNANSWERED, id="C2: cancel of a released call"),
        pytest.param(lambda play: play.reader.client_closed(), True, None, id="C5: client gone, released"),
        pytest.param(lambda play: play.reader.runtime_closed(), True, UNANSWERED, id="C5: runtime gone, released"),
    ],
)
def test_only_held_call_ends_with_stream_or_connection(end: peer.Act, released: bool, reply: Reply) -> None:
    play = peer.converse(HOLD, *[RELEASE, ANSWERING] * released)
    end(play)
    assert play.call.state is (CallState.RELEASED if released else CallState.ENDED)
    assert (play.call.reply, play.settled) == (reply, [play.call] if reply else [])
    assert not play.reader.has_waiting_answers


ENDS = ([peer.refuse], [client(CANCEL)], [peer.release, runtime(*ANSWER, END), peer.answered])


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
