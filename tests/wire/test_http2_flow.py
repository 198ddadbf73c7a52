"""One peer's sender (relay-rules A3, A4, A8): a model of the peer uses it at random, other rules are tested one by one.

hyperframe parses what is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hyperframe.frame import DataFrame, PingFrame
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from runtimeproxy.wire.http2 import (
    CREDIT_STEP,
    MERGED_BYTES,
    PAIR_WINDOW,
    QUEUED_BYTES,
    QUEUED_FRAMES,
    FlowControlledSender,
)
from tests.amounts import examples
from tests.wire.frames import credited, parse, taken

PING = http2.frame(http2.PING, 0, 0, b"injected")
TRAILERS = http2.header_frames(1, b"\x88", True)


def started() -> FlowControlledSender:
    """Return a sender whose first SETTINGS have been sent, with nothing in ``out``."""
    sender = FlowControlledSender()
    sender.start()
    sender.out.clear()
    return sender


def data_of(sender: FlowControlledSender) -> list[tuple[int, int, bool]]:
    """Return (stream, length, END_STREAM) of each ready DATA frame, and clear what is ready."""
    return [(frame.stream_id, len(frame.data), "END_STREAM" in frame.flags) for frame in taken(sender.out)]


def test_ping_acks_wait_for_other_frames() -> None:
    sender = FlowControlledSender()
    sender.acks.append(PING)
    sender.acknowledge()
    assert (sender.out, sender.waiting) == ([], True), "nothing precedes the first SETTINGS"
    sender.start()
    sender.start()
    assert len(sender.out) == 1, "the window is opened once"
    sender.out.clear()
    sender.cut_through = True
    sender.acknowledge()
    assert (sender.out, sender.waiting) == ([], True)
    sender.inject(PING)
    sender.boundary()
    assert (sender.out, sender.waiting) == ([PING, PING], False)
    sender.acks.append(PING)
    assert (len(sender.out), sender.waiting) == (2, True)
    sender.acknowledge()
    assert (len(sender.out), sender.waiting) == (3, False)


def test_settings_reduce_immediately_and_raise_after_the_ack() -> None:
    sender = started()
    sender.stream_windows[1] = 0
    sender.send_data(1, bytes(100_000), True, None, 0)
    assert sum(length for _, length, _ in data_of(sender)) == http2.DEFAULT_WINDOW
    sender.open_window(1 << 20)
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 90_000), (http2.MAX_FRAME_SIZE, 20_000), (0x99, 1)])
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 80_000)])
    assert (sender.initial_window, sender.max_frame, sender.frame_limit) == (65_535, 16_384, 20_000)
    assert not sender.widened
    sender.settings_acknowledged()
    assert (sender.initial_window, sender.max_frame, sender.widened) == (80_000, 20_000, True)
    sender.settings_acknowledged()
    sender.settings_acknowledged()  # an ACK without SETTINGS
    sender.catch_up()
    assert data_of(sender) == [(1, 80_000 - 65_535, False)]
    sender.settings_announced([(http2.INITIAL_WINDOW_SIZE, 0)])
    assert (sender.initial_window, sender.widened) == (0, False)


def test_streams_are_sent_in_turn() -> None:
    sender = started()
    sender.send_data(5, b"free", True, None, 0)
    sender.window = 0
    for stream in (1, 3):
        sender.send_data(stream, bytes(20_000), True, None, 0)
    sender.open_window(100_000)
    assert data_of(sender) == [(5, 4, True), (1, 16_384, False), (3, 16_384, False), (1, 3616, True), (3, 3616, True)]


def waiting_for_credit(*streams: int) -> FlowControlledSender:
    """Return a sender in which a byte of each stream waits for the connection's window."""
    sender = started()
    sender.window = 0
    for stream in streams:
        sender.send_data(stream, b"x", False, None, 0)
    return sender


