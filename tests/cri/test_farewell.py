"""The end of a connection, stream by stream: GOAWAY, streams that come too late, what is not finished (A11)."""

from functools import partial

import pytest

from runtimeproxy.cri.farewell import ENDLESS
from runtimeproxy.cri.routes import VERSIONS
from tests.cri.peer import (
    CREATE,
    PREFACE,
    PULL,
    REPLY,
    TRAILERS,
    VERSION,
    Ack,
    Credit,
    Data,
    Fields,
    Frame,
    GoAway,
    Headers,
    Play,
    Reset,
    Settings,
    greeted,
    grpc,
    refusal,
    request,
)

MOST = 2**31 - 1
EVENTS = request(b"/runtime.v1.RuntimeService/GetContainerEvents")
UNKNOWN = request(b"/no.such.Service/Stream")
REFUSED = 7

NOTHING = (0, 0, 0)
A_CALL = (1, 0, 0)
AN_ANSWER = (0, 1, 0)
A_STREAM = (0, 0, 1)


def unfinished(play: Play) -> tuple[int, int, int]:
    return play.reader.farewell.unfinished()


# ---- the runtime's leaving, beside an answer that is kept


def test_calls_without_an_answer_end_unavailable_and_those_inside_of_one_by_a_reset() -> None:
    play = greeted()
    play.client.sends(*(Headers(stream, VERSION, end=True) for stream in (1, 3, 5)), Headers(7, EVENTS, end=True))
    play.client.sends(
        *(frame for stream in (9, 11, 13) for frame in (Headers(stream, CREATE), Data(stream, grpc(b""))))
    )
    for held in play.reader.held[1:]:
        held.release(None)
    play.runtime.sends(Headers(3, REPLY), Headers(5, REPLY), Headers(5, TRAILERS, end=True), Headers(11, REPLY))
    play.runtime.sends(Headers(13, REPLY), Headers(13, TRAILERS, end=True))
    play.client.got()
    play.reader.farewell.runtime_gone()
    gone = refusal(14, b"the runtime ended its connection before it answered")
    assert play.client.got() == [
        *(Headers(1, gone, end=True), Reset(1, 0), Reset(3, 8), Reset(7, 8)),
        *(Headers(9, gone, end=True), Reset(9, 0), Reset(11, 8)),
    ]
    assert unfinished(play) == (3, 0, 0), "the held ones are ended by whoever tells them"


# ---- GOAWAY of the runtime


def test_the_runtimes_goaway_passes_where_no_image_stream_is_above_it() -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, PULL), Headers(3, VERSION), GoAway(0))
    frame = GoAway(1, 5, b"bye")
    play.runtime.sends(frame)
    assert play.client.got() == [frame]
    assert play.runtime.got()[-1] == GoAway(0)


def test_it_is_raised_to_the_highest_image_stream_and_the_runtimes_streams_above_its_own_are_refused() -> None:
    play = greeted(image_apart=True)
    play.client.sends(
        Headers(1, VERSION), Headers(3, VERSION), Headers(5, CREATE), Data(5, grpc(b"m")), Headers(7, PULL)
    )
    play.client.got()
    ended: list[bool] = []
    play.call.on_ended = lambda: ended.append(True)
    play.runtime.sends(GoAway(1, 2, b"why"))
    assert play.client.got() == [Reset(3, REFUSED), Reset(5, REFUSED), GoAway(7, 2, b"why")]
    assert ended == [True]
    assert set(play.reader.open) == {1}


def test_the_highest_image_stream_is_known_though_its_connection_was_replaced() -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, PULL))
    play.image().sends(Settings(), GoAway(1))
    play.client.sends(Headers(3, PULL), Headers(5, VERSION))
    play.client.got()
    play.runtime.sends(GoAway(1))
    assert play.client.got() == [Reset(5, REFUSED), GoAway(3)]


def test_held_calls_above_the_last_id_are_dropped_and_their_hooks_cancelled() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"a")), Headers(3, CREATE), Data(3, grpc(b"b")))
    ended: list[int] = []
    for call in play.events.calls:
        call.on_ended = partial(ended.append, call.stream)
    play.client.got()
    play.runtime.sends(GoAway(1))
    assert play.client.got() == [GoAway(1)]
    assert ended == [3]


def test_passing_streams_above_the_last_id_are_not_open() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.runtime.sends(GoAway(1))
    assert unfinished(play) == A_CALL


# ---- GOAWAY of ours


def test_a_drain_sends_two_goaways_each_once() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, CREATE))
    play.reader.farewell.drain(refusing=False)
    play.reader.farewell.drain(refusing=False)
    assert play.client.got() == [GoAway(MOST)]
    play.client.sends(Headers(5, VERSION))
    assert play.runtime.got()[-1] == Headers(5, VERSION)
    play.reader.farewell.drain(refusing=True)
    play.reader.farewell.drain(refusing=True)
    assert play.client.got() == [GoAway(5)]


