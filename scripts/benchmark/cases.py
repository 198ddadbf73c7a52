"""What is measured: one row a case, for both of the proxy's modes.

Owns the cases, how many calls each makes in a round, on which ways.
Must not know: bodies, sockets, programs, limits.
Invariant: a row's name is its own within its mode.
"""

from dataclasses import dataclass, replace

CRI, DOCKER = "cri", "docker"
DIRECT, PIPE, PROXY, HOOKED = "direct", "pipe", "proxy", "proxy+hook"
HELD_WAYS = (DIRECT, PIPE, PROXY, HOOKED)
LIST_CONTAINERS = 200
LIST_BYTES = 1 << 20
TRANSFER_BYTES = 1 << 30
HELD_CALLS, COLD_CALLS = 500, 60
COLD_SECONDS = 0.02
"""A node makes a few held calls a second: between two of them the processor does other things."""


@dataclass(frozen=True, slots=True)
class Case:
    """``calls`` are those of one round on each way; ``concurrency`` is the number of calls in flight at a time.

    ``route`` is what the runtime counts the calls by: CRI's method, or Docker's method and path. ``status`` is that of
    a good answer in HTTP. Of a transfer a share of the bytes is made, and every call. ``pause`` is the sleep before a
    kubelet's call, in seconds; None is of a load's.
    """

    mode: str
    name: str
    route: str
    calls: int
    concurrency: int = 1
    ways: tuple[str, ...] = (DIRECT, PIPE, PROXY)
    status: int = 200
    transfers: bool = False
    pause: float | None = None

    @property
    def cold(self) -> "Case":
        """Return the same case with sleep between the calls."""
        return replace(self, name=f"{self.name}, cold", calls=COLD_CALLS, pause=COLD_SECONDS)


def _held(mode: str, name: str, route: str) -> Case:
    return Case(mode, name, route, HELD_CALLS, ways=HELD_WAYS, pause=0.0)


# A kubelet's calls.
VERSION = Case(CRI, "Version", "Version", 4_000, pause=0.0)
LISTED = Case(CRI, "list of 200", "ListContainers", 200, pause=0.0)
RUN = _held(CRI, "RunPodSandbox", "RunPodSandbox")
CREATE = _held(CRI, "CreateContainer", "CreateContainer")
START = _held(CRI, "StartContainer", "StartContainer")
UPDATE = _held(CRI, "UpdateContainerResources", "UpdateContainerResources")

DOCKER_VERSION = Case(DOCKER, "ping", "GET /_ping", 4_000, pause=0.0)
DOCKER_LISTED = Case(DOCKER, "list of 200", "GET /containers/json", 200, pause=0.0)
DOCKER_POD = "create of a pod's sandbox"
"""Stands for the route of these, which is that of containers' creates."""
DOCKER_CREATE = _held(DOCKER, "create", "POST /containers/create")
DOCKER_START = _held(DOCKER, "start", "POST /containers/{ref}/start")
DOCKER_UPDATE = _held(DOCKER, "update", "POST /containers/{ref}/update")

HELD = (RUN, CREATE, START, UPDATE, DOCKER_CREATE, DOCKER_START, DOCKER_UPDATE)

# A load's.
SMALL = Case(CRI, "small call (Version)", "Version", 12_000)
SMALL_16 = Case(CRI, "small call, 16 at a time", "Version", 12_000, concurrency=16)
LIST = Case(CRI, "list of 200 (1 MiB)", "ListContainers", 800)
LIST_16 = Case(CRI, "list of 200 (1 MiB), 16 at a time", "ListContainers", 400, concurrency=16)

PING = Case(DOCKER, "small call (ping)", "GET /_ping", 12_000)
PING_16 = Case(DOCKER, "small call, 16 at a time", "GET /_ping", 12_000, concurrency=16)
DOCKER_LIST = Case(DOCKER, "list of 200 (1 MiB)", "GET /containers/json", 800)
DOCKER_LIST_16 = Case(DOCKER, "list of 200 (1 MiB), 16 at a time", "GET /containers/json", 400, concurrency=16)
EXPORT = Case(DOCKER, "export of 1 GiB", "GET /containers/{ref}/export", 5, transfers=True)
IMPORT = Case(DOCKER, "import of 1 GiB", "POST /images/create", 5, transfers=True)

CASES = (
    *(VERSION, VERSION.cold, LISTED, DOCKER_VERSION, DOCKER_VERSION.cold, DOCKER_LISTED),
    *HELD,
    *(case.cold for case in HELD),
    *(SMALL_16, LIST_16, PING_16, DOCKER_LIST_16, EXPORT, IMPORT),
)
"""What the bench measures; the others are those of who measures calls beside something else."""
