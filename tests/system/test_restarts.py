"""Restarts, kills, failed and second starts of the proxy, and a runtime that dies, is unavailable or answers garbage.

The proxy's state is kept, no call is lost, disturbed or long delayed: fault matrix P1 to P3, P5, P7 and P9;
promises 6, 7, 15 and 19. A dead runtime fails a call once: fault matrix B1 to B3, B5; promise 8. Without a runtime the
proxy listens and logs it, and serves when one listens (relay-rules A12).
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests import amounts
from tests.amounts import SHARE_VARIABLE, Amount
from tests.docker import client as docker_client
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, POD, SECONDS, Failed, Front, Runtime
from tests.system.nodes import DEAD_SECONDS, WORKERS, Dialler, Load, ShapedNode, store_equals
from tests.system.proxy import WAIT_SECONDS, Process, ProxyProcess, check_times, handed_over, on_tmpfs, rows, until

pytestmark = pytest.mark.slow


# ---- the state

HOOKED_SHARES = 512


def changed(response: Any) -> None:
    """Set every field that a hook server may change at a container's create."""
    response.container_envs.update({"B": "hooked", "NEW": "1"})
    response.container_annotations["note"] = "hooked"
    response.container_resources.cpu_shares //= 2


CHANGES = {
    "PreRunPodSandbox": hookanswers.reply(
        api_pb2.PodSandboxHookResponse(labels={"label": "hooked"}, annotations={"a": "hooked"}, cgroup_parent="/hooked")
    ),
    "PreCreateContainer": hookanswers.echo(changed),
}


@pytest.mark.parametrize(
    ("kill", "has_file"), [(True, False), (True, True), (False, True)], ids=["kill", "kill-file", "stop-file"]
)
async def test_hook_messages_are_equal_after_restart(front: Front, tmp_path: Path, kill: bool, has_file: bool) -> None:
    """The runtime refuses the start before the restart, so that another one is possible after it."""
    with on_tmpfs() as memory:
        originals = str(memory) if has_file else "none"
        async with ShapedNode(front, tmp_path, answers=CHANGES, program=True, originals_dir=originals) as node:
            file = memory / (str(node.proxy.socket).strip("/").replace("/", "-") + ".original-values")
            caller = node.caller

            async def messages_of_life(number: int, pod_id: str, started: str) -> Sequence[tuple[str, Any]]:
                await node.caller.update(started, {"cpu_quota": 30_000 + number})
                await node.caller.act("stop", started)
                await node.caller.act("stop_pod", pod_id)
                return node.notified()

            waiting_pod = await caller.run_pod(replace(POD, name="waiting"))
            lives, waiting, starts = [], [], []
            for number in range(amounts.RESTARTED_PODS.now):
                pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", labels={"number": f"{number}"}))
                container = replace(CONTAINER, name=f"container-{number}")
                lives.append((number, pod_id, await caller.create(pod_id, container)))
                waiting.append(await caller.create(waiting_pod, container))
                await caller.act("start", lives[-1][-1])
            node.notified()
            node.runtime.set_fault("start", text="not yet")
            for container_id in waiting:
                with pytest.raises(Failed, match="not yet"):
                    await caller.act("start", container_id)
                starts += [start for _, start in node.notified()]
            node.runtime.set_fault("start")
            before = [await messages_of_life(*life) for life in lives]
            if has_file:
                ids = {waiting_pod, *waiting, *(subject_id for _, *life in lives for subject_id in life)}
                await until(lambda: rows(file).keys() == ids, "the values are stored", lambda: str(rows(file)))
            await node.restart(kill=kill)
            await node.wait_until_loaded()
            reads = node.runtime.reads()
            assert reads >= 3 * len(lives)
            for life, container_id, start, messages in zip(lives, waiting, starts, before, strict=True):
                await node.caller.act("start", container_id)
                assert node.notified() == [("PreStartContainer", start), ("PostStartContainer", start)]
                _, update = messages[0]
                assert update.container_resources.cpu_shares == 2 * HOOKED_SHARES
                if not has_file:  # no runtime reports the kubelet's own value, so it is the hook's
                    update.container_resources.cpu_shares = HOOKED_SHARES
                assert await messages_of_life(*life) == messages
            assert node.runtime.reads() == reads, "no call had to read the runtime's state"
            points = [hook_point for hook_point, _ in before[0]]
            assert points == ["PreUpdateContainerResources", "PostStopContainer", "PostStopPodSandbox"]
            _, example = before[0][1]
            assert (example.container_envs["B"], example.container_resources.cpu_shares) == ("hooked", HOOKED_SHARES)


