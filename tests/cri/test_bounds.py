"""What is kept of a peer is bounded, and a peer that breaks the protocol is told (fault matrix X1)."""

import pytest

from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import PIECE_BYTES, UNREAD_BYTES, Excess, Unread, verdict
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from tests.cri.peer import (
    CREATE,
    PREFACE,
    PULL,
    REPLY,
    VERSION,
    Act,
    Data,
    Frame,
    GoAway,
    Headers,
    Play,
    Raw,
    Reset,
    Settings,
    block,
    client,
    greeted,
    raw_headers,
    runtime,
)

# ---- what is counted


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Excess("kind", "text"), ("kind", 0xB)),
        (Excess("preface", "text", http2.PROTOCOL_ERROR), ("preface", 1)),
        (WireError("text"), ("protocol", 1)),
    ],
)
def test_verdict(error: WireError, expected: tuple[str, int]) -> None:
    assert verdict(error) == expected


def test_answers_that_nobody_reads_end_the_connection() -> None:
    unread = Unread()
    for _ in range(UNREAD_BYTES // 2 // (13 + PIECE_BYTES)):
        unread.add(13, delivered=False)
    unread.add(UNREAD_BYTES // 4, delivered=False)
    with pytest.raises(Excess, match="reads nothing") as raised:
        unread.add(UNREAD_BYTES // 4, delivered=False)
    assert raised.value.kind == "unread"


def test_answers_that_are_read_count_no_more() -> None:
    unread = Unread()
    for _ in range(10):
        unread.add(UNREAD_BYTES - PIECE_BYTES, delivered=False)
        unread.add(UNREAD_BYTES, delivered=True)


# ---- streams


@pytest.mark.parametrize("fields", [VERSION, CREATE], ids=["passing", "held"])
def test_open_streams_are_bounded(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    play, fragment = greeted(), block(fields)
    for stream in range(1, 2 * bounds.OPEN_STREAMS, 2):
        play.client.sends(raw_headers(stream, fragment))
        play.runtime.got_bytes()
    with pytest.raises(Excess) as raised:
        play.client.sends(raw_headers(2 * bounds.OPEN_STREAMS + 1, fragment))
    assert raised.value.kind == "open_streams"


def test_open_streams_are_bounded_before_the_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimeproxy.cri.reader.OPEN_STREAMS", 3)
    play = Play()
    play.client.sends(PREFACE, Settings(), *[Headers(stream, VERSION) for stream in (1, 3, 5)])
    with pytest.raises(Excess):
        play.client.sends(Headers(7, VERSION))


def test_image_service_gets_so_many_streams_until_it_has_told_its_limit() -> None:
    play, last = greeted(image_apart=True), 2 * bounds.IMAGE_STREAMS_UNTIL_TOLD + 1
    play.client.sends(*[Headers(stream, PULL) for stream in range(1, last, 2)])
    assert play.client.got_bytes() == b""
    play.client.sends(Headers(last, PULL))
    assert play.client.got() == [Reset(last, 7)]


# ---- bytes

HELD = Headers(1, CREATE)


@pytest.mark.parametrize(
    ("sends", "kind"),
    [
        pytest.param(client(Headers(1, ((b"x", bytes(5_000)),), end=True)), "header_block", id="trailers"),
        pytest.param(
            client(raw_headers(1, b"\x82", whole=False), *[Raw(9, 0, 1)] * 10, Raw(9, 4, 1)),
            "header_block",
            id="frames of trailers",
        ),
        pytest.param(runtime(*[Data(1, b"x")] * 3_000), "early_reply", id="early DATA of one byte"),
        pytest.param(runtime(*[Data(1, bytes(16_384))] * 3_000), "early_reply", id="early DATA"),
        pytest.param(runtime(*[Headers(1, REPLY)] * 3_000), "early_reply", id="early headers"),
    ],
)
def test_what_is_kept_beside_a_held_request_is_bounded(sends: Act, kind: str) -> None:
    play = greeted()
    play.client.sends(HELD)
    with pytest.raises(Excess) as raised:
        sends(play)
    assert raised.value.kind == kind


# ---- telling the peer


def asked(*frames: Frame) -> Play:
    play = greeted(image_apart=True)
    play.client.sends(*frames)
    play.runtime.got()
    return play


def told_last_id(play: Play) -> None:
    play.runtime.sends(GoAway(1))
    play.client.got()


@pytest.mark.parametrize(
    ("last", "frames", "before"),
    [
        pytest.param(5, [Headers(5, VERSION)], None, id="highest stream"),
        pytest.param(3, [Headers(1, VERSION), Headers(3, PULL)], None, id="image calls count"),
        pytest.param(1, [Headers(1, VERSION), Headers(3, VERSION)], told_last_id, id="it never rises"),
    ],
)
def test_client_that_broke_the_protocol_is_told_the_last_stream(last: int, frames: list[Frame], before: Act) -> None:
    play = asked(*frames)
    if before:
        before(play)
    play.reader.leave(True, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([GoAway(last, 0xB, b"too much")], [])


def test_runtime_that_broke_the_protocol_is_told() -> None:
    play = asked(Headers(5, VERSION))
    play.reader.leave(False, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([], [GoAway(0, 0xB, b"too much")])


def inside_data(play: Play) -> None:
    play.greet()
    play.runtime.sends(Data(1, bytes(100)).wire()[:50])
    play.client.got_bytes()


@pytest.mark.parametrize("prepare", [client(PREFACE), inside_data], ids=["before SETTINGS", "inside DATA"])
def test_nobody_is_told_where_no_frame_may_stand(prepare: Act) -> None:
    play = Play()
    prepare(play)
    play.reader.leave(True, 1, "broken")
    assert play.client.got_bytes() == b""
