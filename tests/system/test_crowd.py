"""Very many at once: none is refused, none fails, and what has ended takes no memory (fault matrix S3)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI, METHODS
from tests.system.docker_front import DockerRuntime
from tests.system.fronts import Front, Runtime
from tests.system.h2client import H2Client
from tests.system.hostile import Process
from tests.system.proxy import STATE_KNOWN, ProxyProcess, until

pytestmark = pytest.mark.slow

STREAMS, EXECS = 1_000, 200
TOGETHER_SECONDS = 1.0
"""The runtime answers so late: by then all calls are in it."""
COME_AND_GO, WARM_UP = Amount(1_000, 100_000), 500
SETTLE_SECONDS = 3.0
"""A proxy takes a MiB for a moment about a second after its start, whatever it does."""
MIB = 1 << 20


@pytest.fixture
async def proxy(front: Front, tmp_path: Path, runtime: Runtime) -> AsyncIterator[ProxyProcess]:
    """Run a proxy with a hook server that is asked about every call that is held; nothing may be left at the end."""
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks:
        running = front.process(tmp_path, log_level="info", hook_budget="60s")
        running.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
        async with running:
            async with front.caller(running.socket) as caller:
                await caller.run_pod()
            await asyncio.to_thread(running.wait_for_log, STATE_KNOWN)  # over a connection that stays
            before = Process(running.pid).descriptors()
            yield running
            await until(lambda: Process(running.pid).descriptors() <= before, "every connection is closed")
            assert "broke the protocol" not in running.output()


@pytest.mark.parametrize("front", [CRI], ids=["cri"])
@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_thousand_streams_of_one_connection_are_open_at_once(
    front: Front, proxy: ProxyProcess, runtime: Runtime, verb: str
) -> None:
    async with front.caller(proxy.socket) as caller, H2Client(proxy.socket) as client:
        pod_id, calls = await caller.run_pod(), []
        runtime.upset(verb, delay_seconds=TOGETHER_SECONDS)
        for _ in range(STREAMS):
            request = caller.create_request(pod_id) if verb == "create" else b""
            calls.append((await client.open(f"/runtime.v1.RuntimeService/{METHODS[verb]}", request))[1])
            await asyncio.sleep(0)
        answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {0}
        assert len(runtime.asked(verb)) == STREAMS
        if verb == "create":
            assert {caller.id_in(verb, answer.message) for answer in answers} == set(runtime.container_ids())


async def test_two_hundred_streams_are_open_both_ways_at_once(front: Front, proxy: ProxyProcess) -> None:
    async with front.caller(proxy.socket) as caller:
        chats = [await caller.chat() for _ in range(EXECS)]
        for turn in range(2):
            for number, chat in enumerate(chats):
                await chat.say(b"%d of %d" % (number, turn))
            heard = await asyncio.gather(*(chat.hear() for chat in chats))
            assert heard == [b"%d of %d" % (number, turn) for number in range(EXECS)]


async def test_connections_that_have_ended_take_no_memory(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """They come and go as the docker CLI's do."""
    async with front.process(tmp_path) as proxy:

        async def connect(count: int) -> None:
            for _ in range(count):
                async with front.caller(proxy.socket) as caller:
                    await caller.act("ping")

        await connect(WARM_UP)
        if isinstance(runtime, DockerRuntime):  # what it does for itself, it has done when the daemon is followed
            await until(lambda: bool(runtime.watchers and runtime.requests("GET /info")), "the daemon is followed")
        await asyncio.sleep(SETTLE_SECONDS)
        await connect(WARM_UP)
        before, files = Process(proxy.pid).resident(), Process(proxy.pid).descriptors()
        await connect(COME_AND_GO.now)
        assert Process(proxy.pid).resident() - before < MIB
        # the last connection is closed soon, not at once
        await until(lambda: Process(proxy.pid).descriptors() <= files, "every connection is closed")
