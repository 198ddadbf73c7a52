"""What a client still waits for, and when it is inside of nothing, so that its connection may end."""

import pytest

from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CLOSE,
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
    SWITCHING,
    Play,
    answer,
    chunks,
    head,
    nothing_held,
    request,
)

NOTHING = (0, 0, 0)
A_CALL = (1, 0, 0)
AN_ANSWER = (0, 1, 0)
A_TUNNEL = (0, 0, 1)
LOGS = request("GET", "/v1.41/containers/box/logs?follow=1")
FOLLOWED = head("HTTP/1.1 200 OK", CHUNKED)
UPLOAD = request("PUT", "/containers/box/archive", CHUNKED)
EXPECTING = head("PUT /containers/box/archive HTTP/1.1", "Host: d", "Content-Length: 3", EXPECT)

CONVERSATIONS: dict[str, list[tuple[str, bytes, tuple[int, int, int], bool]]] = {
    # who sends, what, then what is unfinished, and whether the client is inside of nothing
    "a request": [
        ("client", INFO[:9], A_CALL, False),
        ("client", INFO[9:], A_CALL, True),
        ("daemon", OK, NOTHING, True),
    ],
    "a body": [
        ("client", UPLOAD, A_CALL, False),
        ("client", chunks(b"tar")[:-5], A_CALL, False),
        ("client", chunks(b"tar")[-5:], A_CALL, True),
        ("daemon", OK, NOTHING, True),
    ],
    "a body that is waited for": [
        ("client", EXPECTING, A_CALL, False),
        ("daemon", head("HTTP/1.1 100 Continue"), A_CALL, False),
        ("client", b"tar", A_CALL, True),
        ("daemon", OK, NOTHING, True),
    ],
    "a followed log": [
        ("client", LOGS, A_CALL, True),
        ("daemon", FOLLOWED, AN_ANSWER, True),
        ("daemon", b"5\r\nline\n\r\n", AN_ANSWER, True),
        ("daemon", b"0\r\n\r\n", NOTHING, True),
    ],
    "pipelined requests": [
        ("client", PING + LOGS + PING, (3, 0, 0), True),
        ("daemon", OK + FOLLOWED, (1, 1, 0), True),
        ("daemon", b"0\r\n\r\n", A_CALL, True),
        ("daemon", OK, NOTHING, True),
    ],
    "an upgrade": [
        ("client", ATTACH, A_CALL, False),
        ("daemon", SWITCHING, A_TUNNEL, False),
        ("client", b"stdin", A_TUNNEL, False),
    ],
    "an upgrade that is refused": [
        ("client", ATTACH, A_CALL, False),
        ("daemon", NOT_FOUND, NOTHING, True),
    ],
    "an unframed answer": [("client", INFO, A_CALL, True), ("daemon", HIJACKED, A_TUNNEL, False)],
    "HTTP/2": [("client", PREFACE, A_TUNNEL, False)],
    "an answer that closes": [
        ("client", INFO, A_CALL, True),
        ("daemon", answer(200, CLOSE, body=b"x"), NOTHING, True),
    ],
    "what cannot be read": [("client", b"no HTTP\r\n\r\n", NOTHING, True)],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_what_passes(conversation: list[tuple[str, bytes, tuple[int, int, int], bool]]) -> None:
    play = nothing_held()
    sides = {"client": play.client, "daemon": play.daemon}
    for side, data, unfinished, asks_nothing in conversation:
        sides[side].sends(data)
        assert (play.reader.unfinished(), play.reader.asks_nothing) == (unfinished, asks_nothing), data


def test_a_held_request_is_unfinished_until_its_answer_goes_out() -> None:
    play = Play()
    seen = []

    def look() -> None:
        seen.append((play.reader.unfinished(), play.reader.asks_nothing))

    play.client.sends(CREATE[:-3])
    look()
    play.client.sends(CREATE[-3:])
    look()
    play.call.release(None)
    look()
    play.daemon.sends(CREATED[:-3])
    look()
    play.daemon.sends(CREATED[-3:])
    look()
    play.call.answer()
    look()
    assert seen == [(A_CALL, False)] + [(A_CALL, True)] * 4 + [(NOTHING, True)]


def test_what_waits_behind_a_held_request_counts_once_it_is_read() -> None:
    play = Play()
    play.client.sends(START + PING)
    assert (play.reader.unfinished(), play.reader.asks_nothing) == (A_CALL, False)
    play.call.release(None)
    play.daemon.sends(NO_CONTENT)
    play.call.answer()
    assert (play.reader.unfinished(), play.reader.asks_nothing) == (A_CALL, True)


@pytest.mark.parametrize("sent", [INFO, CREATE, CREATE[:-3], LOGS])
def test_nothing_is_unfinished_once_the_client_has_gone(sent: bytes) -> None:
    play = Play()
    play.client.sends(sent)
    play.reader.client_gone()
    assert play.reader.unfinished() == NOTHING


def test_an_answer_that_broke_off_is_not_waited_for() -> None:
    play = nothing_held()
    play.client.sends(LOGS)
    play.daemon.sends(FOLLOWED)
    play.daemon_ends()
    assert play.reader.unfinished() == NOTHING


@pytest.mark.parametrize(("sent", "was_asked"), [(b"", False), (INFO[:20], True), (INFO, True), (CREATE, True)])
def test_whether_it_was_asked_anything(sent: bytes, was_asked: bool) -> None:
    play = Play()
    play.client.sends(sent)
    assert play.reader.was_asked is was_asked
