"""Tests of one peer's outlet (relay-rules A3, A4, A8): by rule, then a model that plays the peer; hyperframe reads."""

from dataclasses import dataclass, field

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, WindowUpdateFrame
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from runtimeproxy.wire.flow import CREDIT_STEP, PAIR_WINDOW, Outlet
from tests.wire.frames import parse

PING = http2.frame(http2.PING, 0, 0, b"injected")
TRAILERS = http2.header_frames(1, b"\x88", True)


def started() -> Outlet:
    """Return an outlet whose first SETTINGS have gone, with nothing in ``out``."""
    outlet = Outlet()
    outlet.start()
    outlet.out.clear()
    return outlet


def taken(outlet: Outlet) -> list[Frame]:
    """Take what is ready for the socket."""
    frames = [frame for frame, _ in parse(b"".join(outlet.out))]
    outlet.out.clear()
    return frames


def data_of(outlet: Outlet) -> list[tuple[int, int, bool]]:
    """Take what is ready: (stream, length, END_STREAM) of each DATA frame."""
    return [(frame.stream_id, len(frame.data), "END_STREAM" in frame.flags) for frame in taken(outlet)]


def credited(outlet: Outlet) -> list[int]:
    """Take what is ready: the increment of each WINDOW_UPDATE on stream 0."""
    return [frame.window_increment for frame in taken(outlet) if frame.stream_id == 0]


# ---- the first SETTINGS and frame boundaries


def test_nothing_leaves_before_the_first_settings() -> None:
    outlet = Outlet()
    outlet.inject(PING)
    outlet.send_data(1, b"body", True, None, 0)
    outlet.open_window(1)
    assert outlet.out == []
    outlet.start()
    window, ping, data = taken(outlet)
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, 2**20 - 65_535)
    assert isinstance(ping, PingFrame)
    assert data.data == b"body"


def test_the_pairs_window_is_opened_once() -> None:
    outlet = started()
    outlet.start()
    assert outlet.out == []


def test_frames_of_our_own_wait_for_the_boundary_of_a_frame_that_is_cut_through() -> None:
    outlet = started()
    outlet.cut_through = True
    outlet.inject(PING)
    outlet.send_data(1, b"body", False, None, 0)
    outlet.send_frame(1, TRAILERS)
    outlet.start()
    assert outlet.out == []
    outlet.boundary()
    assert [type(frame) for frame in taken(outlet)] == [PingFrame, DataFrame, HeadersFrame]
    assert not outlet.cut_through
    outlet.inject(PING)
    assert outlet.out == [PING]


def test_a_first_settings_that_comes_while_a_frame_is_cut_through_opens_the_window_after_it() -> None:
    outlet = Outlet()
    outlet.cut_through = True
    outlet.start()
    assert outlet.out == []
    outlet.boundary()
    assert credited(outlet) == [PAIR_WINDOW - 65_535]


# ---- DATA within the windows


def test_data_are_split_at_the_peers_max_frame_size() -> None:
    outlet = started()
    outlet.send_data(1, bytes(40_000), True, None, 0)
    assert data_of(outlet) == [(1, 16_384, False), (1, 16_384, False), (1, 7232, True)]
    outlet.apply_settings([(http2.MAX_FRAME_SIZE, 25_000)])
    outlet.send_data(3, bytes(25_001), False, None, 0)
    assert data_of(outlet) == [(3, 25_000, False), (3, 1, False)]


def test_data_wait_for_the_connection_window() -> None:
    outlet = started()
    outlet.window = 10
    outlet.send_data(1, bytes(25), True, None, 0)
    assert data_of(outlet) == [(1, 10, False)]
    assert (outlet.window, outlet.congested, outlet.waits(1), outlet.waits(3)) == (0, True, True, False)
    outlet.open_window(5)
    assert data_of(outlet) == [(1, 5, False)]
    outlet.open_window(100)
    assert data_of(outlet) == [(1, 10, True)]
    assert (outlet.window, outlet.congested, outlet.waits(1)) == (90, False, False)


def test_data_without_bytes_need_no_window() -> None:
    outlet = started()
    outlet.window = 0
    outlet.send_data(1, b"", True, None, 0)
    assert data_of(outlet) == [(1, 0, True)]


def test_only_a_governed_stream_waits_for_its_own_window() -> None:
    outlet = started()
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 10)])
    outlet.govern(1)
    outlet.send_data(1, bytes(25), True, None, 0)
    outlet.send_data(3, bytes(25), True, None, 0)
    outlet.open_stream_window(3, 100)
    assert data_of(outlet) == [(1, 10, False), (3, 25, True)]
    outlet.open_stream_window(1, 100)
    assert data_of(outlet) == [(1, 15, True)]


