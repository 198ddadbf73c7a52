"""Tests of one peer's outlet, rule by rule (relay-rules A3, A4, A8); test_flow_model plays them at random."""

from collections.abc import Callable

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, WindowUpdateFrame

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from runtimeproxy.wire.flow import CREDIT_STEP, PAIR_WINDOW, QUEUED_BYTES, QUEUED_FRAMES, QUEUED_SETTINGS, Outlet
from tests.wire.frames import credited, taken

PING = http2.frame(http2.PING, 0, 0, b"injected")
TRAILERS = http2.header_frames(1, b"\x88", True)


def started() -> Outlet:
    """Return an outlet whose first SETTINGS have gone, with nothing in ``out``."""
    outlet = Outlet()
    outlet.start()
    outlet.out.clear()
    return outlet


def data_of(outlet: Outlet) -> list[tuple[int, int, bool]]:
    """Take what is ready: (stream, length, END_STREAM) of each DATA frame."""
    return [(frame.stream_id, len(frame.data), "END_STREAM" in frame.flags) for frame in taken(outlet.out)]


# ---- the first SETTINGS and frame boundaries


def test_nothing_leaves_before_the_first_settings() -> None:
    outlet = Outlet()
    outlet.inject(PING)
    outlet.send_data(1, b"body", True, None, 0)
    outlet.open_window(1)
    assert outlet.out == []
    outlet.start()
    window, ping, data = taken(outlet.out)
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, 2**20 - 65_535)
    assert isinstance(ping, PingFrame)
    assert data.data == b"body"


def test_own_frames_wait_for_the_end_of_a_frame_that_is_cut_through() -> None:
    outlet = started()
    outlet.cut_through = True
    outlet.inject(PING)
    outlet.send_data(1, b"body", False, None, 0)
    outlet.send_frame(1, TRAILERS)
    outlet.start()
    assert outlet.out == []
    outlet.boundary()
    assert [type(frame) for frame in taken(outlet.out)] == [PingFrame, DataFrame, HeadersFrame]
    assert not outlet.cut_through
    outlet.inject(PING)
    assert outlet.out == [PING]


def test_ping_acks_wait_for_something_to_be_sent_with() -> None:
    outlet = Outlet()
    outlet.acks.append(PING)
    outlet.acknowledge()
    assert (outlet.out, outlet.waiting) == ([], True), "nothing stands before the first SETTINGS"
    outlet.start()
    outlet.out.clear()
    outlet.cut_through = True
    outlet.acknowledge()
    assert (outlet.out, outlet.waiting) == ([], True)
    outlet.inject(PING)
    outlet.boundary()
    assert (outlet.out, outlet.waiting) == ([PING, PING], False)
    outlet.acks.append(PING)
    assert (len(outlet.out), outlet.waiting) == (2, True)
    outlet.acknowledge()
    assert (len(outlet.out), outlet.waiting) == (3, False)


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


def test_initial_window_size_can_make_a_window_negative() -> None:
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
    assert not outlet.widened
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 0), (http2.INITIAL_WINDOW_SIZE, 110)])  # the last one counts
    assert (outlet.out, outlet.widened) == ([], True)
    outlet.catch_up()
    assert (data_of(outlet), outlet.widened) == ([(1, 10, False)], False)
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 65_535)])
    outlet.catch_up()
    assert data_of(outlet) == [(1, 20, True)]


def test_settings_lessen_on_sight_and_raise_behind_their_ack() -> None:
    outlet = started()
    outlet.govern(1)
    outlet.send_data(1, bytes(100_000), True, None, 0)
    assert sum(length for _, length, _ in data_of(outlet)) == http2.DEFAULT_WINDOW
    outlet.open_window(1 << 20)
    outlet.settings_announced([(http2.INITIAL_WINDOW_SIZE, 90_000), (http2.MAX_FRAME_SIZE, 20_000), (0x99, 1)])
    outlet.settings_announced([(http2.INITIAL_WINDOW_SIZE, 80_000)])
    assert (outlet.initial_window, outlet.max_frame, outlet.frame_limit) == (65_535, 16_384, 20_000)
    assert not outlet.widened
    outlet.settings_acknowledged()
    assert (outlet.initial_window, outlet.max_frame, outlet.widened) == (80_000, 20_000, True)
    outlet.settings_acknowledged()
    outlet.settings_acknowledged()  # an ACK of nothing
    outlet.catch_up()
    assert data_of(outlet) == [(1, 80_000 - 65_535, False)]
    outlet.settings_announced([(http2.INITIAL_WINDOW_SIZE, 0)])
    assert (outlet.initial_window, outlet.widened) == (0, False)


