"""A peer that breaks the protocol gets GOAWAY and its connection ends; buffered data of a peer are bounded; random
calls arrive unchanged, framed in every way that HTTP/2 allows (relay-rules A1, A3, A8; fault matrix X1)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product, repeat, zip_longest
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cri import bounds, routes
from runtimeproxy.cri.bounds import Excess
from runtimeproxy.errors import WireError
from runtimeproxy.relay.connection import Connection
from tests.amounts import examples
from tests.cri import peer
from tests.cri.peer import CREATE, REPLY, VERSION, Ack, Credit, Data, GoAway, Headers, Ping, Raw, Reset, Settings
from tests.cri.test_front import Patch, Scene

client, runtime = peer.client, peer.runtime
END_STREAM, END_HEADERS, PADDED = peer.END_STREAM, peer.END_HEADERS, peer.PADDED
HELD, TRAILERS = Headers(1, CREATE), Headers(1, peer.TRAILERS)
CREDIT_BYTES = 13  # a WINDOW_UPDATE, which answers each part of a held request


READS = [([False] * 3, False), ([False] * 4, True), ([False, False, False, True] * 3, False)]


@pytest.mark.parametrize(("delivered", "ended"), READS, ids=["up to the limit", "beyond it", "read in between"])
async def test_unread_answers_end_connection(monkeypatch: Patch, delivered: list[bool], ended: bool) -> None:
    monkeypatch.setattr(bounds, "UNREAD_BYTES", 3 * (CREDIT_BYTES + bounds.OVERHEAD_BYTES))
    scene = await Scene().greet()
    await scene.send(scene.client, HELD)
    for is_delivered in delivered:
        monkeypatch.setattr(Connection, "delivered", is_delivered)
        await scene.send(scene.client, Data(1, b"x"))
    broken = scene.metrics.counted("connections_broken", side="client", kind="unread")
    has_ended = scene.ended()
    scene.close()
    assert (has_ended, broken) == (ended, int(ended))


def frame_of(length: int, kind: int = 0xEE) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, 0)) + bytes(4)


CUT = peer.raw_headers(1, peer.block(VERSION), end_headers=False)
PAD = b"\x00\x01a\x7f\xe1\x7f" + b"v" * 16_352  # one literal field of 16,358 bytes
FULL = Data(1, bytes(16_384))
CUT_TRAILERS = peer.raw_headers(1, b"\x82", end_headers=False), *[Raw(9, 0, 1)] * 10, Raw(9, 4, 1)
OPEN, TAKES_MORE = peer.Greets(), peer.Greets(runtime=Settings(((5, 2**21),)))

BROKEN: dict[str, tuple[list[peer.Act], str]] = {
    "frame too long": ([OPEN, client(frame_of(16_385))], "frame_size: frame is longer than the receiver"),
    "CONTINUATION first": ([OPEN, client(peer.continuation(1, b""))], "protocol: .*CONTINUATION out of place"),
    "PING inside": ([OPEN, client(CUT, Ping(bytes(8)))], "CONTINUATION out of place"),
    "other stream": ([OPEN, client(CUT, peer.continuation(3, b""))], "another stream"),
    "64 KiB": ([OPEN, client(CUT, *[peer.continuation(1, PAD, False)] * 5)], "header_block: .*too long"),
    "512 frames": ([OPEN, client(CUT, *[peer.continuation(1, b"", False)] * 512)], "header_block: .*too long"),
    "padding of held DATA": ([OPEN, client(HELD), client(Raw(0, 0x8, 1, b"\x02x"))], "padding"),
    "padding of HEADERS": ([OPEN, client(Raw(1, 0xC, 1, b"\x02x"))], "padding"),
    "RST_STREAM cut": ([OPEN, client(Raw(3, 0, 1, b"123"))], "too short"),
    "WINDOW_UPDATE of 0 cut": ([OPEN, client(Raw(8, 0, 0, b"123"))], "WINDOW_UPDATE of a wrong length"),
    "no credit": ([OPEN, client(Credit(0, 0))], "WINDOW_UPDATE of 0"),
    "too much credit": ([OPEN, client(Credit(0, 2**31 - 1))], "above 2"),
    "SETTINGS out of range": ([OPEN, client(Settings(((5, 100),)))], "MAX_FRAME_SIZE"),
    "index above 61 after the ACK": ([OPEN, client(peer.raw_headers(1, b"\xbe"))], "dynamic table"),
    # 1 MiB of DATA waits, but for the 65,535 bytes that the runtime's window allows
    "above the window": ([OPEN, client(Headers(1, VERSION), *[FULL] * 64, Data(1, b"x"))], "above the connection wind"),
    "no SETTINGS, ACK": ([client(peer.PREFACE, Ack())], "not SETTINGS"),
    "no SETTINGS, HEADERS": ([client(peer.PREFACE, Headers(1, VERSION))], "not SETTINGS"),
    # by their heads
    "long unknown frame": ([TAKES_MORE, client(frame_of(65_536 + 262))], "longer than what is collected"),
    "long HEADERS": ([TAKES_MORE, client(frame_of(65_536 + 262, kind=1))], "longer than what is collected"),
    "long DATA": ([TAKES_MORE, client(frame_of(2**20 + 1, kind=0))], "longer than what is collected"),
    "DATA that the receiver does not take": ([TAKES_MORE, client(frame_of(2**21 + 1, kind=0))], "than the receiver"),
    # what is buffered
    "frames that wait": ([OPEN, runtime(*[FULL] * 4), runtime(*[TRAILERS] * 16_384)], "queue: too many frames wait"),
    "trailers of a held call": (
        [OPEN, client(HELD), client(Headers(1, ((b"x", bytes(5_000)),), True))],
        "header_block",
    ),
    "frames of its trailers": ([OPEN, client(HELD), client(*CUT_TRAILERS)], "header_block"),
    "early DATA of one byte": ([OPEN, client(HELD), runtime(*[Data(1, b"x")] * 3_000)], "early_reply"),
    "early DATA": ([OPEN, client(HELD), runtime(*[FULL] * 3_000)], "early_reply"),
    "early headers": ([OPEN, client(HELD), runtime(*[Headers(1, REPLY)] * 3_000)], "early_reply"),
}
FRAMES = st.builds(
    Raw, st.integers(0, 10), st.integers(0, 0x3F), st.sampled_from([0, 1, 3, 0x8000_0001]), st.binary(max_size=40)
)


@pytest.mark.parametrize(("acts", "problem"), BROKEN.values(), ids=BROKEN)
def test_broken_protocol_or_excess_ends_connection(acts: list[peer.Act], problem: str) -> None:
    play = peer.Play()
    for act in acts[:-1]:
        act(play)
    with pytest.raises(WireError) as raised:
        acts[-1](play)
    assert re.search(problem, f"{bounds.classify(raised.value)[0]}: {raised.value}")


def test_frames_before_invalid_frame_pass() -> None:
    play = peer.Play().greet()
    play.runtime.sends(Headers(3, REPLY))
    play.client.got()
    with pytest.raises(WireError):
        play.runtime.sends(Headers(1, REPLY), Data(1, b"answer"), TRAILERS, frame_of(16_385))
    assert len(play.client.got()) == 3


@given(st.lists(st.tuples(FRAMES | st.binary(max_size=200), st.booleans()), max_size=20), st.booleans())
def test_random_frames_raise_only_wire_errors(frames: list[tuple[Raw | bytes, bool]], separate_image: bool) -> None:
    play = peer.Play(separate_image).greet()
    play.client.sends(Headers(1, CREATE))
    with suppress(WireError):
        for frame, from_client in frames:
            (play.client if from_client else play.runtime).sends(frame)


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("fields", [VERSION, CREATE], ids=["passing", "held"])
def test_open_streams_are_bounded(fields: peer.Fields, acknowledged: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr("runtimeproxy.cri.reader.OPEN_STREAMS", 3)
    play = peer.Play().greet() if acknowledged else peer.Play()
    play.client.sends(*[peer.PREFACE, Settings()] * (not acknowledged), *[Headers(at, fields) for at in (1, 3, 5)])
    with pytest.raises(Excess) as raised:
        play.client.sends(Headers(7, fields))
    assert raised.value.kind == "open_streams"


def test_image_streams_are_limited_before_settings() -> None:
    play, last = peer.Play(separate_image=True).greet(), 2 * bounds.IMAGE_STREAMS_UNTIL_SETTINGS + 1
    play.client.sends(*[Headers(stream, peer.PULL) for stream in range(1, last, 2)])
    assert play.client.received_bytes() == b""
    play.client.sends(Headers(last, peer.PULL))
    assert play.client.got() == [Reset(last, 7)]


def test_goaway_to_faulty_peer_has_last_stream_id() -> None:
    """Image calls count. Before SETTINGS and inside DATA it is illegal."""
    play = peer.Play(separate_image=True)
    play.client.sends(peer.PREFACE)
    play.reader.send_goaway(True, 1, "broken")
    assert play.client.received_bytes() == b""
    play = peer.Play(separate_image=True).greet()
    play.client.sends(Headers(1, VERSION), Headers(3, peer.PULL))
    play.runtime.got()
    play.reader.send_goaway(True, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([GoAway(3, 0xB, b"too much")], [])
    play.reader.send_goaway(False, 0xB, "too much")
    assert (play.client.got(), play.runtime.got()) == ([], [GoAway(0, 0xB, b"too much")])
    play.runtime.sends(Data(1, bytes(100)).wire()[:50])
    play.client.received_bytes()
    play.reader.send_goaway(True, 1, "broken")
    assert play.client.received_bytes() == b""


PATHS = st.sampled_from([*routes.PASSING_SERIES]) | st.sampled_from([*routes.HELD])
EXTRA: list[peer.Fields] = [(), ((b"te", b"trailers"), (b"grpc-timeout", b"30S")), ((b"x-twice", b"1"),) * 2]
SHAPES = ("plain", "continued", "with priority", "padded")
VARIANTS = st.sampled_from([*product(EXTRA, SHAPES, (None, 0, 255))])
BODIES = st.binary(max_size=40) | st.sampled_from([bytes(range(251)) * 80])
REQUEST_ENDS = st.sampled_from(["with data", "late", "with trailers"])
REPLY_ENDS = st.sampled_from(["agreed", "agreed", "failed", "failed early", "reset", "without trailers"])
FAILED = peer.refusal(5, b"not found: %C3%A9")

Unit = list[Raw]  # frames that follow each other directly; a call sets their stream id once it has one


def headers(fields: peer.Fields, shape: str = "plain", end: bool = False) -> Unit:
    octets, flags = peer.block(fields), END_STREAM * end
    if shape == "continued":
        return [Raw(peer.HEADERS, flags, 0, octets[:7]), Raw(peer.CONTINUATION, END_HEADERS, 0, octets[7:])]
    if shape == "with priority":
        return [Raw(peer.HEADERS, flags | END_HEADERS | peer.PRIORITY, 0, b"\0\0\0\0\x07" + octets)]
    if shape == "padded":
        return [Raw(peer.HEADERS, flags | END_HEADERS | PADDED, 0, b"\x03" + octets + bytes(3))]
    return [Raw(peer.HEADERS, flags | END_HEADERS, 0, octets)]


def data(body: bytes, first: int, pad: int | None, end: bool) -> Iterator[Unit]:
    """Yield peer.DATA frames, the first of them padded and of at most ``first`` bytes."""
    parts = [body[:first], *(body[at : at + 16_384] for at in range(first, len(body), 16_384))]
    for number, part in enumerate(parts):
        yield [Data(0, part, end and number == len(parts) - 1, None if number else pad)]


class Call(NamedTuple):
    path: bytes
    request: list[Unit]
    answer: list[Unit]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    path, (extra, shape, pad), end = draw(PATHS), draw(VARIANTS), draw(REQUEST_ENDS)
    body, first = peer.grpc(draw(BODIES)), draw(st.integers(0, 40))
    sent = [headers(peer.request(path, *extra), shape), *data(body, first, pad, end == "with data")]
    sent += {"late": [[Data(0, b"", True)]], "with trailers": [headers(((b"x", b"t"),), end=True)]}.get(end, [])
    (extra, shape, pad), end, body = draw(VARIANTS), draw(REPLY_ENDS), peer.grpc(draw(BODIES))
    if end == "failed early":
        return Call(path, sent, [headers(FAILED, end=True)])
    replied = [headers((*REPLY, *extra), shape), *data(body, first, pad, end == "without trailers")]
    ends = {"agreed": headers(peer.TRAILERS, end=True), "failed": headers(FAILED[2:], end=True)}
    ends["reset"] = [Reset(0, 2)]
    return Call(path, sent, [*replied, *([ends[end]] if end in ends else [])])


def interleave(queues: dict[int, list[Unit]], order: list[int]) -> Iterator[Raw]:
    """Interleave units of several streams; a stream begins after the one before it has begun."""
    remaining, begun = [(stream, [*reversed(queue)]) for stream, queue in queues.items()], 0
    for pick in chain(order, repeat(0)):
        ready = [index for index, (_, queue) in enumerate(remaining[: begun + 1]) if queue]
        if not ready:
            return
        index = ready[pick % len(ready)]
        begun = max(begun, index + 1)
        stream, queue = remaining[index]
        yield from (replace(frame, stream=stream) for frame in queue.pop())


def cut_frames(frames: list[Raw], sizes: list[int]) -> Iterator[bytes]:
    octets = b"".join(frame.wire() for frame in frames)
    for size in [*sizes, len(octets)]:
        yield octets[:size]
        octets = octets[size:]


def half(frames: list[Raw], stream: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Return one side of a held stream: its blocks, body and reset, in order, and whether it has ended.

    A block that was held back may begin with a table size update that the proxy added (relay-rules A1).
    """
    parts: list[tuple[int, bytes]] = []
    own = [
        frame
        for frame in frames
        if frame.stream == stream and frame.kind in (peer.DATA, peer.HEADERS, peer.CONTINUATION, 3)
    ]
    for frame in own:
        kind = peer.HEADERS if frame.kind == peer.CONTINUATION else frame.kind
        joins = frame.kind == peer.CONTINUATION or (parts and parts[-1][0] == kind == peer.DATA)
        before = parts.pop()[1] if joins else b""
        parts.append((kind, (before + peer.content(frame)).removeprefix(b"\x20" if kind == peer.HEADERS else b"")))
    ended = any(frame.flags & END_STREAM for frame in own if frame.kind in (peer.DATA, peer.HEADERS))
    return [part for part in parts if part != (peer.DATA, b"")], ended


