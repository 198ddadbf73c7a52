"""Caches of encoded parts of hook messages, and of small decoded answers of hook servers.

Cached values are frozen, so a hit equals what would be made again. A node makes only a few held calls a second, so
their code runs with cold CPU caches: work that is not repeated saves cold code.
"""

from typing import TypeVar

from runtimeproxy.model.fields import ContainerInfo, HookAnswer, PodInfo
from runtimeproxy.model.hookpoints import SubjectKind

_K = TypeVar("_K")
_V = TypeVar("_V")

ENTRY_BYTES = 512
"""Estimated bytes of an entry beside its value: at least what key, place in the dict and objects around take."""


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


POD_PARTS: Cache[int, tuple[PodInfo, bytes]] = Cache(1 << 20)
"""What a container's hook message says of its pod, by the identity of the pod's value. The value is cached too, so that
no other object can have its identity. All containers of a pod share one value until a call changes it."""

CONTAINER_PARTS: Cache[int, tuple[ContainerInfo, bytes]] = Cache(1 << 18)
"""What a hook message says of the container itself, by the identity of the container's value, in the same way. A start
asks twice about one value; other calls only once."""

ANSWERS: Cache[tuple[SubjectKind, bytes], HookAnswer] = Cache(1 << 18)
"""Decoded answers, by kind of subject and encoded bytes: hook servers mostly repeat an earlier or an empty answer."""
