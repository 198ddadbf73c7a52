"""What a hostile hook server, pod or image can change (docs/security.rst)."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, SKIP, Front, Runtime

pytestmark = pytest.mark.slow


def points(hooks: HookServer) -> list[str]:
    return [call.point.name for call in hooks.calls]


async def test_label_of_a_container_or_its_image_skips_no_hook_server(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Also after a restart, where dockerd reports the image's labels as the container's."""
    if isinstance(runtime, FakeDockerd):
        runtime.state.images.add(BUSYBOX_IMAGE, SKIP)
    for number in range(2):
        proxy = front.inside(tmp_path / str(number), remote_runtime_service_endpoint=runtime.socket_path)
        proxy.register("plugin.json", hooks.socket_path, policy="Fail")
        async with proxy, front.caller(proxy.socket) as caller:
            if number == 0:
                marked = replace(CONTAINER, labels=SKIP, annotations=SKIP)
                container_id = await caller.create(await caller.run_pod(), marked)
            await caller.update(container_id)
    assert points(hooks) == ["PreRunPodSandbox", "PreCreateContainer", *["PreUpdateContainerResources"] * 2]


async def test_hook_server_may_label_a_pod_to_be_skipped_from_then_on(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """It is trusted as the runtime is: the other hook servers skip the pod, also those under Fail."""
    hooks.default = hookanswers.reply(api_pb2.PodSandboxHookResponse(labels=SKIP))
    proxy = front.inside(tmp_path)
    proxy.register("a.json", hooks.socket_path, ["PreRunPodSandbox"])
    proxy.register("b.json", "/run/none.sock", ["PreCreateContainer"], policy="Fail")
    async with proxy, front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
    assert points(hooks) == ["PreRunPodSandbox"]
    assert len(runtime.arrived("create")) == 1
