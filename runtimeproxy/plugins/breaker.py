"""The breaker of one plugin: a hook server that hangs or breaks off is not asked for a while (fault matrix H10).

Owns which failures count, how many in a row open the breaker, for how long, and who tries whether the server is well.
Must not know: clocks, sockets, policies, what is done instead of asking.
Invariant: while it is open nobody is let in; while it is half open one at a time is. What was let in before the state
changed, or before another server took the socket, says nothing about the time after it.
"""

from collections.abc import Hashable
from enum import Enum

from runtimeproxy.errors import Reason

FAILURES_IN_A_ROW = 5
OPEN_SECONDS = 30.0
"""How long it is open at first; so many times longer with each time that it opens without an answer between."""
LONGEST_SECONDS = 300.0

_SICK = frozenset({Reason.DEADLINE, Reason.BROKEN_ANSWER})
"""These cost time or a connection, whatever was asked about."""
_WELL = frozenset({None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER})
"""An answer is an answer, whatever it says of one pod: it must not take the hooks from all the others. All other
reasons say nothing: a socket that is not there costs nothing, and the next call looks again by itself."""


class BreakerState(Enum):
    """Closed: everybody is asked. Open: nobody. Half open: one at a time, to see whether the server is well."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Lets attempts in and is told what came of them; ``now`` is any clock's seconds, always the same clock's."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.seconds = 0.0
        """How long it was opened for, the last time."""
        self._until = 0.0
        self._failures = 0
        self._openings = 0
        self._trying = False
        self._server: Hashable = None
        self._era = 0

    def admit(self, server: Hashable, now: float) -> int | None:
        """Return the number of an attempt, None if the hook server is not to be asked now.

        ``server`` is equal as long as the same one has the socket: another one is tried at once. An attempt must be
        ended by ``end``.
        """
        if server != self._server:
            self._meet(server)
        if self.state is BreakerState.OPEN and now >= self._until:
            self._become(BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN or self._trying:
            return None
        self._trying = self.state is BreakerState.HALF_OPEN
        return self._era

    def end(self, attempt: int, reason: Reason | None, now: float) -> None:
        """Take what came of an attempt: why it failed, None for a good answer."""
        if attempt != self._era:
            return
        self._trying = False
        if reason in _WELL:
            if self._failures or self._openings or self.state is not BreakerState.CLOSED:
                self._close()
        elif reason in _SICK:
            self._fail(now)

    def seconds_left(self, now: float) -> float:
        """Return how long the server is not even tried."""
        return max(self._until - now, 0.0) if self.state is BreakerState.OPEN else 0.0

    def _meet(self, server: Hashable) -> None:
        """Forget the server before this one; after a sick one, the new one is tried by one call."""
        self._server = server
        self._forget()
        self._become(BreakerState.CLOSED if self.state is BreakerState.CLOSED else BreakerState.HALF_OPEN)

    def _close(self) -> None:
        self._forget()
        if self.state is not BreakerState.CLOSED:
            self._become(BreakerState.CLOSED)

    def _fail(self, now: float) -> None:
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures == FAILURES_IN_A_ROW:
            self._openings += 1
            self.seconds = min(self._openings * OPEN_SECONDS, LONGEST_SECONDS)
            self._until = now + self.seconds
            self._become(BreakerState.OPEN)

    def _forget(self) -> None:
        self._failures = self._openings = 0

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._trying = False
        self._era += 1
