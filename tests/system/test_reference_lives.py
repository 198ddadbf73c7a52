"""The project's own hook servers as programs: whatever becomes of them the next pod is hooked, and they verify well."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from runtimeproxy_hooks.cpunormalization import NORMALIZED
from runtimeproxy_hooks.koordinator import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from tests.fakes import registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, POD, UPDATE, Caller, Failed, Front, Runtime
from tests.system.proxy import ROOT, WAIT_SECONDS, Folder, ProxyProcess, answers, wait_until
from tests.system.reference import FAIL, HookProgram, served

pytestmark = pytest.mark.slow

SHARE = {"koordinator.sh/gpu-memory": "1Gi", "koordinator.sh/gpu-memory-ratio": 50}
WITH_A_GPU = replace(
    POD,
    labels={GPU_ISOLATION_PROVIDER: "HAMi-core"},
    annotations={DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 2, "resources": SHARE}]})},
)
VARIABLE, VALUE = "NVIDIA_VISIBLE_DEVICES", "2"
RESTART_SECONDS = 4.0
"""More than an end and a start take."""


class Pods:
    """Runs pods with a GPU, and tells what their containers are given."""

    def __init__(self, caller: Caller, runtime: Runtime) -> None:
        self._caller = caller
        self._runtime = runtime

    async def next(self) -> dict[str, str]:
        """Run another pod with a container; return its environment. Raises Failed."""
        await self._caller.create(await self._caller.run_pod(WITH_A_GPU))
        return dict(self._runtime.envs())

    async def outcomes_of(self, seconds: float) -> set[bool | None]:
        """Run pods for a time; return which of hooked, not hooked and refused (None) came up."""
        found: set[bool | None] = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    found.add(await self._is_hooked())
                    await asyncio.sleep(0)
        return found

    async def until(self, *, hooked: bool) -> None:
        """Run pods until one is hooked, or runs without a hook."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._is_hooked() is not hooked:
                await asyncio.sleep(0.02)

    async def _is_hooked(self) -> bool | None:
        try:
            return VARIABLE in await self.next()
        except Failed:
            return None


@asynccontextmanager
async def running(front: Front, proxy: ProxyProcess) -> AsyncIterator[Pods]:
    """Run a proxy before a fake runtime."""
    async with front.runtime(str(proxy.runtime)) as runtime, proxy, front.caller(proxy.socket) as caller:
        yield Pods(caller, runtime)


@pytest.fixture
def proxy(front: Front, tmp_path: Path) -> ProxyProcess:
    return front.process(tmp_path)


async def test_kill_of_a_hook_server_costs_the_calls_until_its_start(front: Front, proxy: ProxyProcess) -> None:
    gpu = HookProgram(proxy, "gpu", flags=[FAIL])
    with served(gpu):
        async with running(front, proxy) as pods:
            assert (await pods.next())[VARIABLE] == VALUE
            gpu.kill()
            assert gpu.socket.exists()
            assert gpu.registration.exists()
            with pytest.raises(Failed, match="gpu"):
                await pods.next()
            await asyncio.to_thread(gpu.start)
            assert (await pods.next())[VARIABLE] == VALUE


async def test_restart_of_a_hook_server_under_fail_leaves_no_pod_unhooked(front: Front, proxy: ProxyProcess) -> None:
    gpu = HookProgram(proxy, "gpu", flags=[FAIL])
    with served(gpu):
        async with running(front, proxy) as pods:
            await pods.until(hooked=True)
            ran = asyncio.create_task(pods.outcomes_of(RESTART_SECONDS))
            gpu.check(await asyncio.to_thread(gpu.end))
            await asyncio.to_thread(gpu.start)
            assert await ran == {True, None}


async def test_socket_that_is_replaced_is_another_servers(front: Front, proxy: ProxyProcess) -> None:
    old = HookProgram(proxy, "gpu", flags=[FAIL, "--unregister", "--hami-core-library=/old.so"])
    new = HookProgram(proxy, "gpu", name="new", flags=["--register-dir=", "--hami-core-library=/new.so"])
    with served(old, new):
        async with running(front, proxy) as pods:
            assert (await pods.next())["LD_PRELOAD"] == "/old.so"
            os.rename(new.socket, old.socket)
            assert (await pods.next())["LD_PRELOAD"] == "/new.so"
            old.check(await asyncio.to_thread(old.end))
            assert answers(old.socket), "what is at its path is another's, which stays"
            await pods.until(hooked=False)


