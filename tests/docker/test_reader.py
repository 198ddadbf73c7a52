"""Turns, tunnels, sides that close, what is not finished (relay-rules B2 to B4, B6, B7, B9, C1, C2, C5)."""

import weakref

import pytest

from runtimeproxy.core.call import UNANSWERED, CallState, Reply
from runtimeproxy.errors import WireError
from tests.docker.messages import CHUNKED, CLOSE, EXPECT, PREFACE, answer, chunks, head, request
from tests.docker.peer import Play, Step, asked, converse, passed, settled
from tests.docker.replies import CONTINUE, CREATED, EOF, HIJACKED, NO_CONTENT, NOT_FOUND, OK, SWITCHING, ours
from tests.docker.requests import ATTACH, CREATE, INFO, PING, START
from tests.docker.steps import answered, at_once, client, daemon, ends, leaves, passes, refuse, release, returns

BUILD = request("POST", "/build", CHUNKED) + chunks(b"tar", b"x" * 20)
IN_CHUNKS = request("POST", "/containers/create", CHUNKED) + chunks(b"{", b"}")
NONSENSE = b"GET nonsense HTTP/1.1\r\nHost: h\r\n\r\n"
BROKEN_CHUNK = b"no size\r\n"
LAST = answer(200, CLOSE, body=b"last")
CONFLICT = answer(409, CLOSE, body=b"{}")
BAD = ours(400, closes=True)
AWAY = ours(502, closes=True)


HELD: dict[str, list[Step]] = {
    # B7: pipelining
    "B7: our 400 waits for a held call": [
        client(START + b"\0", asks=1),
        release(to_daemon=START),
        daemon(NO_CONTENT),
        answered(to_client=NO_CONTENT + BAD + EOF),
    ],
    "B7: a held body that breaks is answered, and nobody is asked": [
        client(IN_CHUNKS[:-9] + BROKEN_CHUNK, to_client=BAD + EOF)
    ],
    "B7: a held body that breaks is answered in its turn": [
        client(PING + IN_CHUNKS[:-9] + BROKEN_CHUNK, to_daemon=PING),
        daemon(OK, to_client=OK + BAD + EOF),
    ],
    # B2, B3: tunnels
    "a tunnel passes all bytes and the client's EOF": [
        passed(ATTACH, SWITCHING + START),
        passes(START, b"\0"),
        ends("client", to_daemon=EOF),
        returns(b"\0", CREATED),
    ],
    "what is held behind a tunnel is its first bytes": [
        client(INFO + CREATE, to_daemon=INFO),
        daemon(HIJACKED, to_client=HIJACKED, to_daemon=CREATE),
    ],
    # B9, C5: the daemon closes
    "B9: a daemon that cannot be dialled is answered 502, which closes": [
        client(START + PING, asks=1),
        ends("daemon"),
        release(to_client=AWAY + EOF),
        answered(),
        client(PING),
    ],
    "B9: 502 within the turn, and nothing behind it is read": [
        client(CREATE[:-3]),
        ends("daemon"),
        at_once(lambda call: call.send_request(None), client(CREATE[-3:] + START), to_client=AWAY + EOF, asks=1),
    ],
    "B9: an idle daemon that closes closes the client": [
        passed(PING, OK),
        ends("daemon", to_client=EOF),
        client(START),
    ],
    "B9: an answer that closes to a held call drops what was pipelined": [
        client(CREATE + START, asks=1),
        release(to_daemon=CREATE),
        settled(CONFLICT),
    ],
    "B9: EOF drops what was pipelined, and nobody is asked about it": [
        client(PING + CREATE, to_daemon=PING),
        ends("daemon", to_client=EOF),
    ],
    "C5: the daemon's EOF waits for an answer that is kept": [
        client(CREATE + PING, asks=1),
        release(to_daemon=CREATE),
        daemon(CREATED),
        ends("daemon"),
        answered(to_client=CREATED + EOF),
    ],
    # C2: the client closes
    "C2: a client that goes ends all that wait": [client(PING + CREATE[:-3], to_daemon=PING), leaves(), daemon(OK)],
}


@pytest.mark.parametrize("steps", HELD.values(), ids=HELD)
def test_held(steps: list[Step]) -> None:
    converse(steps).leave()


def test_held_body_broken_after_its_answer_gets_no_second_one() -> None:
    converse([asked(IN_CHUNKS[:-9]), daemon(CREATED), client(BROKEN_CHUNK, to_client=EOF)], limit=1).leave()


