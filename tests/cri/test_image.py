"""The connection to a separate image endpoint: an HTTP/2 endpoint of the proxy's own (relay-rules A10)."""

import pytest

from runtimeproxy.cri import reader as reader_module
from runtimeproxy.cri.image import AWAY
from runtimeproxy.errors import WireError
from tests.cri.peer import (
    OPENED,
    PREFACE,
    PULL,
    REPLY,
    TRAILERS,
    VERSION,
    Ack,
    Credit,
    Data,
    Frame,
    GoAway,
    Headers,
    Ping,
    Play,
    Raw,
    Reset,
    Settings,
    Side,
    block,
    continuation,
    greeted,
    grpc,
    raw_headers,
    refusal,
)

UNAVAILABLE = refusal(14, AWAY.encode())
NOTHING = Settings()


def pulling(*more: Frame, settings: Settings = NOTHING) -> tuple[Play, Side]:
    """Return a pair with one image call, stream 1, its HEADERS and SETTINGS exchanged."""
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, PULL), *more)
    image = play.image()
    image.got()
    image.sends(settings, Ack())
    assert play.runtime.got() == []
    assert image.got()[0] == Ack()
    play.client.got()
    return play, image


def test_a10_an_image_call_goes_to_the_image_service_and_back() -> None:
    play = Play(image_apart=True).greet(client=Settings(((3, 10), (4, 70_000))))
    play.client.sends(Headers(1, PULL), Data(1, grpc(b"q")), Headers(1, TRAILERS, end=True), Headers(3, VERSION))
    image = play.image()
    greeting = [Settings(((3, 10), (4, 70_000), (1, 0))), OPENED]
    assert image.got() == [*greeting, Headers(1, PULL), Data(1, grpc(b"q")), Headers(1, TRAILERS, end=True)]
    assert play.runtime.got() == [Headers(3, VERSION)]
    image.sends(Settings(), Headers(1, REPLY), Data(1, grpc(b"a")), Headers(1, TRAILERS, end=True))
    assert image.got() == [Ack(), Credit(1, 6)]
    assert play.client.got() == [Credit(1, 6), Headers(1, REPLY), Data(1, grpc(b"a")), Headers(1, TRAILERS, end=True)]


def test_a10_without_a_separate_endpoint_image_calls_pass() -> None:
    play = greeted()
    play.client.sends(Headers(1, PULL))
    assert play.runtime.got() == [Headers(1, PULL)]


def test_a10_all_image_calls_share_one_link_and_every_block_stands_alone() -> None:
    play, image = pulling()
    play.client.sends(Headers(3, PULL, end=True), raw_headers(5, block(PULL)))
    assert image.got_bytes() == raw_headers(3, b"\x20" + block(PULL), end=True) + raw_headers(5, b"\x20" + block(PULL))
    assert len(play.events.links) == 1
    image.sends(raw_headers(3, block(REPLY)), raw_headers(5, block(REPLY)))
    assert play.client.got_bytes() == raw_headers(3, b"\x20" + block(REPLY)) + raw_headers(5, b"\x20" + block(REPLY))


def test_a10_the_clients_later_settings_go_to_the_image_service_and_rule_what_it_may_send() -> None:
    play, image = pulling()
    play.client.sends(Settings(((5, 20_000),)))
    assert image.got() == [Settings(((5, 20_000), (1, 0)))]
    play.runtime.sends(Ack())
    play.client.got()
    image.sends(Data(1, b""), Data(1, bytes(20_000)))
    assert play.client.got() == [Data(1, b""), Data(1, bytes(20_000))]
    play.client.sends(Settings(((3, 4),)))
    assert image.got()[-1] == Settings(((3, 4), (1, 0)))
    with pytest.raises(WireError, match="longer than the receiver"):
        image.sends(Data(1, bytes(20_001)))


def test_a10_its_pings_are_answered_and_acks_are_swallowed() -> None:
    play, image = pulling()
    image.sends(
        Ping(b"12345678"), Ping(b"answered", ack=True), Ack(), Raw(0xEE, 0, 0, b"unknown"), Raw(2, 0, 1, bytes(5))
    )
    assert image.got() == [Ping(b"12345678", ack=True)]
    assert play.client.got() == play.runtime.got() == []