@pytest.mark.parametrize("fields", [VERSION, PULL])
def test_a_client_that_has_not_asked_yet_is_left_in_peace_for_a_while(fields: Fields) -> None:
    play = greeted(image_apart=True)
    play.reader.farewell.drain(refusing=False)
    assert play.client.got() == []
    play.client.sends(Headers(1, fields))
    play.reader.farewell.drain(refusing=False)
    assert play.client.got() == [GoAway(MOST)]


def test_image_streams_count_as_sent_on() -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, VERSION), Headers(3, PULL))
    play.client.got()
    play.reader.farewell.drain(refusing=True)
    assert play.client.got() == [GoAway(MOST), GoAway(3)]


def test_a_goaway_waits_for_the_first_settings() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings())
    play.reader.farewell.drain(refusing=True)
    assert play.client.got() == []
    play.runtime.sends(Settings())
    assert play.client.got()[-2:] == [GoAway(MOST), GoAway(0)]


@pytest.mark.parametrize(
    ("told", "then", "frames"),
    [
        (GoAway(1), [False, True], [GoAway(1), GoAway(1)]),
        (GoAway(MOST), [False, True], [GoAway(MOST), GoAway(3)]),
        (GoAway(9), [False, True], [GoAway(9), GoAway(3)]),
    ],
    ids=str,
)
def test_a_last_id_does_not_rise_above_the_runtimes(told: GoAway, then: list[bool], frames: list[Frame]) -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.runtime.sends(told)
    play.client.got()
    for refusing in then:
        play.reader.farewell.drain(refusing=refusing)
    assert play.client.got() == frames


@pytest.mark.parametrize(
    ("came", "passes"),
    [
        (GoAway(MOST, 0, b"max_age"), GoAway(3, 0, b"max_age")),
        (GoAway(3, 1), GoAway(3, 1)),
        (GoAway(1, 2, b"x"), GoAway(1, 2, b"x")),
    ],
    ids=str,
)
def test_a_goaway_of_the_runtime_does_not_raise_ours(came: GoAway, passes: GoAway) -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.reader.farewell.drain(refusing=True)
    play.client.got()
    play.runtime.sends(came)
    assert play.client.got() == [passes]


# ---- streams that come too late

LATE: dict[str, Fields] = {
    "passing": VERSION,
    "held": CREATE,
    "of the image service": PULL,
    "endless": EVENTS,
    "ambiguous": VERSION[:2],
}


@pytest.mark.parametrize("fields", LATE.values(), ids=LATE.keys())
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_stream_that_comes_too_late_is_refused_and_what_follows_on_it_is_swallowed(
    fields: Fields, acknowledged: bool
) -> None:
    play = greeted(image_apart=True) if acknowledged else Play(image_apart=True)
    if not acknowledged:
        play.client.sends(PREFACE, Settings())
        play.runtime.sends(Settings())
    play.client.sends(Headers(1, VERSION))
    play.reader.farewell.drain(refusing=True)
    play.client.got()
    play.runtime.got()
    play.client.sends(Headers(3, fields), Data(3, grpc(b"m")), Credit(3, 7), Headers(3, TRAILERS, end=True))
    play.client.sends(Reset(3, 8), Headers(5, fields, end=True))
    assert play.runtime.got() == []
    assert play.client.got() == [Reset(3, REFUSED), Reset(5, REFUSED)]
    assert not play.events.calls
    assert not play.events.links
    assert unfinished(play) == A_CALL


def test_a_block_that_passed_before_is_refused_too() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, VERSION))
    play.reader.farewell.drain(refusing=True)
    play.runtime.got()
    play.client.sends(Headers(5, VERSION), Headers(7, VERSION), Headers(1, TRAILERS, end=True))
    assert play.runtime.got() == [Headers(1, TRAILERS, end=True)]
    assert play.client.got()[-2:] == [Reset(5, REFUSED), Reset(7, REFUSED)]


def test_what_is_swallowed_is_credited() -> None:
    play = greeted()
    play.reader.farewell.drain(refusing=True)
    play.client.sends(Headers(1, VERSION))
    play.client.got()
    play.client.sends(*[Data(1, bytes(16_384))] * 16)
    assert play.client.got() == [Credit(0, 2**18)]


def test_above_the_runtimes_last_id_a_stream_is_refused_as_well() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION))
    play.runtime.sends(GoAway(1))
    play.client.got()
    play.client.sends(Headers(3, CREATE), Data(3, grpc(b"m")))
    assert play.client.got() == [Reset(3, REFUSED)]
    assert not play.events.calls