def test_settings_that_nobody_acknowledges_are_bounded() -> None:
    outlet = started()
    for _ in range(QUEUED_SETTINGS):
        assert not outlet.overfull
        outlet.settings_announced([])
    assert outlet.overfull


def test_streams_take_turns() -> None:
    outlet = started()
    outlet.window = 0
    for stream in (1, 3):
        outlet.send_data(stream, bytes(20_000), True, None, 0)
    outlet.open_window(100_000)
    assert data_of(outlet) == [(1, 16_384, False), (3, 16_384, False), (1, 3616, True), (3, 3616, True)]


def test_trailers_need_no_window_but_wait_behind_their_streams_data() -> None:
    outlet = started()
    outlet.window = 0
    outlet.send_data(1, b"body", False, None, 0)
    outlet.send_frame(1, TRAILERS)
    outlet.send_frame(3, TRAILERS)
    assert outlet.out == [TRAILERS]
    outlet.open_window(4)
    assert outlet.out[1:] == [http2.frame(http2.DATA, 0, 1, b"body"), TRAILERS]


# ---- what waits is bounded


def waiting_for_credit(*streams: int) -> Outlet:
    """Return an outlet where a byte of each stream waits for the connection's window."""
    outlet = started()
    outlet.window = 0
    for stream in streams:
        outlet.send_data(stream, b"x", False, None, 0)
    return outlet


