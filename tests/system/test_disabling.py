"""A hook server under the policy Fail is disabled: calls go on without it, whatever becomes of it and of the proxy.

Fault matrix H13. The mask's file: tests/plugins/test_disabling_mask.py; times: tests/plugins/test_disabling.py.
"""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from runtimeproxy.model.hookpoints import BY_NAME
from tests.control import call
from tests.fakes import hookanswers
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.proxy import ProxyInside, ProxyProcess, until
from tests.system.test_hook_failures import Behaving, half_an_answer, silent, stopped
from tests.system.times import in_rounds

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
WITHIN_SECONDS = 0.5
REASON = "it hangs since the update"


def register(proxy: ProxyInside | ProxyProcess, path: str, timeout: str = "10s") -> Path:
    return proxy.register("hangs.json", path, [POINT], policy="Fail", timeout=timeout)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "hooks.sock")


@pytest.mark.parametrize("hanging", [silent, full_backlog, stopped, half_an_answer])
async def test_held_and_later_creates_go_on_within_half_a_second(
    front: Front, tmp_path: Path, runtime: Runtime, path: str, hanging: Behaving
) -> None:
    inside, took = front.inside(tmp_path), list[float]()
    register(inside, path)
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        manager, pod_id = proxy.app.manager, await caller.run_pod()

        async def one() -> float:
            (plugin,) = manager.plugins_for(BY_NAME[POINT])
            asked = len(runtime.asked("create"))
            held = [asyncio.ensure_future(caller.create(pod_id)) for _ in range(3)]
            await until(lambda: plugin.client._in_flight == 3, "they wait for its answer")
            assert len(runtime.asked("create")) == asked
            begun = time.monotonic()
            disabling = asyncio.ensure_future(manager.disable("hangs", REASON, "uid 0"))  # it waits for the disk
            await asyncio.gather(*held)
            await caller.create(pod_id)
            took.append(time.monotonic() - begun)
            assert written_down(*await disabling)
            assert len(runtime.asked("create")) == asked + 4
            await manager.enable("hangs")
            return took[-1]

        await in_rounds(WITHIN_SECONDS, one)
        assert proxy.metrics.total("hook_fail_open", reason="disabled") == 3 * len(took), "those that were held"
        assert proxy.metrics.total("hook_fail_closed") == 0


async def test_disabled_server_gets_no_call_after_kills_of_the_proxy(
    front: Front, tmp_path: Path, runtime: Runtime, path: str
) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy = front.process(tmp_path)
    register(proxy, path)
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        async with front.caller(proxy.socket) as caller:
            held = asyncio.ensure_future(caller.create(await caller.run_pod()))
            await hooks.wait_for_calls(POINT)
            answer = await asyncio.to_thread(call, proxy.admin, "disable", name="hangs", reason=REASON)
            await held
        assert (answer["state"], answer["disabled"]["reason"]) == ("disabled", REASON)
        assert written_down(*answer["notes"])
        await until(lambda: written(proxy), "it is written down")
        (file,) = written(proxy)
        assert list(json.loads(file.read_text())["disabled"]) == ["hangs"]
        for number in range(2):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number + 1
            register(proxy, path, f"{number + 1}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {POINT}; it is disabled"
            await until(lambda: proxy.output().count(changed) == number + 1, "it is read", proxy.output)  # noqa: B023
            await create(front, proxy)
        checks = (await asyncio.to_thread(call, proxy.admin, "readyz"))["checks"]
        disabled = {"name": "disabled_plugins", "state": "degraded", "reason": "disabled by hand: hangs"}
        assert disabled in checks
        assert len(hooks.calls) == 1
        answer = await asyncio.to_thread(call, proxy.admin, "enable", name="hangs")
        assert answer["disabled"] is None
        hooks.default = hookanswers.empty()
        await create(front, proxy)
        assert len(hooks.calls) == 2


def written_down(*notes: str) -> bool:
    """Return whether nothing kept it from being written down but a disk that is slower than the answer waits."""
    return all(note.endswith(" does not answer") for note in notes)


def written(proxy: ProxyProcess) -> list[Path]:
    """Return the files that say what is disabled: on a slow disk they may come after the answer."""
    return list((proxy.path / "state").glob("*.json"))


async def create(front: Front, proxy: ProxyProcess) -> None:
    """Create a container, which fails if the hook server that hangs is asked."""
    async with front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