async def test_create_with_lost_answer_is_in_store_after_kill(front: Front, tmp_path: Path) -> None:
    """The kubelet sees only an end of the connection; its repeated request succeeds."""
    async with ShapedNode(front, tmp_path, answers=CHANGES, program=True, between=True) as node:
        assert isinstance(node.proxy, ProxyProcess)
        pod_id = await node.caller.run_pod()
        for _ in range(amounts.LOST_CREATES.now):
            before = set(node.runtime.container_ids())
            await node.caller.act("ping")
            node.relay.to_client.stop_reading()
            call = asyncio.ensure_future(node.caller.create(pod_id))
            await until(lambda: len(node.runtime.container_ids()) > len(before), "it is made")  # noqa: B023
            node.proxy.kill()
            with pytest.raises(Failed) as raised:
                await call
            assert raised.value.status == front.lost
            node.relay.to_client.resume_reading()
            (lost,) = set(node.runtime.container_ids()) - before
            await node.restart()
            await node.wait_until_loaded()
            reads = node.runtime.reads()
            repeated_id = await node.caller.create(pod_id)
            node.notified()
            for one in (lost, repeated_id):
                await node.caller.act("stop", one)
            stops = [(message.container_meta.id, message.container_envs["B"]) for _, message in node.notified()]
            assert stops == [(lost, "hooked"), (repeated_id, "hooked")]
            assert node.runtime.reads() == reads, "no call had to read the runtime's state"


# ---- under load

DRAIN_SECONDS = 10
POINTS = ["PreRunPodSandbox", "PreCreateContainer", "PostStopContainer"]
IS_FULL_SOAK = float(os.environ.get(SHARE_VARIABLE, "0")) >= 1
ANSWER_SECONDS, SILENCE_SECONDS = (1.0, 2.0) if IS_FULL_SOAK else (DEAD_SECONDS, DEAD_SECONDS)
"""Maximum seconds from a start after a kill to the first good answer, and between two good answers. Time in which the
proxy or the test waited for a processor is deducted."""


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    path = tmp_path / "hooks.sock"
    async with HookServer(str(path), default=hookanswers.after(0.02), keep_calls=False) as server:
        yield server


@pytest.fixture(params=["own socket", "supervisor's socket"])
def proxy(request: pytest.FixtureRequest, front: Front, tmp_path: Path) -> Iterator[ProxyProcess]:
    handing: Any = handed_over(tmp_path / "proxy.sock") if request.param == "supervisor's socket" else nullcontext({})
    with handing as handed:
        yield front.process(tmp_path, **handed, drain_timeout=f"{DRAIN_SECONDS}s")


async def test_restarts_under_load_lose_no_call(
    front: Front, proxy: ProxyProcess, runtime: Runtime, hooks: HookServer
) -> None:
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, pause = Load(front, proxy), random.Random(0)
    async with proxy, load.running():
        for _ in range(amounts.RESTARTS.now):
            await load.wait_for_each_kind()
            await asyncio.sleep(pause.uniform(0, 0.1))
            await asyncio.to_thread(proxy.stop)
            await asyncio.to_thread(proxy.start)
        await load.wait_for_each_kind()
    assert load.lost == []
    drains = re.findall(r"drained in ([0-9.]+) s: ([^;\n]*)", proxy.output())
    assert len(drains) == amounts.RESTARTS.now + 1
    assert {reason for _, reason in drains} == {"every call is answered"}
    assert max(float(seconds) for seconds, _ in drains) < DRAIN_SECONDS
    assert load.cuts >= amounts.RESTARTS.now


