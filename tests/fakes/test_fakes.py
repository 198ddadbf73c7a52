"""The fakes do what the other tests rely on."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines import cri
from tests.fakes import cri_pb2, hookanswers, registration
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection

HOOK_PATH = "/runtime.v1alpha1.RuntimeHookService/"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock"), faulty=True) as server:
        yield server


async def call(path: str, method: str, message: bytes, seconds: float = 10.0, **more: Any) -> bytes:
    """Call once on a connection of its own, bytes in and out."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        unary: Any = channel.unary_unary(method)
        return bytes(await unary(message, timeout=seconds, **more))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise TimeoutError


def answers(path: Path) -> bool:
    """Tell whether somebody listens: a socket's file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


# ---- runtime


@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_a_pod_lives_in_the_fake_runtime_as_in_containerd(runtime: FakeRuntime, version: str) -> None:
    await asyncio.to_thread(live, runtime.socket_path, version)
    [run] = runtime.requests("RunPodSandbox")
    assert run.path == f"/{version}.RuntimeService/RunPodSandbox"
    assert 50 < (run.deadline_seconds or 0) < 61
    assert str(dict(run.metadata)["user-agent"]).startswith("grpc-python")
    assert runtime.counts[f"/{version}.RuntimeService/ExecSync"] == 3
    assert not runtime.state.pods
    assert not runtime.state.containers


def live(path: str, version: str) -> None:
    pod = cri.pod_config("web", "uid-1", cgroup_parent="/kubepods/poduid-1", labels={"app": "web"})
    resources = cri_pb2.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=1 << 20)
    config = cri.container_config("main", envs=[("A", b"1"), ("A", b"\xff")], resources=resources)
    with cri.CriClient(path, version) as client:
        assert client.version().runtime_api_version == version.removeprefix("runtime.")
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, config, pod)
        client.start(container_id)
        client.update(container_id, cri_pb2.LinuxContainerResources(cpu_quota=50000))
        assert client.environment(container_id)["A"] == b"\xff"
        assert client.exec_sync(container_id, "cat", "/sys/fs/cgroup/cpu/cpu.shares").stdout == b"512\n"
        assert client.exec_sync(container_id, "cat", "/sys/fs/cgroup/cpu.max").stdout == b"50000 100000\n"
        status = json.loads(client.status(container_id).info["info"])
        assert status["config"]["envs"] == [{"key": "A", "value": "1"}, {"key": "A", "value": "\ufffd"}]
        assert status["config"]["linux"]["resources"] == {"cpu_shares": 512, "memory_limit_in_bytes": 1 << 20}
        assert status["runtimeSpec"]["linux"]["cgroupsPath"] == f"/kubepods/poduid-1/{container_id}"
        assert status["runtimeSpec"]["linux"]["resources"]["cpu"] == {"shares": 512, "quota": 50000}
        assert json.loads(client.pod_status(pod_id).info["info"])["config"]["labels"] == {"app": "web"}
        assert [container.id for container in client.containers()] == [container_id]
        client.stop(container_id)
        client.remove(container_id)
        client.stop_pod(pod_id)
        client.remove_pod(pod_id)


async def test_requests_are_kept_as_they_came_and_unknown_services_echo(runtime: FakeRuntime) -> None:
    unknown_field = b"\xfa\x3f\x03abc"
    await call(runtime.socket_path, "/runtime.v1.RuntimeService/RunPodSandbox", unknown_field, metadata=[("k", "v")])
    assert [pod.request for pod in runtime.state.pods.values()] == [unknown_field]
    assert ("k", "v") in runtime.received[-1].metadata
    assert await call(runtime.socket_path, "/other.Service/Method", b"\x00\xff") == b"\x00\xff"
    assert await call(runtime.socket_path, "/runtime.v1.RuntimeService/NotYetInvented", b"xyz") == b"xyz"


async def test_lists_are_as_big_as_told(runtime: FakeRuntime) -> None:
    runtime.state.fill_list(200, 16 << 20)
    reply = await call(runtime.socket_path, "/runtime.v1.RuntimeService/ListContainers", b"")
    assert abs(len(reply) - (16 << 20)) < 64 << 10
    assert len(cri_pb2.ListContainersResponse.FromString(reply).containers) == 200


async def test_injected_errors_carry_code_text_and_trailers(runtime: FakeRuntime) -> None:
    trailers = (("grpc-status-details-bin", b"\x00\x01"), ("reason", "full"))
    runtime.inject("Version", Injection(0.05, grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", trailers, times=1))
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(runtime.socket_path, "/runtime.v1.RuntimeService/Version", b"")
    assert time.monotonic() - began >= 0.05
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")
    assert set(trailers) <= set(caught.value.trailing_metadata())
    assert await call(runtime.socket_path, "/runtime.v1.RuntimeService/Version", b"")


async def test_a_callers_deadline_cancels_at_the_runtime(runtime: FakeRuntime) -> None:
    runtime.inject("Version", Injection(delay_seconds=60))
    for seconds in (0.1, 10):  # a server drops, unseen, what comes to it when its deadline has passed
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(runtime.socket_path, "/runtime.v1.RuntimeService/Version", b"", seconds=seconds)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        if runtime.received:
            break
    await until(lambda: runtime.received[-1].cancelled)


async def test_a_cut_drops_the_connection(runtime: FakeRuntime, tmp_path: Path) -> None:
    async with FaultRelay(str(tmp_path / "front.sock"), runtime.socket_path) as relay:
        runtime.cut_connections = relay.cut
        runtime.inject("Version", Injection(cut=True, delay_seconds=0.01, times=1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(relay.listen, "/runtime.v1.RuntimeService/Version", b"")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_events_reach_every_stream(runtime: FakeRuntime) -> None:
    async with grpc.aio.insecure_channel(f"unix:{runtime.socket_path}") as channel:
        method: Any = channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")
        streams = [method(b""), method(b"")]
        await asyncio.wait_for(runtime.wait_for_subscribers(2), 20)
        for number in range(3):
            runtime.send_event(f"container-{number}")
        for stream in streams:
            events = [cri_pb2.ContainerEventResponse.FromString(await stream.read()) for _ in range(3)]
            assert [event.container_id for event in events] == ["container-0", "container-1", "container-2"]
            stream.cancel()
    await until(lambda: all(received.cancelled for received in runtime.received))


# ---- faults


async def echo_backend(path: str) -> asyncio.Server:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.write(b" end")
        writer.close()

    return await asyncio.start_unix_server(echo, path)


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[FaultRelay]:
    backend = await echo_backend(str(tmp_path / "echo.sock"))
    async with FaultRelay(str(tmp_path / "front.sock"), str(tmp_path / "echo.sock")) as front:
        yield front
    backend.close()


@pytest.mark.parametrize("dribble", [False, True])
async def test_bytes_and_half_closes_pass_and_are_kept(relay: FaultRelay, dribble: bool) -> None:
    relay.to_backend.dribble = relay.to_client.dribble = dribble
    reader, writer = await asyncio.open_unix_connection(relay.listen)
    writer.write(b"hello")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 20) == b"hello end"
    [connection] = relay.connections
    assert (bytes(connection.to_backend), bytes(connection.to_client)) == (b"hello", b"hello end")
    assert connection.client_half_closed
    assert connection.backend_half_closed
    writer.close()


async def test_a_cut_lets_exactly_so_many_bytes_pass(relay: FaultRelay) -> None:
    relay.to_client.cut_after_bytes = 7
    reader, writer = await asyncio.open_unix_connection(relay.listen)
    writer.write(b"0123456789")
    assert await asyncio.wait_for(reader.read(), 20) == b"0123456"
    writer.close()


async def test_a_stopped_reader_takes_nothing_and_a_close_then_resets(relay: FaultRelay) -> None:
    reader, writer = await asyncio.open_unix_connection(relay.listen)
    await until(lambda: len(relay.connections) == 1)
    relay.to_backend.stop_reading()
    writer.write(b"late")
    await asyncio.sleep(0.02)
    assert not relay.connections[0].to_backend
    relay.to_backend.resume_reading()
    assert await asyncio.wait_for(reader.readexactly(4), 20) == b"late"
    relay.to_backend.stop_reading()
    writer.write(b"lost")
    await writer.drain()
    relay.reset()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()


async def test_half_closes_on_command(relay: FaultRelay) -> None:
    reader, writer = await asyncio.open_unix_connection(relay.listen)
    writer.write(b"x")
    await reader.readexactly(1)
    relay.half_close_backend()
    assert await asyncio.wait_for(reader.read(), 20) == b" end"
    writer.close()


async def test_a_backend_that_is_away_ends_the_client(tmp_path: Path) -> None:
    async with FaultRelay(str(tmp_path / "front.sock"), str(tmp_path / "nobody.sock")) as relay:
        reader, writer = await asyncio.open_unix_connection(relay.listen)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_the_bare_pipe_copies(tmp_path: Path) -> None:
    backend = await echo_backend(str(tmp_path / "echo.sock"))
    listen = tmp_path / "pipe.sock"
    pipe = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.pipe", str(listen), str(tmp_path / "echo.sock")
    )
    try:
        await until(lambda: answers(listen))
        reader, writer = await asyncio.open_unix_connection(str(listen))
        writer.write(b"x" * 1_000_000)
        assert await asyncio.wait_for(reader.readexactly(1_000_000), 10) == b"x" * 1_000_000
        writer.close()
    finally:
        pipe.kill()
        await pipe.wait()
        backend.close()


# ---- hook server


def container_request() -> api_pb2.ContainerResourceHookRequest:
    request = api_pb2.ContainerResourceHookRequest(container_envs={"A": "1"}, pod_labels={"l": "1"})
    request.pod_cgroup_parent = "/kubepods/pod1"
    request.container_resources.cpu_quota = 50000
    request.container_resources.cpuset_cpus = "0-3"
    return request


async def hook(server: HookServer, point: str = "PreCreateContainer", seconds: float = 10.0) -> Any:
    message = container_request().SerializeToString()
    answer = await call(server.socket_path, f"{HOOK_PATH}{point}Hook", message, seconds)
    return api_pb2.ContainerResourceHookResponse.FromString(answer)


async def test_every_hook_point_is_served_and_recorded(hooks: HookServer) -> None:
    for point in registration.ALL_POINTS:
        assert await call(hooks.socket_path, f"{HOOK_PATH}{point}Hook", b"") == b""
    assert [record.point.name for record in hooks.calls] == list(registration.ALL_POINTS)
    assert len(await hooks.wait_for_calls("PreCreateContainer")) == 1


async def test_an_echo_and_koordlets_answer(hooks: HookServer) -> None:
    hooks.on("PreCreateContainer", hookanswers.echo())
    hooks.on("PreStartContainer", hookanswers.koordlet(cpu_quota=-1, cpuset_cpus=""))
    expected = api_pb2.ContainerResourceHookResponse(container_envs={"A": "1"}, pod_cgroup_parent="/kubepods/pod1")
    expected.container_resources.CopyFrom(container_request().container_resources)
    assert await hook(hooks) == expected
    expected.container_resources.cpu_quota = -1
    expected.container_resources.cpuset_cpus = ""
    assert await hook(hooks, "PreStartContainer") == expected
    assert hooks.calls[0].request == container_request()


@pytest.mark.parametrize(
    ("answer", "seconds", "code"),
    [
        (hookanswers.hang(), 0.05, grpc.StatusCode.DEADLINE_EXCEEDED),
        (hookanswers.after(30), 0.05, grpc.StatusCode.DEADLINE_EXCEEDED),
        (hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no"), 10, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_it_hangs_is_late_and_refuses(
    hooks: HookServer, answer: hookanswers.Answer, seconds: float, code: grpc.StatusCode
) -> None:
    hooks.default = answer
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await hook(hooks, seconds=seconds)
    assert caught.value.code() == code


async def test_it_answers_too_much_and_nonsense(hooks: HookServer) -> None:
    hooks.default = hookanswers.huge()
    assert len((await hook(hooks)).container_annotations["huge"]) == 5 << 20
    hooks.default = hookanswers.garbage()
    with pytest.raises(Exception, match="parsing message"):
        await hook(hooks)


async def test_it_crashes_in_the_middle_of_an_answer(hooks: HookServer) -> None:
    hooks.default = hooks.crash_mid_answer()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await hook(hooks)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert hooks.faults is not None
    assert hooks.faults.connections[0].to_client


async def test_registration_files(tmp_path: Path) -> None:
    registration.write(tmp_path, "a.json", registration.text("/run/a.sock", ["PreCreateContainer"], timeout="500ms"))
    entry = json.loads((tmp_path / "a.json").read_text())
    assert (entry["remote-endpoint"], entry["timeout"]) == ("/run/a.sock", "500ms")
    first = registration.write_as_koordlet(tmp_path, "/run/k.sock", seed=1).read_text()
    second = registration.write_as_koordlet(tmp_path, "/run/k.sock", seed=2).read_text()
    assert first != second
    assert "\n\t" in first
    assert set(json.loads(first)["runtime-hooks"]) == {*registration.ALL_POINTS, registration.KOORDLET_EXTRA_POINT}
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "koordlet.json"}


@pytest.mark.parametrize("module", ["runtime", "hookserver"])
async def test_the_servers_run_alone(tmp_path: Path, module: str) -> None:
    path = tmp_path / "alone.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.fakes.{module}", "--socket", str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert str(path).encode() in await asyncio.wait_for(process.stdout.readline(), 20)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 10) == 0
