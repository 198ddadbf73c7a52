"""Whose turn it is: Expect, pipelining, what cannot be read, tunnels (relay-rules B2 to B4, B6, B7)."""

import pytest

from runtimeproxy.call import CallState, Reply
from runtimeproxy.errors import WireError
from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CLOSE,
    CONTINUE,
    CREATE,
    CREATED,
    EXPECT,
    HIJACKED,
    INFO,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    PING,
    PREFACE,
    START,
    STOP,
    SWITCHING,
    Play,
    answer,
    chunks,
    error,
    head,
    nothing_held,
    request,
)

EXPECTING = request("POST", "/containers/create", EXPECT, body=b'{"Image":"i"}')
BUILD = request("POST", "/build", CHUNKED) + chunks(b"tar", b"x" * 20)
BROKEN_CHUNK = b"no size\r\n"
LAST = answer(200, CLOSE, body=b"last")


def test_a_long_body_is_written_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    play.client.sends(CREATE)
    written: list[bytes] = []
    monkeypatch.setattr(play.events, "wake", lambda: written.append(play.daemon.got()))
    play.reader.send_request(play.call, b"head", b"body")
    assert written == [b"head", b"body"]


# ---- B6: Expect: 100-continue


def test_b6_we_tell_the_client_of_a_held_request_to_go_on_and_swallow_the_daemons_word() -> None:
    play = Play()
    play.client.sends(EXPECTING[:-13])
    assert play.client.got() == CONTINUE
    assert play.daemon.got() == b""
    play.client.sends(EXPECTING[-13:])
    play.call.release(None)
    assert play.daemon.got() == EXPECTING, "the field stays"
    play.daemon.sends(CONTINUE + CREATED)
    play.call.answer()
    assert play.client.got() == CREATED


def test_b6_only_after_all_earlier_answers() -> None:
    play = Play()
    play.client.sends(PING + INFO + EXPECTING[:-13])
    play.daemon.sends(OK)
    assert play.client.got() == OK
    play.daemon.sends(NOT_FOUND[:-1])
    assert play.client.got() == NOT_FOUND[:-1]
    play.daemon.sends(NOT_FOUND[-1:])
    assert play.client.got() == NOT_FOUND[-1:] + CONTINUE
    play.client.sends(EXPECTING[-13:])
    play.call.refuse(500, "no")
    assert error(play.client.got())[:2] == (500, False)


def test_b6_a_client_that_did_not_wait_is_told_by_the_daemon() -> None:
    play = Play()
    play.client.sends(PING + EXPECTING)
    play.daemon.sends(OK)
    play.call.release(None)
    play.daemon.sends(CONTINUE + CREATED)
    play.call.answer()
    assert play.client.got() == OK + CONTINUE + CREATED


@pytest.mark.parametrize(
    "sent",
    [
        head("POST /containers/create HTTP/1.0", "Content-Length: 2", EXPECT),
        head("POST /containers/create HTTP/1.1", "Host: h", EXPECT),
    ],
    ids=["HTTP/1.0", "no body"],
)
def test_b6_nobody_is_told_who_waits_for_nothing(sent: bytes) -> None:
    play = Play()
    play.client.sends(sent)
    assert play.client.got() == b""


# ---- B7: pipelining


def test_b7_hooks_wait_until_all_earlier_requests_are_answered() -> None:
    play = Play()
    play.client.sends(PING + INFO + START + STOP)
    assert play.daemon.got() == PING + INFO
    play.daemon.sends(OK + NOT_FOUND[:-1])
    assert not play.events.calls
    play.daemon.sends(NOT_FOUND[-1:])
    start = play.call
    start.release(None)
    assert play.daemon.got() == START
    play.daemon.sends(NO_CONTENT)
    assert play.events.calls == [start], "the first one's Post hooks are not done"
    start.answer()
    assert play.client.got() == OK + NOT_FOUND + NO_CONTENT
    _, stop = play.events.calls
    stop.release(None)
    assert play.daemon.got() == STOP


def test_b7_a_body_that_comes_after_its_turn_is_waited_for() -> None:
    play = Play()
    play.client.sends(PING + CREATE[:-3])
    play.daemon.sends(OK)
    assert not play.events.calls
    play.client.sends(CREATE[-3:])
    assert play.call.state is CallState.HOLDING


def test_b7_a_refusal_comes_in_its_turn() -> None:
    play = Play()
    play.client.sends(PING + START + PING)
    play.daemon.sends(OK)
    play.call.refuse(500, "no")
    got = play.client.got()
    assert got.startswith(OK)
    assert error(got.removeprefix(OK))[:2] == (500, False)
    play.daemon.sends(OK)
    assert (play.daemon.got(), play.client.got()) == (PING + PING, OK)


