"""The connection to a separate image endpoint, and the end of a connection: GOAWAY, streams opened too late, unfinished
work (relay-rules A10, A11)."""

from dataclasses import replace

import pytest

from runtimeproxy.core.call import CallState
from runtimeproxy.cri import frame_relay
from runtimeproxy.cri.image import UNREACHABLE
from runtimeproxy.errors import WireError
from tests.cri import peer
from tests.cri.peer import Ack, Credit, Data, GoAway, Headers, Reset, Settings, Step, client, grpc, image, runtime

MOST, CANCEL, CANCEL_3, REFUSED_3 = GoAway(2**31 - 1), Reset(1, 8), Reset(3, 8), Reset(3, 7)
EVENTS = peer.request(b"/runtime.v1.RuntimeService/GetContainerEvents")
UNAVAILABLE = peer.refusal(14, UNREACHABLE.encode())
QUERY, QUERY_3, QUERY_5 = (Headers(stream, peer.VERSION) for stream in (1, 3, 5))
REQUESTED, REQUESTED_3, REQUESTED_5 = (Headers(stream, peer.PULL) for stream in (1, 3, 5))
REQUESTED_WHOLE = Headers(1, peer.PULL, end=True)
PULL_BLOCK, REPLY_BLOCK = peer.block(peer.PULL), peer.block(peer.REPLY)
ANSWER, END, END_3 = Headers(1, peer.REPLY), Headers(1, peer.TRAILERS, end=True), Headers(3, peer.TRAILERS, end=True)
CREATED, WATCHED, BODY = Headers(3, peer.CREATE), Headers(3, EVENTS, end=True), Data(3, grpc(b"m"), end=True)
HOLD = Step(client(CREATED, BODY), to_runtime=[CREATED], hooked=1)
FULL, LARGE, LARGER = Data(1, bytes(16_384)), Data(1, bytes(20_000)), Settings(((5, 20_000), (1, 0)))
EMPTY, CREDITS = Data(1, b""), [Credit(1, 16_384)] * 16
GREETING = [Settings(((1, 0),)), peer.OPENED]
STEP = Credit(0, 2**18)  # the connection's credit is given in such steps


def pull(*frames: peer.Frame, settings: peer.Raw = peer.SETTINGS) -> list[Step]:
    return [Step(client(*frames), to_image=[*GREETING, *frames]), Step(image(settings, Ack()), to_image=[Ack()])]


def close(play: peer.Play) -> None:
    play.links[0].close()


def heads(fragment: bytes) -> bytes:
    return b"".join(peer.raw_headers(stream, fragment) for stream in (3, 5))