def test_initial_window_size_is_obeyed_on_sight_and_can_make_a_window_negative() -> None:
    outlet = started()
    outlet.govern(1)
    outlet.send_data(1, bytes(60_000), False, None, 0)
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 100), (0x99, 1)])
    outlet.out.clear()
    outlet.send_data(1, bytes(50), True, None, 0)
    outlet.open_stream_window(1, 60_000 - 100)
    assert outlet.out == []
    outlet.open_stream_window(1, 20)
    assert data_of(outlet) == [(1, 20, False)]
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 110), (http2.INITIAL_WINDOW_SIZE, 120)])
    assert data_of(outlet) == [(1, 10, False), (1, 10, False)] or outlet.out == []
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 65_535)])
    assert not outlet.congested
    assert outlet.initial_window == 65_535


def test_a_stream_governed_later_starts_with_the_latest_initial_window() -> None:
    outlet = started()
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 7)])
    outlet.govern(5)
    outlet.send_data(5, bytes(8), True, None, 0)
    assert data_of(outlet) == [(5, 7, False)]


def test_streams_take_turns() -> None:
    outlet = started()
    outlet.window = 0
    for stream in (1, 3):
        outlet.send_data(stream, bytes(20_000), True, None, 0)
    outlet.open_window(100_000)
    assert data_of(outlet) == [(1, 16_384, False), (3, 16_384, False), (1, 3616, True), (3, 3616, True)]


def test_a_stream_that_waits_for_its_window_holds_no_other_up() -> None:
    outlet = started()
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 0)])
    outlet.govern(1)
    outlet.send_data(1, b"waits", True, None, 0)
    outlet.send_data(3, b"goes", True, None, 0)
    assert data_of(outlet) == [(3, 4, True)]


def test_a_padded_frame_leaves_whole_and_counts_with_its_padding() -> None:
    outlet = started()
    padded = DataFrame(1, b"x" * 50, pad_length=49, flags=["PADDED", "END_STREAM"])
    assert padded.flow_controlled_length == 100
    outlet.window = 99
    outlet.send_frame(1, padded.serialize(), cost=100)
    assert outlet.out == []
    outlet.open_window(2)
    assert outlet.out == [padded.serialize()]
    assert outlet.window == 1


def test_trailers_need_no_window_but_wait_behind_their_streams_data() -> None:
    outlet = started()
    outlet.window = 0
    outlet.send_data(1, b"body", False, None, 0)
    outlet.send_frame(1, TRAILERS)
    outlet.send_frame(3, TRAILERS)
    assert outlet.out == [TRAILERS]
    outlet.open_window(4)
    assert outlet.out[1:] == [http2.frame(http2.DATA, 0, 1, b"body"), TRAILERS]


@pytest.mark.parametrize("increment", [1, 2**31 - 1])
def test_no_window_grows_above_the_limit_of_the_rfc(increment: int) -> None:
    outlet = started()
    outlet.govern(1)
    outlet.open_window(http2.MAX_WINDOW - http2.DEFAULT_WINDOW)
    outlet.open_stream_window(1, http2.MAX_WINDOW - http2.DEFAULT_WINDOW)
    with pytest.raises(WireError, match=r"2\^31-1"):
        outlet.open_window(increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        outlet.open_stream_window(1, increment)
    with pytest.raises(WireError, match=r"2\^31-1"):
        outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.DEFAULT_WINDOW + 1)])


def test_a_connection_window_is_not_opened_by_nothing() -> None:
    with pytest.raises(WireError, match="WINDOW_UPDATE of 0"):
        started().open_window(0)


# ---- credit


def test_credit_is_given_back_in_steps() -> None:
    outlet = started()
    outlet.received(CREDIT_STEP + 10)
    outlet.credit(CREDIT_STEP - 1)
    assert outlet.out == []
    outlet.credit(11)
    assert credited(outlet) == [CREDIT_STEP + 10]
    assert outlet.outstanding == 0


def test_a_peer_may_use_its_window_to_the_last_byte_and_again_what_was_credited() -> None:
    outlet = started()
    outlet.received(PAIR_WINDOW)
    outlet.credit(CREDIT_STEP)
    outlet.received(CREDIT_STEP)
    with pytest.raises(WireError, match="above the connection window"):
        outlet.received(1)


