"""A runtime's state for tests of the sync: its list and its report of each id at the time of the request."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from runtimeproxy.core.sync import Listed, Sync
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from tests.fakes.core import Core

LIST = "list"


def pod(pod_id: str, name: str = "read") -> PodRecord:
    info = PodInfo(id=pod_id, name=name)
    return PodRecord(info, info)


def container(container_id: str, pod_id: str = "p1", name: str = "read") -> Subject:
    info = ContainerInfo(id=container_id, pod_id=pod_id, name=name)
    return Subject(pod(pod_id), ContainerRecord(info, info))


@dataclass(eq=False)
class FakeState:
    """Pods and containers by id; the report is None for those that were removed since the list."""

    pods: dict[str, PodRecord | None] = field(default_factory=dict)
    containers: dict[str, Subject | None] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)  # raised in place of an answer, by id or ``LIST``
    list_seconds: float = 0.0
    read_seconds: float = 0.0
    queried: list[tuple[float, str]] = field(default_factory=list)
    at_once: Counter[str] = field(default_factory=Counter)  # the most requests at one time, by kind
    _now: Counter[str] = field(default_factory=Counter)

    def has(self, *ids: str) -> None:
        self.pods |= {record_id: pod(record_id) for record_id in ids if record_id.startswith("p")}
        self.containers |= {record_id: container(record_id) for record_id in ids if not record_id.startswith("p")}

    def lacks(self, *ids: str) -> None:
        for record_id in ids:
            self.pods.pop(record_id, None)
            self.containers.pop(record_id, None)

    async def listed(self) -> Listed:
        await self._answer(LIST, LIST, self.list_seconds)
        return Listed(list(self.pods), list(self.containers))

    async def pod(self, pod_id: str) -> PodRecord | None:
        found = self.pods.get(pod_id)
        await self._answer("pod", pod_id, self.read_seconds)
        return found

    async def container(self, container_id: str) -> Subject | None:
        found = self.containers.get(container_id)
        await self._answer("container", container_id, self.read_seconds)
        return found

    async def _answer(self, kind: str, name: str, seconds: float) -> None:
        self.queried.append((asyncio.get_running_loop().time(), name))
        self._now[kind] += 1
        self.at_once[kind] = max(self.at_once[kind], self._now[kind])
        try:
            await asyncio.sleep(seconds)
        finally:
            self._now[kind] -= 1
        if name in self.errors:
            raise self.errors[name]

    @property
    def lists(self) -> list[float]:
        return [at for at, name in self.queried if name == LIST]

    @property
    def reads(self) -> list[str]:
        return [name for _, name in self.queried if name != LIST]


class Synced(Core):
    def __init__(self, *ids: str, hooked: bool = True) -> None:
        super().__init__()
        if hooked:
            self.plugins.add("a")
        self.state = FakeState()
        self.state.has(*ids)
        self.removed_ids = list[str]()
        self.sync = Sync(self.state, self.lifecycle, self.metrics, self.removed_ids.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the sync; check at the end that no watch is left."""
        self.sync.start()
        self.sync.soon()
        try:
            yield self
        finally:
            await self.sync.stop()
        assert not self.store.watches

    @property
    def known(self) -> set[str]:
        return self.store.ids()
