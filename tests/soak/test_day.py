"""A day of a node, played as fast as possible: does anything grow, fail or hang (promise 13, fault matrix X7)?

A second of the day is over when all its calls are answered; each answer is read and checked. Events are followed all
the time, and in Docker mode a log, which in CRI mode a kubelet reads from its file. Everything that was sent must be
received.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.amounts import Amount
from tests.docker.client import Client as HttpClient
from tests.docker.client import request
from tests.fakes import cri_pb2
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_shapes import go_json
from tests.fakes.dockerd_state import Event
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.soak.endurance import Fake, Observed, Sample, begin, end, endure, observed, together
from tests.system.clients import Client as CriClient
from tests.system.cri_front import CriRuntime
from tests.system.docker_front import UPGRADE, VERSION, DockerCaller, DockerRuntime
from tests.system.fronts import Caller, Front

pytestmark = MARKS

PROBE, PROBED = ("echo", "ready"), b"ready\n"
PATIENCE_SECONDS = 20.0
EVENTS, LINES = "events", "lines of a log"
LINE = b"a line of the log\n"
ACTIONS = ("start", "die", "destroy")
"""The followed actions of a container."""


class Kubelet(ABC):
    """One kubelet; ``sent`` and ``received`` count by stream what it should have received, and what it has."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
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
            self._following.append(asyncio.create_task(self._read(name, stream)))

    async def _read(self, name: str, stream: AsyncIterator[object]) -> None:
        async for _ in stream:
            self.received[name] += 1
        raise EOFError(f"the stream of {name} has ended")

    async def all_received(self) -> None:
        """Wait until everything sent was received. Raises TimeoutError, and whatever a stream ended with."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.received != self.sent:
                for task in self._following:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        """Open the streams to follow; once it returns, nothing sent must be missed."""

    @abstractmethod
    def send(self, container_id: str) -> None:
        """Make the runtime send an event or a log line about a container."""

    @abstractmethod
    async def lists(self) -> int:
        """List pods and containers; return the number of containers."""

    @abstractmethod
    async def status(self) -> None:
        """Query whether the runtime is ready."""

    @abstractmethod
    async def probe(self, container_id: str) -> None:
        """Execute a command in a container to its end."""


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

    def send(self, container_id: str) -> None:
        self._fake.send_event(container_id)
        self.sent[EVENTS] += 1

    async def lists(self) -> int:
        pods = cri_pb2.ListPodSandboxResponse.FromString(await self._client.call("ListPodSandbox"))
        assert pods.items
        return len(cri_pb2.ListContainersResponse.FromString(await self._client.call("ListContainers")).containers)

    async def status(self) -> None:
        reply = cri_pb2.StatusResponse.FromString(await self._client.call("Status"))
        assert reply.status.conditions

    async def probe(self, container_id: str) -> None:
        wanted = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=PROBE, timeout=1)
        reply = cri_pb2.ExecSyncResponse.FromString(await self._client.call("ExecSync", wanted))
        assert (reply.stdout, reply.exit_code) == (PROBED, 0)


class DockerKubelet(Kubelet):
    """A kubelet that speaks through dockershim, and follows events as cAdvisor does."""

    def __init__(self, socket: Path, fake: Fake) -> None:
        super().__init__()
        assert isinstance(fake, DockerRuntime)
        self._fake, self._socket, self._caller = fake, str(socket), DockerCaller(socket)
        self._streams: list[HttpClient] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    async def close(self) -> None:
        self._unsubscribe()
        for client in self._streams:
            await client.close()
        await self._caller.close()

    async def streams(self, container_id: str) -> Mapping[str, AsyncIterator[object]]:
        def count(event: Event) -> None:
            self.sent[EVENTS] += event["Action"] in ACTIONS

        self._unsubscribe = self._fake.state.events.subscribe(count)
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
        assert b" 200 " in head
        return (line async for line in client.reader if counts(line))

    def send(self, container_id: str) -> None:
        self._fake.state.say(container_id, LINE)
        self.sent[LINES] += 1

    async def lists(self) -> int:
        of_kind = [f"/containers/json?all=1&{_query(label=(label,))}" for label in LABELS]
        pods, containers = [await self._call("GET", target) for target in of_kind]
        assert pods
        return len(containers)

    async def status(self) -> None:
        """Get the version: for dockershim a daemon that answers that is ready."""
        assert "ApiVersion" in await self._call("GET", "/version")

    async def probe(self, container_id: str) -> None:
        """Create an exec, start it on a connection of its own, and inspect it at its end."""
        made = (await self._call("POST", f"/containers/{container_id}/exec", bodies.exec_body(PROBE)))["Id"]
        client = await HttpClient.connect(self._socket)
        start = go_json({"Detach": False, "Tty": False})
        client.send(request("POST", f"{VERSION}/exec/{made}/start", start, *UPGRADE))
        answer = await client.ended()
        await client.close()
        assert b" 101 " in answer.partition(b"\r\n")[0]
        assert answer.endswith(PROBED)
        inspected = await self._call("GET", f"/exec/{made}/json")
        assert inspected["ExitCode"] == 0
        self._fake.state.execs.pop(made).container.execs.remove(made)  # dockerd forgets it after some minutes

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request on a connection that is kept open; return the answer."""
        wanted = request(method, VERSION + path, go_json(body) if body else b"")
        return json.loads(await self._caller.send("call", wanted))


