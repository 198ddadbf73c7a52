"""What held calls keep in memory is counted, and bounded for the whole process (relay-rules A4)."""

import gzip

from runtimeproxy.heldbytes import NO_ROOM
from tests.cri.peer import CREATE, TRAILERS, Credit, Data, Headers, Settings, greeted, grpc


def test_a4_the_whole_process_holds_a_bounded_number_of_bytes() -> None:
    play = greeted(process_limit=40)
    play.client.sends(Headers(1, CREATE), Data(1, grpc(bytes(30))), Headers(3, CREATE), Data(3, grpc(bytes(30))[:10]))
    first, second = play.events.calls
    assert (first.problem, second.problem) == ("", NO_ROOM)
    assert play.held_bytes.count == 45
    first.release(None)
    play.runtime.sends(Headers(1, TRAILERS, end=True))
    first.answer()
    first.free()
    second.refuse(8, "full")
    assert play.held_bytes.count == 0


def test_a4_what_nobody_has_read_counts_until_it_has_left() -> None:
    play = greeted(process_limit=40)
    play.runtime.sends(Settings(((4, 0),)))
    play.client.sends(Headers(1, CREATE), Data(1, grpc(bytes(50))))
    assert play.call.problem == NO_ROOM
    assert play.call.release(None)
    play.runtime.sends(Credit(1, 54))
    assert play.held_bytes.count == 55
    play.runtime.sends(Credit(1, 1))
    assert play.held_bytes.count == 0


def test_a4_what_a_compressed_message_is_inflated_to_is_counted() -> None:
    play = greeted(process_limit=1_500)
    packed = grpc(gzip.compress(bytes(1_000)), 1)
    zipped = (*CREATE, (b"grpc-encoding", b"gzip"))
    for stream in (1, 3):
        play.client.sends(Headers(stream, zipped), Data(stream, packed, end=True))
    first, second = play.events.calls
    assert (first.message, first.problem) == (bytes(1_000), "")
    assert (second.message, second.problem) == (None, NO_ROOM)
    assert play.held_bytes.count == 2 * len(packed) + 2_000
    play.runtime.got()
    for call in play.events.calls:
        assert call.release(None)
        call.answer()
        call.free()
    assert play.runtime.got() == [Data(1, packed, end=True), Data(3, packed, end=True)]
    assert play.held_bytes.count == 0


def test_what_came_behind_a_message_is_kept_no_longer_than_until_the_release() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"one")), Data(1, grpc(b"another" * 1_000)))
    assert play.call._late
    assert play.call.release(None)
    assert not play.call._late
