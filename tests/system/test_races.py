"""Clients that leave while a call is held, released or answered, and the moments of a call (relay-rules C1 to C5)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookpoints import Operation
from runtimeproxy.telemetry import CallTimes
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.capture import Capture
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.proxy import ProxyInside, until

pytestmark = pytest.mark.slow

H2_CANCEL = 8


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "real.sock")) as fake:
        yield fake


@pytest.fixture
async def proxy(front: Front, tmp_path: Path, hooks: HookServer) -> AsyncIterator[ProxyInside]:
    inside = front.inside(tmp_path)
    inside.register("plugin.json", hooks.socket_path, policy="Fail", timeout="20s")
    async with inside:
        yield inside


@pytest.fixture
async def capture(tmp_path: Path, proxy: ProxyInside, runtime: Runtime) -> AsyncIterator[Capture]:
    async with Capture(tmp_path, proxy.socket, proxy.runtime) as both:
        yield both


@pytest.mark.parametrize("way", ["cancel", "deadline", "connection"])
async def test_a_client_that_leaves_ends_its_hook_call(
    front: Front, way: str, capture: Capture, proxy: ProxyInside, runtime: Runtime, hooks: HookServer
) -> None:
    async with front.caller(_entrance(front, way, capture, proxy)) as caller:
        request = caller.create_request(await caller.run_pod())
        hooks.on("PreCreateContainer", hookanswers.hang())
        call = asyncio.ensure_future(caller.send("create", request, 4 if way == "deadline" else 60))
        (asked,) = await asyncio.wait_for(hooks.wait_for_calls("PreCreateContainer"), 20)
        if way == "cancel":
            call.cancel()
        elif way == "connection":
            capture.before.cut()
        await _failing(call)
        await until(lambda: asked.cancelled, "the hook call has ended")
        if way == "cancel":
            await _ended_at_the_runtime(front, capture)
    assert not runtime.asked("create")


async def test_a_refused_call_ends_at_the_runtime_and_the_connection_goes_on(
    front: Front, capture: Capture, runtime: Runtime, hooks: HookServer
) -> None:
    hooks.on("PreRunPodSandbox", hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no"))
    async with front.caller(capture.socket) as caller:
        await _failing(caller.run_pod())
        if front is CRI:  # the runtime has had the call's head
            await _ended_at_the_runtime(front, capture)
        assert not runtime.verbs()
        hooks.on("PreRunPodSandbox", hookanswers.empty())
        await caller.run_pod()
    assert len(capture.before.connections) == 1


def _entrance(front: Front, way: str, capture: Capture, proxy: ProxyInside) -> Path:
    """Return the client's socket: a relay would make a half-close of a close, and Docker mode tells these apart."""
    return proxy.socket if front is DOCKER and way != "connection" else capture.socket


async def _failing(call: Awaitable[object]) -> None:
    """Wait for the end of a call that fails."""
    with pytest.raises((Failed, asyncio.CancelledError)):
        await call


async def _ended_at_the_runtime(front: Front, capture: Capture) -> None:
    """Wait until the runtime knows of the end: its stream is reset, or the client's connection to it is closed."""
    if front is CRI:
        await until(lambda: H2_CANCEL in _resets(capture), "the runtime's stream is reset")
    else:
        (own,) = (connection for connection in capture.behind.connections if b"name=k8s_" in connection.to_backend)
        await until(lambda: own.client_half_closed, "the daemon's connection is closed")


def _resets(capture: Capture) -> set[int | None]:
    return {half.reset for half in capture.sides().requests[1].values()}


@pytest.mark.parametrize("way", ["cancel", "connection"])
async def test_post_hooks_run_although_the_client_has_left(
    front: Front, way: str, capture: Capture, proxy: ProxyInside, hooks: HookServer
) -> None:
    """The hook server still thinks when the client leaves; its call is not cancelled, the next one waits for it."""
    async with front.caller(_entrance(front, way, capture, proxy)) as caller:
        container_id = await caller.create(await caller.run_pod())
        gate = asyncio.Event()
        hooks.on("PostStartContainer", _behind(gate))
        call = asyncio.ensure_future(caller.act("start", container_id))
        (told,) = await asyncio.wait_for(hooks.wait_for_calls("PostStartContainer"), 20)
        if way == "cancel":
            call.cancel()
        else:
            capture.before.cut()
        await _failing(call)
        await asyncio.sleep(0.1)  # what the client's end might do to the hook call, it has done by now
        gate.set()
        async with front.caller(capture.socket) as another:
            await another.act("stop", container_id)
    assert not told.cancelled
    assert told.request.container_meta.id == container_id