LOST = [asked(CREATE), ends("daemon", to_client=EOF), answered(), client(PING)]
REDIALLED: dict[str, tuple[int, list[Step]]] = {
    # how often the daemon is dialled again
    "during a hold": (
        1,
        [client(CREATE + PING, asks=1), ends("daemon"), release(to_daemon=CREATE), settled(CREATED, to_daemon=PING)],
    ),
    "while the body is still to come": (
        1,
        [client(CREATE[:-3]), ends("daemon"), client(CREATE[-3:], asks=1), release(to_daemon=CREATE)],
    ),
    "and it gets the client's EOF": (
        1,
        [client(START, asks=1), ends("client"), ends("daemon"), release(to_daemon=START + EOF)],
    ),
    "but not for a refusal": (0, [client(START, asks=1), ends("daemon"), refuse(to_client=ours(500, True) + EOF)]),
    "but not for what was sent": (0, LOST),
    "nor for what has begun to be answered": (0, [LOST[0], daemon(CREATED[:-1]), *LOST[1:]]),
}


@pytest.mark.parametrize(("redials", "steps"), REDIALLED.values(), ids=REDIALLED)
def test_b9_daemon_that_closes_is_dialled_once_more(redials: int, steps: list[Step]) -> None:
    assert converse(steps, daemons=1).redials == redials


PASSING: dict[str, list[Step]] = {
    "B7: our 400 waits for its turn and closes, also behind what is not remembered": [
        client(CREATE + INFO + NONSENSE + PING, to_daemon=CREATE + INFO),
        returns(OK),
        daemon(NOT_FOUND, to_client=NOT_FOUND + BAD + EOF),
        client(PING),
    ],
    # The daemon never has the whole request: dockerd sees the end of the connection inside its body.
    "B7: a body that breaks is answered in its turn": [
        passes(PING + BUILD[:-30]),
        client(BROKEN_CHUNK),
        daemon(OK + NOT_FOUND, to_client=OK + BAD + EOF),
    ],
    "B7: a body that breaks once its answer is out just ends the connection": [
        passed(BUILD[:-30], NOT_FOUND),
        client(BROKEN_CHUNK, to_client=EOF),
    ],
    "B7: a body that breaks while an earlier request is answered waits for that": [
        passed(INFO + BUILD[:-30], NOT_FOUND[:-1]),
        client(BROKEN_CHUNK),
        daemon(NOT_FOUND[-1:], to_client=NOT_FOUND[-1:] + BAD + EOF),
    ],
    "B1: a tunnel whose client ended early gets the EOF behind the bytes before it": [
        client(ATTACH + b"stdin", to_daemon=ATTACH),
        ends("client"),
        daemon(SWITCHING, to_client=SWITCHING, to_daemon=b"stdin" + EOF),
    ],
    "B9: whoever is inside a body is let send on when the daemon leaves": [
        passed(BUILD[:-9], LAST),
        ends("daemon", to_client=EOF),
        client(BUILD[-9:]),
    ],
    "B9: an answer that breaks off looks like that": [passed(INFO, OK[:-1]), ends("daemon", to_client=EOF)],
}


@pytest.mark.parametrize("steps", PASSING.values(), ids=PASSING)
def test_passing(steps: list[Step]) -> None:
    converse(steps, holds=())


PIPELINED = {
    "held and whole": CREATE + PING,
    "held and cut": CREATE[:-3],
    "passing": PING + INFO,
    "passing and cut": BUILD[:-3],
    "not readable": b"\0",
    "a possible upgrade": ATTACH + b"stdin",
}


@pytest.mark.parametrize("behind", PIPELINED.values(), ids=PIPELINED)
@pytest.mark.parametrize("sent", [INFO, BUILD], ids=["remembered", "not remembered"])
def test_b9_answer_that_closes_drops_what_was_pipelined(sent: bytes, behind: bytes) -> None:
    play = Play()
    play.client.sends(sent + behind)
    play.daemon.got()
    play.daemon.sends(LAST[:-1], LAST[-1:])
    assert play.client.got() == LAST
    play.client.sends(START, BROKEN_CHUNK)
    assert (play.came(), play.budget.count) == ((b"", b"", 0), 0)
    with pytest.raises(WireError, match="without a request"):
        play.daemon.sends(OK)
    assert not play.daemon_ends()


def test_answered_call_is_not_kept() -> None:
    play = converse([client(CREATE, asks=1), release(to_daemon=CREATE), settled(CREATED)])
    call = weakref.ref(play.calls.pop())
    play.settled_calls.clear()
    assert call() is None


SENT = release(to_daemon=START)
GONE: dict[str, tuple[list[Step], list[str], Reply | None]] = {
    # only held calls are told that they have ended
    "C2: before its release": ([leaves()], True, UNANSWERED),
    "C2: before the answer": ([SENT, leaves(), daemon(NO_CONTENT)], False, UNANSWERED),
    "C2: after the answer": ([SENT, daemon(NO_CONTENT), leaves(), answered()], False, Reply(agreed=True)),
    "B9: the daemon, before the answer": ([SENT, ends("daemon", to_client=EOF)], False, UNANSWERED),
}


