"""What is measured: one row a case, for both of the proxy's modes.

Owns the cases, how many calls each makes in a round, on which ways.
Must not know: bodies, sockets, programs, limits.
Invariant: a row's name is its own within its mode.
"""

from dataclasses import dataclass

CRI, DOCKER = "cri", "docker"
DIRECT, PIPE, PROXY, HOOKED = "direct", "pipe", "proxy", "proxy+hook"
HELD_WAYS = (DIRECT, PROXY, HOOKED)
LIST_CONTAINERS = 200
LIST_BYTES = 1 << 20
TRANSFER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """``calls`` are those of one round on each way; ``concurrency`` is the number of calls in flight at a time.

    ``route`` is what the runtime counts the calls by: CRI's method, or Docker's method and path. ``status`` is that of
    a good answer in HTTP. Of a transfer a share of the bytes is made, and every call.
    """

    mode: str
    name: str
    route: str
    calls: int
    concurrency: int = 1
    ways: tuple[str, ...] = (DIRECT, PIPE, PROXY)
    status: int = 200
    transfers: bool = False


SMALL = Case(CRI, "small call (Version)", "Version", 12_000)
SMALL_16 = Case(CRI, "small call, 16 at a time", "Version", 12_000, concurrency=16)
LIST = Case(CRI, "list of 200 (1 MiB)", "ListContainers", 800)
LIST_16 = Case(CRI, "list of 200, 16 at a time", "ListContainers", 400, concurrency=16)
CREATE = Case(CRI, "held create", "CreateContainer", 2_000, ways=HELD_WAYS)

PING = Case(DOCKER, "ping", "GET /_ping", 12_000)
PING_16 = Case(DOCKER, "ping, 16 at a time", "GET /_ping", 12_000, concurrency=16)
DOCKER_LIST = Case(DOCKER, "list of 200 (1 MiB)", "GET /containers/json", 800)
DOCKER_LIST_16 = Case(DOCKER, "list of 200, 16 at a time", "GET /containers/json", 400, concurrency=16)
DOCKER_CREATE = Case(DOCKER, "held create", "POST /containers/create", 2_000, ways=HELD_WAYS, status=201)
START = Case(DOCKER, "held start (two hooks)", "POST /containers/{ref}/start", 2_000, ways=HELD_WAYS, status=204)
EXPORT = Case(DOCKER, "export of 1 GiB", "GET /containers/{ref}/export", 5, transfers=True)
IMPORT = Case(DOCKER, "import of 1 GiB", "POST /images/create", 5, transfers=True)

CASES = (
    *(SMALL, SMALL_16, LIST, LIST_16, CREATE),
    *(PING, PING_16, DOCKER_LIST, DOCKER_LIST_16, EXPORT, IMPORT, DOCKER_CREATE, START),
)
