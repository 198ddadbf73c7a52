"""A bounded cache of what is costly to decode or to encode again; Docker's front and the hook protocol share it.

Invariant: cached values are frozen, so a hit equals what would be made again.
"""

from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

ENTRY_BYTES = 512
"""Estimated bytes of an entry without its value: at least what key, place in the dict and objects around take."""


class Cache(dict[_K, _V]):
    """Values by key, looked up as in any dict; the oldest are evicted when all together would exceed ``most_bytes``. A
    value of more than an eighth of that is not cached: it would evict too many others."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._sizes: dict[_K, int] = {}
        self.bytes = 0

    def keep(self, key: _K, value: _V, value_bytes: int) -> _V:
        """Cache a value of so many bytes if it is small enough; return it."""
        size = value_bytes + ENTRY_BYTES
        if size <= self._most // 8:
            self.bytes += size - self._sizes.pop(key, 0)
            self[key], self._sizes[key] = value, size
            while self.bytes > self._most:
                oldest = next(iter(self._sizes))
                self.bytes -= self._sizes.pop(oldest)
                del self[oldest]
        return value
