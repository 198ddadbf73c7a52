"""A day of a node, played as fast as possible: does anything grow, fail or hang (promise 13, fault matrix X7)?

A second of the day is over when all its calls are answered; each answer is read and checked. Events are followed all
the time, and in Docker mode a log, which in CRI mode a kubelet reads from its file. Everything that was sent must be
received.
"""

import asyncio
import json
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import uvloop

from scripts.benchmark.cases import CRI, DOCKER
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from scripts.soaking.endurance import (
    FRONTS,
    RUNTIMES,
    Endured,
    Fake,
    Observed,
    Sample,
    begin,
    end,
    endure,
    observed,
    together,
)
from tests.amounts import Amount
from tests.docker.client import Client as HttpClient
from tests.docker.client import request
from tests.fakes import cri_pb2
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_events import Event
from tests.fakes.dockerd_structs import go_json
from tests.system.clients import Client as CriClient
from tests.system.cri_front import CriRuntime
from tests.system.docker_front import UPGRADE, VERSION, DockerCaller, DockerRuntime
from tests.system.fronts import Caller

# ---- the kubelet's calls beside the lifecycles of pods

PROBE, PROBED = ("echo", "ready"), b"ready\n"
PATIENCE_SECONDS = 20.0
EVENTS, LINES = "events", "lines of a log"
LINE = b"a line of the log\n"
ACTIONS = ("start", "die", "destroy")
"""The followed actions of a container."""


def check(good: bool, what: object) -> None:
    if not good:
        raise DemoError(f"this is no good answer: {what}")


class Kubelet(ABC):
    """One kubelet; ``told`` and ``heard`` count by stream what it should have received, and what it has."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self.close()

    async def follow(self, container_id: str) -> None:
        """Follow events, and the log of a container if that goes through the runtime."""
        for name, stream in (await self.streams(container_id)).items():
            self._following.append(asyncio.create_task(self._hear(name, stream)))

    async def _hear(self, name: str, stream: AsyncIterator[object]) -> None:
        async for _ in stream:
            self.heard[name] += 1
        raise DemoError(f"the stream of {name} has ended")

    async def all_heard(self) -> None:
        """Wait until everything sent was received. Raises TimeoutError, and whatever a stream ended with."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.heard != self.told:
                for task in self._following:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    @abstractmethod
    async def close(self) -> None:
        """Called at the end: close all connections."""

    @abstractmethod
    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        """Called once: open the streams to follow; once it returns, nothing sent must be missed."""

    @abstractmethod
    def tell(self, container_id: str) -> None:
        """Called repeatedly: make the runtime send something about a container, an event or a log line."""

    @abstractmethod
    async def lists(self) -> int:
        """Called every second: list pods and containers; return the number of containers."""

    @abstractmethod
    async def status(self) -> None:
        """Called regularly: ask whether the runtime is ready."""

    @abstractmethod
    async def probe(self, container_id: str) -> None:
        """Called regularly: execute a command in a container to its end."""


class CriKubelet(Kubelet):
    """A kubelet that speaks CRI v1."""

    def __init__(self, socket: Path, fake: Fake) -> None:
        super().__init__()
        assert isinstance(fake, CriRuntime)
        self._fake, self._client = fake, CriClient(socket)

    async def close(self) -> None:
        await self._client.channel.close()

    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        events = self._client.stream("GetContainerEvents")
        await events.initial_metadata()  # the runtime sends it once it sends events
        return {EVENTS: aiter(events)}

    def tell(self, container_id: str) -> None:
        self._fake.send_event(container_id)
        self.told[EVENTS] += 1

    async def lists(self) -> int:
        pods = cri_pb2.ListPodSandboxResponse.FromString(await self._client.call("ListPodSandbox"))
        check(len(pods.items) > 0, pods)
        return len(cri_pb2.ListContainersResponse.FromString(await self._client.call("ListContainers")).containers)

    async def status(self) -> None:
        reply = cri_pb2.StatusResponse.FromString(await self._client.call("Status"))
        check(len(reply.status.conditions) > 0, reply)

    async def probe(self, container_id: str) -> None:
        asked = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=PROBE, timeout=1)
        reply = cri_pb2.ExecSyncResponse.FromString(await self._client.call("ExecSync", asked))
        check((reply.stdout, reply.exit_code) == (PROBED, 0), reply)