LABELS = [f"io.kubernetes.docker.type={kind}" for kind in ("podsandbox", "container")]


def _query(**filters: tuple[str, ...]) -> str:
    return "filters=" + quote(json.dumps({key: dict.fromkeys(values, True) for key, values in filters.items()}))


KUBELETS: Mapping[str, Callable[[Path, Fake], Kubelet]] = {"cri": CriKubelet, "docker": DockerKubelet}
"""By mode: the kubelet of a socket, and the fake runtime that sends what it follows."""

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
SEND_SECONDS = 10
"""Seconds between two events or log lines that are followed."""
LIFE_SECONDS = 120
"""Seconds between the beginnings of two pods: 30 per hour. Lists are made every second."""


class Day:
    """A node's day; ``calls`` and ``received`` count what was answered, and what was received on streams."""

    def __init__(self, front: Front, proxy: Observed, containers: Sequence[str]) -> None:
        self.second = 0
        self.calls: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._front, self._proxy, self._containers = front, proxy, containers

    async def part(self, count: int) -> Sequence[Sample]:
        """Play so many seconds. Raises what the first call to fail raises."""
        async with (
            self._front.caller(self._proxy.socket) as caller,
            KUBELETS[self._front.name](self._proxy.socket, self._proxy.fake) as kubelet,
        ):
            await kubelet.follow(self._containers[0])
            async with self._proxy.sampled(lambda: self.second / HOUR_SECONDS) as samples:
                for _ in range(count):
                    if self.second % SEND_SECONDS == 0:
                        kubelet.send(self._containers[0])
                    due = list(self._due(kubelet, caller))
                    await together(*(call for _, call in due))
                    self.calls.update(kind for kind, _ in due)
                    self.second += 1
            await kubelet.all_received()
            self.received += kubelet.received
        return samples

    def _due(self, kubelet: Kubelet, caller: Caller) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the calls of this second with their kinds."""
        yield "lists", list_all(kubelet)
        if self.second % STATUS_SECONDS == 0:
            yield "statuses", kubelet.status()
        for number, container_id in enumerate(self._containers):
            if (self.second + number) % PROBE_SECONDS == 0:
                yield "probes", kubelet.probe(container_id)
        if self.second % LIFE_SECONDS == 0:
            yield "lifecycles", live(caller)


async def list_all(kubelet: Kubelet) -> None:
    assert await kubelet.lists() >= PODS


async def live(caller: Caller) -> None:
    await end(caller, *await begin(caller))


async def test_day_of_a_node_leaves_nothing(front: Front, findings: Findings, tmp_path: Path) -> None:
    async with observed(front, tmp_path) as proxy:
        async with front.caller(proxy.socket) as caller:
            for _ in range(EARLIER_LIVES.now):
                await live(caller)
            containers = [(await begin(caller))[1] for _ in range(PODS)]
        day, seconds = Day(front, proxy, containers), DAY_SECONDS.now
        await endure(proxy, day.part, seconds // HOURS, seconds - seconds // HOURS, findings)
        for what, counts in {"answered": day.calls, "received": day.received}.items():
            for kind, count in counts.items():
                findings.note(f"{kind} that were {what}", f"{count:,}")
        assert day.calls.keys() == {"lists", "statuses", "probes", "lifecycles"}
        findings.note("hangs of the event loop", proxy.stalls(), "none", not (findings.full and proxy.stalls()))
