"""The daemon's bytes: framing, interim answers, tunnels, answers without a request (relay-rules B2, B3, B6, B9)."""

import pytest

from runtimeproxy.errors import WireError
from tests.docker.messages import CHUNKED, CLOSE, EXPECT, answer, chunks, head, request
from tests.docker.peer import Step, asked, converse, passed
from tests.docker.replies import CONTINUE, CREATED, EOF, HIJACKED, NO_CONTENT, NOT_FOUND, OK, SWITCHING, ours
from tests.docker.requests import ATTACH, CREATE, INFO, PING, START
from tests.docker.steps import answered, client, daemon, leaves, passes, returns

HEAD = request("HEAD", "/_ping")
BUILD = request("POST", "/build", CHUNKED) + chunks(b"tar" * 9, b"x")
STREAM = answer(200, CHUNKED, body=None) + chunks(b'{"status":"Pulling"}', b"x" * 30, trailers=("Sum: 1",))
UNFRAMED_404 = answer(404, "Content-Type: text/plain", CLOSE, body=None) + b"No such container: box\n"
EARLY = head("HTTP/1.1 103 Early Hints", "Link: x")
EXPECTING = CREATE.replace(b"Host", EXPECT.encode() + b"\r\nHost")


FRAMED = {
    "chunks": (INFO, STREAM),
    "304 with a length": (INFO, head("HTTP/1.1 304 Not Modified", "Content-Length: 7")),
    "HEAD": (HEAD, head("HTTP/1.1 200 OK", "Content-Length: 7")),
    "behind 102 and 100": (INFO, head("HTTP/1.1 102 Processing") + CONTINUE + OK),
    "HTTP/1.0 kept alive": (INFO, head("HTTP/1.0 200 OK", "Connection: keep-alive", "Content-Length: 0")),
}


@pytest.mark.parametrize(("sent", "replied"), FRAMED.values(), ids=FRAMED)
def test_next_answer_begins_behind_this_one(sent: bytes, replied: bytes) -> None:
    """Where an answer has no body none is waited for, and the next bytes are not taken for one."""
    for place in range(1, len(replied) + 1):
        pieces = daemon(replied[:place], replied[place:] + SWITCHING, to_client=replied + SWITCHING)
        assert converse([passes(sent + ATTACH), pieces], holds=()).reader.tunnel
    bytewise = daemon(*[bytes((octet,)) for octet in replied * 2], to_client=replied * 2)
    assert not converse([client(sent, sent, to_daemon=sent * 2), bytewise], holds=()).reader.tunnel


UNFRAMED = {
    "an unframed 404 to an attach": (ATTACH, UNFRAMED_404),
    "an unframed 200 to an attach": (ATTACH, HIJACKED + b"output"),
    "an unframed 500 to any request": (INFO, answer(500, body=None) + b"why"),
    "an answer of HTTP/1.0": (INFO, head("HTTP/1.0 200 OK") + b"text"),
    "101": (ATTACH, SWITCHING + b"output"),
}


@pytest.mark.parametrize(("sent", "replied"), UNFRAMED.values(), ids=UNFRAMED)
def test_b2_reply_without_framing_is_a_tunnel(sent: bytes, replied: bytes) -> None:
    for place in range(1, len(replied) + 1):
        steps = [
            passes(sent),
            daemon(replied[:place], replied[place:], b"\0more\n", to_client=replied + b"\0more\n"),
            passes(START, b"\0"),
        ]
        assert converse(steps, holds=()).reader.tunnel


LONG = answer(200, body=OK + OK)
PASSING: dict[str, list[Step]] = {
    "a body passes in any pieces": [
        passes(INFO, PING),
        *(returns(part) for part in (LONG[:-9], LONG[-9:-5], LONG[-5:], OK)),
    ],
    "an answer before the end of the request passes, and both go on": [
        passed(BUILD[:-20], STREAM[:-9]),
        passed(BUILD[-20:-10], STREAM[-9:]),
        passed(BUILD[-10:] + PING, OK),
    ],
    "a request that breaks while it is answered gets no second answer": [
        passed(BUILD[:-20], STREAM[:-9]),
        client(b"x" * 30, to_client=EOF),
    ],
    "the rest of an answer goes nowhere when its client has gone": [
        passed(BUILD[:-20], STREAM[:-9]),
        leaves(),
        daemon(STREAM[-9:], OK),
    ],
    "nothing of the daemon's is read behind our last answer": [
        client(PING + b"nonsense\r\n\r\n", to_daemon=PING),
        daemon(OK + NOT_FOUND, NOT_FOUND, b"nonsense\r\n\r\n", to_client=OK + ours(400, closes=True) + EOF),
    ],
    "a known answer is none inside another": [
        passed(PING, OK),
        passes(PING, PING, PING),
        daemon(LONG[: -2 * len(OK)], OK, OK, OK[:9], OK[9:], to_client=LONG + OK),
        returns(b"HTTP/1.1 201 Words\r\nX: ", OK),
    ],
    "a known answer is none where the method says otherwise": [
        passed(HEAD, answer(200, "Content-Length: 7", body=None)),
        passed(PING, answer(200, "Content-Length: 7", body=None)),
        returns(b"1234567"),
    ],
}