def waited_seconds(pid: int) -> float:
    """Return the seconds that a process's first thread waited for a processor (the kernel's sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


async def test_kills_under_load_fail_only_running_calls(
    front: Front, proxy: ProxyProcess, runtime: Runtime, hooks: HookServer
) -> None:
    """No call concerns a pod that outlives a restart."""
    async with front.caller(runtime.socket_path) as caller:
        for _ in range(amounts.RESTARTED_PODS.now):
            await caller.create(await caller.run_pod())
    ids = {*runtime.pod_ids(), *runtime.container_ids()}
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
    pause, durations, waited = random.Random(0), [], []
    async with proxy:
        async with load.running(), asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(dialler.fetch())
            for _ in range(amounts.KILLS.now):
                await load.wait_for_each_kind()
                await asyncio.sleep(pause.uniform(0, 0.1))
                proxy.kill()
                first = asyncio.create_task(dialler.answered())
                await asyncio.sleep(0.1)  # a supervisor waits before it restarts a dead process
                launched, before = time.monotonic(), waited_seconds(os.getpid())
                proxy.launch()
                durations.append(await first - launched)
                waited.append(waited_seconds(proxy.pid) + waited_seconds(os.getpid()) - before)
            await load.wait_for_each_kind()
            dialler.end = True
        await store_equals(runtime, proxy)
    assert ids <= {*runtime.pod_ids(), *runtime.container_ids()}
    assert {error.status for _, error in load.lost} <= {front.lost}, load.lost
    starts = list(zip(durations, waited, strict=True))
    assert max(seconds - waiting for seconds, waiting in starts) < ANSWER_SECONDS, starts
    longest_silence = max(later - earlier for earlier, later in pairwise(dialler.answers))
    assert longest_silence - max(waited) < SILENCE_SECONDS, starts
    assert (dialler.refused == 0) == (proxy.command[0] == "bash"), dialler.refused


async def test_second_starts_under_load_fail_no_call(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = front.process(tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, command = Load(front, proxy), [*proxy.command, "--log-level=info"]
    async with proxy, load.running():
        inode = proxy.socket.stat().st_ino
        for _ in range(amounts.SECOND_STARTS.now):
            await load.wait_for_each_kind()
            run: Any = partial(subprocess.run, capture_output=True, text=True, env=proxy.environment)
            second = await asyncio.to_thread(run, command, check=False)
            (line,) = second.stderr.splitlines()
            assert (second.returncode, f"pid {proxy.pid}" in line, str(proxy.socket) in line) == (1, True, True), line
        await load.wait_for_each_kind()
        assert proxy.socket.stat().st_ino == inode
        assert load.cuts == 0
    assert load.lost == []


WITHOUT_UVLOOP = "import sys; from runtimeproxy.cli import main; sys.modules['uvloop'] = None; sys.exit(main())"
RESTART_SECONDS = 0.1
PATIENCE_SECONDS = amounts.CRASH_SECONDS.now + 60.0


async def test_clients_of_crash_loop_are_answered_by_next_start(
    front: Front, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor holds the socket and restarts a version that cannot start."""
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    tmp_path.chmod(0o700)
    with handed_over(tmp_path / "proxy.sock") as handed:
        good = front.process(tmp_path, **handed)
        program = [*handed["program"][:5], sys.executable, "-c", WITHOUT_UVLOOP, "run"]
        broken = front.process(tmp_path, **{**handed, "program": program})
        started_at, clients, ends = time.monotonic(), [], 0
        while ends < 2 or time.monotonic() < started_at + amounts.CRASH_SECONDS.now:
            broken.launch()
            while not broken.ended:
                clients.append(asyncio.ensure_future(front.exchange(good.socket)))
                await asyncio.sleep(0.2)
            assert broken.process is not None
            broken.check(broken.process.wait(), expected=1)
            ends += 1
            await asyncio.sleep(RESTART_SECONDS)
        assert not any(each.done() for each in clients), "the next version must answer them"
        assert broken.output().count("error: the library uvloop cannot be loaded") == ends
        async with good:
            await asyncio.wait_for(asyncio.gather(*clients), PATIENCE_SECONDS)


# ---- the runtime

DEATHS, STARTS, MUTATIONS = Amount(10, 1_000), Amount(3, 100), Amount(100, 10_000)
UNAVAILABLE_SECONDS = (Amount(1, 1), Amount(1, 60), Amount(1, 600))
BACK_SECONDS = 0.5 if SHARE_VARIABLE in os.environ else 5.0
DIAL_SECONDS = 0.05


