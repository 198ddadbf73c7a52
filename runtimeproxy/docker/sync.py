"""Read pods and containers from dockerd for calls and for the Store, and follow its events to keep the Store valid.

Invariants: a record is removed only if the daemon reported its removal. The containers are listed only after the event
stream is open, so no change is lost between list and events. Containers without a pod are cached only by full id, never
by name (relay-rules B10).
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from runtimeproxy.core.call import Life
from runtimeproxy.core.store import FULL_ID_LENGTH, Store
from runtimeproxy.core.sync import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, Listed
from runtimeproxy.docker import messages, status
from runtimeproxy.docker.backend import UNREADABLE, Backend, Event
from runtimeproxy.docker.messages import CONTAINER_TYPE, POD_TYPE, Driver, RequestedContainer, RequestedPod
from runtimeproxy.docker.status import ImageDefaults
from runtimeproxy.errors import BackendError
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, PodRecord, Subject
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.wire.json import Object

log = logging.getLogger(__name__)

STANDALONE_LIMIT = 10_000
"""Most containers without a pod that are cached."""
IMAGE_LIMIT = 64
"""Most images whose labels and environment are cached, some KiB each; an image's id identifies its content."""
REPLAY_SECONDS = 5.0
"""Seconds after reconnecting in which the daemon replays earlier events."""