BOUNDS: dict[str, tuple[Callable[[FlowControlledSender, int], None], int]] = {
    "frames of all streams": (lambda sender, number: sender.send_frame((1, 3)[number % 2], b""), QUEUED_FRAMES - 3),
    "bytes without flow control": (
        lambda sender, number: sender.send_frame(3, bytes(QUEUED_BYTES // 4 if number < 4 else 1)),
        4,
    ),
    "own frames": (lambda sender, _: sender.inject(PING), QUEUED_FRAMES),
    "SETTINGS without their ACK": (lambda sender, _: sender.settings_announced([]), 100 - 1),
}


@pytest.mark.parametrize(("send", "most"), BOUNDS.values(), ids=BOUNDS)
def test_queued_frames_are_bounded(
    send: Callable[[FlowControlledSender, int], None], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "QUEUED_SETTINGS", 100)
    sender = waiting_for_credit(1, 3)
    sender.send_frame(5, b"is not queued")
    sender.send_frame(5, bytes(QUEUED_BYTES), 100)  # flow-controlled
    sender.cut_through = True
    for number in range(most):
        send(sender, number)
    assert not sender.overfull
    send(sender, most)
    assert sender.overfull


@pytest.mark.parametrize(
    "forget", [FlowControlledSender.drop, FlowControlledSender.forget_window, lambda sender, _: sender.drop_all()]
)
def test_sent_or_dropped_frames_no_longer_count(
    forget: Callable[[FlowControlledSender, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "QUEUED_FRAMES", 100)
    sender = waiting_for_credit(1)
    for _ in range(3):
        sender.send_frame(1, bytes(QUEUED_BYTES // 2))
        sender.open_window(1)
        sender.send_data(1, b"x", False, None, 0)
    for size in (*[QUEUED_BYTES] * 3, *[0] * 100):
        sender.send_frame(1, bytes(size))
        forget(sender, 1)
        sender.send_data(1, b"x", False, None, 0)
    assert not sender.overfull


@pytest.mark.parametrize("increment", [1, 2**31 - 1])
def test_no_window_grows_above_the_limit_of_the_rfc(increment: int) -> None:
    sender, most = started(), http2.MAX_WINDOW - http2.DEFAULT_WINDOW
    sender.stream_windows[1] = 0
    sender.open_window(most)
    sender.open_stream_window(1, most)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.open_window(increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.open_stream_window(1, increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.DEFAULT_WINDOW + 1)])
    sender.forget_window(1)  # a stream that has ended no longer counts
    sender.stream_windows[3] = 0
    sender.open_stream_window(3, 1)
    sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW - 1)])
    with pytest.raises(WireError, match=r"2\^31-1"):
        sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW)])
    with pytest.raises(WireError, match="WINDOW_UPDATE of 0"):
        sender.open_window(0)


def test_peer_may_use_its_window_to_the_last_byte() -> None:
    sender = started()
    sender.received(PAIR_WINDOW)
    sender.credit(CREDIT_STEP)
    sender.received(CREDIT_STEP)
    for count in (sender.received, sender.relayed):
        with pytest.raises(WireError, match="above the connection window"):
            count(1)


