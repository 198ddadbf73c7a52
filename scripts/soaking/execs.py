"""Docker's execs, many at once: what ``docker exec`` asks for, timed from the create to the end of the output.

Owns the two requests of an exec, the clients that make them, each exec's time.
Must not know: who listens, what is compared.
Invariant: an exec whose output is not whole, or that is not ended, is no measurement; it raises.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from scripts.benchmark import docker
from scripts.benchmark.cases import DOCKER, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from tests.docker.client import Client, request
from tests.fakes.dockerd_programs import STDOUT, frame
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockershim import DOCKERSHIM, Dockershim
from tests.fakes.dockershim_bodies import exec_body

EXEC = Case(DOCKER, "200 execs", "POST /containers/{ref}/exec", 4_000, concurrency=200, status=201)
"""Its route is that of the create: what the start answers is no good answer to who counts those."""
SECONDS = 300.0
COMMAND = ["echo", "ready"]
OUTPUT = frame(STDOUT, b"ready\n")
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
SWITCHED = b"HTTP/1.1 101 "


def prepare(served: Served, case: Case, way: str) -> "Execs":
    """Run a container on a way, for execs in it, as many at a time as the case has."""
    with Dockershim(str(served.socket(way)), DOCKERSHIM) as shim:
        container = shim.create_container(docker.run_pod(shim), "main", command=["sleep", "1000"])
        shim.start_container(container)
    return Execs(served.socket(way), f"{docker.VERSION}/containers/{container}/exec", case.concurrency)


@dataclass(frozen=True, slots=True)
class Execs:
    """Execs in one container; ``target`` is that of a create."""

    socket: Path
    target: str
    concurrency: int = EXEC.concurrency

    def run(self, calls: int) -> Run:
        """Make execs. Raises DemoError if one fails."""
        took: list[int] = []
        began = time.monotonic_ns()
        uvloop.run(self._all(iter(range(calls)), min(self.concurrency, calls), took))
        return Run(tuple(took), (time.monotonic_ns() - began) / 1e9)

    async def _all(self, numbers: Iterator[int], clients: int, took: list[int]) -> None:
        async def make() -> None:
            for _ in numbers:
                took.append(await self._exec())

        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for _ in range(clients):
                    group.create_task(make())
        except TimeoutError:
            raise DemoError(f"the execs did not end in {SECONDS:.0f} s, {len(took)} did") from None
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise DemoError(f"an exec failed: {type(first).__name__}: {first}") from None

    async def _exec(self) -> int:
        """Make one, each of its requests on a connection of its own; return its microseconds."""
        began = time.monotonic_ns()
        async with _connected(self.socket) as client:
            answer = await client.ask("POST", self.target, go_json(exec_body(COMMAND)), *docker.HEADERS)
        if answer.status != EXEC.status:
            raise DemoError(f"the create was answered {answer.status}")
        await self._start(answer.json)
        return (time.monotonic_ns() - began) // 1000

    async def _start(self, made: Mapping[str, str]) -> None:
        body = go_json({"Detach": False, "Tty": False})
        async with _connected(self.socket) as client:
            client.send(request("POST", f"{docker.VERSION}/exec/{made['Id']}/start", body, *UPGRADE))
            client.half_close()  # there is no stdin
            head, _, output = (await client.reader.read()).partition(b"\r\n\r\n")
        if not head.startswith(SWITCHED) or output != OUTPUT:
            raise DemoError(f"the start was answered {head[:40]!r} and {len(output)} bytes")


@asynccontextmanager
async def _connected(path: Path) -> AsyncIterator[Client]:
    client = await Client.connect(str(path))
    try:
        yield client
    finally:
        client.abort()
