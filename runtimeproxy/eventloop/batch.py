"""Calls whose bytes arrived in one read are resumed together, and what they write leaves together.

Owns which writes wait for other calls of the same read, and which calls are resumed after it.
Must not know: sockets, what is written, what a call is.
Invariant: a write waits for the resumption of the last call of its read and no longer, so a single call never waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

Action = Callable[[], None]


class Batch(threading.local):
    """The calls of the read that a thread handles."""

    def __init__(self) -> None:
        self._resuming = False
        self._more = False
        """True while another call of the read is still to be resumed."""
        self._writes: dict[Action, None] = {}
        self._followers: list[Action] = []

    def defers(self, write: Action) -> bool:
        """Return whether a write has to wait; it is then called later, once even if it was deferred several times."""
        if self._more:
            self._writes[write] = None
        return self._more

    def follows(self, resume: Action) -> bool:
        """Return whether ``resume`` will be called after the calls of this read; False outside of them, and in such a
        follower, so that a read does not last as long as there are calls that wait for one another."""
        if self._resuming:
            self._followers.append(resume)
        return self._resuming

    def each(self, calls: deque[T]) -> Iterator[T]:
        """Return the calls of a read in order, for the caller to resume; their writes leave with those of the last one,
        or right after it."""
        try:
            self._resuming = True
            while calls:
                call = calls.popleft()
                self._more = bool(calls)
                yield call
        finally:
            self._resuming = self._more = False
            writes, self._writes = self._writes, {}
            followers, self._followers = self._followers, []
            for action in (*writes, *followers):
                action()


batch = Batch()
