"""Sending to one peer of a relay, and the credit given to that peer (RFC 9113, 5.2 and 6.9; relay-rules A3, A4, A8).

Here are also the stream windows that are hop by hop, and the state of the peer's PINGs.
Invariant: bytes of one stream leave in the order in which they were given. Nothing is inserted into a frame that is cut
through, nor before the first SETTINGS. No more DATA leaves than the peer's windows allow.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import inf
from typing import Protocol

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2

PAIR_WINDOW = 2**20
"""Most bytes of DATA that may wait in each direction of a pair: the connection window that is opened to each peer."""
CREDIT_STEP = 2**18
"""Connection credit is returned in steps of this many bytes."""
QUEUED_FRAMES = 16_384
"""Most frames queued for a peer, over all streams: one costs far more memory than its bytes. Envoy: 10,000."""
QUEUED_SETTINGS = 2_500
"""Most SETTINGS that wait for their ACK."""
QUEUED_BYTES = 4 << 20
"""Most bytes of queued frames without flow control: trailers and resets behind their stream's DATA."""
MERGED_BYTES = 4_096
"""DATA payloads that wait one behind the other are merged up to so many bytes. A client that opens no window may wait
long; merged, what its credit allows stays within few frames."""


class Source(Protocol):
    """Interface of a giver of DATA, which gets the credit once the DATA have left or were dropped."""

    def credit(self, length: int) -> None: ...


