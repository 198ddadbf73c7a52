"""The project's own hook servers as programs: over a restart no pod is without its hook, and they verify well."""

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from runtimeproxy_hooks.koordinator import DEVICE_ALLOCATED
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.proxy import ROOT, Folder
from tests.system.reference import FAIL, HookProgram, served

pytestmark = pytest.mark.slow

SHARE = {"koordinator.sh/gpu-memory": "1Gi", "koordinator.sh/gpu-memory-ratio": 50}
WITH_A_GPU = replace(POD, annotations={DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 2, "resources": SHARE}]})})


async def test_hook_server_under_fail_leaves_no_pod_unhooked(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """While it is ended and started again pods are refused."""
    proxy = front.process(tmp_path)
    gpu = HookProgram(proxy, "gpu", flags=[FAIL])
    with served(gpu):
        async with proxy, front.caller(proxy.socket) as caller:

            async def outcome() -> str:
                try:
                    await caller.create(await caller.run_pod(WITH_A_GPU))
                except Failed as error:
                    return "refused" if "'gpu'" in error.text else error.text
                return dict(runtime.envs()).get("NVIDIA_VISIBLE_DEVICES", "unhooked")

            async def outcomes() -> set[str]:
                found = set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(4):  # more than an end and a start take
                        while True:
                            found.add(await outcome())
                return found

            assert await outcome() == "2"
            ran = asyncio.create_task(outcomes())
            gpu.check(await asyncio.to_thread(gpu.end))
            await asyncio.to_thread(gpu.start)
            assert await ran == {"2", "refused"}


PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that keep a hook off what the machine itself has."""


def program(folder: Path, name: str) -> HookProgram:
    own = folder / name
    return HookProgram(Folder(own), name, flags=[f"--{flag}={own}/{flag}" for flag in PATHS.get(name, [])])


def verify(tried: HookProgram) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(tried.socket)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


def test_each_hook_server_and_all_in_one_verify_well(tmp_path: Path) -> None:
    programs = [program(tmp_path, name) for name in (*sorted(HOOKS), ALL)]
    with served(*programs), ThreadPoolExecutor(3) as pool:
        for tried, done in zip(programs, pool.map(verify, programs), strict=True):
            assert done.returncode == 0, f"{tried.name}: {done.stdout}{done.stderr}"
