"""What differs between a bench of CRI mode and one of Docker mode: one row a mode.

Owns the servers, the proxy's flags, the hook points and their calls, what stands for a small call.
Must not know: how anything is started or measured.
Invariant: every case of ``cases`` is one mode's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scripts.benchmark import cri, docker, kubelet
from scripts.benchmark.cases import (
    CASES,
    CREATE,
    CRI,
    DOCKER,
    DOCKER_CREATE,
    DOCKER_POD,
    DOCKER_START,
    DOCKER_UPDATE,
    PING_16,
    RUN,
    SMALL_16,
    START,
    UPDATE,
    Case,
)
from scripts.benchmark.h2load import Run
from scripts.benchmark.served import Served


class Load(Protocol):
    """What makes the calls of a case on a way."""

    def run(self, calls: int) -> Run:
        """Make so many calls. Raises DemoError if one fails."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of the proxy; ``libraries`` are those that an idle proxy must not have loaded, by a part of their path."""

    name: str
    server: str
    """The module of the runtime behind the proxy."""
    flags: tuple[str, ...]
    points: Mapping[str, str]
    """The hook points that the hook server takes -> the route of the calls that come to them."""
    libraries: Mapping[str, str]
    small: Case
    create: Case
    load: Callable[[Served, Case, str], Load]
    """Makes what a load's case needs on a way."""

    def prepare(self, served: Served, case: Case, way: str) -> Load:
        """Make what a case needs on a way."""
        return (self.load if case.pause is None else kubelet.Kubelet)(served, case, way)

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return the mode's cases."""
        return tuple(case for case in CASES if case.mode == self.name)


_GRPCIO = {"grpcio": "/grpc/_cython/"}
MODES = {
    CRI: Mode(
        name=CRI,
        server="scripts.benchmark.runtime",
        flags=(),
        points={
            "PreRunPodSandbox": RUN.route,
            "PreCreateContainer": CREATE.route,
            "PreStartContainer": START.route,
            "PostStartContainer": START.route,
            "PreUpdateContainerResources": UPDATE.route,
        },
        libraries={"aiohttp": "/aiohttp/", **_GRPCIO},
        small=SMALL_16,
        create=CREATE,
        load=cri.prepare,
    ),
    DOCKER: Mode(
        name=DOCKER,
        server="scripts.benchmark.dockerd",
        flags=("--backend-runtime-mode=Docker",),
        points={
            "PreRunPodSandbox": DOCKER_POD,
            "PreCreateContainer": DOCKER_CREATE.route,
            "PreStartContainer": DOCKER_START.route,
            "PostStartContainer": DOCKER_START.route,
            "PreUpdateContainerResources": DOCKER_UPDATE.route,
        },
        libraries=_GRPCIO,  # aiohttp follows the daemon's events
        small=PING_16,
        create=DOCKER_CREATE,
        load=docker.prepare,
    ),
}
