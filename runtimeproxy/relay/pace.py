"""How much is read of a peer at a time: what is dealt with in a moment.

Owns the size of the next read.
Must not know: sockets, what is read; the time is handed in.
Invariant: whatever a peer sends, the other connections have their turn soon (facts/reliability X1). Of what costs
nothing as it passes much is read at a time; of what costs much for each byte, like a flood of small frames, little is.
"""

FIRST_BYTES = 1024
"""Of a new peer, which has shown nothing yet: who floods, is cut off and connects anew must not be taken for a big one
each time. Most calls' requests are shorter."""
FEWEST_BYTES = 128
"""Of what costs most, streams that are opened and reset, these are two or three."""
SHORT_BYTES = 512
"""How long less than this takes is looked at only if it was all that was asked for: no calls are as cheap."""
STEP = 4
"""The next read is at most so many times larger or smaller: one read says little."""
LONG_SECONDS = 2e-4
BYTE_SECONDS = 2e-9
"""A read that takes longer than LONG_SECONDS, and what its bytes take to be copied, is followed by one that should take
half of it. One that takes less than half of it, and was all that was asked for, is followed by a larger one. It is time
of the processor: on a busy machine whoever was written to runs at once in our place, and by the clock lists, of which
most is read at a time, would look like floods."""


class Pace:
    """The reads of one peer; ``most`` is what its reader takes at a time, ``first`` what it begins with."""

    __slots__ = ("_most", "size")

    def __init__(self, most: int, first: int = FIRST_BYTES) -> None:
        self._most = most
        self.size = first
        """How much is to be read next, in bytes."""

    def took(self, size: int, seconds: float) -> None:
        """Know how much of the processor's time it took to deal with a read of ``size`` bytes."""
        long = LONG_SECONDS + size * BYTE_SECONDS
        if seconds > long:
            self.size = max(int(size * long / 2 / seconds), self.size // STEP, FEWEST_BYTES)
        elif size == self.size < self._most and seconds < long / 2:
            self.grow(STEP if seconds < long / STEP else 2)

    def grow(self, times: int = STEP) -> None:
        """Read more next."""
        self.size = min(self.size * times, self._most)
