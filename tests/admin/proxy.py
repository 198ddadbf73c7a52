"""A proxy made of objects, without sockets: a test sets its state and calls the methods of the control protocol."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from runtimeproxy.admin.protocol import Part, join
from runtimeproxy.admin.queries import Sources, methods
from runtimeproxy.core.store import Store
from runtimeproxy.errors import Reason
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.observe.loop_watchdog import Stall
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.reach import Absence
from runtimeproxy.plugins.registration import Registration
from runtimeproxy.settings import config
from tests.fakes.plugins import FakePlugins

CANARY = "canary-4711"
"""A value that no answer may have."""


class FakeManager(FakePlugins):
    """Plugins, and what is known of the registration directory."""

    read = True
    complaint = ""

    def __init__(self) -> None:
        super().__init__()
        self.rejected: dict[str, str] = {}
        self.disabled: dict[str, Disabled] = {}
        self.disabled_with: dict[str, str] = {}
        self.repeated: dict[tuple[str, str], str] = {}
        self.masked: dict[str, Registration] = {}
        self.mask_fault = ""
        self.notes: tuple[str, ...] = ()

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Do what a Manager does, with an entry for a plugin."""
        self.disabled[name] = Disabled(reason, by, 0.0, seconds)
        for plugin in [plugin for plugin in self.plugins if plugin.name == name]:
            self.plugins.remove(plugin)
            self.masked[name] = Registration(
                f"{name}.json", plugin.endpoint, plugin.policy, plugin.points, plugin.timeout_seconds
            )
        return self.notes

    async def enable(self, name: str) -> tuple[str, ...]:
        self.disabled.pop(name, None)
        self.masked.pop(name, None)
        return self.notes


class FakeReach:
    def __init__(self) -> None:
        self.absences: dict[str, Absence] = {}


class FakeSync:
    filling = False
    runtime_fault = ""


class FakeWatchdog:
    last_stall: Stall | None = None


class FakeLogLevel:
    """Remembers what was set."""

    def __init__(self) -> None:
        self.set: list[tuple[str, float]] = []

    def change(self, level: str, seconds: float) -> str:
        self.set.append((level, seconds))
        return "2026-01-02T00:00:00.000Z"


class Proxy:
    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics(lambda: self.now, "containerd")
        self.store = Store()
        self.manager = FakeManager()
        self.reach = FakeReach()
        self.sync = FakeSync()
        self.watchdog = FakeWatchdog()
        self.log_level = FakeLogLevel()
        self.draining = False
        self.listening_fault = self.runtime_fault = ""
        self.runtime_checks = 0
        sources = Sources(
            mode="Containerd",
            settings=config.load({"hook-timeout": "3s"}, {}).settings,
            metrics=self.metrics,
            store=self.store,
            manager=self.manager,  # type: ignore[arg-type]
            reach=self.reach,  # type: ignore[arg-type]
            sync=self.sync,  # type: ignore[arg-type]
            watchdog=self.watchdog,  # type: ignore[arg-type]
            log_level=self.log_level,  # type: ignore[arg-type]
            draining=lambda: self.draining,
            listening_fault=lambda: self.listening_fault,
            runtime_fault=self._runtime_fault,
            clock=lambda: self.now,
        )
        self.methods = methods(sources)

    def _runtime_fault(self) -> str:
        self.runtime_checks += 1
        return self.runtime_fault

    def parts(self, name: str, **params: Any) -> Iterator[Part | None]:
        """Return the parts of an answer as they are made. Raises Refused."""
        method = self.methods[name]
        parts = method.query(method.checked(name, params))
        assert isinstance(parts, Iterator)
        for part in parts:
            yield json.loads(part or "{}") if isinstance(part, bytes) else part

    def call(self, name: str, **params: Any) -> Part:
        """Return an answer as a client reads it."""
        body: Part = {}
        for part in self.parts(name, **params):
            join(body, json.loads(json.dumps(part)))
        return body

    async def switch(self, action: str, **params: Any) -> Part:
        """Return the answer of a method that changes hook servers, requested by uid 0."""
        method = self.methods[action]
        parts = method.query(method.checked(action, params) | ({"by": "uid 0"} if method.signed else {}))
        assert isinstance(parts, AsyncIterator)
        (part,) = [part async for part in parts]
        return dict(json.loads(json.dumps(part)))

    def open(self, name: str, at: float = 100.0) -> None:
        """Open the breaker of a plugin."""
        (plugin,) = (plugin for plugin in self.manager.plugins if plugin.name == name)
        for _ in range(FAILURES_IN_A_ROW):
            attempt = plugin.breaker.admit("socket", at)
            assert attempt is not None
            plugin.breaker.end(attempt, Reason.DEADLINE, at)

    def checks(self) -> dict[str, tuple[str, str]]:
        """Return the checks of readyz that are not ok, a second after the last ones."""
        self.now += 1
        checks = self.call("readyz")["checks"]
        return {each["name"]: (each["state"], each["reason"]) for each in checks if each["state"] != "ok"}

    def add(self, pod_id: str, *container_ids: str, name: str = "web", namespace: str = "shop") -> None:
        """Store a pod with containers, each with values in whatever can have some."""
        values = {"key": CANARY}
        pod = PodInfo(pod_id, name, f"uid-{pod_id}", namespace, labels=values, annotations=values, cgroup_parent=CANARY)
        record = PodRecord(pod, pod)
        self.store.commit(Subject(record))
        resources = Resources(cpuset_cpus=CANARY, unified=values)
        for container_id in container_ids:
            info = ContainerInfo(container_id, pod_id, "main", 0, values, resources, values, CANARY)
            self.store.commit(Subject(record, ContainerRecord(info, info)))
