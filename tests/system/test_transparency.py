"""Where no hook changes anything both sides see the same streams (relay-rules A1, A8)."""

from contextlib import suppress
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
from tests.system.proxy import ProxyInside, until

UNKNOWN_FIELD = b"\xd2\xbb\x0f\x07unknown"  # field 31418, length-delimited
METADATA = (("x-caller", "kubelet"), ("x-caller", "again"), ("trace-bin", b"\0\1\xff"))


async def kubelets_calls(client: Client) -> None:
    """Do what a kubelet does with a pod, and some things that no kubelet does yet."""

    async def call(method: str, message: bytes) -> bytes:
        with suppress(grpc.aio.AioRpcError):
            return bytes(await client.call(method, message, metadata=METADATA))
        return b""

    await call("Version", cri_pb2.VersionRequest(version="v1").SerializeToString())
    caller = CRI.caller("nowhere")
    run = caller.pod_request(POD)
    pod = cri_pb2.RunPodSandboxResponse.FromString(await call("RunPodSandbox", run + UNKNOWN_FIELD))
    create = caller.create_request(pod.pod_sandbox_id)
    container = cri_pb2.CreateContainerResponse.FromString(await call("CreateContainer", create))
    by_id = cri_pb2.StartContainerRequest(container_id=container.container_id).SerializeToString()
    await call("StartContainer", by_id)
    await call("UpdateContainerResources", by_id + UNKNOWN_FIELD)
    await call("ListContainers", b"")
    await call("StopContainer", by_id + b"\x10\x05")
    await call("StopContainer", b"\x0a\x07missing")  # NOT_FOUND, with the runtime's words
    await call("RemoveContainer", by_id)
    await call("NeverHeardOf", UNKNOWN_FIELD)
    await call("ListImages", b"")
    await call("/of.another.World/Service", b"\xff\xfe no protobuf")
    await call("StopPodSandbox", b"\x0a\x40" + pod.pod_sandbox_id.encode())
    await call("RemovePodSandbox", b"\x0a\x40" + pod.pod_sandbox_id.encode())


@pytest.mark.parametrize("hooked", [False, True], ids=["no hook", "hooks change nothing"])
@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_both_sides_see_the_same_streams(tmp_path: Path, version: str, hooked: bool) -> None:
    proxy, hooks = ProxyInside(tmp_path), HookServer(str(tmp_path / "hooks.sock"))
    if hooked:
        proxy.register("quiet.json", hooks.socket_path)
    capture = Capture(tmp_path, proxy.socket, proxy.runtime)
    async with (
        FakeRuntime(str(capture.runtime)) as runtime,
        hooks,
        proxy,
        capture,
        Client(capture.socket, version) as client,
    ):
        runtime.initial_metadata = (("x-runtime", "fake"), ("x-more-bin", b"\0\xff"))
        await kubelets_calls(client)
        await until(lambda: capture.sides().equal, "both sides have seen the same streams")
    # On a busy machine the proxy may ask for the state meanwhile, once a pod is there.
    assert len([each for each in runtime.received if ("x-caller", "kubelet") in each.metadata]) == 14
    assert runtime.requests("RunPodSandbox")[0].message.endswith(UNKNOWN_FIELD)
    assert {half.fields.get(b"grpc-status") for half in capture.sides().replies[0].values()} == {b"0", b"5"}
    assert {call.point.name for call in hooks.calls} == (set(registration.ALL_POINTS) if hooked else set())
