"""The demo's modes: a private engine or a fake runtime of the tests, and a kubelet's client of each.

Both clients have the same methods, which take CRI's messages. Docker's API does not report the RDT class of a create.
"""

import http.client
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from scripts.demonstration.processes import interruption, program
from tests.engines.containerd import Containerd
from tests.engines.cri import CriClient
from tests.engines.dockerd import Dockerd
from tests.engines.engine import Engine, EngineError
from tests.engines.probe import missing_for
from tests.fakes.dockershim import DockerError
from tests.system.real import Kubelet as DockerClient

ERRORS = (grpc.RpcError, DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""
Client = CriClient | DockerClient


def reason(error: BaseException) -> str:
    """Return why a call failed, without gRPC's dump of the call."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


class Mode(NamedTuple):
    """A mode: ``flags`` are the proxy's as documented, ``changed`` the fields that ``explain`` must name."""

    title: str
    rdt: str
    flags: Sequence[str]
    changed: str
    name: str
    engine: Callable[[], Engine]
    fake: str
    client: Callable[[str], Client]

    @contextmanager
    def runtime(self, folder: Path, why_fake: str) -> Iterator[tuple[str, Engine | None]]:
        """Run the engine, or a fake runtime if there is a reason why; yield its socket, and the engine. Raises
        EngineError."""
        if why_fake:
            socket = folder / "fake.sock"
            print(f"Runtime: a FAKE one of the tests, {self.fake}; no container really runs ({why_fake})")
            with program("fake", [sys.executable, "-m", self.fake, f"--socket={socket}"], folder) as running:
                running.wait_until_it_listens(socket)
                yield str(socket), None
            return
        if missing := missing_for(self.name):
            raise EngineError(missing)
        engine = self.engine()
        try:
            engine.start()
            print(f"Runtime: a private {self.name} on {engine.socket}")
            yield engine.socket, engine
        finally:
            with interruption.held():
                engine.stop()


MODES: Mapping[str, Mode] = {
    "cri": Mode(
        "CRI mode",
        "this containerd has RDT off: it gets the class; the threads are moved right after the start",
        ("--remote-runtime-service-endpoint={runtime}", "--remote-image-service-endpoint={runtime}"),
        "cpu_quota, cpu_shares, memory_limit_in_bytes",
        *("containerd", Containerd, "tests.fakes.runtime", CriClient),
    ),
    "docker": Mode(
        "Docker mode",
        "Docker has no field for the class; the threads are moved right after the start",
        ("--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint={runtime}"),
        # The swap limit follows the memory limit.
        "cpu_quota, cpu_shares, memory_limit_in_bytes, memory_swap_limit_in_bytes",
        *("dockerd", Dockerd, "tests.fakes.dockerd", DockerClient),
    ),
}
"""The modes by the value of --mode, in the order in which they are shown."""
