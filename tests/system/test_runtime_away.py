"""The runtime is not there yet, is killed, and comes back: the proxy listens all the time (relay-rules A12)."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from tests.fakes import cri_pb2, hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system import clients
from tests.system.clients import Client
from tests.system.h2client import H2Client
from tests.system.proxy import ProxyProcess, answers, until

DIAL_SECONDS = 0.050
GOOD_SECONDS = 0.100
TRIES = 3


async def test_a_client_that_dials_gets_its_answer_within_100_ms_of_the_runtimes_start(tmp_path: Path) -> None:
    took = [await _first_good_answer(tmp_path / str(number)) for number in range(TRIES)]
    assert min(took) < GOOD_SECONDS, took


async def _first_good_answer(folder: Path) -> float:
    """Return the seconds from the moment that the runtime listens to the client's first good answer."""
    async with ProxyProcess(folder) as proxy:
        dialling = asyncio.create_task(_dial_until_answered(proxy.socket))
        await asyncio.sleep(4 * DIAL_SECONDS)
        assert not dialling.done()
        assert not proxy.ended
        async with FakeRuntime(str(proxy.runtime)):
            await until(lambda: answers(proxy.runtime), "the runtime listens")
            begun = time.monotonic()
            answered = await asyncio.wait_for(dialling, 20)
    return answered - begun


async def _dial_until_answered(socket: Path) -> float:
    while True:
        next_dial = time.monotonic() + DIAL_SECONDS
        try:
            async with H2Client(socket) as client:
                answer = await client.call("/runtime.v1.RuntimeService/Version", b"")
            assert answer.status == 0
            return time.monotonic()
        except ConnectionError:
            await asyncio.sleep(next_dial - time.monotonic())


@pytest.mark.parametrize("held", [False, True])
async def test_a_runtime_that_is_killed_fails_its_calls_and_is_found_again(tmp_path: Path, held: bool) -> None:
    """Its socket vanishes with every connection in the middle of a call; ``held``: while the hook server is asked."""
    proxy = ProxyProcess(tmp_path)
    runtime = FakeRuntime(str(tmp_path / "inner.sock"))
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.hang())
    proxy.register("slow.json", hooks.socket_path, ["PreCreateContainer"], timeout="10s")
    async with runtime, hooks, proxy:
        relay = FaultRelay(str(proxy.runtime), runtime.socket_path)
        await relay.start()
        async with Client(proxy.socket) as client:
            pod_id = await client.run_pod()
            method = "CreateContainer" if held else "/no.such.Service/Chat"
            call = client.call(method, clients.create_request(pod_id)) if held else client.both(method)
            if held:
                waiting = asyncio.ensure_future(call)
                await hooks.wait_for_calls("PreCreateContainer")
            else:
                await call.write(b"hello")
                assert await call.read() == b"hello"
                waiting = asyncio.ensure_future(call.read())
            await relay.stop()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await waiting
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            if held:
                await until(lambda: hooks.calls[0].cancelled, "the hook call has ended")
        assert answers(proxy.socket)
        async with FaultRelay(str(proxy.runtime), runtime.socket_path), Client(proxy.socket) as client:
            reply = await client.call("PodSandboxStatus", cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod_id))
            assert cri_pb2.PodSandboxStatusResponse.FromString(reply).status.id == pod_id
