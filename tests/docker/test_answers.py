"""The daemon's bytes: framing, interim answers, tunnels, answers that nobody asked for (relay-rules B2, B3, B6, B9)."""

import pytest

from runtimeproxy.docker import answers
from runtimeproxy.errors import WireError
from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CLOSE,
    CONTINUE,
    CREATE,
    CREATED,
    HIJACKED,
    INFO,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    PING,
    START,
    SWITCHING,
    Play,
    answer,
    chunks,
    head,
    nothing_held,
    request,
)

HEAD = request("HEAD", "/_ping")
STREAM = answer(200, CHUNKED, body=None) + chunks(b'{"status":"Pulling"}', b"x" * 30, trailers=("Sum: 1",))
UNFRAMED_404 = answer(404, "Content-Type: text/plain", CLOSE, body=None) + b"No such container: box\n"

FRAMED = {
    "a body": (PING, OK),
    "no body": (PING, answer(200)),
    "chunks": (INFO, STREAM),
    "204": (INFO, NO_CONTENT),
    "304": (INFO, answer(304, body=None)),
    "304 with a length": (INFO, head("HTTP/1.1 304 Not Modified", "Content-Length: 7")),
    "HEAD": (HEAD, head("HTTP/1.1 200 OK", "Content-Length: 7")),
    "HEAD in chunks": (HEAD, answer(404, CHUNKED, body=None)),
    "HEAD without framing": (HEAD, answer(200, body=None)),
    "behind 102": (INFO, head("HTTP/1.1 102 Processing") + head("HTTP/1.1 103 Early Hints", "Link: x") + OK),
    "behind 100": (INFO, CONTINUE + OK),
    "HTTP/1.0 kept alive": (INFO, head("HTTP/1.0 200 OK", "Connection: keep-alive", "Content-Length: 0")),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("sent", "replied"), FRAMED.values(), ids=FRAMED.keys())
def test_the_next_answer_begins_behind_this_one_wherever_they_are_cut(
    sent: bytes, replied: bytes, shared: bool
) -> None:
    """A body is neither waited for nor let through where there is none (HEAD, 1xx, 204, 304)."""
    for place in range(1, len(replied) + 1):
        play = nothing_held()
        play.shared = shared
        play.client.sends(sent + ATTACH)
        play.daemon.sends(replied[:place], replied[place:] + SWITCHING)
        assert play.client.got() == replied + SWITCHING
        assert play.reader.tunnel


@pytest.mark.parametrize(("sent", "replied"), FRAMED.values(), ids=FRAMED.keys())
def test_answers_may_come_byte_by_byte(sent: bytes, replied: bytes) -> None:
    play = nothing_held()
    play.client.sends(sent, sent)
    play.daemon.sends(*[bytes((octet,)) for octet in replied + replied])
    assert play.client.got() == replied + replied
    assert not play.reader.tunnel


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_passes_piece_by_piece(shared: bool) -> None:
    play = nothing_held()
    play.shared = shared
    play.client.sends(INFO)
    for at in range(len(STREAM)):
        play.daemon.sends(STREAM[at : at + 1])
        at_once = at >= STREAM.index(b"\r\n\r\n") + 4
        assert not at_once or play.client.got().endswith(STREAM[at : at + 1])


def test_the_end_of_a_body_passes_before_the_answer_behind_it() -> None:
    """The second request cannot be read, so our own answer follows the daemon's first at once."""
    play = nothing_held()
    play.shared = True
    play.client.sends(INFO + b"GET / HTTP/1.1\r\n\r\n")
    play.daemon.sends(OK[:-2], OK[-2:])
    assert play.client.got().startswith(OK + b"HTTP/1.1 400 ")


def test_the_answer_to_a_held_call_does_not_pass() -> None:
    play = Play()
    play.shared = True
    play.client.sends(CREATE)
    play.call.release(None)
    play.daemon.sends(CREATED[:-5], CREATED[-5:-2])
    assert play.client.got() == b""


# ---- B2: replies without framing

UNFRAMED = {
    "an unframed 404 to an attach": (ATTACH, UNFRAMED_404),
    "an unframed 200 to an attach": (ATTACH, HIJACKED + b"output"),
    "an unframed 500 to any request": (INFO, answer(500, body=None) + b"why"),
    "an answer of HTTP/1.0": (INFO, head("HTTP/1.0 200 OK") + b"text"),
    "101": (ATTACH, SWITCHING + b"output"),
}


@pytest.mark.parametrize(("sent", "replied"), UNFRAMED.values(), ids=UNFRAMED.keys())
def test_b2_a_reply_without_framing_is_a_tunnel_whatever_its_status(sent: bytes, replied: bytes) -> None:
    for place in range(1, len(replied) + 1):
        play = nothing_held()
        play.client.sends(sent)
        play.daemon.sends(replied[:place], replied[place:], b"\0more\n")
        assert play.client.got() == replied + b"\0more\n"
        assert play.reader.tunnel
        play.client.sends(START, b"\0")
        assert play.daemon.got() == sent + START + b"\0"


