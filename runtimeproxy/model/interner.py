"""One copy of each text of the records, most of which are shared (docs/architecture.rst).

Invariant: an interned record equals the given one, and the table never exceeds its bound.
"""

from collections.abc import Mapping

from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord

TABLE_LIMIT = 16_384
"""Number of texts above which the table is cleared. A cleared text costs one more copy."""
LONGEST_TEXT = 256
"""Longest value that is shared, in characters; longer ones are rarely in two records."""

_Maps = dict[int, Mapping[str, str]]
"""The shared copies of a record's maps, by the identity of the given ones."""


class StringInterner:
    """Makes records of shared texts; maps that original and effective values share stay shared."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def pod(self, record: PodRecord) -> PodRecord:
        if len(self._texts) > TABLE_LIMIT:
            self._texts.clear()
        maps: _Maps = {}
        original = self._pod(record.original, maps)
        effective = original if record.effective is record.original else self._pod(record.effective, maps)
        return PodRecord(original, effective, record.read, record.reported)

    def container(self, record: ContainerRecord) -> ContainerRecord:
        if len(self._texts) > TABLE_LIMIT:
            self._texts.clear()
        maps: _Maps = {}
        original = self._container(record.original, maps)
        effective = original if record.effective is record.original else self._container(record.effective, maps)
        return ContainerRecord(original, effective, record.owners, record.read)

    def _pod(self, info: PodInfo, maps: _Maps) -> PodInfo:
        intern = self._texts.setdefault
        return PodInfo(  # by position: keywords take twice as long, and every create waits for this
            intern(info.id, info.id),
            info.name,
            info.uid,
            intern(info.namespace, info.namespace),
            info.attempt,
            intern(info.runtime_handler, info.runtime_handler),
            self._map(info.labels, maps),
            self._map(info.annotations, maps),
            info.cgroup_parent and intern(info.cgroup_parent, info.cgroup_parent),
            info.overhead,
            info.resources,
        )

    def _container(self, info: ContainerInfo, maps: _Maps) -> ContainerInfo:
        intern = self._texts.setdefault
        return ContainerInfo(
            info.id,
            intern(info.pod_id, info.pod_id),
            intern(info.name, info.name),
            info.attempt,
            self._map(info.annotations, maps),
            info.resources,
            info.envs if type(info.envs) is Envs else self._map(info.envs, maps),
            intern(info.cgroup_parent, info.cgroup_parent),
        )

    def _map(self, given: Mapping[str, str], maps: _Maps) -> Mapping[str, str]:
        made = maps.get(id(given))
        if made is None:
            intern = self._texts.setdefault
            shared = {}
            for key, value in given.items():
                shared[intern(key, key)] = intern(value, value) if len(value) <= LONGEST_TEXT else value
            made = maps[id(given)] = shared
        return made
