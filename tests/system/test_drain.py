"""A proxy that is stopped finishes its calls, cuts streams last, and ends in time (promise 19, fault matrix P3).

What is waited for and in which order is in tests/relay/test_drain.py; what CRI adds is in tests/cri/test_front.py.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.docker_front import DOCKER
from tests.system.fronts import POD, Caller, Chat, Failed, Front, Runtime
from tests.system.proxy import WAIT_SECONDS, ProxyProcess, until

pytestmark = pytest.mark.slow

LONG_SECONDS = 60
OTHER_POD = replace(POD, name="other")
DRAINING, ANSWERED = "draining for at most", "every call is answered"
SERVING_ON = "serving on for at most"


@asynccontextmanager
async def stopping(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Run a proxy that the block stops, and check its end."""
    async with proxy:
        yield
        assert proxy.process is not None
        code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
        proxy.process = None
        proxy.check(code)


async def tell(proxy: ProxyProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal, and wait until the log says that the proxy drains."""
    assert proxy.process is not None
    proxy.process.send_signal(number)
    await asyncio.to_thread(proxy.wait_for_log, DRAINING)


async def test_calls_are_answered_before_streams_are_cut(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """The stream begins after the signal in Docker mode, where an earlier one is waited for."""
    runtime.upset("list", delay_seconds=1)
    gate, proxy = asyncio.Event(), front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="20s")
    async with stopping(proxy), front.caller(proxy.socket) as caller, front.caller(proxy.socket) as other:
        earlier = await begin_to_stop(proxy, other) if front is DOCKER else None
        stream = await caller.chat()
        hooks.calls.clear()
        hooks.on("PreRunPodSandbox", hookanswers.behind(gate))
        held = asyncio.ensure_future(other.send("run_pod", other.pod_request(OTHER_POD)))
        passing = asyncio.ensure_future(caller.act("list"))
        await until(lambda: bool(runtime.asked("list")), "the runtime has the request")
        await hooks.wait_for_calls("PreRunPodSandbox")
        if earlier is None:
            await tell(proxy)
        else:
            await earlier.end()
            await asyncio.to_thread(proxy.wait_for_log, DRAINING)
        await stream.say(b"still there")
        assert await stream.hear() == b"still there"
        await passing
        gate.set()
        assert other.id_in("run_pod", await held) in runtime.pod_ids()
        with pytest.raises(Failed):
            await asyncio.wait_for(stream.hear(), WAIT_SECONDS)
    assert "SIGTERM: stopping" in proxy.output()
    assert ANSWERED in proxy.output()
    assert not proxy.socket.exists()


async def begin_to_stop(proxy: ProxyProcess, caller: Caller) -> Chat:
    """Open a tunnel and tell the proxy to stop, which serves on because of it."""
    tunnel = await caller.chat()
    assert proxy.process is not None
    proxy.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(proxy.wait_for_log, SERVING_ON)
    return tunnel


async def test_clients_are_served_while_a_tunnel_is_waited_for(tmp_path: Path) -> None:
    """A container's exec probe is such a tunnel."""
    proxy = DOCKER.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    async with (
        DOCKER.runtime(str(proxy.runtime)) as runtime,
        stopping(proxy),
        DOCKER.caller(proxy.socket) as caller,
    ):
        tunnel = await begin_to_stop(proxy, caller)
        async with DOCKER.caller(proxy.socket) as newer:
            assert await newer.create(await newer.run_pod()) in runtime.container_ids()
        await tunnel.say(b"still there")
        assert await tunnel.hear() == b"still there"
        assert DRAINING not in proxy.output()
        await tunnel.end()
    assert "that have not ended: 0" in proxy.output()
    assert ANSWERED in proxy.output()


@pytest.mark.parametrize("again", [False, True], ids=["the limit", "a second signal"])
async def test_tunnel_is_cut_at_the_limit_or_by_a_second_signal(tmp_path: Path, again: bool) -> None:
    proxy = DOCKER.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s" if again else "500ms")
    async with DOCKER.runtime(str(proxy.runtime)), stopping(proxy), DOCKER.caller(proxy.socket) as caller:
        begun = time.monotonic()
        tunnel = await begin_to_stop(proxy, caller)
        if again:
            await tell(proxy)
        with pytest.raises(Failed):
            await asyncio.wait_for(tunnel.hear(), WAIT_SECONDS)
        assert time.monotonic() - begun < LONG_SECONDS / 2
    assert "that have not ended: 1" in proxy.output()


@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGINT])
async def test_hook_that_hangs_holds_the_end_up_to_the_limit_or_a_second_signal(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, again: signal.Signals | None
) -> None:
    proxy = front.process(tmp_path, drain_timeout="60s" if again else "1s", hook_budget="60s")
    proxy.register("hung.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="60s")
    hooks.on("PreRunPodSandbox", hookanswers.hang())
    async with front.caller(proxy.socket) as caller:
        async with stopping(proxy), front.sent(proxy.socket, "run_pod", caller.pod_request(POD)) as answer:
            await hooks.wait_for_calls("PreRunPodSandbox")
            begun = time.monotonic()
            await tell(proxy)
            if again:
                assert not answer.done()
                await tell(proxy, again)
            with pytest.raises(ConnectionError):
                await answer
        assert time.monotonic() - begun < LONG_SECONDS / 2
    assert ("a second signal came" if again else "the time is over") in proxy.output()
    assert not runtime.asked("run_pod")