@pytest.mark.parametrize("sent", [PING, CREATE], ids=["remembered", "not remembered"])
def test_b7_our_400_waits_for_its_turn_and_closes(sent: bytes) -> None:
    play = nothing_held()
    play.client.sends(sent + INFO + b"GET nonsense HTTP/1.1\r\nHost: h\r\n\r\n" + PING)
    assert play.daemon.got() == sent + INFO
    play.daemon.sends(OK)
    assert (play.client.got(), play.client.ended) == (OK, False)
    play.daemon.sends(NOT_FOUND)
    got = play.client.got()
    assert error(got.removeprefix(NOT_FOUND))[:2] == (400, True)
    assert play.client.ended
    play.client.sends(PING)
    assert play.daemon.got() == b""


def test_b7_our_400_waits_for_a_held_call() -> None:
    play = Play()
    play.client.sends(START + b"\0")
    play.call.release(None)
    play.daemon.sends(NO_CONTENT)
    assert play.client.got() == b""
    play.call.answer()
    got = play.client.got()
    assert error(got.removeprefix(NO_CONTENT))[:2] == (400, True)


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "behind another"])
def test_b7_a_passing_body_that_breaks_is_answered_in_its_turn_and_closes(before: bytes) -> None:
    """The daemon never has the whole request; dockerd sees the end of the connection inside its body."""
    play = nothing_held()
    play.client.sends(before + BUILD[:-30], BROKEN_CHUNK)
    if before:
        assert play.client.got() == b""
        play.daemon.sends(OK + NOT_FOUND)
    got = play.client.got()
    assert error(got.removeprefix(OK) if before else got)[:2] == (400, True)
    assert play.client.ended
    assert play.daemon.got() == before + BUILD[:-30]
    assert [refusal.status for refusal in play.events.refusals] == [400]


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "behind another"])
def test_b7_a_held_body_that_breaks_is_answered_in_its_turn_and_nobody_is_asked(before: bytes) -> None:
    play = Play()
    create = request("POST", "/containers/create", CHUNKED) + chunks(b"{", b"}")
    play.client.sends(before + create[:-9] + BROKEN_CHUNK)
    if before:
        play.daemon.sends(OK)
    got = play.client.got()
    assert error(got.removeprefix(OK) if before else got)[:2] == (400, True)
    assert play.daemon.got() == before
    assert not play.events.calls
    assert play.held_bytes.count == 0


def test_b7_a_body_that_breaks_once_its_answer_is_out_just_ends_the_connection() -> None:
    play = nothing_held()
    play.client.sends(BUILD[:-30])
    play.daemon.sends(NOT_FOUND)
    play.client.sends(BROKEN_CHUNK)
    assert (play.client.got(), play.client.ended) == (NOT_FOUND, True)


def test_b7_a_body_that_breaks_while_it_is_answered_just_ends_the_connection() -> None:
    play = nothing_held()
    play.client.sends(PING + BUILD[:-30])
    play.daemon.sends(OK, NOT_FOUND[:-1])
    play.client.sends(BROKEN_CHUNK)
    assert (play.client.got(), play.client.ended) == (OK + NOT_FOUND[:-1], True)


def test_b7_a_body_that_breaks_while_an_earlier_request_is_answered_waits_for_that() -> None:
    play = nothing_held()
    play.client.sends(INFO + BUILD[:-30])
    play.daemon.sends(NOT_FOUND[:-1])
    play.client.sends(BROKEN_CHUNK)
    assert (play.client.got(), play.client.ended) == (NOT_FOUND[:-1], False)
    play.daemon.sends(NOT_FOUND[-1:])
    assert error(play.client.got()[1:])[:2] == (400, True)


def test_a_held_body_that_breaks_when_the_daemon_has_answered_gets_no_second_answer() -> None:
    play = Play(limit=1)
    create = request("POST", "/containers/create", CHUNKED) + chunks(b"{", b"}")
    play.client.sends(create[:-9])
    play.call.release(None)
    play.daemon.sends(CREATED)
    play.client.sends(BROKEN_CHUNK)
    assert (play.client.got(), play.client.ended) == (b"", True)


# ---- tunnels


def test_a_tunnel_passes_all_bytes_and_the_clients_eof() -> None:
    play = Play()
    play.client.sends(ATTACH)
    play.daemon.sends(SWITCHING + START)
    play.client.sends(START, b"\0")
    play.client_ends()
    play.daemon.sends(b"\0", CREATED)
    assert (play.daemon.got(), play.daemon.ended) == (ATTACH + START + b"\0", True)
    assert play.client.got() == SWITCHING + START + b"\0" + CREATED
    assert not play.events.calls


def test_a_tunnel_passes_what_is_in_a_shared_buffer() -> None:
    play = Play()
    play.shared = True
    play.passes(INFO, OK)
    play.passes(ATTACH, SWITCHING)
    play.passes(START, CREATED)


@pytest.mark.parametrize("behind", [CREATE, CREATE[:-3], PING])
def test_what_is_held_behind_a_tunnel_is_its_first_bytes(behind: bytes) -> None:
    play = Play()
    play.client.sends(INFO + behind)
    play.daemon.sends(HIJACKED)
    assert play.daemon.got() == INFO + behind


