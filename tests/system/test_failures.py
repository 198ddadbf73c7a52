"""Every way in which a hook server fails, under both policies (hook-api, "Failures")."""

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system import clients
from tests.system.clients import Client
from tests.system.proxy import ProxyInside, ProxyProcess, until

TIMEOUT_SECONDS = 0.3
POINTS = ("PreCreateContainer",)
Prepare = Callable[[HookServer], AbstractAsyncContextManager[None]]


def serving(answer: hookanswers.Answer) -> Prepare:
    """Let the hook server listen and answer so."""

    @asynccontextmanager
    async def prepared(server: HookServer) -> AsyncIterator[None]:
        server.default = answer
        async with server:
            yield

    return prepared


def bad(**fields: object) -> Prepare:
    """Let the hook server answer values that no runtime takes."""
    return serving(hookanswers.reply(api_pb2.ContainerResourceHookResponse(**fields)))  # type: ignore[arg-type]


@asynccontextmanager
async def refused_socket(server: HookServer) -> AsyncIterator[None]:
    """Leave a socket on which nobody listens."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(server.socket_path)
    yield


@asynccontextmanager
async def missing_socket(server: HookServer) -> AsyncIterator[None]:
    """Leave nothing there."""
    yield


@asynccontextmanager
async def crash(server: HookServer) -> AsyncIterator[None]:
    """Let the connection end in the middle of the answer."""
    server.default = server.crash_mid_answer()
    async with server:
        yield


@asynccontextmanager
async def no_grpc(server: HookServer) -> AsyncIterator[None]:
    """Let something else listen, which answers bytes that are no HTTP/2."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, server.socket_path):
        yield


RESOURCES = api_pb2.LinuxContainerResources
FAILURES: dict[str, tuple[Prepare, str]] = {
    "hang": (serving(hookanswers.hang()), "deadline"),
    "refused": (refused_socket, "unreachable"),
    "missing": (missing_socket, "unreachable"),
    "error": (serving(hookanswers.status(grpc.StatusCode.INTERNAL, "broken")), "error_status"),
    "unimplemented": (serving(hookanswers.status(grpc.StatusCode.UNIMPLEMENTED, "old")), "error_status"),
    "garbage": (serving(hookanswers.garbage()), "broken_answer"),
    "huge": (serving(hookanswers.huge()), "broken_answer"),
    "crash": (crash, "broken_answer"),
    "no gRPC": (no_grpc, "broken_answer"),
    "env without a name": (bad(container_envs={"": "x"}), "bad_answer"),
    "env with =": (bad(container_envs={"A=B": "x"}), "bad_answer"),
    "relative parent": (bad(pod_cgroup_parent="kubepods"), "bad_answer"),
    "cpuset": (bad(container_resources=RESOURCES(cpuset_cpus="3-1")), "bad_answer"),
    "quota": (bad(container_resources=RESOURCES(cpu_quota=5)), "bad_answer"),
    "period": (bad(container_resources=RESOURCES(cpu_period=1)), "bad_answer"),
    "score": (bad(container_resources=RESOURCES(oom_score_adj=2000)), "bad_answer"),
}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
def hooks(tmp_path: Path) -> HookServer:
    """Return a hook server that does not listen yet."""
    return HookServer(str(tmp_path / "hooks.sock"), faulty=True)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_is_judged_by_the_policy(
    tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, failure: str, policy: str
) -> None:
    prepare, reason = FAILURES[failure]
    inside = ProxyInside(tmp_path)
    inside.register("bad.json", hooks.socket_path, POINTS, policy=policy, timeout=f"{TIMEOUT_SECONDS}s")
    async with prepare(hooks), inside as proxy, Client(proxy.socket) as client:
        request = clients.create_request(await client.run_pod()).SerializeToString()
        try:
            await client.call("CreateContainer", request)
        except grpc.aio.AioRpcError as error:
            refused = error
        released = [received.message for received in runtime.requests("CreateContainer")]
        assert proxy.recorder.counted("hook_failures", plugin="bad", hook=POINTS[0], reason=reason) == 1
        if policy == "Ignore":
            assert released == [request]
            assert proxy.recorder.counted("hook_fail_open", plugin="bad", hook=POINTS[0], reason=reason) == 1
        else:
            assert released == []
            assert refused.code() is grpc.StatusCode.INTERNAL
            assert all(word in str(refused.details()) for word in ("'bad'", POINTS[0], reason)), refused.details()


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_refusal_refuses_under_both_policies(
    tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, policy: str
) -> None:
    prepare = serving(hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no room for thís pod"))
    inside = ProxyInside(tmp_path)
    inside.register("strict.json", hooks.socket_path, ("PreRunPodSandbox",), policy=policy)
    async with prepare(hooks), inside as proxy, Client(proxy.socket) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.run_pod()
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "no room for thís pod" in str(raised.value.details())
    assert not runtime.received


TRIES = 3
LATE_SECONDS = 0.100


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_hook_that_hangs_costs_its_timeout_and_nobody_else(
    tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, policy: str
) -> None:
    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (hookanswers.hang() if call.request.container_meta.name == "slow" else hookanswers.empty())(call)

    proxy = ProxyProcess(tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS, policy=policy, timeout="500ms")
    late, others = [], []
    async with serving(answer)(hooks), proxy, Client(proxy.socket) as client:
        pod_id = await client.run_pod()
        for number in range(TRIES):
            begun = time.monotonic()
            config = clients.container("slow")
            config.metadata.attempt = number
            slow = asyncio.ensure_future(client.call("CreateContainer", clients.create_request(pod_id, config)))
            await until(lambda: len(_asked(hooks, "slow")) == number + 1, "the hook server was asked")  # noqa: B023
            other = time.monotonic()
            await client.create(pod_id, clients.container(f"quick-{number}"))
            others.append(time.monotonic() - other)
            assert not slow.done()
            await asyncio.wait([slow])
            late.append(time.monotonic() - begun - 0.5)
            assert (slow.exception() is None) == (policy == "Ignore")
    assert min(late) < LATE_SECONDS, late
    assert min(others) < LATE_SECONDS, others


def _asked(hooks: HookServer, container: str) -> list[hookanswers.HookCall]:
    return [call for call in hooks.calls if call.request.container_meta.name == container]


CALLS = 40
DOWN_SECONDS = 0.005


@pytest.mark.slow
@pytest.mark.parametrize("down", [refused_socket, missing_socket])
async def test_a_hook_server_that_is_down_costs_at_most_5_ms(
    tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, down: Prepare
) -> None:
    async with down(hooks), ProxyProcess(tmp_path) as proxy, Client(proxy.socket) as client:
        more = []
        for _ in range(TRIES):
            without = await _median_of_creates(client)
            proxy.register("down.json", hooks.socket_path, POINTS)
            await _hooked(proxy, client)
            more.append(await _median_of_creates(client) - without)
            (proxy.registrations / "down.json").unlink()
            await asyncio.sleep(0.5)  # the file's removal is in effect
    assert min(more) < DOWN_SECONDS, more


async def _hooked(proxy: ProxyProcess, client: Client) -> None:
    """Make calls until one more failure of the hook server is logged, which happens at most once a second."""
    before = proxy.output().count("unreachable")
    pod_id = await client.run_pod()
    while proxy.output().count("unreachable") == before:
        await client.create(pod_id)
        await asyncio.sleep(0.02)


async def _median_of_creates(client: Client) -> float:
    pod_id, took = await client.run_pod(), []
    for _ in range(CALLS):
        begun = time.monotonic()
        await client.create(pod_id)
        took.append(time.monotonic() - begun)
    return statistics.median(took)
