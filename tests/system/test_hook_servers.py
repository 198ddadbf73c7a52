"""The cost of a call when a hook server hangs, is unavailable, replaced, disabled, or hostile.

hook-api, "Failures"; promises 1, 14 and 21; fault matrix C1 to C3, H1, H2, H6, H9, H10, H13. Elsewhere: every reason of
a failure under both policies (test_policy_exact), the budget of a call (tests/core/test_lifecycle.py), each kind of
file, and disable periods (tests/plugins). docs/security.rst lists what a hostile hook server, pod or image can change.
"""

import asyncio
import os
import shutil
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.plugins import client as hook_client
from tests.amounts import HANGS, SWAPS, Amount
from tests.control import call
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers, registration
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, POD, SKIP, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import until
from tests.system.times import FEW_TIMES, in_time

pytestmark = pytest.mark.slow

CREATE = "PreCreateContainer"
TIMEOUT_SECONDS = 0.2


async def seconds_of_a_create(caller: Caller, pod_id: str) -> float:
    started_at = time.monotonic()
    await caller.create(pod_id)
    return time.monotonic() - started_at


@asynccontextmanager
async def stopped(path: str) -> AsyncIterator[None]:
    """Listen without accepting, like a stopped process (SIGSTOP); a client sees an accept without an answer too."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield


@pytest.mark.parametrize("hanging", [full_backlog, stopped])
async def test_hanging_hook_delays_call_by_its_timeout(
    front: Front, tmp_path: Path, runtime: Runtime, hanging: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_client, "FAILURES_IN_A_ROW", 10**9)  # the breaker stays closed
    inside, path = front.inside(tmp_path), str(tmp_path / "hooks.sock")
    inside.register("hangs.json", path, [CREATE], timeout=f"{TIMEOUT_SECONDS}s")
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def some_together() -> Sequence[float]:
            durations = await asyncio.gather(*(seconds_of_a_create(caller, pod_id) for _ in range(5)))
            return [seconds - TIMEOUT_SECONDS for seconds in durations]

        await in_time(0.100, HANGS, some_together)
        passed = proxy.metrics.counted("hook_fail_open", hook_server="hangs", hook=CREATE, reason="deadline")
    assert passed == len(runtime.arrived("create")) >= HANGS.now


COSTS = {
    "down": (0.005, ": unreachable: "),
    "missing": (0.005, ": unreachable: "),
    "open breaker": (0.001, "hook server bad keeps failing: calls suspended for 30 s"),
}
"""Reason why a hook server is not called -> maximum delay of a call in seconds, and the log line."""


@pytest.mark.parametrize("why", COSTS)
async def test_uncalled_hook_server_costs_little(front: Front, tmp_path: Path, runtime: Runtime, why: str) -> None:
    """Compared with the creates of a pod that skips it."""
    path, (seconds, line) = str(tmp_path / "hooks.sock"), COSTS[why]
    hooks, proxy = HookServer(path, default=hookanswers.hang()), front.process(tmp_path)
    proxy.register("bad.json", path, [CREATE], timeout="20ms")
    if why == "down":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    async with hooks if why == "open breaker" else nullcontext(), proxy, front.caller(proxy.socket) as caller:
        hooked, skipped = await caller.run_pod(), await caller.run_pod(replace(POD, labels=SKIP))

        async def median_of_creates(pod_id: str, calls: int = 40) -> float:
            return statistics.median([await seconds_of_a_create(caller, pod_id) for _ in range(calls)])

        async def more() -> list[float]:
            usual = await median_of_creates(skipped)
            return [await median_of_creates(hooked) - usual]

        await median_of_creates(hooked, calls=10)
        await in_time(seconds, Amount(1, 10), more)
        assert len(hooks.calls) <= 5, "none since the breaker is open"
    assert line in proxy.output()


async def test_huge_answer_costs_at_most_three_times_limit(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    cap, proxy = 2 << 20, front.process(tmp_path, hook_answer_limit="2MiB")
    proxy.register("huge.json", hooks.socket_path, [CREATE])
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(40 << 20)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * cap
    assert f"bad_answer: the answer is longer than {cap} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls_of(CREATE)) == len(runtime.arrived("create")) == 4


POST_STOP = "PostStopPodSandbox"
BROKEN = ("", '{"remote-endpoint": ', "\0" * 9, "[" * (2 << 20))
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "yes"}))


def renamed_over(folder: Path, number: int, content: str) -> None:
    registration.write(folder, "plugin.json", content)


def link_swapped(folder: Path, number: int, content: str) -> None:
    """Replace like a ConfigMap's volume: ``..data`` is a link to a folder, replaced by a rename."""
    before = folder / os.readlink(folder / "..data") if (folder / "..data").is_symlink() else None
    data = folder / f"..version-{number}"
    data.mkdir()
    (data / "plugin.json").write_text(content)
    (folder / "..data.new").symlink_to(data.name)
    (folder / "..data.new").rename(folder / "..data")
    if before is None:
        (folder / "plugin.json").symlink_to("..data/plugin.json")
    else:
        shutil.rmtree(before)


