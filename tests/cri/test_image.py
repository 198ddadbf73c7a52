"""The connection to a separate image endpoint: an HTTP/2 endpoint of the proxy's own (relay-rules A10)."""

import pytest

from runtimeproxy.cri import frame_relay
from runtimeproxy.cri.image import UNREACHABLE
from runtimeproxy.errors import WireError
from tests.cri import peer
from tests.cri.peer import PULL, Ack, Credit, Data, GoAway, Headers, Reset, Settings, Step, client, image, runtime

UNAVAILABLE = peer.refusal(14, UNREACHABLE.encode())
REQUESTED, REQUESTED_WHOLE = Headers(1, PULL), Headers(1, PULL, end=True)
ANSWER, END, CANCEL = Headers(1, peer.REPLY), Headers(1, peer.TRAILERS, end=True), Reset(1, 8)
FULL = Data(1, bytes(16_384))
NOTHING = Settings()
GREETING = [Settings(((1, 0),)), peer.OPENED]
STEP = Credit(0, 2**18)
"""Credit of the connection is given in steps of this many bytes."""


def pull(*frames: peer.Frame, settings: peer.Raw = NOTHING) -> list[Step]:
    return [Step(client(*frames), to_image=[*GREETING, *frames]), Step(image(settings, Ack()), to_image=[Ack()])]


CONVERSATIONS: dict[str, list[Step]] = {
    "a call goes to the image service and back, others to the runtime": [
        Step(peer.Greets(client=Settings(((3, 10), (4, 70_000))))),
        Step(
            client(REQUESTED, Data(1, peer.grpc(b"q")), END, Headers(3, peer.VERSION)),
            to_client=[Credit(1, 6)],
            to_runtime=[Headers(3, peer.VERSION)],
            to_image=[Settings(((3, 10), (4, 70_000), (1, 0))), peer.OPENED, REQUESTED, Data(1, peer.grpc(b"q")), END],
        ),
        Step(
            image(Settings(), ANSWER, Data(1, peer.grpc(b"a")), END),
            to_client=[ANSWER, Data(1, peer.grpc(b"a")), END],
            to_image=[Ack(), Credit(1, 6)],
        ),
    ],
    "all calls share one link, and every block is independent": [
        *pull(REQUESTED),
        Step(
            client(Headers(3, PULL, end=True), peer.raw_headers(5, peer.block(PULL))),
            to_image=peer.raw_headers(3, b"\x20" + peer.block(PULL), end=True)
            + peer.raw_headers(5, b"\x20" + peer.block(PULL)),
        ),
        Step(
            image(peer.raw_headers(3, peer.block(peer.REPLY)), peer.raw_headers(5, peer.block(peer.REPLY))),
            to_client=peer.raw_headers(3, b"\x20" + peer.block(peer.REPLY))
            + peer.raw_headers(5, b"\x20" + peer.block(peer.REPLY)),
        ),
    ],
    "a request is credited on the connection when it has left": [
        *pull(REQUESTED),
        Step(client(*[FULL] * 16), to_client=[Credit(1, 16_384)] * 16, to_image=[*[FULL] * 3, Data(1, bytes(16_383))]),
        Step(image(Credit(1, 2**20), Credit(0, 2**20)), to_client=[STEP], to_image=[Data(1, b"\0"), *[FULL] * 12]),
    ],
    "an answer obeys the client's windows": [
        Step(peer.Greets(client=Settings(((4, 10),)))),
        Step(client(REQUESTED_WHOLE), to_image=[Settings(((4, 10), (1, 0))), peer.OPENED, REQUESTED_WHOLE]),
        Step(
            image(Settings(), ANSWER, *[FULL] * 16, END),
            to_client=[ANSWER, Data(1, bytes(10))],
            to_image=[Ack(), *[Credit(1, 16_384)] * 16],
        ),
        Step(
            client(Credit(0, 2**20), Credit(1, 2**20)),
            to_client=[Data(1, bytes(16_374)), *[FULL] * 15, END],
            to_image=[STEP],
        ),
    ],
    "an answer may end in DATA, late frames are dropped and credited": [
        *pull(REQUESTED),
        Step(
            image(ANSWER, Data(1, b"all", end=True)), to_client=[ANSWER, Data(1, b"all", end=True)], to_image=[CANCEL]
        ),
        Step(client(*[FULL] * 16, END, CANCEL), to_client=[STEP]),
        Step(image(*[FULL] * 16, END, Reset(1, 0)), to_image=[Credit(0, 2**18 + 3)]),
    ],
    "a request that ended in trailers needs no reset": [*pull(REQUESTED, END), Step(image(END), to_client=[END])],
    "a request that still waits when it is answered is reset": [
        *pull(REQUESTED, settings=Settings(((4, 0),))),
        Step(client(Data(1, b"waits", end=True))),
        Step(image(END), to_client=[END], to_image=[CANCEL]),
    ],
    "cancels go both ways": [
        *pull(REQUESTED),
        Step(client(CANCEL, Headers(3, PULL)), to_image=[CANCEL, Headers(3, PULL)]),
        Step(image(Reset(3, 11)), to_client=[Reset(3, 11)]),
    ],
    "a stream above the service's limit is refused": [
        *pull(REQUESTED, settings=Settings(((3, 1),))),
        Step(client(Headers(3, PULL)), to_client=[Reset(3, 7)]),
        Step(image(END), to_client=[END], to_image=[CANCEL]),
        Step(client(Headers(5, PULL)), to_image=[Headers(5, PULL)]),
    ],
    "its end makes its calls unavailable, or resets them inside an answer": [
        *pull(REQUESTED, Headers(3, PULL, end=True)),
        Step(image(ANSWER), to_client=[ANSWER]),
        Step(lambda play: play.links[0].close(), to_client=[CANCEL, Headers(3, UNAVAILABLE, end=True)]),
        Step(lambda play: play.links[0].close()),
    ],
    "the runtime's credit for an image stream is ignored": [*pull(REQUESTED), Step(runtime(Credit(1, 5)))],
    "later SETTINGS of the client go to the service and bind it": [
        *pull(REQUESTED),
        Step(
            client(Settings(((5, 20_000),))),
            to_runtime=[Settings(((5, 20_000), (1, 0)))],
            to_image=[Settings(((5, 20_000), (1, 0)))],
        ),
        Step(
            image(Data(1, b""), Data(1, bytes(20_000))),
            to_client=[Data(1, b""), Data(1, bytes(16_384)), Data(1, bytes(3_616))],
            to_image=[Credit(1, 20_000)],
        ),
        Step(runtime(Ack()), to_client=[Ack()]),
        Step(image(Data(1, bytes(20_000))), to_client=[Data(1, bytes(20_000))], to_image=[Credit(1, 20_000)]),
    ],
}


