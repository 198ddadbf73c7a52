"""The admin package's peers: a proxy made of objects, its control protocol on a socket, and an exporter of a fake."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import Mock

import pytest

from runtimeproxy.admin import server as admin_server
from runtimeproxy.admin.exporter import Exporter, Tls
from runtimeproxy.admin.health import CHECKS, OK
from runtimeproxy.admin.protocol import Part, join, line, request
from runtimeproxy.admin.queries import Sources, methods
from runtimeproxy.admin.server import Method
from runtimeproxy.core.store import Store
from runtimeproxy.errors import Reason
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.registration import Registration
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.settings import config
from tests.fakes.canned_admin import END, Fault, Server, sending, serving
from tests.fakes.plugins import FakePlugins
from tests.patience import SECONDS, read

CANARY = "canary-4711"
"""A value that no answer may contain."""


@dataclass(eq=False)
class FakeManager(FakePlugins):
    """Plugins, and the state of the registration directory and the mask."""

    read: bool = True
    directory_fault: str = ""
    mask_fault: str = ""
    rejected: dict[str, str] = field(default_factory=dict)
    disabled: dict[str, Disabled] = field(default_factory=dict)
    disabled_with: dict[str, str] = field(default_factory=dict)
    repeated: dict[tuple[str, str], str] = field(default_factory=dict)
    masked: dict[str, Registration] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Disable a name as a Manager does, and move its plugin into ``masked``."""
        self.disabled[name] = Disabled(reason, by, 0.0, seconds)
        for each in [plugin for plugin in self.plugins if plugin.name == name]:
            self.plugins.remove(each)
            self.masked[name] = Registration(
                f"{name}.json", each.endpoint, each.policy, each.points, each.timeout_seconds
            )
        return self.notes

    async def enable(self, name: str) -> tuple[str, ...]:
        self.disabled.pop(name, None)
        self.masked.pop(name, None)
        return self.notes


