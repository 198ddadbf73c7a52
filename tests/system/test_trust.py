"""What a hostile hook server, pod or image can change (docs/security.rst)."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, SKIP, Front, Runtime


@pytest.mark.slow
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
    points = ["PreRunPodSandbox", "PreCreateContainer", *["PreUpdateContainerResources"] * 2]
    assert [call.point.name for call in hooks.calls] == points
