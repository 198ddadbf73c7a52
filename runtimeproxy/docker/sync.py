"""Follow dockerd's events, so that the Store has nothing that is gone or was changed by another client.

Invariant: a record is removed only if the daemon said so. The containers are listed only after the stream is followed,
so no change is lost between the list and the events.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS
from runtimeproxy.docker.backend import UNREADABLE, Backend, Event
from runtimeproxy.errors import BackendError
from runtimeproxy.observe.metrics import Metrics

log = logging.getLogger(__name__)

REPLAY_SECONDS = 5.0
"""Seconds after reconnecting in which the daemon sends the events that it remembers from before."""


class EventFollower:
    """``on_gone`` is called with the full id of a container that was destroyed or renamed: what is remembered of it
    outside the Store is no longer valid (relay-rules B10). ``on_died`` is called with the id of one whose process has
    ended, ``on_restarted`` with that of one that a client restarted. ``on_connected`` is awaited after each connect; a
    BackendError from it counts like a lost connection. ``on_missed`` is called after that, and whenever an event may
    have been missed. ``wall_clock_ns`` returns nanoseconds since 1970.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store,
        metrics: Metrics,
        *,
        on_gone: Callable[[str], None],
        on_died: Callable[[str], None],
        on_restarted: Callable[[str], None],
        on_connected: Callable[[], Awaitable[None]],
        on_missed: Callable[[], None],
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.expected_updates: Counter[str] = Counter()
        """How many events of the proxy's own updates are still to come, by full id."""
        self.changes = 0
        """How many changes by other clients the events have shown."""
        self._backend = backend
        self._store = store
        self._metrics = metrics
        self._on_gone = on_gone
        self._on_connected = on_connected
        self._on_missed = on_missed
        self._wall_clock_ns = wall_clock_ns
        self._since_ns = 0
        self._away = False
        self._overdue: Counter[str] = Counter()
        """The expected updates from before the stream was lost: a daemon that restarted has lost their events."""
        self._dropping: asyncio.TimerHandle | None = None
        self._meanings: dict[str, Callable[[str], None]] = {
            "die": on_died,
            "restart": on_restarted,
            "destroy": self._destroyed,
            "rename": on_gone,
            "update": self._updated,
        }
        """The events that are requested, and what each leads to; oom, kill and start change nothing."""

    def expect_update(self, container_id: str) -> None:
        """Treat the next update event of a container as the proxy's own; call this before the update is sent."""
        self.expected_updates[container_id] += 1

    def no_update(self, container_id: str) -> None:
        """Cancel an expected update event: the daemon did not agree to the update, or the event has come."""
        for expected in (self.expected_updates, self._overdue):
            expected[container_id] -= 1
            if expected[container_id] <= 0:
                del expected[container_id]

    def gone(self, container_id: str) -> None:
        """Drop what is remembered, outside the Store, of a container that the daemon no longer has."""
        self.expected_updates.pop(container_id, None)
        self._on_gone(container_id)

    async def run(self) -> None:
        """Follow the events until cancelled, reconnecting with increasing delays."""
        loop = asyncio.get_running_loop()
        self._since_ns = self._wall_clock_ns()
        delay = FIRST_RETRY_SECONDS
        while True:
            began = loop.time()
            await self._attempt()
            if loop.time() - began > LONGEST_RETRY_SECONDS:  # it worked for a while
                delay = FIRST_RETRY_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    async def _attempt(self) -> None:
        """Connect and follow the events until that fails; log and count the failure."""
        try:
            await self._follow()
        except BackendError as error:
            self._metrics.events.runtime_lost("events", error.kind.value)
            self._lost(str(error))
        except Exception as error:  # a bug must not end the following for good; the error's text may have values
            self._metrics.count("internal_errors", "events")
            log.error("internal error in following the daemon's events", exc_info=error)
            self._lost("internal error")

    async def _follow(self) -> None:
        failure = "backend_event_dial_failures"
        try:
            async with self._backend.events(self._meanings, self._since_ns) as events:
                failure = "backend_event_stream_losses"
                await self._on_connected()
                self._metrics.events.runtime_back("events")
                if self._away:
                    self._away = False
                    log.info("the daemon's events are followed again")
                self._on_missed()
                self._dropping = asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._drop_overdue)
                async for event in events:
                    self._take(event)
        except Exception:
            self._metrics.count(failure)
            raise
        finally:
            if self._dropping is not None:
                self._dropping.cancel()
            self._overdue = Counter(self.expected_updates)

    def _drop_overdue(self) -> None:
        """Cancel the overdue expectations, so that another client's update is not taken for the proxy's own."""
        for container_id, count in tuple(self._overdue.items()):
            for _ in range(count):
                self.no_update(container_id)

    def _take(self, event: Event) -> None:
        if event is UNREADABLE:  # it may have been a container's end
            self._metrics.count("backend_events_unreadable")
            self._on_missed()
            return
        self._since_ns = event.time_ns + 1  # after a loss the stream continues here: no event is lost or repeated
        meaning = self._meanings.get(event.action)
        if meaning is not None:
            self._metrics.count("backend_events", event.action)
            meaning(event.id)

    def _destroyed(self, container_id: str) -> None:
        self._store.tombstone(container_id)
        self.gone(container_id)

    def _updated(self, container_id: str) -> None:
        """Forget the container's record, to be read again when it is needed, unless the update is the proxy's own."""
        if self.expected_updates[container_id] > 0:
            self.no_update(container_id)
        else:
            self._metrics.count("updates_of_others")
            self.changes += 1
            self._store.forget(container_id)

    def _lost(self, reason: str) -> None:
        if not self._away:
            self._away = True
            log.warning("the daemon's events cannot be followed (%s): trying again until they can", reason)
