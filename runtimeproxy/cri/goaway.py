"""The end of a client's connection (GOAWAY): its last stream id, and the streams that are not finished.

Owns the last stream id that was sent to the client, what becomes of newer streams, and how far passing ones are.
Must not know: sockets, hook servers, the clock, why the connection ends.
Invariant: the last stream id never rises; a stream that is refused was never sent to the runtime (relay-rules A11).
"""

from collections import Counter
from collections.abc import MutableMapping

from runtimeproxy.cri.frame_relay import Open, Streams, refusal
from runtimeproxy.cri.held import held_calls
from runtimeproxy.cri.image import ImageStream
from runtimeproxy.cri.routes import VERSIONS, runtime_path
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import grpc, http2

ENDLESS: frozenset[bytes] = frozenset(runtime_path(version, "GetContainerEvents").encode() for version in VERSIONS)
"""Paths of methods that stream without end; before the first event only the path tells one from a unary call."""

GONE = "the runtime ended its connection before it answered"


class Goaway:
    """The end of one client's connection."""

    def __init__(self, owner: Streams, known: MutableMapping[bytes, Key]) -> None:
        self.last = http2.MAX_STREAM_ID
        """The last stream id that was sent to the client; streams that it opens above are refused."""
        self.highest_image = 0
        """Highest stream id that was sent to the image endpoint."""
        self._owner = owner
        self._known = known
        """The header blocks with which the client's requests pass."""
        self._announced = False
        self._refusing = False

    def runtime_goaway(self, payload: bytes, frame: bytes) -> bytes:
        """Return the GOAWAY to send the client for the runtime's.

        Its last stream id is raised to the highest image stream, but never above one that was sent before. Calls above
        the runtime's own id are reset with REFUSED_STREAM.
        """
        owner, own = self._owner, http2.read_u32(payload)
        lost = [held for held in held_calls(owner) if held.stream > own]
        for held in lost:
            held.connection_lost()
        above = [stream for stream in owner.open if stream > own]
        for stream in above:
            del owner.open[stream]
        self._end_at(max(own, self.highest_image))
        if self.last > own:
            for stream in sorted([*above, *(held.stream for held in lost)]):
                owner.client_out.inject(http2.rst_stream(stream, http2.REFUSED_STREAM))
        return frame if self.last == own else http2.goaway(self.last, http2.read_u32(payload, 4), payload[8:])

    def runtime_gone(self) -> None:
        """End each call whose answer will not come, or not to its end; the client's connection stays open."""
        owner = self._owner
        for stream, how in owner.open.items():
            owner.client_out.send_frame(stream, _no_answer(stream, how is not Open.UNANSWERED))
        owner.open.clear()
        for held in held_calls(owner):
            if not held.kept:
                owner.client_out.send_frame(held.stream, _no_answer(held.stream, held.is_answering))

    def drain(self, refusing: bool) -> None:
        """Ask the client by GOAWAY to open no more streams; with ``refusing`` name the last one. May be repeated.

        A client that has opened no stream yet has connected for a call that is still to come, and gets no GOAWAY until
        ``refusing``.
        """
        if not self._announced and (refusing or self._owner.highest or self.highest_image):
            self._announced = True
            self._tell()
        if refusing and not self._refusing:
            self._refusing = True
            self._end_at(max(self._owner.highest, self.highest_image))
            self._tell()

    def _end_at(self, last: int) -> None:
        self.last = min(self.last, last)
        self._known.clear()  # a new stream must no longer pass because of its remembered headers

    def _tell(self) -> None:
        self._owner.client_out.inject(http2.goaway(self.last, http2.NO_ERROR))

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many calls wait for their answers, how many answers have begun, and how many streams are endless.

        A complete answer that waits for the client's credit counts among the first. Image calls that wait for the
        image service are not counted.
        """
        owner = self._owner
        count = Counter(owner.open.values())
        waiting = owner.client_out.queues.keys() - owner.open.keys() - owner.streams.keys()
        for stream in owner.client_out.queues:
            if isinstance(image := owner.streams.get(stream), ImageStream) and image.ended:
                waiting.add(stream)
        return (
            len(held_calls(owner)) + count[Open.UNANSWERED] + len(waiting),
            count[Open.ANSWERING],
            count[Open.ENDLESS],
        )


def _no_answer(stream: int, begun: bool) -> bytes:
    """Build the frames that end an unanswered call: UNAVAILABLE, or RST_STREAM once its answer has begun."""
    return http2.rst_stream(stream, http2.CANCEL) if begun else refusal(stream, grpc.UNAVAILABLE, GONE, False)
