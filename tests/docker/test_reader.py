"""One connection: its messages, and its held calls (relay-rules A4, B1 to B9, B11, C1 to C3, C5; fault matrix X2)."""

import weakref
from itertools import product
from typing import Any

import pytest

from runtimeproxy.core.call import MESSAGE_LIMIT, NO_ROOM, UNANSWERED, CallState, Reply, Unreadable
from runtimeproxy.docker.exchange import CACHE_BYTES, REPLY_LIMIT, Action, DockerHeld, MessageCaches
from runtimeproxy.docker.parsers import READ_AHEAD_BYTES
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from tests.docker import messages as m
from tests.docker import peer
from tests.docker.messages import CREATE, EOF, INFO, NO_CONTENT, NOT_FOUND, OK, PING, START, STOP, answer, head, request
from tests.docker.peer import Step, answered, client, daemon, ends, exchange, hold, passes, release, returns, steps

HEAD = request("HEAD", "/_ping")
KILL = request("POST", "/containers/box/kill")
BUILD = request("POST", "/build", m.CHUNKED) + m.chunks(b"tar" * 9, b"x" * 20)
IN_CHUNKS = request("POST", "/containers/create", m.CHUNKED) + m.chunks(b"{", b"}")
BROKEN_CHUNK = b"no size\r\n"
STREAM = answer(200, m.CHUNKED, body=None) + m.chunks(b'{"status":"Pulling"}', b"x" * 30, trailers=("Sum: 1",))
UNFRAMED_404 = answer(404, "Content-Type: text/plain", m.CLOSE, body=None) + b"No such container: box\n"
LONG = answer(200, body=OK + OK)
SEVEN = answer(200, "Content-Length: 7", body=None)
LAST = answer(200, m.CLOSE, body=b"last")
BAD, UNAVAILABLE, REFUSED = (m.proxy_answer(status, closes=True) + EOF for status in (400, 502, 500))

