"""Whatever happens to a registration file, no call is passed without its hook (promise 14, fault matrix C1 to C3, H9).

Each kind of file: tests/plugins/test_directory.py, test_registration.py; a replaced socket: tests/relay/rpc.
"""

import asyncio
import os
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import BY_NAME
from tests.amounts import SWAPS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.proxy import until
from tests.system.times import FEW_TIMES, in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
OTHER_POINT = "PostStopPodSandbox"
BROKEN = ("", '{"remote-endpoint": ', "\0" * 9, "[" * (2 << 20))
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "yes"}))


def renamed_over(folder: Path, number: int, content: str) -> None:
    registration.write(folder, "plugin.json", content)


def link_swapped(folder: Path, number: int, content: str) -> None:
    """Swap as a ConfigMap's volume does: ``..data`` is a link to a folder, replaced by a rename."""
    before = os.readlink(folder / "..data") if (folder / "..data").is_symlink() else None
    data = folder / f"..version-{number}"
    data.mkdir()
    (data / "plugin.json").write_text(content)
    (folder / "..data.new").symlink_to(data.name)
    (folder / "..data.new").rename(folder / "..data")
    if before is None:
        (folder / "plugin.json").symlink_to("..data/plugin.json")
    else:
        (folder / before / "plugin.json").unlink()
        (folder / before).rmdir()


@pytest.mark.parametrize("swap", [renamed_over, link_swapped])
async def test_no_call_is_unhooked_while_its_file_is_swapped(
    front: Front, tmp_path: Path, runtime: Runtime, swap: Callable[[Path, int, str], None]
) -> None:
    """Each text names the other of two hook servers, or another time for the same one.

    At the end the file is broken, then its directory is replaced, then both hook servers at their sockets.
    """
    servers = [HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in ("first", "second")]
    contents = cycle((server.socket_path, float(seconds)) for server in servers for seconds in (20, 21))
    inside, numbers, rounds, end = front.inside(tmp_path), count(), count(), asyncio.Event()

    def swapped() -> list[tuple[str, float]]:
        endpoint, seconds = next(contents)
        swap(inside.registrations, next(numbers), registration.text(endpoint, [POINT], timeout=f"{seconds}s"))
        return [(endpoint, seconds)]

    def registered() -> list[tuple[str, float]]:
        return [(plugin.endpoint, plugin.timeout_seconds) for plugin in inside.app.manager.plugins_for(BY_NAME[POINT])]

    async def effect() -> list[float]:
        if next(rounds) % 2:
            swapped()  # the next one follows immediately
        begun, expected = time.monotonic(), swapped()
        await until(lambda: registered() == expected, "it has effect")
        return [time.monotonic() - begun]

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
            proxy.register(f"later-{number}.json", f"/run/{number}.sock", [OTHER_POINT])
            later = BY_NAME[OTHER_POINT]
            await until(lambda: len(proxy.app.manager.plugins_for(later)) > number, "it is read")  # noqa: B023
            assert registered() == expected
        proxy.registrations.rename(tmp_path / "aside")
        proxy.registrations.mkdir()
        expected = swapped()
        await until(lambda: registered() == expected, "the new directory is read")
        for server in servers:
            await server.stop()
            await server.start()
        begun = time.monotonic()
        await caller.create(pod_id)
        assert time.monotonic() - begun < FEW_TIMES * 0.1
        assert proxy.metrics.total("hook_failures") == 0
    creates = runtime.arrived("create")
    assert sum(len(server.calls) for server in servers) == len(creates) == 1 + sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in creates)
    assert all(server.calls for server in servers)