async def test_an_answer_that_waits_for_post_hooks_outlives_the_runtimes_connection(
    front: Front, capture: Capture, hooks: HookServer
) -> None:
    async with front.caller(capture.socket) as caller:
        container_id = await caller.create(await caller.run_pod())
        gate = asyncio.Event()
        hooks.on("PostStartContainer", _behind(gate))
        call = asyncio.ensure_future(caller.act("start", container_id))
        await asyncio.wait_for(hooks.wait_for_calls("PostStartContainer"), 20)
        capture.behind.cut()
        await asyncio.sleep(0.1)  # the proxy has seen the end
        assert not call.done()
        gate.set()
        await call


def _behind(gate: asyncio.Event) -> hookanswers.Answer:
    async def answer(call: hookanswers.HookCall) -> bytes:
        await gate.wait()
        return b""

    return answer


async def test_what_the_runtime_carried_out_is_known_though_the_client_left(
    front: Front, proxy: ProxyInside, runtime: Runtime, hooks: HookServer
) -> None:
    """The runtime's answer is on its way, kept up in a relay, when the client's connection ends.

    In CRI mode it may still be read. dockerd's connection is closed with the client's: the daemon is asked later.
    """
    async with FaultRelay(str(proxy.runtime), runtime.socket_path) as relay, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        relay.to_client.stop_reading()
        async with front.sent(proxy.socket, "create", caller.create_request(pod_id)) as answer:
            await until(lambda: bool(runtime.container_ids()), "the runtime has made the container")
        assert answer.cancelled()
        await asyncio.sleep(0.1)  # the proxy has seen the end before the answer
        relay.to_client.resume_reading()
        (made,) = runtime.container_ids()
        await until(lambda: proxy.store.container(made) is not None, "the container is in the Store")
        await caller.act("start", made)
    (told,) = hooks.calls_of("PreStartContainer")
    assert (told.request.container_meta.name, told.request.container_meta.id) == ("main", made)
    assert dict(told.request.container_envs) == {"A": "1", "B": "2"}


@pytest.mark.parametrize("front", [DOCKER], ids=["docker"])
async def test_a_client_that_has_half_closed_may_still_leave(
    front: Front, capture: Capture, runtime: Runtime, hooks: HookServer
) -> None:
    hooks.on("PreRunPodSandbox", hookanswers.hang())
    async with (
        front.caller(capture.socket) as caller,
        front.sent(capture.socket, "run_pod", caller.pod_request(POD)),
    ):
        (asked,) = await asyncio.wait_for(hooks.wait_for_calls("PreRunPodSandbox"), 20)
        capture.before.half_close_backend()
        await asyncio.sleep(0.1)  # the proxy has seen the end
        assert not asked.cancelled
        capture.before.cut()
        await until(lambda: asked.cancelled, "the hook call has ended")
        assert not runtime.verbs()


OPERATIONS = {
    "start": Operation.START_CONTAINER,
    "update": Operation.UPDATE_CONTAINER_RESOURCES,
    "stop": Operation.STOP_CONTAINER,
    "remove": Operation.REMOVE_CONTAINER,
    "update_pod": Operation.UPDATE_POD_SANDBOX_RESOURCES,
    "stop_pod": Operation.STOP_POD_SANDBOX,
    "remove_pod": Operation.REMOVE_POD_SANDBOX,
}


async def test_the_moments_of_every_operation_are_in_order(
    front: Front, capture: Capture, proxy: ProxyInside, runtime: Runtime, hooks: HookServer
) -> None:
    hook_seconds, runtime_seconds = 0.04, 0.06
    hooks.default = hookanswers.after(hook_seconds)
    runtime.upset("start", delay_seconds=runtime_seconds)
    async with front.caller(capture.socket) as caller:
        pod_id = await caller.run_pod()
        container_id = await caller.create(pod_id)
        for verb in front.life:
            await caller.act(verb, pod_id if verb.endswith("_pod") else container_id)
    operations = [Operation.RUN_POD_SANDBOX, Operation.CREATE_CONTAINER, *(OPERATIONS[verb] for verb in front.life)]
    await until(lambda: all(times.done for times in proxy.recorder.calls), "every call is done")
    assert [times.operation for times in proxy.recorder.calls] == [operation.value for operation in operations]
    for times in proxy.recorder.calls:
        moments = _moments(times)
        assert moments == sorted(moments)
        assert times.outcome == "agreed"
    held, released, answered, done = _moments(proxy.recorder.calls[2])
    # A timer may ring a moment early, by the resolution of the clock.
    assert released - held > hook_seconds * 0.9
    assert answered - released > runtime_seconds * 0.9
    assert done - answered > hook_seconds * 0.9


def _moments(times: CallTimes) -> list[float]:
    """Return held, released, answered and done, all of which must be there."""
    found = [moment for moment in (times.held, times.released, times.answered, times.done) if moment is not None]
    assert len(found) == 4
    return found
