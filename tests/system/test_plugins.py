"""Several plugins, restarts of a hook server, registration files that come, change, go and are broken."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import BY_NAME
from tests.amounts import CHANGES, HOOK_SERVERS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Caller, Front, Runtime
from tests.system.proxy import until, wait_until
from tests.system.times import in_time

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
EFFECT_SECONDS = 0.5
FIRST_CALL_SECONDS = 0.100


def sets(**fields: object) -> hookanswers.Answer:
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(**fields))  # type: ignore[arg-type]


async def test_plugins_are_asked_in_the_order_of_their_files(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    order: list[str] = []
    inside = front.inside(tmp_path)
    servers = {name: HookServer(str(tmp_path / f"{name}.sock")) for name in ("30-last", "10-first", "20-second")}
    for name, server in servers.items():
        server.default = _noting(order, name, sets(container_envs={"WHO": name, name: "was here"}))
        inside.register(f"{name}.json", server.socket_path, [POINT])
    first, second, last = servers["10-first"], servers["20-second"], servers["30-last"]
    async with first, second, last, inside as proxy, front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
    assert order == ["10-first", "20-second", "30-last"]
    assert second.calls[0].request.container_envs["WHO"] == "10-first"
    assert last.calls[0].request.container_envs["WHO"] == "20-second"
    assert [(key, value) for key, value in runtime.envs() if key == "WHO"] == [("WHO", "30-last")]
    assert {key for key, _ in runtime.envs()} == {"A", "B", "WHO", "10-first", "20-second", "30-last"}
    assert proxy.recorder.counted("hook_conflicts", hook=POINT, loser="10-first", winner="20-second") == 1
    assert proxy.recorder.counted("hook_conflicts", hook=POINT, loser="20-second", winner="30-last") == 1
    assert proxy.recorder.total("hook_conflicts") == 2


def _noting(order: list[str], name: str, then: hookanswers.Answer) -> hookanswers.Answer:
    async def answer(call: hookanswers.HookCall) -> bytes:
        order.append(name)
        return await then(call)

    return answer


async def test_a_hook_server_that_was_restarted_is_asked_at_the_next_call(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    path = str(tmp_path / "hooks.sock")
    inside = front.inside(tmp_path)
    inside.register("plugin.json", path, [POINT], policy="Fail")
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def first_call() -> list[float]:
            async with HookServer(path) as server:
                took = await _seconds_to_create(caller, pod_id)
                assert len(server.calls) == 1
            return [took]

        await in_time(FIRST_CALL_SECONDS, HOOK_SERVERS, first_call)


async def _seconds_to_create(caller: Caller, pod_id: str) -> float:
    begun = time.monotonic()
    await caller.create(pod_id)
    return time.monotonic() - begun


async def test_a_socket_that_was_replaced_is_dialled_at_the_next_call(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    path = tmp_path / "hooks.sock"
    inside = front.inside(tmp_path)
    inside.register("plugin.json", path, [POINT], policy="Fail")
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def first_call() -> list[float]:
            async with HookServer(str(path)) as old:
                await caller.create(pod_id)
                path.rename(tmp_path / "old.sock")  # the old server lives on, and its connection too
                async with HookServer(str(path)) as new:
                    took = await _seconds_to_create(caller, pod_id)
                    assert (len(old.calls), len(new.calls)) == (1, 1)
            return [took]

        await in_time(FIRST_CALL_SECONDS, HOOK_SERVERS, first_call)


# ---- files


def half_written(file: Path) -> None:
    file.write_text('{"remote-endpoint": "/run/x.sock", "runti')


def empty(file: Path) -> None:
    file.write_bytes(b"")


def huge(file: Path) -> None:
    file.write_bytes(b'{"runtime-hooks": "' + b"x" * (8 << 20) + b'"}')


def binary(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 16)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


BROKEN = (directory, fifo, half_written, empty, huge, binary)
"""Those that take the file away for a moment are the first."""


@contextmanager
def held_still(pid: int) -> Iterator[None]:
    """Stop a process for the block."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"), "the process stands still")
    yield
    os.kill(pid, signal.SIGCONT)


