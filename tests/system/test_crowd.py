"""A thousand calls of one connection are under way together, and none fails (fault matrix S3)."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI, METHODS
from tests.system.fronts import Front, Runtime
from tests.system.h2client import H2Client
from tests.system.hostile import Process
from tests.system.proxy import STATE_KNOWN, until

pytestmark = pytest.mark.slow

STREAMS = 1_000


@pytest.mark.parametrize("front", [CRI], ids=["cri"])
@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_connection_has_a_thousand_open_streams(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, verb: str
) -> None:
    proxy, calls = front.process(tmp_path, log_level="info", hook_budget="60s"), []
    proxy.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await asyncio.to_thread(proxy.wait_for_log, STATE_KNOWN)  # on a connection that stays
        before = Process(proxy.pid).descriptors()
        runtime.set_fault(verb, delay_seconds=1.0)  # by then it has all calls
        async with H2Client(proxy.socket) as client:
            for _ in range(STREAMS):
                request = caller.create_request(pod_id) if verb == "create" else b""
                calls.append(await client.open(f"/runtime.v1.RuntimeService/{METHODS[verb]}", request))
                await asyncio.sleep(0)
            answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {0}
        assert len(runtime.arrived(verb)) == STREAMS
        if verb == "create":
            assert {caller.id_in(verb, answer.message) for answer in answers} == set(runtime.container_ids())
        await until(lambda: Process(proxy.pid).descriptors() <= before, "every connection is closed")
    assert "broke the protocol" not in proxy.output()
