"""Keep the Store equal to the runtime's state between the calls: read what is missing, drop what is gone.

Invariant: calls take precedence. A record that a call has committed is never replaced. No record is dropped that a call
is about or that was committed after the list was requested; what changed while it was read is left to the next pass.

Records are read only for hook servers, so nothing is read while none is registered (relay-rules C4); the first
registration triggers a read of everything. The list is requested without hook servers, too, as long as records are
kept, since these would otherwise never be dropped.
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
"""Least seconds between two passes, however often the runtime comes back; a first plugin waits at most this long."""
LEFT_SECONDS = 5.0
"""Seconds to the next pass after one that left something out because it changed meanwhile."""
READERS = 4
"""How many records are read at one time."""
YIELD_SECONDS = 0.002
"""Seconds that a reader waits before each read while calls are held. So a held call waits for no more than the reads in
progress, and a full node is read in 5 s even if calls are held all that time (fault matrix S1)."""
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0
"""Longest wait in seconds between two tries while the runtime is unavailable. If it returns no list, perhaps because
that is too long, the wait grows up to the time between two passes."""

_AWAY = frozenset({BackendFailure.UNAVAILABLE, BackendFailure.DEADLINE})


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
    """Follows one runtime for one Store; ``on_gone`` is called with each id that was dropped."""

    def __init__(
        self, runtime: Runtime, lifecycle: Lifecycle, metrics: Metrics, on_gone: Callable[[str], None] | None = None
    ) -> None:
        self._runtime = runtime
        self._lifecycle = lifecycle
        lifecycle.on_lost = self.soon
        self._store = lifecycle.store
        self._metrics = metrics
        self._on_gone = on_gone
        self._requested = asyncio.Event()
        self._next = 0.0
        self._filled = False
        """True once everything was read that was due since a plugin is registered."""
        self._passed_over: set[str] = set()
        """Listed ids that could not be read; they are tried again when the runtime comes back."""
        self._maybe_unavailable: set[str] = set()
        """Ids whose last read was answered UNAVAILABLE although the list before it had succeeded. If the next read
        fails in the same way, the subject is unavailable and not the runtime."""
        self._complained = False
        self.runtime_fault = ""
        """Why the runtime did not answer the last pass; "" if it did, or if no pass is due any more."""
        self._left_out = False
        self._late = self._read_count = self._dropped = 0
        """Counts of this pass; ``_late`` are subjects that the runtime has not reported in time."""
        self._recorded = ""
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
        """Trigger a pass: the runtime is back, or may have done something that was not noticed."""
        self._requested.set()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requested.wait()

    async def _run(self) -> None:
        await self._requested.wait()
        retry = FIRST_RETRY_SECONDS
        while True:
            await self._due()
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

    async def _due(self) -> None:
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
            self._record(reason)
            if isinstance(error, BackendError) and error.kind in _AWAY:  # the front's connections log that
                self.runtime_fault = f"it did not answer when its state was read last ({reason})"
                self._metrics.events.runtime_lost("passes", reason)
                return LONGEST_RETRY_SECONDS
            if not self._complained:
                self._complained = True
                text = "the runtime's state cannot be read (%s): trying again, and what a call needs is read then"
                log.warning(text, error)
            return PASS_SECONDS
        except Exception as error:  # our own fault must not end the task; its text may hold values
            self._fault(error)
            return PASS_SECONDS
        self._metrics.count("syncs", "complete")
        self.runtime_fault = ""
        self._record("complete")
        self._metrics.events.runtime_back()
        self._complained = False
        return 0.0

    async def _pass(self) -> None:
        began, fill = self._now, self._lifecycle.hooked
        if self._requested.is_set():
            self._passed_over.clear()
        self._requested.clear()
        self._left_out = False
        self._late = self._read_count = self._dropped = 0
        with self._store.watch() as watch:
            known = self._store.ids() | self._store.ids_of_originals()
            listed = await self._runtime.listed()
            self._lifecycle.waits_for_state = True
            self._sweep(known.difference(listed.pods, listed.containers), watch)
            for remembered in (self._passed_over, self._maybe_unavailable):
                remembered.intersection_update([*listed.pods, *listed.containers])
            if fill:
                await self._fill(self._pod, listed.pods, watch)
                await self._fill(self._runtime.container, listed.containers, watch)
                self._log_pass(began)
        self._filled = fill
        self._next = self._now + (LEFT_SECONDS if self._left_out else PASS_SECONDS)

    def _sweep(self, gone: set[str], watch: Watch) -> None:
        """Drop records, except of calls under way and the pods of their containers."""
        under_way = self._lifecycle.open_calls.subjects()
        pods = {record.effective.pod_id for one in under_way if (record := self._store.container(one)) is not None}
        for one in gone - watch.retained - under_way - pods:
            self._metrics.count("records_swept")
            self._dropped += 1
            self._store.drop(one)
            if self._on_gone is not None:
                self._on_gone(one)

    async def _pod(self, pod_id: str) -> Subject | None:
        record = await self._runtime.pod(pod_id)
        return None if record is None else Subject(record)

    async def _fill(self, read: Callable[[str], Awaitable[Subject | None]], ids: Iterable[str], watch: Watch) -> None:
        known = self._store.ids() | self._passed_over
        missing = iter([one for one in ids if one not in known])

        async def read_missing() -> None:
            for one in missing:
                if self._lifecycle.holds()[0]:
                    await asyncio.sleep(YIELD_SECONDS)
                subject = await self._read(read, one)
                if subject is not None:
                    self._keep(one, subject, watch)

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

    async def _read(self, read: Callable[[str], Awaitable[Subject | None]], one: str) -> Subject | None:
        """Read one subject; return None if it does not exist or cannot be read. One that hangs, or that the runtime
        repeatedly calls unavailable, must not keep the others from being read: it is left to the next pass. Raises
        BackendError if the runtime itself may be unavailable."""
        later = False
        try:
            subject = await read(one)
            self._maybe_unavailable.discard(one)
            if subject is None:
                self._passed_over.add(one)
            return subject
        except Unreadable:
            pass
        except BackendError as error:
            if error.kind is BackendFailure.DEADLINE:
                self._late += 1
                self._metrics.count("records_late")
                return None
            later = error.kind is BackendFailure.UNAVAILABLE
            if later and one not in self._maybe_unavailable:
                self._maybe_unavailable.add(one)
                raise
        except Exception as error:
            self._fault(error)
        self._metrics.count("records_unreadable")
        if not later:
            self._passed_over.add(one)
        return None

    def _keep(self, one: str, subject: Subject, watch: Watch) -> None:
        """Commit what was read, unless a call has newer knowledge."""
        if self._store.pod(one) is not None or self._store.container(one) is not None:
            return
        pod_id, names = subject.pod.effective.id, {one, subject.pod.effective.full_name}
        if subject.container is not None:
            names.add(subject.container.effective.full_name)
        under_way = not names.isdisjoint(self._lifecycle.open_calls.subjects())  # of a create only the name is known
        if under_way or not watch.invalidated.isdisjoint((one, pod_id)):
            self._left_out = True
            return
        self._store.commit(subject)
        self._metrics.count("records_read")
        self._read_count += 1

    def _record(self, result: str) -> None:
        """Record a pass as an event if it changed the Store, or ended otherwise than the last recorded one: passes with
        nothing new would push all other events out."""
        if result != self._recorded or (result == "complete" and self._read_count + self._dropped):
            text = f"records read: {self._read_count}, dropped: {self._dropped}"
            self._metrics.events.add(EventKind.SYNC, reason=result, text=text)
            self._recorded = result

    def _log_pass(self, began: float) -> None:
        """Log a pass that read anything, and the first pass: from now on the Store is complete."""
        seconds = self._now - began
        self._metrics.gauge("sync_seconds", seconds)
        if self._late:
            text = "the runtime did not answer in time about %d of its pods and containers: they may hang"
            log.warning(text, self._late)
        if self._read_count or not self._filled:
            text = "the runtime's state is known (pods: %d, containers: %d, read: %d in %.1f s)"
            log.info(text, *self._store.counts(), self._read_count, seconds)

    def _fault(self, error: Exception) -> None:
        self._metrics.count("internal_errors", "sync")
        log.error("internal error in reading the runtime's state", exc_info=error)
