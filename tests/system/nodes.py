"""A node whose proxy is restarted, and clients that continue meanwhile and count the lost calls."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import grpc

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.errors import RuntimeProxyError
from tests.docker.client import Answer, Client
from tests.fakes import hookanswers, registration
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CRI, DOCKER, SECONDS, Caller, CriCaller, DockerCaller, Failed, Front, Runtime, path
from tests.system.proxy import STATE_LOADED, WAIT_SECONDS, ProxyInside, ProxyProcess, until

# ---- a node with a runtime of some shape

SILENT = hookanswers.empty()


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


# ---- kubelets that lose no call by a restart if the proxy follows the protocols' rules: they wait for a listener

BACKOFF: dict[str, Any] = {f"grpc.{name}_reconnect_backoff_ms": 20 for name in ("initial", "min", "max")}


class PatientCri(CriCaller):
    """grpcio retries what GOAWAY or REFUSED_STREAM marks as not processed, and waits for a connection."""

    def __init__(self, socket: Path | str) -> None:
        super().__init__(socket, **BACKOFF)
        self.of_calls = {"wait_for_ready": True}

    async def follow(self) -> None:
        events: Any = self._client.channel.unary_stream(path("GetContainerEvents"))
        stream = events(b"", wait_for_ready=True)
        with suppress(grpc.aio.AioRpcError):
            while await stream.read():
                pass


class PatientDocker(DockerCaller):
    """Retries as Go's net/http does.

    On a used connection it repeats a request of which nothing was sent, and a read-only one if the connection ended
    before its answer.
    """

    async def _answer(self, data: bytes, seconds: float = SECONDS) -> Answer:
        async with asyncio.timeout(seconds):
            while True:
                used_before = bool(self._idle)
                client = self._idle.pop() if self._idle else await self._connect()
                try:
                    sent = _send(client, data)
                    if sent:
                        answer = await client.answer()
                        break
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    no_bytes_received = not getattr(error, "partial", b"")
                    sent = not (no_bytes_received and data.startswith(b"GET "))
                client.abort()
                if sent or not used_before:
                    raise Failed(None, f"the connection ended: {data[:60]!r}, used before: {used_before}")
        self._idle.append(client)
        return answer

    async def _connect(self) -> Client:
        while True:
            try:
                return await Client.connect(self._socket)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.02)

    async def follow(self) -> None:
        client = await self._connect()
        client.send(self._request("GET", "/events"))
        try:
            with suppress(ConnectionError):
                await client.reader.read()
        finally:
            client.abort()


def _send(client: Client, data: bytes) -> bool:
    try:
        sent = os.write(client.writer.get_extra_info("socket").fileno(), data)
    except BrokenPipeError:
        return False
    assert sent == len(data), "requests of this test are short"
    return True


Patient = PatientCri | PatientDocker
PATIENT: dict[str, Callable[[Path | str], Patient]] = {CRI.name: PatientCri, DOCKER.name: PatientDocker}


# ---- their load

PAUSE_SECONDS = 0.005
WORKERS = 3
DEAD_SECONDS = 30.0
"""A kubelet considers its runtime dead after this time without a good answer; also the limit on a busy machine."""


class Load:
    """Clients that make consecutive calls: passing ones, and lifecycles of pods.

    ``cuts`` counts the ends of a followed stream.
    """

    def __init__(self, front: Front, proxy: ProxyProcess) -> None:
        self.answered: Counter[str] = Counter()
        self.lost: list[tuple[str, Failed]] = []
        self.cuts = 0
        self._callers = [PATIENT[front.name](proxy.socket) for _ in range(WORKERS)]
        self._ending = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for caller in self._callers:
                await stack.enter_async_context(caller)
            workers = [asyncio.create_task(self._work(caller)) for caller in 2 * self._callers]
            following = asyncio.create_task(self._follow(self._callers[0]))
            yield
            self._ending = True
            await asyncio.wait_for(asyncio.gather(*workers), WAIT_SECONDS)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _work(self, caller: Patient) -> None:
        while not self._ending:
            with suppress(Failed):
                for verb in ("ping", "list"):
                    await self._count(verb, caller.act(verb))
                pod_id = await self._count("run_pod", caller.run_pod())
                container_id = await self._count("create", caller.create(pod_id))
                for verb in ("start", "stop", "remove"):
                    await self._count(verb, caller.act(verb, container_id))
                for verb in ("stop_pod", "remove_pod"):
                    await self._count(verb, caller.act(verb, pod_id))

    async def _count(self, verb: str, call: Awaitable[str | bytes]) -> str:
        try:
            answer = await call
        except Failed as error:
            self.lost.append((verb, error))
            raise
        self.answered[verb] += 1
        await asyncio.sleep(PAUSE_SECONDS)
        return answer if isinstance(answer, str) else ""

    async def _follow(self, caller: Patient) -> None:
        while True:
            await caller.follow()
            self.cuts += 1

    async def wait_for_each_kind(self) -> None:
        self.answered.clear()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.answered) < 9:
                await asyncio.sleep(PAUSE_SECONDS)


class Dialler:
    """Pings the proxy, each time on a new connection, until the ``end``.

    ``refused`` counts refused connections, ``answers`` has the times of good answers (``time.monotonic``).
    """

    def __init__(self, front: Front, path: Path) -> None:
        self.refused = 0
        self.answers: list[float] = []
        self.end = False
        self._front = front
        self._path = path

    async def fetch(self) -> None:
        while not self.end:
            await self.answered()
            await asyncio.sleep(PAUSE_SECONDS)

    async def answered(self) -> float:
        while True:
            try:
                await asyncio.wait_for(self._front.exchange(self._path), DEAD_SECONDS)
                self.answers.append(time.monotonic())
                return self.answers[-1]
            except (FileNotFoundError, ConnectionRefusedError):
                self.refused += 1
            except ConnectionError:
                pass  # it was connected to the killed proxy
            await asyncio.sleep(PAUSE_SECONDS)


async def store_equals(runtime: Runtime, proxy: ProxyProcess) -> None:
    def ids() -> set[str]:
        with suppress(RuntimeProxyError):  # it has just been started
            pods, containers = subjects.records(AdminClient(str(proxy.admin), WAIT_SECONDS))
            return {record["id"] for record in (*pods, *containers)}
        return set()

    async with asyncio.timeout(WAIT_SECONDS):
        while await asyncio.to_thread(ids) != {*runtime.pod_ids(), *runtime.container_ids()}:
            await asyncio.sleep(PAUSE_SECONDS)
