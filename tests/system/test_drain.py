"""A proxy that is told to stop finishes what it was asked for, cuts streams last, and ends in time (promise 19).

That is fault matrix P3.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.docker.client import Client as DockerClient
from tests.docker.client import request
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.relay.test_dial import fill_backlog
from tests.system.clients import Client
from tests.system.cri_front import CRI
from tests.system.docker_front import DockerRuntime
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, until
from tests.system.rawclient import RawClient
from tests.system.test_process import SUPERVISED

pytestmark = pytest.mark.slow

CALL_SECONDS = 1.0
"""How long a call takes that is open when the signal comes."""
LONG_SECONDS = 60
OTHER_POD = replace(POD, name="other")
ANSWERED = "every call is answered"


@asynccontextmanager
async def running(proxy: ProxyProcess) -> AsyncIterator[ProxyProcess]:
    """Run a proxy that a test ends."""
    async with proxy:
        yield proxy
        assert proxy.process is None


def tell(proxy: ProxyProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal."""
    assert proxy.process is not None
    proxy.process.send_signal(number)


async def ended(proxy: ProxyProcess) -> None:
    """Wait for the end, and check that it was a good one."""
    assert proxy.process is not None
    code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
    proxy.process = None
    proxy.check(code)


async def test_calls_are_answered_and_streams_are_cut_behind_them(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    runtime.upset("list", delay_seconds=CALL_SECONDS)
    gate = asyncio.Event()
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="20s")
    async with running(proxy), front.caller(proxy.socket) as caller, front.caller(proxy.socket) as other:
        stream = await caller.chat()
        hooks.calls.clear()
        hooks.on("PreRunPodSandbox", hookanswers.behind(gate))
        held = asyncio.ensure_future(other.send("run_pod", other.pod_request(OTHER_POD)))
        passing = asyncio.ensure_future(caller.act("list"))
        await until(lambda: bool(runtime.asked("list")), "the runtime has the request")
        await until(lambda: hooks.calls_of("PreRunPodSandbox") != [], "the hook server has the call")
        tell(proxy)
        await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
        await stream.say(b"still there")
        assert await stream.hear() == b"still there"
        await passing
        gate.set()
        assert other.id_in("run_pod", await held) in runtime.pod_ids()
        with pytest.raises(Failed):
            await asyncio.wait_for(stream.hear(), WAIT_SECONDS)
        await ended(proxy)
    told = proxy.output()
    assert "SIGTERM: stopping" in told
    assert ANSWERED in told
    assert not proxy.socket.exists()