def test_a_tunnel_whose_client_ended_early_gets_the_eof_behind_the_bytes_before_it() -> None:
    play = nothing_held()
    play.client.sends(ATTACH + b"stdin")
    play.client_ends()
    assert not play.daemon.ended
    play.daemon.sends(SWITCHING)
    assert (play.daemon.got(), play.daemon.ended) == (ATTACH + b"stdin", True)


@pytest.mark.parametrize("passes", [True, False])
def test_b4_http2_is_a_tunnel_or_closed(passes: bool) -> None:
    play = Play()
    play.events.http2_may_pass = passes
    play.client.sends(PREFACE, START)
    assert play.daemon.got() == (PREFACE + START if passes else b"")
    assert play.reader.tunnel is passes
    assert play.client.ended is not passes


# ---- B9, C2, C5: who has gone, in short (the rest is in test_reader_ends.py)


def test_b9_a_daemon_that_cannot_be_dialled_is_answered_502_and_closes() -> None:
    play = Play()
    play.client.sends(START + PING)
    assert play.daemon_ends()
    assert play.call.release(None)
    status, closes, body = error(play.client.got())
    assert (status, closes) == (502, True)
    assert b"--remote-runtime-service-endpoint" in body
    assert play.client.ended
    assert play.daemon.got() == b""
    assert play.call.reply == Reply(agreed=False, faultless=True), "it is known that nothing happened"
    play.call.answer()
    play.client.sends(PING)
    assert (play.client.got(), play.daemon.got()) == (b"", b"")


def test_b9_a_refusal_when_the_daemon_has_closed_says_that_the_connection_ends() -> None:
    play = Play()
    play.client.sends(START + PING)
    assert play.daemon_ends()
    play.call.refuse(500, "no")
    assert error(play.client.got())[:2] == (500, True)
    assert play.client.ended
    assert play.events.redials == 0


def test_b9_an_idle_daemon_that_closes_closes_the_client() -> None:
    play = Play()
    play.passes(PING, OK)
    assert not play.daemon_ends()
    play.client.sends(START)
    assert not play.events.calls
    assert play.daemon.got() == b""


def test_b9_an_answer_that_closes_to_a_held_call_drops_what_was_pipelined() -> None:
    play = Play()
    play.client.sends(CREATE + START)
    play.call.release(None)
    play.daemon.sends(answer(409, CLOSE, body=b"{}"))
    play.call.answer()
    assert play.client.got() == answer(409, CLOSE, body=b"{}")
    assert len(play.events.calls) == 1
    assert play.daemon.got() == CREATE


def test_c2_a_client_that_goes_ends_its_held_call() -> None:
    play = Play()
    told: list[str] = []
    play.client.sends(START)
    play.call.on_ended = lambda: told.append("ended")
    play.reader.client_gone()
    assert told == ["ended"]
    assert not play.call.release(None)
    assert play.daemon.got() == b""


def test_c5_the_daemons_eof_waits_for_an_answer_that_is_kept() -> None:
    play = Play()
    play.client.sends(CREATE + PING)
    play.call.release(None)
    play.daemon.sends(CREATED)
    assert play.daemon_ends()
    assert (play.client.got(), play.client.ended) == (b"", False)
    play.call.answer()
    assert (play.client.got(), play.client.ended) == (CREATED, True)
    assert play.daemon.got() == CREATE


def test_b9_an_answer_that_closes_drops_a_held_call_behind_it() -> None:
    play = Play()
    play.client.sends(PING + START)
    play.daemon.sends(answer(200, CLOSE, body=b"last"))
    assert play.client.got() == answer(200, CLOSE, body=b"last")
    assert not play.events.calls
    with pytest.raises(WireError, match="without a request"):
        play.daemon.sends(OK)


def test_b9_whoever_is_inside_a_body_is_let_send_on_when_the_daemon_leaves() -> None:
    play = nothing_held()
    play.client.sends(BUILD[:-9])
    play.daemon.sends(LAST)
    assert play.daemon_ends()
    assert (play.client.got(), play.client.ended, play.daemon.got()) == (LAST, True, BUILD[:-9])
    play.client.sends(BUILD[-9:])
    assert play.daemon.got() == b""


def test_what_is_not_finished() -> None:
    """More of it in test_reader_drain."""
    play = nothing_held()
    assert (play.reader.unfinished(), play.reader.asks_nothing, play.reader.was_asked) == ((0, 0, 0), True, False)
    play.client.sends(PING + PING)
    play.daemon.sends(OK[:-1])
    assert (play.reader.unfinished(), play.reader.asks_nothing, play.reader.was_asked) == ((1, 1, 0), True, True)
    play.daemon.sends(OK[-1:] + OK)
    play.client.sends(ATTACH)
    assert (play.reader.unfinished(), play.reader.asks_nothing) == ((1, 0, 0), False)
    play.daemon.sends(SWITCHING)
    assert (play.reader.unfinished(), play.reader.asks_nothing) == ((0, 0, 1), False)
