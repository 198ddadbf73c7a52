"""A node with a runtime of some shape, whose proxy can be restarted, for the tests of shapes.

The policy is Fail, so that no unreadable message passes; registrations outlive a restart.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from tests.fakes import hookanswers, registration
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CRI_SHAPES, DOCKER_ENGINES, Caller, Front
from tests.system.proxy import STATE_LOADED, ProxyInside, ProxyProcess, until

SILENT = hookanswers.empty()
FRONTS = (*CRI_SHAPES, *DOCKER_ENGINES)
EVERY = pytest.mark.parametrize(
    "front",
    [FRONTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FRONTS[1:-1]), FRONTS[-1]],
    ids=[front.name for front in FRONTS],
)
"""Every shape; without slow tests only one CRI runtime and one dockerd."""


class ShapedNode:
    """A kubelet, the proxy, a hook server and a runtime; ``default`` None registers no hook server.

    If there is a relay ``between`` the proxy and the runtime, it is ``relay``.
    """

    def __init__(
        self,
        front: Front,
        folder: Path,
        default: hookanswers.Answer | None = SILENT,
        *,
        answers: Mapping[str, hookanswers.Answer] | None = None,
        points: Sequence[str] = registration.ALL_POINTS,
        program: bool = False,
        between: bool = False,
        **flags: str,
    ) -> None:
        make = front.process if program else front.inside
        self.proxy: ProxyInside | ProxyProcess = make(folder, **flags)
        self.hooks = HookServer(str(folder / "hooks.sock"), answers, default=default)
        if default is not None:
            self.proxy.register("tester.json", self.hooks.socket_path, points, policy="Fail")
        self.runtime = front.runtime(str(folder / "inner.sock" if between else self.proxy.runtime))
        self.relay = FaultRelay(str(self.proxy.runtime), self.runtime.socket_path)
        self._front = front
        self._between = between
        self._stack = AsyncExitStack()
        self._pods: dict[str, Any] = {}
        self._written = 0
        """The length of the log when a program was last started."""

    async def __aenter__(self) -> Self:
        for server in (self.hooks, self.runtime, *[self.relay] * self._between):
            await self._stack.enter_async_context(server)
        await self.proxy.__aenter__()
        self.caller = self.new_caller()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self.caller.close()
        await self.proxy.__aexit__(*details)
        await self._stack.aclose()

    def new_caller(self, socket: Path | str = "") -> Caller:
        caller = self._front.caller(socket or self.proxy.socket)
        caller.pods = self._pods
        return caller

    async def restart(self, *, kill: bool = True) -> None:
        """Start a new proxy, which has only the state that it reads; a program is killed, or stopped."""
        await self.caller.close()
        if isinstance(self.proxy, ProxyProcess):
            if not self.proxy.ended:
                await asyncio.to_thread(self.proxy.kill if kill else self.proxy.stop)
            self._written = len(self.proxy.output())
        else:
            await self.proxy.__aexit__(None, None, None)
        await self.proxy.__aenter__()
        self.caller = self.new_caller()

    @property
    def inside(self) -> ProxyInside:
        assert isinstance(self.proxy, ProxyInside)
        return self.proxy

    async def wait_until_loaded(self) -> None:
        def is_loaded() -> bool:
            if isinstance(self.proxy, ProxyProcess):
                return STATE_LOADED in self.proxy.output()[self._written :]
            return self.proxy.metrics.counted("syncs", result="complete") > 0

        await until(is_loaded, "the state is known")

    async def passed(self, verb: str, request: bytes) -> tuple[bytes, bytes]:
        reply = await self.caller.send(verb, request)
        return reply, self.runtime.arrived(verb)[-1]

    async def created(self, pod_id: str) -> str:
        request = self.caller.create_request(pod_id)
        reply, released = await self.passed("create", request)
        assert released == request
        return self.caller.id_in("create", reply)

    def notified(self) -> list[tuple[str, Any]]:
        """Return the hook calls since the last call of this: hook points and messages, in order."""
        calls = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return calls