async def test_a_call_whose_client_has_left_is_told_to_its_post_hook(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("slow.json", hooks.socket_path, ["PostStartContainer"], timeout="20s")
    hooks.on("PostStartContainer", hookanswers.after(CALL_SECONDS))
    async with running(proxy), front.caller(proxy.socket) as caller:
        container_id = await caller.create(await caller.run_pod())
        hooks.calls.clear()
        async with front.sent(proxy.socket, "start", caller.request("start", container_id)):
            await hooks.wait_for_calls("PostStartContainer")
        tell(proxy)
        await ended(proxy)
    (call,) = hooks.calls_of("PostStartContainer")
    assert not call.cancelled
    assert ANSWERED in proxy.output()


@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGINT])
async def test_a_hook_that_hangs_holds_the_end_up_to_the_limit_or_a_second_signal(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, again: signal.Signals | None
) -> None:
    proxy = front.process(tmp_path, drain_timeout="1s" if again is None else "60s", hook_budget="60s")
    proxy.register("hung.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="60s")
    hooks.on("PreRunPodSandbox", hookanswers.hang())
    async with (
        running(proxy),
        front.caller(proxy.socket) as caller,
        front.sent(proxy.socket, "run_pod", caller.pod_request(POD)) as answer,
    ):
        await hooks.wait_for_calls("PreRunPodSandbox")
        begun = time.monotonic()
        tell(proxy)
        if again is not None:
            await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
            assert not answer.done()
            tell(proxy, again)
        await ended(proxy)
        assert time.monotonic() - begun < LONG_SECONDS / 2
        with pytest.raises(ConnectionError):
            await answer
    assert ("the time is over" if again is None else "a second signal came") in proxy.output()
    assert not runtime.asked("run_pod")


async def test_a_call_that_the_runtime_has_not_answered_is_settled_while_others_are_finished(
    front: Front, tmp_path: Path, hooks: HookServer
) -> None:
    """Its client gave it up, and the runtime carried it out; a call is held all the while."""
    gate = asyncio.Event()
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    proxy.register("a.json", hooks.socket_path, ["PreRunPodSandbox", "PostStopContainer"], timeout="20s")
    async with (
        front.runtime(str(tmp_path / "real.sock")) as runtime,
        FaultRelay(str(proxy.runtime), runtime.socket_path) as relay,
        running(proxy),
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
        await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
        relay.to_client.resume_reading()
        (told,) = await asyncio.wait_for(hooks.wait_for_calls("PostStopContainer"), WAIT_SECONDS)
        assert told.request.container_meta.id == container_id
        assert not held.done()
        gate.set()
        await held
        await ended(proxy)
    assert ANSWERED in proxy.output()


async def test_idle_clients_do_not_hold_the_end_up(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    async with running(proxy), front.caller(proxy.socket) as caller:
        await caller.act("ping")
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(proxy.socket))
            tell(proxy)
            await ended(proxy)
    assert ANSWERED in proxy.output()


async def test_who_has_connected_to_our_socket_is_served(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """Its connection has not been accepted when the signal comes."""
    async with running(front.process(tmp_path)) as proxy:
        tell(proxy, signal.SIGSTOP)
        async with asked_at_once(front, proxy.socket) as answered:
            tell(proxy)
            tell(proxy, signal.SIGCONT)
            await asyncio.wait_for(answered, WAIT_SECONDS)
            await ended(proxy)


@pytest.mark.parametrize("asks", [True, False])
async def test_a_client_waits_for_a_runtime_whose_backlog_is_full_only_if_it_has_asked(
    front: Front, tmp_path: Path, asks: bool
) -> None:
    proxy = front.process(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket(socket.AF_UNIX))
        full.bind(str(proxy.runtime))
        full.listen(0)
        for waiting in fill_backlog(str(proxy.runtime)):
            stack.enter_context(waiting)
        async with front.runtime(str(tmp_path / "real.sock")) as runtime, running(proxy):
            if not asks:
                silent = stack.enter_context(socket.socket(socket.AF_UNIX))
                silent.connect(str(proxy.socket))
                tell(proxy)
                await ended(proxy)
                assert silent.recv(1) == b""
                return
            async with asked_at_once(front, proxy.socket) as answered:
                tell(proxy)
                await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
                assert not runtime.asked("ping")
                Path(runtime.socket_path).rename(proxy.runtime)
                await asyncio.wait_for(answered, WAIT_SECONDS)
                await ended(proxy)
    assert ANSWERED in proxy.output()


@pytest.mark.parametrize("sent", ["whole", "half"])
async def test_without_dockerd_who_has_asked_is_told_so(tmp_path: Path, sent: str) -> None:
    """A whole request has not been read when the signal comes; half a one is waited for."""
    ping = request("GET", "/v1.41/_ping")
    proxy = ProxyProcess(tmp_path, backend_runtime_mode="Docker", drain_timeout=f"{LONG_SECONDS}s")
    async with running(proxy):
        if sent == "whole":
            tell(proxy, signal.SIGSTOP)
        client = await DockerClient.connect(str(proxy.socket))
        client.send(ping if sent == "whole" else ping[:-5])
        if sent == "half":
            await until(lambda: "is not reachable" in proxy.output(), "the daemon was dialled for it")
        tell(proxy)
        tell(proxy, signal.SIGCONT)
        await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
        if sent == "half":
            client.send(ping[-5:])
        assert (await client.answer("GET")).status == 502
        await client.close()
        await ended(proxy)


@asynccontextmanager
async def asked_at_once(front: Front, path: Path) -> AsyncIterator[Coroutine[Any, Any, None]]:
    """Send a request without waiting for anything; yield what waits for its answer."""
    if front is CRI:
        async with RawClient.connected(path) as client:
            client.call(1, "Version")
            yield client.sees("answered", 1)
    else:
        async with front.sent(path) as answer:
            yield _answered(answer)


async def _answered(answer: "asyncio.Future[bytes]") -> None:
    await answer


async def test_who_connects_to_the_supervisors_socket_is_served_by_the_next_one(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    """While the old one still works on its last call, a new client waits in the listener."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        proxy = front.process(tmp_path, program=program, pass_fds=[listener.fileno()])
        runtime.upset("list", delay_seconds=CALL_SECONDS)
        async with proxy, front.caller(proxy.socket) as caller:
            last = asyncio.ensure_future(caller.act("list"))
            await until(lambda: bool(runtime.asked("list")), "the runtime has the request")
            tell(proxy)
            await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
            async with front.sent(proxy.socket) as early:
                await last
                await ended(proxy)
                assert not early.done()
                await asyncio.to_thread(proxy.start)
                await asyncio.wait_for(early, WAIT_SECONDS)


# ---- what only one of the fronts has


async def test_container_events_come_to_the_last_and_hold_nothing_up(tmp_path: Path) -> None:
    """Also of a stream that has said nothing yet."""
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        proxy = ProxyProcess(tmp_path, drain_timeout=f"{LONG_SECONDS}s")
        async with running(proxy), Client(proxy.socket) as client:
            stream = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
            await runtime.wait_for_subscribers()
            tell(proxy)
            await ended(proxy)
            assert await stream.code() is not None
        gate = asyncio.Event()
        runtime.inject("ListContainers", Injection(gate=gate))
        async with running(proxy), Client(proxy.socket) as client:
            stream = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
            last = client.call("ListContainers")
            await runtime.wait_for_subscribers()
            await until(lambda: bool(runtime.requests("ListContainers")), "the runtime has the request")
            tell(proxy)
            await asyncio.to_thread(proxy.wait_for_log, "draining for at most", 2)
            runtime.send_event("late")
            event = cri_pb2.ContainerEventResponse.FromString(await asyncio.wait_for(stream.read(), WAIT_SECONDS))
            assert event.container_id == "late"
            gate.set()
            await last
            await ended(proxy)
    assert proxy.output().count("streams: 1") == 4


@pytest.fixture
async def clients() -> AsyncIterator[list[DockerClient]]:
    """Return where a test puts its connections."""
    made: list[DockerClient] = []
    yield made
    for client in made:
        await client.close()


async def test_followed_answers_of_dockerd_hold_nothing_up_for_long(
    tmp_path: Path, clients: list[DockerClient]
) -> None:
    proxy = ProxyProcess(tmp_path, backend_runtime_mode="Docker", drain_timeout=f"{LONG_SECONDS}s")
    async with DockerRuntime(str(tmp_path / "runtime.sock")) as runtime, running(proxy):
        watched = runtime.watchers
        clients += [await DockerClient.connect(str(proxy.socket)) for _ in range(2)]
        events, pings = clients
        events.send(request("GET", "/v1.41/events"))
        await until(lambda: runtime.watchers > watched, "the daemon's events are followed")
        ping = request("GET", "/v1.41/_ping")
        pings.send(ping + ping + ping[:20])
        await until(lambda: len(runtime.requests("GET /_ping")) == 2, "the daemon has two requests")
        begun = time.monotonic()
        tell(proxy)
        await asyncio.to_thread(proxy.wait_for_log, "draining for at most")
        pings.send(ping[20:])
        assert [(await pings.answer("GET")).status for _ in range(3)] == [200] * 3
        assert await pings.ended() == b""
        assert (await events.ended()).startswith(b"HTTP/1.1 200 OK")
        await ended(proxy)
        assert time.monotonic() - begun < LONG_SECONDS / 2