def rewritten(file: Path) -> None:
    file.write_text(registration.text(str(file.with_name("nobody.sock"))))


@pytest.mark.parametrize("change", [Path.unlink, rewritten], ids=["deleted", "rewritten"])
async def test_registration_file_that_is_taken_comes_back(
    change: Callable[[Path], None], front: Front, proxy: ProxyProcess
) -> None:
    """The hook server is held still meanwhile, so that the proxy sees the change."""
    gpu = HookProgram(proxy, "gpu", flags=[FAIL, "--timeout=200ms"])
    with served(gpu):
        content = gpu.registration.read_bytes()
        async with running(front, proxy) as pods:
            await pods.until(hooked=True)
            gpu.send(signal.SIGSTOP)
            change(gpu.registration)
            await pods.until(hooked=False)
            gpu.send(signal.SIGCONT)
            await pods.until(hooked=True)
            assert gpu.registration.read_bytes() == content


async def test_quota_is_scaled_once_over_restarts_of_the_proxy(
    front: Front, proxy: ProxyProcess, tmp_path: Path
) -> None:
    asked, scaled = int(CONTAINER.resources["cpu_quota"]), 160_000
    settings = tmp_path / "node.yaml"
    settings.write_text("cpu-normalization-ratio: 1.25")
    scaling = HookProgram(proxy, "cpunormalization", flags=[f"--node-config={settings}"])
    watching = HookServer(str(tmp_path / "watching.sock"))  # it is asked last: it sees what comes of it all
    proxy.register("watching.json", watching.socket_path, ("PreCreateContainer", "PreUpdateContainerResources"))
    with served(scaling):
        async with front.runtime(str(proxy.runtime)), watching, proxy:
            async with front.caller(proxy.socket) as caller:
                container_id = await caller.create(await caller.run_pod())
                await caller.update(container_id, UPDATE)
            for _ in range(2):
                proxy.kill()
                proxy.log.unlink()
                await asyncio.to_thread(proxy.start)
                await proxy.state_known()
                async with front.caller(proxy.socket) as caller:
                    await caller.update(container_id, UPDATE)
    seen = [call.request for call in watching.calls]
    assert [request.container_resources.cpu_quota for request in seen] == [scaled] * 4
    assert {request.container_annotations[NORMALIZED] for request in seen} == {f"{asked}:{scaled}"}


# ---- runtimeproxy hook verify

VERIFY = (sys.executable, "-m", "runtimeproxy", "hook", "verify")
VERIFY_SECONDS = 60
AT_ONCE = 3
PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that keep a hook off what the machine itself has."""


def program(folder: Path, name: str) -> HookProgram:
    own = folder / name
    return HookProgram(Folder(own), name, flags=[f"--{flag}={own}/{flag}" for flag in PATHS.get(name, [])])


def verify(tried: HookProgram, *flags: str) -> tuple[int, str]:
    """Return the exit code and the table."""
    # Not by a pipe: what --restart-command starts lives on, and would keep it open.
    with tried.socket.with_suffix(".table").open("w+") as table:
        command = [*VERIFY, str(tried.socket), *flags]
        done = subprocess.run(command, stdout=table, stderr=table, timeout=VERIFY_SECONDS, check=False, cwd=ROOT)
        table.seek(0)
        return done.returncode, table.read()


def test_each_hook_server_verifies_well(tmp_path: Path) -> None:
    programs = [program(tmp_path, name) for name in sorted(HOOKS)]
    with served(*programs), ThreadPoolExecutor(AT_ONCE) as pool:
        for tried, (code, table) in zip(programs, pool.map(verify, programs), strict=True):
            assert code == 0, f"{tried.name}: {table}"


def test_all_hooks_in_one_verify_well_over_a_kill(tmp_path: Path) -> None:
    """The one that is started again is nobody's child."""
    tried, pid_file = program(tmp_path, ALL), tmp_path / "pid"
    try:
        tried.start()
        assert tried.process is not None
        started = f"{shlex.join(tried.command)} >> {tried.log} 2>&1 & echo $! > {pid_file}"
        code, table = verify(tried, f"--restart-command=kill -KILL {tried.process.pid}; {started}")
        assert code == 0, table
        assert " 0 skipped" in table, table
    finally:
        tried.kill()
        if pid_file.exists():
            os.kill(int(pid_file.read_text()), signal.SIGTERM)
    wait_until(lambda: not tried.socket.exists(), "the second one ended", tried.output)
    assert not tried.registration.exists()
    assert not tried.faults()
