"""The request and answer of a held call: read, held, released, refused (relay-rules A4, B5 to B9, C1 to C3)."""

from itertools import product

import pytest

from runtimeproxy.core.call import MESSAGE_LIMIT, NO_ROOM, UNANSWERED, CallState, Reply, Unreadable
from runtimeproxy.docker.exchange import CACHE_BYTES, REPLY_LIMIT, Action, DockerHeld, MessageCaches
from runtimeproxy.wire import http1
from tests.docker import messages as m
from tests.docker import peer
from tests.docker.messages import CHUNKED, CREATE, CREATED, OK, PING, START, STOP, answer, request
from tests.docker.peer import MODES, Play, Step, answered, client, converse, daemon, ends, hold, passes, refuse, release

JSON = "Content-Type: application/json"
BODY = b'{"Image":"i"}'
TARGET = "/v1.41/containers/create"
CHUNKS = m.chunks(BODY[:4], BODY[4:], trailers=("Sum: 1",))
IN_CHUNKS = request("POST", TARGET, CHUNKED, "Trailer: Sum", JSON) + CHUNKS


def hold_call(sent: bytes, *, limit: int = 1000) -> Play:
    return converse([client(sent, held=1)], limit=limit)


def test_b8_request_is_read_and_released_in_any_parts() -> None:
    """A chunked body is read without its chunking, and released with it; a changed one has a length."""
    readable = [(CREATE, BODY), (IN_CHUNKS, BODY), (START, b""), (request("POST", TARGET, CHUNKED) + m.chunks(), b"")]
    for sent, body in readable:
        assert converse([client(sent + PING, held=1), release(to_daemon=sent)]).call.body == body
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
        play = converse(row)
        with pytest.raises(Unreadable, match=problem):
            _ = play.call.body


def test_all_held_requests_share_one_limit() -> None:
    first = hold_call(CREATE, limit=2 * len(BODY) - 1)
    second = Play(budget=first.memory)
    second.client.sends(CREATE[:-1])
    assert not second.calls
    second.client.sends(CREATE[-1:])
    with pytest.raises(Unreadable, match=NO_ROOM):
        _ = second.call.body
    second.call.send_request(None)
    assert first.memory.count == len(BODY), "nothing is retained of the one without room"


def test_chunked_body_counts_twice_in_budget() -> None:
    """It is buffered with its chunking and without; a body above the budget is not dechunked further."""
    play = converse([client(IN_CHUNKS[:-2])])
    assert play.memory.count == 2 * (len(CHUNKS) - 2)
    top, chunk = request("POST", TARGET, CHUNKED), b"100\r\n" + b"x" * 256 + b"\r\n"
    steps = [client(top, chunk, chunk, held=1), release(to_daemon=top + chunk * 2), passes(chunk * 2)]
    play = converse(steps, limit=100)
    assert (play.call.problem, play.call._payload) == (NO_ROOM, b"")


def test_released_call_counts_until_answer_is_sent() -> None:
    """The parsed values of its request are retained until then."""
    for body, is_answered in product([None, b"{}"], [False, True]):
        play = hold_call(CREATE)
        play.call.send_request(body)
        if is_answered:
            play.daemon.sends(CREATED)
        else:
            play.call.connection_lost()
        assert play.memory.count == len(BODY)
        play.call.answer()
        assert play.memory.count == 0


def test_body_is_retained_only_after_earlier_answers() -> None:
    waiting = request("POST", "/containers/create", body=b"x" * 5_000)
    for client_ends, at in product([False, True], [1, 4_999]):
        play = converse([client(PING + waiting[:-at], to_daemon=PING)])
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
        assert play.effects() == (OK, waiting + m.EOF * client_ends, 1)


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
            play = converse([hold(sent), daemon(replied)])
            assert play.call.reply == Reply(status in done, body, no_op=status in failed and status == 304)
            play.call.answer()
            assert play.client.got() == replied


def test_reply_is_retained_until_answered() -> None:
    def converses(*row: Step) -> Reply | None:
        return converse(row, limit=1000).call.reply

    in_chunks = answer(201, CHUNKED, body=None) + m.chunks(b'{"Id"', b':"1"}')
    row = hold(CREATE), daemon(in_chunks), answered(to_client=in_chunks)
    assert converses(*row) == Reply(agreed=True, message=b'{"Id":"1"}')
    row = hold(CREATE), daemon(CREATED[:-1]), answered(), daemon(CREATED[-1:]), answered(to_client=CREATED)
    assert converses(*row, answered(), passes(PING)) == Reply(agreed=True, message=b'{"Id":"1","Warnings":[]}')
    long_chunks = answer(201, CHUNKED, body=None) + m.chunks(bytes(REPLY_LIMIT), b"tail")
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
    refused = refuse(to_client=m.proxy_answer(500, closes=True) + m.EOF)
    assert converse([client(CREATE[:-1], held=1), refused, client(CREATE[-1:] + PING)], limit=5).call.reply is None
    broken = client(b"no chunk\r\n", to_client=m.proxy_answer(400, closes=True) + m.EOF)
    assert converse([hold(IN_CHUNKS[:-12]), broken], MODES, limit=5).call.reply == UNANSWERED


def test_cached_messages_are_bounded() -> None:
    play = Play(holds=())
    play.client.sends(request("GET", "/info", "X-Long: " + "x" * play.caches.max_bytes))
    play.daemon.sends(OK)
    assert (play.caches.requests, play.caches.answers) == ({}, {})
    for number in range(2 * CACHE_BYTES // 1000):
        play.client.sends(request("GET", f"/info?{number:0400}"))
        play.daemon.sends(answer(200, f"Date: {number:0400}", body=b"OK"))
    assert CACHE_BYTES / 2 < play.caches.requests.bytes <= CACHE_BYTES
    assert CACHE_BYTES / 2 < play.caches.answers.bytes <= CACHE_BYTES


def test_request_that_may_be_held_is_not_cached() -> None:
    play = converse([peer.exchange(START, m.NO_CONTENT)], holds=())
    play.holds = frozenset(Action)
    play.client.sends(START)
    assert (play.effects(), play.call.route.action) == ((b"", b"", 1), Action.START)


def test_passing_request_is_counted_by_route() -> None:
    for max_bytes in [1024, 0]:
        play = Play(holds=(), caches=MessageCaches(max_bytes))
        for target in ("/v1.41/info", "/v1.41/info", "http://docker/version", f"/containers/{m.ID}/top", "/x"):
            play.client.sends(request("GET", target))
            play.daemon.sends(OK)
        counted = {labels[0]: count for (name, labels), count in play.caches.counters.items() if name == "calls_passed"}
        assert counted == {"GET /info": 2, "GET /version": 1, "GET /containers/{id}/top": 1, "other": 1}
