"""Keep the Store equal to the runtime's state between the calls: read missing records, drop those of removed subjects.

Invariant: calls take precedence. A record that a call has committed is never replaced. No record is dropped that a call
is about or that was committed after the list was requested; the next pass reads what changed during a read.

Records are read only for hook servers, so nothing is read while none is registered (relay-rules C4); the first
registration triggers a read of everything. While there are records, the list is requested without hook servers, too:
otherwise the records would never be dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

from runtimeproxy.core.call import Unreadable
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.store import Watch
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model.fields import PodRecord, Subject
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metrics import Metrics

log = logging.getLogger(__name__)

PASS_SECONDS = 60.0
"""Seconds between two passes (fault matrix S9)."""
SOONEST_SECONDS = 1.0
"""Shortest time between two passes, however often the runtime reconnects; a first plugin waits at most this long."""
INCOMPLETE_PASS_SECONDS = 5.0
"""Seconds to the next pass after one that skipped a subject because it changed meanwhile."""
READERS = 4
"""Largest number of concurrent reads."""
YIELD_SECONDS = 0.002
"""Seconds that a reader waits before each read while calls are held. So a held call waits for no more than the reads in
progress, and a full node is read in 5 s even if calls are held all that time (fault matrix S1)."""
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0
"""Longest wait in seconds between two tries while the runtime is unavailable. If it returns no list, perhaps because
that is too long, the wait grows up to the time between two passes."""

_UNAVAILABLE = frozenset({BackendFailure.UNAVAILABLE, BackendFailure.DEADLINE})


class Listed(NamedTuple):
    pods: list[str]
    containers: list[str]


class Runtime(Protocol):
    """How sync reads a front's runtime. Each method raises BackendError and Unreadable; None: it does not exist."""

    async def listed(self) -> Listed:
        """List all pods and all containers of pods, running or not."""

    async def pod(self, pod_id: str) -> PodRecord | None: ...

    async def container(self, container_id: str) -> Subject | None:
        """Read a container with its pod; None if one of them does not exist."""