def test_what_was_taken_is_finished() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Headers(3, CREATE), Data(3, grpc(b"m"), end=True))
    play.reader.farewell.drain(refusing=True)
    play.client.sends(Data(1, grpc(b"q"), end=True))
    play.call.release(None)
    play.runtime.got()
    play.client.got()
    answers: list[Frame] = [Headers(1, REPLY), Data(1, grpc(b"a")), Headers(1, TRAILERS, end=True)]
    play.runtime.sends(*answers, Headers(3, (*REPLY, *TRAILERS), end=True))
    play.call.answer()
    assert play.client.got() == [*answers, Headers(3, (*REPLY, *TRAILERS), end=True)]
    assert unfinished(play) == NOTHING


# ---- what is not finished


def test_a_passing_call_waits_for_its_answer_then_for_its_end() -> None:
    play = greeted()
    assert unfinished(play) == NOTHING
    play.client.sends(Headers(1, VERSION, end=True))
    assert unfinished(play) == A_CALL
    play.runtime.sends(Headers(1, REPLY))
    assert unfinished(play) == AN_ANSWER
    play.runtime.sends(Data(1, grpc(b"a")))
    assert unfinished(play) == AN_ANSWER
    play.runtime.sends(Headers(1, TRAILERS, end=True))
    assert unfinished(play) == NOTHING


def test_before_the_ack_as_well() -> None:
    play = Play()
    play.client.sends(PREFACE, Settings(), Headers(1, VERSION))
    play.runtime.sends(Settings(), Headers(1, REPLY))
    assert unfinished(play) == AN_ANSWER
    play.runtime.sends(Headers(1, TRAILERS, end=True))
    assert unfinished(play) == NOTHING


def test_an_answer_to_a_stream_that_the_client_cancelled_is_not_waited_for() -> None:
    play = greeted()
    play.client.sends(Headers(1, UNKNOWN), Reset(1, 8))
    play.runtime.sends(Headers(1, REPLY))
    assert unfinished(play) == NOTHING
    assert play.reader.open == {}


def test_container_events_are_a_stream_before_the_first_of_them_and_after() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION, end=True), Headers(3, EVENTS, end=True))
    assert play.runtime.got() == [Headers(1, VERSION, end=True), Headers(3, EVENTS, end=True)]
    assert unfinished(play) == (1, 0, 1)
    play.runtime.sends(Headers(1, (*REPLY, *TRAILERS), end=True), Headers(3, REPLY), Data(3, grpc(b"event")))
    assert unfinished(play) == A_STREAM
    play.client.sends(Headers(5, EVENTS, end=True))
    assert unfinished(play) == (0, 0, 2), "one like it is no known block"
    play.client.sends(Reset(3, 8), Reset(5, 8))
    assert unfinished(play) == NOTHING


def test_in_both_versions() -> None:
    assert {b"/runtime.%b.RuntimeService/GetContainerEvents" % version.encode() for version in VERSIONS} == ENDLESS


def test_a_held_call_is_open_from_its_head_to_its_answer() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE))
    assert unfinished(play) == A_CALL
    play.client.sends(Data(1, grpc(b"m"), end=True))
    assert unfinished(play) == A_CALL
    play.call.release(None)
    play.runtime.sends(Headers(1, REPLY), Headers(1, TRAILERS, end=True))
    assert unfinished(play) == A_CALL
    play.call.answer()
    assert unfinished(play) == NOTHING


def test_an_answer_that_waits_for_the_clients_credit_is_a_call_that_is_not_finished() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION, end=True), Headers(3, CREATE), Data(3, grpc(b"m"), end=True))
    play.call.release(None)
    play.runtime.sends(Headers(1, REPLY), *[Data(1, bytes(16_384))] * 5, Headers(1, TRAILERS, end=True))
    assert unfinished(play) == (2, 0, 0)
    play.runtime.sends(Headers(3, REPLY), Headers(3, TRAILERS, end=True))
    assert unfinished(play) == (2, 0, 0), "a held call is not counted twice"
    play.call.answer()
    assert unfinished(play) == (1, 0, 0)
    play.client.sends(Credit(0, 100_000))
    assert unfinished(play) == NOTHING


def test_an_image_answer_that_waits_for_the_clients_credit_is_one_too_once_its_end_is_here() -> None:
    play = Play(image_apart=True).greet(client=Settings(((4, 10),)))
    play.client.sends(Headers(1, PULL, end=True))
    play.image().sends(Settings(), Ack(), Headers(1, REPLY), Data(1, grpc(bytes(100))))
    assert unfinished(play) == NOTHING, "while it has no end its connection counts it"
    play.image().sends(Headers(1, TRAILERS, end=True))
    assert unfinished(play) == A_CALL
    play.client.sends(Credit(1, 1_000))
    assert unfinished(play) == NOTHING


def test_a_refused_call_is_finished() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"m")))
    play.call.refuse(13, "no")
    assert unfinished(play) == NOTHING


def test_acks_pass_in_a_drain() -> None:
    play = greeted()
    play.reader.farewell.drain(refusing=True)
    play.runtime.sends(Settings())
    play.client.sends(Ack())
    assert play.runtime.got() == [Ack()]
