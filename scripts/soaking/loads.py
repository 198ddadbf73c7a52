"""Calls that the bench does not measure: CRI's Status and ExecSync, Docker's inspect and exec.

Owns their cases and what they need on a way: the last three a container that runs.
Must not know: what goes on beside them, limits.
Invariant: a call's container was made through the same socket.
"""

from collections.abc import Callable, Mapping

from scripts.benchmark import cri, docker
from scripts.benchmark.cases import CRI, DOCKER, Case
from scripts.benchmark.h2load import H2load
from scripts.benchmark.modes import Load, Mode
from scripts.benchmark.served import Served
from scripts.soaking import execs
from tests.engines.cri import CriClient
from tests.fakes import cri_pb2
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

STATUS = Case(CRI, "Status", "Status", 12_000)
EXEC_SYNC = Case(CRI, "ExecSync", "ExecSync", 4_000)
INSPECT = Case(DOCKER, "inspect", "GET /containers/{ref}/json", 12_000)
EXEC = Case(DOCKER, "exec", execs.EXEC.route, 4_000, status=execs.EXEC.status)


def prepare(served: Served, mode: Mode, case: Case, way: str) -> Load:
    """Make what a case needs on a way, of these or of the bench's."""
    made = _PREPARE.get(case)
    return made(served, case, way) if made else mode.prepare(served, case, way)


def exec_sync(served: Served, case: Case, way: str) -> H2load:
    """Make a container that runs, and the call that executes ``echo`` in it."""
    files = served.client / f"exec-{way}"
    body = files.with_suffix(".body")
    pod = cri.pod()
    with CriClient(str(served.socket(way))) as client:
        request = cri.create(client.run_pod(pod), pod)
        made = client.call("CreateContainer", request).container_id
        client.call("StartContainer", cri_pb2.StartContainerRequest(container_id=made))
    body.write_bytes(cri.framed(cri_pb2.ExecSyncRequest(container_id=made, cmd=["echo", "ready"], timeout=10)))
    target = "/runtime.v1.RuntimeService/ExecSync"
    return H2load(case, served.socket(way), files, cri.HEADERS, lambda calls: [target], body)


def _inspect(served: Served, case: Case, way: str) -> H2load:
    with Dockershim(str(served.socket(way)), DOCKERSHIM) as shim:
        made = shim.create_container(docker.run_pod(shim), "main", command=["sleep", "1000"])
    target, files = f"{docker.VERSION}/containers/{made}/json", served.client / f"inspect-{way}"
    return H2load(case, served.socket(way), files, docker.HEADERS, lambda calls: [target])


_PREPARE: Mapping[Case, Callable[[Served, Case, str], Load]] = {
    EXEC_SYNC: exec_sync,
    INSPECT: _inspect,
    EXEC: lambda served, case, way: execs.prepare(served, case, way),
}
