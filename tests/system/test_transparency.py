"""Where no hook changes anything both sides see the same streams, whoever the client is (relay-rules A1, A8)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.engines import cri
from tests.fakes import cri_pb2, registration
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system.capture import Capture
from tests.system.clients import Client
from tests.system.cri_front import CRI
from tests.system.fronts import POD
from tests.system.h2client import H2Client
from tests.system.proxy import ProxyInside, until

UNKNOWN_FIELD = b"\xd2\xbb\x0f\x07unknown"  # field 31418, length-delimited
MORE_FIELDS = [("x-caller", "kubelet"), ("x-caller", "again"), ("trace-bin", "AAH/")]
Call = Callable[[str, bytes], Awaitable[bytes]]


@asynccontextmanager
async def by_grpcio(socket: Path) -> AsyncIterator[Call]:
    async with Client(socket) as client:

        async def call(path: str, message: bytes) -> bytes:
            try:
                metadata = (("x-caller", "kubelet"), ("x-caller", "again"), ("trace-bin", b"\0\1\xff"))
                return bytes(await client.call(path, message, metadata=metadata))
            except grpc.aio.AioRpcError:
                return b""

        yield call


@asynccontextmanager
async def by_h2(socket: Path) -> AsyncIterator[Call]:
    async with H2Client(socket) as client:

        async def call(path: str, message: bytes) -> bytes:
            return (await client.call(path, message, [*MORE_FIELDS, ("grpc-timeout", "30S")])).message

        yield call


CLIENTS = {"grpcio": by_grpcio, "h2": by_h2}


async def kubelets_calls(call: Call, version: str) -> None:
    """Do what a kubelet does with a pod, and some things that no kubelet does yet."""
    service = f"/{version}.RuntimeService"
    await call(f"{service}/Version", cri_pb2.VersionRequest(version="v1").SerializeToString())
    caller = CRI.caller("nowhere")
    run = caller.pod_request(POD)
    pod = cri_pb2.RunPodSandboxResponse.FromString(await call(f"{service}/RunPodSandbox", run + UNKNOWN_FIELD))
    create = caller.create_request(pod.pod_sandbox_id)
    container = cri_pb2.CreateContainerResponse.FromString(await call(f"{service}/CreateContainer", create))
    by_id = cri_pb2.StartContainerRequest(container_id=container.container_id).SerializeToString()
    await call(f"{service}/StartContainer", by_id)
    await call(f"{service}/UpdateContainerResources", by_id + UNKNOWN_FIELD)
    await call(f"{service}/ListContainers", b"")
    await call(f"{service}/StopContainer", by_id + b"\x10\x05")
    await call(f"{service}/StopContainer", b"\x0a\x07missing")  # NOT_FOUND, with the runtime's words
    await call(f"{service}/RemoveContainer", by_id)
    await call(f"{service}/NeverHeardOf", UNKNOWN_FIELD)
    await call(f"/{version}.ImageService/ListImages", b"")
    await call("/of.another.World/Service", b"\xff\xfe no protobuf")
    await call(f"{service}/StopPodSandbox", b"\x0a\x40" + pod.pod_sandbox_id.encode())
    await call(f"{service}/RemovePodSandbox", b"\x0a\x40" + pod.pod_sandbox_id.encode())


@pytest.mark.parametrize("hooked", [False, True], ids=["no hook", "hooks change nothing"])
@pytest.mark.parametrize("version", cri.VERSIONS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_both_sides_see_the_same_streams(tmp_path: Path, client: str, version: str, hooked: bool) -> None:
    proxy, hooks = ProxyInside(tmp_path), HookServer(str(tmp_path / "hooks.sock"))
    if hooked:
        proxy.register("quiet.json", hooks.socket_path)
    capture = Capture(tmp_path, proxy.socket, proxy.runtime)
    async with (
        FakeRuntime(str(capture.runtime)) as runtime,
        hooks,
        proxy,
        capture,
        CLIENTS[client](capture.socket) as call,
    ):
        runtime.initial_metadata = (("x-runtime", "fake"), ("x-more-bin", b"\0\xff"))
        await kubelets_calls(call, version)
        await until(lambda: capture.sides().equal, "both sides have seen the same streams")
    # On a busy machine the proxy may ask for the state meanwhile, once a pod is there.
    assert len([each for each in runtime.received if ("x-caller", "kubelet") in each.metadata]) == 14
    assert runtime.requests("RunPodSandbox")[0].message.endswith(UNKNOWN_FIELD)
    assert {half.fields.get(b"grpc-status") for half in capture.sides().replies[0].values()} == {b"0", b"5"}
    assert {call.point.name for call in hooks.calls} == (set(registration.ALL_POINTS) if hooked else set())