async def test_a_broken_file_keeps_the_last_good_state(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """All kinds at once, each a plugin of its own: they are all asked as before.

    The proxy is held still meanwhile, so that it sees no file away, however long that is.
    """
    proxy = front.process(tmp_path)
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks:
        files = [proxy.register(f"{broken.__name__}.json", hooks.socket_path, [POINT]) for broken in BROKEN]
        async with proxy, front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
            with held_still(proxy.pid):
                for broken, file in zip(BROKEN, files, strict=True):
                    broken(file)
            # They are read before this one: files are read in the order of their names.
            proxy.register("other.json", hooks.socket_path, ["PreStartContainer"])
            await asyncio.to_thread(proxy.wait_for_registration, "other.json")
            await caller.create(pod_id)
            assert len(hooks.calls_of(POINT)) == len(BROKEN)
            told = [file.name for file in files if f"registration rejected: {file.name}" in proxy.output()]
            assert told == [file.name for file in files]


async def test_nothing_but_files_that_end_in_json_is_read(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    inside = front.inside(tmp_path)
    for name in (".hidden.json", "koordlet.json.bak", "README"):
        inside.register(name, tmp_path / "none.sock", policy="Fail")
    inside.register("real.json", tmp_path / "hooks.sock", [POINT])
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks, inside as proxy, front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
    assert len(hooks.calls) == 1


Step = Callable[[Path], None]
"""A change to the folder of registrations."""


def _content(*points: str) -> str:
    return registration.text("/run/none.sock", points)


def _link_swap(folder: Path) -> None:
    """Change files as a ConfigMap's volume does: ``..data`` is a link to a folder, replaced by a rename."""
    data = folder / "..version-2"
    data.mkdir()
    (data / "plugin.json").write_text(_content(POINT))
    (folder / "..data.new").symlink_to(data.name)
    (folder / "..data.new").rename(folder / "..data")
    (folder / "plugin.json").unlink(missing_ok=True)
    (folder / "plugin.json").symlink_to("..data/plugin.json")


def _replace_folder(folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.mkdir()
    (folder / "plugin.json").write_text(_content(POINT))


def _rename_over(folder: Path) -> None:
    registration.write(folder, "plugin.json", _content(POINT))


def _write_in_place(folder: Path) -> None:
    (folder / "plugin.json").write_text(_content(POINT))


def _remove(folder: Path) -> None:
    (folder / "plugin.json").unlink()


STEPS: dict[str, tuple[str | None, Step, bool]] = {
    "comes": (None, _write_in_place, True),
    "renamed over": ("PreStartContainer", _rename_over, True),
    "written in place": ("PreStartContainer", _write_in_place, True),
    "goes": (POINT, _remove, False),
    "link is swapped": ("PreStartContainer", _link_swap, True),
    "folder is replaced": ("PreStartContainer", _replace_folder, True),
}
"""What the file says before, if it is there; the change; whether the plugin is registered for the point then."""


@pytest.mark.parametrize("step", STEPS)
async def test_a_change_of_the_files_is_in_effect_within_500_ms(front: Front, tmp_path: Path, step: str) -> None:
    before, change, registered = STEPS[step]
    folders = (tmp_path / str(number) for number in count())

    async def effect() -> list[float]:
        folder = front.inside(next(folders))
        if before:
            registration.write(folder.registrations, "plugin.json", _content(before))
        async with folder as proxy:
            begun = time.monotonic()
            change(proxy.registrations)
            manager = proxy.app.manager
            await until(lambda: bool(manager.plugins_for(BY_NAME[POINT])) == registered, "it is in effect")
            return [time.monotonic() - begun]

    await in_time(EFFECT_SECONDS, CHANGES, effect)


async def test_a_missing_folder_is_watched_for(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    missing = tmp_path / "not" / "yet"
    proxy = front.process(tmp_path, hookserver_config_dir=str(missing))
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        missing.mkdir(parents=True)
        registration.write(missing, "plugin.json", registration.text(hooks.socket_path, [POINT]))
        await asyncio.to_thread(proxy.wait_for_registration, "plugin.json")
        await caller.create(pod_id)
    assert len(hooks.calls) == 1
