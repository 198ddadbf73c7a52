"""How much of what serves nobody a peer of a CRI connection may send: one table, and the counting by it.

Owns the limits, their sources, the counters of one connection.
Must not know: bytes, sockets, what a frame is for; the clock is handed in.
Invariant: what a peer can make us keep is bounded, and no legal use comes near a limit: one connection carries all
probes of a node, 1,000 streams at once and 10,000 cancels as fast as they come (facts/reliability S3, S4).

The figures of Envoy (facts/reliability 1.7) are for clients that nobody knows: half of 500 streams cancelled within a
second would end a kubelet that stops its probes. Here only a rate ends a connection that no use of CRI has: what is
below it costs the proxy a small part of a core. ``wire.flow`` has the limits of what waits for a peer's credit,
``wire.headers`` that of a block's fields.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2


@dataclass(frozen=True, slots=True)
class Bound:
    """``burst`` at once, then as many as ``a_second`` and ``a_stream`` give for each second and stream since."""

    kind: str
    """The name in metrics."""
    what: str
    burst: int
    a_second: int
    a_stream: int = 0


# Rapid reset and MadeYouReset: whoever ends the stream, the runtime's work for it may go on (CVE-2023-44487,
# CVE-2025-8671). The burst is twice S4's 10,000 cancels.
EARLY_ENDS = Bound("early_ends", "streams that end before their answer", 20_000, 1_000)
# A sane peer sends them one to a stream (a reset behind an answer), or one to a DATA frame (credit). Envoy closes above
# 1,000 that are queued, and above 10 WINDOW_UPDATE to a DATA frame.
LATE_RESETS = Bound("resets", "resets of streams that have ended", 10_000, 10_000, 20)
CREDITS = Bound("window_updates", "WINDOW_UPDATE frames", 10_000, 10_000, 20)
PRIORITIES = Bound("priorities", "PRIORITY frames", 10_000, 10_000, 20)
UNKNOWN = Bound("unknown_frames", "frames of unknown types", 10_000, 10_000, 20)
# Each is answered, here or by the other end: twice the work. The PINGs by which grpc-go measures may be as many as its
# DATA frames, but it waits for the answer to one before it sends the next.
PINGS = Bound("pings", "PING frames", 1_000, 10_000, 20)
# Envoy lets one empty frame in a row pass. The one that ends a stream is usual.
EMPTY_DATA = Bound("empty_data", "DATA frames without data", 1_000, 1_000, 20)
# SETTINGS and their ACKs: grpc-go sends a new window when it has measured, that is a few times in all.
SETTINGS = Bound("settings", "SETTINGS frames", 1_000, 100)
GOAWAYS = Bound("goaways", "GOAWAY frames", 100, 10)

RUNTIME_TIMES = 2
"""The runtime may send so many times what the client may: it was put there by the node's owner, and answers many."""

BLOCK_BYTES = 65_536
"""Longest header block, also while it is not whole. Envoy: 60 KiB; gRPC libraries announce 8 to 16 KiB."""
BLOCK_FRAMES = 512
"""Most frames of a header block (CONTINUATION flood, CVE-2024-27316). Envoy: 512."""
COLLECTED_BYTES = BLOCK_BYTES + 261
"""Longest frame but DATA: a block's, with padding and priority."""
OPEN_STREAMS = 10_000
"""Most streams that are open on a connection: ten times what S3 asks for; grpc-go's servers set no limit."""
HELD_TRAILERS_BYTES = 4_096
"""Longest trailers of a request that is held: no gRPC client sends any."""
FIELD_BYTES = 64
"""How much is kept of a header field of a held call: no value that means anything is longer than 22 bytes."""
EARLY_BYTES = 1 << 20
"""What is kept of an answer to a request that was not sent yet: servers answer that with a status, if at all."""
REPLY_BYTES = 1 << 20
"""Longest answer to a held call that is read: CRI's hold an id."""
IMAGE_STREAMS_UNTIL_TOLD = 1_000
"""Most streams to an image service that has not said yet how many it takes: S3's number. grpc-go: 100."""
UNREAD_BYTES = 4 << 20
"""What a client that reads nothing may make us answer to its own frames. Envoy: 10,000 frames that are queued."""
PIECE_BYTES = 512
"""What each of these answers counts beside its bytes: what keeping it costs."""
IMAGE_BYTES = 4 << 20
"""What may wait for an image service that reads nothing: the 1 MiB of DATA that have credit, headers and resets."""


class Excess(WireError):
    """A peer went beyond a bound; ``kind`` names it in metrics, ``code`` is HTTP/2's."""

    def __init__(self, kind: str, text: str, code: int = http2.ENHANCE_YOUR_CALM) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


def verdict(error: WireError) -> tuple[str, int]:
    """Return the name in metrics of what a peer did wrong, and HTTP/2's error code for it."""
    return (error.kind, error.code) if isinstance(error, Excess) else ("protocol", http2.PROTOCOL_ERROR)


class Budget:
    """What is left of a bound. The clock is looked at only when nothing is left."""

    __slots__ = ("_bound", "_clock", "_opened", "_since", "_streams", "_times", "left")

    def __init__(
        self, bound: Bound, clock: Callable[[], float], opened: Callable[[], int] = int, times: int = 1
    ) -> None:
        self._bound = bound
        self._clock = clock
        self._opened = opened
        self._times = times
        self.left = bound.burst * times
        self._since = clock()
        self._streams = opened()

    def take(self) -> None:
        """Count one. Raises Excess."""
        self.left -= 1
        if self.left < 0:
            self.refill()

    def refill(self) -> None:
        """Count one more than was left. Raises Excess."""
        now, streams, bound = self._clock(), self._opened(), self._bound
        more = (now - self._since) * bound.a_second + (streams - self._streams) * bound.a_stream
        if more < 1:
            raise Excess(bound.kind, f"too many {bound.what}")
        self._since, self._streams = now, streams
        self.left = int(min(more, bound.burst) * self._times) - 1


class Budgets:
    """What one peer may still send; ``early`` is the connection's, whichever peer ends a stream."""

    __slots__ = ("early", "empty", "frames", "late", "other")

    def __init__(self, early: Budget, clock: Callable[[], float], opened: Callable[[], int], times: int = 1) -> None:
        self.early = early
        self.empty = Budget(EMPTY_DATA, clock, opened, times)
        self.late = Budget(LATE_RESETS, clock, opened, times)
        self.other = Budget(UNKNOWN, clock, opened, times)
        self.frames = {kind: Budget(bound, clock, opened, times) for kind, bound in _BY_FRAME.items()}

    def frame(self, kind: int) -> None:
        """Count a frame that only manages the connection. Raises Excess."""
        budget = self.frames.get(kind, self.other)
        budget.left -= 1
        if budget.left < 0:
            budget.refill()


_BY_FRAME = {
    http2.PRIORITY: PRIORITIES,
    http2.SETTINGS: SETTINGS,
    http2.PING: PINGS,
    http2.GOAWAY: GOAWAYS,
    http2.WINDOW_UPDATE: CREDITS,
}


class Unread:
    """What was sent to a peer in answer to its own frames while it read nothing."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int, delivered: bool) -> None:
        """Count an answer of ``size`` bytes; ``delivered``: all that went before has left. Raises Excess."""
        self._bytes = 0 if delivered else self._bytes + size + PIECE_BYTES
        if self._bytes > UNREAD_BYTES:
            raise Excess("unread", "it reads nothing of what its own frames are answered")