def test_a10_requests_obey_the_image_services_windows_and_data_are_framed_anew() -> None:
    play, image = pulling(settings=Settings(((4, 10), (5, 16_384))))
    play.client.sends(Data(1, b"0123456789abc", pad=4), Data(1, bytes(16_384)), Headers(1, TRAILERS, end=True))
    assert image.got() == [Data(1, b"0123456789")]
    assert play.client.got() == [Credit(1, 18), Credit(1, 16_384)]
    image.sends(Credit(1, 20_000))
    assert image.got() == [Data(1, b"abc"), Data(1, bytes(16_384)), Headers(1, TRAILERS, end=True)]
    assert play.client.got() == []


def test_a10_the_connection_credit_of_a_request_is_given_when_it_has_left() -> None:
    play, image = pulling()
    play.client.sends(*[Data(1, bytes(16_384))] * 16)
    assert Credit(0, 2**18) not in play.client.got()
    image.sends(Credit(1, 2**20), Credit(0, 2**20))
    assert play.client.got() == [Credit(0, 2**18)]


def test_a10_replies_obey_the_clients_windows() -> None:
    play = Play(image_apart=True).greet(client=Settings(((4, 10),)))
    play.client.sends(Headers(1, PULL, end=True))
    image = play.image()
    image.got()
    image.sends(Settings(), Headers(1, REPLY), *[Data(1, bytes(16_384))] * 16, Headers(1, TRAILERS, end=True))
    assert play.client.got() == [Headers(1, REPLY), Data(1, bytes(10))]
    assert image.got() == [Ack(), *[Credit(1, 16_384)] * 16]
    play.client.sends(Credit(1, 2**20), Credit(0, 2**20))
    assert play.client.got()[-1] == Headers(1, TRAILERS, end=True)
    assert image.got() == [Credit(0, 2**18)]
    assert play.runtime.got() == []


def test_a10_a_reply_may_end_in_data_and_late_frames_are_dropped_and_credited() -> None:
    play, image = pulling()
    image.sends(Headers(1, REPLY), Data(1, b"all", end=True))
    assert play.client.got() == [Headers(1, REPLY), Data(1, b"all", end=True)]
    assert image.got() == [Reset(1, 8)]
    data = [Data(1, bytes(16_384))] * 16
    play.client.sends(*data, Headers(1, TRAILERS, end=True), Reset(1, 8))
    image.sends(*data, Headers(1, TRAILERS, end=True), Reset(1, 0))
    assert play.client.got() == [Credit(0, 2**18)]
    assert image.got() == [Credit(0, 2**18 + 3)]
    assert play.runtime.got() == []


@pytest.mark.parametrize("request_end", [Data(1, b"x", True), Headers(1, TRAILERS, end=True)], ids=repr)
def test_a10_a_request_that_was_sent_whole_needs_no_reset(request_end: Frame) -> None:
    play, image = pulling(request_end)
    image.sends(Headers(1, TRAILERS, end=True))
    assert image.got() == []
    assert play.client.got() == [Headers(1, TRAILERS, end=True)]


def test_a10_a_request_that_still_waits_when_its_answer_is_complete_is_reset() -> None:
    play, image = pulling(settings=Settings(((4, 0),)))
    play.client.sends(Data(1, b"waits", end=True))
    image.sends(Headers(1, TRAILERS, end=True))
    assert image.got() == [Reset(1, 8)]


def test_a10_cancels_go_both_ways() -> None:
    play, image = pulling()
    play.client.sends(Reset(1, 8), Headers(3, PULL))
    image.sends(Reset(3, 11))
    assert image.got() == [Reset(1, 8), Headers(3, PULL)]
    assert play.client.got() == [Reset(3, 11)]
    assert play.runtime.got() == []


def test_a10_above_its_stream_limit_a_stream_is_refused() -> None:
    play, image = pulling(settings=Settings(((3, 1),)))
    play.client.sends(Headers(3, PULL))
    assert (play.client.got(), image.got()) == ([Reset(3, 7)], [])
    image.sends(Headers(1, TRAILERS, end=True))
    play.client.sends(Headers(5, PULL))
    assert image.got() == [Reset(1, 8), Headers(5, PULL)]


def test_a10_streams_above_its_goaway_id_are_refused_and_new_ones_get_a_new_link() -> None:
    play, image = pulling(Headers(3, PULL))
    image.sends(GoAway(1))
    assert play.client.got() == [Reset(3, 7)]
    play.client.sends(Headers(5, PULL))
    assert len(play.events.links) == 2
    assert play.image().got() == [Settings(((1, 0),)), OPENED, Headers(5, PULL)]
    image.sends(Headers(1, TRAILERS, end=True))
    assert play.client.got() == [Headers(1, TRAILERS, end=True)]


