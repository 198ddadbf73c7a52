"""Every way in which a hook server fails, under both policies (hook-api, "Failures"; fault matrix H2, promise 21)."""

import asyncio
import math
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import Amount
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, Caller, Failed, Front, Runtime
from tests.system.proxy import ProxyProcess, until
from tests.system.times import in_rounds, in_time

pytestmark = pytest.mark.slow

TIMEOUT = "300ms"
"""Of a hook server that hangs."""
PATIENCE = "10s"
"""Of one that fails at once: what else a busy machine makes late is no deadline."""
POINTS = ("PreCreateContainer",)
POLICIES = pytest.mark.parametrize("policy", ["Fail", "Ignore"])
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
    "unimplemented": (serving(hookanswers.status(grpc.StatusCode.UNIMPLEMENTED, "old")), "unimplemented"),
    "garbage": (serving(hookanswers.garbage()), "bad_answer"),
    "huge": (serving(hookanswers.huge()), "bad_answer"),
    "crash": (crash, "broken_answer"),
    "no gRPC": (no_grpc, "broken_answer"),
    "env without a name": (bad(container_envs={"": "x"}), "bad_answer"),
    "env with =": (bad(container_envs={"A=B": "x"}), "bad_answer"),
    "relative parent": (bad(pod_cgroup_parent="kubepods"), "bad_answer"),
    "cpuset": (bad(container_resources=RESOURCES(cpuset_cpus="3-1")), "bad_answer"),
    "quota": (bad(container_resources=RESOURCES(cpu_quota=-5)), "bad_answer"),
    "period": (bad(container_resources=RESOURCES(cpu_period=1)), "bad_answer"),
    "score": (bad(container_resources=RESOURCES(oom_score_adj=2000)), "bad_answer"),
}


@pytest.fixture
def hooks(tmp_path: Path) -> HookServer:
    """Return a hook server that does not listen yet."""
    return HookServer(str(tmp_path / "hooks.sock"), faulty=True)


@POLICIES
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_is_judged_by_the_policy(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, failure: str, policy: str
) -> None:
    prepare, reason = FAILURES[failure]
    inside = front.inside(tmp_path)
    timeout = TIMEOUT if failure == "hang" else PATIENCE
    inside.register("bad.json", hooks.socket_path, POINTS, policy=policy, timeout=timeout)
    async with prepare(hooks), inside as proxy, front.caller(proxy.socket) as caller:
        request = caller.create_request(await caller.run_pod())
        try:
            await caller.send("create", request)
        except Failed as error:
            refused = error
        released = runtime.asked("create")
        assert proxy.recorder.counted("hook_failures", plugin="bad", hook=POINTS[0], reason=reason) == 1
        if policy == "Ignore":
            assert released == [request]
            assert proxy.recorder.counted("hook_fail_open", plugin="bad", hook=POINTS[0], reason=reason) == 1
        else:
            assert released == []
            assert refused.status == front.failed
            assert all(word in refused.text for word in ("'bad'", POINTS[0], reason)), refused.text


@POLICIES
async def test_a_refusal_refuses_under_both_policies(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str
) -> None:
    prepare = serving(hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no room for thís pod"))
    inside = front.inside(tmp_path)
    inside.register("strict.json", hooks.socket_path, ("PreRunPodSandbox",), policy=policy)
    async with prepare(hooks), inside as proxy, front.caller(proxy.socket) as caller:
        with pytest.raises(Failed) as raised:
            await caller.run_pod()
    assert raised.value.status == front.refused
    assert "no room for thís pod" in raised.value.text
    assert not runtime.verbs()


LATE_SECONDS = 0.100
HANGS_BESIDE = Amount(2, 200)
"""Times of hook calls that hang and of others, in pairs."""
BUDGETS = Amount(1, 100)


@pytest.mark.slow
@POLICIES
async def test_a_hook_that_hangs_costs_its_timeout_and_nobody_else(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str
) -> None:
    slow_names = (f"slow-{number}" for number in count())

    async def answer(call: hookanswers.HookCall) -> bytes:
        hangs = call.request.container_meta.name.startswith("slow-")
        return await (hookanswers.hang() if hangs else hookanswers.empty())(call)

    proxy = front.process(tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS, policy=policy, timeout="500ms")
    async with serving(answer)(hooks), proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def two() -> list[float]:
            slow_name, begun = next(slow_names), time.monotonic()
            slow = asyncio.ensure_future(caller.create(pod_id, replace(CONTAINER, name=slow_name)))
            await until(lambda: slow.done() or _asked(hooks, slow_name), "the hook server was asked")
            other = time.monotonic()
            await caller.create(pod_id)
            beside = _asked(hooks, slow_name) and not slow.done()
            others = time.monotonic() - other if beside else math.inf
            await asyncio.wait([slow])
            assert (slow.exception() is None) == (policy == "Ignore")
            return [time.monotonic() - begun - 0.5, others]

        await in_time(LATE_SECONDS, HANGS_BESIDE, two)


def _asked(hooks: HookServer, container: str) -> bool:
    return any(call.request.container_meta.name == container for call in hooks.calls)


@pytest.mark.slow
async def test_several_hooks_that_hang_cost_no_more_than_the_budget(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    """Each may take 400 ms, all of them 700 ms: each has its share, none of them all of it."""
    path = tmp_path / "hooks.sock"
    proxy = front.process(tmp_path, hook_budget="700ms")
    for name in ("one", "three", "two"):
        proxy.register(f"{name}.json", path, POINTS, timeout="400ms")
    asked = 0
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def late() -> list[float]:
            nonlocal asked
            async with HookServer(str(path), default=hookanswers.hang()) as hooks:  # a new one is asked once at least
                asked += 1
                begun = time.monotonic()
                await caller.create(pod_id)
                assert len(hooks.calls) == 3
                return [time.monotonic() - begun - 0.7]

        await in_time(LATE_SECONDS, BUDGETS, late)
    assert len(runtime.asked("create")) == asked


CALLS = 40
DOWN_SECONDS = 0.005


@pytest.mark.slow
@POLICIES
@pytest.mark.parametrize("down", [refused_socket, missing_socket])
async def test_a_hook_server_that_is_down_costs_at_most_5_ms(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, down: Prepare, policy: str
) -> None:
    """Under Fail it is the refused creates that are timed."""
    async with down(hooks), front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:

        async def more() -> float:
            without = await _median_of_creates(caller, "Ignore")
            proxy.register("down.json", hooks.socket_path, POINTS, policy=policy)
            await _hooked(proxy, caller)
            hooked = await _median_of_creates(caller, policy)
            (proxy.registrations / "down.json").unlink()
            await asyncio.sleep(0.5)  # the file's removal is in effect
            return hooked - without

        await in_rounds(DOWN_SECONDS, more)


async def _hooked(proxy: ProxyProcess, caller: Caller) -> None:
    """Make calls until one more failure of the hook server is logged, which happens at most once a second."""
    before = proxy.output().count("unreachable")
    pod_id = await caller.run_pod()
    while proxy.output().count("unreachable") == before:
        with suppress(Failed):
            await caller.create(pod_id)
        await asyncio.sleep(0.02)


async def _median_of_creates(caller: Caller, policy: str) -> float:
    """Return what a create takes that passes, or that is refused under policy Fail."""
    pod_id, took = await caller.run_pod(), []
    for _ in range(CALLS):
        begun = time.monotonic()
        with pytest.raises(Failed, match="unreachable") if policy == "Fail" else nullcontext():
            await caller.create(pod_id)
        took.append(time.monotonic() - begun)
    return statistics.median(took)