class Lookup:
    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._plain: dict[str, None] = {}
        self._images: OrderedDict[str, ImageDefaults] = OrderedDict()
        self.driver: Driver | None = None
        self._default_runtime = status.DEFAULT_RUNTIME

    async def read_driver(self) -> None:
        """Query the daemon's cgroup driver and default runtime, and store both. Raises BackendError, Unreadable."""
        driver, runtime = status.read_info(await self._backend.info())
        self.driver = messages.driver(driver)
        self._default_runtime = runtime or status.DEFAULT_RUNTIME

    async def cached_driver(self) -> Driver:
        """Return the cgroup driver; query the daemon the first time. Raises BackendError, Unreadable."""
        if self.driver is None:
            await self.read_driver()
        assert self.driver is not None
        return self.driver

    def is_plain(self, container_id: str) -> bool:
        return container_id in self._plain

    def forget_plain(self, container_id: str) -> None:
        self._plain.pop(container_id, None)

    def stored(self, full_id: str) -> Subject | None:
        """Return the pod or container with a full id from the Store, or None."""
        container = self._store.container(full_id)
        pod = self._store.pod(full_id if container is None else container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read(self, reference: str) -> tuple[str, Subject] | None:
        """Resolve a reference to its full id and subject; None if that does not exist or belongs to no pod. A record in
        the Store takes precedence. Raises BackendError, Unreadable."""
        reply = await self._backend.inspect(reference)
        if reply is None:
            return None
        inspected = status.parse_inspect(reply, reference if len(reference) == FULL_ID_LENGTH else "")
        full_id = messages.id_of(inspected)
        stored = self.stored(full_id)
        if stored is not None:
            return full_id, stored
        requested = await self._requested(reply, inspected)
        if requested is None:
            self._plain[full_id] = None
            if len(self._plain) > STANDALONE_LIMIT:
                del self._plain[next(iter(self._plain))]
            return None
        driver = await self.cached_driver()
        if isinstance(requested, RequestedPod):
            return full_id, Subject(self._read_pod(requested, driver))
        pod = await self.pod(requested.container.pod_id)
        if pod is None:
            return None
        # The Store may have had the container and lacked only its pod.
        read = self._store.read_container(container_info(requested, pod, driver))
        return full_id, merge.subject_of_read(pod, read)

    async def listed(self) -> Listed:
        """Raises BackendError."""
        rows = await self._backend.list_containers()
        pods, containers = ([id for id, label in rows if label == kind] for kind in (POD_TYPE, CONTAINER_TYPE))
        return Listed(pods, containers)

    async def container(self, container_id: str) -> Subject | None:
        """Return a container with its pod; None if it does not exist or has none. Raises BackendError, Unreadable."""
        result = await self.read(container_id)
        return None if result is None else result[1]

    async def life(self, container_id: str) -> Life | None:
        """Read whether a container was started and is running, or None. Raises BackendError, Unreadable."""
        reply = await self._backend.inspect(container_id)
        return None if reply is None else status.read_state(reply)

    async def pod(self, pod_id: str) -> PodRecord | None:
        """Return a pod from the Store, else from the daemon; None if there is none. Raises BackendError, Unreadable."""
        stored = self._store.pod(pod_id)
        if stored is not None:
            return stored
        reply = await self._backend.inspect(pod_id)
        requested = None if reply is None else await self._requested(reply, status.parse_inspect(reply, pod_id))
        if not isinstance(requested, RequestedPod):
            return None
        return self._read_pod(requested, await self.cached_driver())

    def _read_pod(self, requested: RequestedPod, driver: Driver) -> PodRecord:
        parent = messages.to_cri(requested.cgroup_parent, driver)
        return self._store.read_pod(replace(requested.pod, cgroup_parent=parent))

    async def _requested(self, reply: bytes, inspected: Object) -> RequestedPod | RequestedContainer | None:
        """Return the values that an inspected container was created with, without those of its image. None, without
        another request, if it belongs to no pod."""
        if not messages.may_belong_to_pod(reply):
            return None
        await self.cached_driver()
        defaults = await self._image(inspected.get("Image", ""))
        return status.read_inspect(inspected, defaults, self._default_runtime)

    async def _image(self, image_id: str) -> ImageDefaults | None:
        """Return the values that an image adds to its containers, from a cache if possible; None without such an image.
        A node's containers use few images, and all of the containers are read after a restart."""
        defaults = self._images.get(image_id)
        if defaults is None:
            image = await self._backend.image(image_id)
            if image is None:
                return None
            defaults = self._images[image_id] = status.read_image(image)
        self._images.move_to_end(image_id)
        if len(self._images) > IMAGE_LIMIT:
            self._images.popitem(last=False)
        return defaults


def container_info(requested: RequestedContainer, pod: PodRecord, driver: Driver) -> ContainerInfo:
    """Return a container with its cgroup parent in CRI's form, "" if it equals the pod's."""
    parent = messages.to_cri(requested.cgroup_parent, driver) or ""
    pod_parents = (pod.original.cgroup_parent, pod.effective.cgroup_parent)
    return replace(requested.container, cgroup_parent="" if parent in pod_parents else parent)


class EventFollower:
    """Callbacks with a full id: ``on_removed`` after destroy or rename, as caches outside the Store are then invalid
    (relay-rules B10); ``on_died`` when its process has ended; ``on_restarted`` when a client restarted it.

    ``on_connected`` is awaited after each connect; a BackendError from it counts as a lost connection. ``on_missed`` is
    called after that, and whenever an event may be missing. ``wall_clock_ns`` returns nanoseconds since 1970."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        metrics: Metrics,
        *,
        on_removed: Callable[[str], None],
        on_died: Callable[[str], None],
        on_restarted: Callable[[str], None],
        on_connected: Callable[[], Awaitable[None]],
        on_missed: Callable[[], None],
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.expected_updates: Counter[str] = Counter()
        """Numbers of expected events of the proxy's own updates, by full id."""
        self.foreign_changes = 0
        """Number of events about changes by other clients."""
        self._backend = backend
        self._store = store
        self._metrics = metrics
        self._on_removed = on_removed
        self._on_connected = on_connected
        self._on_missed = on_missed
        self._wall_clock_ns = wall_clock_ns
        self._since_ns = 0
        self._unavailable = False
        self._overdue: Counter[str] = Counter()
        """Updates expected before the stream was lost: a restarted daemon has lost their events."""
        self._handlers: dict[str, Callable[[str], None]] = {
            "die": on_died,
            "restart": on_restarted,
            "destroy": self._destroyed,
            "rename": on_removed,
            "update": self._updated,
        }
        """The requested events and their handlers; oom, kill and start change nothing."""

    def expect_update(self, container_id: str) -> None:
        """Treat the next update event of a container as the proxy's own. Call this before sending the update."""
        self.expected_updates[container_id] += 1

    def cancel_update(self, container_id: str) -> None:
        """Cancel an expected update event: the daemon rejected the update, or the event was received."""
        for expected in (self.expected_updates, self._overdue):
            expected[container_id] -= 1
            if expected[container_id] <= 0:
                del expected[container_id]

    def forget_container(self, container_id: str) -> None:
        """Forget, outside the Store, a container that the daemon has removed."""
        self.expected_updates.pop(container_id, None)
        self._on_removed(container_id)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._since_ns = self._wall_clock_ns()
        delay = FIRST_RETRY_SECONDS
        while True:
            started = loop.time()
            await self._follow()
            if loop.time() - started > LONGEST_RETRY_SECONDS:  # it worked for a while
                delay = FIRST_RETRY_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    async def _follow(self) -> None:
        """Connect and follow the events until that fails; log and count the failure."""
        failure, reason = "backend_event_dial_failures", "internal error"
        timer: asyncio.TimerHandle | None = None
        try:
            async with self._backend.events(self._handlers, self._since_ns) as events:
                failure = "backend_event_stream_losses"
                await self._on_connected()
                self._metrics.events.runtime_back("events")
                if self._unavailable:
                    self._unavailable = False
                    log.info("the daemon's events are followed again")
                self._on_missed()
                timer = asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._drop_overdue)
                async for event in events:
                    self._handle(event)
        except BackendError as error:
            reason = str(error)
            self._metrics.events.runtime_lost("events", error.kind.value)
        except Exception as error:  # a bug must not end the loop permanently; the error's text may have values
            self._metrics.count("internal_errors", "events")
            log.error("internal error in following the daemon's events", exc_info=error)
        finally:
            if timer is not None:
                timer.cancel()
            self._overdue = Counter(self.expected_updates)
        self._metrics.count(failure)
        if not self._unavailable:
            self._unavailable = True
            log.warning("the daemon's events cannot be followed (%s): trying again until they can", reason)

    def _drop_overdue(self) -> None:
        """Cancel overdue expectations, so that another client's update does not count as the proxy's own."""
        for container_id in tuple(self._overdue.elements()):
            self.cancel_update(container_id)

    def _handle(self, event: Event) -> None:
        if event is UNREADABLE:  # it may be the end of a container
            self._metrics.count("backend_events_unreadable")
            self._on_missed()
            return
        self._since_ns = event.time_ns + 1  # a new stream continues here: no event is lost or repeated
        handler = self._handlers.get(event.action)
        if handler is not None:
            self._metrics.count("backend_events", event.action)
            handler(event.id)

    def _destroyed(self, container_id: str) -> None:
        self._store.tombstone(container_id, alone=True)  # dockerd reports each container of a pod
        self.forget_container(container_id)

    def _updated(self, container_id: str) -> None:
        """Forget the container's record, to be read again when needed, unless the update is the proxy's own."""
        if self.expected_updates[container_id] > 0:
            self.cancel_update(container_id)
        else:
            self._metrics.count("updates_of_others")
            self.foreign_changes += 1
            self._store.forget(container_id)
