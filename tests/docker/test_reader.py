"""One connection: passing, held and closing messages (relay-rules B1 to B4, B6 to B9, B11, C2, C5; fault matrix X2)."""

import weakref
from typing import Any

import pytest

from runtimeproxy.core.call import NO_ROOM, UNANSWERED, CallState, Reply
from runtimeproxy.docker.parsers import READ_AHEAD_BYTES
from runtimeproxy.errors import WireError
from tests.docker import messages as m
from tests.docker import peer
from tests.docker.messages import CREATE, EOF, INFO, NO_CONTENT, NOT_FOUND, OK, PING, START, STOP, answer, head, request
from tests.docker.peer import Step, answered, client, daemon, ends, exchange, hold, passes, release, returns, steps

HEAD = request("HEAD", "/_ping")
KILL = request("POST", "/containers/box/kill")
BUILD = request("POST", "/build", m.CHUNKED) + m.chunks(b"tar" * 9, b"x" * 20)
IN_CHUNKS = request("POST", "/containers/create", m.CHUNKED) + m.chunks(b"{", b"}")
NONSENSE = b"GET nonsense HTTP/1.1\r\nHost: h\r\n\r\n"
BROKEN_CHUNK = b"no size\r\n"
STREAM = answer(200, m.CHUNKED, body=None) + m.chunks(b'{"status":"Pulling"}', b"x" * 30, trailers=("Sum: 1",))
UNFRAMED_404 = answer(404, "Content-Type: text/plain", m.CLOSE, body=None) + b"No such container: box\n"
LONG = answer(200, body=OK + OK)
SEVEN = answer(200, "Content-Length: 7", body=None)
LAST = answer(200, m.CLOSE, body=b"last")
CONFLICT = answer(409, m.CLOSE, body=b"{}")
BAD, UNAVAILABLE, REFUSED = (m.proxy_answer(status, closes=True) + EOF for status in (400, 502, 500))

