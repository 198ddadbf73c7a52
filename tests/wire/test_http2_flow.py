"""One peer's sender (relay-rules A3, A4, A8): a model of the peer uses it at random, other rules are tested one by one.

hyperframe parses what is sent.
"""

from collections.abc import Callable

import pytest
from hyperframe.frame import DataFrame, PingFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from runtimeproxy.wire.http2 import CREDIT_STEP, MERGED_BYTES, PAIR_WINDOW, QUEUED_BYTES, FlowControlledSender
from tests.amounts import examples
from tests.wire.frames import clear_credits, clear_frames

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
    return [(frame.stream_id, len(frame.data), "END_STREAM" in frame.flags) for frame in clear_frames(sender.out)]


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


def test_lower_settings_apply_immediately_and_higher_after_ack() -> None:
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


def test_streams_are_sent_round_robin() -> None:
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
    "frames of all streams": (
        lambda sender, number: sender.send_frame((1, 3)[number % 2], b""),
        http2.QUEUED_FRAMES - 3,
    ),
    "bytes without flow control": (
        lambda sender, number: sender.send_frame(3, bytes(QUEUED_BYTES // 4 if number < 4 else 1)),
        4,
    ),
    "own frames": (lambda sender, _: sender.inject(PING), http2.QUEUED_FRAMES),
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
def test_sent_or_dropped_frames_are_not_counted(
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
def test_window_above_limit_is_refused(increment: int) -> None:
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


def test_peer_can_use_full_connection_window() -> None:
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
    assert clear_credits(source.out) == [CREDIT_STEP + 2 * MERGED_BYTES]
    sender = waiting_for_credit(1)
    sender.send_data(1, b"of another source", False, source, 0)
    sender.send_frame(1, TRAILERS)
    sender.send_data(1, b"after whole frames", True, None, 0)
    sender.send_data(1, b"after the end", True, None, 0)
    assert len(sender.queues[1]) == 5


WINDOWED, PASSING = (1, 3), 5
"""Streams whose windows are hop by hop, and one whose window is not."""
WHOLE = 3_000
"""Bytes of a frame that is never split."""
KINDS = ["data", "data", "whole", "trailers", "drop", "window", "stream window", "settings", "inject", "cut"]
ACTIONS = st.tuples(st.sampled_from(KINDS), st.sampled_from((*WINDOWED, PASSING)), st.sampled_from([1, 3_000, 100_000]))
FINAL_ACTIONS = [("cut", 1, 0), *(("stream window", stream, 2**24) for stream in WINDOWED), ("window", 1, 2**24)]


class Peer:
    """Queues data at the sender, and checks each sent frame as a peer by RFC 9113."""

    def __init__(self) -> None:
        self.sender, self.source = started(), started()
        self.sender.stream_windows.update(dict.fromkeys(WINDOWED, 0))
        self.window = self.initial = self.sender.window
        self.windows = dict.fromkeys(WINDOWED, self.initial)
        self.expected = {stream: bytearray() for stream in (*WINDOWED, PASSING)}
        """The bytes of each stream that have not arrived."""
        self.ended: set[int] = set()
        self.pings = self.given = self.returned = 0

    def act(self, kind: str, stream: int, size: int) -> None:
        match kind:
            case "data" if stream not in self.ended and self.given - self.returned + size <= PAIR_WINDOW:
                payload = bytes((self.given + place) % 251 for place in range(size))
                self.given += size
                self.expected[stream] += payload
                self.source.received(size)
                self.sender.send_data(stream, payload, False, self.source, size)
            case "whole" if stream in {PASSING} - self.ended and self.given - self.returned + WHOLE <= PAIR_WINDOW:
                self.given += WHOLE
                self.expected[stream] += bytes(WHOLE)
                self.source.received(WHOLE)
                self.sender.send_frame(stream, http2.frame(http2.DATA, 0, stream, bytes(WHOLE)), WHOLE, self.source)
            case "trailers" if stream not in self.ended and size == 1:
                self.ended.add(stream)
                self.sender.send_frame(stream, http2.header_frames(stream, b"\x88", True))
            case "drop" if size == 1:
                self.ended.add(stream)
                self.expected[stream].clear()
                self.sender.drop(stream)
            case "window":
                self.window += size
                self.sender.open_window(size)
            case "stream window":
                self.windows |= {id: window + size for id, window in self.windows.items() if id == stream}
                self.sender.open_stream_window(stream, size)
            case "settings":
                self.windows = {id: window + size - self.initial for id, window in self.windows.items()}
                self.initial = size
                self.sender.apply_settings([(http2.INITIAL_WINDOW_SIZE, size)])
                self.sender.catch_up()
            case "inject":
                self.pings += 1
                self.sender.inject(PING)
            case "cut" if self.sender.cut_through:
                self.sender.boundary()
            case "cut" if size:
                self.sender.cut_through = True

    def check(self) -> None:
        assert not self.sender.cut_through or not self.sender.out
        for frame in clear_frames(self.sender.out):
            self.pings -= isinstance(frame, PingFrame)
            if isinstance(frame, DataFrame):
                assert self.expected[frame.stream_id].startswith(frame.data)
                del self.expected[frame.stream_id][: len(frame.data)]
                self.window -= len(frame.data)
                if frame.stream_id in self.windows:
                    self.windows[frame.stream_id] -= len(frame.data)
                    assert self.windows[frame.stream_id] >= 0
        assert self.window == self.sender.window >= 0
        self.returned += sum(clear_credits(self.source.out))
        for stream, expected in self.expected.items():
            blocked = self.sender.cut_through or self.window < (WHOLE if stream == PASSING else 1)
            assert not expected or blocked or self.windows.get(stream, 1) <= 0, "DATA wait without a reason"


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(ACTIONS, max_size=60))
def test_data_arrive_in_order_within_windows(actions: list[tuple[str, int, int]]) -> None:
    peer = Peer()
    for action in [*actions, *FINAL_ACTIONS]:
        peer.act(*action)
        peer.check()
    assert not any(peer.expected.values())
    assert (peer.sender.congested, peer.pings) == (False, 0)
    assert peer.returned + peer.source.outstanding == peer.given
    assert peer.source.outstanding < CREDIT_STEP
