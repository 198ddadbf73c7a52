"""Clients that continue while a proxy is stopped, killed and started; they count the lost calls."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.errors import RuntimeProxyError
from tests.docker.client import Answer, Client
from tests.system.fronts import CRI, DOCKER, SECONDS, CriCaller, DockerCaller, Failed, Front, Runtime, path
from tests.system.proxy import WAIT_SECONDS, ProxyProcess

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
