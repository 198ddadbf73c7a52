"""The request and answer of a held call: read, kept, released, refused, ended (relay-rules A4, B5 to B9, C1 to C3)."""

from collections.abc import Callable

import pytest

from runtimeproxy.core.call import MESSAGE_LIMIT, NO_ROOM, UNANSWERED, CallState, Reply, Unreadable
from runtimeproxy.docker.exchange import KNOWN_BYTES, REPLY_LIMIT, DockerHeld, Known
from runtimeproxy.wire import JOINED_BYTES, http1
from tests.docker.messages import CHUNKED, CLOSE, ID, answer, chunks, error, request
from tests.docker.peer import Play, Step, asked, converse, settled
from tests.docker.replies import CREATED, EOF, NO_CONTENT, NOT_FOUND, OK, ours
from tests.docker.requests import CREATE, INFO, PING, START, STOP
from tests.docker.steps import answered, at_once, client, daemon, ends, passes, refuse, release, returns

JSON = "Content-Type: application/json"
BODY = b'{"Image":"i"}'
CREATED_BODY = b'{"Id":"1","Warnings":[]}'
TARGET = "/v1.41/containers/create"
IN_CHUNKS = request("POST", TARGET, CHUNKED, "Trailer: Sum", JSON) + chunks(BODY[:4], BODY[4:], trailers=("Sum: 1",))
UPDATE = request("POST", f"/containers/{ID}/update", JSON, body=b'{"CpuShares":2}')
REMOVE = request("DELETE", f"/containers/{ID}?force=1")
LONG_ANSWER = answer(201, body=bytes(REPLY_LIMIT))
LONG_CHUNKS = answer(201, CHUNKED, body=None) + chunks(bytes(REPLY_LIMIT), b"tail")
ANSWER_IN_CHUNKS = answer(201, CHUNKED, body=None) + chunks(b'{"Id"', b':"1"}')


def held(sent: bytes, *, limit: int = 1000) -> Play:
    """Return a connection on which a call is held."""
    return converse([client(sent, asks=1)], limit=limit)


READABLE = {
    "sized": (CREATE, BODY),
    "in chunks": (IN_CHUNKS, BODY),
    "empty": (STOP, b""),
    "no length": (START, b""),
    "no chunks": (request("POST", TARGET, CHUNKED) + chunks(), b""),
}


@pytest.mark.parametrize(("sent", "body"), READABLE.values(), ids=READABLE)
def test_b8_request_is_read_and_released_wherever_it_is_cut(sent: bytes, body: bytes) -> None:
    """A chunked body is read without its chunking, and released with it; a changed one has a length."""
    for place in range(1, len(sent) + 1):
        play = converse([client(sent[:place], sent[place:] + PING, asks=1)])
        assert play.call.body == body
        play.call.send_request(None)
        assert play.daemon.got() == sent
    play = converse([client(sent, asks=1)])
    play.call.send_request(b'{"new":1}')
    assert play.daemon.got() == http1.with_length(play.call.head.raw, 9) + b'{"new":1}'


def test_b7_held_call_waits_for_earlier_answers() -> None:
    """Hook servers are called once all earlier requests are answered, and their Post hooks have ended."""
    steps = [
        client(PING + INFO + START + STOP, to_daemon=PING + INFO),
        returns(OK + NOT_FOUND[:-1]),
        daemon(NOT_FOUND[-1:], to_client=NOT_FOUND[-1:], asks=1),
        release(to_daemon=START),
        settled(NO_CONTENT, asks=1),
        release(to_daemon=STOP),
    ]
    play = converse(steps)
    play.call.answer()
    play.leave()
    assert play.reader.awaited() is None


UNREADABLE: dict[str, tuple[list[Step], str]] = {
    "B5: an encoded body": ([client(request("POST", TARGET, "Content-Encoding: br", body=b"x"), asks=1)], "encoded"),
    "one that ends inside its body": ([client(CREATE[:-1]), ends("client", asks=1)], "ends inside"),
    "one longer than a message may be": (
        [client(request("POST", TARGET, body=bytes(MESSAGE_LIMIT + 1))[:-1]), client(b"\0", asks=1)],
        "longer than the limit",
    ),
}


