"""Bounded tables: values that are costly to make again, one copy of each text of records (docs/architecture.rst).

Invariants: cached values are frozen, so a hit equals what would be made again. A record from the interner equals the
given one. No table exceeds its bound, whatever is put in.
"""

from collections.abc import Mapping
from typing import TypeVar

from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord

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


TABLE_LIMIT = 16_384
"""How many texts the table holds before it is cleared. A text that is cleared costs one more copy."""
LONGEST_TEXT = 256
"""Longest value that is shared, in characters; longer ones are rarely in two records."""

_Maps = dict[int, Mapping[str, str]]
"""The shared copies of a record's maps, by the identity of the given ones."""


class StringInterner:
    """Makes records of shared texts; maps that original and effective values share stay shared."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def pod(self, record: PodRecord) -> PodRecord:
        if len(self._known) > TABLE_LIMIT:
            self._known.clear()
        maps: _Maps = {}
        original = self._pod(record.original, maps)
        effective = original if record.effective is record.original else self._pod(record.effective, maps)
        return PodRecord(original, effective, record.read, record.reported)

    def container(self, record: ContainerRecord) -> ContainerRecord:
        if len(self._known) > TABLE_LIMIT:
            self._known.clear()
        maps: _Maps = {}
        original = self._container(record.original, maps)
        effective = original if record.effective is record.original else self._container(record.effective, maps)
        return ContainerRecord(original, effective, record.owners, record.read)

    def _pod(self, info: PodInfo, maps: _Maps) -> PodInfo:
        known = self._known.setdefault
        return PodInfo(  # by position: keywords would take twice as long, and every create waits for it
            known(info.id, info.id),
            info.name,
            info.uid,
            known(info.namespace, info.namespace),
            info.attempt,
            known(info.runtime_handler, info.runtime_handler),
            self._map(info.labels, maps),
            self._map(info.annotations, maps),
            info.cgroup_parent and known(info.cgroup_parent, info.cgroup_parent),
            info.overhead,
            info.resources,
        )

    def _container(self, info: ContainerInfo, maps: _Maps) -> ContainerInfo:
        known = self._known.setdefault
        return ContainerInfo(
            info.id,
            known(info.pod_id, info.pod_id),
            known(info.name, info.name),
            info.attempt,
            self._map(info.annotations, maps),
            info.resources,
            info.envs if type(info.envs) is Envs else self._map(info.envs, maps),
            known(info.cgroup_parent, info.cgroup_parent),
        )

    def _map(self, given: Mapping[str, str], maps: _Maps) -> Mapping[str, str]:
        made = maps.get(id(given))
        if made is None:
            known = self._known.setdefault
            shared = {}
            for key, value in given.items():
                shared[known(key, key)] = known(value, value) if len(value) <= LONGEST_TEXT else value
            made = maps[id(given)] = shared
        return made
