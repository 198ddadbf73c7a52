"""The client's bytes: HTTP/2, bodies in any split, what cannot be read, what is known (relay-rules B4, B6, B8, B9)."""

import pytest

from runtimeproxy.docker import requests
from runtimeproxy.docker.requests import READ_AHEAD_BYTES
from runtimeproxy.docker.routes import Action
from runtimeproxy.heldbytes import NO_ROOM
from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CONTINUE,
    CREATE,
    CREATED,
    EXPECT,
    INFO,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    PING,
    PREFACE,
    START,
    STOP,
    Play,
    chunks,
    error,
    head,
    nothing_held,
    request,
)

# ---- B4: HTTP/2


@pytest.mark.parametrize("step", [1, 5, len(PREFACE)])
def test_b4_http2_is_a_tunnel_however_it_comes(step: int) -> None:
    play = Play()
    play.client.sends(*[PREFACE[at : at + step] for at in range(0, len(PREFACE), step)], b"\0\0\0\4\0")
    assert play.daemon.got() == PREFACE + b"\0\0\0\4\0"
    assert play.events.http2_clients == 1
    play.daemon.sends(b"\0\0\0\4\1")
    assert play.client.got() == b"\0\0\0\4\1"


@pytest.mark.parametrize("step", [1, 5, len(PREFACE)])
def test_b4_http2_is_closed_where_it_may_not_pass(step: int) -> None:
    play = Play()
    play.events.http2_may_pass = False
    play.client.sends(*[PREFACE[at : at + step] for at in range(0, len(PREFACE), step)], b"\0\0\0\4\0")
    assert play.daemon.got() == b""
    assert play.client.ended
    assert play.client.got() == b""
    assert play.events.http2_clients == 1


def test_b4_a_request_that_begins_like_it_is_none() -> None:
    play = nothing_held()
    request_like_it = head("PRI * HTTP/1.1", "Host: h")
    play.client.sends(*[request_like_it[at : at + 1] for at in range(len(request_like_it))])
    assert play.daemon.got() == request_like_it
    assert not play.events.http2_clients


@pytest.mark.parametrize("times", [1, 2], ids=["a new request", "one that is known"])
def test_b4_it_begins_a_connection_only(times: int) -> None:
    """Also where the first request is remembered, and passes unread."""
    for _ in range(times):
        play = nothing_held()
        play.client.sends(PING)
        play.daemon.sends(OK)
        play.client.got()
        play.client.sends(PREFACE)
        assert error(play.client.got())[:2] == (505, True)
        assert play.daemon.got() == PING
        assert not play.events.http2_clients


# ---- B8 and bodies: what passes, in any split

PASSING = {
    "no body": PING,
    "an empty body": STOP,
    "a body": CREATE,
    "chunks": request("POST", "/build", CHUNKED) + chunks(b"tar", b"x" * 20, trailers=("Sum: 1",)),
    "no chunks": request("POST", "/build", CHUNKED) + chunks(),
}


@pytest.mark.parametrize("sent", PASSING.values(), ids=PASSING.keys())
def test_a_request_may_be_cut_at_every_place(sent: bytes) -> None:
    for place in range(1, len(sent)):
        play = nothing_held()
        play.client.sends(sent[:place])
        begun = play.daemon.got()
        assert begun == (sent[:place] if place >= len(sent.partition(b"\r\n\r\n")[0]) + 4 else b"")
        play.client.sends(sent[place:] + PING)
        assert begun + play.daemon.got() == sent + PING


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sent", PASSING.values(), ids=PASSING.keys())
def test_a_request_may_come_byte_by_byte(sent: bytes, shared: bool) -> None:
    play = nothing_held()
    play.shared = shared
    play.client.sends(*[bytes((octet,)) for octet in sent + sent])
    assert play.daemon.got() == sent + sent


@pytest.mark.parametrize("shared", [False, True])
def test_a_body_in_pieces_passes_piece_by_piece(shared: bool) -> None:
    play = nothing_held()
    play.shared = shared
    play.client.sends(CREATE[:-10])
    assert play.daemon.got() == CREATE[:-10]
    for at in range(-10, -1):
        play.client.sends(CREATE[at : at + 1])
        assert play.daemon.got() == CREATE[at : at + 1]


def test_a_read_that_holds_the_end_of_a_body_and_more_does_not_pass_as_one() -> None:
    play = nothing_held()
    play.shared = True
    play.client.sends(CREATE[:-10])
    play.daemon.settle()
    play.client.sends(CREATE[-10:] + PING[:5], PING[5:])
    assert play.daemon.got() == CREATE + PING


@pytest.mark.parametrize("sent", [CREATE[:-10], ATTACH + CREATE[:-10]])
def test_a_body_that_is_held_or_waits_does_not_pass(sent: bytes) -> None:
    play = Play()
    play.shared = True
    play.client.sends(sent)
    began = play.daemon.got()
    play.client.sends(CREATE[-10:-3])
    assert began + play.daemon.got() == sent.removesuffix(CREATE[:-10])