@pytest.mark.parametrize("steps", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a10_image_conversation_has_these_effects(steps: list[Step]) -> None:
    play = peer.Play(separate_image=True)
    if not isinstance(steps[0].act, peer.Greets):
        play.greet()
    peer.converse(*steps, play=play)
    assert len(play.links) == 1


def pulling(*frames: peer.Frame) -> peer.Play:
    return peer.converse(*pull(REQUESTED, *frames), play=peer.greeted(separate_image=True))


def test_a10_goaway_refuses_later_streams_and_opens_new_link() -> None:
    play = pulling(Headers(3, PULL))
    first = play.image
    first.sends(GoAway(1))
    assert play.client.got() == [Reset(3, 7)]
    play.client.sends(Headers(5, PULL))
    assert len(play.links) == 2
    assert play.image.got() == [*GREETING, Headers(5, PULL)]
    first.sends(END)
    assert play.client.got() == [END]


@pytest.mark.parametrize("end", [True, False])
def test_a10_calls_fail_while_image_service_is_unavailable(end: bool) -> None:
    play = peer.greeted(separate_image=True)
    play.image_unavailable = True
    play.client.sends(Headers(1, PULL, end=end), Headers(3, peer.VERSION))
    assert play.client.got() == [Headers(1, UNAVAILABLE, end=True)] + [Reset(1, 0)] * (not end)
    assert play.runtime.got() == [Headers(3, peer.VERSION)]


@pytest.mark.parametrize("frame", [ANSWER, Data(1, b"x"), CANCEL], ids=repr)
def test_a10_runtime_frames_do_not_affect_image_streams(frame: peer.Frame) -> None:
    with pytest.raises(WireError, match="was not sent"):
        pulling().runtime.sends(frame)


def test_a10_queued_answer_outlives_stored_ended_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_relay, "RETIRED_LIMIT", 1)
    play, streams = peer.Play(separate_image=True).greet(client=Settings(((4, 1),))), (1, 3, 5)
    play.client.sends(*[Headers(stream, PULL, end=True) for stream in streams])
    play.image.sends(Settings(), *[Data(stream, b"ab", end=True) for stream in streams])
    assert play.client.got() == [Data(stream, b"a") for stream in streams]
    play.client.sends(*[Credit(stream, 1) for stream in streams])
    assert play.client.got() == [Data(stream, b"b", end=True) for stream in streams]
