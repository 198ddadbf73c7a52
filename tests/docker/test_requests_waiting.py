"""What waits of the client's bytes, and its EOF behind that (relay-rules B1, B3)."""

import pytest

from runtimeproxy.docker.requests import READ_AHEAD_BYTES
from runtimeproxy.docker.routes import Action
from tests.docker.peer import (
    ATTACH,
    CONTINUE,
    CREATE,
    EXEC,
    HIJACKED,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    PING,
    START,
    STOP,
    SWITCHING,
    UPGRADE,
    Play,
    error,
    nothing_held,
    request,
)

LONG_STDIN = b"s" * (READ_AHEAD_BYTES + 1)

# ---- B1: EOF in order, reading ahead


def test_b1_eof_passes_at_once_behind_what_passed() -> None:
    play = nothing_held()
    play.client.sends(PING)
    play.client_ends()
    assert play.daemon.ended
    assert play.daemon.got() == PING
    play.daemon.sends(OK)
    assert play.client.got() == OK


def test_b1_eof_waits_behind_a_held_call_and_does_not_end_it() -> None:
    play = Play()
    play.client.sends(START)
    play.client_ends()
    assert not play.daemon.ended
    play.call.release(None)
    assert play.daemon.got() == START
    assert play.daemon.ended, "EOF has nothing more to wait for"
    play.daemon.sends(NO_CONTENT)
    play.call.answer()
    assert play.client.got() == NO_CONTENT


def test_b1_eof_waits_for_requests_that_wait_behind_a_held_call() -> None:
    play = Play()
    play.client.sends(START + PING)
    play.client_ends()
    play.call.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (START, False)
    play.daemon.sends(NO_CONTENT)
    play.call.answer()
    assert (play.daemon.got(), play.daemon.ended) == (PING, True)


def test_b1_eof_waits_for_each_held_call_in_its_turn() -> None:
    play = Play()
    play.client.sends(START + STOP)
    play.client_ends()
    play.call.refuse(500, "no")
    assert not play.daemon.ended
    _, stop = play.events.calls
    stop.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (STOP, True)


def test_b1_eof_waits_for_calls_that_go_on_within_the_turn() -> None:
    play = Play(holds=[Action.START, Action.STOP])
    play.client.sends(START + STOP + CREATE)
    play.client_ends()
    first = play.call
    play.events.at_once = lambda exchange: exchange.release(None)
    first.refuse(500, "no")
    assert (play.daemon.got(), play.daemon.ended) == (STOP, False)
    play.daemon.sends(NO_CONTENT)
    play.events.calls[-1].answer()
    assert (play.daemon.got(), play.daemon.ended) == (CREATE, True)


def test_b1_a_held_call_may_be_refused_within_the_turn_and_the_next_is_read() -> None:
    play = Play()
    play.events.at_once = lambda exchange: exchange.refuse(500, "no")
    play.client.sends(START + PING)
    assert play.daemon.got() == PING
    assert play.client.got().count(b"HTTP/1.1 500") == 1


def test_b1_eof_behind_an_upgrade_passes_at_once_if_nothing_waits() -> None:
    play = nothing_held()
    play.client.sends(ATTACH)
    play.client_ends()
    assert (play.daemon.got(), play.daemon.ended) == (ATTACH, True)
    play.daemon.sends(SWITCHING + b"output")
    assert play.client.got() == SWITCHING + b"output"


@pytest.mark.parametrize("reply", [SWITCHING, NOT_FOUND])
def test_b1_eof_waits_for_bytes_behind_an_upgrade(reply: bytes) -> None:
    play = nothing_held()
    play.client.sends(ATTACH, PING)
    play.client_ends()
    assert (play.daemon.got(), play.daemon.ended) == (ATTACH, False)
    play.daemon.sends(reply)
    assert (play.daemon.got(), play.daemon.ended) == (PING, True)


def test_b1_eof_inside_a_passing_body_passes() -> None:
    play = nothing_held()
    play.client.sends(CREATE[:-3])
    play.client_ends()
    assert (play.daemon.got(), play.daemon.ended) == (CREATE[:-3], True)


def test_b1_a_held_body_that_was_cut_is_refused_with_the_end_of_the_connection() -> None:
    play = Play()
    play.client.sends(CREATE[:-3])
    play.client_ends()
    play.call.refuse(500, "no")
    assert error(play.client.got())[:2] == (500, True)
    assert play.client.ended


def test_b1_a_cut_held_body_waits_for_its_turn() -> None:
    play = Play()
    play.client.sends(PING + CREATE[:-3])
    play.client_ends()
    assert not play.events.calls
    play.daemon.sends(OK)
    play.call.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (PING + CREATE[:-3], True)