def test_a_body_too_long_to_be_held_does_not_pass_before_its_release() -> None:
    play = Play(limit=10)
    play.shared = True
    play.client.sends(CREATE[:-3], CREATE[-3:-1])
    assert play.daemon.got() == b""
    play.call.release(None)
    play.client.sends(CREATE[-1:])
    assert play.daemon.got() == CREATE


def test_b8_a_request_without_length_and_chunks_is_whole_at_its_head() -> None:
    play = Play()
    play.client.sends(START)
    assert play.call.body() == b""
    play.call.release(None)
    assert play.daemon.got() == START


# ---- what cannot be read

UNREADABLE = {
    "a bad head": (head("GET / HTTP/1.1", "Host: h", "Content-Length: +5"), 400),
    "a bare LF": (b"GET / HTTP/1.1\nHost: h\n\n", 400),
    "two framings": (head("POST / HTTP/1.1", "Host: h", "Content-Length: 5", CHUNKED), 400),
    "another version": (head("GET / HTTP/2.0", "Host: h"), 505),
    "another expectation": (head("POST / HTTP/1.1", "Host: h", "Expect: tea"), 417),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("sent", "status"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_answered_and_nothing_behind_it_is_read(sent: bytes, status: int, cut: bool) -> None:
    play = nothing_held()
    play.client.sends(*(sent[:14], sent[14:]) if cut else (sent,))
    play.client.sends(PING, START)
    assert error(play.client.got())[:2] == (status, True)
    assert play.client.ended
    assert play.daemon.got() == b""
    assert len(play.events.refusals) == 1


def test_a_bad_beginning_is_refused_before_the_head_has_ended() -> None:
    play = nothing_held()
    play.client.sends(b"GET / HTTP/1.1\r\n", b"X: \0")
    assert error(play.client.got())[:2] == (400, True)


# ---- B6 where it is not ours


def test_b6_of_a_passing_request_the_expectation_and_the_daemons_100_pass() -> None:
    play = nothing_held()
    sent = request("POST", "/images/load", EXPECT, body=b"tar")
    play.client.sends(sent[:-3])
    assert (play.daemon.got(), play.client.got()) == (sent[:-3], b"")
    play.daemon.sends(CONTINUE)
    assert play.client.got() == CONTINUE
    play.client.sends(b"tar")
    play.daemon.sends(CREATED)
    assert (play.daemon.got(), play.client.got()) == (b"tar", CREATED)


# ---- the memory of requests


def test_the_memory_of_requests_is_bounded() -> None:
    play = nothing_held()
    for number in range(requests._PLAIN_REQUESTS + 10):
        play.passes(request("GET", f"/info?number={number}"), OK)
        assert 0 < len(requests._PLAIN) <= requests._PLAIN_REQUESTS


def test_a_long_head_is_not_remembered() -> None:
    play = nothing_held()
    sent = request("GET", "/info", "X-Long: " + "x" * requests._PLAIN_BYTES)
    play.passes(sent, OK)
    play.passes(sent, OK)
    assert sent not in requests._PLAIN


def test_what_may_be_held_is_not_remembered() -> None:
    play = nothing_held()
    play.passes(START, NO_CONTENT)
    play.events.holds = frozenset(Action)
    play.client.sends(START)
    assert play.daemon.got() == b""
    assert play.call.route.action is Action.START


def test_a_known_request_is_none_inside_a_body_or_behind_a_hold() -> None:
    play = Play(holds=[Action.START])
    play.passes(PING, OK)
    upload = request("POST", "/images/load", body=PING + PING)
    play.client.sends(upload[: -2 * len(PING)], PING, PING)
    play.daemon.sends(OK)
    play.client.sends(START, PING)
    assert play.daemon.got() == upload
    play.call.refuse(500, "no")
    assert play.daemon.got() == PING


def test_known_requests_are_answered_in_their_order() -> None:
    play = nothing_held()
    play.passes(PING, OK)
    play.passes(INFO, NOT_FOUND)
    play.client.sends(PING, INFO, PING)
    assert play.daemon.got() == PING + INFO + PING
    play.daemon.sends(OK, NOT_FOUND, OK)
    assert play.client.got() == OK + NOT_FOUND + OK


# ---- a body that is too long to be kept

LIMIT = 10
LONG_CREATE = request("POST", "/containers/create", body=b'{"Image":"i", "Cmd":[]}')


def too_long(*pieces: bytes) -> Play:
    """Return a connection on which a create was held that is too long to be kept."""
    play = Play(limit=LIMIT)
    play.client.sends(*pieces)
    return play


@pytest.mark.parametrize("at", [8, 1], ids=["with the rest to come", "all but the last byte"])
def test_a_held_body_above_the_limit_cannot_be_read_and_passes_as_it_came(at: int) -> None:
    play = too_long(LONG_CREATE[:-at])
    assert play.call.problem == NO_ROOM
    play.client.sends(LONG_CREATE[-at:] + PING)
    assert play.daemon.got() == b""
    play.call.release(None)
    assert play.daemon.got() == LONG_CREATE, "what follows waits for the answer of a held call"
    play.daemon.sends(CREATED)
    play.call.answer()
    assert play.daemon.got() == PING
    assert play.held_bytes.count == 0


def test_a_held_body_above_the_limit_may_be_whole() -> None:
    play = too_long(LONG_CREATE + PING)
    assert play.call.problem == NO_ROOM
    play.call.release(None)
    assert play.daemon.got() == LONG_CREATE
    play.daemon.sends(CREATED)
    play.call.answer()
    assert play.daemon.got() == PING


def test_the_rest_of_a_long_body_passes_as_it_comes() -> None:
    play = too_long(LONG_CREATE[:-8])
    play.call.release(None)
    play.client.sends(*[LONG_CREATE[at : at + 1] for at in range(-8, -1)], LONG_CREATE[-1:])
    assert play.daemon.got() == LONG_CREATE


def test_a_long_body_may_be_released_within_the_turn() -> None:
    play = Play(limit=LIMIT)
    play.events.at_once = lambda exchange: exchange.release(None)
    play.client.sends(LONG_CREATE[:-8], LONG_CREATE[-8:] + PING)
    assert play.daemon.got() == LONG_CREATE
    play.daemon.sends(CREATED)
    play.call.answer()
    assert play.daemon.got() == PING


def test_a_long_body_that_was_answered_before_its_end_holds_nothing_up() -> None:
    play = too_long(LONG_CREATE[:-8])
    play.call.release(None)
    play.daemon.sends(NOT_FOUND)
    play.call.answer()
    play.client.sends(LONG_CREATE[-8:] + PING)
    assert play.daemon.got() == LONG_CREATE + PING
    assert play.client.got() == NOT_FOUND


def test_b1_reading_stops_inside_a_long_body_until_it_is_released() -> None:
    play = Play(limit=LIMIT)
    sent = request("POST", "/containers/create", body=b"{" + bytes(2 * READ_AHEAD_BYTES))
    half = len(sent) // 2
    play.client.sends(sent[:half], sent[half:])
    assert not play.events.reading
    play.client_ends()
    play.call.release(None)
    assert play.events.reading
    assert (play.daemon.got(), play.daemon.ended) == (sent, True)


# ---- B9: nothing is read behind an answer that closes

LAST_ERROR = head("HTTP/1.1 404 Not Found", "Connection: close", "Content-Length: 3")


def test_b9_behind_an_answer_that_closes_no_request_is_read() -> None:
    play = nothing_held()
    play.client.sends(PING)
    play.daemon.sends(LAST_ERROR + b"no\n")
    play.client.sends(PING, START[:20], b"\0 nonsense")
    assert play.daemon.got() == PING
    assert play.client.got() == LAST_ERROR + b"no\n"


def test_b9_a_body_goes_on_behind_an_answer_that_closes_and_nothing_follows_it() -> None:
    play = nothing_held()
    play.client.sends(CREATE[:-9])
    play.daemon.sends(LAST_ERROR + b"no\n")
    play.client.sends(CREATE[-9:-6], CREATE[-6:] + PING, PING)
    assert play.daemon.got() == CREATE


@pytest.mark.parametrize("cut", [False, True])
def test_b9_what_waits_behind_an_upgrade_that_fails_and_closes_is_dropped(cut: bool) -> None:
    play = nothing_held()
    play.client.sends(ATTACH, b"\0 no request")
    play.daemon.sends(LAST_ERROR)
    if cut:
        play.client.sends(b"\0 nor this")
        play.client_ends()
    play.daemon.sends(b"no\n")
    assert play.daemon.got() == ATTACH
    assert play.client.got() == LAST_ERROR + b"no\n"
    assert not play.events.refusals


# ---- B1: EOF inside a body


def test_b1_eof_inside_a_held_body_makes_it_unreadable_and_passes_behind_it() -> None:
    """The daemon must see the end, or it waits for the rest of the body for ever."""
    play = Play()
    play.client.sends(CREATE[:-3])
    play.client_ends()
    assert play.call.problem
    assert not play.daemon.ended
    play.call.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (CREATE[:-3], True)


def test_a_client_is_inside_a_request_until_it_is_whole() -> None:
    play = nothing_held()
    assert not play.reader.was_asked
    seen = []
    for piece in (INFO[:3], INFO[3:], CREATE[:-3], CREATE[-3:], START + INFO[:3]):
        play.client.sends(piece)
        seen.append(play.reader.asks_nothing)
    assert seen == [False, True, False, True, False]
    assert play.reader.was_asked


@pytest.mark.parametrize(("sent", "inside"), [(INFO, False), (CREATE[:-3], True), (CREATE, False)])
def test_a_client_inside_a_body_outlives_the_daemon(sent: bytes, inside: bool) -> None:
    play = nothing_held()
    play.client.sends(sent)
    assert play.daemon_ends() is inside


def test_the_body_of_a_held_request_is_read_in_its_turn() -> None:
    play = Play()
    play.client.sends(PING + CREATE[:-3])
    assert play.held_bytes.count == 0
    play.daemon.sends(OK)
    play.client.sends(CREATE[-3:])
    assert play.held_bytes.count > 0
