"""The client's bytes: HTTP/2, bodies in any split, what waits, the cache (relay-rules B1, B3, B4, B6, B8, B9, B11)."""

import pytest

from runtimeproxy.core.call import NO_ROOM
from runtimeproxy.docker.exchange import Action
from runtimeproxy.docker.parsers import READ_AHEAD_BYTES
from tests.docker.messages import CHUNKED, CLOSE, EXPECT, PREFACE, UPGRADE, answer, chunks, head, request
from tests.docker.peer import Play, Step, asked, converse, passed, settled
from tests.docker.replies import CONTINUE, CREATED, EOF, HIJACKED, NO_CONTENT, NOT_FOUND, OK, SWITCHING, ours
from tests.docker.requests import ATTACH, CREATE, EXEC, INFO, PING, START, STOP
from tests.docker.steps import answered, at_once, client, daemon, ends, passes, refuse, release, returns

EXPECTING = request("POST", "/containers/create", EXPECT, body=b'{"Image":"i"}')
OLD_EXPECTING = head("POST /containers/create HTTP/1.0", "Content-Length: 2", EXPECT)
EXPECTING_NOTHING = head("POST /containers/create HTTP/1.1", "Host: h", EXPECT)
UPLOAD = request("POST", "/images/load", body=b"i" * READ_AHEAD_BYTES)
PINGS = request("POST", "/images/load", body=PING + PING)
LAST_ERROR = answer(404, CLOSE, body=b"no\n")
LONG_STDIN = b"s" * (READ_AHEAD_BYTES + 1)
KILL = request("POST", "/containers/box/kill")
LONG_STOP = request("POST", "/containers/box/stop", f"X-Long: {'x' * 200}")
ABSOLUTE = CREATE.replace(b"/v1.41", b"http://docker/v1.41", 1)
MANY = PING * (READ_AHEAD_BYTES // len(PING) + 1)


@pytest.mark.parametrize("step", [1, 5, len(PREFACE)])
@pytest.mark.parametrize("passes", [True, False])
def test_b4_http2_is_a_tunnel_or_closed_however_it_comes(step: int, passes: bool) -> None:
    play = Play()
    play.http2_may_pass = passes
    play.client.sends(*[PREFACE[at : at + step] for at in range(0, len(PREFACE), step)], b"\0\0\0\4\0")
    assert play.came() == ((b"", PREFACE + b"\0\0\0\4\0", 0) if passes else (EOF, b"", 0))
    play.daemon.sends(*[b"\0\0\0\4\1"] * passes)
    assert play.client.got() == b"\0\0\0\4\1" * passes
    assert play.http2_clients == 1


SPLIT = {
    "no body": PING,
    "an empty body": STOP,
    "a body": CREATE,
    "chunks": request("POST", "/build", CHUNKED) + chunks(b"tar", b"x" * 20, trailers=("Sum: 1",)),
    "no chunks": request("POST", "/build", CHUNKED) + chunks(),
    "what begins as HTTP/2 does": head("PRI * HTTP/1.1", "Host: h"),
}


@pytest.mark.parametrize("sent", SPLIT.values(), ids=SPLIT)
def test_request_may_be_cut_anywhere(sent: bytes) -> None:
    for place in range(1, len(sent)):
        begun = sent[:place] if place >= sent.index(b"\r\n\r\n") + 4 else b""
        rest = client(sent[place:] + PING, to_daemon=sent.removeprefix(begun) + PING)
        converse([client(sent[:place], to_daemon=begun), rest], holds=())
    bytewise = client(*[bytes((octet,)) for octet in sent + sent], to_daemon=sent + sent)
    assert not converse([bytewise], holds=()).http2_clients


PASSING: dict[str, list[Step]] = {
    "B4: HTTP/2 begins a connection only, also behind a known request": [
        passed(PING, OK),
        client(PREFACE, to_client=ours(505, closes=True) + EOF),
    ],
    "a bad beginning is refused before its head has ended": [
        client(b"GET / HTTP/1.1\r\n", b"X: \0", to_client=ours(400, closes=True) + EOF)
    ],
    "a body may end with a read": [passes(UPLOAD[:-9]), passes(UPLOAD[-9:]), passes(PING), returns(OK, OK)],
    "known requests are answered in their order": [passes(PING, INFO, PING), returns(OK, NOT_FOUND, OK)],
    # B9: an answer that closes
    "B9: a body goes on behind an answer that closes, and nothing follows it": [
        passed(CREATE[:-9], LAST_ERROR),
        client(CREATE[-9:-6], CREATE[-6:] + PING, PING, to_daemon=CREATE[-9:]),
    ],
    "B9: what waits behind an upgrade that fails and closes is dropped": [
        client(ATTACH, b"\0 no request", to_daemon=ATTACH),
        returns(LAST_ERROR[:-3]),
        client(b"\0 nor this"),
        ends("client", to_daemon=EOF),
        returns(b"no\n"),
    ],
    # B11: empty lines
    "B11: empty lines after a POST are left out, also after a known one": [
        passed(KILL, NO_CONTENT),
        client(b"\r", b"\n", b"\r\n" + PING, to_daemon=PING),
        returns(OK),
        passed(KILL, NO_CONTENT),
        client(b"\r\n" + UPLOAD + b"\r\n", to_daemon=UPLOAD),
        returns(OK),
        client(b"\r", b"\n" + PING, to_daemon=PING),
    ],
    "B11: a third one is refused": [
        passed(KILL, NO_CONTENT),
        client(b"\r\n\r\n\r\n\r\n", to_client=ours(400, closes=True) + EOF),
    ],
    "B11: one after another method is refused": [
        passed(KILL, NO_CONTENT),
        passed(PING, OK),
        client(b"\r\n" + PING, to_client=ours(400, closes=True) + EOF),
    ],
    # B1: EOF in order
    "B1: the beginning of a head goes nowhere": [
        client(PING + PING[:-1], to_daemon=PING),
        ends("client", to_daemon=EOF),
    ],
    "B1: reading stops and goes on around an upgrade": [
        client(ATTACH, LONG_STDIN, to_daemon=ATTACH, reads=False),
        daemon(SWITCHING, to_client=SWITCHING, to_daemon=LONG_STDIN),
    ],
    # B3: a possible upgrade
    "B3: an interim answer decides nothing": [
        client(ATTACH + PING, to_daemon=ATTACH),
        returns(CONTINUE),
        daemon(SWITCHING, to_client=SWITCHING, to_daemon=PING),
    ],
}


@pytest.mark.parametrize("steps", PASSING.values(), ids=PASSING)
def test_passing(steps: list[Step]) -> None:
    converse(steps, holds=())


UNREADABLE = {
    "a bad head": (head("GET / HTTP/1.1", "Host: h", "Content-Length: +5"), 400),
    "another version": (head("GET / HTTP/2.0", "Host: h"), 505),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("sent", "status"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_request_is_answered_counted_and_the_last(sent: bytes, status: int, cut: bool) -> None:
    pieces = (sent[:14], sent[14:]) if cut else (sent,)
    play = converse([client(*pieces, PING, START, to_client=ours(status, closes=True) + EOF)], holds=())
    assert [refusal.status for refusal in play.refusals] == [status]


UPGRADING = {
    "attach": ATTACH,
    "attach without the fields": request("POST", "/containers/box/attach?stream=1", body=b""),
    "exec": EXEC,
    "session": request("POST", "/session", "Connection: Upgrade", "Upgrade: h2c"),
    "anything with Upgrade": request("GET", "/nowhere", *UPGRADE),
}


@pytest.mark.parametrize("sent", UPGRADING.values(), ids=UPGRADING)
@pytest.mark.parametrize("reply", [SWITCHING, HIJACKED], ids=["101", "200"])
def test_b3_bytes_behind_an_upgrade_wait_and_are_the_tunnels(sent: bytes, reply: bytes) -> None:
    steps = [
        client(sent + b"POST /contain", b"ers/create HTTP/1.1\n", to_daemon=sent),
        daemon(reply + b"output", to_client=reply + b"output", to_daemon=b"POST /containers/create HTTP/1.1\n"),
        passes(START, b"\0\n"),
        returns(OK, b"\0\n"),
    ]
    converse(steps)


@pytest.mark.parametrize("sent", UPGRADING.values(), ids=UPGRADING)
def test_b3_behind_a_framed_error_they_are_the_next_requests(sent: bytes) -> None:
    steps = [
        client(sent, PING + START, to_daemon=sent),
        daemon(NOT_FOUND, to_client=NOT_FOUND, to_daemon=PING),
        daemon(OK, to_client=OK, asks=1),
    ]
    converse(steps)


HELD: dict[str, list[Step]] = {
    "after what cannot be read nothing passes, though an earlier answer has no end": [
        # In its tunnel, without the unreadable bytes, the rest could be a request that was not checked.
        client(PING + b"1\r\n\0", to_daemon=PING),
        returns(HIJACKED),
        client(START),
        returns(b"bytes"),
        ends("client", to_daemon=EOF),
    ],
    "an absolute target": [asked(ABSOLUTE)],
    "a request follows one whose head came in pieces": [
        client(LONG_STOP[:-20], LONG_STOP[-20:] + PING, asks=1),
        release(to_daemon=LONG_STOP),
        settled(NO_CONTENT, to_daemon=PING),
    ],
    "B11: an empty line is no EOF's matter": [
        client(START + b"\r\n", asks=1),
        ends("client"),
        release(to_daemon=START),
        settled(NO_CONTENT, to_daemon=EOF),
    ],
    "a body that waits does not pass": [client(ATTACH + CREATE[:-10], to_daemon=ATTACH), client(CREATE[-10:-3])],
    "a known request is none inside a body, or behind a hold": [
        passed(PING, OK),
        client(PINGS[: -2 * len(PING)], PING, PING, to_daemon=PINGS),
        returns(OK),
        client(START, PING, asks=1),
        refuse(to_client=ours(500), to_daemon=PING),
    ],
    # B6: Expect: 100-continue
    "B6: 100 Continue follows all earlier answers, and the field stays": [
        client(PING + INFO + EXPECTING[:-13], to_daemon=PING + INFO),
        returns(OK),
        returns(NOT_FOUND[:-1]),
        daemon(NOT_FOUND[-1:], to_client=NOT_FOUND[-1:] + CONTINUE),
        client(EXPECTING[-13:], asks=1),
        release(to_daemon=EXPECTING),
    ],
    "B6: also one that did not wait, when its turn comes, and the daemon's word is swallowed": [
        client(PING + EXPECTING, to_daemon=PING),
        daemon(OK, to_client=OK + CONTINUE, asks=1),
        release(to_daemon=EXPECTING),
        daemon(CONTINUE + CREATED),
        answered(to_client=CREATED),
    ],
    "B6: immediately without an earlier request": [
        client(EXPECTING[:-13], to_client=CONTINUE),
        client(EXPECTING[-13:], asks=1),
    ],
    "B6: a client of HTTP/1.0 waits for nothing": [client(OLD_EXPECTING), client(b"{}", asks=1)],
    "B6: without a body nothing is waited for": [client(EXPECTING_NOTHING, asks=1)],
    # B1: EOF waits
    "B1: EOF waits for calls that go on within the turn": [
        client(START + STOP + CREATE, asks=1),
        ends("client"),
        at_once(lambda call: call.send_request(None), refuse(), to_client=ours(500), to_daemon=STOP, asks=1),
        settled(NO_CONTENT, to_daemon=CREATE + EOF, asks=1),
    ],
    "B1: EOF inside a held body passes behind it": [  # otherwise the daemon would wait for the rest for ever
        client(CREATE[:-3]),
        ends("client", asks=1),
        release(to_daemon=CREATE[:-3] + EOF),
    ],
    "B1: a held body that was cut is refused with the end of the connection": [
        client(CREATE[:-3]),
        ends("client", asks=1),
        refuse(to_client=ours(500, closes=True) + EOF),
    ],
    "B1: a cut held body waits for its turn": [
        client(PING + CREATE[:-3], to_daemon=PING),
        ends("client"),
        daemon(OK, to_client=OK, asks=1),
        release(to_daemon=CREATE[:-3] + EOF),
    ],
    # B1: reading ahead
    "B1: a held call may be refused within the turn, and the next is read": [
        at_once(
            lambda call: call.send_refusal(500, "no"), client(START + PING), to_client=ours(500), to_daemon=PING, asks=1
        )
    ],
    "B1: behind a held call reading goes on up to the limit": [
        client(START, asks=1),
        client(LONG_STDIN[:-1]),
        client(b"s", reads=False),
    ],
    "B1: what comes in one piece with the held call counts too": [client(START + LONG_STDIN, asks=1, reads=False)],
    "B1: reading goes on once the held call is answered": [
        client(START, MANY, asks=1, reads=False),
        release(to_daemon=START, reads=False),
        daemon(NO_CONTENT, reads=False),
        answered(to_client=NO_CONTENT, to_daemon=MANY),
    ],
    "B1: reading goes on behind the next held call if little waits": [
        client(START, UPLOAD + STOP + PING, asks=1, reads=False),
        refuse(to_client=ours(500), to_daemon=UPLOAD),
    ],
    "B1: reading goes on inside a long head behind a held call": [
        client(START, b"GET / HTTP/1.1\r\nX: " + LONG_STDIN, asks=1, reads=False),
        refuse(to_client=ours(500)),
    ],
}


@pytest.mark.parametrize("steps", HELD.values(), ids=HELD)
def test_held(steps: list[Step]) -> None:
    converse(steps).leave()


LONG = request("POST", "/containers/create", body=b'{"Image":"i", "Cmd":[]}')
HUGE = request("POST", "/containers/create", body=b"{" + bytes(2 * READ_AHEAD_BYTES))
HALF = len(HUGE) // 2

TOO_LONG: dict[str, list[Step]] = {
    "the rest is still to come, and passes as it comes": [
        asked(LONG[:-8]),
        *(passes(LONG[at : at + 1]) for at in range(-8, -1)),
    ],
    "what follows waits for the answer": [
        client(LONG[:-1], asks=1),
        client(LONG[-1:] + PING),
        release(to_daemon=LONG),
        settled(CREATED, to_daemon=PING),
    ],
    "it may be released within the turn": [
        at_once(lambda call: call.send_request(None), client(LONG[:-8]), to_daemon=LONG[:-8], asks=1),
        client(LONG[-8:] + PING, to_daemon=LONG[-8:]),
        settled(CREATED, to_daemon=PING),
    ],
    "one that was answered before its end holds nothing up": [
        asked(LONG[:-8]),
        settled(NOT_FOUND),
        passes(LONG[-8:] + PING),
    ],
    "B1: reading stops inside it until it is released": [
        client(HUGE[:HALF], HUGE[HALF:], asks=1, reads=False),
        ends("client", reads=False),
        release(to_daemon=HUGE + EOF),
    ],
}


@pytest.mark.parametrize("steps", TOO_LONG.values(), ids=TOO_LONG)
def test_held_body_above_the_limit_passes_as_it_came(steps: list[Step]) -> None:
    play = converse(steps, limit=10)
    assert play.call.problem == NO_ROOM
    play.leave()


# The bytes sent, whether they are a whole request, and whether its client stays when the daemon closes.
INSIDE = [(INFO[:3], False, False), (INFO, True, False), (CREATE[:-3], False, True), (CREATE, True, False)]


@pytest.mark.parametrize(("sent", "whole", "outlives"), INSIDE)
def test_client_inside_a_body_outlives_the_daemon(sent: bytes, whole: bool, outlives: bool) -> None:
    play = Play(holds=())
    play.client.sends(sent)
    assert (play.reader.between_requests, play.daemon_ends()) == (whole, outlives)


def test_request_that_may_be_held_is_not_remembered() -> None:
    play = converse([passed(START, NO_CONTENT)], holds=())
    play.holds = frozenset(Action)
    play.client.sends(START)
    assert play.came() == (b"", b"", 1)
    assert play.call.route.action is Action.START
