"""Who has gone: the daemon before, during and behind a call, and the client (relay-rules B9, C1, C2, C5)."""

import pytest

from runtimeproxy.call import UNANSWERED, Reply
from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CLOSE,
    CREATE,
    CREATED,
    HIJACKED,
    INFO,
    NO_CONTENT,
    OK,
    PING,
    START,
    Play,
    answer,
    chunks,
    error,
    nothing_held,
    request,
)

BUILD = request("POST", "/build", CHUNKED) + chunks(b"tar", b"x" * 20)
BROKEN_CHUNK = b"no size\r\n"
LAST = answer(200, CLOSE, body=b"last")

# ---- B9: the daemon is away or closes


def test_b9_also_while_the_held_body_is_still_to_come() -> None:
    play = Play()
    play.events.daemons = 1
    play.client.sends(CREATE[:-3])
    assert play.daemon_ends()
    play.client.sends(CREATE[-3:])
    play.call.release(b"{}")
    assert play.daemon.got().endswith(b"\r\n\r\n{}")


def test_b9_the_clients_eof_passes_to_the_new_connection() -> None:
    play = Play()
    play.events.daemons = 1
    play.client.sends(START)
    play.client_ends()
    assert play.daemon_ends()
    assert not play.daemon.ended
    play.call.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (START, True)


def test_b9_a_daemon_that_closes_during_a_hold_is_dialled_once_more() -> None:
    play = Play()
    play.events.daemons = 1
    play.client.sends(CREATE + PING)
    assert play.daemon_ends()
    assert not play.client.ended
    play.call.release(None)
    assert play.daemon.got() == CREATE
    play.daemon.sends(CREATED)
    play.call.answer()
    assert play.daemon.got() == PING
    play.daemon.sends(OK)
    assert play.client.got() == CREATED + OK
    assert play.events.redials == 1


def test_b9_502_within_the_turn_and_nothing_behind_it_is_read() -> None:
    play = Play()
    play.client.sends(CREATE[:-3])
    play.daemon_ends()
    play.events.at_once = lambda exchange: exchange.release(None)
    play.client.sends(CREATE[-3:] + START + PING)
    assert error(play.client.got())[:2] == (502, True)
    assert play.daemon.got() == b""


@pytest.mark.parametrize("begun", [b"", CREATED[:-1]], ids=["nothing came", "a part came"])
def test_b9_a_request_that_was_sent_is_never_sent_again(begun: bytes) -> None:
    play = Play()
    play.events.daemons = 1
    play.client.sends(CREATE + PING)
    play.call.release(None)
    play.daemon.sends(*[begun] * bool(begun))
    assert not play.daemon_ends()
    assert play.call.reply == UNANSWERED
    play.call.answer()
    play.client.sends(PING)
    assert play.daemon.got() == CREATE
    assert play.client.got() == b"", "a connection that dies looks like that"
    assert play.events.redials == 0


def test_b9_an_answer_that_breaks_off_looks_like_that() -> None:
    play = nothing_held()
    play.client.sends(INFO)
    play.daemon.sends(OK[:-1])
    assert not play.daemon_ends()
    assert play.client.got() == OK[:-1]


def test_b9_eof_drops_what_was_pipelined_and_nobody_is_asked_about_it() -> None:
    play = Play()
    play.client.sends(PING + CREATE)
    assert not play.daemon_ends()
    assert not play.events.calls
    assert play.held_bytes.count == 0


PIPELINED = {
    "held and whole": CREATE + PING,
    "held and cut": CREATE[:-3],
    "passing": PING + INFO,
    "passing and cut": BUILD[:-3],
    "not readable": b"\0",
    "a possible upgrade": ATTACH + b"stdin",
}


@pytest.mark.parametrize("behind", PIPELINED.values(), ids=PIPELINED.keys())
@pytest.mark.parametrize("sent", [INFO, BUILD], ids=["remembered", "not remembered"])
def test_b9_an_answer_that_closes_drops_what_was_pipelined(sent: bytes, behind: bytes) -> None:
    play = Play()
    play.client.sends(sent + behind)
    play.daemon.got()
    play.daemon.sends(LAST[:-1], LAST[-1:])
    assert play.client.got() == LAST
    play.client.sends(START, BROKEN_CHUNK)
    assert (play.daemon.got(), play.client.got()) == (b"", b"")
    assert not play.events.calls
    assert play.held_bytes.count == 0
    assert not play.daemon_ends()


# ---- C1, C2, C5: who has gone


def test_c2_a_client_that_goes_ends_all_that_wait() -> None:
    play = Play()
    play.client.sends(PING + CREATE[:-3])
    play.reader.client_gone()
    assert play.held_bytes.count == 0
    play.daemon.sends(OK)
    assert not play.events.calls


def test_c2_what_was_sent_for_a_client_that_has_gone_is_unanswered_whatever_comes() -> None:
    play = Play()
    play.client.sends(START)
    play.call.release(None)
    play.reader.client_gone()
    assert play.call.reply == UNANSWERED
    play.daemon.sends(NO_CONTENT)
    assert play.client.got() == b""
    assert not play.daemon_ends()


def test_c2_what_the_daemon_answered_is_finished_without_the_client() -> None:
    play = Play()
    play.client.sends(START)
    play.call.release(None)
    play.daemon.sends(NO_CONTENT)
    play.reader.client_gone()
    assert play.call.reply == Reply(agreed=True)
    play.call.answer()
    assert play.client.got() == b""


@pytest.mark.parametrize("shared", [False, True])
def test_behind_what_cannot_be_read_nothing_passes_though_an_earlier_answer_has_no_end(shared: bool) -> None:
    """Such an answer makes a tunnel; in it a hole in the client's bytes would make a request that nobody has read."""
    play = Play()
    play.shared = shared
    play.client.sends(PING + b"1\r\n\0")
    play.daemon.sends(HIJACKED)
    play.client.sends(START)
    play.daemon.sends(b"bytes")
    assert (play.daemon.got(), play.client.got()) == (PING, HIJACKED + b"bytes")
    assert play.events.calls == []
    play.client_ends()
    assert play.daemon.ended, "it may wait for that"
