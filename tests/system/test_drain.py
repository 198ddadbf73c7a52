"""A proxy that is stopped finishes its calls, cuts streams last, and ends in time (promise 19, fault matrix P3).

The limit, a second signal and tunnels that are waited for: tests/relay/test_drain.py.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.docker_front import DOCKER
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.proxy import WAIT_SECONDS, ProxyProcess, until

pytestmark = pytest.mark.slow

DRAINING = "draining for at most"


@asynccontextmanager
async def stopping(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Run a proxy that the block stops, and check its end."""
    async with proxy:
        yield
        assert proxy.process is not None
        code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
        proxy.process = None
        proxy.check(code)


async def send_signal(proxy: ProxyProcess, number: signal.Signals, text: str) -> None:
    """Send a signal, and wait until the log has a text."""
    assert proxy.process is not None
    proxy.process.send_signal(number)
    await asyncio.to_thread(proxy.wait_for_log, text)


async def test_calls_are_answered_before_streams_are_cut(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """In Docker mode an earlier tunnel, as of an exec probe, is waited for while new clients are served."""
    runtime.set_fault("list", delay_seconds=1)
    gate, proxy = asyncio.Event(), front.process(tmp_path, drain_timeout="60s")
    proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="20s")
    async with stopping(proxy), front.caller(proxy.socket) as caller, front.caller(proxy.socket) as other:
        if front is DOCKER:
            earlier = await other.open_stream()
            await send_signal(proxy, signal.SIGTERM, "serving on for at most")
        stream = await caller.open_stream()
        hooks.calls.clear()
        hooks.on("PreRunPodSandbox", hookanswers.behind(gate))
        held = asyncio.ensure_future(other.send("run_pod", other.pod_request(replace(POD, name="other"))))
        passing = asyncio.ensure_future(caller.act("list"))
        await until(lambda: bool(runtime.arrived("list")), "the runtime has the request")
        await hooks.wait_for_calls("PreRunPodSandbox")
        if front is DOCKER:
            assert DRAINING not in proxy.output()
            await earlier.close()
            await asyncio.to_thread(proxy.wait_for_log, DRAINING)
        else:
            await send_signal(proxy, signal.SIGTERM, DRAINING)
        await stream.write(b"still there")
        assert await stream.read() == b"still there"
        await passing
        gate.set()
        assert other.id_in("run_pod", await held) in runtime.pod_ids()
        with pytest.raises(Failed):
            await asyncio.wait_for(stream.read(), WAIT_SECONDS)
    assert "SIGTERM: stopping" in proxy.output()
    assert "every call is answered" in proxy.output()
    assert not proxy.socket.exists()
