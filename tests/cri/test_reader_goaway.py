"""The end of a connection: GOAWAY, streams opened too late, unfinished work (relay-rules A11)."""

import pytest

from runtimeproxy.core.call import CallState
from tests.cri import peer
from tests.cri.peer import Ack, Credit, Data, GoAway, Headers, Reset, Settings, Step, client, grpc, image, runtime

MOST = GoAway(2**31 - 1)
EVENTS = peer.request(b"/runtime.v1.RuntimeService/GetContainerEvents")
REFUSED, CANCEL = 7, 8
QUERY, QUERY_3, QUERY_5 = (Headers(stream, peer.VERSION) for stream in (1, 3, 5))
ANSWER, END = Headers(1, peer.REPLY), Headers(1, peer.TRAILERS, end=True)
CREATED, PULLED, WATCHED = Headers(3, peer.CREATE), Headers(3, peer.PULL), Headers(3, EVENTS, end=True)
BODY = Data(3, grpc(b"m"), end=True)
HOLD = Step(client(CREATED, BODY), to_runtime=[CREATED], hooked=1)
PASSED = Settings(((1, 0),))
FULL = Data(1, bytes(16_384))


def drain(refusing: bool) -> peer.Act:
    return lambda play: play.reader.drain(refusing)


REQUESTS_CLOSE, LEAVES = Step(drain(False), to_client=[MOST]), drain(True)

CONVERSATIONS: dict[str, list[Step]] = {
    # GOAWAY of the runtime
    "the runtime's GOAWAY passes where no image stream is above it": [
        peer.passes(QUERY, GoAway(0)),
        peer.returns(GoAway(1, 5, b"bye")),
    ],
    "it rises to the highest image stream, streams above its own are refused": [
        Step(
            client(QUERY, QUERY_3, Headers(7, peer.PULL)),
            to_runtime=[QUERY, QUERY_3],
            to_image=[PASSED, peer.OPENED, Headers(7, peer.PULL)],
        ),
        Step(runtime(GoAway(1, 2, b"why")), to_client=[Reset(3, REFUSED), GoAway(7, 2, b"why")]),
    ],
    "headers of a stream below its last id do not let a later stream pass": [
        peer.passes(QUERY),
        peer.returns(GoAway(9)),
        peer.passes(QUERY_5),
        Step(client(Headers(11, peer.VERSION)), to_client=[Reset(11, REFUSED)]),
    ],
    # GOAWAY of the proxy
    "a drain sends two GOAWAYs, each once": [
        peer.passes(QUERY, CREATED),
        REQUESTS_CLOSE,
        Step(drain(False)),
        peer.passes(QUERY_5),
        Step(LEAVES, to_client=[GoAway(5)]),
        Step(LEAVES),
    ],
    "an image call counts as a request": [
        Step(drain(False)),
        Step(client(PULLED), to_image=[PASSED, peer.OPENED, PULLED]),
        REQUESTS_CLOSE,
    ],
    "image streams count as sent on": [
        Step(client(QUERY, PULLED), to_runtime=[QUERY], to_image=[PASSED, peer.OPENED, PULLED]),
        Step(LEAVES, to_client=[MOST, GoAway(3)]),
    ],
    "ours are not above the runtime's": [
        peer.passes(QUERY, QUERY_3),
        peer.returns(GoAway(9)),
        Step(drain(False), to_client=[GoAway(9)]),
        Step(LEAVES, to_client=[GoAway(3)]),
    ],
    "the runtime's do not raise ours": [
        peer.passes(QUERY, QUERY_3),
        Step(LEAVES, to_client=[MOST, GoAway(3)]),
        Step(runtime(GoAway(2**31 - 1, 0, b"max_age")), to_client=[GoAway(3, 0, b"max_age")]),
        peer.returns(GoAway(3, 1)),
        peer.returns(GoAway(1, 2, b"x")),
    ],
    # streams that open or end after it
    "what is swallowed is credited": [
        Step(LEAVES, to_client=[MOST, GoAway(0)]),
        Step(client(QUERY), to_client=[Reset(1, REFUSED)]),
        Step(client(*[FULL] * 16), to_client=[Credit(0, 2**18)]),
    ],
    "what was taken is finished": [
        peer.passes(QUERY),
        HOLD,
        Step(LEAVES, to_client=[MOST, GoAway(3)]),
        peer.passes(Data(1, grpc(b"q"), end=True)),
        Step(peer.release, to_runtime=[BODY]),
        Step(runtime(ANSWER, END, Headers(3, peer.TRAILERS, end=True)), to_client=[ANSWER, END]),
        Step(peer.answered, to_client=[Headers(3, peer.TRAILERS, end=True)]),
    ],
}