@pytest.mark.parametrize("end", [FaultRelay.cut, FaultRelay.reset], ids=["end", "reset"])
async def test_calls_to_dead_runtime_fail_and_are_not_retried(
    front: Front, tmp_path: Path, end: Callable[[FaultRelay], None]
) -> None:
    """A stream ends with them. The runtime restarts immediately, so a retry would reach it."""
    seconds_taken: list[float] = []
    requests: list[bytes] = []
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))

    def arrivals(request: bytes) -> int:
        return sum(request.startswith(arrived) for arrived in runtime.arrived("create"))

    async with runtime, proxy, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay:
        for _ in range(DEATHS.now):
            for subject_id in (*runtime.container_ids(), *runtime.pod_ids()):
                runtime.vanish(subject_id)
            async with front.caller(proxy.socket) as caller:
                runtime.set_fault("create")
                stream = await caller.open_stream()
                requests.append(caller.create_request(await caller.run_pod()))
                runtime.set_fault("create", delay_seconds=60)
                calls: list[Awaitable[object]] = [caller.send("create", requests[-1]), stream.read()]
                waiting = [asyncio.ensure_future(call) for call in calls]
                await until(lambda: arrivals(requests[-1]) > 0, "the create is at the runtime")
                started_at = time.monotonic()
                end(relay)
                ends = await asyncio.gather(*waiting, return_exceptions=True)
                seconds_taken.append(time.monotonic() - started_at)
                assert [end.status for end in ends if isinstance(end, Failed)] == [front.lost] * 2, ends
        assert [arrivals(request) for request in requests] == [1] * DEATHS.now
    check_times(seconds_taken, 0.1)


async def test_runtime_is_used_as_soon_as_it_listens(front: Front, tmp_path: Path) -> None:
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    start_seconds, back_seconds = [], []
    for _ in range(STARTS.now):
        started_at = time.monotonic()
        async with proxy:
            start_seconds.append(time.monotonic() - started_at)
    check_times(start_seconds, 1.0)

    async def dial_until_answered() -> float:
        while True:
            try:
                await front.exchange(proxy.socket)
                return time.monotonic()
            except ConnectionError:
                await asyncio.sleep(DIAL_SECONDS)

    async with runtime, proxy:
        unreachable = f"container runtime at {proxy.runtime} is not reachable"
        await until(lambda: unreachable in proxy.output(), "it is logged before any client connects", proxy.output)
        for seconds in sorted({4 * DIAL_SECONDS, *(amount.now for amount in UNAVAILABLE_SECONDS)}):
            dialling = asyncio.create_task(dial_until_answered())
            await asyncio.sleep(seconds)
            assert not dialling.done()
            async with FaultRelay(str(proxy.runtime), runtime.socket_path):
                listens = time.monotonic()
                back_seconds.append(await asyncio.wait_for(dialling, WAIT_SECONDS) - listens)
    assert max(back_seconds) < BACK_SECONDS, back_seconds


def mutated(answer: bytes, chance: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(at + chance.choice((1, 2, 9, 100)), len(data))
        part, more = data[at:end], chance.choice((chance.randbytes(9), b"\r\n", b"\0" * 9, b"\xff" * 9))
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in part)
        data[at:end] = chance.choice((flipped, chance.randbytes(len(part)), more + part, part * 2, b""))
        if chance.random() < 0.1:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("verb", ["ping", "create"], ids=["passing", "held"])
async def test_broken_answer_fails_only_its_call(front: Front, verb: str, tmp_path: Path) -> None:
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    async with runtime, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay, proxy:
        process, chance = Process(proxy.pid), random.Random(front.name)
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()

        async def call(seconds: float = SECONDS) -> None:
            async with front.caller(proxy.socket) as caller:
                request = caller.create_request(pod_id) if verb == "create" else caller.request(verb)
                await caller.send(verb, request, seconds)

        for number in range(MUTATIONS.now):
            relay.to_client.mutate = lambda data: mutated(data, chance) if chance.random() < 0.5 else data
            with suppress(Exception):  # the client may fail in any way, or wait for an incomplete frame
                await call(seconds=1.0)
            relay.to_client.mutate = None
            if number % 10 == 0:
                await call()
            if number == 10:
                before = process.descriptors()
            relay.connections = [connection for connection in relay.connections if connection.is_open]
        await until(lambda: process.descriptors() <= before + 2, "every connection is closed")
