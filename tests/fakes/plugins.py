"""Plugins for tests of the core: clients with configured answers, without sockets.

Like the real client, a call raises only HookError and ends by its timeout.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model.fields import HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint
from runtimeproxy.plugins.manager import Plugin
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.relay.rpc.connection import Peer

FAIL, IGNORE = FailurePolicy.FAIL, FailurePolicy.IGNORE
ALL_POINTS = tuple(hook_point.name for hook_point in HOOK_POINTS)
NOTHING = HookAnswer()

ONE_PEER = Peer("socket", 1)

Behaviour = HookAnswer | Reason | Exception | Callable[[HookRequest], HookAnswer]
"""The behaviour of a plugin: an answer, a reason to fail, an unexpected exception, or a function of the request."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A hook call as the plugin received it."""

    plugin: str
    point: str
    request: HookRequest
    timeout_seconds: float


@dataclass(eq=False)
class FakeClient:
    """One hook server; ``delay_seconds`` pass before each answer, ``there`` identifies the peer at its socket,
    ``absent`` is why none listens."""

    name: str
    behaviour: Behaviour
    queried: list[Requested]
    delay_seconds: float = 0.0
    cancelled: int = 0
    there: Peer = ONE_PEER
    abandoned: bool = False
    absent: str = ""

    def absence(self) -> str:
        return self.absent

    def peer(self) -> Peer:
        return self.there

    async def call(
        self, hook_point: HookPoint, request: HookRequest, timeout_seconds: float, peer: Peer | None = None
    ) -> HookAnswer:
        self.queried.append(Requested(self.name, hook_point.name, request, timeout_seconds))
        try:
            await asyncio.sleep(min(self.delay_seconds, timeout_seconds))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.delay_seconds > timeout_seconds:
            raise HookError(self.name, hook_point.name, Reason.DEADLINE, "no answer in time")
        if isinstance(self.behaviour, Reason):
            raise HookError(self.name, hook_point.name, self.behaviour, "as reported")
        if isinstance(self.behaviour, Exception):
            raise self.behaviour
        return self.behaviour if isinstance(self.behaviour, HookAnswer) else self.behaviour(request)

    async def close(self) -> None: ...


@dataclass(eq=False)
class FakePlugins:
    """The Plugins Manager's tables; ``queried`` is the record of all hook calls."""

    plugins: list[Plugin] = field(default_factory=list)
    queried: list[Requested] = field(default_factory=list)

    def add(
        self,
        name: str,
        behaviour: Behaviour = NOTHING,
        *,
        policy: FailurePolicy = IGNORE,
        points: tuple[str, ...] = ALL_POINTS,
        delay_seconds: float = 0.0,
        timeout_seconds: float = 2.0,
        client: FakeClient | None = None,
    ) -> FakeClient:
        """Register a plugin after the existing ones; ``client`` may have its own behaviour."""
        client = client or FakeClient(name, behaviour, self.queried, delay_seconds)
        self.plugins.append(Plugin(name, f"/run/{name}.sock", policy, frozenset(points), timeout_seconds, client))
        return client

    @property
    def by_point(self) -> dict[str, tuple[Plugin, ...]]:
        return {hook_point.name: plugins for hook_point in HOOK_POINTS if (plugins := self.plugins_for(hook_point))}

    def plugins_for(self, hook_point: HookPoint) -> tuple[Plugin, ...]:
        return tuple(plugin for plugin in self.plugins if hook_point.name in plugin.points)

    def registered(self, points: Iterable[HookPoint]) -> bool:
        return any(self.plugins_for(hook_point) for hook_point in points)

    def notified(self) -> list[tuple[str, str]]:
        return [(queried.plugin, queried.point) for queried in self.queried]