IMAGES: dict[str, list[Step]] = {
    "a call goes to the image service and back, others to the runtime": [
        Step(peer.Greets(client=Settings(((3, 10), (4, 70_000))))),
        Step(
            client(REQUESTED, Data(1, grpc(b"q")), END, Headers(3, peer.VERSION)),
            to_client=[Credit(1, 6)],
            to_runtime=[Headers(3, peer.VERSION)],
            to_image=[Settings(((3, 10), (4, 70_000), (1, 0))), peer.OPENED, REQUESTED, Data(1, grpc(b"q")), END],
        ),
        Step(
            image(peer.SETTINGS, ANSWER, Data(1, grpc(b"a")), END),
            to_client=[ANSWER, Data(1, grpc(b"a")), END],
            to_image=[Ack(), Credit(1, 6)],
        ),
    ],
    "all calls share one link, and every block is independent": [
        *pull(REQUESTED),
        Step(client(heads(PULL_BLOCK)), to_image=heads(b"\x20" + PULL_BLOCK)),
        Step(image(heads(REPLY_BLOCK)), to_client=heads(b"\x20" + REPLY_BLOCK)),
    ],
    "a request is credited on the connection when it has left": [
        *pull(REQUESTED),
        Step(client(*[FULL] * 16), to_client=CREDITS, to_image=[*[FULL] * 3, Data(1, bytes(16_383))]),
        Step(image(Credit(1, 2**20), Credit(0, 2**20)), to_client=[STEP], to_image=[Data(1, b"\0"), *[FULL] * 12]),
    ],
    "an answer obeys the client's windows": [
        Step(peer.Greets(client=Settings(((4, 10),)))),
        Step(client(REQUESTED_WHOLE), to_image=[Settings(((4, 10), (1, 0))), peer.OPENED, REQUESTED_WHOLE]),
        Step(image(peer.SETTINGS, ANSWER, *[FULL] * 16, END), [ANSWER, Data(1, bytes(10))], (), [Ack(), *CREDITS]),
        Step(client(Credit(0, 2**20), Credit(1, 2**20)), [Data(1, bytes(16_374)), *[FULL] * 15, END], (), [STEP]),
    ],
    "an answer may end in DATA, late frames are dropped and credited": [
        *pull(REQUESTED),
        Step(image(ANSWER, Data(1, b"all", end=True)), [ANSWER, Data(1, b"all", end=True)], to_image=[CANCEL]),
        Step(client(*[FULL] * 16, END, CANCEL), to_client=[STEP]),
        Step(image(*[FULL] * 16, END, Reset(1, 0)), to_image=[Credit(0, 2**18 + 3)]),
    ],
    "a request that ended in trailers needs no reset": [*pull(REQUESTED, END), Step(image(END), to_client=[END])],
    "cancels go both ways": [
        *(*pull(REQUESTED), Step(client(CANCEL, REQUESTED_3), to_image=[CANCEL, REQUESTED_3])),
        Step(image(Reset(3, 11)), to_client=[Reset(3, 11)]),
    ],
    "a stream above the service's limit is refused, a request that still waits when it is answered is reset": [
        *pull(REQUESTED, settings=Settings(((3, 1), (4, 0)))),
        *(Step(client(REQUESTED_3), to_client=[REFUSED_3]), Step(client(Data(1, b"waits", end=True)))),
        Step(image(END), to_client=[END], to_image=[CANCEL]),
        Step(client(REQUESTED_5), to_image=[REQUESTED_5]),
    ],
    "its end makes its calls unavailable, or resets them inside an answer": [
        *(*pull(REQUESTED, Headers(3, peer.PULL, end=True), REQUESTED_5), Step(image(ANSWER), to_client=[ANSWER])),
        Step(close, to_client=[CANCEL, *(Headers(at, UNAVAILABLE, end=True) for at in (3, 5)), Reset(5, 0)]),
        Step(close),
    ],
    "the runtime's credit for an image stream is ignored": [*pull(REQUESTED), Step(runtime(Credit(1, 5)))],
    "later SETTINGS of the client go to the service and bind it": [
        *(*pull(REQUESTED), Step(client(Settings(((5, 20_000),))), (), [LARGER], [LARGER])),
        Step(image(EMPTY, LARGE), to_client=[EMPTY, FULL, Data(1, bytes(3_616))], to_image=[Credit(1, 20_000)]),
        Step(runtime(Ack()), to_client=[Ack()]),
        Step(image(LARGE), to_client=[LARGE], to_image=[Credit(1, 20_000)]),
    ],
}


def drain(refusing: bool) -> peer.Act:
    return lambda play: play.reader.drain(refusing)


REQUESTS_CLOSE, LEAVES = Step(drain(False), to_client=[MOST]), drain(True)

