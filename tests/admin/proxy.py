"""A proxy made of objects, without sockets: a test sets its state and calls the methods of the control protocol."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from runtimeproxy.admin.protocol import Part, join
from runtimeproxy.admin.queries import Sources, methods
from runtimeproxy.core.store import Store
from runtimeproxy.errors import Reason
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.registration import Registration
from runtimeproxy.settings import config
from tests.fakes.plugins import FakePlugins

CANARY = "canary-4711"
"""A value that no answer may contain."""


@dataclass(eq=False)
class FakeManager(FakePlugins):
    """Plugins, and the state of the registration directory and the mask."""

    read: bool = True
    directory_fault: str = ""
    rejected: dict[str, str] = field(default_factory=dict)
    disabled: dict[str, Disabled] = field(default_factory=dict)
    disabled_with: dict[str, str] = field(default_factory=dict)
    repeated: dict[tuple[str, str], str] = field(default_factory=dict)
    masked: dict[str, Registration] = field(default_factory=dict)
    mask_fault: str = ""
    notes: tuple[str, ...] = ()

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Disable a name as a Manager does, and move its plugin into ``masked``."""
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


class Proxy:
    """``levels`` are the changes of the log level, ``runtime_checks`` counts the checks of the runtime's socket."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics(lambda: self.now, "containerd")
        self.store = Store()
        self.manager: Any = FakeManager()
        self.reach: Any = SimpleNamespace(absences={})
        self.sync: Any = SimpleNamespace(filling=False, runtime_fault="")
        self.watchdog: Any = SimpleNamespace(last_stall=None)
        self.levels: list[tuple[str, float]] = []
        log_level: Any = SimpleNamespace(change=self._change_level)
        self.draining = False
        self.listening_fault = self.runtime_fault = ""
        self.runtime_checks = 0
        sources = Sources(
            mode="Containerd",
            settings=config.load({"hook-timeout": "3s"}, {}).settings,
            metrics=self.metrics,
            store=self.store,
            manager=self.manager,
            reach=self.reach,
            sync=self.sync,
            watchdog=self.watchdog,
            log_level=log_level,
            draining=lambda: self.draining,
            listening_fault=lambda: self.listening_fault,
            runtime_fault=self._runtime_fault,
            clock=lambda: self.now,
        )
        self.methods = methods(sources)

    def _change_level(self, level: str, seconds: float) -> str:
        self.levels.append((level, seconds))
        return "2026-01-02T00:00:00.000Z"

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
        return {check["name"]: (check["state"], check["reason"]) for check in checks if check["state"] != "ok"}

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
