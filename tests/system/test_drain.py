"""A proxy that is told to stop finishes what it was asked for, cuts streams last, and ends in time.

That is promise 19, fault matrix P3. What is waited for and in which order is in tests/relay/test_drain.py.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.relay import drain
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system.clients import Client
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyInside, ProxyProcess, until
from tests.system.rawclient import RawClient
from tests.system.test_process import SUPERVISED

pytestmark = pytest.mark.slow

LONG_SECONDS = 60
OTHER_POD = replace(POD, name="other")
DRAINING, ANSWERED = "draining for at most", "every call is answered"


@asynccontextmanager
async def stopping(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Run a proxy that the block tells to stop, and check its end."""
    async with proxy:
        yield
        assert proxy.process is not None
        code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
        proxy.process = None
        proxy.check(code)


def tell(proxy: ProxyProcess, number: signal.Signals = signal.SIGTERM) -> None:
    assert proxy.process is not None
    proxy.process.send_signal(number)


async def test_calls_are_answered_and_streams_are_cut_behind_them(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    runtime.upset("list", delay_seconds=1)
    gate, proxy = asyncio.Event(), front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="20s")
    async with stopping(proxy), front.caller(proxy.socket) as caller, front.caller(proxy.socket) as other:
        stream = await caller.chat()
        hooks.calls.clear()
        hooks.on("PreRunPodSandbox", hookanswers.behind(gate))
        held = asyncio.ensure_future(other.send("run_pod", other.pod_request(OTHER_POD)))
        passing = asyncio.ensure_future(caller.act("list"))
        await until(lambda: bool(runtime.asked("list")), "the runtime has the request")
        await until(lambda: hooks.calls_of("PreRunPodSandbox") != [], "the hook server has the call")
        tell(proxy)
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


