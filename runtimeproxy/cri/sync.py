"""Read the state of a CRI runtime for ``runtimeproxy.core.sync``: the lists, then verbose status.

Owns the choice of the CRI version for reading the state.
Must not know: when it is read, what is kept.
Invariant: the state is read in v1 wherever the runtime has that (docs/architecture.rst).
"""

import asyncio
from collections.abc import Iterator

from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.cri.backend import Backend
from runtimeproxy.cri.routes import VERSIONS
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model import records
from runtimeproxy.model.values import ContainerInfo, PodInfo, PodRecord, Subject

ITEMS_AT_ONCE = 200
"""Items of a list that are read before the event loop may serve calls."""


class CriState:
    """Reads the pods and containers that the runtime has."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._version = VERSIONS[0]

    async def listed(self) -> Listed:
        """Return the ids of all pods and containers; also learn the runtime's name and CRI version. Raises
        BackendError, Unreadable.
        """
        try:
            return await self._listed(VERSIONS[0])
        except BackendError as error:
            if error.kind is not BackendFailure.UNIMPLEMENTED:
                raise
        return await self._listed(VERSIONS[1])

    async def _listed(self, version: str) -> Listed:
        pods = await self._backend.pods(version)
        self._version = version
        await self._backend.learn(version)
        return Listed(await _ids(self._without_lost(pods)), await _ids(await self._backend.containers(version)))

    def _without_lost(self, pods: Iterator[PodInfo]) -> Iterator[PodInfo]:
        """Yield the pods, dropping each record whose id now belongs to another pod: the runtime has lost its state.
        That is so where the uid differs; the records of the pod's containers are dropped with it.
        """
        for pod in pods:
            known = self._store.pod(pod.id)
            if known is not None and pod.uid and known.effective.uid not in ("", pod.uid):
                for container in self._store.containers_of(pod.id):
                    self._store.drop(container.effective.id)
                self._store.drop(pod.id)
            yield pod

    async def pod(self, pod_id: str) -> PodRecord | None:
        info = await self._backend.pod(self._version, pod_id)
        return None if info is None else self._store.read_pod(info)

    async def container(self, container_id: str) -> Subject | None:
        """Read a container, and its pod unless the Store has that. Raises BackendError, Unreadable."""
        info = await self._backend.container(self._version, container_id)
        if info is None:
            return None
        pod = self._store.pod(info.pod_id) or await self.pod(info.pod_id)
        return None if pod is None else records.subject_of_read(pod, self._store.read_container(info))


async def _ids(items: Iterator[PodInfo] | Iterator[ContainerInfo]) -> list[str]:
    ids: list[str] = []
    for item in items:
        ids.append(item.id)
        if len(ids) % ITEMS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return ids
