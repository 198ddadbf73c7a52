"""A hook server that is killed, whose socket is replaced, whose registration file is taken: the next pod is hooked."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy_hooks.koordinator import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from tests.fakes import registration
from tests.system.fronts import POD, Caller, Failed, Front, Runtime
from tests.system.proxy import WAIT_SECONDS, ProxyProcess, answers
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


async def test_killed_and_started_again(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
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


async def test_ended_and_started_again_under_fail_no_pod_is_without_its_hook(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    gpu = HookProgram(proxy, "gpu", flags=[FAIL])
    with served(gpu):
        async with running(front, proxy) as pods:
            await pods.until(hooked=True)
            ran = asyncio.create_task(pods.outcomes_of(RESTART_SECONDS))
            gpu.check(await asyncio.to_thread(gpu.end))
            await asyncio.to_thread(gpu.start)
            assert await ran == {True, None}


async def test_its_socket_is_replaced_by_another_servers(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
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


def deleted(file: Path) -> None:
    file.unlink()


def rewritten(file: Path) -> None:
    file.write_text(registration.text(str(file.with_name("nobody.sock"))))


@pytest.mark.parametrize("change", [deleted, rewritten])
async def test_its_registration_file_is(change: Callable[[Path], None], front: Front, tmp_path: Path) -> None:
    """The hook server is held still meanwhile, so that the proxy sees the change."""
    proxy = front.process(tmp_path)
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
