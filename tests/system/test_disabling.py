"""A hook server under the policy Fail is disabled: calls go on without it, whatever becomes of it and of the proxy.

Fault matrix H13. The mask's file: tests/plugins/test_mask.py; times: tests/plugins/test_disabling.py.
"""

import asyncio
import json
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.model.hookpoints import BY_NAME
from tests.admin.test_process import UnixConnection, ask
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime
from tests.system.proxy import ProxyInside, ProxyProcess, until
from tests.system.test_hook_failures import Behaving, full_backlog, half_an_answer, silent, stopped

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
    inside = front.inside(tmp_path)
    register(inside, path)
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        manager, pod_id = proxy.app.manager, await caller.run_pod()
        (plugin,) = manager.plugins_for(BY_NAME[POINT])
        held = [asyncio.ensure_future(caller.create(pod_id)) for _ in range(3)]
        await until(lambda: plugin.client._in_flight == 3, "they wait for its answer")
        assert not runtime.asked("create")
        begun = time.monotonic()
        assert await manager.disable("hangs", REASON, "uid 0") == ()
        await asyncio.gather(*held)
        await caller.create(pod_id)
        assert time.monotonic() - begun < WITHIN_SECONDS
        assert len(runtime.asked("create")) == 4
        assert proxy.metrics.total("hook_fail_open", reason="disabled") == 3, "those that were held"
        assert proxy.metrics.total("hook_fail_closed") == 0


async def test_next_create_passes_though_the_server_is_gone(
    front: Front, tmp_path: Path, runtime: Runtime, path: str
) -> None:
    """Its file is written anew, goes and comes, and so does the server, which is not asked before it is enabled."""
    inside = front.inside(tmp_path)
    register(inside, path)
    async with inside as proxy, front.caller(proxy.socket) as caller:
        manager, pod_id = proxy.app.manager, await caller.run_pod()
        with pytest.raises(Failed, match="unreachable"):
            await caller.create(pod_id)
        await manager.disable("hangs", REASON, "uid 0")
        await caller.create(pod_id)
        for number in range(3):
            file = register(proxy, path, f"{number + 1}s")
            await until(lambda: [each.timeout_seconds for each in manager.masked.values()] == [number + 1], "read")  # noqa: B023
            await caller.create(pod_id)
            file.unlink()
            await until(lambda: not manager.masked, "it is gone")
            await caller.create(pod_id)
        register(proxy, path)
        await until(lambda: bool(manager.masked), "it is back")
        async with HookServer(path) as hooks:
            await caller.create(pod_id)
            assert not hooks.calls
            assert await manager.enable("hangs") == ()
            await caller.create(pod_id)
            assert len(hooks.calls) == 1


def posted(proxy: ProxyProcess, target: str, **body: str) -> dict[str, Any]:
    """Return the admin endpoint's answer, which must be good."""
    with closing(UnixConnection(proxy.admin)) as connection:
        connection.request("POST", target, json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200
        return dict(json.load(answer))


async def test_server_is_not_asked_after_kills_of_the_proxy(
    front: Front, tmp_path: Path, runtime: Runtime, path: str
) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy = front.process(tmp_path)
    register(proxy, path)
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        async with front.caller(proxy.socket) as caller:
            held = asyncio.ensure_future(caller.create(await caller.run_pod()))
            await hooks.wait_for_calls(POINT)
            assert await asyncio.to_thread(ask, proxy.admin, "/livez") == (200, "ok")  # starts the admin server
            begun = time.monotonic()
            told = await asyncio.to_thread(posted, proxy, "/hooks/hangs/disable", reason=REASON)
            await held
            assert time.monotonic() - begun < WITHIN_SECONDS
        assert (told["state"], told["disabled"]["reason"], told["notes"]) == ("disabled", REASON, [])
        (file,) = (tmp_path / "state").iterdir()
        assert list(json.loads(file.read_text())["disabled"]) == ["hangs"]
        for number in range(2):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number + 1
            register(proxy, path, f"{number + 1}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {POINT}; it is disabled"
            await until(lambda: proxy.output().count(changed) == number + 1, "it is read", proxy.output)  # noqa: B023
            await creates_at_once(front, proxy)
        _, checks = await asyncio.to_thread(ask, proxy.admin, "/readyz?verbose")
        assert "[~]disabled_plugins degraded: disabled by hand: hangs\n" in checks
        assert len(hooks.calls) == 1
        told = await asyncio.to_thread(posted, proxy, "/hooks/hangs/enable")
        assert told["disabled"] is None
        hooks.default = hookanswers.empty()
        await creates_at_once(front, proxy)
        assert len(hooks.calls) == 2


async def creates_at_once(front: Front, proxy: ProxyProcess) -> None:
    async with front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        begun = time.monotonic()
        await caller.create(pod_id)
        assert time.monotonic() - begun < WITHIN_SECONDS