class Proxy:
    """A proxy made of objects, without sockets: a test sets its state and calls the methods of the control protocol.

    ``runtime_checks`` counts the checks of the runtime's socket.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics(lambda: self.now, "containerd")
        self.store = Store()
        self.manager: Any = FakeManager()
        self.reach: Any = SimpleNamespace(absences={})
        self.sync: Any = SimpleNamespace(filling=False, runtime_fault="")
        self.watchdog: Any = SimpleNamespace(last_stall=None)
        self.log_level: Any = Mock()
        self.log_level.change.return_value = "2026-01-02T00:00:00.000Z"
        self.draining = False
        self.listening_fault = self.runtime_fault = ""
        self.runtime_checks = 0
        names = ("metrics", "store", "manager", "reach", "sync", "watchdog", "log_level")
        sources: dict[str, Any] = {name: getattr(self, name) for name in names}
        sources |= {"draining": lambda: self.draining, "listening_fault": lambda: self.listening_fault}
        sources |= {"runtime_fault": self._runtime_fault, "clock": lambda: self.now}
        settings = config.load({"hook-timeout": "3s"}, {}).settings
        self.methods = methods(Sources(mode="Containerd", settings=settings, **sources))

    def _runtime_fault(self) -> str:
        self.runtime_checks += 1
        return self.runtime_fault

    def parts(self, name: str, **params: Any) -> Iterator[Part | None]:
        """Yield the parts of an answer. Raises Refused."""
        method = self.methods[name]
        parts = method.query(method.check_params(name, params))
        assert isinstance(parts, Iterator)
        for part in parts:
            yield json.loads(part or "{}") if isinstance(part, bytes) else part

    def call(self, name: str, **params: Any) -> Part:
        """Return a joined answer."""
        body: Part = {}
        for part in self.parts(name, **params):
            join(body, json.loads(json.dumps(part)))
        return body

    async def switch(self, action: str, **params: Any) -> Part:
        """Return the answer of a method that changes hook servers, requested by uid 0."""
        method = self.methods[action]
        parts = method.query(method.check_params(action, params) | {"by": "uid 0"})
        assert isinstance(parts, AsyncIterator)
        (part,) = [part async for part in parts]
        return dict(json.loads(json.dumps(part)))

    def open_breaker(self, name: str) -> None:
        (plugin,) = (plugin for plugin in self.manager.plugins if plugin.name == name)
        for _ in range(FAILURES_IN_A_ROW):
            attempt = plugin.breaker.admit("socket", self.now)
            plugin.breaker.end(attempt, Reason.DEADLINE, self.now)

    def faults(self) -> dict[str, tuple[str, str]]:
        """Return the checks of readyz that are not ok."""
        checks = self.call("readyz")["checks"]
        assert tuple(check["name"] for check in checks) == CHECKS
        assert all(not check["reason"] for check in checks if check["state"] == OK)
        return {check["name"]: (check["state"], check["reason"]) for check in checks if check["state"] != OK}

    def add(self, pod_id: str, *container_ids: str, name: str = "web", namespace: str = "shop") -> None:
        """Store a pod with containers, each with a value in every field that can have one."""
        values = {"key": CANARY}
        pod = PodInfo(pod_id, name, f"uid-{pod_id}", namespace, labels=values, annotations=values, cgroup_parent=CANARY)
        record = PodRecord(pod, pod)
        self.store.commit(Subject(record))
        resources = Resources(cpuset_cpus=CANARY, unified=values)
        for container_id in container_ids:
            info = ContainerInfo(container_id, pod_id, "main", 0, values, resources, values, CANARY)
            self.store.commit(Subject(record, ContainerRecord(info, info)))


FIGURES = "runtimeproxy_held_calls 0.0\n"
METRICS = {"runtime": "containerd", "process": {}, "values": [["held_calls", [], 0]], "histograms": []}
GET_METRICS = "GET /metrics HTTP/1.1"


def reply(*parts: Any) -> Fault:
    """Return an answer of these parts, METRICS unless there are any."""
    return sending(*(line(id=1, part=part) for part in parts or [METRICS]), END)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "proxy.sock", {}, reply()) as server:
        yield server


@asynccontextmanager
async def exporting(endpoint: Any, tls: Tls | None = None, *, everything: bool = False) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with Exporter(str(endpoint), tls, everything=everything) as running:
            acceptor = Acceptor(asyncio.get_running_loop(), listener, running.accept)
            acceptor.start()
            yield listener.getsockname()[1]
            acceptor.stop()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(port: int, sent: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Streams]:
    """Connect a client, which sends a text."""
    async with asyncio.timeout(SECONDS):
        name = "node.test" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(sent.encode())
        yield reader, writer
        writer.close()


async def fetch(port: int, request: str, context: ssl.SSLContext | None = None) -> str:
    """Return the bytes received for a request until the connection ends."""
    async with connected(port, f"{request}\r\nHost: node\r\nAuthorization: secret\r\n\r\n", context) as (reader, _):
        return (await reader.read()).decode()


class Site:
    """A server on a unix socket in a folder."""

    def __init__(self, folder: Path, methods: Mapping[str, Method], public: bool = False, lock: Any = None) -> None:
        folder.mkdir(exist_ok=True)
        self.path = str(folder / "admin.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(4096)
        loop = asyncio.get_running_loop()
        self.server = admin_server.Server(loop, self._listener, methods, lock or asyncio.Lock(), private=not public)

    async def __aenter__(self) -> Self:
        self.server.start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.server.stop()
        self._listener.close()

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Return a new connection, non-blocking, on which octets were sent."""
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.path)
        client.setblocking(False)
        client.send(sent)
        return client

    async def send(self, octets: bytes) -> list[dict[str, Any]]:
        """Send octets and shut down writing; return the lines that the server sends until it closes."""
        loop = asyncio.get_running_loop()
        received = bytearray()
        async with asyncio.timeout(SECONDS):
            with self.connect() as client:
                with suppress(BrokenPipeError, ConnectionResetError):
                    await loop.sock_sendall(client, octets)
                    client.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    while octets := await read(client):
                        received += octets
        return [json.loads(octets) for octets in received.splitlines()]

    async def call(self, method: str, **params: Any) -> list[dict[str, Any]]:
        """Return the lines of the answer to one request."""
        return await self.send(request(method, params))


async def next_line(client: socket.socket) -> dict[str, Any]:
    """Return the next line of an answer; no bytes may follow it yet."""
    received = b""
    while not received.endswith(b"\n"):
        octets = await read(client)
        assert octets, "the server closed the connection"
        received += octets
    return dict(json.loads(received))


def parts(*made: Part, public: bool = False) -> Method:
    """Return a method with these parts."""
    return Method(lambda params: iter(made), public=public)