def test_b2_an_unframed_answer_to_a_held_call_passes_as_it_comes() -> None:
    play = Play()
    play.client.sends(START)
    play.call.release(None)
    play.daemon.sends(UNFRAMED_404[:-5], UNFRAMED_404[-5:])
    assert play.client.got() == UNFRAMED_404
    assert play.call.reply is not None
    assert not play.call.reply.agreed
    play.call.answer()
    assert play.client.got() == b""


def test_b2_what_is_held_behind_it_goes_into_the_tunnel_in_order() -> None:
    play = Play()
    play.client.sends(INFO + PING + CREATE[:-3])
    assert play.daemon.got() == INFO + PING
    play.daemon.sends(HIJACKED)
    play.client.sends(CREATE[-3:])
    assert play.daemon.got() == CREATE
    assert not play.events.calls
    assert play.held_bytes.count == 0


def test_b2_what_is_held_whole_behind_it_goes_into_the_tunnel_with_what_follows() -> None:
    play = Play()
    play.client.sends(INFO + CREATE + PING)
    play.client_ends()
    assert not play.daemon.ended
    play.daemon.sends(HIJACKED)
    assert (play.daemon.got(), play.daemon.ended) == (INFO + CREATE + PING, True)
    assert not play.events.calls


# ---- early answers


def test_an_answer_before_the_end_of_the_request_passes_and_both_go_on() -> None:
    play = nothing_held()
    build = request("POST", "/build", CHUNKED) + chunks(b"tar" * 9, b"x")
    play.client.sends(build[:-20])
    play.daemon.sends(STREAM[:-9])
    assert play.client.got() == STREAM[:-9]
    play.client.sends(build[-20:-10])
    play.daemon.sends(STREAM[-9:])
    play.client.sends(build[-10:] + PING)
    play.daemon.sends(OK)
    assert play.daemon.got() == build + PING
    assert play.client.got() == STREAM[-9:] + OK


def test_a_request_that_breaks_while_it_is_answered_gets_no_second_answer() -> None:
    play = nothing_held()
    play.client.sends(request("POST", "/build", CHUNKED))
    play.daemon.sends(STREAM[:-9])
    play.client.sends(b"no size\r\n")
    assert play.client.got() == STREAM[:-9]
    assert play.client.ended


def test_the_rest_of_an_answer_goes_nowhere_when_its_client_has_gone() -> None:
    play = nothing_held()
    play.client.sends(request("POST", "/build", CHUNKED))
    play.daemon.sends(STREAM[:-9])
    play.reader.client_gone()
    play.daemon.sends(STREAM[-9:], OK)
    assert play.client.got() == STREAM[:-9]


# ---- of held calls


@pytest.mark.parametrize("replied", [CREATED, STREAM, NO_CONTENT], ids=["a body", "chunks", "204"])
def test_the_answer_to_a_held_call_is_kept_wherever_it_is_cut(replied: bytes) -> None:
    for place in range(1, len(replied) + 1):
        play = Play()
        play.client.sends(CREATE)
        play.call.release(None)
        interim = head("HTTP/1.1 103 Early Hints")
        play.daemon.sends(interim + replied[:place], replied[place:])
        assert play.client.got() == interim
        assert play.call.reply is not None
        play.call.answer()
        assert play.client.got() == replied


def test_b6_one_hundred_of_the_daemon_passes_unless_we_said_it() -> None:
    play = Play()
    sent = CREATE.replace(b"Host", b"Expect: 100-continue\r\nHost")
    play.client.sends(INFO + sent)
    play.daemon.sends(OK)
    play.call.release(None)
    play.daemon.sends(CONTINUE + CREATED)
    play.call.answer()
    assert play.client.got() == OK + CONTINUE + CREATED, "the whole request had come before its turn"


def test_b6_the_daemons_100_is_swallowed_where_we_said_it() -> None:
    play = Play()
    sent = CREATE.replace(b"Host", b"Expect: 100-continue\r\nHost")
    play.client.sends(sent[:-3])
    assert play.client.got() == CONTINUE
    play.client.sends(sent[-3:])
    play.call.release(None)
    play.daemon.sends(CONTINUE, CREATED)
    play.call.answer()
    assert play.client.got() == CREATED


# ---- what is no answer


@pytest.mark.parametrize("before", [b"", PING], ids=["at first", "behind an answer"])
def test_an_answer_that_nobody_asked_for_breaks_the_protocol(before: bytes) -> None:
    play = nothing_held()
    if before:
        play.passes(PING, OK)
        play.passes(PING, OK)
    with pytest.raises(WireError, match="without a request"):
        play.daemon.sends(OK)


