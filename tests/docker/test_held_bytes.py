"""What held requests keep in memory is counted, and bounded for the whole process (relay-rules A4, for Docker)."""

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.heldbytes import NO_ROOM
from tests.docker.peer import CHUNKED, CREATE, CREATED, OK, PING, Play, answer, request
from tests.docker.test_exchange import BODY, IN_CHUNKS, held

EVENTS = request("GET", "/events")


def test_all_held_requests_share_one_limit() -> None:
    first = held(CREATE)
    second = Play()
    second.reader.held_bytes = first.held_bytes
    first.held_bytes.limit = 2 * len(BODY) - 1
    second.client.sends(CREATE[:-1])
    assert not second.events.calls
    second.client.sends(CREATE[-1:])
    with pytest.raises(WireError, match=NO_ROOM):
        second.call.body()
    second.call.release(None)
    assert first.held_bytes.count == len(BODY), "nothing is kept of what nobody has read"


def test_a_chunked_body_is_taken_out_of_its_chunks_as_it_comes() -> None:
    play = Play()
    play.client.sends(IN_CHUNKS[:-2])
    raw = len(IN_CHUNKS) - IN_CHUNKS.index(b"\r\n\r\n") - 4
    assert play.held_bytes.count == 2 * (raw - 2), "both are kept"
    play.client.sends(IN_CHUNKS[-2:])
    assert play.call.body() == BODY


@pytest.mark.parametrize("body", [None, b"{}"], ids=["released", "changed"])
@pytest.mark.parametrize("answered", [False, True])
def test_a_released_call_counts_until_it_is_over(body: bytes | None, answered: bool) -> None:
    """Whoever made something of its request keeps that until then."""
    play = held(CREATE)
    play.call.release(body)
    assert play.held_bytes.count == len(BODY)
    if answered:
        play.daemon.sends(CREATED)
    else:
        play.call.end()
    assert play.held_bytes.count == len(BODY)
    play.call.answer()
    assert play.held_bytes.count == 0


def test_what_waits_for_its_turn_behind_an_endless_answer_is_not_kept() -> None:
    play = Play()
    waiting = request("POST", "/containers/create", body=b"x" * 5_000)
    play.client.sends(EVENTS + waiting[:-1_000])
    assert (play.held_bytes.count, play.daemon.got()) == (0, EVENTS)
    play.daemon.sends(answer(200, CHUNKED, body=None), b"8\r\nan event\r\n")
    play.client.sends(waiting[-1_000:] + PING)
    assert (play.held_bytes.count, play.events.calls) == (0, [])
    play.reader.client_gone()
    assert (play.held_bytes.count, play.events.calls) == (0, [])


@pytest.mark.parametrize("at", [1, 500, 4_999])
@pytest.mark.parametrize("ends", [False, True])
def test_a_body_is_kept_when_its_turn_has_come(at: int, ends: bool) -> None:
    play = Play()
    waiting = request("POST", "/containers/create", body=b"x" * 5_000)
    play.client.sends(PING + waiting[:-at])
    if not ends:
        play.daemon.sends(OK)
        assert (play.held_bytes.count, play.events.calls) == (5_000 - at, [])
    play.client.sends(waiting[-at:])
    if ends:
        play.client_ends()
        play.daemon.sends(OK)
    assert play.call.body() == b"x" * 5_000
    play.call.release(None)
    assert (play.daemon.got(), play.daemon.ended) == (PING + waiting, ends)
