"""The Docker front between a raw client and a fake dockerd on unix sockets, with plugins without sockets."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from runtimeproxy.core.dispatcher import Dispatcher
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.store import Store
from runtimeproxy.docker.front import DockerFront
from runtimeproxy.model.fields import HookAnswer
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.relay.listener import listen
from tests.docker.bodies import CONTAINER, POD, SYSTEMD_PARENT
from tests.docker.client import Answer, Client
from tests.engines.images import PAUSE_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_shapes import go_json
from tests.fakes.plugins import FAIL, NOTHING, Behaviour, FakeClient, FakePlugins

CREATE, INSPECT = "POST /containers/create", "GET /containers/{ref}/json"
START, STOP, UPDATE = (f"POST /containers/{{ref}}/{action}" for action in ("start", "stop", "update"))
BUDGET_SECONDS = 5.0


@dataclass(eq=False)
class GatedClient(FakeClient):
    """A hook server that gives no answer before its gate is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def call(self, *arguments: Any) -> HookAnswer:
        self.waiting += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return await super().call(*arguments)


@dataclass(eq=False)
class Plugins(FakePlugins):
    """A fake of the plugin manager's tables, and of its callback when they change."""

    on_change: Callable[[], None] = lambda: None

    def gated(self, name: str, behaviour: Behaviour = NOTHING) -> Any:
        return self.add(name, timeout_seconds=60.0, client=GatedClient(name, behaviour, self.queried))

    def fail_policy_registered(self, point: HookPoint) -> bool:
        return any(plugin.policy is FAIL for plugin in self.plugins_for(point))


@dataclass(eq=False)
class Node:
    """A proxy in Docker mode; the daemon runs from the start unless ``unavailable``."""

    folder: Path
    cgroup_driver: str = "cgroupfs"
    unavailable: bool = False
    synced: bool = False
    follows: bool = True
    """True to follow the daemon's events from the start; its cgroup driver is known then."""
    prefix: str = "/v1.41"
    stopped: bool = False

    def __post_init__(self) -> None:
        self._clients: list[Client] = []
        self.dockerd = FakeDockerd(str(self.folder / "docker.sock"), cgroup_driver=self.cgroup_driver)
        self.pod = replace(POD, cgroup_parent=SYSTEMD_PARENT) if self.cgroup_driver == "systemd" else POD
        self.plugins = Plugins()
        self.store: Any = Store()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if not self.unavailable:
            await self.dockerd.start()
        self.metrics = Metrics(loop.time)
        dispatcher = Dispatcher(self.plugins, self.metrics, loop.time, BUDGET_SECONDS)
        self.lifecycle = Lifecycle(self.store, dispatcher, self.metrics, ("skip", "true"), loop.time)
        manager: Any = self.plugins
        self.front = DockerFront(self.dockerd.socket_path, self.lifecycle, manager, self.metrics, loop)
        if not self.synced:
            self.front.sync.start = lambda: None  # type: ignore[method-assign]
        self._listener = listen(str(self.folder / "proxy.sock"))
        self._acceptor = Acceptor(loop, self._listener.socket, self.front.accept)
        self._acceptor.start()
        if self.follows and not self.unavailable:
            await self.follow()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._acceptor.stop()
        for client in self._clients:
            await client.close()
        if not self.stopped:
            await self.stop(BUDGET_SECONDS if kind is None else 0.0)
        self._listener.close()
        await self.dockerd.stop()
        if kind is None:
            assert (self.front.tasks, self.metrics.total("internal_errors")) == (set(), 0)

    async def stop(self, seconds: float) -> None:
        """Stop within ``seconds`` as the program does; the fixture's end does so unless a test has."""
        self.stopped = True
        await self.front.drain(seconds)
        await self.lifecycle.open_calls.stop()
        await self.front.close()

    async def follow(self) -> None:
        """Start following the daemon's events as the program does, and wait until the cgroup driver is known."""
        await self.front.start()
        await until(lambda: self.dockerd.watchers > 0 and self.lookup.driver is not None)

    async def event(self, action: str, count: int = 1) -> None:
        await until(lambda: self.metrics.counted("backend_events", action=action) >= count)

    async def client(self) -> Client:
        client = await Client.connect(str(self.folder / "proxy.sock"))
        self._clients.append(client)
        return client

    async def sends(self, raw: bytes) -> Client:
        client = await self.client()
        client.send(raw)
        return client

    async def fetch(self, method: str, target: str, body: Any = b"", *lines: str) -> Answer:
        """Send one request on a new connection; ``body`` is bytes, or a value to encode as Go's JSON."""
        client = await self.client()
        answer = await client.fetch(method, target, body if isinstance(body, bytes) else go_json(body), *lines)
        await client.close()
        return answer

    async def act(self, action: str, reference: str, body: Any = b"", *lines: str) -> Answer:
        return await self.fetch("POST", f"{self.prefix}/containers/{reference}/{action}", body, *lines)

    async def remove(self, reference: str) -> Answer:
        return await self.fetch("DELETE", f"{self.prefix}/containers/{reference}?force=1&v=1")

    async def create(self, name: str, body: Any) -> Answer:
        return await self.fetch("POST", f"{self.prefix}/containers/create?name={name}", body)

    async def create_pod(self) -> str:
        return id_of(await self.create(bodies.sandbox_name(self.pod), self.pod_body()))

    async def create_container(self, pod_id: str) -> str:
        return id_of(await self.create(bodies.container_name(self.pod, CONTAINER), self.container_body(pod_id)))

    async def create_both(self) -> tuple[str, str]:
        """Create a pod with a container; return their ids, and forget the hook calls."""
        self.pod_id = await self.create_pod()
        self.container_id = await self.create_container(self.pod_id)
        self.plugins.queried.clear()
        return self.pod_id, self.container_id

    async def running(self) -> tuple[str, str]:
        """Create a pod with a container and start both; return their ids, and forget the hook calls."""
        both = await self.create_both()
        for created_id in both:
            assert (await self.act("start", created_id)).status == 204
        self.plugins.queried.clear()
        return both

    async def update_externally(self, container_id: str) -> int:
        """Update a container as another client of the daemon; return how many such updates were counted before."""
        seen = self.metrics.total("updates_of_others")
        self.dockerd.state.update(container_id, {"CpuShares": 4711})
        await until(lambda: self.store.container(container_id) is None)
        return seen

    @property
    def lookup(self) -> Any:
        return self.front._lookup

    async def read(self, container_id: str) -> Any:
        return (await self.lookup.container(container_id)).container.effective

    def forget(self) -> None:
        for record_id in self.store.ids():
            self.store.forget(record_id)

    def pod_body(self) -> dict[str, Any]:
        return bodies.sandbox_body(self.pod, PAUSE_IMAGE, self.cgroup_driver)

    def container_body(self, pod_id: str) -> dict[str, Any]:
        return bodies.container_body(self.pod, CONTAINER, pod_id, self.cgroup_driver)

    def received_body(self, route: str = CREATE) -> bytes:
        return bytes(self.dockerd.requests(route)[-1].body)

    def host(self) -> Any:
        return json.loads(self.received_body())["HostConfig"]

    @property
    def points(self) -> list[str]:
        """Return the hook points of the hook calls, in order, and forget them."""
        queried = self.plugins.queried
        return [queried.pop(0).point for _ in range(len(queried))]

    @property
    def last_request(self) -> Any:
        return self.plugins.queried[-1].request


def on_node(*options: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("node", options, ids=str, indirect=True)


def id_of(answer: Answer) -> str:
    assert answer.status == 201, answer
    return str(answer.json["Id"])
