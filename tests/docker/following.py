"""The follower of a daemon's events with a Store that knows two pods and a container.

Owns the parts and what they were told.
Must not know: whether there is a daemon.
Invariant: when a run ends, it leaves no task.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.sync import Events
from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.store import Store
from runtimeproxy.telemetry import Recorder
from tests.docker.daemon import until

POD, OTHER_POD, CONTAINER, LATER = (letter * 64 for letter in "abcd")
PLAIN = "e" * 64
"""A container that is no pod's."""
STARTED_NS = 1_700_000_000_000_000_000


def pod(pod_id: str) -> PodRecord:
    info = PodInfo(id=pod_id)
    return PodRecord(info, info)


def container(container_id: str) -> Subject:
    info = ContainerInfo(id=container_id, pod_id=POD)
    return Subject(pod(POD), ContainerRecord(info, info))


def tasks() -> set[asyncio.Task[object]]:
    """Return the tasks that are not the caller's own."""
    return asyncio.all_tasks() - {asyncio.current_task()}


class Rig:
    """The follower of a daemon that may be there or not; two pods and a container are known."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = Store()
        for subject in (Subject(pod(POD)), Subject(pod(OTHER_POD)), container(CONTAINER)):
            self.store.commit(subject)
        self.recorder = Recorder(asyncio.get_running_loop().time)
        self.gone: list[str] = []
        self.connects = 0
        self.missed = 0
        """How often something may have happened that was not heard of."""
        self.fails_with: list[Exception] = []
        """What the next connects fail with."""
        self.events = Events(
            self.backend,
            self.store,
            self.recorder,
            on_gone=self.gone.append,
            on_connected=self._connected,
            on_missed=self._missed,
            wall_clock_ns=lambda: STARTED_NS,
        )

    async def _connected(self) -> None:
        self.connects += 1
        if self.fails_with:
            raise self.fails_with.pop()

    def _missed(self) -> None:
        self.missed += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow; at the end nothing is left of it."""
        others = tasks()
        task = asyncio.create_task(self.events.run())
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self.backend.close()
        await until(lambda: tasks() <= others)

    @property
    def known(self) -> set[str]:
        found = self.store.snapshot()
        return {record.effective.id for record in found.pods} | {record.effective.id for record in found.containers}

    async def counted(self, name: str, count: int, **labels: str) -> None:
        await until(lambda: self.recorder.counted(name, **labels) == count)
