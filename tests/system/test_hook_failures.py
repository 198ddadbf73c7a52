"""Hook servers that hang, fail, are away or not to be trusted: what a call costs then, and who is asked again.

hook-api, "Failures"; promises 1 and 21; fault matrix H1, H2, H4, H6, H8 to H10, X6. Every reason of a failure
under both policies is in test_policy_exact.
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.plugins import breaker
from runtimeproxy.wire import http2
from runtimeproxy.wire.grpc import message
from tests.amounts import HANGS, Amount
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.relay.peers import HEAD, Connection
from tests.system.cri_front import CRI
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ROOT, answers, until
from tests.system.times import in_rounds, in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
POLICIES = pytest.mark.parametrize("policy", ["Fail", "Ignore"])
ONLY_CRI = pytest.mark.parametrize("front", [CRI], ids=["cri"])
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "1"}))
Behaving = Callable[[str], AbstractAsyncContextManager[None]]
"""Does something at the socket's path."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "hooks.sock")


@pytest.fixture
def hooks(path: str) -> HookServer:
    """A hook server that does not listen yet."""
    return HookServer(path)


async def created(caller: Caller, pod_id: str) -> str:
    """Create a container; return "" or the error's text."""
    try:
        await caller.create(pod_id)
    except Failed as error:
        return error.text
    return ""


# ---- the time of a call whose hook server hangs (H1, H4)

TIMEOUT_SECONDS = 0.2
LATE_SECONDS = 0.100
AT_ONCE = 5
BUDGETS = Amount(1, 100)


@asynccontextmanager
async def silent(path: str) -> AsyncIterator[None]:
    """Accept and say nothing."""
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_unix_server(lambda _, writer: writers.append(writer), path):
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
    command, environment = [sys.executable, "-m", "tests.fakes.hookserver", "--socket", path], {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=os.environ | environment) as server:
        try:
            await until(lambda: answers(Path(path)), "the hook server listens")
            server.send_signal(signal.SIGSTOP)
            yield
        finally:
            server.kill()


@asynccontextmanager
async def never_answers(path: str) -> AsyncIterator[None]:
    async with HookServer(path, default=hookanswers.hang(), keep_calls=False):
        yield


@asynccontextmanager
async def half_an_answer(path: str) -> AsyncIterator[None]:
    """Send the head of every answer and half of its message, and pings for ever."""

    async def ping(connection: Connection) -> None:
        while True:
            await asyncio.sleep(TIMEOUT_SECONDS / 10)
            connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        pinging = asyncio.create_task(ping(connection))
        try:
            await connection.begin({})
            while True:
                stream = await connection.request()
                half = http2.frame(http2.DATA, 0, stream, message(bytes(1000))[:500])
                connection.send(http2.header_frames(stream, HEAD, False) + half)
        except EOFError:
            writer.close()
        finally:
            pinging.cancel()

    async with await asyncio.start_unix_server(accept, path):
        yield