@pytest.mark.parametrize("steps", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a11_goaway_conversation_has_these_effects(steps: list[Step]) -> None:
    peer.converse(*steps, play=peer.greeted(separate_image=True))


def test_a11_own_goaway_waits_for_first_settings() -> None:
    play = peer.Play()
    play.client.sends(peer.PREFACE, Settings())
    play.reader.drain(refusing=True)
    assert play.client.got() == []
    play.runtime.sends(Settings())
    assert play.client.got()[-2:] == [MOST, GoAway(0)]


def test_a11_goaway_ends_held_calls_above_last_id() -> None:
    play = peer.greeted(separate_image=True)
    for stream in (1, 3):
        play.client.sends(Headers(stream, peer.CREATE), Data(stream, grpc(b"m"), end=True))
    play.client.sends(Headers(5, peer.PULL))
    assert len(play.calls) == 2
    play.runtime.sends(GoAway(1))
    assert play.client.got() == [Reset(3, REFUSED), GoAway(5)]
    play.act()
    assert [call.stream for call in play.settled] == [3]
    assert play.settled[0].state is CallState.ENDED


LATE_REQUESTS = [peer.VERSION, peer.CREATE, peer.PULL, EVENTS, peer.VERSION[:2]]


@pytest.mark.parametrize("fields", LATE_REQUESTS, ids=["passing", "held", "image", "endless", "ambiguous"])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a11_late_stream_is_refused_and_its_frames_dropped(fields: peer.Fields, acknowledged: bool) -> None:
    play = peer.greeted(separate_image=True) if acknowledged else peer.Play(separate_image=True)
    if not acknowledged:
        play.client.sends(peer.PREFACE, Settings())
        play.runtime.sends(Settings())
    play.client.sends(QUERY)
    play.reader.drain(refusing=True)
    play.client.got()
    play.runtime.got()
    play.client.sends(Headers(3, fields), Data(3, grpc(b"m")), Credit(3, 7), Headers(3, peer.TRAILERS, end=True))
    play.client.sends(Reset(3, CANCEL), Headers(5, fields, end=True))
    assert play.runtime.got() == []
    assert play.client.got() == [Reset(3, REFUSED), Reset(5, REFUSED)]
    assert (play.calls, play.links, play.reader.unfinished()) == ([], [], (1, 0, 0))


UNFINISHED: dict[str, list[tuple[peer.Act, tuple[int, int, int]]]] = {
    "a passing call waits for its answer, then for its end": [
        (client(), (0, 0, 0)),
        (client(Headers(1, peer.VERSION, end=True)), (1, 0, 0)),
        (runtime(ANSWER), (0, 1, 0)),
        (runtime(Data(1, grpc(b"a"))), (0, 1, 0)),
        (runtime(END), (0, 0, 0)),
    ],
    "above the runtime's last id nothing is waited for": [
        (client(QUERY, QUERY_3), (2, 0, 0)),
        (runtime(GoAway(1)), (1, 0, 0)),
    ],
    "container events are a stream before the first of them and after": [
        (client(Headers(1, peer.VERSION, end=True), WATCHED), (1, 0, 1)),
        (runtime(ANSWER, END, Headers(3, peer.REPLY), Data(3, grpc(b"event"))), (0, 0, 1)),
        (client(Headers(5, EVENTS, end=True)), (0, 0, 2)),
        (client(Reset(3, CANCEL), Reset(5, CANCEL)), (0, 0, 0)),
    ],
    "a held call is open from its head to its answer": [
        (client(CREATED), (1, 0, 0)),
        (client(BODY), (1, 0, 0)),
        (peer.release, (1, 0, 0)),
        (runtime(Headers(3, peer.REPLY), Headers(3, peer.TRAILERS, end=True)), (1, 0, 0)),
        (peer.answered, (0, 0, 0)),
    ],
    "an answer that waits for the client's credit is a call": [
        (client(Headers(1, peer.VERSION, end=True), CREATED, BODY), (2, 0, 0)),
        (peer.release, (2, 0, 0)),
        (runtime(ANSWER, *[FULL] * 5, END), (2, 0, 0)),
        (runtime(Headers(3, peer.REPLY), Headers(3, peer.TRAILERS, end=True)), (2, 0, 0)),
        (peer.answered, (1, 0, 0)),
        (client(Credit(0, 100_000)), (0, 0, 0)),
    ],
    "so is an image answer, once its end is here": [
        (peer.Greets(client=Settings(((4, 10),))), (0, 0, 0)),
        (client(Headers(1, peer.PULL, end=True)), (0, 0, 0)),
        (image(Settings(), Ack(), ANSWER, Data(1, grpc(bytes(100)))), (0, 0, 0)),
        (image(END), (1, 0, 0)),
        (client(Credit(1, 1_000)), (0, 0, 0)),
    ],
}


@pytest.mark.parametrize("steps", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_work_is_counted(steps: list[tuple[peer.Act, tuple[int, int, int]]]) -> None:
    play = peer.Play(separate_image=True) if isinstance(steps[0][0], peer.Greets) else peer.greeted(separate_image=True)
    for act, counts in steps:
        act(play)
        assert play.reader.unfinished() == counts
