"""Very many at once: none is refused, none fails (row S3); scripts/soaking/crowd.py measures how fair it is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import cri_pb2
from tests.fakes.hookserver import HookServer
from tests.system.clients import Client
from tests.system.cri_front import CRI, CriCaller
from tests.system.fronts import Front, Runtime
from tests.system.h2client import H2Client
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

STREAMS = 1_000
CONNECTIONS = 100
CALLS_OF_EACH = 10
EXECS = 200
TOGETHER_SECONDS = 1.0
"""The runtime answers so late: by then all calls are in it."""


@pytest.fixture
async def proxy(front: Front, tmp_path: Path, runtime: Runtime) -> AsyncIterator[ProxyProcess]:
    """Run a proxy with a hook server that is asked about every call that is held; nothing may be left at the end."""
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks:
        running = front.process(tmp_path, log_level="info", hook_budget="60s")
        running.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
        async with running:
            async with front.caller(running.socket) as caller:
                await caller.run_pod()
            await running.state_known()
            before = Process(running.pid).descriptors()
            yield running
            await until(lambda: Process(running.pid).descriptors() <= before, "every connection is closed")
            assert "broke the protocol" not in running.output()


only_cri = pytest.mark.parametrize("front", [CRI], ids=["cri"])


@only_cri
@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_a_thousand_streams_of_one_connection_are_open_at_once(
    front: Front, proxy: ProxyProcess, runtime: Runtime, verb: str
) -> None:
    caller = CriCaller(proxy.socket)
    pod_id = await caller.run_pod()
    method = {"ping": "Version", "create": "CreateContainer"}[verb]
    runtime.upset(verb, delay_seconds=TOGETHER_SECONDS)
    async with H2Client(proxy.socket) as client:
        calls = []
        for _ in range(STREAMS):
            request = caller.create_request(pod_id) if verb == "create" else b""
            calls.append((await client.open(f"/runtime.v1.RuntimeService/{method}", request))[1])
            await asyncio.sleep(0)
        answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {0}
    assert len(runtime.asked(verb)) == STREAMS
    if verb == "create":
        assert {caller.id_in(verb, answer.message) for answer in answers} == set(runtime.container_ids())
    await caller.close()


async def test_a_hundred_connections_make_their_calls_at_once(
    front: Front, proxy: ProxyProcess, runtime: Runtime
) -> None:
    async def life() -> None:
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
            for _ in range(CALLS_OF_EACH):
                container_id = await caller.create(pod_id)
                await caller.act("start", container_id)
                assert await caller.pod_status(pod_id) == pod_id

    await asyncio.gather(*(life() for _ in range(CONNECTIONS)))
    assert len(runtime.container_ids()) == CONNECTIONS * CALLS_OF_EACH


@only_cri
async def test_two_hundred_commands_are_executed_at_once(front: Front, proxy: ProxyProcess, runtime: Runtime) -> None:
    async with Client(proxy.socket) as client:
        container_id = await client.create(await client.run_pod())
        await client.call("StartContainer", cri_pb2.StartContainerRequest(container_id=container_id))
        requests = (
            cri_pb2.ExecSyncRequest(container_id=container_id, cmd=["echo", str(number)], timeout=10)
            for number in range(EXECS)
        )
        replies = await asyncio.gather(*(client.call("ExecSync", request) for request in requests))
    said = [cri_pb2.ExecSyncResponse.FromString(reply).stdout for reply in replies]
    assert said == [b"%d\n" % number for number in range(EXECS)]


async def test_two_hundred_streams_are_open_both_ways_at_once(
    front: Front, proxy: ProxyProcess, runtime: Runtime
) -> None:
    async with front.caller(proxy.socket) as caller:
        chats = [await caller.chat() for _ in range(EXECS)]
        for turn in range(2):
            for number, chat in enumerate(chats):
                await chat.say(b"%d of %d" % (number, turn))
            heard = await asyncio.gather(*(chat.hear() for chat in chats))
            assert heard == [b"%d of %d" % (number, turn) for number in range(EXECS)]
