"""Clients that leave while a call is held, released or answered, and the moments of a call (relay-rules C1 to C5)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookpoints import Operation
from runtimeproxy.telemetry import CallTimes
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system import clients
from tests.system.capture import Capture
from tests.system.clients import Client
from tests.system.h2client import H2Client
from tests.system.proxy import ProxyInside, until

CANCEL = 8


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        yield server


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "real.sock")) as fake:
        yield fake


@pytest.fixture
async def proxy(tmp_path: Path, hooks: HookServer) -> AsyncIterator[ProxyInside]:
    inside = ProxyInside(tmp_path)
    inside.register("plugin.json", hooks.socket_path, policy="Fail", timeout="20s")
    async with inside:
        yield inside


@pytest.fixture
async def capture(tmp_path: Path, proxy: ProxyInside, runtime: FakeRuntime) -> AsyncIterator[Capture]:
    async with Capture(tmp_path, proxy.socket, proxy.runtime) as both:
        yield both


@pytest.mark.parametrize("way", ["cancel", "deadline", "connection"])
async def test_a_client_that_leaves_ends_its_hook_call(
    way: str, capture: Capture, runtime: FakeRuntime, hooks: HookServer
) -> None:
    async with Client(capture.socket) as client:
        pod_id = await client.run_pod()
        hooks.on("PreCreateContainer", hookanswers.hang())
        call = client.call("CreateContainer", clients.create_request(pod_id), timeout=3 if way == "deadline" else 60)
        (asked,) = await asyncio.wait_for(hooks.wait_for_calls("PreCreateContainer"), 20)
        if way == "cancel":
            call.cancel()
        elif way == "connection":
            capture.before.cut()
        await asyncio.wait([asyncio.ensure_future(_settled(call))])
        await until(lambda: asked.cancelled, "the hook call has ended")
        if way == "cancel":
            await until(lambda: CANCEL in _resets(capture), "the runtime's stream is reset")
    assert not runtime.requests("CreateContainer")


async def test_a_refused_call_ends_at_the_runtime_and_the_connection_goes_on(
    capture: Capture, runtime: FakeRuntime, hooks: HookServer
) -> None:
    hooks.on("PreRunPodSandbox", hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no"))
    async with Client(capture.socket) as client:
        await _settled(client.call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=clients.pod())))
        await until(lambda: CANCEL in _resets(capture), "the runtime's stream is reset")
        assert not runtime.received
        hooks.on("PreRunPodSandbox", hookanswers.empty())
        await client.run_pod()
    assert len(capture.before.connections) == 1


async def _settled(call: grpc.aio.UnaryUnaryCall) -> None:  # type: ignore[type-arg]
    """Wait for the end of a call that fails."""
    assert await call.code() is not grpc.StatusCode.OK


def _resets(capture: Capture) -> set[int | None]:
    return {half.reset for half in capture.sides().requests[1].values()}


@pytest.mark.parametrize("way", ["cancel", "connection"])
async def test_post_hooks_run_although_the_client_has_left(
    way: str, capture: Capture, runtime: FakeRuntime, hooks: HookServer
) -> None:
    """The hook server still thinks when the client leaves; its call is not cancelled, the next one waits for it."""
    async with Client(capture.socket) as client:
        container_id = await client.create(await client.run_pod())
        gate = asyncio.Event()
        hooks.on("PostStartContainer", _behind(gate))
        call = client.call("StartContainer", cri_pb2.StartContainerRequest(container_id=container_id))
        (told,) = await asyncio.wait_for(hooks.wait_for_calls("PostStartContainer"), 20)
        if way == "cancel":
            call.cancel()
        else:
            capture.before.cut()
        await _settled(call)
        await asyncio.sleep(0.1)  # what the client's end might do to the hook call, it has done by now
        gate.set()
        async with Client(capture.socket) as another:
            await another.call("StopContainer", cri_pb2.StopContainerRequest(container_id=container_id))
    assert not told.cancelled
    assert told.request.container_meta.id == container_id


async def test_an_answer_that_waits_for_post_hooks_outlives_the_runtimes_connection(
    capture: Capture, hooks: HookServer
) -> None:
    async with Client(capture.socket) as client:
        container_id = await client.create(await client.run_pod())
        gate = asyncio.Event()
        hooks.on("PostStartContainer", _behind(gate))
        call = asyncio.ensure_future(
            client.call("StartContainer", cri_pb2.StartContainerRequest(container_id=container_id))
        )
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


async def test_what_the_runtime_carried_out_is_stored_though_the_client_left(
    tmp_path: Path, proxy: ProxyInside, runtime: FakeRuntime
) -> None:
    """The runtime's answer is on its way, kept up in a relay, when the client's connection ends."""
    async with FaultRelay(str(proxy.runtime), runtime.socket_path) as relay:
        async with Client(proxy.socket) as client:
            pod_id = await client.run_pod()
        relay.to_client.stop_reading()
        async with H2Client(proxy.socket) as leaving:
            request = clients.create_request(pod_id).SerializeToString()
            _, answer = await leaving.open(client.path("CreateContainer"), request)
            await until(lambda: bool(runtime.state.containers), "the runtime has made the container")
        assert not answer.done()
        await asyncio.sleep(0.1)  # the proxy has seen the end before the answer
        relay.to_client.resume_reading()
        (made,) = runtime.state.containers
        await until(lambda: proxy.store.container(made) is not None, "the container is in the Store")


OPERATIONS = [
    Operation.RUN_POD_SANDBOX,
    Operation.CREATE_CONTAINER,
    Operation.START_CONTAINER,
    Operation.UPDATE_CONTAINER_RESOURCES,
    Operation.STOP_CONTAINER,
    Operation.REMOVE_CONTAINER,
    Operation.UPDATE_POD_SANDBOX_RESOURCES,
    Operation.STOP_POD_SANDBOX,
    Operation.REMOVE_POD_SANDBOX,
]


async def test_the_moments_of_every_operation_are_in_order(
    capture: Capture, proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer
) -> None:
    hook_seconds, runtime_seconds = 0.04, 0.06
    hooks.default = hookanswers.after(hook_seconds)
    runtime.inject("StartContainer", Injection(delay_seconds=runtime_seconds))
    async with Client(capture.socket) as client:
        pod_id = await client.run_pod()
        container_id = await client.create(pod_id)
        for method in ("StartContainer", "UpdateContainerResources", "StopContainer", "RemoveContainer"):
            await client.call(method, cri_pb2.StartContainerRequest(container_id=container_id))
        for method in ("UpdatePodSandboxResources", "StopPodSandbox", "RemovePodSandbox"):
            await client.call(method, cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod_id))
    await until(lambda: all(times.done for times in proxy.recorder.calls), "every call is done")
    assert [times.operation for times in proxy.recorder.calls] == [operation.value for operation in OPERATIONS]
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
