"""What the daemon knows of a container, as the core's records: read when a call needs it and the Store lacks it.

Owns the reading by any reference, the list of pods and containers, the cgroup driver, and the memory of images and of
what is no pod's.
Must not know: held requests, hook servers.
Invariant: an answer of "no pod's" is remembered by full id only, never by name (relay-rules B10).
"""

from collections import OrderedDict
from dataclasses import replace

from runtimeproxy.core.store import WHOLE_ID, Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.docker import cgroup, status, translate
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.cgroup import Driver
from runtimeproxy.docker.resources import CONTAINER_TYPE, POD_TYPE
from runtimeproxy.docker.status import Shipped
from runtimeproxy.docker.translate import RequestedContainer, RequestedPod
from runtimeproxy.model import records
from runtimeproxy.model.values import ContainerInfo, PodInfo, PodRecord, Subject
from runtimeproxy.wire.json import Object

REMEMBERED = 10_000
"""How many containers that are no pod's are remembered."""
IMAGES_REMEMBERED = 64
"""Of how many images is remembered what they ship, some KiB each; an image's id is that of its content."""


class Lookup:
    """Reads pods and containers from the daemon."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._plain: dict[str, None] = {}
        self._images: OrderedDict[str, Shipped] = OrderedDict()
        self.driver: Driver | None = None
        """Who makes the daemon's cgroups; None until the daemon was asked."""
        self._default_runtime = status.DEFAULT_RUNTIME

    async def learn_driver(self) -> None:
        """Ask the daemon for its cgroup driver, and for the runtime that it names by itself.

        Raises BackendError, Unreadable.
        """
        driver, runtime = status.read_info(await self._backend.info())
        self.driver = cgroup.driver(driver)
        self._default_runtime = runtime or status.DEFAULT_RUNTIME

    async def known_driver(self) -> Driver:
        """Return the cgroup driver, asked for if need be. Raises BackendError, Unreadable."""
        if self.driver is None:
            await self.learn_driver()
        assert self.driver is not None
        return self.driver

    # What is no pod's.

    def is_plain(self, container_id: str) -> bool:
        """Tell whether a container is known to be no pod's."""
        return container_id in self._plain

    def forget_plain(self, container_id: str) -> None:
        """Forget that a container is no pod's."""
        self._plain.pop(container_id, None)

    def _remember_plain(self, container_id: str) -> None:
        self._plain[container_id] = None
        if len(self._plain) > REMEMBERED:
            del self._plain[next(iter(self._plain))]

    # Subjects.

    def known(self, full_id: str) -> Subject | None:
        """Return what the Store knows under a full id."""
        container = self._store.container(full_id)
        pod = self._store.pod(full_id if container is None else container.effective.pod_id)
        return None if pod is None else Subject(pod, container)

    async def read(self, reference: str) -> tuple[str, Subject] | None:
        """Read what a reference names and its full id; None if there is none, or it is no pod's.

        What the Store knows under that id stands. Raises BackendError, Unreadable.
        """
        reply = await self._backend.inspect(reference)
        if reply is None:
            return None
        inspected = status.parse_inspect(reply, reference if len(reference) == WHOLE_ID else "")
        full_id = translate.id_of(inspected)
        known = self.known(full_id)
        if known is not None:
            return full_id, known
        asked = await self._asked(reply, inspected)
        if asked is None:
            self._remember_plain(full_id)
            return None
        driver = await self.known_driver()
        if isinstance(asked, RequestedPod):
            return full_id, Subject(self._store.read_pod(self.pod_info(asked, driver)))
        pod = await self.pod(asked.container.pod_id)
        if pod is None:
            return None
        # Its pod alone may be unknown.
        return full_id, records.was_read(pod, self._store.read_container(self.container_info(asked, pod, driver)))

    async def listed(self) -> Listed:
        """List all pods and containers of pods. Raises BackendError."""
        rows = await self._backend.pods_containers()
        pods, containers = ([id for id, kind in rows if kind == wanted] for wanted in (POD_TYPE, CONTAINER_TYPE))
        return Listed(pods, containers)

    async def container(self, container_id: str) -> Subject | None:
        """Return a container with its pod; None if it is no pod's. Raises BackendError, Unreadable."""
        found = await self.read(container_id)
        return None if found is None else found[1]

    async def pod(self, pod_id: str) -> PodRecord | None:
        """Return a pod from the Store, else from the daemon. Raises BackendError, Unreadable."""
        known = self._store.pod(pod_id)
        if known is not None:
            return known
        asked = await self._inspected(pod_id)
        if not isinstance(asked, RequestedPod):
            return None
        return self._store.read_pod(self.pod_info(asked, await self.known_driver()))

    async def _inspected(self, full_id: str) -> RequestedPod | RequestedContainer | None:
        """Read what a container was made of; None if it is no pod's, or not there."""
        reply = await self._backend.inspect(full_id)
        if reply is None:
            return None
        return await self._asked(reply, status.parse_inspect(reply, full_id))

    async def _asked(self, reply: bytes, inspected: Object) -> RequestedPod | RequestedContainer | None:
        """Read what an inspected container was made of; None if it is no pod's, for which the daemon is not asked more.

        What the image added is taken off, and only the image itself tells that.
        """
        if not translate.is_pods(reply):
            return None
        await self.known_driver()
        shipped = await self._image(translate.text_of(inspected, "Image"))
        return status.read_inspect(inspected, shipped, self._default_runtime)

    async def _image(self, image_id: str) -> Shipped | None:
        """Read an image, once: a node's containers are made of few, and all of them are read after a restart."""
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

    @staticmethod
    def pod_info(asked: RequestedPod, driver: Driver) -> PodInfo:
        """Return a pod with its cgroup parent in CRI's form."""
        return replace(asked.pod, cgroup_parent=_in_cri(asked, driver))

    @staticmethod
    def container_info(asked: RequestedContainer, pod: PodRecord, driver: Driver) -> ContainerInfo:
        """Return a container with its cgroup parent in CRI's form; one that is its pod's is not its own."""
        parent = _in_cri(asked, driver) or ""
        shared = (pod.original.cgroup_parent, pod.effective.cgroup_parent)
        return replace(asked.container, cgroup_parent="" if parent in shared else parent)


def _in_cri(asked: RequestedPod | RequestedContainer, driver: Driver) -> str | None:
    """Return a cgroup parent in CRI's form; None if it is unknown."""
    return None if asked.cgroup_parent is None else cgroup.to_cri(asked.cgroup_parent, driver)
