"""Hook servers that are replaced; registration files that are added, changed, removed, or hostile.

Whatever happens to a file, no call goes without its hook (promise 14). That is fault matrix C1 to C3, H9.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count, cycle
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import BY_NAME
from tests.amounts import HOOK_SERVERS, HOSTILE_FILES, SWAPS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Caller, Front, Runtime
from tests.system.proxy import ProxyInside, until
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

        async def seconds_to_ask(server: HookServer) -> float:
            begun = time.monotonic()
            await caller.create(pod_id)
            assert len(server.calls) == 1
            return time.monotonic() - begun

        async def first_call() -> list[float]:
            async with HookServer(str(path)) as old:
                took = await seconds_to_ask(old)
                if old_lives:
                    path.rename(tmp_path / "old.sock")
                    async with HookServer(str(path)) as new:
                        took = await seconds_to_ask(new)
                assert len(old.calls) == 1
                return [took]

        await in_time(0.100, HOOK_SERVERS, first_call)


# ---- the directory


def registered(proxy: ProxyInside) -> list[tuple[str, float]]:
    return [(plugin.endpoint, plugin.timeout_seconds) for plugin in proxy.app.manager.plugins_for(BY_NAME[POINT])]


# ---- swaps


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
async def test_no_call_goes_unhooked_while_its_file_is_swapped(
    front: Front, tmp_path: Path, runtime: Runtime, swap: Callable[[Path, int, str], None]
) -> None:
    """Each text names the other of two hook servers, or another time for the same one."""
    first, second = (HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in ("first", "second"))
    inside = front.inside(tmp_path)
    contents = cycle((server.socket_path, float(seconds)) for server in (first, second) for seconds in (20, 21))
    numbers, turns = count(), count()

    def swapped() -> tuple[str, float]:
        endpoint, seconds = next(contents)
        swap(inside.registrations, next(numbers), registration.text(endpoint, [POINT], timeout=f"{seconds}s"))
        return endpoint, seconds

    async def effect() -> list[float]:
        if next(turns) % 2:
            swapped()  # the next one follows at once
        begun, wanted = time.monotonic(), swapped()
        await until(lambda: registered(inside) == [wanted], "it has effect")
        return [time.monotonic() - begun]

    swapped()
    async with first, second, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        end = asyncio.Event()
        async with asyncio.TaskGroup() as load:
            creating = [load.create_task(create_until(caller, pod_id, end)) for _ in range(4)]
            await in_time(0.5, SWAPS, effect)
            end.set()
        assert proxy.metrics.total("hook_failures") == 0
    asked = runtime.asked("create")
    assert len(first.calls) + len(second.calls) == len(asked) == sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in asked)
    assert first.calls
    assert second.calls


async def create_until(caller: Caller, pod_id: str, end: asyncio.Event) -> int:
    """Create containers, at least one; return how many."""
    made = 0
    while not end.is_set() or not made:
        await caller.create(pod_id)
        made += 1
    return made


# ---- hostile files

KEPT = ("kept-1.json", "kept-2.json", "kept-3.json")
"""The files of plugins that are registered when the files are spoilt."""
AT_ONCE = 20
VALID = registration.text("/run/none.sock", [OTHER_POINT]).encode()
CONTENTS: Sequence[Callable[[random.Random], bytes]] = (
    lambda chance: b"",
    lambda chance: VALID[: chance.randrange(len(VALID) - 1)],
    lambda chance: bytes(255) + chance.randbytes(chance.randrange(1000)),
    lambda chance: b"\xef\xbb\xbf" + VALID,
    lambda chance: VALID.decode().encode("utf-16"),
    lambda chance: b"[" * chance.choice([1 << 20, (1 << 20) + 1, 3 << 20]),
)
"""Contents, none of which is a registration."""


def spoil(chance: random.Random, path: Path) -> None:
    """Create something at a path that is not a registration."""
    kind = chance.randrange(10)
    if kind == 0:
        os.mkfifo(path)
    elif kind <= 3:
        path.symlink_to(chance.choice(("nothing.json", path.name, "/dev/zero", "/dev/tty", "/proc/self/mem", "/", ".")))
    else:
        path.write_bytes(chance.choice(CONTENTS)(chance))


def damage(chance: random.Random, path: Path) -> None:
    """Write a registration in which some bytes were changed: it may still be one."""
    content = bytearray(VALID)
    for _ in range(chance.randrange(1, 5)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)


def odd_name(chance: random.Random) -> str:
    letters = chance.choice(["abc", "äöü", "\n\t", " ", "\u202e\U0001f600", "\udcff"])
    longest = 250 // len(os.fsencode(letters))
    return f"{letters * chance.randrange(1, longest)}{chance.randrange(100)}"[:80] + ".json"


async def test_hostile_files_take_no_plugin_away(
    front: Front, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(14)
    hooks = {name: HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in KEPT}
    inside = front.inside(tmp_path)
    for name in KEPT:
        inside.register(name, hooks[name].socket_path, [POINT])
    made = 0
    async with AsyncExitStack() as stack, inside as proxy, front.caller(proxy.socket) as caller:
        for server in hooks.values():
            await stack.enter_async_context(server)
        pod_id = await caller.run_pod()
        for first in range(0, HOSTILE_FILES.now, AT_ONCE):
            names = {odd_name(chance) for _ in range(min(AT_ONCE, HOSTILE_FILES.now - first))}
            for name in names:
                chance.choice((spoil, spoil, spoil, damage))(chance, proxy.registrations / name)
            spoil(chance, tmp_path / "spoilt")
            os.replace(tmp_path / "spoilt", proxy.registrations / chance.choice(KEPT))
            await read_all(proxy, first)
            await caller.create(pod_id)
            made += 1
            assert [len(server.calls) for server in hooks.values()] == [made] * len(KEPT)
            for name in names:
                (proxy.registrations / name).unlink()
        for name in KEPT:
            proxy.register(name, hooks[name].socket_path, [POINT], timeout="20s")
        await read_all(proxy, -1)
        assert proxy.metrics.gauges["config_invalid_files", ()] == 0
        await caller.create(pod_id)
        assert [len(server.calls) for server in hooks.values()] == [made + 1] * len(KEPT)
    assert all(b"HOOKED" in request for request in runtime.asked("create"))
    assert "inside the proxy" not in caplog.text


async def read_all(proxy: ProxyInside, number: int) -> None:
    """Wait until the present directory has been read."""
    seconds = 1000.0 + number
    proxy.register("~last.json", "/run/none.sock", [OTHER_POINT], timeout=f"{seconds}s")

    def read() -> bool:
        plugins = {plugin.name: plugin for plugin in proxy.app.manager.plugins_for(BY_NAME[OTHER_POINT])}
        return "~last" in plugins and plugins["~last"].timeout_seconds == seconds

    await until(read, "the directory has been read")
