"""The core with a sync of a fake runtime's state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from runtimeproxy.sync import Sync
from tests.fakes.core import Core
from tests.fakes.state import FakeState


class Synced(Core):
    """A sync of a fake state for the core's Store."""

    def __init__(self, *ids: str, hooked: bool = True) -> None:
        super().__init__()
        if hooked:
            self.plugins.add("a")
        self.state = FakeState()
        self.state.has(*ids)
        self.gone: list[str] = []
        self.sync = Sync(self.state, self.lifecycle, self.recorder, self.gone.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Follow; at the end nothing is left of it."""
        self.sync.start()
        self.sync.soon()
        try:
            yield self
        finally:
            await self.sync.stop()
        assert not self.store.watched

    @property
    def known(self) -> set[str]:
        return self.store.ids()

    def name(self, container_id: str) -> str:
        """Return a container's name, which tells where its record comes from."""
        record = self.store.container(container_id)
        assert record is not None
        return record.effective.name
