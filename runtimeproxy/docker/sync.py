"""Follows the daemon's events, so that the Store holds nothing that is gone or that somebody else has changed.

Owns the following of the stream: connecting again, what each event means for the Store.
Must not know: held requests, HTTP, lists, how a record is read again.
Invariant: a record goes only if the daemon said so. Whoever lists the containers is told so once the stream is
followed, so nothing falls between the list and the events.
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
"""So long after the stream is followed again what the daemon remembers of before has been told."""


class EventFollower:
    """Follows one daemon for one Store.

    ``on_gone`` is called with the full id of a container that was destroyed or renamed: what is remembered of it,
    beyond the Store, holds no longer (relay-rules B10). ``on_connected`` is awaited after each connect; a BackendError
    from it counts as the daemon's being away. ``on_missed`` is called after that, and whenever something may have
    happened that was not heard of. ``wall_clock_ns`` counts from 1970.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store,
        recorder: Metrics,
        *,
        on_gone: Callable[[str], None],
        on_connected: Callable[[], Awaitable[None]],
        on_missed: Callable[[], None],
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.expected_updates: Counter[str] = Counter()
        """How many events of updates are still to come that are our own, by full id."""
        self.changes = 0
        """How often something was changed behind our back."""
        self._backend = backend
        self._store = store
        self._recorder = recorder
        self._on_gone = on_gone
        self._on_connected = on_connected
        self._on_missed = on_missed
        self._wall_clock_ns = wall_clock_ns
        self._since_ns = 0
        self._away = False
        self._overdue: Counter[str] = Counter()
        """Those from before the stream was lost: the daemon may have ended with their events."""
        self._dropping: asyncio.TimerHandle | None = None

    def expect_update(self, container_id: str) -> None:
        """Take the next update of a container for our own; say so before the update is sent."""
        self.expected_updates[container_id] += 1

    def no_update(self, container_id: str) -> None:
        """Take back an expectation: the daemon did not agree, so there is no event."""
        for expected in (self.expected_updates, self._overdue):
            expected[container_id] -= 1
            if expected[container_id] <= 0:
                del expected[container_id]

    def forget(self, container_id: str) -> None:
        """Forget what was changed behind our back; it is read anew when it is needed."""
        self.changes += 1
        self._store.forget(container_id)

    def gone(self, container_id: str) -> None:
        """Drop all that is remembered, beyond the Store, of what the daemon no longer has."""
        self.expected_updates.pop(container_id, None)
        self._on_gone(container_id)

    async def run(self) -> None:
        """Follow for ever; cancel to stop."""
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
        """Connect and follow until that fails."""
        try:
            await self._follow()
        except BackendError as error:
            self._lost(str(error))
        except Exception as error:  # a fault of our own must not end the following for good; its text may hold values
            self._recorder.count("internal_errors", operation="events")
            log.error("internal error in following the daemon's events", exc_info=error)
            self._lost("internal error")

    async def _follow(self) -> None:
        failure = "backend_event_dial_failures"
        try:
            async with self._backend.events(_MEANINGS, self._since_ns) as events:
                failure = "backend_event_stream_losses"
                await self._on_connected()
                if self._away:
                    self._away = False
                    log.info("the daemon's events are followed again")
                self._on_missed()
                self._dropping = asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._drop_overdue)
                async for event in events:
                    self._take(event)
        except Exception:
            self._recorder.count(failure)
            raise
        finally:
            if self._dropping is not None:
                self._dropping.cancel()
            self._overdue = Counter(self.expected_updates)

    def _drop_overdue(self) -> None:
        """Expect no more what the daemon would have told of by now: else somebody else's update is taken for ours."""
        for container_id, count in tuple(self._overdue.items()):
            for _ in range(count):
                self.no_update(container_id)

    def _take(self, event: Event) -> None:
        if event is UNREADABLE:  # it may have told of what is gone
            self._recorder.count("backend_events_unreadable")
            self._on_missed()
            return
        self._since_ns = event.time_ns + 1  # after a loss the daemon goes on here: nothing is lost, nothing comes twice
        meaning = _MEANINGS.get(event.action)
        if meaning is not None:
            self._recorder.count("backend_events", action=event.action)
            meaning(self, event.id)

    # What the events mean. oom, die, kill, start and restart change nothing in the Store.

    def _destroyed(self, container_id: str) -> None:
        self._store.tombstone(container_id)
        self.gone(container_id)

    def _renamed(self, container_id: str) -> None:
        self._on_gone(container_id)

    def _updated(self, container_id: str) -> None:
        """Forget what somebody else changed."""
        if self.expected_updates[container_id] > 0:
            self.no_update(container_id)
        else:
            self._recorder.count("updates_of_others")
            self.forget(container_id)

    def _lost(self, reason: str) -> None:
        if not self._away:
            self._away = True
            log.warning("the daemon's events cannot be followed (%s): trying again until they can", reason)


_MEANINGS: dict[str, Callable[[EventFollower, str], None]] = {
    "destroy": EventFollower._destroyed,
    "rename": EventFollower._renamed,
    "update": EventFollower._updated,
}
"""What is asked for, and what it means."""