GOAWAYS: dict[str, list[Step]] = {
    # GOAWAY of the runtime
    "the runtime's GOAWAY passes": [peer.passes(QUERY, GoAway(0)), peer.returns(GoAway(1, 5, b"bye"))],
    "it rises to the highest image stream, streams above its own are refused": [
        Step(client(QUERY, QUERY_3, REQUESTED_5), (), [QUERY, QUERY_3], [*GREETING, REQUESTED_5]),
        Step(runtime(GoAway(1, 2, b"why")), to_client=[REFUSED_3, GoAway(5, 2, b"why")]),
    ],
    "headers of a stream below its last id do not let a later stream pass": [
        *(peer.passes(QUERY), peer.returns(GoAway(9)), peer.passes(QUERY_5)),
        Step(client(Headers(11, peer.VERSION)), to_client=[Reset(11, 7)]),
    ],
    # GOAWAY of the proxy
    "a drain sends two GOAWAYs, each once": [
        *(peer.passes(QUERY, CREATED), REQUESTS_CLOSE, Step(drain(False)), peer.passes(QUERY_5)),
        *(Step(LEAVES, to_client=[GoAway(5)]), Step(LEAVES)),
    ],
    "an image call counts as a request, its stream as sent on": [
        *(Step(drain(False)), Step(client(REQUESTED_3), to_image=[*GREETING, REQUESTED_3]), REQUESTS_CLOSE),
        Step(LEAVES, to_client=[GoAway(3)]),
    ],
    "ours are not above the runtime's": [
        *(peer.passes(QUERY, QUERY_3), peer.returns(GoAway(9)), Step(drain(False), to_client=[GoAway(9)])),
        Step(LEAVES, to_client=[GoAway(3)]),
    ],
    "the runtime's do not raise ours": [
        *(peer.passes(QUERY, QUERY_3), Step(LEAVES, to_client=[MOST, GoAway(3)])),
        Step(runtime(GoAway(2**31 - 1, 0, b"max_age")), to_client=[GoAway(3, 0, b"max_age")]),
        *(peer.returns(GoAway(3, 1)), peer.returns(GoAway(1, 2, b"x"))),
    ],
    # streams that open or end after it
    "what is swallowed is credited": [
        *(Step(LEAVES, to_client=[MOST, GoAway(0)]), Step(client(QUERY), to_client=[Reset(1, 7)])),
        Step(client(*[FULL] * 16), to_client=[STEP]),
    ],
    "what was taken is finished": [
        *(peer.passes(QUERY), HOLD, Step(LEAVES, to_client=[MOST, GoAway(3)])),
        *(peer.passes(Data(1, grpc(b"q"), end=True)), Step(peer.release, to_runtime=[BODY])),
        Step(runtime(ANSWER, END, END_3), to_client=[ANSWER, END]),
        Step(peer.answered, to_client=[END_3]),
    ],
}
LATE_REQUESTS = [peer.VERSION, peer.CREATE, peer.PULL, EVENTS, peer.VERSION[:2]]
UNFINISHED: dict[str, list[tuple[peer.Act, tuple[int, int, int]]]] = {
    "a passing call waits for its answer, then for its end": [
        *((client(), (0, 0, 0)), (client(Headers(1, peer.VERSION, end=True)), (1, 0, 0))),
        *((runtime(ANSWER), (0, 1, 0)), (runtime(Data(1, grpc(b"a"))), (0, 1, 0)), (runtime(END), (0, 0, 0))),
    ],
    "nothing above the last id counts": [(client(QUERY, QUERY_3), (2, 0, 0)), (runtime(GoAway(1)), (1, 0, 0))],
    "container events are a stream before the first of them and after": [
        (client(Headers(1, peer.VERSION, end=True), WATCHED), (1, 0, 1)),
        (runtime(ANSWER, END, Headers(3, peer.REPLY), Data(3, grpc(b"event"))), (0, 0, 1)),
        (client(Headers(5, EVENTS, end=True)), (0, 0, 2)),
        (client(CANCEL_3, Reset(5, 8)), (0, 0, 0)),
    ],
    "a held call is open from its head to its answer": [
        *((act, (1, 0, 0)) for act in (client(CREATED), client(BODY), peer.release)),
        *((runtime(Headers(3, peer.REPLY), END_3), (1, 0, 0)), (peer.answered, (0, 0, 0))),
    ],
    "an answer that waits for the client's credit is a call": [
        *((client(Headers(1, peer.VERSION, end=True), CREATED, BODY), (2, 0, 0)), (peer.release, (2, 0, 0))),
        (runtime(ANSWER, *[FULL] * 5, END), (2, 0, 0)),
        (runtime(Headers(3, peer.REPLY), END_3), (2, 0, 0)),
        *((peer.answered, (1, 0, 0)), (client(Credit(0, 100_000)), (0, 0, 0))),
    ],
    "so is an image answer, once its end is here": [
        (client(Settings(((4, 10),)), REQUESTED_WHOLE), (0, 0, 0)),
        (runtime(Ack()), (0, 0, 0)),
        (image(Settings(), Ack(), ANSWER, Data(1, grpc(bytes(100)))), (0, 0, 0)),
        (image(END), (1, 0, 0)),
        (client(Credit(1, 1_000)), (0, 0, 0)),
    ],
}


