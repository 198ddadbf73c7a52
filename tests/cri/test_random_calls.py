"""Random calls, framed in every way that HTTP/2 allows, interleaved and split anywhere, arrive unchanged."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product, repeat, zip_longest
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cri import routes
from tests.amounts import examples
from tests.cri import peer
from tests.cri.peer import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, REPLY, Data, Raw, grpc

FRAME_BYTES = 16_384
PATHS = st.sampled_from([*routes.PASSING_SERIES]) | st.sampled_from([*routes.HELD])
EXTRA: list[peer.Fields] = [(), ((b"te", b"trailers"), (b"grpc-timeout", b"30S")), ((b"x-twice", b"1"),) * 2]
SHAPES = ("plain", "continued", "with priority", "padded")
VARIANTS = st.sampled_from([*product(EXTRA, SHAPES, (None, 0, 255))])
"""Extra header fields, the shape of the header block, padding of the first DATA."""
BODIES = st.binary(max_size=40) | st.sampled_from([bytes(range(251)) * 80])
REQUEST_ENDS = st.sampled_from(["with data", "late", "with trailers"])
REPLY_ENDS = st.sampled_from(["agreed", "agreed", "failed", "failed early", "reset", "without trailers"])
FAILED = peer.refusal(5, b"not found: %C3%A9")

Unit = list[Raw]
"""Frames that follow each other directly; a call sets their stream id once it has one."""


def headers(fields: peer.Fields, shape: str = "plain", end: bool = False) -> Unit:
    octets, flags = peer.block(fields), END_STREAM * end
    if shape == "continued":
        return [Raw(HEADERS, flags, 0, octets[:7]), Raw(CONTINUATION, END_HEADERS, 0, octets[7:])]
    if shape == "with priority":
        return [Raw(HEADERS, flags | END_HEADERS | peer.PRIORITY, 0, b"\0\0\0\0\x07" + octets)]
    if shape == "padded":
        return [Raw(HEADERS, flags | END_HEADERS | PADDED, 0, b"\x03" + octets + bytes(3))]
    return [Raw(HEADERS, flags | END_HEADERS, 0, octets)]


def data(body: bytes, first: int, pad: int | None, end: bool) -> Iterator[Unit]:
    """Yield DATA frames, the first of them padded and of at most ``first`` bytes."""
    parts = [body[:first], *(body[at : at + FRAME_BYTES] for at in range(first, len(body), FRAME_BYTES))]
    for number, part in enumerate(parts):
        yield [Data(0, part, end and number == len(parts) - 1, None if number else pad)]


class Call(NamedTuple):
    path: bytes
    request: list[Unit]
    answer: list[Unit]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    path, (extra, shape, pad), end = draw(PATHS), draw(VARIANTS), draw(REQUEST_ENDS)
    body, first = grpc(draw(BODIES)), draw(st.integers(0, 40))
    sent = [headers(peer.request(path, *extra), shape), *data(body, first, pad, end == "with data")]
    sent += {"late": [[Data(0, b"", True)]], "with trailers": [headers(((b"x", b"t"),), end=True)]}.get(end, [])
    (extra, shape, pad), end, body = draw(VARIANTS), draw(REPLY_ENDS), grpc(draw(BODIES))
    if end == "failed early":
        return Call(path, sent, [headers(FAILED, end=True)])
    replied = [headers((*REPLY, *extra), shape), *data(body, first, pad, end == "without trailers")]
    ends = {"agreed": headers(peer.TRAILERS, end=True), "failed": headers(FAILED[2:], end=True)}
    ends["reset"] = [peer.Reset(0, 2)]
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
    own = [frame for frame in frames if frame.stream == stream and frame.kind in (DATA, HEADERS, CONTINUATION, 3)]
    for frame in own:
        kind = HEADERS if frame.kind == CONTINUATION else frame.kind
        joins = frame.kind == CONTINUATION or (parts and parts[-1][0] == kind == DATA)
        before = parts.pop()[1] if joins else b""
        parts.append((kind, (before + peer.content(frame)).removeprefix(b"\x20" if kind == HEADERS else b"")))
    ended = any(frame.flags & END_STREAM for frame in own if frame.kind in (DATA, HEADERS))
    return [part for part in parts if part != (DATA, b"")], ended


ORDER = st.lists(st.integers(0, 4), max_size=20)
SIZES = st.lists(st.integers(1, 60) | st.integers(1, 4_000), max_size=12)
ROUNDS = st.lists(st.tuples(st.lists(calls(), min_size=1, max_size=4), ORDER, SIZES), min_size=1, max_size=3)


@settings(max_examples=examples(100))
@given(ROUNDS, st.integers(1, 5))
def test_random_calls_arrive_unchanged(rounds: list[tuple[list[Call], list[int], list[int]]], reads: int) -> None:
    """A round's answers come with the requests of the next one; after some reads the held calls are released."""
    window, credit = peer.Settings(((4, 2**24),)), peer.Credit(0, 2**30)
    play = peer.Play().greet(window, window)
    play.client.sends(credit, peer.Headers(1, peer.VERSION, end=True))
    play.runtime.sends(credit, peer.Headers(1, REPLY, end=True))
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
        assert passing(arrived, held) == passing(expected, held)
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


def passing(frames: list[Raw], held: set[int]) -> list[Raw]:
    """Return the frames that do not depend on held calls."""
    return [frame for frame in frames if frame.stream not in held and (frame.kind, frame.stream) != (8, 0)]
