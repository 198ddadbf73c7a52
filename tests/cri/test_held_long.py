"""Long held calls: what the memory of a message is spent on (promise 10)."""

import gzip

import pytest

from runtimeproxy.wire import JOINED_BYTES
from runtimeproxy.wire.grpc import PREFIX_BYTES
from tests.cri.peer import CREATE, VERSION, Credit, Data, Fields, Headers, Play, Settings, greeted, grpc

FRAME_BYTES = 16_384
LONG = bytes(range(256)) * (JOINED_BYTES // 256) + b"x"


def holding(framed: bytes, fields: Fields = CREATE) -> Play:
    """Return a pair that holds one call with a long request, at a runtime that has room for it."""
    play = Play().greet(runtime=Settings(((4, 2**24),)))
    play.runtime.sends(Credit(0, 2**24))
    parts = [framed[at : at + FRAME_BYTES] for at in range(0, len(framed), FRAME_BYTES)]
    play.client.sends(Headers(1, fields), *[Data(1, part) for part in parts])
    play.client.sends(Data(1, b"", end=True))
    play.runtime.got()
    return play


def data_sent(play: Play) -> tuple[bytes, list[bool]]:
    """Return the bytes of all DATA that the runtime got, and where the stream ended."""
    frames = [frame for frame in play.runtime.got() if isinstance(frame, Data)]
    return b"".join(frame.payload for frame in frames), [frame.end for frame in frames]


@pytest.mark.parametrize("changed", [None, LONG[::-1], b"short"], ids=["unchanged", "changed", "shortened"])
def test_a_long_message_leaves_whole(changed: bytes | None) -> None:
    play = holding(grpc(LONG))
    assert (play.call.message, play.held_bytes.count) == (LONG, len(LONG) + PREFIX_BYTES)
    assert play.call.release(changed)
    sent, ends = data_sent(play)
    assert sent == grpc(LONG if changed is None else changed)
    assert (any(ends[:-1]), ends[-1]) == (False, True)


def test_credit_for_another_call_passes_while_a_request_waits_for_credit() -> None:
    play = greeted()
    play.client.sends(Headers(1, VERSION), Data(1, grpc(b""), end=True), Headers(3, CREATE))
    framed = grpc(b"c" * 100_000)
    for at in range(0, len(framed), FRAME_BYTES):
        play.client.sends(Data(3, framed[at : at + FRAME_BYTES]))
    play.client.sends(Data(3, b"", end=True))
    assert play.call.release(None)
    play.runtime.got()
    play.client.sends(Credit(1, 100), Headers(5, VERSION))
    assert play.runtime.got() == [Credit(1, 100), Headers(5, VERSION)]


def test_a_compressed_message_leaves_as_it_came() -> None:
    packed = grpc(gzip.compress(LONG), 1)
    play = holding(packed, (*CREATE, (b"grpc-encoding", b"gzip")))
    assert (play.call.message, play.held_bytes.count) == (LONG, len(packed) + len(LONG))
    assert play.call.release(None)
    assert data_sent(play)[0] == packed
