"""What the requests of all held calls keep in memory together: one count for the process, and its limit.

Owns how many bytes there are (relay-rules A4).
Must not know: what a request is, how it comes, when it leaves.
Invariant: a request is counted until its call is over, one that nobody has read until it has left.
"""

PROCESS_LIMIT = 64 * 2**20
"""Bytes of held requests in the whole process."""
NO_ROOM = "too many bytes are held in the whole process"


class MemoryBudget:
    """Counts the bytes."""

    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self.limit = limit
        self.count = 0

    def add(self, length: int) -> bool:
        """Count bytes of a request; False if there is no room for them."""
        self.count += length
        return self.count <= self.limit

    def free(self, length: int) -> None:
        """Count so many bytes no more: nothing of them is kept."""
        self.count -= length
