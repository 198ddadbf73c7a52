"""The number of open streams is bounded, and a peer that broke the protocol gets the last stream's id.

relay-rules A1, A3, A8; fault matrix X1.
"""

import pytest

from runtimeproxy.core.call import UNANSWERED, CallState
from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import Excess
from tests.cri import peer
from tests.cri.peer import VERSION, Data, GoAway, Headers, Reset, Settings, client, grpc


@pytest.mark.parametrize("fields", [VERSION, peer.CREATE], ids=["passing", "held"])
def test_open_streams_are_bounded(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    play, fragment = peer.greeted(), peer.block(fields)
    for stream in range(1, 2 * bounds.OPEN_STREAMS, 2):
        play.client.sends(peer.raw_headers(stream, fragment))
        play.runtime.got_bytes()
    with pytest.raises(Excess) as raised:
        play.client.sends(peer.raw_headers(2 * bounds.OPEN_STREAMS + 1, fragment))
    assert raised.value.kind == "open_streams"


def test_open_streams_are_bounded_before_the_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimeproxy.cri.reader.OPEN_STREAMS", 3)
    play = peer.Play()
    play.client.sends(peer.PREFACE, Settings(), *[Headers(stream, VERSION) for stream in (1, 3, 5)])
    with pytest.raises(Excess):
        play.client.sends(Headers(7, VERSION))


def test_image_service_gets_so_many_streams_until_it_has_told_its_limit() -> None:
    play, last = peer.greeted(image_apart=True), 2 * bounds.IMAGE_STREAMS_UNTIL_TOLD + 1
    play.client.sends(*[Headers(stream, peer.PULL) for stream in range(1, last, 2)])
    assert play.client.got_bytes() == b""
    play.client.sends(Headers(last, peer.PULL))
    assert play.client.got() == [Reset(last, 7)]


def asked(*frames: peer.Frame) -> peer.Play:
    play = peer.greeted(image_apart=True)
    play.client.sends(*frames)
    play.runtime.got()
    return play


def told_last_id(play: peer.Play) -> None:
    play.runtime.sends(GoAway(1))
    play.client.got()


@pytest.mark.parametrize(
    ("last", "frames", "before"),
    [
        pytest.param(5, [Headers(5, VERSION)], None, id="highest stream"),
        pytest.param(3, [Headers(1, VERSION), Headers(3, peer.PULL)], None, id="image calls count"),
        pytest.param(1, [Headers(1, VERSION), Headers(3, VERSION)], told_last_id, id="it never rises"),
    ],
)
def test_faulty_client_is_told_the_last_stream(last: int, frames: list[peer.Frame], before: peer.Act) -> None:
    play = asked(*frames)
    if before:
        before(play)
    play.reader.leave(True, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([GoAway(last, 0xB, b"too much")], [])


def test_runtime_that_broke_the_protocol_is_told() -> None:
    play = asked(Headers(5, VERSION))
    play.reader.leave(False, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([], [GoAway(0, 0xB, b"too much")])


def inside_data(play: peer.Play) -> None:
    play.greet()
    play.runtime.sends(Data(1, bytes(100)).wire()[:50])
    play.client.got_bytes()


@pytest.mark.parametrize("prepare", [client(peer.PREFACE), inside_data], ids=["before SETTINGS", "inside DATA"])
def test_nobody_is_told_where_no_frame_may_stand(prepare: peer.Act) -> None:
    play = peer.Play()
    prepare(play)
    play.reader.leave(True, 1, "broken")
    assert play.client.got_bytes() == b""


def test_held_call_ends_with_either_connection() -> None:
    play = peer.greeted()
    whole = [Data(stream, grpc(b"m"), end=True) for stream in (1, 3)]
    play.client.sends(Headers(1, peer.CREATE), whole[0], Headers(3, peer.CREATE), whole[1])
    released, held = play.calls
    released.send_request(None)
    play.reader.client_gone()
    assert (released.state, held.state, held.reply) == (CallState.RELEASED, CallState.ENDED, UNANSWERED)
    play.reader.runtime_gone()
    assert (released.reply, play.reader.keeps_answers) == (UNANSWERED, False)


def test_held_call_whose_headers_end_it_has_no_message() -> None:
    play = peer.greeted()
    play.client.sends(Headers(1, peer.CREATE, end=True))
    assert "ends inside" in play.call.problem


def test_closed_connections_wait_for_no_credit() -> None:
    play = peer.greeted()
    play.runtime.sends(Headers(1, peer.REPLY), *[Data(1, bytes(16_384))] * 5)
    assert play.reader.client_out.queues
    play.reader.closed()
    assert not play.reader.client_out.queues


def test_later_settings_of_the_client_reach_the_image_service() -> None:
    play = peer.greeted(image_apart=True)
    play.client.sends(Headers(1, peer.PULL))
    play.image.got()
    play.client.sends(Settings(((5, 20_000),)))
    assert play.image.got() == [Settings(((5, 20_000), (1, 0)))]
