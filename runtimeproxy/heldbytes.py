"""What the requests of all held calls keep in memory together: one count for the process, and its limit.

Owns how many bytes there are, and which request is given up where there is no room for all (relay-rules A4).
Must not know: what a request is, how it comes, when it leaves.
Invariant: a request is counted until its call is over, one that nobody has read until it has left; one that is slow to
come keeps none of half its length from being read. Nothing here takes longer the more requests there are.
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
        """How long those are by now that are still coming."""
        self._by_length: list[dict[Coming, None]] = [{} for _ in range(limit.bit_length() + 1)]
        """The same requests, by the number of bits of their lengths."""
        self._given_up: dict[Coming, int] = {}
        """They go on unread, and are counted until they have left."""
        self._leaving = 0

    def add(self, request: Coming, length: int) -> bool:
        """Count bytes of a request; False if there is no room for them.

        Where room runs short one of the longest that are still coming gives up: whoever stalls inside of a long one
        would keep the requests of all others from being read.
        """
        self.count += length
        if self.count - self._leaving > self.limit - self.limit // 4:
            self._make_room(request, self._coming.get(request, 0) + length)
        return self.count <= self.limit

    def comes(self, request: Coming, length: int) -> None:
        """Know that more is to come of a request, whose first ``length`` bytes have been counted."""
        self.whole(request)
        self._coming[request] = length
        self._by_length[length.bit_length()][request] = None

    def whole(self, request: Coming) -> None:
        """Know that nothing more of a request comes; it stays counted. Repeatable."""
        length = self._coming.pop(request, None)
        if length is not None:
            del self._by_length[length.bit_length()][request]

    def free(self, request: Coming, length: int) -> None:
        """Count so many bytes of a request no more: nothing of it is kept."""
        self.whole(request)
        self._leaving -= self._given_up.pop(request, 0)
        self.count -= length

    def _make_room(self, request: Coming, length: int) -> None:
        """Have one of the longest give up, unless that is the request itself."""
        for alike in self._by_length[: length.bit_length() - 1 : -1]:
            for longest in alike:
                if longest is not request:
                    self._given_up[longest] = self._coming[longest]
                    self._leaving += self._coming[longest]
                    self.whole(longest)
                    longest.give_up(NO_ROOM)
                    return