def test_an_answer_before_the_release_breaks_the_protocol() -> None:
    play = Play()
    play.client.sends(START)
    with pytest.raises(WireError, match="without a request"):
        play.daemon.sends(NO_CONTENT)


@pytest.mark.parametrize("cut", [1, 15, 40])
def test_an_answer_that_cannot_be_read_breaks_the_protocol(cut: int) -> None:
    play = nothing_held()
    play.client.sends(PING)
    broken = head("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2")
    with pytest.raises(WireError):
        play.daemon.sends(broken[:cut], broken[cut:])


def test_a_broken_chunk_of_an_answer_breaks_the_protocol_behind_what_passed() -> None:
    play = nothing_held()
    play.client.sends(PING)
    begun = STREAM[: STREAM.index(b"0\r\nSum")]
    play.daemon.sends(begun)
    with pytest.raises(WireError):
        play.daemon.sends(b"zz\r\n")
    assert play.client.got() == begun


def test_nothing_of_the_daemons_is_read_behind_our_last_answer() -> None:
    play = nothing_held()
    play.client.sends(PING + b"nonsense\r\n\r\n")
    play.daemon.sends(OK + NOT_FOUND, NOT_FOUND, b"nonsense\r\n\r\n")
    assert play.client.got().startswith(OK + b"HTTP/1.1 400 ")


# ---- the memory of answers


def test_the_memory_of_answers_is_bounded() -> None:
    play = nothing_held()
    play.client.sends(PING)
    for number in range(answers._WHOLE_ANSWERS + 10):
        play.daemon.sends(answer(200, f"Date: {number}", body=b"OK"))
        play.client.sends(PING)
        assert 0 < len(answers._WHOLE) <= answers._WHOLE_ANSWERS


NOT_REMEMBERED = {
    "in chunks": answer(200, CHUNKED, body=None) + chunks(b"x"),
    "the last one": answer(200, CLOSE, body=b"x"),
    "long": answer(200, body=b"x" * answers._WHOLE_BYTES),
    "an interim one": head("HTTP/1.1 103 Early Hints"),
}


@pytest.mark.parametrize("replied", NOT_REMEMBERED.values(), ids=NOT_REMEMBERED.keys())
def test_some_answers_are_not_remembered(replied: bytes) -> None:
    play = nothing_held()
    play.client.sends(PING)
    play.daemon.sends(replied)
    assert play.client.got() == replied
    assert (replied, "GET") not in answers._WHOLE


def test_an_answer_to_what_is_not_asked_again_is_not_remembered() -> None:
    """The method would be a part of what is kept."""
    play = nothing_held()
    method = "M" * 10_000
    play.client.sends(request(method, "/"))
    play.daemon.sends(NOT_FOUND)
    assert play.client.got() == NOT_FOUND
    assert (NOT_FOUND, method) not in answers._WHOLE


def test_two_answers_in_one_piece_are_not_remembered_as_one() -> None:
    play = nothing_held()
    play.client.sends(PING, PING)
    play.daemon.sends(OK + OK)
    assert play.client.got() == OK + OK
    assert (OK + OK, "GET") not in answers._WHOLE


def test_a_known_answer_is_none_where_the_method_says_otherwise() -> None:
    play = nothing_held()
    play.passes(PING, answer(200, body=b""))
    short = head("HTTP/1.1 200 OK", "Content-Length: 7")
    play.passes(HEAD, short)
    play.client.sends(PING)
    play.daemon.sends(short, b"1234567", b"")
    assert play.client.got() == short + b"1234567"


def test_a_known_answer_is_none_inside_another() -> None:
    play = nothing_held()
    play.passes(PING, OK)
    around = answer(200, body=OK + OK)
    play.client.sends(PING, PING)
    play.daemon.sends(around[: -2 * len(OK)], OK, OK, OK[:9], OK[9:])
    assert play.client.got() == around + OK


SETTINGS = bytes.fromhex("000006040000000000000300000064")


@pytest.mark.parametrize("asked", [PING, b""], ids=["behind a request", "at once"])
def test_a_daemon_that_speaks_http_2_leads_to_the_mode(asked: bytes) -> None:
    play = nothing_held()
    play.client.sends(asked)
    with pytest.raises(WireError, match=r"; it speaks HTTP/2: is --backend-runtime-mode right\?$"):
        play.daemon.sends(SETTINGS)


@pytest.mark.parametrize("sent", [b"\0" * 9, b"\0\0\6\4\0\0\0\0\1", b"\x16\x03\x01\2\0\0\0\0\0", b"HTTP/1.1 200\0"])
def test_a_daemon_that_speaks_something_else_does_not(sent: bytes) -> None:
    play = nothing_held()
    play.client.sends(PING)
    with pytest.raises(WireError) as caught:
        play.daemon.sends(sent)
    assert "backend-runtime-mode" not in str(caught.value)
