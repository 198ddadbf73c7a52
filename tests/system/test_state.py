"""The Store beside the calls, on each shape of a runtime: filled, swept, and settled where an answer was lost.

What the runtime did is known and told whoever has left (relay-rules C2, C3, C5).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import Operation
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import ProxyInside, until
from tests.system.shaped import FRONTS, named

pytestmark = pytest.mark.slow

ONE_OF_EACH = pytest.mark.parametrize("front", [CRI, DOCKER], ids=named)
HOOKED = api_pb2.ContainerResourceHookResponse(container_envs={"B": "hooked"})


@pytest.fixture(params=FRONTS, ids=named)
def front(request: pytest.FixtureRequest) -> Front:
    made: Front = request.param
    return made


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "inner.sock")) as fake:
        yield fake


@pytest.fixture
async def relay(tmp_path: Path, runtime: Runtime) -> AsyncIterator[FaultRelay]:
    """What stands between the proxy and the runtime."""
    async with FaultRelay(str(tmp_path / "runtime.sock"), runtime.socket_path) as between:
        yield between


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    answers = {"PreCreateContainer": hookanswers.reply(HOOKED)}
    async with HookServer(str(tmp_path / "hooks.sock"), answers) as server:
        yield server


@pytest.fixture
async def proxy(front: Front, tmp_path: Path, relay: FaultRelay, hooks: HookServer) -> AsyncIterator[ProxyInside]:
    inside = front.inside(tmp_path)
    inside.register("tester.json", hooks.socket_path)
    async with inside:
        yield inside


@pytest.fixture
async def caller(front: Front, proxy: ProxyInside) -> AsyncIterator[Caller]:
    async with front.caller(proxy.socket) as made:
        yield made


def settled(proxy: ProxyInside, operation: Operation) -> int:
    return proxy.recorder.counted("unsettled", operation=operation.value, result="agreed")


async def failing(call: Awaitable[object]) -> None:
    """Wait for the end of a call that fails."""
    with pytest.raises((Failed, asyncio.CancelledError)):
        await call


@pytest.mark.parametrize("way", ["cancel", "connection"])
async def test_create_without_an_answer_is_in_the_store(
    way: str, caller: Caller, proxy: ProxyInside, relay: FaultRelay, runtime: Runtime
) -> None:
    request = caller.create_request(await caller.run_pod())
    relay.to_client.stop_reading()
    call = asyncio.ensure_future(caller.send("create", request))
    await until(lambda: bool(runtime.container_ids()), "the runtime has made the container")
    if way == "cancel":
        call.cancel()
    else:
        relay.cut()
    await failing(call)
    counted = {"operation": "CreateContainer", "outcome": "unsettled"}
    await until(lambda: proxy.recorder.counted("calls", **counted) == 1, "it is unsettled")
    relay.to_client.resume_reading()
    (made,) = runtime.container_ids()
    await until(lambda: settled(proxy, Operation.CREATE_CONTAINER) == 1, "it is settled")
    record = proxy.store.container(made)
    assert record is not None
    assert record.original.envs == {"A": "1", "B": "2"}, "the kubelet's own values are known, too"
    assert record.effective.envs == {"A": "1", "B": "hooked"}


@pytest.mark.parametrize("gone", [False, True], ids=["stopped", "gone meanwhile"])
async def test_stop_without_an_answer_is_told(
    gone: bool, caller: Caller, proxy: ProxyInside, relay: FaultRelay, runtime: Runtime, hooks: HookServer
) -> None:
    """The runtime is asked what became of the container; each says in its own way that there is none."""
    container_id = await caller.create(await caller.run_pod())
    await caller.act("start", container_id)
    relay.to_client.stop_reading()
    call = asyncio.ensure_future(caller.act("stop", container_id))
    await until(lambda: runtime.verbs()[-1] == "stop", "the runtime has the request")
    call.cancel()
    await failing(call)
    assert hooks.calls_of("PostStopContainer") == []
    if gone:
        runtime.vanish(container_id)
    relay.to_client.resume_reading()
    (told,) = await asyncio.wait_for(hooks.wait_for_calls("PostStopContainer"), 20)
    assert told.request.container_meta.id == container_id
    assert settled(proxy, Operation.STOP_CONTAINER) == 1


@ONE_OF_EACH
async def test_answer_that_waits_for_post_hooks_outlives_the_runtimes_connection(
    caller: Caller, relay: FaultRelay, hooks: HookServer
) -> None:
    container_id = await caller.create(await caller.run_pod())
    gate = asyncio.Event()
    hooks.on("PostStartContainer", hookanswers.behind(gate))
    call = asyncio.ensure_future(caller.act("start", container_id))
    await asyncio.wait_for(hooks.wait_for_calls("PostStartContainer"), 20)
    relay.cut()
    await asyncio.sleep(0.1)  # the proxy has seen the end
    assert not call.done()
    gate.set()
    await call


async def test_runtime_that_comes_back_is_read_and_swept(
    front: Front, caller: Caller, proxy: ProxyInside, relay: FaultRelay, runtime: Runtime
) -> None:
    pod_id = await caller.run_pod()
    gone, stays = [await caller.create(pod_id) for _ in range(2)]
    await relay.stop()  # the socket is gone, and every connection ends
    runtime.vanish(gone)
    async with front.caller(runtime.socket_path) as kubelet:
        kubelet.pods.update(caller.pods)
        new = await kubelet.create(pod_id)
    await asyncio.sleep(0.2)
    assert proxy.store.ids() == {pod_id, gone, stays}
    await relay.start()
    await until(lambda: proxy.store.ids() == {pod_id, stays, new}, "the state is read again")
