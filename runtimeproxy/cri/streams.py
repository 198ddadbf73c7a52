"""The streams of one pair of connections that do not pass unchanged, and what all pairs of a front share.

Owns which streams are handled, and for how long late frames of ended ones are dropped.
Must not know: sockets, what is done on a stream.
Invariant: bytes go out by the two senders only.
"""

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from runtimeproxy.core.memory_budget import MemoryBudget
from runtimeproxy.cri.frames import Stream
from runtimeproxy.cri.local_answer import LocallyAnsweredStream
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire.flow import FlowControlledSender

RETIRED_LIMIT = 1_000
"""Ended streams that are remembered, so that late frames on them do not reach a peer that never got the stream."""


class Open(Enum):
    """The state of a passing stream: no answer yet, its answer has begun, or it has no end (``goaway.ENDLESS``)."""

    ASKED = "asked"
    ANSWERING = "answering"
    ENDLESS = "endless"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of a front share."""

    budget: MemoryBudget
    clock: Callable[[], float]
    """The event loop's clock."""
    counters: MutableMapping[Key, int]
    """The calls that passed, by their series; a series is there before ``FromClient.passed`` counts it."""
    kinds: Mapping[Operation, Callable[..., Any]]
    """The class of held call for each operation."""
    image_apart: bool
    start_and_stop_pass: Callable[[], bool]
    """Return whether a start or a stop passes without being held."""
    passes_ambiguous: Callable[[], bool]
    """Called for a request without exactly one :path: return whether it passes."""
    restore_refusal: Callable[[], str]
    """Called for a RestorePod: return why it is refused, "" if it passes."""


class Streams:
    """The streams of a pair that are handled, by number."""

    def __init__(self, shared: Shared, wake: Callable[[], None]) -> None:
        self.shared = shared
        self.wake = wake
        """Called when there are bytes to send outside of a read: write them."""
        self.client_out = FlowControlledSender()
        self.runtime_out = FlowControlledSender()
        self.streams: dict[int, Stream] = {}
        self.open: dict[int, Open] = {}
        """Passing streams that the runtime has not ended."""
        self.highest = 0
        """Highest id of a stream that was sent to the runtime."""
        self.ready: deque[object] = deque()
        """What the connection has to act on after the read: held calls to start or to resume, and ``reader`` events."""
        self._retired: deque[int] = deque()

    def forget(self, stream: int) -> None:
        """Stop handling a stream: its frames pass unchanged from now on."""
        self.streams.pop(stream, None)
        self.runtime_out.forget_window(stream)

    def drop(self, stream: int) -> None:
        """Drop what still comes on a stream that the proxy answered itself."""
        self.runtime_out.forget_window(stream)
        self.streams[stream] = LocallyAnsweredStream(self.client_out, self.runtime_out)
        self.retire(stream)

    def answer(self, stream: int, frames: bytes) -> None:
        """Answer a request in the server's place, and drop what still comes on its stream."""
        self.client_out.inject(frames)
        self.drop(stream)

    def retire(self, stream: int) -> None:
        """Remember an ended stream until RETIRED_LIMIT others have ended and nothing of it waits for the client."""
        self._retired.append(stream)
        if len(self._retired) > RETIRED_LIMIT:
            oldest = self._retired.popleft()
            if self.client_out.waits(oldest):
                self._retired.append(oldest)
            else:
                self.streams.pop(oldest, None)
                self.client_out.forget_window(oldest)