ORDER = st.lists(st.integers(0, 4), max_size=20)
SIZES = st.lists(st.integers(1, 60) | st.integers(1, 4_000), max_size=12)
ROUNDS = st.lists(st.tuples(st.lists(calls(), min_size=1, max_size=4), ORDER, SIZES), min_size=1, max_size=3)


@settings(max_examples=examples(100))
@given(ROUNDS, st.integers(1, 5))
def test_random_calls_arrive_unchanged(rounds: list[tuple[list[Call], list[int], list[int]]], reads: int) -> None:
    """A round's answers come with the requests of the next one; after some reads the held calls are released."""
    window, credit = Settings(((4, 2**24),)), Credit(0, 2**30)
    play = peer.Play().greet(window, window)
    play.client.sends(credit, Headers(1, VERSION, end=True))
    play.runtime.sends(credit, Headers(1, REPLY, end=True))
    play.client.got(), play.runtime.got()
    streams = dict[int, Call]()
    queried, answered = list[list[Raw]](), [list[Raw]()]
    for new_calls, order, _ in rounds:
        opened = {2 * number + 1: call for number, call in enumerate(new_calls, len(streams) + 1)}
        streams |= opened
        queried.append([*interleave({stream: call.request for stream, call in opened.items()}, order)])
        answered.append([*interleave({stream: call.answer for stream, call in opened.items()}, order)])
    sizes = [*(round_sizes for *_, round_sizes in rounds), []]
    sent = [*queried, []], answered
    at_runtime = at_client = b""
    for requests, answers, cuts in zip(*sent, sizes, strict=True):
        parts = zip_longest(cut_frames(requests, cuts), cut_frames(answers, cuts[::-1]), fillvalue=b"")
        for number, (request_part, answer_part) in enumerate(parts):
            play.client.sends(request_part)
            play.runtime.sends(answer_part)
            if number % reads == 0:
                settle(play)
        settle(play)
        at_runtime, at_client = at_runtime + play.runtime.received_bytes(), at_client + play.client.received_bytes()
    held = {stream for stream, call in streams.items() if call.path in routes.HELD}
    for octets, frames in zip((at_runtime, at_client), sent, strict=True):
        arrived, expected = [*peer.split(octets)], [*chain.from_iterable(frames)]
        passed = [frame for frame in arrived if frame.stream not in held and (frame.kind, frame.stream) != (8, 0)]
        assert passed == [frame for frame in expected if frame.stream not in held]
        assert [half(arrived, stream) for stream in held] == [half(expected, stream) for stream in held]
    assert play.budget.count == 0
    assert not play.reader.held


def settle(play: peer.Play) -> None:
    """Release the held requests, and send the waiting answers."""
    for call in play.calls:
        call.send_request(None)
    for call in play.settled:
        call.answer()
        call.free_budget()
    play.calls.clear()
    play.settled.clear()