@pytest.mark.parametrize(("steps", "ended", "reply"), GONE.values(), ids=GONE)
def test_what_a_call_is_told_when_a_side_has_gone(steps: list[Step], ended: bool, reply: Reply) -> None:
    play = converse([client(START, asks=1)])
    for step in steps:
        step.act(play)
        assert play.came() == step[1:4]
    play.act()
    play.call.connection_lost()
    play.act()
    assert (play.call.state is CallState.ENDED, play.call.reply) == (ended, reply)
    assert play.settled_calls == [play.call], "once"
    assert not play.call.send_request(None)


NOTHING, A_CALL, AN_ANSWER, EVENTS = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
LOGS = request("GET", "/v1.41/containers/box/logs?follow=1")
FOLLOWED = head("HTTP/1.1 200 OK", CHUNKED)
WAITING = head("PUT /containers/box/archive HTTP/1.1", "Host: d", "Content-Length: 3", EXPECT)

Look = tuple[Step, tuple[int, int, int], bool]
UNFINISHED: dict[str, list[Look]] = {
    # the steps, what is unfinished after them, and whether the client is inside no request
    "a request": [(client(INFO[:9]), A_CALL, False), (client(INFO[9:]), A_CALL, True), (daemon(OK), NOTHING, True)],
    "a body that is waited for": [
        (client(WAITING), A_CALL, False),
        (daemon(CONTINUE), A_CALL, False),
        (client(b"tar"), A_CALL, True),
        (daemon(OK), NOTHING, True),
    ],
    "pipelined requests": [
        (client(PING + LOGS + PING), (3, 0, 0), True),
        (daemon(OK + FOLLOWED), (1, 1, 0), True),
        (daemon(b"5\r\nline\n\r\n"), (1, 1, 0), True),
        (daemon(b"0\r\n\r\n"), A_CALL, True),
        (daemon(OK), NOTHING, True),
    ],
    "events": [(client(request("GET", "/events")), A_CALL, True), (daemon(FOLLOWED), EVENTS, True)],
    "an upgrade": [
        (client(ATTACH), A_CALL, False),
        (daemon(SWITCHING), AN_ANSWER, False),
        (client(b"stdin"), AN_ANSWER, False),
    ],
    "an upgrade that is refused": [(client(ATTACH), A_CALL, False), (daemon(NOT_FOUND), NOTHING, True)],
    "an unframed answer": [(client(INFO), A_CALL, True), (daemon(HIJACKED), AN_ANSWER, False)],
    "HTTP/2": [(client(PREFACE), AN_ANSWER, False)],
    "an answer that closes": [(client(INFO), A_CALL, True), (daemon(LAST), NOTHING, True)],
    "an answer that breaks off": [
        (client(LOGS), A_CALL, True),
        (daemon(FOLLOWED), AN_ANSWER, True),
        (ends("daemon"), NOTHING, True),
    ],
    "what cannot be read": [(client(b"no HTTP\r\n\r\n"), NOTHING, True)],
    "a held request, until its answer goes out": [
        (client(CREATE[:-3]), A_CALL, False),
        (client(CREATE[-3:]), A_CALL, True),
        (release(), A_CALL, True),
        (daemon(CREATED[:-3]), A_CALL, True),
        (daemon(CREATED[-3:]), A_CALL, True),
        (answered(), NOTHING, True),
    ],
    "what waits behind a held request, once it is read": [
        (client(START + LOGS), A_CALL, False),
        (release(), A_CALL, False),
        (daemon(NO_CONTENT), A_CALL, False),
        (answered(), A_CALL, True),
        (leaves(), NOTHING, True),
    ],
    "half a held request whose client has gone": [(client(CREATE[:-3]), A_CALL, False), (leaves(), NOTHING, True)],
}


@pytest.mark.parametrize("looks", UNFINISHED.values(), ids=UNFINISHED)
def test_what_is_not_finished_and_whether_the_client_is_inside_it(looks: list[Look]) -> None:
    play = Play()
    for number, (step, unfinished, between_requests) in enumerate(looks):
        step.act(play)
        left = (play.reader.unfinished(), play.reader.between_requests)
        assert left == (unfinished, between_requests), f"look {number}"


@pytest.mark.parametrize("sent", [b"", INFO[:20], INFO, CREATE])
def test_reader_knows_whether_a_request_has_begun(sent: bytes) -> None:
    play = Play()
    play.client.sends(sent)
    assert play.reader.requests.began is bool(sent)
