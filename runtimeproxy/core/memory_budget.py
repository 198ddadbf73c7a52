"""The memory of all held requests together: one count for the process, and its limit (relay-rules A4).

Owns how many bytes there are.
Must not know: what a request is, how it comes, when it leaves.
Invariant: a request is counted until its call is over; one that is never decoded, only until it has left.
"""

PROCESS_LIMIT = 64 * 2**20
"""Bytes of held requests in the whole process."""
NO_ROOM = "too many bytes are held in the whole process"


class MemoryBudget:
    """Counts the bytes of held requests against a limit."""

    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self.limit = limit
        self.count = 0

    def add(self, length: int) -> bool:
        """Count bytes of a request; return False if the limit is exceeded."""
        self.count += length
        return self.count <= self.limit

    def credit(self, length: int) -> None:
        """Subtract bytes that are no longer kept; ``wire.flow`` calls it once DATA has been sent."""
        self.count -= length