class FlowControlledSender:
    """The frames for one peer that wait for credit or a frame boundary, and the credit of that peer."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        """Bytes ready for the socket, in order."""
        self.window = http2.DEFAULT_WINDOW
        """How many bytes of DATA the peer still accepts on the connection."""
        self.initial_window = http2.DEFAULT_WINDOW
        self._announced = deque([(http2.DEFAULT_WINDOW, http2.DEFAULT_FRAME_SIZE)])
        """INITIAL_WINDOW_SIZE and MAX_FRAME_SIZE as last acknowledged, then those of each later SETTINGS."""
        self.max_frame = http2.DEFAULT_FRAME_SIZE
        """Longest frame that may be sent to the peer now."""
        self.frame_limit = http2.DEFAULT_FRAME_SIZE
        """Longest frame that may be on its way to the peer: the largest size that it ever allowed."""
        self.cut_through = False
        """True while a DATA frame is only partly written."""
        self.outstanding = 0
        """Bytes of DATA received from the peer and not yet credited back."""
        self.heard = -inf
        """When bytes of the peer were read last, in seconds on the reader's clock."""
        self.acks: list[bytes] = []
        """The ACKs of the peer's PINGs, which wait to be sent together with other data."""
        self.passed = 0
        """How many PINGs of the peer have passed and were not acknowledged yet."""
        self._owed = 0
        self._started = False
        self._between: list[bytes] = []
        self._queued_frames = 0
        self._queued_bytes = 0
        self.overfull = False
        """True once more is queued than allowed; the connection must be ended then."""
        self.queues: OrderedDict[int, deque[_Waiting]] = OrderedDict()
        """What waits for the peer's credit, by stream."""
        self.stream_windows: dict[int, int] = {}
        """The streams whose windows are hop by hop: the difference of each from INITIAL_WINDOW_SIZE, 0 to begin with.
        It may be negative."""
        self.widened = False
        """True while ``catch_up`` is due."""

    # Sending to the peer.

    def start(self) -> None:
        """Note that the first SETTINGS were sent to the peer: open the pair's window, and let other frames follow."""
        if not self._started:
            self._started = True
            self._between.insert(0, http2.window_update(0, PAIR_WINDOW - http2.DEFAULT_WINDOW))
            self._put_between()
            self.drain()

    def inject(self, frames: bytes) -> None:
        """Send frames of the proxy's own at the next frame boundary, after the first SETTINGS."""
        self._between.append(frames)
        self._put_between()
        if len(self._between) > QUEUED_FRAMES:
            self.overfull = True

    def acknowledge(self) -> None:
        """Send the queued ACKs of PINGs, if a frame may be inserted now."""
        if self._started and not self.cut_through:
            self.out += self.acks
            self.acks.clear()

    def boundary(self) -> None:
        """Note that the frame that was cut through is complete."""
        self.cut_through = False
        self.acknowledge()
        self._put_between()
        self.drain()

    def _put_between(self) -> None:
        if self._started and not self.cut_through:
            self.out += self._between
            self._between.clear()

    @property
    def waiting(self) -> bool:
        """Return whether anything is queued for the next frame boundary."""
        return bool(self._between or self.queues or self.acks)

    @property
    def congested(self) -> bool:
        """Return whether frames wait for the peer's credit."""
        return bool(self.queues)

    def send_data(self, stream: int, payload: bytes, end: bool, source: Source | None, charge: int) -> None:
        """Send DATA as the windows allow, split as needed, or queue it behind what waits of its stream. ``charge``
        bytes are credited to ``source`` once the payload has left (None: they were credited before).
        """
        length, beyond = len(payload), self.stream_windows.get(stream)
        room = min(self.window, self.max_frame)
        if beyond is not None:
            room = min(room, self.initial_window + beyond)
        if length > room or stream in self.queues or self.cut_through or not self._started:
            waiting = _Waiting(memoryview(payload), end, False, charge, source)
            if stream not in self.queues or not self.queues[stream][-1].merge(waiting):
                self._append(stream, waiting)
            return
        self.window -= length
        if beyond is not None:
            self.stream_windows[stream] = beyond - length
        self.out.append(http2.frame(http2.DATA, http2.END_STREAM if end else 0, stream, payload))
        if source is not None:
            source.credit(charge)

    def send_frame(self, stream: int, frames: bytes, cost: int = 0, source: Source | None = None) -> None:
        """Send whole frames behind what is queued of their stream; ``cost`` is their flow-controlled length."""
        if cost > self.window or stream in self.queues or self.cut_through or not self._started:
            self._append(stream, _Waiting(frames, False, True, cost, source))
            return
        self.window -= cost
        self.out.append(frames)
        if source is not None:
            source.credit(cost)

    def _append(self, stream: int, waiting: "_Waiting") -> None:
        self.queues.setdefault(stream, deque()).append(waiting)
        self._queued_frames += 1
        self._queued_bytes += waiting.free
        self._send_stream(stream)
        if self._queued_frames > QUEUED_FRAMES or self._queued_bytes > QUEUED_BYTES:
            self.overfull = True

    def _send_stream(self, stream: int) -> None:
        while self._started and not self.cut_through and stream in self.queues and self._send_next(stream):
            pass

    def drop(self, stream: int) -> None:
        """Drop what is queued of a stream that was reset, and credit it."""
        for waiting in self.queues.pop(stream, ()):
            self._gone(waiting)

    def drop_all(self) -> None:
        """Drop all queues and the ACKs that wait, as the connection has ended."""
        self.acks.clear()
        for stream in list(self.queues):
            self.drop(stream)

    def _gone(self, waiting: "_Waiting") -> None:
        self._queued_frames -= 1
        self._queued_bytes -= waiting.free
        if waiting.source is not None:
            waiting.source.credit(waiting.charge)

    # Windows given by the peer.

    def forget_window(self, stream: int) -> None:
        """Forget the window of a stream that has ended, and what is queued of it."""
        if stream in self.queues:
            self.drop(stream)
        self.stream_windows.pop(stream, None)

    def settings_announced(self, entries: list[tuple[int, int]]) -> None:
        """Apply SETTINGS of the peer that another party acknowledges: what they lessen holds at once (relay-rules A4).

        What they raise holds behind their ACK: gRPC's C core resets a stream whose DATA come before it (tried). Raises
        WireError as ``apply_settings`` does.
        """
        initial, max_frame = self._announced[-1]
        for identifier, value in entries:
            if identifier == http2.INITIAL_WINDOW_SIZE:
                initial = value
            elif identifier == http2.MAX_FRAME_SIZE:
                max_frame = value
                self.frame_limit = max(self.frame_limit, value)
        self._announced.append((initial, max_frame))
        if len(self._announced) > QUEUED_SETTINGS:
            self.overfull = True
        self._obey()

    def settings_acknowledged(self) -> None:
        """Note that the peer is sent the ACK of its oldest SETTINGS without one."""
        if len(self._announced) > 1:
            self._announced.popleft()
            self._obey()

    def _obey(self) -> None:
        initial, max_frame = map(min, zip(*self._announced, strict=True))
        self.apply_settings([(http2.INITIAL_WINDOW_SIZE, initial), (http2.MAX_FRAME_SIZE, max_frame)])

    def apply_settings(self, entries: list[tuple[int, int]]) -> None:
        """Obey the peer's SETTINGS; ``catch_up`` sends what they allow. Raises WireError if a window exceeds 2^31-1."""
        for identifier, value in entries:
            if identifier == http2.MAX_FRAME_SIZE:
                self.max_frame = value
                self.frame_limit = max(self.frame_limit, value)
        initial = dict(entries).get(http2.INITIAL_WINDOW_SIZE, self.initial_window)  # the last one counts
        if initial + max(self.stream_windows.values(), default=0) > http2.MAX_WINDOW:
            raise _too_wide()
        self.widened |= initial > self.initial_window
        self.initial_window = initial

    def catch_up(self) -> None:
        """Send what wider stream windows allow; due once all bytes read from the peer are processed."""
        self.widened = False
        for stream in [stream for stream in self.queues if stream in self.stream_windows]:
            self._send_stream(stream)

    def open_window(self, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE on stream 0. Raises WireError."""
        if not increment:
            raise WireError("WINDOW_UPDATE of 0 on the connection")
        self.window += increment
        if self.window > http2.MAX_WINDOW:
            raise _too_wide()
        if self.queues:
            self.drain()

    def open_stream_window(self, stream: int, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE on a stream that is hop by hop; others are ignored. Raises WireError."""
        if stream in self.stream_windows:
            beyond = self.stream_windows[stream] + increment
            if self.initial_window + beyond > http2.MAX_WINDOW:
                raise _too_wide()
            self.stream_windows[stream] = beyond
            self._send_stream(stream)

    def drain(self) -> None:
        """Send what is queued, stream by stream in turn, as far as the windows allow."""
        if self.cut_through or not self._started:
            return
        stuck = 0
        while stuck < len(self.queues):
            stream = next(iter(self.queues))
            stuck += 1
            if self._send_next(stream):
                stuck = 0
            if stream in self.queues:
                self.queues.move_to_end(stream)

    def _send_next(self, stream: int) -> bool:
        queue = self.queues[stream]
        waiting = queue[0]
        if waiting.whole:
            if waiting.charge > self.window:
                return False
            self.window -= waiting.charge
            self.out.append(bytes(waiting.payload))
        elif not self._send_part(stream, waiting):
            return False
        elif waiting.payload:
            return True
        queue.popleft()
        self._gone(waiting)
        if not queue:
            del self.queues[stream]
        return True

    def _send_part(self, stream: int, waiting: "_Waiting") -> bool:
        payload = waiting.payload
        size = min(len(payload), self.window, self.max_frame)
        if stream in self.stream_windows:
            size = min(size, max(self.initial_window + self.stream_windows[stream], 0))
            self.stream_windows[stream] -= size
        if payload and not size:
            return False
        self.window -= size
        waiting.payload = payload[size:]
        end = waiting.end and not waiting.payload
        self.out.append(http2.frame(http2.DATA, http2.END_STREAM if end else 0, stream, bytes(payload[:size])))
        return True

    # Windows given to the peer.

    def received(self, length: int) -> None:
        """Count DATA that the peer sent. Raises WireError if it exceeds the connection window."""
        self.outstanding += length
        if self.outstanding > PAIR_WINDOW:
            raise WireError("DATA above the connection window")

    def relayed(self, length: int) -> None:
        """Count DATA that the peer sent and that leaves at once. Raises WireError above the connection window."""
        self.outstanding += length
        if self.outstanding > PAIR_WINDOW:
            raise WireError("DATA above the connection window")
        self._owed += length
        if self._owed >= CREDIT_STEP:
            self._pay()

    def credit(self, length: int) -> None:
        """Return credit for DATA that has left, was held or dropped, in steps of CREDIT_STEP."""
        self._owed += length
        if self._owed >= CREDIT_STEP:
            self._pay()

    def _pay(self) -> None:
        self.inject(http2.window_update(0, self._owed))
        self.outstanding -= self._owed
        self._owed = 0


@dataclass(slots=True)
class _Waiting:
    """One item of a stream's queue: ``whole`` frames, or a payload that may be split."""

    payload: bytes | memoryview
    """What has not left yet; a memoryview where it leaves in parts, so that the rest is never copied."""
    end: bool
    whole: bool
    charge: int
    source: Source | None

    @property
    def free(self) -> int:
        """Return the number of queued bytes without flow control."""
        return len(self.payload) if self.whole and not self.charge else 0

    def merge(self, later: "_Waiting") -> bool:
        """Append a later item's payload and return True if both are short and of the same source; else return False."""
        size = len(self.payload) + len(later.payload)
        if self.whole or self.end or self.source is not later.source or size > MERGED_BYTES:
            return False
        self.payload = memoryview(bytes(self.payload) + later.payload)
        self.end = later.end
        self.charge += later.charge
        return True


def _too_wide() -> WireError:
    return WireError("flow control window above 2^31-1")
