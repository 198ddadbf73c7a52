"""A hook server that scales, and a proxy that is started again: what was scaled at the create is not scaled twice."""

import asyncio
from pathlib import Path

import pytest

from runtimeproxy_hooks.cpunormalization import NORMALIZED
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, UPDATE, Front
from tests.system.proxy import ProxyProcess
from tests.system.reference import HookProgram, served

pytestmark = pytest.mark.slow

QUOTA = int(CONTAINER.resources["cpu_quota"])
RATIO, SCALED = 1.25, 160_000
RESTARTS = 2
POINTS = ("PreCreateContainer", "PreUpdateContainerResources")


async def started_again(proxy: ProxyProcess) -> None:
    """Kill and start the proxy, and wait until it has read the runtime's state."""
    await asyncio.to_thread(proxy.kill)
    proxy.log.unlink()
    await asyncio.to_thread(proxy.start)
    await proxy.state_known()


async def test_a_quota_is_scaled_once_over_restarts_of_the_proxy(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    settings = tmp_path / "node.yaml"
    settings.write_text(f"cpu-normalization-ratio: {RATIO}")
    scaling = HookProgram(proxy, "cpunormalization", flags=[f"--node-config={settings}"])
    watching = HookServer(str(tmp_path / "watching.sock"))
    proxy.register("watching.json", watching.socket_path, POINTS)  # it is asked last: it sees what comes of it all
    with served(scaling):
        async with front.runtime(str(proxy.runtime)), watching, proxy:
            async with front.caller(proxy.socket) as caller:
                container_id = await caller.create(await caller.run_pod())
                await caller.update(container_id, UPDATE)
            for _ in range(RESTARTS):
                await started_again(proxy)
                async with front.caller(proxy.socket) as caller:
                    await caller.update(container_id, UPDATE)
    seen = [call.request for call in watching.calls]
    assert [request.container_resources.cpu_quota for request in seen] == [SCALED] * (2 + RESTARTS)
    assert {request.container_annotations[NORMALIZED] for request in seen} == {f"{QUOTA}:{SCALED}"}