@pytest.mark.parametrize("swap", [renamed_over, link_swapped])
async def test_no_call_is_unhooked_while_file_is_replaced(
    front: Front, tmp_path: Path, runtime: Runtime, swap: Callable[[Path, int, str], None]
) -> None:
    """Each text names the other hook server, or another timeout for the same one.

    At the end the file becomes invalid, then its directory is replaced, then both hook servers at their sockets.
    """
    servers = [HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in ("first", "second")]
    contents = cycle((server.socket_path, float(seconds)) for server in servers for seconds in (20, 21))
    inside, numbers, rounds, end = front.inside(tmp_path), count(), count(), asyncio.Event()

    def swapped() -> list[tuple[str, float]]:
        endpoint, seconds = next(contents)
        swap(inside.registrations, next(numbers), registration.text(endpoint, [CREATE], timeout=f"{seconds}s"))
        return [(endpoint, seconds)]

    def registered() -> list[tuple[str, float]]:
        return [(plugin.endpoint, plugin.timeout_seconds) for plugin in inside.app.manager.plugins_for(BY_NAME[CREATE])]

    async def effect() -> list[float]:
        if next(rounds) % 2:
            swapped()  # the next one follows immediately
        started_at, expected = time.monotonic(), swapped()
        await until(lambda: registered() == expected, "it has effect")
        return [time.monotonic() - started_at]

    async def create_until_the_end() -> int:
        for made in count(1):
            await caller.create(pod_id)
            if end.is_set():
                return made
        return 0

    swapped()
    async with servers[0], servers[1], inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        async with asyncio.TaskGroup() as load:
            creating = [load.create_task(create_until_the_end()) for _ in range(4)]
            await in_time(0.5, SWAPS, effect)
            end.set()
        expected = registered()
        for number, content in enumerate(BROKEN):
            swap(proxy.registrations, next(numbers), content)
            proxy.register(f"later-{number}.json", f"/run/{number}.sock", [POST_STOP])
            later = BY_NAME[POST_STOP]
            await until(lambda: len(proxy.app.manager.plugins_for(later)) > number, "it is read")  # noqa: B023
            assert registered() == expected
        proxy.registrations.rename(tmp_path / "aside")
        proxy.registrations.mkdir()
        expected = swapped()
        await until(lambda: registered() == expected, "the new directory is read")
        for server in servers:
            await server.stop()
            await server.start()
        started_at = time.monotonic()
        await caller.create(pod_id)
        assert time.monotonic() - started_at < FEW_TIMES * 0.1
        assert proxy.metrics.total("hook_failures") == 0
    creates = runtime.arrived("create")
    assert sum(len(server.calls) for server in servers) == len(creates) == 1 + sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in creates)
    assert all(server.calls for server in servers)


async def test_disabled_server_gets_no_call_after_proxy_kills(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy, path = front.process(tmp_path), str(tmp_path / "hooks.sock")

    async def create() -> None:
        async with front.caller(proxy.socket) as caller:
            await caller.create(await caller.run_pod())

    async def admin(method: str, **params: str) -> Any:
        return await asyncio.to_thread(call, proxy.admin, method, **params)

    proxy.register("hangs.json", path, [CREATE], policy="Fail", timeout="10s")
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        held = asyncio.ensure_future(create())
        await hooks.wait_for_calls(CREATE)
        answer = await admin("disable", name="hangs", reason="it hangs")
        await held
        assert (answer["state"], answer["disabled"]["reason"]) == ("disabled", "it hangs")
        files = tmp_path / "state"
        await until(lambda: any(files.glob("*.json")), "the state is written, which may be after the answer")
        for number in range(1, 3):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number
            proxy.register("hangs.json", path, [CREATE], policy="Fail", timeout=f"{number}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {CREATE}; it is disabled"
            await asyncio.to_thread(proxy.wait_for_log, changed, number)
            await create()
        disabled = {"name": "disabled_plugins", "state": "degraded", "reason": "disabled by hand: hangs"}
        assert disabled in (await admin("readyz"))["checks"]
        assert len(hooks.calls) == 1
        assert (await admin("enable", name="hangs"))["disabled"] is None
        hooks.default = hookanswers.empty()
        await create()
        assert len(hooks.calls) == 2


async def test_only_label_of_pod_skips_hook_servers(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Not of a container or image, also after a restart, where dockerd reports the image's labels as the container's.

    A hook server may set it, as it is trusted like the runtime: the others skip the pod, also under Fail.
    """
    if isinstance(runtime, FakeDockerd):
        runtime.state.images.add(BUSYBOX_IMAGE, SKIP)
    for number in range(2):
        proxy = front.inside(tmp_path / str(number), remote_runtime_service_endpoint=runtime.socket_path)
        proxy.register("plugin.json", hooks.socket_path, policy="Fail")
        async with proxy, front.caller(proxy.socket) as caller:
            if number == 0:
                marked = replace(CONTAINER, labels=SKIP, annotations=SKIP)
                container_id = await caller.create(await caller.run_pod(), marked)
            await caller.update(container_id)
    hooks.on("PreRunPodSandbox", hookanswers.reply(api_pb2.PodSandboxHookResponse(labels=SKIP)))
    proxy = front.inside(tmp_path / "set", remote_runtime_service_endpoint=runtime.socket_path)
    proxy.register("plugin.json", hooks.socket_path)
    proxy.register("required.json", "/run/none.sock", [CREATE], policy="Fail")
    async with proxy, front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
    updates = ["PreUpdateContainerResources"] * 2
    assert [call.point.name for call in hooks.calls] == ["PreRunPodSandbox", CREATE, *updates, "PreRunPodSandbox"]
    assert len(runtime.arrived("create")) == 2
