"""What was made before and may be needed again: parts of hook messages, and small answers of hook servers.

Owns every cache of the package and how much each may take.
Must not know: how what is kept is made.
Invariant: what is kept is frozen, so whoever finds it finds what would be made anew; a cache takes no more than its
bytes, whatever comes.

A node makes a few held calls a second and runs them cold: what need not be made again costs no code that is cold.
"""

from typing import TypeVar

from runtimeproxy.model.hookpoints import SubjectKind
from runtimeproxy.model.values import ContainerInfo, HookAnswer, PodInfo

_K = TypeVar("_K")
_V = TypeVar("_V")

ENTRY_BYTES = 512
"""What an entry takes beside its value, at least as much as key, place and objects around it do."""


class Cache(dict[_K, _V]):
    """Values by key, found as in any dict; the oldest go when all together would take more than ``most_bytes``.

    One that would take more than an eighth of that is not kept: it would drive the others out.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._sizes: dict[_K, int] = {}
        self.bytes = 0

    def keep(self, key: _K, value: _V, value_bytes: int) -> _V:
        """Keep a value that has so many bytes, if there is room for such; return it."""
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
"""By the identity of a pod's value, which is kept too, so no other one can have it: what a container's hook message
tells of the pod. All containers of a pod are told of the same value until a call changes it."""

CONTAINER_PARTS: Cache[int, tuple[ContainerInfo, bytes]] = Cache(1 << 18)
"""By the identity of a container's value, in the same way: what a hook message tells of the container itself. A start
asks twice about one value; others come once."""

ANSWERS: Cache[tuple[SubjectKind, bytes], HookAnswer] = Cache(1 << 18)
"""By what an answer is about and its bytes: what it says. A hook server mostly answers what it answered before, or
nothing at all."""
