"""A held call's request and answer: read, released, refused, ended, kept (relay-rules B5 to B9, C1 to C3)."""

from collections.abc import Callable

import pytest

from runtimeproxy.call import MESSAGE_LIMIT, UNANSWERED, CallState, Reply
from runtimeproxy.docker.exchange import REPLY_LIMIT, HeldExchange
from runtimeproxy.errors import WireError
from runtimeproxy.heldbytes import NO_ROOM
from runtimeproxy.wire import JOINED_BYTES
from tests.docker.peer import (
    CHUNKED,
    CLOSE,
    CREATE,
    CREATED,
    EXPECT,
    ID,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    PING,
    START,
    STOP,
    Play,
    answer,
    chunks,
    error,
    head,
    request,
)

JSON = "Content-Type: application/json"
BODY = b'{"Image":"i"}'
TARGET = "/v1.41/containers/create"
IN_CHUNKS = request("POST", TARGET, CHUNKED, "Trailer: Sum", JSON) + chunks(BODY[:4], BODY[4:], trailers=("Sum: 1",))
UPDATE = request("POST", f"/containers/{ID}/update", JSON, body=b'{"CpuShares":2}')
REMOVE = request("DELETE", f"/containers/{ID}?force=1")


def held(sent: bytes, *, limit: int = 1000) -> Play:
    """Return a connection on which a call is held."""
    play = Play(limit=limit)
    play.client.sends(sent)
    return play


def released(sent: bytes) -> Play:
    """Return a connection on which a call was held and released, and the daemon has it."""
    play = held(sent)
    play.call.release(None)
    assert play.daemon.got() == sent
    return play


# ---- reading the request

READABLE = {
    "sized": (CREATE, BODY),
    "in chunks": (IN_CHUNKS, BODY),
    "empty": (STOP, b""),
    "no length": (START, b""),
    "no chunks": (request("POST", TARGET, CHUNKED) + chunks(), b""),
}


@pytest.mark.parametrize(("sent", "body"), READABLE.values(), ids=READABLE.keys())
def test_a_held_request_is_read_without_its_chunks_wherever_it_is_cut(sent: bytes, body: bytes) -> None:
    for place in range(1, len(sent) + 1):
        play = Play()
        play.client.sends(sent[:place])
        assert play.daemon.got() == b""
        play.client.sends(sent[place:] + PING)
        assert play.call.body() == body
        play.call.release(None)
        assert play.daemon.got() == sent


def test_b5_an_encoded_body_cannot_be_read() -> None:
    play = held(request("POST", TARGET, "Content-Encoding: gzip", body=b"\x1f\x8b"))
    with pytest.raises(WireError, match="encoded"):
        play.call.body()


def test_a_request_that_ends_inside_its_body_cannot_be_read() -> None:
    play = held(CREATE[:-1])
    play.client_ends()
    with pytest.raises(WireError, match="ends inside"):
        play.call.body()


def test_a_request_longer_than_a_message_may_be_cannot_be_read() -> None:
    play = Play()
    sent = request("POST", TARGET, body=bytes(MESSAGE_LIMIT + 1))
    play.client.sends(sent[:-1])
    assert not play.events.calls
    play.client.sends(sent[-1:])
    with pytest.raises(WireError, match="longer than the limit"):
        play.call.body()
    play.call.release(None)
    assert play.daemon.got() == sent


def test_of_a_chunked_body_for_which_there_is_no_room_nothing_more_is_taken_out() -> None:
    play = Play(limit=100)
    chunk = b"100\r\n" + b"x" * 256 + b"\r\n"
    play.client.sends(request("POST", TARGET, CHUNKED), chunk, chunk)
    assert play.call.problem == NO_ROOM
    play.call.release(None)
    play.client.sends(chunk * 2)
    assert play.call._payload == b""
    assert play.daemon.got() == request("POST", TARGET, CHUNKED) + 4 * chunk