class Sync:
    """Follows one runtime for one Store; ``on_dropped`` is called with each id that was dropped."""

    def __init__(
        self, runtime: Runtime, lifecycle: Lifecycle, metrics: Metrics, on_dropped: Callable[[str], None] | None = None
    ) -> None:
        self._runtime = runtime
        self._lifecycle = lifecycle
        lifecycle.on_lost = self.soon
        self._store = lifecycle.store
        self._metrics = metrics
        self._on_dropped = on_dropped
        self._requested = asyncio.Event()
        self._next = 0.0
        self._filled = False
        """True once all records are read that were due when a plugin was registered."""
        self._skipped_ids: set[str] = set()
        """Listed ids that could not be read; they are tried again when the runtime reconnects."""
        self._unavailable_ids: set[str] = set()
        """Ids whose last read was answered UNAVAILABLE although the list before it had succeeded. If the next read
        fails in the same way, the subject is unavailable and not the runtime."""
        self._is_failure_logged = False
        self.runtime_fault = ""
        """Why the runtime did not answer the last pass; "" if it did, or if no pass is due any more."""
        self._is_incomplete = False
        self._late_count = self._read_count = self._drop_count = 0
        """Counts of this pass; ``_late_count`` are subjects that the runtime has not reported in time."""
        self._last_result = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def filling(self) -> bool:
        """Return whether the runtime's state is still being read for hook servers."""
        return self._lifecycle.hooked and not self._filled

    def start(self) -> None:
        """``soon`` triggers the first pass."""
        self._lifecycle.state_read.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sync")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def soon(self) -> None:
        """Trigger a pass: the runtime is available again, or its state may have changed without a call."""
        self._requested.set()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requested.wait()

    async def _run(self) -> None:
        await self._requested.wait()
        retry = FIRST_RETRY_SECONDS
        while True:
            await self._wait_until_due()
            hooked = self._lifecycle.hooked
            longest = await self._attempt()
            if hooked and not self.runtime_fault:
                self._lifecycle.state_read.set()
            if not longest:
                retry = FIRST_RETRY_SECONDS
                await asyncio.sleep(SOONEST_SECONDS)
            else:
                retry = min(retry, longest)
                soonest = min(retry, SOONEST_SECONDS)
                await asyncio.sleep(soonest)
                await self._wait(retry - soonest)
                retry *= 2
                self._requested.set()

    async def _wait_until_due(self) -> None:
        """Wait until a pass is due and there are records to keep or to read."""
        while True:
            hooked = self._lifecycle.hooked
            self._filled &= hooked
            reason = self._requested.is_set() or (hooked and not self._filled) or self._now >= self._next
            if reason and (hooked or any(self._store.counts()) or self._store.ids_of_originals()):
                return
            if not hooked:
                self._lifecycle.state_read.clear()
                self._requested.clear()
                self.runtime_fault = ""
            await self._wait(SOONEST_SECONDS)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _attempt(self) -> float:
        """Make a pass; return 0 if it was completed, else the longest wait in seconds before the next try."""
        try:
            await self._pass()
        except (BackendError, Unreadable) as error:
            self._metrics.count("syncs", "failed")
            reason = error.kind.value if isinstance(error, BackendError) else "unreadable"
            self._record_event(reason)
            if isinstance(error, BackendError) and error.kind in _UNAVAILABLE:  # the front's connections log that
                self.runtime_fault = f"it did not answer when its state was read last ({reason})"
                self._metrics.events.runtime_lost("passes", reason)
                return LONGEST_RETRY_SECONDS
            if not self._is_failure_logged:
                self._is_failure_logged = True
                text = "the runtime's state cannot be read (%s): trying again, and what a call needs is read then"
                log.warning(text, error)
            return PASS_SECONDS
        except Exception as error:  # our own fault must not end the task; its text may hold values
            self._log_internal_error(error)
            return PASS_SECONDS
        self._metrics.count("syncs", "complete")
        self.runtime_fault = ""
        self._record_event("complete")
        self._metrics.events.runtime_back()
        self._is_failure_logged = False
        return 0.0

    async def _pass(self) -> None:
        began, fill = self._now, self._lifecycle.hooked
        if self._requested.is_set():
            self._skipped_ids.clear()
        self._requested.clear()
        self._is_incomplete = False
        self._late_count = self._read_count = self._drop_count = 0
        with self._store.watch() as watch:
            stored_ids = self._store.ids() | self._store.ids_of_originals()
            listed = await self._runtime.listed()
            self._lifecycle.waits_for_state = True
            self._sweep(stored_ids.difference(listed.pods, listed.containers), watch)
            for ids in (self._skipped_ids, self._unavailable_ids):
                ids.intersection_update([*listed.pods, *listed.containers])
            if fill:
                await self._fill(self._pod, listed.pods, watch)
                await self._fill(self._runtime.container, listed.containers, watch)
                self._log_pass(began)
        self._filled = fill
        self._next = self._now + (INCOMPLETE_PASS_SECONDS if self._is_incomplete else PASS_SECONDS)

    def _sweep(self, unlisted: set[str], watch: Watch) -> None:
        """Drop records, except of calls under way and the pods of their containers."""
        under_way = self._lifecycle.open_calls.subjects()
        pods = {
            record.effective.pod_id for any_id in under_way if (record := self._store.container(any_id)) is not None
        }
        for any_id in unlisted - watch.retained - under_way - pods:
            self._metrics.count("records_swept")
            self._drop_count += 1
            self._store.drop(any_id)
            if self._on_dropped is not None:
                self._on_dropped(any_id)

    async def _pod(self, pod_id: str) -> Subject | None:
        record = await self._runtime.pod(pod_id)
        return None if record is None else Subject(record)

    async def _fill(self, read: Callable[[str], Awaitable[Subject | None]], ids: Iterable[str], watch: Watch) -> None:
        skipped = self._store.ids() | self._skipped_ids
        missing = iter([any_id for any_id in ids if any_id not in skipped])

        async def read_missing() -> None:
            for any_id in missing:
                if self._lifecycle.holds()[0]:
                    await asyncio.sleep(YIELD_SECONDS)
                subject = await self._read(read, any_id)
                if subject is not None:
                    self._commit(any_id, subject, watch)

        # No TaskGroup: before Python 3.13 after a failure in one task the waiting task stays cancelled
        # (gh-116720).
        tasks = [asyncio.create_task(read_missing()) for _ in range(READERS)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, read: Callable[[str], Awaitable[Subject | None]], any_id: str) -> Subject | None:
        """Read a subject; return None if it does not exist or cannot be read. A subject that hangs, or that is
        repeatedly unavailable, must not block other reads: the next pass tries it again. Raises BackendError if the
        runtime itself may be unavailable."""
        later = False
        try:
            subject = await read(any_id)
            self._unavailable_ids.discard(any_id)
            if subject is None:
                self._skipped_ids.add(any_id)
            return subject
        except Unreadable:
            pass
        except BackendError as error:
            if error.kind is BackendFailure.DEADLINE:
                self._late_count += 1
                self._metrics.count("records_late")
                return None
            later = error.kind is BackendFailure.UNAVAILABLE
            if later and any_id not in self._unavailable_ids:
                self._unavailable_ids.add(any_id)
                raise
        except Exception as error:
            self._log_internal_error(error)
        self._metrics.count("records_unreadable")
        if not later:
            self._skipped_ids.add(any_id)
        return None

    def _commit(self, any_id: str, subject: Subject, watch: Watch) -> None:
        """Commit a subject that was read, unless a call has newer knowledge."""
        if self._store.pod(any_id) is not None or self._store.container(any_id) is not None:
            return
        pod_id, names = subject.pod.effective.id, {any_id, subject.pod.effective.full_name}
        if subject.container is not None:
            names.add(subject.container.effective.full_name)
        under_way = not names.isdisjoint(self._lifecycle.open_calls.subjects())  # of a create only the name is known
        if under_way or not watch.invalidated.isdisjoint((any_id, pod_id)):
            self._is_incomplete = True
            return
        self._store.commit(subject)
        self._metrics.count("records_read")
        self._read_count += 1

    def _record_event(self, result: str) -> None:
        """Record a pass as an event if it changed the Store or ended otherwise than the last recorded one: passes
        without a change would evict all other events."""
        if result != self._last_result or (result == "complete" and self._read_count + self._drop_count):
            text = f"records read: {self._read_count}, dropped: {self._drop_count}"
            self._metrics.events.add(EventKind.SYNC, reason=result, text=text)
            self._last_result = result

    def _log_pass(self, began: float) -> None:
        """Log a pass that read anything, and the first pass: from now on the Store is complete."""
        seconds = self._now - began
        self._metrics.gauge("sync_seconds", seconds)
        if self._late_count:
            text = "the runtime did not answer in time about %d of its pods and containers: they may hang"
            log.warning(text, self._late_count)
        if self._read_count or not self._filled:
            text = "the runtime's state is known (pods: %d, containers: %d, read: %d in %.1f s)"
            log.info(text, *self._store.counts(), self._read_count, seconds)

    def _log_internal_error(self, error: Exception) -> None:
        self._metrics.count("internal_errors", "sync")
        log.error("internal error in reading the runtime's state", exc_info=error)