@pytest.mark.parametrize("steps", PASSING.values(), ids=PASSING)
def test_passing(steps: list[Step]) -> None:
    converse(steps, holds=())


HELD: dict[str, list[Step]] = {
    "B2: an unframed answer to a held call passes as it comes": [
        asked(START),
        daemon(UNFRAMED_404[:-5], UNFRAMED_404[-5:], to_client=UNFRAMED_404),
        answered(),
    ],
    "B6: the daemon's 100 passes where we did not": [
        asked(EXPECTING.replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
        returns(CONTINUE),
    ],
}


@pytest.mark.parametrize("steps", HELD.values(), ids=HELD)
def test_held(steps: list[Step]) -> None:
    converse(steps).leave()


@pytest.mark.parametrize("replied", [CREATED, STREAM, NO_CONTENT], ids=["a body", "chunks", "204"])
def test_answer_to_a_held_call_is_kept_wherever_it_is_cut(replied: bytes) -> None:
    for place in range(1, len(replied) + 1):
        kept = daemon(EARLY + replied[:place], replied[place:], to_client=EARLY)
        converse([asked(CREATE), kept, answered(to_client=replied)])


BEGUN = STREAM[: STREAM.index(b"0\r\nSum")]
TWO_LENGTHS = head("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2")
SETTINGS = bytes.fromhex("000006040000000000000300000064")
MODE = r"; it speaks HTTP/2: is --backend-runtime-mode right\?$"
NO_MODE = r"^(?!.*backend-runtime-mode)"
PINGED = [passes(PING)]
BROKEN: dict[str, tuple[list[Step], Step, str]] = {
    # the steps before, the bytes that break the protocol, and the error's text
    "nobody asked, at first": ([], daemon(OK), "without a request"),
    "nobody asked, behind an answer": ([passed(PING, OK)], daemon(OK), "without a request"),
    "a call that is not released": ([client(START, asks=1)], daemon(NO_CONTENT), "without a request"),
    "two lengths": (PINGED, daemon(TWO_LENGTHS), NO_MODE),
    "cut after 1 byte": (PINGED, daemon(TWO_LENGTHS[:1], TWO_LENGTHS[1:]), NO_MODE),
    "cut in a field": (PINGED, daemon(TWO_LENGTHS[:40], TWO_LENGTHS[40:]), NO_MODE),
    "a broken chunk behind what passed": ([*PINGED, returns(BEGUN)], daemon(b"zz\r\n"), NO_MODE),
    "HTTP/2 behind a request": (PINGED, daemon(SETTINGS), MODE),
    "HTTP/2 at once": ([], daemon(SETTINGS), MODE),
    **{
        f"another protocol, {sent!r}": (PINGED, daemon(sent), NO_MODE)
        for sent in (b"\0" * 9, b"\0\0\6\4\0\0\0\0\1", b"\x16\x03\x01\2\0\0\0\0\0", b"HTTP/1.1 200\0")
    },
}


@pytest.mark.parametrize(("before", "broken", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer_breaks_the_protocol(before: list[Step], broken: Step, message: str) -> None:
    play = converse(before)
    with pytest.raises(WireError, match=message):
        broken.act(play)
    assert play.came() == (b"", b"", 0)


NOT_REMEMBERED = {
    "in chunks": (PING, answer(200, CHUNKED, body=None) + chunks(b"x")),
    "the last one": (PING, answer(200, CLOSE, body=b"x")),
    "long": (PING, answer(200, body=b"x" * 1024)),
    "an interim one": (PING, EARLY),
    "two in one piece": (PING + PING, OK + OK),
    # Its method would be part of the key in the cache.
    "to what is not asked again": (request("M" * 10_000, "/"), answer(404, "Some: field", body=b"x")),
}


@pytest.mark.parametrize(("sent", "replied"), NOT_REMEMBERED.values(), ids=NOT_REMEMBERED)
def test_some_answers_are_not_remembered(sent: bytes, replied: bytes) -> None:
    assert converse([passed(sent, replied)], holds=()).known.answers == {}