LAST_START = request("POST", "/containers/box/start", m.CLOSE)
UPLOAD, PINGS = (request("POST", "/images/load", body=body) for body in (b"i" * READ_AHEAD_BYTES, PING + PING))
LONG_STDIN = b"s" * (READ_AHEAD_BYTES + 1)
MANY = PING * (READ_AHEAD_BYTES // len(PING) + 1)
EXPECTING = request("POST", "/containers/create", m.EXPECT, body=b'{"Image":"i"}')
OLD_EXPECTING = head("POST /containers/create HTTP/1.0", "Content-Length: 2", m.EXPECT)
LONG_CREATE = request("POST", "/containers/create", body=b'{"Image":"i", "Cmd":[]}')
HUGE = request("POST", "/containers/create", body=b"{" + bytes(2 * READ_AHEAD_BYTES))
WITHOUT_WAITING = EXPECTING.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
JSON = "Content-Type: application/json"
BODY = b'{"Image":"i"}'
TARGET = "/v1.41/containers/create"
CHUNKS = m.chunks(BODY[:4], BODY[4:], trailers=("Sum: 1",))
TRAILED = request("POST", TARGET, m.CHUNKED, "Trailer: Sum", JSON) + CHUNKS

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
        client(CREATE + INFO + b"GET nonsense HTTP/1.1\r\n\r\n" + PING, to_daemon=CREATE + INFO),
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
    "B6: a request without a body gets none": [client(request("POST", "/containers/create", m.EXPECT), held=1)],
    "B6: the daemon's passes where the proxy sent none": [hold(WITHOUT_WAITING), returns(m.CONTINUE)],
    # B1: EOF, and reading ahead
    "B1: EOF waits for calls that continue within the read": steps(
        client(START + STOP + CREATE, held=1),
        ends("client"),
        Step(lambda play: setattr(play, "on_held", lambda call: call.send_request(None))),  # within its read
        peer.refuse(to_client=m.proxy_answer(500), to_daemon=STOP, held=1),
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
        client(CREATE + START, held=1), release(to_daemon=CREATE), peer.settle(answer(409, m.CLOSE, body=b"{}"))
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
        client(HUGE[:99], HUGE[99:], held=1, reads=False), ends("client", reads=False), release(to_daemon=HUGE + EOF)
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
    play.reader.stop()
    play.act()
    for call in play.calls:
        call.answer()
    assert play.memory.count == 0, "no byte of a held request is retained"


def test_b4_http2_client_gets_tunnel_or_is_closed() -> None:
    sent, replied = m.PREFACE + b"\0\0\0\4\0", b"\0\0\0\4\1"
    for may_pass, row in ((True, [passes(sent), returns(replied)]), (False, [client(sent, to_client=EOF)])):
        assert peer.converse(row, http2_may_pass=may_pass).http2_clients == 1


def test_unreadable_request_is_answered_and_closes() -> None:
    for first, status in (
        (("GET / HTTP/1.1", "Host: h", "Content-Length: +5"), 400),
        (("GET / HTTP/2.0", "Host: h"), 505),
    ):
        row = [client(head(*first), PING, START, to_client=m.proxy_answer(status, closes=True) + EOF)]
        assert [refusal.status for refusal in peer.converse(row, holds=()).refusals] == [status]


def test_b9_daemon_is_redialled_once_when_it_closes() -> None:
    """It is not for a refusal, for a request that was sent, nor for one whose answer has begun."""
    lost, held = steps(ends("daemon", to_client=EOF), answered(), client(PING)), client(START, held=1)
    redialled = client(CREATE + PING, held=1), ends("daemon"), release(to_daemon=CREATE)
    for redials, *row in (
        (1, *redialled, peer.settle(m.CREATED, to_daemon=PING)),
        (1, held, ends("client"), ends("daemon"), release(to_daemon=START + EOF)),
        (0, held, ends("daemon"), peer.refuse(to_client=REFUSED)),
        (0, hold(CREATE), *lost),
        (0, hold(CREATE), daemon(m.CREATED[:-1]), *lost),
    ):
        assert peer.converse(row, daemons=1).redials == redials


def test_invalid_answer_raises_wire_error() -> None:
    two_lengths, ping = head("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2"), [passes(PING)]
    http2 = bytes.fromhex("000006040000000000000300000064")
    mode, no_mode = r"; it speaks HTTP/2: is --backend-runtime-mode right\?$", r"^(?!.*backend-runtime-mode)"
    others = [b"\0" * 9, b"\0\0\6\4\0\0\0\0\1", b"\x16\x03\x01\2\0\0\0\0\0", b"HTTP/1.1 200\0", two_lengths]
    for message, before, broken in (
        ("without a request", [], daemon(OK)),
        ("without a request", [client(START, held=1)], daemon(NO_CONTENT)),
        (no_mode, ping, daemon(two_lengths[:40], two_lengths[40:])),
        (no_mode, [*ping, returns(STREAM[: STREAM.index(b"0\r\nSum")])], daemon(b"zz\r\n")),
        (mode, ping, daemon(http2)),
        *((no_mode, ping, daemon(sent)) for sent in others),
    ):
        play = peer.converse(before)
        with pytest.raises(WireError, match=message):
            broken.act(play)
        assert play.effects() == (b"", b"", 0)


def test_answered_call_is_freed() -> None:
    play = peer.converse([hold(CREATE), peer.settle(m.CREATED)])
    call = weakref.ref(play.calls.pop())
    play.settled_calls.clear()
    assert call() is None


def test_reply_when_client_or_daemon_closes() -> None:
    """C2: the client before the release, before the answer, after it; B9: the daemon before the answer."""
    sent, leaves, reply = release(to_daemon=START), peer.disconnects(), daemon(NO_CONTENT)
    for ended, agreed, *row in (
        (True, None, leaves),
        (False, None, sent, leaves, reply),
        (False, Reply(agreed=True), sent, reply, leaves, answered()),
        (False, None, sent, ends("daemon", to_client=EOF)),
    ):
        play = peer.converse([client(START, held=1), *row])
        play.act()
        play.call.connection_lost()
        play.act()
        assert (play.call.state is CallState.ENDED, play.call.reply) == (ended, agreed or UNANSWERED)
        assert play.settled_calls == [play.call], "once"
        assert not play.call.send_request(None)


def test_unfinished_work_is_counted() -> None:
    nothing, a_call, an_answer, events = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
    logs, followed = request("GET", "/v1.41/containers/box/logs?follow=1"), head("HTTP/1.1 200 OK", m.CHUNKED)
    pinged = (daemon(b"5\r\nline\n\r\n0\r\n\r\n"), a_call), (daemon(OK), nothing)
    half, rest, half_reply, reply = (part for sent in (CREATE, m.CREATED) for part in (sent[:-3], sent[-3:]))
    replied = (daemon(half_reply), a_call), (daemon(reply), a_call), (answered(), nothing)
    # The steps, the unfinished work after them, and whether the client is inside a request.
    for row in (
        ((client(PING + logs + PING), (3, 0, 0)), (daemon(OK + followed), (1, 1, 0)), *pinged),
        ((client(request("GET", "/events")), a_call), (daemon(followed), events)),
        ((client(m.ATTACH), a_call, True), (daemon(m.SWITCHING), an_answer, True)),
        ((client(m.PREFACE), an_answer, True),),
        ((client(half), a_call, True), (client(rest), a_call), (release(), a_call), *replied),
        ((client(half), a_call, True), (peer.disconnects(), nothing)),
    ):
        play = peer.Play()
        for step, unfinished, *inside in row:
            step.act(play)
            assert (play.reader.unfinished(), play.reader.between_requests) == (unfinished, not inside)


def hold_call(sent: bytes, *, limit: int = 1000) -> peer.Play:
    return peer.converse([client(sent, held=1)], limit=limit)


def test_b8_request_is_read_and_released_in_any_parts() -> None:
    """A chunked body is read without its chunking, and released with it; a changed one has a length."""
    readable = [(CREATE, BODY), (TRAILED, BODY), (START, b""), (request("POST", TARGET, m.CHUNKED) + m.chunks(), b"")]
    for sent, body in readable:
        assert peer.converse([client(sent + PING, held=1), release(to_daemon=sent)]).call.body == body
        play = hold_call(sent)
        play.call.send_request(b'{"new":1}')
        assert play.daemon.got() == http1.with_length(play.call.head.raw, 9) + b'{"new":1}'


def test_body_of_unreadable_request_raises() -> None:
    too_long = request("POST", TARGET, body=bytes(MESSAGE_LIMIT + 1))
    for problem, row in {
        "encoded": [client(request("POST", TARGET, "Content-Encoding: br", body=b"x"), held=1)],  # relay-rules B5
        "ends inside": [client(CREATE[:-1]), ends("client", held=1)],
        "longer than the limit": [client(too_long[:-1]), client(too_long[-1:], held=1)],
    }.items():
        play = peer.converse(row)
        with pytest.raises(Unreadable, match=problem):
            _ = play.call.body


def test_all_held_requests_share_one_limit() -> None:
    first = hold_call(CREATE, limit=2 * len(BODY) - 1)
    second = peer.Play(budget=first.memory)
    second.client.sends(CREATE[:-1])
    assert not second.calls
    second.client.sends(CREATE[-1:])
    with pytest.raises(Unreadable, match=NO_ROOM):
        _ = second.call.body
    second.call.send_request(None)
    assert first.memory.count == len(BODY), "nothing is retained of the one without room"


def test_chunked_body_counts_twice_in_budget() -> None:
    """It is buffered with its chunking and without; a body above the budget is not dechunked further."""
    play = peer.converse([client(TRAILED[:-2])])
    assert play.memory.count == 2 * (len(CHUNKS) - 2)
    top, chunk = request("POST", TARGET, m.CHUNKED), b"100\r\n" + b"x" * 256 + b"\r\n"
    steps = [client(top, chunk, chunk, held=1), release(to_daemon=top + chunk * 2), passes(chunk * 2)]
    play = peer.converse(steps, limit=100)
    assert (play.call.problem, play.call._payload) == (NO_ROOM, b"")


def test_released_call_counts_until_answer_is_sent() -> None:
    """The parsed values of its request are retained until then."""
    for body, is_answered in product([None, b"{}"], [False, True]):
        play = hold_call(CREATE)
        play.call.send_request(body)
        if is_answered:
            play.daemon.sends(m.CREATED)
        else:
            play.call.connection_lost()
        assert play.memory.count == len(BODY)
        play.call.answer()
        assert play.memory.count == 0


def test_body_is_retained_only_after_earlier_answers() -> None:
    waiting = request("POST", "/containers/create", body=b"x" * 5_000)
    for client_ends, at in product([False, True], [1, 4_999]):
        play = peer.converse([client(PING + waiting[:-at], to_daemon=PING)])
        assert play.memory.count == 0
        if not client_ends:
            play.daemon.sends(OK)
            assert (play.memory.count, play.calls) == (5_000 - at, [])
        play.client.sends(waiting[-at:])
        if client_ends:
            assert play.memory.count == 0
            play.client_ends()
            play.daemon.sends(OK)
        assert play.call.body == b"x" * 5_000
        play.call.send_request(None)
        assert play.effects() == (OK, waiting + EOF * client_ends, 1)


def test_c1_only_first_transition_counts() -> None:
    states = {CallState.RELEASED: lambda call: call.send_request(None), CallState.ENDED: DockerHeld.connection_lost}
    states[CallState.REFUSED] = lambda call: call.send_refusal(500, "no")
    assert hold_call(CREATE).call.withdraw() == CREATE
    for state in states:
        play = hold_call(CREATE)
        assert (play.call.state, play.memory.count) == (CallState.HOLDING, len(BODY))
        states[state](play.call)
        assert play.memory.count == (len(BODY) if state is CallState.RELEASED else 0)
        play.effects()
        assert not play.call.send_request(b"late")
        assert not play.call.send_refusal(500, "late")
        assert play.call.withdraw() == b""
        play.call.connection_lost()
        assert (play.call.state, play.effects()) == (state, (b"", b"", 0))


def test_agreement_depends_on_action_and_status() -> None:
    update = request("POST", f"/containers/{m.ID}/update", JSON, body=b'{"CpuShares":2}')
    remove = request("DELETE", f"/containers/{m.ID}?force=1")
    statuses = {CREATE: ([201], [409, 301]), update: ([200], [404]), START: ([204], [304, 404])}
    statuses |= {STOP: ([204, 304, 404], [500]), remove: ([204, 404], [409])}
    for sent, (done, failed) in statuses.items():
        for status in done + failed:
            body = b"" if status in (204, 304) else b"{}"
            replied = answer(status, body=body or None)
            play = peer.converse([hold(sent), daemon(replied)])
            assert play.call.reply == Reply(status in done, body, no_op=status in failed and status == 304)
            play.call.answer()
            assert play.client.got() == replied


def test_reply_is_retained_until_answered() -> None:
    def converses(*row: Step) -> Reply | None:
        return peer.converse(row, limit=1000).call.reply

    in_chunks = answer(201, m.CHUNKED, body=None) + m.chunks(b'{"Id"', b':"1"}')
    row = hold(CREATE), daemon(in_chunks), answered(to_client=in_chunks)
    assert converses(*row) == Reply(agreed=True, message=b'{"Id":"1"}')
    row = hold(CREATE), daemon(m.CREATED[:-1]), answered(), daemon(m.CREATED[-1:]), answered(to_client=m.CREATED)
    assert converses(*row, answered(), passes(PING)) == Reply(agreed=True, message=b'{"Id":"1","Warnings":[]}')
    long_chunks = answer(201, m.CHUNKED, body=None) + m.chunks(bytes(REPLY_LIMIT), b"tail")
    for sent in (
        answer(201, body=bytes(REPLY_LIMIT)),
        long_chunks,
    ):  # too long to be retained: its last byte waits for the Post hooks
        assert converses(
            *(hold(CREATE), daemon(sent[:REPLY_LIMIT])),
            daemon(sent[REPLY_LIMIT : REPLY_LIMIT + 1], to_client=sent[:REPLY_LIMIT]),
            daemon(sent[REPLY_LIMIT + 1 : -3], sent[-3:], to_client=sent[REPLY_LIMIT:-1]),
            answered(to_client=sent[-1:]),
        ) == Reply(agreed=True)


def test_call_without_room_closes_when_refused_or_broken() -> None:
    refused = peer.refuse(to_client=m.proxy_answer(500, closes=True) + EOF)
    assert peer.converse([client(CREATE[:-1], held=1), refused, client(CREATE[-1:] + PING)], limit=5).call.reply is None
    broken = client(b"no chunk\r\n", to_client=m.proxy_answer(400, closes=True) + EOF)
    assert peer.converse([hold(TRAILED[:-12]), broken], peer.MODES, limit=5).call.reply == UNANSWERED


def test_cached_messages_are_bounded() -> None:
    play = peer.Play(holds=())
    play.client.sends(request("GET", "/info", "X-Long: " + "x" * play.caches.max_bytes))
    play.daemon.sends(OK)
    assert (play.caches.requests, play.caches.answers) == ({}, {})
    for number in range(2 * CACHE_BYTES // 1000):
        play.client.sends(request("GET", f"/info?{number:0400}"))
        play.daemon.sends(answer(200, f"Date: {number:0400}", body=b"OK"))
    assert CACHE_BYTES / 2 < play.caches.requests.bytes <= CACHE_BYTES
    assert CACHE_BYTES / 2 < play.caches.answers.bytes <= CACHE_BYTES


def test_request_that_may_be_held_is_not_cached() -> None:
    play = peer.converse([exchange(START, NO_CONTENT)], holds=())
    play.holds = frozenset(Action)
    play.client.sends(START)
    assert (play.effects(), play.call.route.action) == ((b"", b"", 1), Action.START)


def test_passing_request_is_counted_by_route() -> None:
    for max_bytes in [1024, 0]:
        play = peer.Play(holds=(), caches=MessageCaches(max_bytes))
        for target in ("/v1.41/info", "/v1.41/info", "http://docker/version", f"/containers/{m.ID}/top", "/x"):
            play.client.sends(request("GET", target))
            play.daemon.sends(OK)
        counted = {labels[0]: count for (name, labels), count in play.caches.counters.items() if name == "calls_passed"}
        assert counted == {"GET /info": 2, "GET /version": 1, "GET /containers/{id}/top": 1, "other": 1}
