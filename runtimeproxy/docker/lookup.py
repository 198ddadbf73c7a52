"""Read pods and containers from dockerd as the core's records, when a call needs them and the Store lacks them.

Invariant: that a container belongs to no pod is remembered by its full id only, never by name (relay-rules B10).
"""

from collections import OrderedDict
from dataclasses import replace

from runtimeproxy.core.call import Life
from runtimeproxy.core.store import WHOLE_ID, Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.docker import messages, status
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.messages import CONTAINER_TYPE, POD_TYPE, Driver, RequestedContainer, RequestedPod
from runtimeproxy.docker.status import ImageDefaults
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, PodRecord, Subject
from runtimeproxy.wire.json import Object

REMEMBERED = 10_000
"""Most containers without a pod that are remembered."""
IMAGES_REMEMBERED = 64
"""Most images whose labels and environment are remembered, some KiB each; an image's id identifies its content."""


class Lookup:
    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._plain: dict[str, None] = {}
        self._images: OrderedDict[str, ImageDefaults] = OrderedDict()
        self.driver: Driver | None = None
        """The daemon's cgroup driver; None until it was read."""
        self._default_runtime = status.DEFAULT_RUNTIME

    async def learn_driver(self) -> None:
        """Ask the daemon for its cgroup driver and default runtime, and keep both. Raises BackendError, Unreadable."""
        driver, runtime = status.read_info(await self._backend.info())
        self.driver = messages.driver(driver)
        self._default_runtime = runtime or status.DEFAULT_RUNTIME

    async def known_driver(self) -> Driver:
        """Return the cgroup driver, asking the daemon if it is not known yet. Raises BackendError, Unreadable."""
        if self.driver is None:
            await self.learn_driver()
        assert self.driver is not None
        return self.driver

    def is_plain(self, container_id: str) -> bool:
        """Return whether a container is known to belong to no pod."""
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
        the Store has under that id takes precedence. Raises BackendError, Unreadable.
        """
        reply = await self._backend.inspect(reference)
        if reply is None:
            return None
        inspected = status.parse_inspect(reply, reference if len(reference) == WHOLE_ID else "")
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
        """List all pods and containers of pods. Raises BackendError."""
        rows = await self._backend.pods_containers()
        pods, containers = ([id for id, kind in rows if kind == wanted] for wanted in (POD_TYPE, CONTAINER_TYPE))
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
        What its image added is removed, for which the image has to be read.
        """
        if not messages.is_pods(reply):
            return None
        await self.known_driver()
        shipped = await self._image(inspected.get("Image", ""))
        return status.read_inspect(inspected, shipped, self._default_runtime)

    async def _image(self, image_id: str) -> ImageDefaults | None:
        """Return what an image adds to its containers, from a cache if possible; None if there is no such image. A
        node's containers use few images, and all of the containers are read after a restart.
        """
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
