"""Restarts, kills, failed and second starts: the state is kept, no call is lost, disturbed or long delayed.

That is fault matrix P1 to P3, P5, P7 and P9; promises 6, 7, 15 and 19.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import (
    CRASH_SECONDS,
    KILLS,
    LOST_CREATES,
    RESTARTED_PODS,
    RESTARTS,
    SECOND_STARTS,
    SHARE_VARIABLE,
)
from tests.docker import client as docker_client
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, POD, Failed, Front, Runtime
from tests.system.keeping import on_tmpfs, rows
from tests.system.load import DEAD_SECONDS, WORKERS, Dialler, Load, store_equals
from tests.system.proxy import PROGRAM, SUPERVISED, ProxyProcess, handed_over, until
from tests.system.shaped import ShapedNode

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
            for number in range(RESTARTED_PODS.now):
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
        for _ in range(LOST_CREATES.now):
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
        for _ in range(RESTARTS.now):
            await load.wait_for_each_kind()
            await asyncio.sleep(pause.uniform(0, 0.1))
            await asyncio.to_thread(proxy.stop)
            await asyncio.to_thread(proxy.start)
        await load.wait_for_each_kind()
    assert load.lost == []
    drains = re.findall(r"drained in ([0-9.]+) s: ([^;\n]*)", proxy.output())
    assert len(drains) == RESTARTS.now + 1
    assert {reason for _, reason in drains} == {"every call is answered"}
    assert max(float(seconds) for seconds, _ in drains) < DRAIN_SECONDS
    assert load.cuts >= RESTARTS.now


def waited_seconds(pid: int) -> float:
    """Return the seconds that a process's first thread waited for a processor: the second figure of /proc/PID/schedstat
    (the kernel's sched-stats.rst).
    """
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


async def test_kills_under_load_fail_only_running_calls(
    front: Front,
    proxy: ProxyProcess,
    runtime: Runtime,
    hooks: HookServer,
    record_property: Callable[[str, object], None],
) -> None:
    """No call concerns a pod that outlives a restart."""
    async with front.caller(runtime.socket_path) as caller:
        for _ in range(RESTARTED_PODS.now):
            await caller.create(await caller.run_pod())
    ids = {*runtime.pod_ids(), *runtime.container_ids()}
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
    pause, durations, waited = random.Random(0), [], []
    async with proxy:
        async with load.running(), asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(dialler.fetch())
            for _ in range(KILLS.now):
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
    slowest = max(seconds - waiting for seconds, waiting in starts)
    record_property("seconds from a start to the first answer, slowest", f"{slowest:.2f} of {max(durations):.2f}")
    assert slowest < ANSWER_SECONDS, starts
    longest_silence = max(later - earlier for earlier, later in pairwise(dialler.answers))
    assert longest_silence - max(waited) < SILENCE_SECONDS, starts
    assert (dialler.refused == 0) == (SUPERVISED in proxy.command), dialler.refused


async def test_second_starts_under_load_fail_no_call(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    proxy = front.process(tmp_path)
    proxy.register("slow.json", hooks.socket_path, POINTS)
    load, command = Load(front, proxy), [*proxy.command, "--log-level=info"]
    async with proxy, load.running():
        inode = proxy.socket.stat().st_ino
        for _ in range(SECOND_STARTS.now):
            await load.wait_for_each_kind()
            second = await asyncio.to_thread(
                lambda: subprocess.run(command, capture_output=True, text=True, env=proxy.environment, check=False)
            )
            (line,) = second.stderr.splitlines()
            assert (second.returncode, f"pid {proxy.pid}" in line, str(proxy.socket) in line) == (1, True, True), line
        await load.wait_for_each_kind()
        assert proxy.socket.stat().st_ino == inode
        assert load.cuts == 0
    assert load.lost == []


WITHOUT_UVLOOP = """
import sys
from runtimeproxy.cli import main
sys.modules["uvloop"] = None
sys.exit(main())
"""
RESTART_SECONDS = 0.1
PATIENCE_SECONDS = CRASH_SECONDS.now + 60.0


async def test_clients_of_crash_loop_are_answered_by_next_start(
    front: Front, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor holds the socket and restarts a version that cannot start."""
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    tmp_path.chmod(0o700)
    with handed_over(tmp_path / "proxy.sock") as handed:
        good = front.process(tmp_path, **handed)
        program = [*handed["program"][: -len(PROGRAM)], sys.executable, "-c", WITHOUT_UVLOOP, "run"]
        broken = front.process(tmp_path, **{**handed, "program": program})
        started_at, clients, ends = time.monotonic(), [], 0
        while ends < 2 or time.monotonic() < started_at + CRASH_SECONDS.now:
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
