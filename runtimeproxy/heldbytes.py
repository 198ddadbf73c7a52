"""What the requests of all held calls keep in memory together: one count for the process, and its limit.

Owns how many bytes there are, and which request is given up where there is no room for all (relay-rules A4).
Must not know: what a request is, how it comes, when it leaves.
Invariant: a request is counted until its call is over, one that nobody has read until it has left; one that is slow to
come never keeps a shorter one from being read.
"""

from typing import Protocol

PROCESS_LIMIT = 64 * 2**20
"""Bytes of held requests in the whole process."""
NO_ROOM = "too many bytes are held in the whole process"


class Coming(Protocol):
    """A held request of which more is to come."""

    def give_up(self, problem: str) -> None:
        """Be a request that cannot be read: there is no room for it."""


class HeldBytes:
    """Counts the bytes; the last quarter of ``limit`` is kept free of requests that are still coming."""

    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self.limit = limit
        self.count = 0
        self._coming: dict[Coming, int] = {}
        self._leaving: dict[Coming, int] = {}
        """What has given up goes on unread, and is counted until it has left."""

    def add(self, request: Coming, length: int) -> bool:
        """Count bytes more of a request that is still coming; False if there is no room for them.

        Where room runs short the longest that is still coming gives up: whoever stalls inside of a long one would keep
        the requests of all others from being read.
        """
        self.count += length
        self._coming[request] = self._coming.get(request, 0) + length
        if self.count - sum(self._leaving.values()) > self.limit - self.limit // 4:
            longest = max(self._coming, key=self._coming.__getitem__)
            if longest is not request:
                self._leaving[longest] = self._coming.pop(longest)
                longest.give_up(NO_ROOM)
        return self.count <= self.limit

    def whole(self, request: Coming) -> None:
        """Know that nothing more of a request comes; it stays counted. Repeatable."""
        self._coming.pop(request, None)

    def free(self, request: Coming, length: int) -> None:
        """Count so many bytes of a request no more: nothing of it is kept."""
        self.whole(request)
        self._leaving.pop(request, None)
        self.count -= length