@pytest.mark.parametrize("end", [True, False])
def test_a10_while_it_is_away_its_calls_are_unavailable_and_the_connection_lives(end: bool) -> None:
    play = greeted(image_apart=True)
    play.events.image_away = True
    play.client.sends(Headers(1, PULL, end=end), Headers(3, VERSION))
    assert play.client.got() == [Headers(1, UNAVAILABLE, end=True)] + [Reset(1, 0)] * (not end)
    assert play.runtime.got() == [Headers(3, VERSION)]


def test_a10_when_it_goes_its_calls_are_unavailable_or_reset_inside_an_answer() -> None:
    play, image = pulling(Headers(3, PULL, end=True))
    image.sends(Headers(1, REPLY))
    play.events.links[0].close()
    play.events.links[0].close()
    assert play.client.got() == [Headers(1, REPLY), Reset(1, 8), Headers(3, UNAVAILABLE, end=True)]


def test_a10_the_runtime_has_no_say_in_an_image_stream() -> None:
    play, _ = pulling()
    play.runtime.sends(Credit(1, 5))
    assert play.client.got() == []
    for frame in (Headers(1, REPLY), Data(1, b"x"), Reset(1, 8)):
        with pytest.raises(WireError, match="was not sent"):
            play.runtime.sends(frame)


def test_a10_before_its_ack_the_image_service_may_index() -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, PULL))
    image = play.image()
    image.sends(Settings(), raw_headers(1, b"\x88\x40\x01a\x01b", whole=False), continuation(1, b"\xbe"))
    assert play.client.got() == [Headers(1, ((b":status", b"200"), (b"a", b"b"), (b"a", b"b")))]
    image.sends(Ack())
    with pytest.raises(WireError, match="dynamic table"):
        image.sends(raw_headers(1, b"\xbe"))


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([continuation(1, b"")], "CONTINUATION out of place"),
        ([raw_headers(1, b"", whole=False), Ping(bytes(8))], "CONTINUATION out of place"),
        ([raw_headers(1, b"", whole=False), continuation(3, b"")], "another stream"),
        ([raw_headers(1, b"", whole=False), *[continuation(1, bytes(16_384), False)] * 5], "too long"),
        ([Raw(5, 0x4, 1, bytes(4) + b"\x88")], "PUSH_PROMISE"),
        ([Credit(0, 0)], "WINDOW_UPDATE of 0"),
        ([Credit(1, 2**31 - 1)], "above 2"),
        ([Headers(1, REPLY), *[Data(1, bytes(16_384))] * 70], "above the connection window"),
    ],
)
def test_an_image_service_that_breaks_the_protocol_is_found_out(frames: list[Frame | bytes], problem: str) -> None:
    _, image = pulling()
    with pytest.raises(WireError, match=problem):
        image.sends(*frames)


@pytest.mark.parametrize("first", [Ack(), Headers(1, REPLY), Ping(bytes(8))], ids=repr)
def test_the_image_services_first_frame_is_settings(first: Frame) -> None:
    play = greeted(image_apart=True)
    play.client.sends(Headers(1, PULL))
    with pytest.raises(WireError, match="no SETTINGS"):
        play.image().sends(first)


def test_nothing_of_the_client_reaches_an_image_service_before_its_own_preface() -> None:
    play = Play(image_apart=True)
    play.client.sends(PREFACE, Settings(), Headers(1, PULL))
    assert play.image().got()[:2] == [Settings(((1, 0),)), OPENED]
    play.events.links[0].close()
    assert play.client.got() == []
    play.runtime.sends(Settings())
    assert play.client.got()[1:] == [OPENED, Headers(1, UNAVAILABLE, end=True), Reset(1, 0)]


def test_a10_an_answer_that_waits_for_its_client_outlives_the_memory_of_ended_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "RETIRED_LIMIT", 1)
    play = Play(image_apart=True).greet(client=Settings(((4, 1),)))
    play.client.sends(*[Headers(stream, PULL, end=True) for stream in (1, 3, 5)])
    image = play.image()
    image.sends(Settings(), *[Data(stream, b"ab", end=True) for stream in (1, 3, 5)])
    assert play.client.got() == [Data(1, b"a"), Data(3, b"a"), Data(5, b"a")]
    play.client.sends(Credit(1, 1), Credit(3, 1), Credit(5, 1))
    assert play.client.got() == [Data(1, b"b", end=True), Data(3, b"b", end=True), Data(5, b"b", end=True)]