async def test_post_hook_of_a_client_that_has_left_is_waited_for(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("slow.json", hooks.socket_path, ["PostStartContainer"], timeout="20s")
    hooks.on("PostStartContainer", hookanswers.after(1))
    async with stopping(proxy), front.caller(proxy.socket) as caller:
        container_id = await caller.create(await caller.run_pod())
        hooks.calls.clear()
        async with front.sent(proxy.socket, "start", caller.request("start", container_id)):
            await hooks.wait_for_calls("PostStartContainer")
        tell(proxy)
    (call,) = hooks.calls_of("PostStartContainer")
    assert not call.cancelled
    assert ANSWERED in proxy.output()


@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGINT])
async def test_hook_that_hangs_holds_the_end_up_to_the_limit_or_a_second_signal(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, again: signal.Signals | None
) -> None:
    proxy = front.process(tmp_path, drain_timeout="1s" if again is None else "60s", hook_budget="60s")
    proxy.register("hung.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="60s")
    hooks.on("PreRunPodSandbox", hookanswers.hang())
    async with front.caller(proxy.socket) as caller:
        async with stopping(proxy), front.sent(proxy.socket, "run_pod", caller.pod_request(POD)) as answer:
            await hooks.wait_for_calls("PreRunPodSandbox")
            begun = time.monotonic()
            tell(proxy)
            if again is not None:
                await asyncio.to_thread(proxy.wait_for_log, DRAINING)
                assert not answer.done()
                tell(proxy, again)
            with pytest.raises(ConnectionError):
                await answer
        assert time.monotonic() - begun < LONG_SECONDS / 2
    assert ("the time is over" if again is None else "a second signal came") in proxy.output()
    assert not runtime.asked("run_pod")


async def test_call_without_an_answer_is_settled_while_others_are_finished(
    front: Front, tmp_path: Path, hooks: HookServer
) -> None:
    """Its client gave it up, and the runtime carried it out; a call is held all the while."""
    gate, proxy = asyncio.Event(), front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("a.json", hooks.socket_path, ["PreRunPodSandbox", "PostStopContainer"], timeout="20s")
    async with (
        front.runtime(str(tmp_path / "real.sock")) as runtime,
        FaultRelay(str(proxy.runtime), runtime.socket_path) as relay,
        stopping(proxy),
        front.caller(proxy.socket) as caller,
        front.caller(proxy.socket) as other,
    ):
        container_id = await caller.create(await caller.run_pod())
        await caller.act("start", container_id)
        hooks.calls.clear()
        hooks.on("PreRunPodSandbox", hookanswers.behind(gate))
        held = asyncio.ensure_future(other.send("run_pod", other.pod_request(OTHER_POD)))
        await hooks.wait_for_calls("PreRunPodSandbox")
        relay.to_client.stop_reading()
        left = asyncio.ensure_future(caller.act("stop", container_id))
        await until(lambda: bool(runtime.asked("stop")), "the runtime has the request")
        left.cancel()
        tell(proxy)
        await asyncio.to_thread(proxy.wait_for_log, DRAINING)
        relay.to_client.resume_reading()
        (told,) = await asyncio.wait_for(hooks.wait_for_calls("PostStopContainer"), WAIT_SECONDS)
        assert told.request.container_meta.id == container_id
        assert not held.done()
        gate.set()
        await held
    assert ANSWERED in proxy.output()


async def test_supervisors_socket_keeps_new_clients_for_the_next_proxy(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    """While the old one still works on its last call, a new client waits in the listener."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        proxy = front.process(tmp_path, program=program, pass_fds=[listener.fileno()])
        runtime.upset("list", delay_seconds=1)
        async with AsyncExitStack() as stack:
            async with stopping(proxy), front.caller(proxy.socket) as caller:
                last = asyncio.ensure_future(caller.act("list"))
                await until(lambda: bool(runtime.asked("list")), "the runtime has the request")
                tell(proxy)
                await asyncio.to_thread(proxy.wait_for_log, DRAINING)
                early = await stack.enter_async_context(front.sent(proxy.socket))
                await last
            assert not early.done()
            async with proxy:
                await asyncio.wait_for(early, WAIT_SECONDS)


async def test_client_of_cri_sees_two_goaways_then_refusals_then_the_last_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of a drain (relay-rules A11); the client may take long to read the first GOAWAY."""
    notice_seconds, gate, most = drain.NOTICE_SECONDS, asyncio.Event(), 2**31 - 1
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 1000.0)
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime, ProxyInside(tmp_path) as proxy:
        runtime.inject("ListContainers", Injection(gate=gate))
        async with RawClient.connected(proxy.socket) as client:
            client.call(1, "ListContainers")
            await until(lambda: bool(runtime.requests("ListContainers")), "the runtime has the request")
            draining = asyncio.create_task(proxy.app.front.drain(WAIT_SECONDS))
            await client.sees("goaway", most)
            client.call(3, "Version")
            await client.sees("answered", 3)
            monkeypatch.setattr(drain, "NOTICE_SECONDS", notice_seconds)
            await client.sees("goaway", 3)
            client.call(5, "Version")
            client.call(7, "RunPodSandbox")
            await client.sees("refused", 7)
            gate.set()
            await client.sees("end", 0)
            await draining
        before_the_last, last = client.told[:5], client.told[5:]
        assert before_the_last == [("goaway", most), ("answered", 3), ("goaway", 3), ("refused", 5), ("refused", 7)]
        assert last == [("answered", 1), ("end", 0)]
        assert not runtime.requests("RunPodSandbox")
        assert len(runtime.requests("Version")) == 1


async def test_call_at_the_image_endpoint_is_waited_for(tmp_path: Path) -> None:
    images = str(tmp_path / "images.sock")
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")),
        FakeRuntime(images) as service,
        ProxyInside(tmp_path, remote_image_service_endpoint=images) as proxy,
        Client(proxy.socket) as client,
    ):
        service.inject("ListImages", Injection(delay_seconds=1))
        call = asyncio.ensure_future(client.call("ListImages"))
        await until(lambda: bool(service.requests("ListImages")), "the image service has the request")
        draining = asyncio.create_task(proxy.app.front.drain(WAIT_SECONDS))
        await call
        await asyncio.wait_for(draining, WAIT_SECONDS / 2)


async def test_client_of_cri_that_has_left_is_not_waited_for(tmp_path: Path) -> None:
    """Although the runtime does not even see that."""
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(tmp_path / "runtime.sock"))
        runtime.listen()
        async with ProxyInside(tmp_path) as proxy:
            front: Any = proxy.app.front
            async with RawClient.connected(proxy.socket) as client:
                client.call(1, "Version")
                await until(lambda: any(one.unfinished().calls for one in front.connections), "its call is open")
            (connection,) = front.connections
            await until(lambda: connection.pair.client_ended, "the client has left")
            assert connection in front.connections
            await asyncio.wait_for(front.drain(WAIT_SECONDS), WAIT_SECONDS / 2)
