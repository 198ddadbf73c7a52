"""No log line holds a value of a request, and nothing heavy is loaded without need."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines import cri
from tests.fakes import cri_pb2, hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system import clients
from tests.system.clients import Client
from tests.system.proxy import ProxyInside, ProxyProcess

CANARY = "canary-7f3a91"
RESPONSE = api_pb2.ContainerResourceHookResponse
ANSWERS: dict[str, hookanswers.Answer] = {
    "empty": hookanswers.empty(),
    "echo": hookanswers.echo(),
    "changed": hookanswers.echo(lambda response: _plant(response)),
    "refused": hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, f"no {CANARY} here"),
    "error": hookanswers.status(grpc.StatusCode.INTERNAL, f"{CANARY} failed", (("x-more", CANARY),)),
    "garbage": hookanswers.raw(CANARY.encode()),
    "huge": hookanswers.huge(),
    "hang": hookanswers.hang(),
    "bad name": hookanswers.reply(RESPONSE(container_envs={f"{CANARY}=": CANARY})),
    "bad parent": hookanswers.reply(RESPONSE(pod_cgroup_parent=CANARY)),
    "bad cpuset": hookanswers.reply(RESPONSE(container_resources={"cpuset_cpus": CANARY})),
}


def _plant(response: object) -> None:
    if isinstance(response, RESPONSE):
        response.container_envs["HOOKED"] = CANARY
    else:
        assert isinstance(response, api_pb2.PodSandboxHookResponse)
        response.labels["hooked"] = CANARY


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        yield server


async def test_no_line_holds_a_value(
    tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line is looked at, also those that the log's limit of lines of a kind would leave out."""
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    proxy = ProxyInside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path, timeout="200ms")
    async with proxy, Client(proxy.socket) as client:
        await _all_there_is(client, runtime, hooks)
        failures = proxy.recorder.total("hook_failures")
    assert failures > len(ANSWERS)
    assert caplog.text.count("'plugin'") == failures
    assert CANARY not in caplog.text


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_stderr_holds_no_value(tmp_path: Path, runtime: FakeRuntime, hooks: HookServer, log_format: str) -> None:
    proxy = ProxyProcess(tmp_path, log_format=log_format)
    proxy.register("plugin.json", hooks.socket_path, timeout="200ms")
    async with proxy, Client(proxy.socket) as client:
        await _all_there_is(client, runtime, hooks)
    assert "'plugin'" in proxy.output()
    assert CANARY not in proxy.output()


async def _all_there_is(client: Client, runtime: FakeRuntime, hooks: HookServer) -> None:
    """Make every held call with every answer of the hook server, and calls that fail in other ways."""
    for name, answer in ANSWERS.items():
        hooks.default = answer
        await _life_of_a_pod(client, name)
    await _failing_calls(client, runtime)
    assert {call.point.name for call in hooks.calls} == set(registration.ALL_POINTS)
    assert sum(CANARY.encode() in call.message for call in hooks.calls) > len(ANSWERS)


async def _life_of_a_pod(client: Client, name: str) -> None:
    """Make every held call, with the canary wherever a value can stand; refused ones are no end."""
    pod = clients.pod(f"pod-{name}", labels={"secret": CANARY}, annotations={"secret": CANARY})
    config = cri.container_config(
        "main",
        command=["/bin/sh", "-c", CANARY],
        envs=[("SECRET", CANARY.encode())],
        labels={"secret": CANARY},
        annotations={"secret": CANARY},
    )
    config.args.append(CANARY)
    reply = await _tried(client, "RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=pod))
    pod_id = cri_pb2.RunPodSandboxResponse.FromString(reply).pod_sandbox_id or "unknown"
    reply = await _tried(client, "CreateContainer", clients.create_request(pod_id, config, pod))
    container_id = cri_pb2.CreateContainerResponse.FromString(reply).container_id or "unknown"
    update = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, annotations={"secret": CANARY})
    await _tried(client, "UpdateContainerResources", update)
    for method in ("StartContainer", "StopContainer", "RemoveContainer"):
        await _tried(client, method, cri_pb2.StartContainerRequest(container_id=container_id))
    for method in ("StopPodSandbox", "RemovePodSandbox"):
        await _tried(client, method, cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod_id))


async def _failing_calls(client: Client, runtime: FakeRuntime) -> None:
    """Make calls that cannot be read, and such as the runtime answers with the canary in its own words."""
    for method in ("RunPodSandbox", "CreateContainer", "UpdateContainerResources", "StartContainer"):
        await _tried(client, method, b"\x0a\x05\xff" + CANARY.encode())
        runtime.inject(method, Injection(code=grpc.StatusCode.UNKNOWN, details=CANARY))
        await _tried(client, method, cri_pb2.RunPodSandboxRequest(config=clients.pod(labels={"secret": CANARY})))
    await _tried(client, f"/no.such.Service/{CANARY}", CANARY.encode(), metadata=(("authorization", CANARY),))


async def _tried(client: Client, method: str, request: object, **more: object) -> bytes:
    try:
        return bytes(await client.call(method, request, **more))  # type: ignore[arg-type]
    except grpc.aio.AioRpcError:
        return b""


async def test_neither_aiohttp_nor_grpcio_is_loaded(tmp_path: Path, runtime: FakeRuntime, hooks: HookServer) -> None:
    """They are several times the proxy's own memory: what a running proxy needs is its own relay and client."""
    proxy = ProxyProcess(tmp_path)
    proxy.register("plugin.json", hooks.socket_path)
    async with proxy, Client(proxy.socket) as client:
        await _life_of_a_pod(client, "pod")
        await _tried(client, "StopContainer", b"\x0a\x07missing")  # the runtime is asked for its state
        maps = await asyncio.to_thread(Path(f"/proc/{proxy.pid}/maps").read_text)
    assert len(hooks.calls) == 7
    assert "uvloop" in maps  # so a library's compiled part is seen in this list
    assert "grpc/_cython" not in maps
    assert "aiohttp" not in maps
