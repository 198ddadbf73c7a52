"""A bounded cache of decoded and encoded values, for Docker's front and the hook protocol.

Invariant: cached values are frozen, so a hit equals a newly made value.
"""

from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

ENTRY_BYTES = 512
"""Estimated bytes of an entry without its value: its key, the dict's slots and the enclosing objects."""


class Cache(dict[_K, _V]):
    """Values by key, looked up as in any dict; the oldest are evicted when the total size would exceed ``max_bytes``. A
    value of more than an eighth of that is not cached: it would evict too many others."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[_K, int] = {}
        self.bytes = 0

    def keep(self, key: _K, value: _V, value_bytes: int) -> _V:
        """Cache a value of ``value_bytes`` bytes if it is small enough; return it."""
        size = value_bytes + ENTRY_BYTES
        if size <= self._max_bytes // 8:
            self.bytes += size - self._sizes.pop(key, 0)
            self[key], self._sizes[key] = value, size
            while self.bytes > self._max_bytes:
                oldest = next(iter(self._sizes))
                self.bytes -= self._sizes.pop(oldest)
                del self[oldest]
        return value
