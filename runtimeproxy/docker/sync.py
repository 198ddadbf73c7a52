"""Read pods and containers from dockerd for calls and for the Store, and follow its events to keep the Store valid.

Invariants: a record is removed only if the daemon reported it gone. The containers are listed only after the event
stream is open, so no change is lost between list and events. That a container belongs to no pod is remembered by its
full id only, never by name (relay-rules B10).
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

REMEMBERED = 10_000
"""Most containers without a pod that are remembered."""
IMAGES_REMEMBERED = 64
"""Most images whose labels and environment are remembered, some KiB each; an image's id identifies its content."""
REPLAY_SECONDS = 5.0
"""Seconds after reconnecting in which the daemon sends the events that it remembers from before."""


class Lookup:
    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._plain: dict[str, None] = {}
        self._images: OrderedDict[str, ImageDefaults] = OrderedDict()
        self.driver: Driver | None = None
        self._default_runtime = status.DEFAULT_RUNTIME

    async def learn_driver(self) -> None:
        """Query the daemon's cgroup driver and default runtime, and keep both. Raises BackendError, Unreadable."""
        driver, runtime = status.read_info(await self._backend.info())
        self.driver = messages.driver(driver)
        self._default_runtime = runtime or status.DEFAULT_RUNTIME

    async def known_driver(self) -> Driver:
        """Return the cgroup driver; query the daemon if it is not known yet. Raises BackendError, Unreadable."""
        if self.driver is None:
            await self.learn_driver()
        assert self.driver is not None
        return self.driver

    def is_plain(self, container_id: str) -> bool:
        return container_id in self._plain

    def forget_plain(self, container_id: str) -> None:
        self._plain.pop(container_id, None)

    def known(self, full_id: str) -> Subject | None:
        """Return the pod or container that the Store has under a full id; None if it has none."""
        container = self._store.container(full_id)
        pod = self._store.pod(full_id if container is None else container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read(self, reference: str) -> tuple[str, Subject] | None:
        """Read what a reference names, and its full id; None if it does not exist or belongs to no pod. A record that
        the Store has under that id takes precedence. Raises BackendError, Unreadable."""
        reply = await self._backend.inspect(reference)
        if reply is None:
            return None
        inspected = status.parse_inspect(reply, reference if len(reference) == FULL_ID_LENGTH else "")
        full_id = messages.id_of(inspected)
        known = self.known(full_id)
        if known is not None:
            return full_id, known
        requested = await self._requested(reply, inspected)
        if requested is None:
            self._plain[full_id] = None
            if len(self._plain) > REMEMBERED:
                del self._plain[next(iter(self._plain))]
            return None
        driver = await self.known_driver()
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
        rows = await self._backend.pods_containers()
        pods, containers = ([id for id, kind in rows if kind == desired] for desired in (POD_TYPE, CONTAINER_TYPE))
        return Listed(pods, containers)

    async def container(self, container_id: str) -> Subject | None:
        """Return a container with its pod; None if it does not exist or has none. Raises BackendError, Unreadable."""
        found = await self.read(container_id)
        return None if found is None else found[1]

    async def life(self, container_id: str) -> Life | None:
        """Read whether a container was started and runs; None if it does not exist. Raises BackendError, Unreadable."""
        reply = await self._backend.inspect(container_id)
        return None if reply is None else status.read_state(reply)

    async def pod(self, pod_id: str) -> PodRecord | None:
        """Return a pod from the Store, else from the daemon; None if there is none. Raises BackendError, Unreadable."""
        known = self._store.pod(pod_id)
        if known is not None:
            return known
        reply = await self._backend.inspect(pod_id)
        requested = None if reply is None else await self._requested(reply, status.parse_inspect(reply, pod_id))
        if not isinstance(requested, RequestedPod):
            return None
        return self._read_pod(requested, await self.known_driver())

    def _read_pod(self, requested: RequestedPod, driver: Driver) -> PodRecord:
        parent = messages.to_cri(requested.cgroup_parent, driver)
        return self._store.read_pod(replace(requested.pod, cgroup_parent=parent))

    async def _requested(self, reply: bytes, inspected: Object) -> RequestedPod | RequestedContainer | None:
        """Return what an inspected container was created with; None, without another request, if it belongs to no pod.
        What its image added is removed, for which the image has to be read."""
        if not messages.is_pods(reply):
            return None
        await self.known_driver()
        shipped = await self._image(inspected.get("Image", ""))
        return status.read_inspect(inspected, shipped, self._default_runtime)

    async def _image(self, image_id: str) -> ImageDefaults | None:
        """Return what an image adds to its containers, from a cache if possible; None if there is no such image. A
        node's containers use few images, and all of the containers are read after a restart."""
        shipped = self._images.get(image_id)
        if shipped is None:
            image = await self._backend.image(image_id)
            if image is None:
                return None
            shipped = self._images[image_id] = status.read_image(image)
        self._images.move_to_end(image_id)
        if len(self._images) > IMAGES_REMEMBERED:
            self._images.popitem(last=False)
        return shipped


def container_info(requested: RequestedContainer, pod: PodRecord, driver: Driver) -> ContainerInfo:
    """Return a container with its cgroup parent in CRI's form, or "" if that is its pod's."""
    parent = messages.to_cri(requested.cgroup_parent, driver) or ""
    shared = (pod.original.cgroup_parent, pod.effective.cgroup_parent)
    return replace(requested.container, cgroup_parent="" if parent in shared else parent)


class EventFollower:
    """``on_gone`` is called with the full id of a container that was destroyed or renamed: what is remembered of it
    outside the Store is no longer valid (relay-rules B10). ``on_died`` is called with the id of one whose process has
    ended, ``on_restarted`` with that of one that a client restarted. ``on_connected`` is awaited after each connect; a
    BackendError from it counts like a lost connection. ``on_missed`` is called after that, and whenever an event may
    have been missed. ``wall_clock_ns`` returns nanoseconds since 1970."""

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
        self._unavailable = False
        self._overdue: Counter[str] = Counter()
        """The expected updates from before the stream was lost: a daemon that restarted has lost their events."""
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
        loop = asyncio.get_running_loop()
        self._since_ns = self._wall_clock_ns()
        delay = FIRST_RETRY_SECONDS
        while True:
            began = loop.time()
            await self._follow()
            if loop.time() - began > LONGEST_RETRY_SECONDS:  # it worked for a while
                delay = FIRST_RETRY_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    async def _follow(self) -> None:
        """Connect and follow the events until that fails; log and count the failure."""
        failure, reason = "backend_event_dial_failures", "internal error"
        dropping: asyncio.TimerHandle | None = None
        try:
            async with self._backend.events(self._meanings, self._since_ns) as events:
                failure = "backend_event_stream_losses"
                await self._on_connected()
                self._metrics.events.runtime_back("events")
                if self._unavailable:
                    self._unavailable = False
                    log.info("the daemon's events are followed again")
                self._on_missed()
                dropping = asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._drop_overdue)
                async for event in events:
                    self._take(event)
        except BackendError as error:
            reason = str(error)
            self._metrics.events.runtime_lost("events", error.kind.value)
        except Exception as error:  # a bug must not end the following permanently; the error's text may have values
            self._metrics.count("internal_errors", "events")
            log.error("internal error in following the daemon's events", exc_info=error)
        finally:
            if dropping is not None:
                dropping.cancel()
            self._overdue = Counter(self.expected_updates)
        self._metrics.count(failure)
        if not self._unavailable:
            self._unavailable = True
            log.warning("the daemon's events cannot be followed (%s): trying again until they can", reason)

    def _drop_overdue(self) -> None:
        """Cancel the overdue expectations, so that another client's update is not taken for the proxy's own."""
        for container_id in tuple(self._overdue.elements()):
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
        self._store.tombstone(container_id, alone=True)  # dockerd reports a pod's containers one by one
        self.gone(container_id)

    def _updated(self, container_id: str) -> None:
        """Forget the container's record, to be read again when it is needed, unless the update is the proxy's own."""
        if self.expected_updates[container_id] > 0:
            self.no_update(container_id)
        else:
            self._metrics.count("updates_of_others")
            self.changes += 1
            self._store.forget(container_id)
