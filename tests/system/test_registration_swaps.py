"""Registration files cannot hurt: whatever becomes of them, no call goes without its hook (promise 14).

That is fault matrix C1 to C3.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import BY_NAME
from tests.amounts import HOSTILE_FILES, SWAPS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Caller, Front, Runtime
from tests.system.proxy import ProxyInside, until
from tests.system.times import in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
OTHER_POINT = "PostStopPodSandbox"
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "yes"}))
CALLERS = 4
EFFECT_SECONDS = 0.5


# -- swaps -----------------------------------------------------------------------------------------------------------


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
async def test_no_call_goes_without_its_hook_while_the_file_is_swapped(
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
        await until(lambda: _registered(inside) == [wanted], "it has effect")
        return [time.monotonic() - begun]

    swapped()
    async with first, second, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        end = asyncio.Event()
        async with asyncio.TaskGroup() as load:
            creating = [load.create_task(_create_until(caller, pod_id, end)) for _ in range(CALLERS)]
            await in_time(EFFECT_SECONDS, SWAPS, effect)
            end.set()
        assert proxy.recorder.total("hook_failures") == 0
    asked = runtime.asked("create")
    assert len(first.calls) + len(second.calls) == len(asked) == sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in asked)
    assert first.calls
    assert second.calls


def _registered(proxy: ProxyInside) -> list[tuple[str, float]]:
    return [(plugin.endpoint, plugin.timeout_seconds) for plugin in proxy.app.manager.plugins_for(BY_NAME[POINT])]


async def _create_until(caller: Caller, pod_id: str, end: asyncio.Event) -> int:
    """Create containers, at least one; return how many."""
    made = 0
    while not end.is_set() or not made:
        await caller.create(pod_id)
        made += 1
    return made


# -- hostile files ---------------------------------------------------------------------------------------------------

KEPT = ("kept-1.json", "kept-2.json", "kept-3.json")
"""The files of plugins that are registered when they are spoilt."""
AT_ONCE = 20
VALID = registration.text("/run/none.sock", [OTHER_POINT]).encode()

Hostile = Callable[[random.Random, Path], object]
"""Makes something at a path where nothing is."""


def holding(content: Callable[[random.Random], bytes]) -> Hostile:
    return lambda chance, path: path.write_bytes(content(chance))


def damaged(chance: random.Random) -> bytes:
    """Return a registration that some bytes of were changed: it may still be one."""
    content = bytearray(VALID)
    for _ in range(chance.randrange(1, 5)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def odd_json(chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"[]",
            b"null",
            b'"text"',
            b"1e999",
            b'{"remote-endpoint": 7}',
            b'{"remote-endpoint": "plugin.sock"}',
            b'{"remote-endpoint": "/a", "failure-policy": "Maybe"}',
            b'{"remote-endpoint": "/a", "runtime-hooks": {"PreCreateContainer": true}}',
            b'{"remote-endpoint": "/a", "timeout": "-1s"}',
            b'{"remote-endpoint": "/a\\u0000b"}',
            b"9" * 5000,
            b"[" * 100_000,
            b'{"a":' * 50_000,
        ]
    )


IN_PLACE: list[Hostile] = [
    holding(lambda chance: b""),
    holding(lambda chance: VALID[: chance.randrange(len(VALID) - 1)]),
    holding(lambda chance: bytes(255) + chance.randbytes(chance.randrange(1000))),
    holding(lambda chance: b"\xef\xbb\xbf" + VALID),
    holding(lambda chance: VALID.decode().encode("utf-16")),
    holding(lambda chance: b"[" * chance.choice([1 << 20, (1 << 20) + 1, 3 << 20])),
    holding(odd_json),
    lambda chance, path: os.mkfifo(path),
    lambda chance, path: path.symlink_to("nothing.json"),
    lambda chance, path: path.symlink_to(path.name),
    lambda chance, path: path.symlink_to(chance.choice(["/dev/zero", "/dev/tty", "/proc/self/mem", "/", "."])),
]
"""What can take a file's place by a rename."""
ANYWHERE: list[Hostile] = [
    *IN_PLACE,
    holding(damaged),
    lambda chance, path: path.mkdir(),
    lambda chance, path: _bind(path),
]


def _bind(path: Path) -> None:
    """Leave a socket; its path may be too long to be bound."""
    beside = path.with_name("s")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(beside))
    beside.rename(path)


def odd_name(chance: random.Random) -> str:
    letters = chance.choice(["abc", "äöü", "\n\t", " ", "\u202e\U0001f600", "\udcff"])
    longest = 250 // len(os.fsencode(letters))
    return f"{letters * chance.randrange(1, longest)}{chance.randrange(100)}"[:80] + ".json"


async def test_hostile_files_take_nothing_away(
    front: Front, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    chance, hooks = random.Random(14), HookServer(str(tmp_path / "hooks.sock"), default=HOOKED)
    inside = front.inside(tmp_path)
    for name in KEPT:
        inside.register(name, hooks.socket_path, [POINT])
    made = 0
    async with hooks, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for first in range(0, HOSTILE_FILES.now, AT_ONCE):
            names = {odd_name(chance) for _ in range(min(AT_ONCE, HOSTILE_FILES.now - first))}
            for name in names:
                chance.choice(ANYWHERE)(chance, proxy.registrations / name)
            chance.choice(IN_PLACE)(chance, tmp_path / "spoilt")
            os.replace(tmp_path / "spoilt", proxy.registrations / chance.choice(KEPT))
            await _read_all(proxy, first)
            await caller.create(pod_id)
            made += 1
            assert len(hooks.calls) == len(KEPT) * made
            for name in names:
                _remove(proxy.registrations / name)
        for name in KEPT:
            _remove(proxy.registrations / name)
            proxy.register(name, hooks.socket_path, [POINT], timeout="20s")
        await _read_all(proxy, -1)
        assert proxy.recorder.gauges["config_invalid_files", ()] == 0
        await caller.create(pod_id)
        assert len(hooks.calls) == len(KEPT) * (made + 1)
    assert all(b"HOOKED" in request for request in runtime.asked("create"))
    assert "inside the proxy" not in caplog.text


async def _read_all(proxy: ProxyInside, number: int) -> None:
    """Wait until the directory as it is now has been read."""
    seconds = 1000.0 + number
    proxy.register("~last.json", "/run/none.sock", [OTHER_POINT], timeout=f"{seconds}s")

    def read() -> bool:
        plugins = {plugin.name: plugin for plugin in proxy.app.manager.plugins_for(BY_NAME[OTHER_POINT])}
        return "~last" in plugins and plugins["~last"].timeout_seconds == seconds

    await until(read, "the directory has been read")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()
