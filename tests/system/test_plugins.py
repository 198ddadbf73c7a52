"""Hook servers that are replaced; registration files that are added, changed, removed, or hostile.

Whatever happens to a file, no call is passed without its hook (promise 14). That is fault matrix C1 to C3, H9.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count, cycle
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import BY_NAME
from tests.amounts import HOOK_SERVERS, HOSTILE_FILES, SWAPS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.proxy import until
from tests.system.times import in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
OTHER_POINT = "PostStopPodSandbox"
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "yes"}))


@pytest.mark.parametrize("old_lives", [False, True], ids=["restarted", "replaced"])
async def test_new_server_at_a_socket_gets_the_next_call(
    front: Front, tmp_path: Path, runtime: Runtime, old_lives: bool
) -> None:
    """If the socket was replaced the old server lives on, and its connection too."""
    path = tmp_path / "hooks.sock"
    inside = front.inside(tmp_path)
    inside.register("plugin.json", path, [POINT], policy="Fail")
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def seconds_to_call(server: HookServer) -> float:
            begun = time.monotonic()
            await caller.create(pod_id)
            assert len(server.calls) == 1
            return time.monotonic() - begun

        async def first_call() -> list[float]:
            async with HookServer(str(path)) as old:
                took = await seconds_to_call(old)
                if old_lives:
                    path.rename(tmp_path / "old.sock")
                    async with HookServer(str(path)) as new:
                        took = await seconds_to_call(new)
                assert len(old.calls) == 1
                return [took]

        await in_time(0.100, HOOK_SERVERS, first_call)


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
    """Each text names the other of two hook servers, or another time for the same one."""
    first, second = (HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in ("first", "second"))
    inside, end = front.inside(tmp_path), asyncio.Event()
    contents = cycle((server.socket_path, float(seconds)) for server in (first, second) for seconds in (20, 21))
    numbers, rounds = count(), count()

    def swapped() -> tuple[str, float]:
        endpoint, seconds = next(contents)
        swap(inside.registrations, next(numbers), registration.text(endpoint, [POINT], timeout=f"{seconds}s"))
        return endpoint, seconds

    def registered() -> list[tuple[str, float]]:
        return [(plugin.endpoint, plugin.timeout_seconds) for plugin in inside.app.manager.plugins_for(BY_NAME[POINT])]

    async def effect() -> list[float]:
        if next(rounds) % 2:
            swapped()  # the next one follows immediately
        begun, expected = time.monotonic(), swapped()
        await until(lambda: registered() == [expected], "it has effect")
        return [time.monotonic() - begun]

    async def create_until_the_end() -> int:
        made = 0
        while not end.is_set() or not made:
            await caller.create(pod_id)
            made += 1
        return made

    swapped()
    async with first, second, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        async with asyncio.TaskGroup() as load:
            creating = [load.create_task(create_until_the_end()) for _ in range(4)]
            await in_time(0.5, SWAPS, effect)
            end.set()
        assert proxy.metrics.total("hook_failures") == 0
    creates = runtime.arrived("create")
    assert len(first.calls) + len(second.calls) == len(creates) == sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in creates)
    assert first.calls
    assert second.calls


# ---- hostile files

REGISTERED = ("kept-1.json", "kept-2.json", "kept-3.json")
AT_A_TIME = 20
VALID = registration.text("/run/none.sock", [OTHER_POINT]).encode()
NAMES = ("abc", "äöü", "\n\t", " ", "\u202e\U0001f600", "\udcff")


def spoil(chance: random.Random, path: Path) -> None:
    """Create something at a path that is not a registration."""
    contents = (
        b"",
        VALID[: chance.randrange(len(VALID) - 1)],
        bytes(255) + chance.randbytes(chance.randrange(1000)),
        b"\xef\xbb\xbf" + VALID,
        VALID.decode().encode("utf-16"),
        b"[" * chance.choice([1 << 20, (1 << 20) + 1, 3 << 20]),
    )
    kind = chance.randrange(10)
    if kind == 0:
        os.mkfifo(path)
    elif kind <= 3:
        path.symlink_to(chance.choice(("nothing.json", path.name, "/dev/zero", "/dev/tty", "/proc/self/mem", "/", ".")))
    else:
        path.write_bytes(chance.choice(contents))


def damage(chance: random.Random, path: Path) -> None:
    """Write a registration in which a byte was changed: it may still be one."""
    content = bytearray(VALID)
    content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)


async def test_hostile_files_take_no_plugin_away(
    front: Front, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    chance, made = random.Random(14), 0
    hooks = {name: HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in REGISTERED}
    inside = front.inside(tmp_path)
    for name, server in hooks.items():
        inside.register(name, server.socket_path, [POINT])
    async with AsyncExitStack() as stack, inside as proxy, front.caller(proxy.socket) as caller:
        for server in hooks.values():
            await stack.enter_async_context(server)
        pod_id = await caller.run_pod()

        async def create(number: int) -> None:
            """Create a container once the present directory has been read; each hook server is called."""
            nonlocal made
            seconds = 1000.0 + number
            proxy.register("~last.json", "/run/last.sock", [OTHER_POINT], timeout=f"{seconds}s")

            def is_read() -> bool:
                plugins = proxy.app.manager.plugins_for(BY_NAME[OTHER_POINT])
                return any(plugin.name == "~last" and plugin.timeout_seconds == seconds for plugin in plugins)

            await until(is_read, "the directory has been read")
            await caller.create(pod_id)
            made += 1
            assert [len(server.calls) for server in hooks.values()] == [made] * len(hooks)

        for first in range(0, HOSTILE_FILES.now, AT_A_TIME):
            for number in range(min(AT_A_TIME, HOSTILE_FILES.now - first)):
                name = f"{chance.choice(NAMES) * chance.randrange(1, 20)}{number}.json"
                chance.choice((spoil, spoil, spoil, damage))(chance, proxy.registrations / name)
            spoil(chance, tmp_path / "spoilt")
            os.replace(tmp_path / "spoilt", proxy.registrations / chance.choice(REGISTERED))
            await create(first)
            for path in proxy.registrations.iterdir():
                if path.name not in REGISTERED:
                    path.unlink()
        for name, server in hooks.items():
            proxy.register(name, server.socket_path, [POINT], timeout="20s")
        await create(-1)
        assert proxy.metrics.gauges["config_invalid_files", ()] == 0
    assert all(b"HOOKED" in request for request in runtime.arrived("create"))
    assert "inside the proxy" not in caplog.text