@pytest.mark.parametrize("whole", [False, True])
def test_the_source_is_credited_when_all_has_left(whole: bool) -> None:
    source, outlet = started(), started()
    outlet.window = CREDIT_STEP - 1
    outlet.apply_settings([(http2.MAX_FRAME_SIZE, 2**20)])
    if whole:
        outlet.send_frame(1, http2.frame(http2.DATA, 0, 1, bytes(CREDIT_STEP)), CREDIT_STEP, source)
    else:
        outlet.send_data(1, bytes(CREDIT_STEP), True, source, CREDIT_STEP)
    assert credited(source) == []
    outlet.open_window(1)
    assert credited(source) == [CREDIT_STEP]


@pytest.mark.parametrize("forget", [Outlet.drop, Outlet.ungovern])
def test_what_is_dropped_is_credited_and_never_leaves(forget: object) -> None:
    assert callable(forget)
    source, outlet = started(), started()
    outlet.window = 10
    outlet.send_data(1, bytes(20), False, source, CREDIT_STEP)
    outlet.send_data(1, b"", True, None, 0)
    outlet.send_frame(3, http2.frame(http2.DATA, 0, 3, bytes(20)), 20, source)
    assert data_of(outlet) == [(1, 10, False)]
    forget(outlet, 1)
    forget(outlet, 5)
    assert credited(source) == [CREDIT_STEP]
    outlet.open_window(100)
    assert data_of(outlet) == [(3, 20, False)]


def test_a_stream_that_has_ended_has_no_window_any_more() -> None:
    outlet = started()
    outlet.govern(1)
    outlet.ungovern(1)
    outlet.open_stream_window(1, http2.MAX_WINDOW)
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 0)])
    outlet.send_data(1, b"free", True, None, 0)
    assert data_of(outlet) == [(1, 4, True)]


# ---- a model of the peer

GOVERNED, PASSING = (1, 3), (5, 7)
CUT_STREAM = 99
BIG = 40_000


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

    @initialize()
    def connect(self) -> None:
        self.outlet, self.source = Outlet(), started()
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

    # What the relay does.

    @precondition(lambda self: not self.started)
    @rule()
    def start(self) -> None:
        self.started = True
        self.outlet.start()

    @rule(stream=st.sampled_from(GOVERNED + PASSING), size=st.sampled_from([0, 1, 100, BIG]), end=st.booleans())
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

    @rule(stream=st.sampled_from(GOVERNED + PASSING))
    def send_trailers(self, stream: int) -> None:
        model = self.streams[stream]
        if not model.ended:
            model.ended = True
            trailers = http2.header_frames(stream, b"\x88", True)
            model.items.append(Item(trailers, True, 0, whole=True))
            self.outlet.send_frame(stream, trailers)

    @rule(stream=st.sampled_from(GOVERNED + PASSING))
    def drop(self, stream: int) -> None:
        model = self.streams[stream]
        model.ended = True
        self.due += sum(item.charge for item in model.items)
        model.items.clear()
        self.outlet.drop(stream)

    @precondition(lambda self: self.started and self.cut is None and self.outlet.window > 20)
    @rule()
    def cut_through(self) -> None:
        frame = http2.frame(http2.DATA, 0, CUT_STREAM, b"cut through as it comes")
        size = min(20, len(frame) - http2.HEAD_BYTES)
        frame = http2.frame(http2.DATA, 0, CUT_STREAM, bytes(size))
        self.outlet.window -= size
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

    @rule(increment=st.sampled_from([1, 5000, 100_000]))
    def open_window(self, increment: int) -> None:
        self.window += increment
        self.outlet.open_window(increment)

    @rule(stream=st.sampled_from(GOVERNED + PASSING), increment=st.sampled_from([1, 5000, 100_000]))
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

    # What must hold after each step.

    @invariant()
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

    def arrived(self, frame: Frame, whole: bytes) -> None:
        if isinstance(frame, DataFrame):
            self.window -= frame.flow_controlled_length
            assert self.window >= 0
        if isinstance(frame, PingFrame):
            self.pings += 1
        elif frame.stream_id in self.streams:
            self.arrived_of(self.streams[frame.stream_id], frame, whole)

    def arrived_of(self, model: Stream, frame: Frame, whole: bytes) -> None:
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

    @invariant()
    def credit_is_given_for_what_has_left(self) -> None:
        self.returned += sum(credited(self.source))
        assert self.handed - self.source.outstanding == self.returned
        if self.cut is None:
            assert 0 <= self.due - self.returned < CREDIT_STEP

    @invariant()
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
        self.what_arrives_is_allowed()
        self.credit_is_given_for_what_has_left()
        assert not self.outlet.congested
        assert not any(model.items for model in self.streams.values())
        assert self.handed == self.due


TestPeer = Peer.TestCase
TestPeer.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