LAST_START = request("POST", "/containers/box/start", m.CLOSE)
UPLOAD = request("POST", "/images/load", body=b"i" * READ_AHEAD_BYTES)
PINGS = request("POST", "/images/load", body=PING + PING)
LONG_STDIN = b"s" * (READ_AHEAD_BYTES + 1)
MANY = PING * (READ_AHEAD_BYTES // len(PING) + 1)
EXPECTING = request("POST", "/containers/create", m.EXPECT, body=b'{"Image":"i"}')
OLD_EXPECTING = head("POST /containers/create HTTP/1.0", "Content-Length: 2", m.EXPECT)
EXPECTING_NOTHING = head("POST /containers/create HTTP/1.1", "Host: h", m.EXPECT)
LONG_CREATE = request("POST", "/containers/create", body=b'{"Image":"i", "Cmd":[]}')
HUGE = request("POST", "/containers/create", body=b"{" + bytes(2 * READ_AHEAD_BYTES))
HALF = len(HUGE) // 2
WITHOUT_WAITING = EXPECTING.replace(b"HTTP/1.1", b"HTTP/1.0", 1)

PASSING: dict[str, list[Step]] = {
    "nothing of the daemon is read after our last answer": steps(
        client(PING + b"nonsense\r\n\r\n", to_daemon=PING),
        daemon(OK + NOT_FOUND, NOT_FOUND, b"nonsense\r\n\r\n", to_client=OK + BAD),
    ),
    "a cached answer inside another is no answer": steps(
        exchange(PING, OK),
        passes(PING),
        daemon(LONG[: -2 * len(OK)], OK, OK, to_client=LONG),
        passes(PING, PING),
        daemon(OK[:9], OK[9:], to_client=OK),
        returns(b"HTTP/1.1 201 Words\r\nX: ", OK),
    ),
    "an interim and a long answer pass": [
        exchange(PING, m.EARLY),
        returns(answer(200, body=b"x" * 2000)),
        passes(PING),
    ],
    "a tunnel passes all bytes and the client's EOF": steps(
        exchange(m.ATTACH, m.SWITCHING + START), passes(START, b"\0"), ends("client", to_daemon=EOF)
    ),
    "B1: EOF passes into a tunnel after the bytes before it": steps(
        client(m.ATTACH + b"stdin", to_daemon=m.ATTACH),
        ends("client"),
        daemon(m.SWITCHING, to_client=m.SWITCHING, to_daemon=b"stdin" + EOF),
    ),
    "a cached answer is for its method only": [exchange(HEAD, SEVEN), exchange(PING, SEVEN), returns(b"1234567")],
    "a bad beginning is refused before its head has ended": [client(b"GET / HTTP/1.1\r\n", b"X: \0", to_client=BAD)],
    "a message of HTTP/1.0, and one without a body": steps(
        exchange(head("GET /_ping HTTP/1.0", "Connection: keep-alive"), OK),
        exchange(INFO, answer(304, "Content-Length: 7", body=None)),
        exchange(HEAD, answer(404, m.CHUNKED, body=None)),
        exchange(PING, head("HTTP/1.0 200 OK") + b"to the end"),
        returns(b"\0"),
    ),
    "a head that begins as HTTP/2 does": steps(
        client(*(head("PRI * HTTP/1.1", "Host: h").partition(b"\n")), to_daemon=head("PRI * HTTP/1.1", "Host: h"))
    ),
    "B4: HTTP/2 begins a connection only": steps(
        exchange(PING, OK), client(m.PREFACE, to_client=m.proxy_answer(505, closes=True) + EOF)
    ),
    "B1: reading pauses and resumes around an upgrade": steps(
        client(m.ATTACH, LONG_STDIN, to_daemon=m.ATTACH, reads=False),
        daemon(m.SWITCHING, to_client=m.SWITCHING, to_daemon=LONG_STDIN),
    ),
    # B7: an error in its place
    "B7: our 400 waits for earlier answers and closes": steps(
        client(CREATE + INFO + NONSENSE + PING, to_daemon=CREATE + INFO),
        returns(OK),
        daemon(NOT_FOUND, to_client=NOT_FOUND + BAD),
        client(PING),
    ),
    # B9: an answer that closes, and a daemon that closes
    "B9: a body continues after an answer that closes, nothing follows it": steps(
        exchange(CREATE[:-9], LAST), client(CREATE[-9:-6], CREATE[-6:] + PING, PING, to_daemon=CREATE[-9:])
    ),
    "B9: what waits for an upgrade that fails and closes is dropped": steps(
        client(m.ATTACH, b"\0 no request", to_daemon=m.ATTACH),
        returns(LAST[:-3]),
        client(b"\0 nor this"),
        ends("client", to_daemon=EOF),
        returns(LAST[-3:]),
    ),
    "B9: a client inside a body may send on when the daemon closes": steps(
        exchange(BUILD[:-9], LAST), ends("daemon", to_client=EOF), client(BUILD[-9:])
    ),
    "B9: an aborted answer is followed by EOF": [exchange(INFO, OK[:-1]), ends("daemon", to_client=EOF)],
    # B11: empty lines
    "B11: empty lines after a POST are dropped": steps(
        exchange(KILL, NO_CONTENT),
        client(b"\r", b"\n", b"\r\n" + PING, to_daemon=PING),
        returns(OK),
        exchange(KILL, NO_CONTENT),
        client(b"\r\n" + UPLOAD + b"\r\n", to_daemon=UPLOAD),
        returns(OK),
        client(b"\r", b"\n" + PING, to_daemon=PING),
    ),
    "B11: a third one is refused": [exchange(KILL, NO_CONTENT), client(b"\r\n\r\n\r\n\r\n", to_client=BAD)],
    "B11: one after another method is refused": steps(
        exchange(KILL, NO_CONTENT), exchange(PING, OK), client(b"\r\n" + PING, to_client=BAD)
    ),
}


# Of an invalid chunk the bytes of earlier reads have passed: these steps are not cut. The daemon never has the complete
# request: dockerd sees the end of the connection inside its body.
BREAKING: dict[str, list[Step]] = {
    "a held body that breaks after its answer": steps(
        hold(IN_CHUNKS[:-9]), daemon(m.CREATED), client(BROKEN_CHUNK, to_client=EOF)
    ),
    "a request that breaks while it is answered has no second answer": steps(
        exchange(BUILD[:-20], STREAM[:-9]), client(b"x" * 30, to_client=EOF)
    ),
    "B7: a body that breaks is answered in its place": steps(
        passes(PING + BUILD[:-30]), client(BROKEN_CHUNK), daemon(OK + NOT_FOUND, to_client=OK + BAD)
    ),
    "B7: a body that breaks after its answer ends the connection": steps(
        exchange(BUILD[:-30], NOT_FOUND), client(BROKEN_CHUNK, to_client=EOF)
    ),
}


HELD: dict[str, list[Step]] = {
    # In its tunnel, without the unreadable bytes, the following bytes could be a request that was not checked.
    "after an unreadable request nothing passes into the tunnel of an earlier answer": steps(
        client(PING + b"1\r\n\0", to_daemon=PING),
        returns(m.HIJACKED),
        client(START),
        returns(b"bytes"),
        ends("client", to_daemon=EOF),
    ),
    "an answer is retained, not what comes before it": steps(
        hold(CREATE), daemon(m.EARLY + STREAM, to_client=m.EARLY), answered(to_client=STREAM)
    ),
    "B11: an empty line does not keep EOF back": steps(
        client(START + b"\r\n", held=1),
        ends("client"),
        release(to_daemon=START),
        peer.settle(NO_CONTENT, to_daemon=EOF),
    ),
    "a cached request inside a body or after a hold is no request": steps(
        exchange(PING, OK),
        client(PINGS[: -2 * len(PING)], PING, PING, to_daemon=PINGS),
        returns(OK),
        client(START, PING, held=1),
        peer.refuse(to_client=m.proxy_answer(500), to_daemon=PING),
    ),
    "B2: an unframed answer to a held call passes as it comes": steps(
        hold(START), daemon(UNFRAMED_404[:-5], UNFRAMED_404[-5:], to_client=UNFRAMED_404), answered()
    ),
    "B3: a request held for an earlier tunnel is the first bytes of the tunnel": steps(
        client(INFO + CREATE, to_daemon=INFO), daemon(m.HIJACKED, to_client=m.HIJACKED, to_daemon=CREATE)
    ),
    # B6: Expect: 100-continue
    "B6: 100 Continue follows all earlier answers, and the field stays": steps(
        client(PING + INFO + EXPECTING[:-13], to_daemon=PING + INFO),
        returns(OK),
        returns(NOT_FOUND[:-1]),
        daemon(NOT_FOUND[-1:], to_client=NOT_FOUND[-1:] + m.CONTINUE),
        client(EXPECTING[-13:], held=1),
        release(to_daemon=EXPECTING),
    ),
    "B6: a client that did not wait gets one, not the daemon's as well": steps(
        client(PING + EXPECTING, to_daemon=PING),
        daemon(OK, to_client=OK + m.CONTINUE, held=1),
        release(to_daemon=EXPECTING),
        daemon(m.CONTINUE + m.CREATED),
        answered(to_client=m.CREATED),
    ),
    "a refusal closes where the client does": [client(LAST_START + PING, held=1), peer.refuse(to_client=REFUSED)],
    "B6: immediately without an earlier request": [client(EXPECTING[:-13], to_client=m.CONTINUE)],
    "B6: a client of HTTP/1.0 gets none": [client(OLD_EXPECTING), client(b"{}", held=1)],
    "B6: a request without a body gets none": [client(EXPECTING_NOTHING, held=1)],
    "B6: the daemon's passes where the proxy sent none": [hold(WITHOUT_WAITING), returns(m.CONTINUE)],
    # B1: EOF, and reading ahead
    "B1: EOF waits for calls that continue within the read": steps(
        client(START + STOP + CREATE, held=1),
        ends("client"),
        peer.on_held(
            lambda call: call.send_request(None), peer.refuse(), to_client=m.proxy_answer(500), to_daemon=STOP, held=1
        ),
        peer.settle(NO_CONTENT, to_daemon=CREATE + EOF, held=1),
    ),
    "B1: EOF inside a held body passes after it": [  # otherwise the daemon would wait for ever
        client(CREATE[:-3]),
        ends("client", held=1),
        release(to_daemon=CREATE[:-3] + EOF),
    ],
    "B1: a held body that was cut is refused with the end of the connection": steps(
        client(CREATE[:-3]), ends("client", held=1), peer.refuse(to_client=REFUSED)
    ),
    "B1: after a held call reading continues up to the limit": steps(
        client(START, held=1), client(LONG_STDIN[:-1]), client(b"s", reads=False)
    ),
    "B1: reading continues once the held call is answered": steps(
        client(START, MANY, held=1, reads=False),
        release(to_daemon=START, reads=False),
        daemon(NO_CONTENT, reads=False),
        answered(to_client=NO_CONTENT, to_daemon=MANY),
    ),
    # B7: pipelining
    "B7: hook servers are called once earlier requests are answered and their Post hooks done": steps(
        client(PING + INFO + START + STOP, to_daemon=PING + INFO),
        returns(OK + NOT_FOUND[:-1]),
        daemon(NOT_FOUND[-1:], to_client=NOT_FOUND[-1:], held=1),
        release(to_daemon=START),
        peer.settle(NO_CONTENT, held=1),
        release(to_daemon=STOP),
    ),
    "B7: a held body that breaks is answered without hooks": [client(IN_CHUNKS[:-9] + BROKEN_CHUNK, to_client=BAD)],
    # B9, C5: the daemon closes
    "B9: a daemon that cannot be dialled is answered 502, which closes": steps(
        client(START + PING, held=1), ends("daemon"), release(to_client=UNAVAILABLE), answered(), client(PING)
    ),
    "B9: an idle daemon that closes closes the client": steps(
        exchange(PING, OK), ends("daemon", to_client=EOF), client(START)
    ),
    "B9: an answer that closes to a held call drops what was pipelined": steps(
        client(CREATE + START, held=1), release(to_daemon=CREATE), peer.settle(CONFLICT)
    ),
    "B9: an answer that closes drops what was pipelined": steps(
        client(INFO + CREATE + PING, to_daemon=INFO), returns(LAST), client(START, BROKEN_CHUNK)
    ),
    "B9: it drops half a request": [client(BUILD + CREATE[:-3], to_daemon=BUILD), returns(LAST), client(CREATE[-3:])],
    "B9: it drops what cannot be read": [client(BUILD + b"\0", to_daemon=BUILD), returns(LAST), client(PING)],
    "B9: it drops a possible upgrade": [client(INFO + m.ATTACH + b"s", to_daemon=INFO + m.ATTACH), returns(LAST)],
    "B9: EOF drops what was pipelined, without hooks": steps(
        client(PING + CREATE, to_daemon=PING), ends("daemon", to_client=EOF)
    ),
    "C5: the daemon's EOF waits for an answer that is retained": steps(
        client(CREATE + PING, held=1),
        release(to_daemon=CREATE),
        daemon(m.CREATED),
        ends("daemon"),
        answered(to_client=m.CREATED + EOF),
    ),
    "C2: a client that leaves ends all requests that wait": steps(
        client(PING + CREATE[:-3], to_daemon=PING), peer.disconnects(), daemon(OK)
    ),
}


ABOVE_THE_LIMIT: dict[str, list[Step]] = {
    "the rest passes as it comes": steps(
        hold(LONG_CREATE[:-8]), *(passes(LONG_CREATE[at : at + 1]) for at in range(-8, -1))
    ),
    "what follows waits for the answer": steps(
        client(LONG_CREATE[:-1], held=1),
        client(LONG_CREATE[-1:] + PING),
        release(to_daemon=LONG_CREATE),
        peer.settle(m.CREATED, to_daemon=PING),
    ),
    "one that was answered before its end blocks nothing": steps(
        hold(LONG_CREATE[:-8]), peer.settle(NOT_FOUND), passes(LONG_CREATE[-8:] + PING)
    ),
    "B1: reading pauses inside it until it is released": steps(
        client(HUGE[:HALF], HUGE[HALF:], held=1, reads=False),
        ends("client", reads=False),
        release(to_daemon=HUGE + EOF),
    ),
}

TABLES: list[tuple[dict[str, list[Step]], dict[str, Any]]] = [(PASSING, {"holds": ()}), (HELD, {})]
TABLES += [(BREAKING, {"modes": peer.MODES, "limit": 1}), (ABOVE_THE_LIMIT, {"limit": 10})]
ROWS = {name: (row, options) for table, options in TABLES for name, row in table.items()}


@pytest.mark.parametrize(("row", "options"), ROWS.values(), ids=ROWS)
def test_conversation_has_these_effects(row: list[Step], options: dict[str, Any]) -> None:
    play = peer.converse(row, **options)
    if "limit" in options:
        assert {call.problem for call in play.calls} <= {NO_ROOM}
    play.close()


@pytest.mark.parametrize("passes", [True, False])
def test_b4_http2_client_gets_tunnel_or_is_closed(passes: bool) -> None:
    sent, replied = m.PREFACE + b"\0\0\0\4\0", b"\0\0\0\4\1"
    tunnel = [client(sent, to_daemon=sent), returns(replied)]
    play = peer.converse(tunnel if passes else [client(sent, to_client=EOF)], http2_may_pass=passes)
    assert play.http2_clients == 1


UNREADABLE = [(head("GET / HTTP/1.1", "Host: h", "Content-Length: +5"), 400), (head("GET / HTTP/2.0", "Host: h"), 505)]


@pytest.mark.parametrize(("sent", "status"), UNREADABLE)
def test_unreadable_request_is_answered_and_closes(sent: bytes, status: int) -> None:
    play = peer.converse([client(sent, PING, START, to_client=m.proxy_answer(status, closes=True) + EOF)], holds=())
    assert [refusal.status for refusal in play.refusals] == [status]


LOST = [hold(CREATE), ends("daemon", to_client=EOF), answered(), client(PING)]
REDIALLED: dict[str, tuple[int, list[Step]]] = {
    # how often the daemon is dialled again
    "during a hold": (
        1,
        [
            client(CREATE + PING, held=1),
            ends("daemon"),
            release(to_daemon=CREATE),
            peer.settle(m.CREATED, to_daemon=PING),
        ],
    ),
    "and it gets the client's EOF": (
        1,
        [client(START, held=1), ends("client"), ends("daemon"), release(to_daemon=START + EOF)],
    ),
    "but not for a refusal": (0, [client(START, held=1), ends("daemon"), peer.refuse(to_client=REFUSED)]),
    "but not for what was sent": (0, LOST),
    "nor for what has begun to be answered": (0, [LOST[0], daemon(m.CREATED[:-1]), *LOST[1:]]),
}


@pytest.mark.parametrize(("redials", "steps"), REDIALLED.values(), ids=REDIALLED)
def test_b9_daemon_is_redialled_once_when_it_closes(redials: int, steps: list[Step]) -> None:
    assert peer.converse(steps, daemons=1).redials == redials


TWO_LENGTHS = head("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2")
SETTINGS = bytes.fromhex("000006040000000000000300000064")
MODE, NO_MODE = r"; it speaks HTTP/2: is --backend-runtime-mode right\?$", r"^(?!.*backend-runtime-mode)"
OTHER_PROTOCOLS = [b"\0" * 9, b"\0\0\6\4\0\0\0\0\1", b"\x16\x03\x01\2\0\0\0\0\0", b"HTTP/1.1 200\0"]
BROKEN: dict[str, tuple[list[Step], Step, str]] = {
    # the steps before, the bytes that break the protocol, and the error's text
    "no request, at first": ([], daemon(OK), "without a request"),
    "a call that is not released": ([client(START, held=1)], daemon(NO_CONTENT), "without a request"),
    "two lengths": ([passes(PING)], daemon(TWO_LENGTHS), NO_MODE),
    "cut in a field": ([passes(PING)], daemon(TWO_LENGTHS[:40], TWO_LENGTHS[40:]), NO_MODE),
    "a broken chunk": ([passes(PING), returns(STREAM[: STREAM.index(b"0\r\nSum")])], daemon(b"zz\r\n"), NO_MODE),
    "HTTP/2 after a request": ([passes(PING)], daemon(SETTINGS), MODE),
    **{f"{sent!r}": ([passes(PING)], daemon(sent), NO_MODE) for sent in OTHER_PROTOCOLS},
}


@pytest.mark.parametrize(("before", "broken", "message"), BROKEN.values(), ids=BROKEN)
def test_invalid_answer_raises_wire_error(before: list[Step], broken: Step, message: str) -> None:
    play = peer.converse(before)
    with pytest.raises(WireError, match=message):
        broken.act(play)
    assert play.effects() == (b"", b"", 0)


def test_answered_call_is_freed() -> None:
    play = peer.converse([hold(CREATE), peer.settle(m.CREATED)])
    call = weakref.ref(play.calls.pop())
    play.settled_calls.clear()
    assert call() is None


SENT = release(to_daemon=START)
CLOSED: dict[str, tuple[list[Step], bool, Reply]] = {
    # whether the call ends, and its reply
    "C2: before its release": ([peer.disconnects()], True, UNANSWERED),
    "C2: before the answer": ([SENT, peer.disconnects(), daemon(NO_CONTENT)], False, UNANSWERED),
    "C2: after the answer": ([SENT, daemon(NO_CONTENT), peer.disconnects(), answered()], False, Reply(agreed=True)),
    "B9: the daemon, before the answer": ([SENT, ends("daemon", to_client=EOF)], False, UNANSWERED),
}


@pytest.mark.parametrize(("steps", "ended", "reply"), CLOSED.values(), ids=CLOSED)
def test_reply_when_client_or_daemon_closes(steps: list[Step], ended: bool, reply: Reply) -> None:
    play = peer.converse([client(START, held=1), *steps])
    play.act()
    play.call.connection_lost()
    play.act()
    assert (play.call.state is CallState.ENDED, play.call.reply) == (ended, reply)
    assert play.settled_calls == [play.call], "once"
    assert not play.call.send_request(None)


NOTHING, A_CALL, AN_ANSWER, EVENTS = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
LOGS = request("GET", "/v1.41/containers/box/logs?follow=1")
FOLLOWED = head("HTTP/1.1 200 OK", m.CHUNKED)

UNFINISHED: dict[str, list[tuple[Step, tuple[int, int, int], bool]]] = {
    # the steps, the unfinished work after them, and whether the client is inside no request
    "pipelined requests": steps(
        (client(PING + LOGS + PING), (3, 0, 0), True),
        (daemon(OK + FOLLOWED), (1, 1, 0), True),
        (daemon(b"5\r\nline\n\r\n0\r\n\r\n"), A_CALL, True),
        (daemon(OK), NOTHING, True),
    ),
    "events": [(client(request("GET", "/events")), A_CALL, True), (daemon(FOLLOWED), EVENTS, True)],
    "an upgrade": [(client(m.ATTACH), A_CALL, False), (daemon(m.SWITCHING), AN_ANSWER, False)],
    "HTTP/2": [(client(m.PREFACE), AN_ANSWER, False)],
    "a held request, until its answer is sent": steps(
        (client(CREATE[:-3]), A_CALL, False),
        (client(CREATE[-3:]), A_CALL, True),
        (release(), A_CALL, True),
        (daemon(m.CREATED[:-3]), A_CALL, True),
        (daemon(m.CREATED[-3:]), A_CALL, True),
        (answered(), NOTHING, True),
    ),
    "half a held request whose client has left": [
        (client(CREATE[:-3]), A_CALL, False),
        (peer.disconnects(), NOTHING, True),
    ],
}


@pytest.mark.parametrize("steps", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_work_is_counted(steps: list[tuple[Step, tuple[int, int, int], bool]]) -> None:
    play = peer.Play()
    for number, (step, unfinished, between_requests) in enumerate(steps):
        step.act(play)
        actual = (play.reader.unfinished(), play.reader.between_requests)
        assert actual == (unfinished, between_requests), f"step {number}"
