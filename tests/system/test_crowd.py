"""Very many calls at once: none fails, and what has ended takes no memory (fault matrix S3)."""

import asyncio
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI, METHODS
from tests.system.docker_front import DockerRuntime
from tests.system.fronts import Front, Runtime
from tests.system.h2client import H2Client
from tests.system.hostile import Process
from tests.system.proxy import STATE_KNOWN, until

pytestmark = pytest.mark.slow

STREAMS = 1_000
TOGETHER_SECONDS = 1.0
"""The runtime answers after so many seconds: by then it has all calls."""
COME_AND_GO, WARM_UP = Amount(1_000, 100_000), 500
SETTLE_SECONDS = 3.0
"""A proxy uses one more MiB for a moment about a second after its start, whatever it does."""
MIB = 1 << 20


@pytest.mark.parametrize("front", [CRI], ids=["cri"])
@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_thousand_streams_of_one_connection_are_open_at_once(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, verb: str
) -> None:
    """A hook server is asked about every call that is held."""
    proxy, calls = front.process(tmp_path, log_level="info", hook_budget="60s"), []
    proxy.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await asyncio.to_thread(proxy.wait_for_log, STATE_KNOWN)  # on a connection that stays
        before = Process(proxy.pid).descriptors()
        runtime.upset(verb, delay_seconds=TOGETHER_SECONDS)
        async with H2Client(proxy.socket) as client:
            for _ in range(STREAMS):
                request = caller.create_request(pod_id) if verb == "create" else b""
                calls.append(await client.open(f"/runtime.v1.RuntimeService/{METHODS[verb]}", request))
                await asyncio.sleep(0)
            answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {0}
        assert len(runtime.asked(verb)) == STREAMS
        if verb == "create":
            assert {caller.id_in(verb, answer.message) for answer in answers} == set(runtime.container_ids())
        await until(lambda: Process(proxy.pid).descriptors() <= before, "every connection is closed")
    assert "broke the protocol" not in proxy.output()


async def test_connections_that_have_ended_take_no_memory(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """They come and go as the docker CLI's do."""
    async with front.process(tmp_path) as proxy:

        async def connect(count: int) -> None:
            for _ in range(count):
                async with front.caller(proxy.socket) as caller:
                    await caller.act("ping")

        await connect(WARM_UP)
        if isinstance(runtime, DockerRuntime):  # its own work is done once the daemon is followed
            await until(lambda: bool(runtime.watchers and runtime.requests("GET /info")), "the daemon is followed")
        await asyncio.sleep(SETTLE_SECONDS)
        await connect(WARM_UP)
        before, files = Process(proxy.pid).resident(), Process(proxy.pid).descriptors()
        await connect(COME_AND_GO.now)
        assert Process(proxy.pid).resident() - before < MIB
        # the last connection is closed soon, not at once
        await until(lambda: Process(proxy.pid).descriptors() <= files, "every connection is closed")