def test_b1_the_beginning_of_a_head_goes_nowhere() -> None:
    play = nothing_held()
    play.client.sends(PING + PING[:-1])
    play.client_ends()
    assert (play.daemon.got(), play.daemon.ended) == (PING, True)


def test_b1_behind_a_held_call_reading_goes_on_up_to_the_limit() -> None:
    play = Play()
    play.client.sends(START)
    assert play.events.reading
    play.client.sends(LONG_STDIN[:-1])
    assert play.events.reading
    play.client.sends(b"s")
    assert not play.events.reading


def test_b1_what_comes_in_one_piece_with_the_held_call_counts_too() -> None:
    play = Play()
    play.client.sends(START + LONG_STDIN)
    assert not play.events.reading


def test_b1_reading_goes_on_once_the_held_call_is_answered() -> None:
    play = Play(holds=[Action.START])
    many = PING * (READ_AHEAD_BYTES // len(PING) + 1)
    play.client.sends(START, many)
    assert not play.events.reading
    play.call.release(None)
    assert not play.events.reading, "it is not answered yet"
    play.daemon.sends(NO_CONTENT)
    play.call.answer()
    assert play.events.reading
    assert play.daemon.got() == START + many


def test_b1_reading_goes_on_behind_the_next_held_call_if_little_waits() -> None:
    play = Play()
    upload = request("POST", "/images/load", body=b"i" * READ_AHEAD_BYTES)
    play.client.sends(START, upload + STOP + PING)
    assert not play.events.reading
    play.call.refuse(500, "no")
    assert play.events.reading
    assert play.daemon.got() == upload


def test_b1_reading_stops_and_goes_on_around_an_upgrade() -> None:
    play = nothing_held()
    play.client.sends(ATTACH, LONG_STDIN)
    assert not play.events.reading
    play.daemon.sends(SWITCHING)
    assert play.events.reading
    assert play.daemon.got() == ATTACH + LONG_STDIN


# ---- B3: bytes behind a possible upgrade

UPGRADING = {
    "attach": ATTACH,
    "attach without the fields": request("POST", "/containers/box/attach?stream=1", body=b""),
    "exec": EXEC,
    "session": request("POST", "/session", "Connection: Upgrade", "Upgrade: h2c"),
    "anything with Upgrade": request("GET", "/nowhere", *UPGRADE),
}


@pytest.mark.parametrize("sent", UPGRADING.values(), ids=UPGRADING.keys())
@pytest.mark.parametrize("reply", [SWITCHING, HIJACKED], ids=["101", "200"])
def test_b3_bytes_behind_an_upgrade_wait_for_the_status_and_are_the_tunnels(sent: bytes, reply: bytes) -> None:
    play = nothing_held()
    play.client.sends(sent + b"POST /contain", b"ers/create HTTP/1.1\n")
    assert play.daemon.got() == sent
    play.daemon.sends(reply + b"first output")
    assert play.daemon.got() == b"POST /containers/create HTTP/1.1\n"
    play.client.sends(START, b"\0\n")
    play.daemon.sends(OK, b"\0\n")
    assert play.daemon.got() == START + b"\0\n"
    assert play.client.got() == reply + b"first output" + OK + b"\0\n"


@pytest.mark.parametrize("sent", UPGRADING.values(), ids=UPGRADING.keys())
def test_b3_behind_a_framed_error_they_are_the_next_requests(sent: bytes) -> None:
    play = Play()
    play.client.sends(sent, PING + START)
    assert play.daemon.got() == sent
    play.daemon.sends(NOT_FOUND)
    assert play.daemon.got() == PING
    play.daemon.sends(OK)
    assert play.call.route.reference
    assert play.client.got() == NOT_FOUND + OK


def test_b3_an_interim_answer_decides_nothing() -> None:
    play = nothing_held()
    play.client.sends(ATTACH + PING)
    play.daemon.sends(CONTINUE)
    assert play.daemon.got() == ATTACH
    play.daemon.sends(SWITCHING)
    assert play.daemon.got() == PING
    assert play.client.got() == CONTINUE + SWITCHING


def test_b3_an_error_before_the_body_has_come_holds_nothing_up() -> None:
    play = nothing_held()
    play.client.sends(EXEC[:-3])
    play.daemon.sends(NOT_FOUND)
    play.client.sends(EXEC[-3:] + PING)
    assert play.daemon.got() == EXEC + PING


def test_b3_a_tunnel_may_begin_before_the_body_has_come() -> None:
    play = nothing_held()
    play.client.sends(EXEC[:-3])
    play.daemon.sends(SWITCHING)
    play.client.sends(EXEC[-3:] + b"stdin")
    assert play.daemon.got() == EXEC + b"stdin"
