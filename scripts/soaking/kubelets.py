"""What a kubelet asks beside the lives of pods: lists, status, probes, and the streams that it follows, in both modes.

Owns the way of these to CRI's methods and to dockershim's requests, and what was told and heard on the streams.
Must not know: how often, what is measured.
Invariant: an answer is read and checked; what is not as it must be raises.

In CRI mode a kubelet reads a container's log from its file, so no log is followed there.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from scripts.benchmark.cases import CRI, DOCKER
from scripts.demonstration.processes import DemoError
from scripts.soaking.endurance import Fake
from tests.docker.client import Client as HttpClient
from tests.docker.client import request
from tests.fakes import cri_pb2
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_events import Event
from tests.fakes.dockerd_structs import go_json
from tests.system.clients import Client as CriClient
from tests.system.cri_front import CriRuntime
from tests.system.docker_front import UPGRADE, VERSION, DockerCaller, DockerRuntime

PROBE = ("echo", "ready")
PROBED = b"ready\n"
PATIENCE_SECONDS = 20.0
EVENTS, LINES = "events", "lines of a log"
LINE = b"a line of the log\n"
ACTIONS = ("start", "die", "destroy")
"""Of a container, that are followed."""
_KINDS = ("podsandbox", "container")


class Kubelet(ABC):
    """One kubelet; ``told`` and ``heard`` count by stream what it should have heard, and what it has."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self.close()

    async def follow(self, container_id: str) -> None:
        """Follow events, and the log of a container where that goes through the runtime."""
        for name, stream in (await self.streams(container_id)).items():
            self._following.append(asyncio.create_task(self._hear(name, stream)))

    async def _hear(self, name: str, stream: AsyncIterator[object]) -> None:
        async for _ in stream:
            self.heard[name] += 1
        raise DemoError(f"the stream of {name} has ended")

    async def all_heard(self) -> None:
        """Wait until all that was told is heard. Raises TimeoutError, and whatever a stream ended with."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.heard != self.told:
                for task in self._following:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        """Open what is followed: when it returns, nothing that is told is missed."""

    @abstractmethod
    def tell(self, container_id: str) -> None:
        """Let the runtime tell of a container: an event, or a line of its log."""

    @abstractmethod
    async def lists(self) -> int:
        """List pods and containers; return how many containers there are."""

    @abstractmethod
    async def status(self) -> None:
        """Ask whether the runtime is well."""

    @abstractmethod
    async def probe(self, container_id: str) -> None:
        """Execute a command in a container to its end."""


def _check(good: bool, what: object) -> None:
    if not good:
        raise DemoError(f"this is no good answer: {what}")


class CriKubelet(Kubelet):
    """Speaks CRI v1."""

    def __init__(self, socket: Path, fake: Fake) -> None:
        super().__init__()
        assert isinstance(fake, CriRuntime)
        self._fake = fake
        self._client = CriClient(socket)

    async def close(self) -> None:
        """Close the channel."""
        await self._client.channel.close()

    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        """Open the events; the runtime sends the headers when it tells of them."""
        events = self._client.stream("GetContainerEvents")
        await events.initial_metadata()
        return {EVENTS: aiter(events)}

    def tell(self, container_id: str) -> None:
        """Send an event."""
        self._fake.send_event(container_id)
        self.told[EVENTS] += 1

    async def lists(self) -> int:
        """Make the two calls of a relist."""
        pods = cri_pb2.ListPodSandboxResponse.FromString(await self._client.call("ListPodSandbox"))
        containers = cri_pb2.ListContainersResponse.FromString(await self._client.call("ListContainers"))
        _check(len(pods.items) > 0, pods)
        return len(containers.containers)

    async def status(self) -> None:
        """Call Status."""
        reply = cri_pb2.StatusResponse.FromString(await self._client.call("Status"))
        _check(len(reply.status.conditions) > 0, reply)

    async def probe(self, container_id: str) -> None:
        """Call ExecSync."""
        asked = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=PROBE, timeout=1)
        reply = cri_pb2.ExecSyncResponse.FromString(await self._client.call("ExecSync", asked))
        _check((reply.stdout, reply.exit_code) == (PROBED, 0), reply)


class DockerKubelet(Kubelet):
    """Speaks through dockershim, and follows events as cAdvisor does."""

    def __init__(self, socket: Path, fake: Fake) -> None:
        super().__init__()
        assert isinstance(fake, DockerRuntime)
        self._fake = fake
        self._socket = str(socket)
        self._caller = DockerCaller(socket)
        self._streams: list[HttpClient] = []
        self._tell_no_more: Callable[[], None] = lambda: None

    async def close(self) -> None:
        """Close what is kept and what is followed."""
        self._tell_no_more()
        for client in self._streams:
            await client.close()
        await self._caller.close()

    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        """Open events and the log; the daemon sends a head when it follows."""
        self._tell_no_more = self._fake.state.events.subscribe(self._told)
        chosen = _query({"event": ACTIONS})
        return {
            EVENTS: await self._stream(f"/events?{chosen}", lambda line: line.startswith(b"{")),
            LINES: await self._stream(
                f"/containers/{container_id}/logs?follow=1&stdout=1&tail=0", lambda line: line.endswith(LINE)
            ),
        }

    def _told(self, event: Event) -> None:
        self.told[EVENTS] += event["Action"] in ACTIONS

    async def _stream(self, path: str, counts: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
        """GET what has no end; return its lines that count, the others are the framing's."""
        client = await HttpClient.connect(self._socket)
        self._streams.append(client)
        client.send(request("GET", VERSION + path))
        head = await client.reader.readuntil(b"\r\n\r\n")
        _check(b" 200 " in head, head)
        return (line async for line in client.reader if counts(line))

    def tell(self, container_id: str) -> None:
        """Write a line."""
        self._fake.say(container_id, LINE)
        self.told[LINES] += 1

    async def lists(self) -> int:
        """List the sandboxes, then the containers."""
        pods, containers = [json.loads(await self._ask("GET", target)) for target in _LISTS]
        _check(len(pods) > 0, pods)
        return len(containers)

    async def status(self) -> None:
        """Ask for the version: dockershim takes a daemon that answers that for ready."""
        _check("ApiVersion" in json.loads(await self._ask("GET", "/version")), "version")

    async def probe(self, container_id: str) -> None:
        """Create an exec, start it on a connection of its own, and inspect it at its end."""
        made = json.loads(await self._ask("POST", f"/containers/{container_id}/exec", bodies.exec_body(PROBE)))["Id"]
        client = await HttpClient.connect(self._socket)
        start = go_json({"Detach": False, "Tty": False})
        client.send(request("POST", f"{VERSION}/exec/{made}/start", start, *UPGRADE))
        answer = await client.ended()
        await client.close()
        _check(b" 101 " in answer.partition(b"\r\n")[0] and answer.endswith(PROBED), answer)
        inspected = json.loads(await self._ask("GET", f"/exec/{made}/json"))
        _check(inspected["ExitCode"] == 0, inspected)
        self._fake.state.execs.pop(made).container.execs.remove(made)  # dockerd forgets it in some minutes

    async def _ask(self, method: str, path: str, body: object = None) -> bytes:
        """Send a request on a connection that is kept."""
        return await self._caller.send("ask", request(method, VERSION + path, go_json(body) if body else b""))


def _query(filters: Mapping[str, tuple[str, ...]]) -> str:
    return "filters=" + quote(json.dumps({key: dict.fromkeys(values, True) for key, values in filters.items()}))


_LISTS = [f"/containers/json?all=1&{_query({'label': (f'io.kubernetes.docker.type={kind}',)})}" for kind in _KINDS]
KUBELETS: Mapping[str, Callable[[Path, Fake], Kubelet]] = {CRI: CriKubelet, DOCKER: DockerKubelet}
"""By mode: the kubelet of a socket, and the fake runtime whose part in what is followed it plays."""
