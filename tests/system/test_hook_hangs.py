"""No way in which a hook server hangs costs a call more than the hook's time (promise 1, fault matrix H1 and H4)."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from runtimeproxy.plugins import breaker
from runtimeproxy.wire import grpc, http2
from tests.amounts import HANGS
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.relay.peers import HEAD, Connection
from tests.system.cri_front import CRI
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import ROOT, answers, until
from tests.system.times import in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
TIMEOUT_SECONDS = 0.2
LATE_SECONDS = 0.100
CLOCK_SECONDS = 0.050
"""By so much the hook server may take its deadline to be earlier: gRPC counts it in ms, from when it read the clock."""
AT_ONCE = 5
TRIES = 10
"""How many calls are made until the hook server sees one: on a busy machine it may read that too late."""

Hanging = Callable[[str], AbstractAsyncContextManager[None]]
"""Hangs at a path."""


@asynccontextmanager
async def silent(path: str) -> AsyncIterator[None]:
    """Accept and say nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async with await asyncio.start_unix_server(accept, path):
        yield
        for writer in writers:
            writer.close()


@asynccontextmanager
async def full_backlog(path: str) -> AsyncIterator[None]:
    """Listen, but have no room for one more connection: connect(2) would block."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        yield


@asynccontextmanager
async def stopped(path: str) -> AsyncIterator[None]:
    """Be a process that was stopped (SIGSTOP) while it served."""
    command = [sys.executable, "-m", "tests.fakes.hookserver", "--socket", path]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as server:
        try:
            await until(lambda: answers(Path(path)), "the hook server listens")
            server.send_signal(signal.SIGSTOP)
            yield
        finally:
            server.kill()


@asynccontextmanager
async def never_answers(path: str) -> AsyncIterator[None]:
    """Take every call and answer none."""
    async with HookServer(path, default=hookanswers.hang(), keep_calls=False):
        yield


@asynccontextmanager
async def half_an_answer(path: str) -> AsyncIterator[None]:
    """Send the head of every answer and half of its message, and pings for ever."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        pinging = asyncio.create_task(_ping(connection))
        try:
            await connection.begin({})
            while True:
                stream = await connection.request()
                half = grpc.message(bytes(1000))[:500]
                connection.send(http2.header_frames(stream, HEAD, False) + http2.frame(http2.DATA, 0, stream, half))
        except EOFError:
            writer.close()
        finally:
            pinging.cancel()

    async with await asyncio.start_unix_server(accept, path):
        yield


async def _ping(connection: Connection) -> None:
    while True:
        await asyncio.sleep(TIMEOUT_SECONDS / 10)
        connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))


WAYS: dict[str, Hanging] = {
    "silent": silent,
    "full backlog": full_backlog,
    "stopped": stopped,
    "never answers": never_answers,
    "half an answer": half_an_answer,
}


@pytest.fixture
def without_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call ask the hook server, also after many failures."""
    monkeypatch.setattr(breaker, "FAILURES_IN_A_ROW", 10**9)


@pytest.mark.usefixtures("without_breaker")
@pytest.mark.parametrize("way", WAYS)
async def test_every_call_ends_in_time(front: Front, tmp_path: Path, runtime: Runtime, way: str) -> None:
    path = str(tmp_path / "hooks.sock")
    inside = front.inside(tmp_path)
    inside.register("hangs.json", path, [POINT], timeout=f"{TIMEOUT_SECONDS}s")
    made = 0
    async with WAYS[way](path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def some() -> Sequence[float]:
            nonlocal made
            made += AT_ONCE
            return await asyncio.gather(*(_late(caller, pod_id) for _ in range(AT_ONCE)))

        await in_time(LATE_SECONDS, HANGS, some)
        assert proxy.recorder.counted("hook_fail_open", plugin="hangs", hook=POINT, reason="deadline") == made
    assert len(runtime.asked("create")) == made >= HANGS.now


async def _late(caller: Caller, pod_id: str) -> float:
    """Create a container; return by how much more than the hook's time that took."""
    begun = time.monotonic()
    await caller.create(pod_id)
    return time.monotonic() - begun - TIMEOUT_SECONDS


