"""A common interface of the fronts, so that one test covers both.

Pods and containers are given in the kubelet's terms; a request is the bytes that are sent for it.
"""

import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.dockershim_bodies import Container, Pod, Values
from tests.system.proxy import ProxyInside, ProxyProcess

SECONDS = 30.0
PARENT = "/kubepods/burstable/pod-uid"
SKIP = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
POD = Pod("pod", "pod-uid", cgroup_parent=PARENT)
CONTAINER = Container(
    "main",
    BUSYBOX_IMAGE,
    command=("/bin/sh", "-c", "sleep 3600"),
    envs=(("A", "1"), ("B", "2")),
    labels={"app": "web"},
    annotations={"note": "kept"},
    resources={
        "cpu_period": 100000,
        "cpu_quota": 200000,
        "cpu_shares": 1024,
        "memory_limit_in_bytes": 1 << 28,
        "oom_score_adj": 999,
    },
)
UPDATE: Values = {"cpu_shares": 512}

_attempts = itertools.count()
"""Makes the names of a run unique: dockerd refuses a used name."""


class Failed(Exception):
    """A failed call: the front's own status (None if the connection ended early), and the text."""

    def __init__(self, status: object, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class Stream(Protocol):
    """A bidirectional stream whose other end echoes; ``read`` raises Failed at the end."""

    async def write(self, data: bytes) -> None: ...
    async def read(self) -> bytes: ...
    async def close(self) -> None: ...


class Caller(Protocol):
    """A kubelet's side of a socket; concurrent calls do not wait for one another.

    Verbs are run_pod, create, start, update, stop, remove, stop_pod, remove_pod, pod_status, ping, list and images.
    Every failed call raises Failed. A cancelled or late call is cancelled as by the front's clients.
    """

    pods: dict[str, Pod]
    """The created pods by id: a container's create repeats its pod."""

    def __init__(self) -> None:
        self.pods = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    # Implemented by each front. A container of a pod that this caller did not run is like one of ``POD``. A front
    # without annotations in updates omits them. ``request`` contains only the subject of a call. ``broken_request`` is
    # malformed and contains a text. ``id_in`` is the id in a reply to run_pod, create or pod_status.

    async def close(self) -> None: ...
    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes: ...
    def pod_request(self, pod: Pod) -> bytes: ...
    def container_request(self, pod_id: str, container: Container) -> bytes: ...
    def update_request(self, container_id: str, resources: Values, annotations: Mapping[str, str]) -> bytes: ...
    def request(self, verb: str, subject_id: str = "") -> bytes: ...
    def broken_request(self, verb: str, text: bytes) -> bytes: ...
    def id_in(self, verb: str, reply: bytes) -> str: ...
    async def open_stream(self) -> Stream: ...
    async def call_unheld(self, secret: str) -> None:
        """Make calls that are not held, with a secret in every value; they may fail."""

    def create_request(self, pod_id: str, container: Container = CONTAINER) -> bytes:
        return self.container_request(pod_id, replace(container, attempt=next(_attempts)))

    async def run_pod(self, pod: Pod = POD) -> str:
        new = replace(pod, attempt=next(_attempts))
        pod_id = self.id_in("run_pod", await self.send("run_pod", self.pod_request(new)))
        self.pods[pod_id] = new
        return pod_id

    async def create(self, pod_id: str, container: Container = CONTAINER) -> str:
        return self.id_in("create", await self.send("create", self.create_request(pod_id, container)))

    async def update(
        self, container_id: str, resources: Values = UPDATE, annotations: Mapping[str, str] | None = None
    ) -> None:
        await self.send("update", self.update_request(container_id, resources, annotations or {}))

    async def act(self, verb: str, subject_id: str = "") -> bytes:
        return await self.send(verb, self.request(verb, subject_id))


Runtime = Any
"""A fake runtime; its records omit the proxy's own requests. ``arrived`` are the callers' requests of a verb as bytes,
in order. ``set_fault`` delays a verb's later calls, or answers them with an error of this text. ``reads`` counts the
single pods and containers that the proxy has read by itself. ``vanish`` removes one without any call or event.
``long_list`` sets the length of the list of containers, and returns the reply's message.
"""


@dataclass(frozen=True, slots=True)
class Front:
    """A front.

    Its statuses are those of a call that failed under policy Fail, was refused, or lost the runtime's connection.

    ``exchange`` takes a socket, a verb (ping) and a request, sends it on its own connection, which it drops at the end,
    and returns the reply's message; it raises OSError without a proxy, ConnectionError without a runtime.
    ``default_socket`` is where the runtime listens by default, relative to the root. ``never_imported`` are modules of
    other modes.
    """

    name: str
    flags: Mapping[str, str]
    runtime: Callable[[str], Runtime]
    caller: Callable[[Path | str], Caller]
    exchange: Callable[..., Coroutine[Any, Any, bytes]]
    failed: Any
    refused: Any
    lost: Any
    default_socket: str
    never_imported: Sequence[str]

    def process(self, folder: Path, **more: Any) -> ProxyProcess:
        """Return a proxy of this front as a program; ``more`` as in ``ProxyProcess``."""
        return ProxyProcess(folder, **{**self.flags, **more})

    def inside(self, folder: Path, **flags: str) -> ProxyInside:
        return ProxyInside(folder, **self.flags, **flags)