@pytest.mark.parametrize("hanging", [silent, full_backlog, stopped, never_answers, half_an_answer])
async def test_hook_that_hangs_costs_its_timeout(
    front: Front, tmp_path: Path, runtime: Runtime, path: str, hanging: Behaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FAILURES_IN_A_ROW", 10**9)  # every call asks
    inside, made = front.inside(tmp_path), 0
    inside.register("hangs.json", path, [POINT], timeout=f"{TIMEOUT_SECONDS}s")
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def late() -> float:
            begun = time.monotonic()
            await caller.create(pod_id)
            return time.monotonic() - begun - TIMEOUT_SECONDS

        async def some() -> Sequence[float]:
            nonlocal made
            made += AT_ONCE
            return await asyncio.gather(*(late() for _ in range(AT_ONCE)))

        await in_time(LATE_SECONDS, HANGS, some)
        assert proxy.recorder.counted("hook_fail_open", plugin="hangs", hook=POINT, reason="deadline") == made
    assert len(runtime.asked("create")) == made >= HANGS.now


async def test_hooks_that_hang_cost_no_more_than_the_budget(
    front: Front, tmp_path: Path, runtime: Runtime, path: str
) -> None:
    """Each may take 400 ms, all of them 700 ms: each has its share, none of them all of it."""
    proxy, asked = front.process(tmp_path, hook_budget="700ms"), 0
    for name in ("one", "three", "two"):
        proxy.register(f"{name}.json", path, [POINT], timeout="400ms")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def late() -> list[float]:
            nonlocal asked
            async with HookServer(path, default=hookanswers.hang()) as hooks:  # a new one is asked once at least
                asked += 1
                begun = time.monotonic()
                await caller.create(pod_id)
                assert len(hooks.calls) == 3
                return [time.monotonic() - begun - 0.7]

        await in_time(LATE_SECONDS, BUDGETS, late)
    assert len(runtime.asked("create")) == asked


@ONLY_CRI
@POLICIES
async def test_hooks_leave_half_of_the_callers_deadline_to_the_runtime(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str
) -> None:
    hooks.default, inside = hookanswers.hang(), front.inside(tmp_path)
    for name in ("one", "two"):
        inside.register(f"{name}.json", hooks.socket_path, [POINT], policy=policy, timeout="5s")
    async with hooks, inside as proxy, front.caller(proxy.socket) as caller:
        request = caller.create_request(await caller.run_pod())
        if policy == "Ignore":
            await caller.send("create", request, seconds=4)
        else:
            with pytest.raises(Failed) as raised:
                await caller.send("create", request, seconds=4)
            assert raised.value.status == front.failed
        assert len(runtime.asked("create")) == (policy == "Ignore")


# ---- the breaker, and servers that are not asked (H2, H8 to H10)

SOON_SECONDS = 10.0
"""Far below the time for which it stays open, on a machine that has a lot to do."""


@POLICIES
async def test_five_failures_open_the_breaker_until_there_is_a_new_socket(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str
) -> None:
    inside, hooks.default = front.inside(tmp_path), hookanswers.hang()
    inside.register("bad.json", hooks.socket_path, [POINT], policy=policy, timeout="1s")
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        async with hooks:
            texts = await asyncio.gather(*(created(caller, pod_id) for _ in range(breaker.FAILURES_IN_A_ROW)))
            texts += [await created(caller, pod_id) for _ in range(15)]
            for reason, count in (("deadline", 5), ("breaker_open", 15)):
                assert proxy.recorder.counted("hook_failures", plugin="bad", hook=POINT, reason=reason) == count
            assert 0 < len(hooks.calls) <= 5  # a server drops, unseen, what comes to it when its deadline has passed
        assert proxy.recorder.gauges["hook_breaker_open", (("plugin", "bad"),)] == 1
        if policy == "Fail":
            assert not runtime.asked("create")
            assert all(f"'bad' at {POINT}: deadline" in text for text in texts[:5])
            assert all(f"'bad' at {POINT}: breaker_open: it keeps failing" in text for text in texts[5:])
        else:
            assert len(runtime.asked("create")) == proxy.recorder.total("hook_fail_open") == 20
        async with HookServer(hooks.socket_path, default=HOOKED) as new:
            begun = time.monotonic()
            await caller.create(pod_id)
            assert new.calls[0].at - begun < SOON_SECONDS
        assert ("HOOKED", "1") in runtime.envs()
        assert proxy.recorder.gauges["hook_breaker_open", (("plugin", "bad"),)] == 0


@POLICIES
async def test_point_that_is_not_served_is_asked_once_a_connection(
    front: Front,
    tmp_path: Path,
    runtime: Runtime,
    hooks: HookServer,
    policy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inside = front.inside(tmp_path)
    inside.register("bad.json", hooks.socket_path, [POINT, "PreRunPodSandbox"], policy=policy)
    hooks.on(POINT, hookanswers.status(grpc.StatusCode.UNIMPLEMENTED, "old"))
    async with inside as proxy, front.caller(proxy.socket) as caller:
        for round in (1, 2):
            async with hooks:
                pod_id = await caller.run_pod()
                texts = [await created(caller, pod_id) for _ in range(10)]
                assert len(hooks.calls_of(POINT)) == len(hooks.calls_of("PreRunPodSandbox")) == round
            assert all(f"'bad' at {POINT}: unimplemented" in text for text in texts if policy == "Fail")
            assert caplog.text.count("hook server bad does not serve PreCreateContainer") == round
            assert len(runtime.asked("create")) == (10 * round if policy == "Ignore" else 0)
        failed = {"plugin": "bad", "hook": POINT, "reason": "unimplemented"}
        assert proxy.recorder.counted("hook_failures", **failed) == proxy.recorder.total("hook_failures") == 20


DOWN, MISSING, OPEN = "down", "missing", "open breaker"
COSTS = {DOWN: (0.005, "unreachable"), MISSING: (0.005, "unreachable"), OPEN: (0.001, "breaker_open")}
"""Why a hook server is not asked -> by how many seconds a call may be longer for it, and what is told."""
CALLS = 40


@POLICIES
@pytest.mark.parametrize("why", COSTS)
async def test_hook_server_that_cannot_be_asked_costs_little(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, why: str, policy: str
) -> None:
    """Compared with a proxy without one; under Fail it is the refused creates that are timed."""
    seconds, told = COSTS[why]
    hooks.default = hookanswers.hang()
    without, with_one = front.process(tmp_path / "without"), front.process(tmp_path / "with")
    for proxy in (without, with_one):
        proxy.runtime.symlink_to(runtime.socket_path)
    with_one.register("bad.json", hooks.socket_path, [POINT], policy=policy, timeout="20ms")
    if why == DOWN:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(hooks.socket_path)
    async with (
        hooks if why == OPEN else nullcontext(),
        without,
        with_one,
        front.caller(without.socket) as plain,
        front.caller(with_one.socket) as hooked,
    ):
        pods = {caller: await caller.run_pod() for caller in (plain, hooked)}
        for _ in range(10):
            await created(hooked, pods[hooked])

        async def median_of_creates(caller: Caller, text: str) -> float:
            took = []
            for _ in range(CALLS):
                begun = time.monotonic()
                found = await created(caller, pods[caller])
                took.append(time.monotonic() - begun)
                assert bool(text) == bool(found), found
                assert text in found
            return statistics.median(took)

        async def more() -> float:
            usual = await median_of_creates(plain, "")
            return await median_of_creates(hooked, f"'bad' at {POINT}: {told}" if policy == "Fail" else "") - usual

        await in_rounds(seconds, more)
        assert len(hooks.calls) <= 5  # none since it is open; one that came late before that was not seen
    assert ("hook server bad keeps failing: not asked for 30 s" in with_one.output()) is (why == OPEN)


# ---- what a hook server may do (H6, X6)


@pytest.mark.parametrize(("limit", "cap"), [("4MiB", 4 << 20), ("2MiB", 2 << 20)])
async def test_huge_answer_costs_at_most_three_times_the_limit(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, limit: str, cap: int
) -> None:
    proxy = front.process(tmp_path, hook_answer_limit=limit)
    proxy.register("huge.json", hooks.socket_path, [POINT])
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(40 << 20)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * cap
    assert f"bad_answer: the answer is longer than {cap} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls) == len(runtime.asked("create")) == 4


NOBODY = 65534
SPOILT: dict[str, Callable[[Path], None]] = {
    "everybody's folder": lambda path: path.parent.chmod(0o1777),
    "nobody's folder": lambda path: os.chown(path.parent, NOBODY, NOBODY),
    "nobody's socket": lambda path: os.chown(path, NOBODY, NOBODY),
}


@pytest.mark.engine  # only root can give a file to another user
@POLICIES
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
async def test_socket_that_others_could_have_made_is_not_dialled(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "hooks" / "hooks.sock"
    path.parent.mkdir(mode=0o755)
    inside = front.inside(tmp_path)
    inside.register("theirs.json", path, [POINT], policy=policy)
    async with HookServer(str(path)) as hooks, inside as proxy, front.caller(proxy.socket) as caller:
        spoil(path)
        pod_id = await caller.run_pod()
        texts = [await created(caller, pod_id) for _ in range(10)]
        failed = {"plugin": "theirs", "hook": POINT, "reason": "untrusted_socket"}
        told = f"'theirs' at {POINT}: untrusted_socket: {path.parent}"
        assert all(told in text if policy == "Fail" else not text for text in texts)
        assert proxy.recorder.counted("hook_failures", **failed) == 10
        assert proxy.recorder.counted("hook_fail_open", **failed) == (10 if policy == "Ignore" else 0)
        assert len(runtime.asked("create")) == (10 if policy == "Ignore" else 0)
        assert not hooks.calls
        path.parent.chmod(0o755)
        for mine in (path.parent, path):
            os.chown(mine, 0, 0)
        await caller.create(pod_id)
        assert len(hooks.calls) == 1
