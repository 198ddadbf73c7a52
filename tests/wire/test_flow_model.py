"""A model of an outlet's peer (relay-rules A3, A4, A8): random work, checked frame by frame; hyperframe reads."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hyperframe.frame import DataFrame, PingFrame
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtimeproxy.wire import http2
from runtimeproxy.wire.flow import CREDIT_STEP, PAIR_WINDOW, Outlet
from tests.amounts import examples
from tests.wire.frames import credited, parse

pytestmark = pytest.mark.slow

PING = http2.frame(http2.PING, 0, 0, b"injected")
GOVERNED, PASSING = (1, 3), (5, 7)
CUT_STREAM = 99
BIG = 100_000
RARELY = st.sampled_from([False] * 9 + [True])


@dataclass
class Item:
    """What was handed over of a stream and has not arrived whole: DATA that may be split, or whole frames."""

    rest: bytes
    end: bool
    charge: int
    whole: bool = False


@dataclass
class Stream:
    items: list[Item] = field(default_factory=list)
    ended: bool = False
    """END_STREAM or the trailers were handed over, or it was dropped."""
    window: int | None = None
    given: int = 0


class Peer(RuleBasedStateMachine):
    """Hands the outlet random work and obeys RFC 9113 as its peer, frame by frame as they arrive."""

    @initialize(early=st.integers(0, 3))
    def connect(self, early: int) -> None:
        self.outlet, self.source = Outlet(), Outlet()
        self.source.start()
        self.source.out.clear()
        self.streams = {stream: Stream() for stream in GOVERNED + PASSING}
        self.window = self.initial = http2.DEFAULT_WINDOW
        self.max_frame = http2.DEFAULT_FRAME_SIZE
        self.cut: bytes | None = None
        self.injected = self.pings = 0
        self.handed = self.due = self.returned = 0
        self.started = False
        for stream in GOVERNED:
            self.outlet.govern(stream)
            self.streams[stream].window = self.initial
        if early:
            self.start()

    # What the relay does.

    @precondition(lambda self: not self.started)
    @rule()
    def start(self) -> None:
        self.started = True
        self.outlet.start()

    @rule(stream=st.sampled_from(GOVERNED + PASSING), size=st.sampled_from([0, 1, 3_000, BIG, BIG]), end=RARELY)
    def send(self, stream: int, size: int, end: bool) -> None:
        model = self.streams[stream]
        if not model.ended and self.charged(size):
            payload = bytes((model.given + place) % 251 for place in range(size))
            model.given += size
            model.ended = end
            model.items.append(Item(payload, end, size))
            self.outlet.send_data(stream, payload, end, self.source, size)

    @rule(stream=st.sampled_from(PASSING), padding=st.integers(0, 255), size=st.sampled_from([0, 16_000]))
    def send_padded(self, stream: int, padding: int, size: int) -> None:
        model = self.streams[stream]
        frame = DataFrame(stream, bytes(size), pad_length=padding, flags=["PADDED"])
        cost = frame.flow_controlled_length
        if not model.ended and self.charged(cost):
            model.items.append(Item(frame.serialize(), False, cost, whole=True))
            self.outlet.send_frame(stream, frame.serialize(), cost, self.source)

    @rule(stream=st.sampled_from(GOVERNED + PASSING), now=RARELY)
    def send_trailers(self, stream: int, now: bool) -> None:
        model = self.streams[stream]
        if now and not model.ended:
            model.ended = True
            trailers = http2.header_frames(stream, b"\x88", True)
            model.items.append(Item(trailers, True, 0, whole=True))
            self.outlet.send_frame(stream, trailers)

    @rule(stream=st.sampled_from(GOVERNED + PASSING))
    def replace_a_stream(self, stream: int) -> None:
        """Forget a stream that has ended; its number stands for the next one."""
        if self.streams[stream].ended and not self.streams[stream].items:
            self.outlet.ungovern(stream)
            self.streams[stream] = Stream()
            if stream in GOVERNED:
                self.outlet.govern(stream)
                self.streams[stream].window = self.initial

    @rule(stream=st.sampled_from(GOVERNED + PASSING), now=RARELY)
    def drop(self, stream: int, now: bool) -> None:
        if not now:
            return
        model = self.streams[stream]
        model.ended = True
        self.due += sum(item.charge for item in model.items)
        model.items.clear()
        self.outlet.drop(stream)

    @precondition(lambda self: self.started and self.cut is None and self.outlet.window >= 20)
    @rule()
    def cut_through(self) -> None:
        frame = http2.frame(http2.DATA, 0, CUT_STREAM, bytes(20))
        self.outlet.window -= 20
        self.outlet.out.append(frame[:15])
        self.outlet.cut_through = True
        self.cut = frame[15:]

    @precondition(lambda self: self.cut is not None)
    @rule()
    def finish_the_cut(self) -> None:
        assert self.cut is not None
        self.outlet.out.append(self.cut)
        self.cut = None
        self.outlet.boundary()

    @rule()
    def inject(self) -> None:
        self.injected += 1
        self.outlet.inject(PING)

    def charged(self, length: int) -> bool:
        """Let the source's peer send; it keeps to the window that it has."""
        if self.handed - self.returned + length > PAIR_WINDOW:
            return False
        self.handed += length
        self.source.received(length)
        return True

    # What the peer does.

    @rule(increment=st.sampled_from([1, 17_000, 200_000]))
    def open_window(self, increment: int) -> None:
        self.window += increment
        self.outlet.open_window(increment)

    @rule(stream=st.sampled_from(GOVERNED + PASSING), increment=st.sampled_from([1, 17_000, 200_000]))
    def open_stream_window(self, stream: int, increment: int) -> None:
        model = self.streams[stream]
        if model.window is not None:
            model.window += increment
        self.outlet.open_stream_window(stream, increment)

    @rule(
        initial=st.sampled_from([0, 1, 10_000, http2.DEFAULT_WINDOW, 200_000]),
        max_frame=st.sampled_from([16_384, 20_000, 2**24 - 1]),
    )
    def announce(self, initial: int, max_frame: int) -> None:
        for model in self.streams.values():
            if model.window is not None:
                model.window += initial - self.initial
        self.initial, self.max_frame = initial, max_frame
        self.outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, initial), (http2.MAX_FRAME_SIZE, max_frame)])
        self.outlet.catch_up()

    # What must hold after each step.

    @invariant()
    def holds(self) -> None:
        self.what_arrives_is_allowed()
        self.credit_is_given_for_what_has_left()
        self.what_waits_has_a_reason()

    def what_arrives_is_allowed(self) -> None:
        assert self.started or not self.outlet.out
        if self.cut is None:
            raw = b"".join(self.outlet.out)
            self.outlet.out.clear()
            for frame, whole in parse(raw):
                self.arrived(frame, whole)
            assert self.window == self.outlet.window >= 0
            assert self.pings == (self.injected if self.started else 0)
        for stream, model in self.streams.items():
            assert self.cut is not None or self.outlet.waits(stream) == bool(model.items)

    def arrived(self, frame: Any, whole: bytes) -> None:
        if isinstance(frame, DataFrame):
            self.window -= frame.flow_controlled_length
            assert self.window >= 0
        if isinstance(frame, PingFrame):
            self.pings += 1
        elif frame.stream_id in self.streams:
            self.arrived_of(self.streams[frame.stream_id], frame, whole)

    def arrived_of(self, model: Stream, frame: Any, whole: bytes) -> None:
        item = model.items[0]
        if item.whole:
            assert whole == item.rest
            item.rest = b""
        else:
            assert len(frame.data) <= self.max_frame
            assert item.rest.startswith(frame.data)
            assert frame.data or not item.rest
            item.rest = item.rest[len(frame.data) :]
            if model.window is not None:
                model.window -= len(frame.data)
                assert model.window >= 0 or not frame.data
        assert ("END_STREAM" in frame.flags) == (item.end and not item.rest)
        if not item.rest:
            self.due += model.items.pop(0).charge

    def credit_is_given_for_what_has_left(self) -> None:
        self.returned += sum(credited(self.source.out))
        assert self.handed - self.source.outstanding == self.returned
        if self.cut is None:
            assert 0 <= self.due - self.returned < CREDIT_STEP

    def what_waits_has_a_reason(self) -> None:
        if not self.started or self.cut is not None:
            return
        for model in self.streams.values():
            if model.items:
                item = model.items[0]
                stuck = self.window < item.charge if item.whole else not self.window
                assert stuck or (model.window is not None and model.window <= 0)

    def teardown(self) -> None:
        if self.cut is not None:
            self.finish_the_cut()
        if not self.started:
            self.start()
        self.open_window(2**24)
        for stream in self.streams:
            self.open_stream_window(stream, 2**24)
        self.holds()
        assert not self.outlet.congested
        assert not any(model.items for model in self.streams.values())
        assert self.handed == self.due


TestPeer = Peer.TestCase
# Shrinking a failure takes minutes here: the steps that Hypothesis prints are read as they are.
TestPeer.settings = settings(
    max_examples=examples(80),
    stateful_step_count=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