class DockerKubelet(Kubelet):
    """A kubelet that speaks through dockershim, and follows events as cAdvisor does."""

    def __init__(self, socket: Path, fake: Fake) -> None:
        super().__init__()
        assert isinstance(fake, DockerRuntime)
        self._fake, self._socket, self._caller = fake, str(socket), DockerCaller(socket)
        self._streams: list[HttpClient] = []
        self._tell_no_more: Callable[[], None] = lambda: None

    async def close(self) -> None:
        self._tell_no_more()
        for client in self._streams:
            await client.close()
        await self._caller.close()

    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        def told(event: Event) -> None:
            self.told[EVENTS] += event["Action"] in ACTIONS

        self._tell_no_more = self._fake.state.events.subscribe(told)
        log = f"/containers/{container_id}/logs?follow=1&stdout=1&tail=0"
        return {
            EVENTS: await self._stream(f"/events?{_query(event=ACTIONS)}", lambda line: line.startswith(b"{")),
            LINES: await self._stream(log, lambda line: line.endswith(LINE)),
        }

    async def _stream(self, path: str, counts: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
        """Send a GET whose answer has no end; return its lines that count, the others are framing."""
        client = await HttpClient.connect(self._socket)
        self._streams.append(client)
        client.send(request("GET", VERSION + path))
        head = await client.reader.readuntil(b"\r\n\r\n")  # the daemon sends it once it follows
        check(b" 200 " in head, head)
        return (line async for line in client.reader if counts(line))

    def tell(self, container_id: str) -> None:
        self._fake.state.say(container_id, LINE)
        self.told[LINES] += 1

    async def lists(self) -> int:
        of_kind = [f"/containers/json?all=1&{_query(label=(label,))}" for label in LABELS]
        pods, containers = [await self._ask("GET", target) for target in of_kind]
        check(len(pods) > 0, pods)
        return len(containers)

    async def status(self) -> None:
        """Ask for the version: dockershim takes a daemon that answers that for ready."""
        check("ApiVersion" in await self._ask("GET", "/version"), "version")

    async def probe(self, container_id: str) -> None:
        """Create an exec, start it on a connection of its own, and inspect it at its end."""
        made = (await self._ask("POST", f"/containers/{container_id}/exec", bodies.exec_body(PROBE)))["Id"]
        client = await HttpClient.connect(self._socket)
        start = go_json({"Detach": False, "Tty": False})
        client.send(request("POST", f"{VERSION}/exec/{made}/start", start, *UPGRADE))
        answer = await client.ended()
        await client.close()
        check(b" 101 " in answer.partition(b"\r\n")[0] and answer.endswith(PROBED), answer)
        inspected = await self._ask("GET", f"/exec/{made}/json")
        check(inspected["ExitCode"] == 0, inspected)
        self._fake.state.execs.pop(made).container.execs.remove(made)  # dockerd forgets it after some minutes

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request on a connection that is kept open; return the answer."""
        asked = request(method, VERSION + path, go_json(body) if body else b"")
        return json.loads(await self._caller.send("ask", asked))


LABELS = [f"io.kubernetes.docker.type={kind}" for kind in ("podsandbox", "container")]


def _query(**filters: tuple[str, ...]) -> str:
    return "filters=" + quote(json.dumps({key: dict.fromkeys(values, True) for key, values in filters.items()}))


KUBELETS: Mapping[str, Callable[[Path, Fake], Kubelet]] = {CRI: CriKubelet, DOCKER: DockerKubelet}
"""By mode: the kubelet of a socket, and the fake runtime that sends what it follows."""

# ---- the day

DAY_SECONDS = Amount(60, 86_400)
HOUR_SECONDS, HOURS = 3_600, 24
"""The first of so many parts is the warm-up: of a whole day, the first hour."""
EARLIER_LIVES = Amount(3, 2_500)
"""Pods that came and went before the day, because no node is new every morning. By then the tombstones have reached
their limit: 4,096 ids of pods and containers in Docker mode."""
PODS = 30
"""The number of running pods, each with a container, which is probed."""
STATUS_SECONDS = 5
PROBE_SECONDS = 10
TELL_SECONDS = 10
"""Seconds between two events or log lines that are followed."""
LIFE_SECONDS = 120
"""Seconds between the beginnings of two pods: 30 per hour. Lists are made every second."""


@dataclass(eq=False)
class Node:
    """A node and its clock; ``calls`` and ``heard`` count what was answered, and what was received on streams."""

    mode: str
    fake: Fake
    proxy: Observed
    containers: Sequence[str]
    second: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)

    async def part(self, count: int) -> Sequence[Sample]:
        """Play so many seconds. Raises what the first call to fail raises."""
        async with (
            FRONTS[self.mode].caller(self.proxy.socket) as caller,
            KUBELETS[self.mode](self.proxy.socket, self.fake) as kubelet,
        ):
            await kubelet.follow(self.containers[0])
            async with self.proxy.sampled(lambda: self.second / HOUR_SECONDS) as samples:
                for _ in range(count):
                    if self.second % TELL_SECONDS == 0:
                        kubelet.tell(self.containers[0])
                    due = list(self._due(kubelet, caller))
                    await together(*(call for _, call in due))
                    self.calls.update(kind for kind, _ in due)
                    self.second += 1
            await kubelet.all_heard()
            self.heard += kubelet.heard
        return samples

    def _due(self, kubelet: Kubelet, caller: Caller) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the calls of this second with their kinds."""
        yield "lists", list_all(kubelet)
        if self.second % STATUS_SECONDS == 0:
            yield "statuses", kubelet.status()
        for number, container_id in enumerate(self.containers):
            if (self.second + number) % PROBE_SECONDS == 0:
                yield "probes", kubelet.probe(container_id)
        if self.second % LIFE_SECONDS == 0:
            yield "lifecycles", _live(caller)


async def list_all(kubelet: Kubelet) -> None:
    found = await kubelet.lists()
    if found < PODS:
        raise DemoError(f"a list has {found} containers, there are {PODS} or more")


async def _live(caller: Caller) -> None:
    await end(caller, *await begin(caller))


def played(mode: str, share: float) -> list[Figure]:
    """Play a share of a day. Raises DemoError, AssertionError, Failed, and clients' errors."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        node, endured = uvloop.run(play(mode, share, Path(folder)))
    return [
        *(Figure(f"{kind}, all answered well", f"{count:,}") for kind, count in node.calls.items()),
        *(Figure(f"{kind} that were told, all of them heard", f"{count:,}") for kind, count in node.heard.items()),
        *endured.figures(share),
        stalls(endured, share),
    ]


def stalls(endured: Endured, share: float) -> Figure:
    kept = not endured.stalls if share == 1 else None
    return Figure("times that the event loop hung", f"{endured.stalls}", "0", kept)


async def play(mode: str, share: float, folder: Path) -> tuple[Node, Endured]:
    front = FRONTS[mode]
    async with (
        RUNTIMES[mode](str(folder / "runtime.sock"), keep_received=0) as fake,
        observed(front, folder, share) as proxy,
    ):
        async with front.caller(proxy.socket) as caller:
            for _ in range(EARLIER_LIVES.at(share)):
                await _live(caller)
            containers = [(await begin(caller))[1] for _ in range(PODS)]
        node, seconds = Node(mode, fake, proxy, containers), DAY_SECONDS.at(share)
        warm_up = max(seconds // HOURS, 1)
        return node, await endure(proxy, fake, node.part, (warm_up, seconds - warm_up))
