"""The breaker of one plugin: a hook server that hangs or breaks off is not called for a while (fault matrix H10).

Invariant: while it is open no attempt is admitted; while it is half open one at a time is. An attempt admitted before
the state changed, or before another server took the socket, says nothing about the time after it.
"""

from collections.abc import Hashable
from enum import Enum

from runtimeproxy.errors import Reason

FAILURES_IN_A_ROW = 5
OPEN_SECONDS = 30.0
"""Seconds that it is open the first time; n times as long at its n-th opening without a good answer in between."""
LONGEST_SECONDS = 300.0

_SICK = frozenset({Reason.DEADLINE, Reason.BROKEN_ANSWER})
"""Failures that count: they cost time or a connection, whatever the call was about."""
_WELL = frozenset({None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER})
"""Results that close the breaker: any answer counts, whatever it says of one pod, since the hooks of all others must
not be lost for it.

The remaining reasons change nothing: a socket that is missing costs no time, and the next call looks again anyway.
"""


class BreakerState(Enum):
    """CLOSED: all calls are admitted. OPEN: none. HALF_OPEN: one at a time, to probe the server."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Admits attempts and records their results; ``now`` is in seconds, always of the same clock."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.seconds = 0.0
        """How long it was opened for, the last time, in seconds."""
        self._until = 0.0
        self._failures = 0
        self._openings = 0
        self._trying = False
        self._server: Hashable = None
        self._era = 0

    def admit(self, server: Hashable, now: float) -> int | None:
        """Return the number of an attempt; None if the hook server must not be asked now. ``server`` must stay equal as
        long as the same process has the socket: a new one is probed at once. An attempt must be ended by ``end``."""
        if server != self._server:  # unless the breaker was closed, one call probes the new server first
            self._server, self._failures, self._openings = server, 0, 0
            self._become(BreakerState.CLOSED if self.state is BreakerState.CLOSED else BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN and now >= self._until:
            self._become(BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN or self._trying:
            return None
        self._trying = self.state is BreakerState.HALF_OPEN
        return self._era

    def end(self, attempt: int, reason: Reason | None, now: float) -> None:
        """Record the result of an attempt: the reason of its failure, None for a good answer."""
        if attempt != self._era:
            return
        self._trying = False
        if reason in _WELL:
            self._failures = self._openings = 0
            if self.state is not BreakerState.CLOSED:
                self._become(BreakerState.CLOSED)
        elif reason in _SICK:
            self._failures += 1
            if self.state is BreakerState.HALF_OPEN or self._failures == FAILURES_IN_A_ROW:
                self._openings += 1
                self.seconds = min(self._openings * OPEN_SECONDS, LONGEST_SECONDS)
                self._until = now + self.seconds
                self._become(BreakerState.OPEN)

    def seconds_left(self, now: float) -> float:
        """Return for how many seconds the server will not even be probed."""
        return max(self._until - now, 0.0) if self.state is BreakerState.OPEN else 0.0

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._trying = False
        self._era += 1