def test_frames_that_wait_are_bounded_for_all_streams_together() -> None:
    outlet = waiting_for_credit(1, 3)
    for _ in range(QUEUED_FRAMES // 2 - 1):
        outlet.send_frame(1, b"")
        outlet.send_frame(3, b"")
    assert not outlet.overfull
    outlet.send_frame(5, b"has nothing to wait for")
    assert not outlet.overfull
    outlet.send_frame(1, b"")
    assert outlet.overfull


@pytest.mark.parametrize("forget", [Outlet.drop, Outlet.ungovern, lambda outlet, _: outlet.drop_all()])
def test_what_has_left_or_was_dropped_counts_no_more(forget: Callable[[Outlet, int], None]) -> None:
    outlet = waiting_for_credit(1)
    for _ in range(3):
        outlet.send_frame(1, bytes(QUEUED_BYTES // 2))
        outlet.open_window(1)
        outlet.send_data(1, b"x", False, None, 0)
    for _ in range(3):
        outlet.send_frame(1, bytes(QUEUED_BYTES))
        forget(outlet, 1)
        outlet.send_data(1, b"x", False, None, 0)
    assert not outlet.overfull


def test_waiting_bytes_that_cost_no_credit_are_bounded() -> None:
    outlet = waiting_for_credit(1, 3)
    outlet.send_frame(1, bytes(QUEUED_BYTES // 2))
    outlet.send_frame(3, bytes(QUEUED_BYTES // 2))
    outlet.send_frame(5, http2.frame(http2.DATA, 0, 5, bytes(100)), 100)
    assert not outlet.overfull
    outlet.send_frame(3, b"x")
    assert outlet.overfull


def test_own_frames_that_wait_are_bounded() -> None:
    outlet = Outlet()
    for _ in range(QUEUED_FRAMES):
        outlet.inject(PING)
    assert not outlet.overfull
    outlet.inject(PING)
    assert outlet.overfull


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


def test_connection_window_is_not_opened_by_nothing() -> None:
    with pytest.raises(WireError, match="WINDOW_UPDATE of 0"):
        started().open_window(0)


# ---- credit


def test_credit_is_given_back_in_steps() -> None:
    outlet = started()
    outlet.received(CREDIT_STEP + 10)
    outlet.credit(CREDIT_STEP - 1)
    assert outlet.out == []
    outlet.credit(11)
    assert credited(outlet.out) == [CREDIT_STEP + 10]
    assert outlet.outstanding == 0
    outlet.received(1)
    outlet.credit(1)
    assert outlet.out == []
    assert outlet.outstanding == 1


def test_peer_may_use_its_window_to_the_last_byte() -> None:
    outlet = started()
    outlet.received(PAIR_WINDOW)
    outlet.credit(CREDIT_STEP)
    outlet.received(CREDIT_STEP)
    with pytest.raises(WireError, match="above the connection window"):
        outlet.received(1)


@pytest.mark.parametrize("whole", [False, True])
def test_source_is_credited_when_all_has_left(whole: bool) -> None:
    """A padded frame leaves whole and counts with its padding, so it waits for the window that it needs."""
    source, outlet = started(), started()
    outlet.window = CREDIT_STEP - 1
    outlet.apply_settings([(http2.MAX_FRAME_SIZE, 2**20)])
    for missing in (1, 0):
        if whole:
            padded = DataFrame(1, bytes(CREDIT_STEP - 50), pad_length=49, flags=["PADDED"])
            outlet.send_frame(1, padded.serialize(), padded.flow_controlled_length, source)
        else:
            outlet.send_data(1, bytes(CREDIT_STEP), True, source, CREDIT_STEP)
        assert credited(source.out) == [CREDIT_STEP] * (not missing)
        outlet.open_window(CREDIT_STEP + missing)
        assert credited(source.out) == [CREDIT_STEP] * missing


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
    assert credited(source.out) == [CREDIT_STEP]
    outlet.open_window(100)
    assert data_of(outlet) == [(3, 20, False)]


def test_data_that_leaves_at_once_is_counted_and_credited_in_one_step() -> None:
    outlet = Outlet()
    outlet.start()
    outlet.out.clear()
    for _ in range(CREDIT_STEP // 1024):
        outlet.relayed(1024)
    assert outlet.out == [http2.window_update(0, CREDIT_STEP)]
    assert outlet.outstanding == 0
    with pytest.raises(WireError, match="connection window"):
        outlet.relayed(PAIR_WINDOW + 1)


# ---- credit for DATA that the caller sends itself


@pytest.mark.parametrize(
    ("window", "stream_window", "length", "taken_"),
    [(10, 10, 10, True), (9, 10, 10, False), (10, 9, 10, False), (2**20, 2**20, http2.DEFAULT_FRAME_SIZE + 1, False)],
)
def test_credit_is_taken_whole_or_not_at_all(window: int, stream_window: int, length: int, taken_: bool) -> None:
    outlet = started()
    outlet.initial_window = stream_window
    outlet.govern(1)
    outlet.window = window
    assert outlet.take(1, length) == taken_
    assert outlet.window == window - (length if taken_ else 0)
    outlet.send_data(1, bytes(length), True, None, 0)
    assert outlet.waits(1) == (taken_ or length <= http2.DEFAULT_FRAME_SIZE)


def test_no_credit_is_taken_before_what_waits_nor_inside_a_frame() -> None:
    outlet = Outlet()
    outlet.govern(1)
    assert not outlet.take(1, 1)
    outlet.start()
    outlet.cut_through = True
    assert not outlet.take(1, 1)
    outlet.boundary()
    assert outlet.take(1, 1)
    outlet.open_stream_window(1, 2**17)
    outlet.send_data(1, bytes(2**17), True, None, 0)
    outlet.window = 1
    assert not outlet.take(1, 1)


def test_window_of_a_stream_that_has_ended_counts_no_more() -> None:
    outlet = started()
    outlet.govern(1)
    outlet.open_stream_window(1, http2.MAX_WINDOW - http2.DEFAULT_WINDOW)
    outlet.ungovern(1)
    outlet.govern(3)
    outlet.open_stream_window(3, 1)
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW - 1)])
    with pytest.raises(WireError, match=r"2\^31-1"):
        outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW)])