LEAVING: dict[str, Callable[[HeldExchange], object]] = {
    "refused": lambda call: call.refuse(500, "no"),
    "ended": lambda call: call.end(),
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
def test_a_call_that_is_held_no_longer_keeps_no_bytes(leave: Callable[[HeldExchange], object]) -> None:
    play = held(CREATE)
    assert play.held_bytes.count == len(BODY)
    leave(play.call)
    assert play.held_bytes.count == 0


# ---- B8: what is released


@pytest.mark.parametrize("sent", [START, STOP, REMOVE])
def test_b8_a_request_without_a_body_is_released_as_its_original_head(sent: bytes) -> None:
    assert released(sent).daemon.got() == b""


@pytest.mark.parametrize("sent", [CREATE, UPDATE, IN_CHUNKS])
def test_b8_an_unchanged_request_keeps_its_bytes_and_chunking(sent: bytes) -> None:
    assert released(sent).daemon.got() == b""


def test_b8_a_long_body_is_not_copied_to_be_read_or_released(monkeypatch: pytest.MonkeyPatch) -> None:
    play, written = Play(), list[bytes]()
    play.client.sends(request("POST", TARGET, body=bytes(JOINED_BYTES + 1)))
    head, body = play.call.head, play.call.body()
    monkeypatch.setattr(play.reader, "send_request", lambda call, *pieces: written.extend(pieces))
    play.call.release(None)
    assert head is not None
    assert [id(piece) for piece in written] == [id(head.raw), id(body)]


CHANGED = {
    "sized": (
        head(f"POST {TARGET} HTTP/1.1", "host: h", "content-length: 0013", "X-A:  1", JSON) + BODY,
        head(f"POST {TARGET} HTTP/1.1", "host: h", "Content-Length: 9", "X-A:  1", JSON),
    ),
    "in chunks": (
        head(f"POST {TARGET} HTTP/1.1", "Host: h", "X-A: 1", "Trailer: Sum", "transfer-encoding: Chunked", "X-A: 2")
        + chunks(BODY, trailers=("Sum: 1",)),
        head(f"POST {TARGET} HTTP/1.1", "Host: h", "X-A: 1", "Content-Length: 9", "X-A: 2"),
    ),
    "with an expectation": (
        request("POST", TARGET, EXPECT, body=BODY),
        head(f"POST {TARGET} HTTP/1.1", "Host: docker", "Content-Length: 9", EXPECT),
    ),
    "without a body": (
        head(f"POST {TARGET} HTTP/1.1", "Host: h"),
        head(f"POST {TARGET} HTTP/1.1", "Host: h", "Content-Length: 9"),
    ),
}


@pytest.mark.parametrize(("sent", "changed_head"), CHANGED.values(), ids=CHANGED.keys())
def test_b8_a_changed_request_differs_in_the_three_lines_and_its_body_only(sent: bytes, changed_head: bytes) -> None:
    play = held(sent + PING)
    play.call.release(b'{"new":1}')
    assert play.daemon.got() == changed_head + b'{"new":1}'


# ---- C1: only the first transition counts

STATES: dict[CallState, Callable[[HeldExchange], object]] = {
    CallState.RELEASED: lambda call: call.release(None),
    CallState.REFUSED: lambda call: call.refuse(500, "no"),
    CallState.ENDED: lambda call: call.end(),
}


@pytest.mark.parametrize("state", STATES)
def test_c1_only_the_first_transition_counts(state: CallState) -> None:
    play = held(CREATE)
    assert play.call.state is CallState.HOLDING
    STATES[state](play.call)
    play.client.got()
    play.daemon.got()
    assert not play.call.release(b"late")
    assert not play.call.refuse(500, "late")
    assert play.call.withdraw() == b""
    play.call.end()
    assert play.call.state is state
    assert (play.client.got(), play.daemon.got()) == (b"", b"")


def test_c1_the_transition_that_counts_says_so() -> None:
    assert held(START).call.release(None)
    assert held(START).call.refuse(500, "no")
    assert held(CREATE).call.withdraw() == CREATE


def test_c1_a_call_that_ends_while_held_tells_it_once() -> None:
    play = held(CREATE)
    told: list[str] = []
    play.call.on_ended = lambda: told.append("ended")
    play.call.on_reply = lambda: told.append("reply")
    play.call.end()
    play.call.end()
    assert told == ["reply", "ended"]
    assert play.call.reply == UNANSWERED


def test_c2_a_call_that_was_released_ends_without_an_answer_and_its_task_goes_on() -> None:
    play = released(CREATE)
    told: list[str] = []
    play.call.on_ended = lambda: told.append("ended")
    play.call.end()
    assert told == []
    assert play.call.reply == UNANSWERED
    assert play.events.settled_calls == [play.call]


def test_c2_what_the_daemon_answered_stays() -> None:
    play = released(CREATE)
    play.daemon.sends(CREATED)
    play.call.end()
    assert play.call.reply == Reply(agreed=True, message=b'{"Id":"1","Warnings":[]}')
    assert play.events.settled_calls == [play.call]


@pytest.mark.parametrize("sent", [CREATE, request("POST", TARGET, CLOSE)], ids=["kept alive", "closed"])
def test_a_refused_call_waits_for_nothing(sent: bytes) -> None:
    play = held(sent)
    play.call.refuse(500, "no")
    play.reader.client_gone()
    assert play.call.reply is None
    assert not play.events.settled_calls


# ---- refusals

CLOSING = {
    "kept alive": (CREATE, False),
    "Connection: close": (request("POST", TARGET, CLOSE, body=BODY), True),
    "HTTP/1.0": (head(f"POST {TARGET} HTTP/1.0", "Content-Length: 2") + b"{}", True),
    "HTTP/1.0 kept alive": (
        head(f"POST {TARGET} HTTP/1.0", "Connection: keep-alive", "Content-Length: 2") + b"{}",
        False,
    ),
    "no body": (START, False),
}


@pytest.mark.parametrize(("sent", "closes"), CLOSING.values(), ids=CLOSING.keys())
def test_a_refusal_keeps_the_connection_unless_the_client_closes_it(sent: bytes, closes: bool) -> None:
    play = held(sent + PING)
    play.call.refuse(500, "runtimeproxy: no")
    assert error(play.client.got()) == (500, closes, b'{"message": "runtimeproxy: no"}\n')
    assert play.client.ended is closes
    assert play.daemon.got() == (b"" if closes else PING)


def test_b7_a_refusal_with_the_body_unread_closes() -> None:
    play = held(CREATE[:-1], limit=5)
    play.call.refuse(500, "no")
    assert error(play.client.got())[:2] == (500, True)
    play.client.sends(CREATE[-1:] + PING)
    assert play.daemon.got() == b""


# ---- the answer

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


@pytest.mark.parametrize(("sent", "replied", "agreed"), AGREED.values(), ids=AGREED.keys())
def test_with_which_answers_the_daemon_agreed(sent: bytes, replied: bytes, agreed: bool) -> None:
    play = released(sent)
    play.daemon.sends(replied)
    body, faultless = replied.partition(b"\r\n\r\n")[2], not agreed and b" 304 " in replied
    assert (play.call.reply, play.client.got()) == (Reply(agreed, body, faultless=faultless), b""), "it is told first"
    play.call.answer()
    assert play.client.got() == replied


def test_an_answer_in_chunks_is_read_without_them_and_passes_with_them() -> None:
    play = released(CREATE)
    replied = answer(201, CHUNKED, body=None) + chunks(b'{"Id"', b':"1"}')
    play.daemon.sends(replied)
    assert play.call.reply == Reply(agreed=True, message=b'{"Id":"1"}')
    play.call.answer()
    assert play.client.got() == replied


@pytest.mark.parametrize("framed", ["sized", "in chunks"])
def test_of_a_long_answer_the_last_byte_is_kept(framed: str) -> None:
    play = released(CREATE)
    body = bytes(REPLY_LIMIT)
    replied = answer(201, body=body) if framed == "sized" else answer(201, CHUNKED, body=None) + chunks(body, b"tail")
    play.daemon.sends(replied[:REPLY_LIMIT])
    assert play.client.got() == b""
    play.daemon.sends(replied[REPLY_LIMIT : REPLY_LIMIT + 1])
    assert play.client.got() == replied[:REPLY_LIMIT]
    play.daemon.sends(replied[REPLY_LIMIT + 1 : -3], replied[-3:])
    assert play.client.got() == replied[REPLY_LIMIT:-1]
    assert play.call.reply == Reply(agreed=True)
    play.call.answer()
    assert play.client.got() == replied[-1:]


def test_the_answer_goes_once_and_not_before_it_came() -> None:
    play = released(CREATE)
    play.daemon.sends(CREATED[:-1])
    play.call.answer()
    assert play.client.got() == b""
    play.daemon.sends(CREATED[-1:])
    play.call.answer()
    play.call.answer()
    assert play.client.got() == CREATED
    play.passes(PING, OK)


def test_an_answer_may_go_within_the_turn_in_which_it_came() -> None:
    """As that of a create that is not a pod's."""
    play = Play()

    def pass_on(exchange: HeldExchange) -> None:
        exchange.on_reply = exchange.answer
        exchange.release(None)

    play.events.at_once = pass_on
    play.client.sends(CREATE + CREATE + PING)
    assert play.daemon.got() == CREATE
    play.daemon.sends(CREATED)
    assert (play.daemon.got(), play.client.got()) == (CREATE, CREATED)
    play.daemon.sends(NOT_FOUND)
    assert (play.daemon.got(), play.client.got()) == (PING, NOT_FOUND)


# ---- what goes wrong on the way


def test_b9_a_request_that_could_not_be_sent_did_nothing() -> None:
    play = held(CREATE)
    assert play.daemon_ends()
    assert play.call.release(None)
    assert play.call.reply == Reply(agreed=False, faultless=True)
    assert error(play.client.got())[:2] == (502, True)
    assert play.daemon.got() == b""


def test_b7_a_request_that_breaks_behind_what_was_kept_of_it_ends_unanswered() -> None:
    play = held(IN_CHUNKS[:-12], limit=5)
    play.call.release(None)
    play.client.sends(b"no chunk\r\n")
    assert play.call.reply == UNANSWERED
    assert error(play.client.got())[:2] == (400, True)


@pytest.mark.parametrize("end", [1, len(CREATED)], ids=["begun", "whole"])
def test_b7_a_request_that_breaks_when_it_has_an_answer_gets_no_second_one(end: int) -> None:
    play = held(IN_CHUNKS[:-12], limit=5)
    play.call.release(None)
    play.daemon.sends(CREATED[:-end], CREATED[-end:])
    play.client.sends(b"no chunk\r\n")
    assert play.client.ended
    play.call.answer()
    assert play.client.got() == b""