@pytest.mark.parametrize("way", WAYS)
async def test_the_breaker_opens_whatever_the_way(front: Front, tmp_path: Path, runtime: Runtime, way: str) -> None:
    path = str(tmp_path / "hooks.sock")
    inside = front.inside(tmp_path)
    inside.register("hangs.json", path, [POINT], timeout="20ms")
    async with WAYS[way](path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for _ in range(20):
            await caller.create(pod_id)
        failed = {"plugin": "hangs", "hook": POINT}
        assert proxy.recorder.counted("hook_fail_open", reason="deadline", **failed) == breaker.FAILURES_IN_A_ROW
        assert proxy.recorder.counted("hook_fail_open", reason="breaker_open", **failed) == 15
    assert len(runtime.asked("create")) == 20


async def test_a_server_whose_backlog_has_room_again_is_asked_at_once(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    path = str(tmp_path / "hooks.sock")
    inside = front.inside(tmp_path)
    inside.register("busy.json", path, [POINT], timeout="20ms")
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(path)
        proxy = await stack.enter_async_context(inside)
        caller = await stack.enter_async_context(front.caller(proxy.socket))
        pod_id = await caller.run_pod()
        for _ in range(10):
            await caller.create(pod_id)
        failed = {"plugin": "busy", "hook": POINT}
        assert proxy.recorder.counted("hook_fail_open", reason="breaker_open", **failed) == 5
        listener.accept()[0].close()
        connection = asyncio.get_running_loop().run_in_executor(None, listener.accept)
        await caller.create(pod_id)
        accepted, _ = await connection
        with accepted:
            assert accepted.recv(len(http2.PREFACE)) == http2.PREFACE
        assert proxy.recorder.counted("hook_fail_open", reason="breaker_open", **failed) == 5


async def test_a_hook_server_is_told_how_long_it_has(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """The second one, which would have the whole budget, has what the first one leaves of it."""
    inside = front.inside(tmp_path, hook_budget="10s")
    async with (
        HookServer(str(tmp_path / "first.sock"), default=hookanswers.hang()) as hanging,
        HookServer(str(tmp_path / "second.sock")) as answering,
    ):
        inside.register("first.json", hanging.socket_path, [POINT], timeout="300ms")
        inside.register("second.json", answering.socket_path, [POINT], timeout="10s")
        async with inside as proxy, front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
            for _ in range(TRIES):
                begun = time.monotonic()
                await caller.create(pod_id)
                if hanging.calls:
                    break
    for call, end, most in ((hanging.calls[-1], 0.3, 0.3), (answering.calls[-1], 10.0, 9.7)):
        assert call.deadline_seconds is not None
        assert begun + end - CLOCK_SECONDS < call.at + call.deadline_seconds
        assert call.deadline_seconds <= most


@pytest.mark.parametrize("front", [CRI], ids=["cri"])
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_caller_with_a_deadline_has_the_proxys_answer_before_it(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    """Two hook servers that would take longer leave half of its time to the runtime."""
    inside = front.inside(tmp_path)
    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.hang()) as hooks:
        for name in ("one", "two"):
            inside.register(f"{name}.json", hooks.socket_path, [POINT], policy=policy, timeout="5s")
        async with inside as proxy, front.caller(proxy.socket) as caller:
            request = caller.create_request(await caller.run_pod())
            if policy == "Ignore":
                await caller.send("create", request, seconds=4)
            else:
                with pytest.raises(Failed) as raised:
                    await caller.send("create", request, seconds=4)
                assert raised.value.status == front.failed
            assert len(runtime.asked("create")) == (policy == "Ignore")