@pytest.mark.parametrize("steps", [*IMAGES.values(), *GOAWAYS.values()], ids=[*IMAGES, *GOAWAYS])
def test_conversation_has_these_effects(steps: list[Step]) -> None:
    play = peer.converse(*steps, separate_image=True)
    assert len(play.links) == any(step.to_image for step in steps)


def test_a10_goaway_refuses_later_streams_and_opens_new_link() -> None:
    play = peer.converse(*pull(REQUESTED, REQUESTED_3), separate_image=True)
    first = play.image
    first.sends(GoAway(1))
    assert play.client.got() == [REFUSED_3]
    play.client.sends(REQUESTED_5)
    assert len(play.links) == 2
    assert play.image.got() == [*GREETING, REQUESTED_5]
    first.sends(END)
    assert play.client.got() == [END]
    for frame in (ANSWER, Data(5, b"x"), Reset(5, 8)):
        with pytest.raises(WireError, match="was not sent"):
            play.runtime.sends(replace(frame, stream=5))


def test_a10_queued_answer_outlives_stored_ended_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_relay, "RETIRED_LIMIT", 1)
    play, streams = peer.Play(separate_image=True).greet(client=Settings(((4, 1),))), (1, 3, 5)
    play.client.sends(*[Headers(stream, peer.PULL, end=True) for stream in streams])
    play.image.sends(Settings(), *[Data(stream, b"ab", end=True) for stream in streams])
    assert play.client.got() == [Data(stream, b"a") for stream in streams]
    play.client.sends(*[Credit(stream, 1) for stream in streams])
    assert play.client.got() == [Data(stream, b"b", end=True) for stream in streams]


def test_a11_goaway_ends_held_calls_above_last_id() -> None:
    play = peer.Play(separate_image=True).greet()
    for stream in (1, 3):
        play.client.sends(Headers(stream, peer.CREATE), Data(stream, grpc(b"m"), end=True))
    play.client.sends(Headers(5, peer.PULL))
    assert len(play.calls) == 2
    play.runtime.sends(GoAway(1))
    assert play.client.got() == [REFUSED_3, GoAway(5)]
    play.act()
    assert [call.stream for call in play.settled] == [3]
    assert play.settled[0].state is CallState.ENDED


@pytest.mark.parametrize("fields", LATE_REQUESTS, ids=["passing", "held", "image", "endless", "ambiguous"])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a11_late_stream_is_refused_and_its_frames_dropped(fields: peer.Fields, acknowledged: bool) -> None:
    """The GOAWAY waits for the runtime's first SETTINGS."""
    play = peer.Play(separate_image=True)
    play.client.sends(peer.PREFACE, peer.SETTINGS, QUERY)
    play.reader.drain(refusing=True)
    assert play.client.got() == []
    play.runtime.sends(peer.SETTINGS, *[Ack()] * acknowledged)
    assert play.client.got()[2:4] == [MOST, GoAway(1)]
    play.runtime.got()
    play.client.sends(Headers(3, fields), Data(3, grpc(b"m")), Credit(3, 7), END_3)
    play.client.sends(CANCEL_3, Headers(5, fields, end=True))
    assert play.runtime.got() == []
    assert play.client.got() == [REFUSED_3, Reset(5, 7)]
    assert (play.calls, play.links, play.reader.unfinished()) == ([], [], (1, 0, 0))


@pytest.mark.parametrize("steps", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_work_is_counted(steps: list[tuple[peer.Act, tuple[int, int, int]]]) -> None:
    play = peer.Play(separate_image=True).greet()
    for act, counts in steps:
        act(play)
        assert play.reader.unfinished() == counts