@pytest.mark.parametrize(("steps", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_request(steps: list[Step], problem: str) -> None:
    play = converse(steps)
    with pytest.raises(Unreadable, match=problem):
        _ = play.call.body


def test_all_held_requests_share_one_limit() -> None:
    first = held(CREATE, limit=2 * len(BODY) - 1)
    second = Play(budget=first.budget)
    second.client.sends(CREATE[:-1])
    assert not second.calls
    second.client.sends(CREATE[-1:])
    with pytest.raises(Unreadable, match=NO_ROOM):
        _ = second.call.body
    second.call.send_request(None)
    assert first.budget.count == len(BODY), "nothing is kept of what nobody has read"


def test_chunked_body_counts_twice_and_stops_without_room() -> None:
    """It is retained with its chunks and without them; one that has no room is not dechunked further."""
    play = converse([client(IN_CHUNKS[:-2])])
    assert play.budget.count == 2 * (len(IN_CHUNKS.partition(b"\r\n\r\n")[2]) - 2)
    top, chunk = request("POST", TARGET, CHUNKED), b"100\r\n" + b"x" * 256 + b"\r\n"
    steps = [client(top, chunk, chunk, asks=1), release(to_daemon=top + chunk * 2), passes(chunk * 2)]
    play = converse(steps, limit=100)
    assert (play.call.problem, play.call._payload) == (NO_ROOM, b"")


@pytest.mark.parametrize("body", [None, b"{}"], ids=["released", "changed"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_released_call_counts_until_it_is_over(body: bytes | None, is_answered: bool) -> None:
    """What was parsed from its request is kept until then."""
    play = held(CREATE)
    play.call.send_request(body)
    if is_answered:
        play.daemon.sends(CREATED)
    else:
        play.call.connection_lost()
    assert play.budget.count == len(BODY)
    play.call.answer()
    assert play.budget.count == 0


@pytest.mark.parametrize("ended", [False, True])
def test_body_is_kept_once_its_turn_has_come(ended: bool) -> None:
    waiting = request("POST", "/containers/create", body=b"x" * 5_000)
    for at in (1, 500, 4_999):
        play = converse([client(PING + waiting[:-at], to_daemon=PING)])
        assert play.budget.count == 0
        if not ended:
            play.daemon.sends(OK)
            assert (play.budget.count, play.calls) == (5_000 - at, [])
        play.client.sends(waiting[-at:])
        if ended:
            assert play.budget.count == 0
            play.client_ends()
            play.daemon.sends(OK)
        assert play.call.body == b"x" * 5_000
        play.call.send_request(None)
        assert play.came() == (OK, waiting + EOF * ended, 1)


def test_b8_long_body_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    play = held(request("POST", TARGET, body=bytes(JOINED_BYTES + 1)), limit=2 * JOINED_BYTES)
    top, body, out, written = play.call.head, play.call.body, play.reader.to_daemon, list[list[bytes]]()

    def write() -> None:
        written.append(list(out))
        out.clear()

    monkeypatch.setattr(play.reader, "wake", write)
    play.call.send_request(None)
    assert [[id(piece) for piece in pieces] for pieces in written] == [[id(top.raw)], [id(body)]]


STATES: dict[CallState, Callable[[DockerHeld], object]] = {
    CallState.RELEASED: lambda call: call.send_request(None),
    CallState.REFUSED: lambda call: call.send_refusal(500, "no"),
    CallState.ENDED: lambda call: call.connection_lost(),
}


@pytest.mark.parametrize("state", STATES)
def test_c1_only_the_first_transition_counts(state: CallState) -> None:
    assert held(CREATE).call.withdraw() == CREATE
    play = held(CREATE)
    assert (play.call.state, play.budget.count) == (CallState.HOLDING, len(BODY))
    STATES[state](play.call)
    assert play.budget.count == (len(BODY) if state is CallState.RELEASED else 0)
    play.came()
    assert not play.call.send_request(b"late")
    assert not play.call.send_refusal(500, "late")
    assert play.call.withdraw() == b""
    play.call.connection_lost()
    assert (play.call.state, play.came()) == (state, (b"", b"", 0))


@pytest.mark.parametrize("sent", [CREATE, START, request("POST", TARGET, CLOSE, body=BODY)])
def test_refusal_keeps_the_connection_unless_the_client_closes_it(sent: bytes) -> None:
    play, closes = held(sent + PING), CLOSE.encode() in sent
    play.call.send_refusal(500, "runtimeproxy: no")
    assert error(play.client.got()) == (500, closes, b'{"message": "runtimeproxy: no"}\n')
    assert (play.client.ended, play.daemon.got()) == (closes, b"" if closes else PING)
    play.leave()
    assert (play.call.reply, play.settled_calls) == (None, []), "it waits for nothing"


AGREED = {
    "created": (CREATE, CREATED, True),
    "create of a name in use": (CREATE, answer(409, body=b"{}"), False),
    "started": (START, NO_CONTENT, True),
    "started before": (START, answer(304, body=None), False),
    "start of nothing": (START, NOT_FOUND, False),
    "stopped": (STOP, NO_CONTENT, True),
    "stopped before": (STOP, answer(304, body=None), True),
    "stop of nothing": (STOP, NOT_FOUND, True),
    "stop that failed": (STOP, answer(500), False),
    "updated": (UPDATE, answer(200, body=b'{"Warnings":null}'), True),
    "update of nothing": (UPDATE, NOT_FOUND, False),
    "removed": (REMOVE, NO_CONTENT, True),
    "remove of nothing": (REMOVE, NOT_FOUND, True),
    "remove of what runs": (REMOVE, answer(409), False),
    "moved": (CREATE, answer(301, "Location: /x"), False),
}


@pytest.mark.parametrize(("sent", "replied", "agreed"), AGREED.values(), ids=AGREED)
def test_with_which_answers_the_daemon_agreed(sent: bytes, replied: bytes, agreed: bool) -> None:
    play = converse([asked(sent), daemon(replied)])
    body, no_op = replied.partition(b"\r\n\r\n")[2], not agreed and b" 304 " in replied
    assert play.call.reply == Reply(agreed, body, no_op=no_op)
    play.call.answer()
    assert play.client.got() == replied


def long_answer(sent: bytes) -> list[Step]:
    """Return the steps of an answer that is too long to be kept: its last byte waits for the Post hooks."""
    return [
        asked(CREATE),
        daemon(sent[:REPLY_LIMIT]),
        daemon(sent[REPLY_LIMIT : REPLY_LIMIT + 1], to_client=sent[:REPLY_LIMIT]),
        daemon(sent[REPLY_LIMIT + 1 : -3], sent[-3:], to_client=sent[REPLY_LIMIT:-1]),
        answered(to_client=sent[-1:]),
    ]


def _pass_on(call: DockerHeld) -> None:
    call.is_plain = True
    call.send_request(None)


WAYS: dict[str, tuple[list[Step], Reply | None, int]] = {
    # the steps, the call's reply, and the limit of retained bytes
    "an answer in chunks is read without them, and passes with them": (
        [asked(CREATE), daemon(ANSWER_IN_CHUNKS), answered(to_client=ANSWER_IN_CHUNKS)],
        Reply(agreed=True, message=b'{"Id":"1"}'),
        1000,
    ),
    "of a long answer the last byte is kept, sized": (long_answer(LONG_ANSWER), Reply(agreed=True), 1000),
    "of a long answer the last byte is kept, chunked": (long_answer(LONG_CHUNKS), Reply(agreed=True), 1000),
    "an answer goes once, and not before it came": (
        [
            asked(CREATE),
            daemon(CREATED[:-1]),
            answered(),
            daemon(CREATED[-1:]),
            answered(to_client=CREATED),
            answered(),
            passes(PING),
        ],
        Reply(agreed=True, message=CREATED_BODY),
        1000,
    ),
    "an answer may go within the turn in which it came": (  # like the answer to a create without a pod
        [
            at_once(_pass_on, client(CREATE + CREATE + PING), to_daemon=CREATE, asks=1),
            daemon(CREATED, to_client=CREATED, to_daemon=CREATE, asks=1),
            daemon(NOT_FOUND, to_client=NOT_FOUND, to_daemon=PING),
        ],
        Reply(agreed=False, message=NOT_FOUND.partition(b"\r\n\r\n")[2]),
        1000,
    ),
    "B9: a request that could not be sent did nothing": (
        [client(CREATE, asks=1), ends("daemon"), release(to_client=ours(502, closes=True) + EOF)],
        Reply(agreed=False, no_op=True),
        1000,
    ),
    "B7: a refusal with the body unread closes": (
        [client(CREATE[:-1], asks=1), refuse(to_client=ours(500, closes=True) + EOF), client(CREATE[-1:] + PING)],
        None,
        5,
    ),
    "B7: a request that breaks after what was retained of it ends unanswered": (
        [asked(IN_CHUNKS[:-12]), client(b"no chunk\r\n", to_client=ours(400, closes=True) + EOF)],
        UNANSWERED,
        5,
    ),
}


@pytest.mark.parametrize(("steps", "reply", "limit"), WAYS.values(), ids=WAYS)
def test_reply_of_a_call(steps: list[Step], reply: Reply | None, limit: int) -> None:
    assert converse(steps, limit=limit).call.reply == reply


def test_known_messages_are_bounded() -> None:
    play = Play(holds=())
    play.client.sends(request("GET", "/info", "X-Long: " + "x" * play.known.longest))
    play.daemon.sends(OK)
    assert (play.known.requests, play.known.answers) == ({}, {})
    for number in range(2 * KNOWN_BYTES // 1000):
        play.client.sends(request("GET", f"/info?{number:0400}"))
        play.daemon.sends(answer(200, f"Date: {number:0400}", body=b"OK"))
    assert KNOWN_BYTES / 2 < play.known.requests.bytes <= KNOWN_BYTES
    assert KNOWN_BYTES / 2 < play.known.answers.bytes <= KNOWN_BYTES


@pytest.mark.parametrize("longest", [1024, 0], ids=["known", "read each time"])
def test_passing_request_is_counted_once_by_its_route(longest: int) -> None:
    play = Play(holds=(), known=Known(longest))
    for sent in (request("GET", "/v1.41/info"), request("POST", f"/containers/{ID}/wait"), request("GET", "/x")):
        for _ in range(3):
            play.client.sends(sent)
            play.daemon.sends(OK)
    counted = {labels[0]: count for (name, labels), count in play.known.counters.items() if name == "calls_passed"}
    assert counted == {"GET /info": 3, "POST /containers/{id}/wait": 3, "other": 3}