def test_relayed_data_is_credited_in_steps() -> None:
    sender = started()
    for _ in range(CREDIT_STEP // 1024):
        sender.relayed(1024)
    assert (sender.out, sender.outstanding) == ([http2.window_update(0, CREDIT_STEP)], 0)


def test_short_queued_data_of_one_source_is_merged() -> None:
    source, sender = started(), waiting_for_credit(1)
    for _ in range(2 * MERGED_BYTES // 64):
        sender.send_data(1, b"y" * 64, False, source, 64)
        sender.send_data(1, b"", False, source, 0)
    sender.send_data(1, b"z", True, source, CREDIT_STEP)
    sender.send_data(3, bytes(MERGED_BYTES), False, None, 0)
    assert len(sender.queues[1]) == 4
    sender.open_window(1 + MERGED_BYTES)
    assert data_of(sender) == [(1, 1, False), (3, MERGED_BYTES, False)]
    sender.open_window(100_000)
    assert data_of(sender) == [(1, MERGED_BYTES, False), (1, MERGED_BYTES, False), (1, 1, True)]
    assert credited(source.out) == [CREDIT_STEP + 2 * MERGED_BYTES]
    sender = waiting_for_credit(1)
    sender.send_data(1, b"of another source", False, source, 0)
    sender.send_frame(1, TRAILERS)
    sender.send_data(1, b"after whole frames", True, None, 0)
    sender.send_data(1, b"after the end", True, None, 0)
    assert len(sender.queues[1]) == 5


GOVERNED, PASSING = (1, 3), (5, 7)
"""Streams whose windows are hop by hop, and others."""
CUT_STREAM = 99
STREAMS, INCREMENTS = st.sampled_from(GOVERNED + PASSING), st.sampled_from([1, 17_000, 200_000])
RARELY = st.sampled_from([False] * 9 + [True])


@dataclass
class Item:
    """What was given of a stream and has not arrived completely: DATA that may be split, or whole frames."""

    rest: bytes
    end: bool
    charge: int
    whole: bool = False


@dataclass
class Stream:
    window: int | None
    items: list[Item] = field(default_factory=list)
    ended: bool = False
    """True if END_STREAM or the trailers were given, or the stream was dropped."""
    given: int = 0

    def put(self, item: Item) -> None:
        """Queue DATA, merged with short DATA before it."""
        last = self.items[-1] if self.items else None
        if last and not last.whole and not last.end and len(last.rest) + len(item.rest) <= MERGED_BYTES:
            last.rest += item.rest
            last.end = item.end
            last.charge += item.charge
        else:
            self.items.append(item)

    def arrive(self, frame: Any, raw: bytes, max_frame: int) -> int:
        """Check a frame against the first item; return the credit that is due then."""
        item = self.items[0]
        if item.whole:
            assert raw == item.rest
            item.rest = b""
        else:
            assert len(frame.data) <= max_frame
            assert item.rest.startswith(frame.data)
            assert frame.data or not item.rest
            item.rest = item.rest[len(frame.data) :]
            if self.window is not None:
                self.window -= len(frame.data)
                assert self.window >= 0 or not frame.data
        assert ("END_STREAM" in frame.flags) == (item.end and not item.rest)
        return 0 if item.rest else self.items.pop(0).charge


class Peer(RuleBasedStateMachine):
    """Gives the sender random work and obeys RFC 9113 as its peer, frame by frame as they arrive."""

    @initialize(early=st.booleans())
    def connect(self, early: bool) -> None:
        self.sender, self.source = FlowControlledSender(), started()
        self.window = self.initial = http2.DEFAULT_WINDOW
        self.max_frame = http2.DEFAULT_FRAME_SIZE
        self.streams = {stream: self.new_stream(stream) for stream in GOVERNED + PASSING}
        self.cut = b""
        self.injected = self.pings = self.given = self.due = self.returned = 0
        self.started = early
        if early:
            self.sender.start()

    def new_stream(self, stream: int) -> Stream:
        if stream in PASSING:
            return Stream(None)
        self.sender.stream_windows[stream] = 0
        return Stream(self.initial)

    def has_credit(self, length: int) -> bool:
        """Make the source's peer send within the window that it has."""
        if self.given - self.returned + length > PAIR_WINDOW:
            return False
        self.given += length
        self.source.received(length)
        return True

    @precondition(lambda self: not self.started)
    @rule()
    def start(self) -> None:
        self.started = True
        self.sender.start()

    @rule(stream=STREAMS, size=st.sampled_from([0, 1, 3_000, 100_000, 100_000]), end=RARELY)
    def send(self, stream: int, size: int, end: bool) -> None:
        model = self.streams[stream]
        if not model.ended and self.has_credit(size):
            payload = bytes((model.given + place) % 251 for place in range(size))
            model.given += size
            model.ended = end
            model.put(Item(payload, end, size))
            self.sender.send_data(stream, payload, end, self.source, size)

    @rule(stream=st.sampled_from(PASSING), padding=st.integers(0, 255), size=st.sampled_from([0, 16_000]))
    def send_padded(self, stream: int, padding: int, size: int) -> None:
        model, frame = self.streams[stream], DataFrame(stream, bytes(size), pad_length=padding, flags=["PADDED"])
        cost = frame.flow_controlled_length
        if not model.ended and self.has_credit(cost):
            model.items.append(Item(frame.serialize(), False, cost, whole=True))
            self.sender.send_frame(stream, frame.serialize(), cost, self.source)

    @rule(stream=STREAMS, really=RARELY)
    def send_trailers(self, stream: int, really: bool) -> None:
        model, trailers = self.streams[stream], http2.header_frames(stream, b"\x88", True)
        if really and not model.ended:
            model.ended = True
            model.items.append(Item(trailers, True, 0, whole=True))
            self.sender.send_frame(stream, trailers)

    @rule(stream=STREAMS, really=RARELY)
    def drop(self, stream: int, really: bool) -> None:
        model = self.streams[stream]
        if really:
            model.ended = True
            self.due += sum(item.charge for item in model.items)
            model.items.clear()
            self.sender.drop(stream)

    @rule(stream=STREAMS)
    def replace_stream(self, stream: int) -> None:
        """Forget a stream that has ended; the next one has its number."""
        if self.streams[stream].ended and not self.streams[stream].items:
            self.sender.forget_window(stream)
            self.streams[stream] = self.new_stream(stream)

    @precondition(lambda self: self.started and not self.cut and self.sender.window >= 20)
    @rule()
    def cut_through(self) -> None:
        frame = http2.frame(http2.DATA, 0, CUT_STREAM, bytes(20))
        self.sender.window -= 20
        self.sender.out.append(frame[:15])
        self.sender.cut_through = True
        self.cut = frame[15:]

    @precondition(lambda self: self.cut)
    @rule()
    def finish_the_cut(self) -> None:
        self.sender.out.append(self.cut)
        self.cut = b""
        self.sender.boundary()

    @rule()
    def inject(self) -> None:
        self.injected += 1
        self.sender.inject(PING)

    @rule(increment=INCREMENTS)
    def open_window(self, increment: int) -> None:
        self.window += increment
        self.sender.open_window(increment)

    @rule(stream=STREAMS, increment=INCREMENTS)
    def open_stream_window(self, stream: int, increment: int) -> None:
        model = self.streams[stream]
        if model.window is not None:
            model.window += increment
        self.sender.open_stream_window(stream, increment)

    @rule(
        initial=st.sampled_from([0, 1, 10_000, http2.DEFAULT_WINDOW, 200_000]),
        max_frame=st.sampled_from([16_384, 20_000, 2**24 - 1]),
    )
    def announce(self, initial: int, max_frame: int) -> None:
        for model in self.streams.values():
            if model.window is not None:
                model.window += initial - self.initial
        self.initial, self.max_frame = initial, max_frame
        self.sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, initial), (http2.MAX_FRAME_SIZE, max_frame)])
        self.sender.catch_up()

    @invariant()
    def sent_frames_are_allowed(self) -> None:
        assert self.started or not self.sender.out
        if self.cut:
            return
        raw = b"".join(self.sender.out)
        self.sender.out.clear()
        for frame, whole in parse(raw):
            if isinstance(frame, DataFrame):
                self.window -= frame.flow_controlled_length
                assert self.window >= 0
            self.pings += isinstance(frame, PingFrame)
            if frame.stream_id in self.streams:
                self.due += self.streams[frame.stream_id].arrive(frame, whole, self.max_frame)
        assert self.window == self.sender.window >= 0
        assert self.pings == (self.injected if self.started else 0)
        assert set(self.sender.queues) == {stream for stream, model in self.streams.items() if model.items}
        self.returned += sum(credited(self.source.out))
        assert self.given - self.source.outstanding == self.returned
        assert 0 <= self.due - self.returned < CREDIT_STEP
        for model in self.streams.values():
            if self.started and model.items:
                item = model.items[0]
                stuck = self.window < item.charge if item.whole else not self.window
                assert stuck or (model.window is not None and model.window <= 0), "queued frames lack credit"

    def teardown(self) -> None:
        if self.cut:
            self.finish_the_cut()
        if not self.started:
            self.start()
        self.open_window(2**24)
        for stream in self.streams:
            self.open_stream_window(stream, 2**24)
        self.sent_frames_are_allowed()
        assert not self.sender.congested
        assert not any(model.items for model in self.streams.values())
        assert self.given == self.due


TestPeer = pytest.mark.slow(Peer.TestCase)
# Shrinking a failure takes minutes here; the printed steps are readable without it.
TestPeer.settings = settings(
    max_examples=examples(80), stateful_step_count=60, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
