"""A hook server under the policy Fail is disabled: calls continue without it, also after kills of the proxy.

Fault matrix H13. The file and the period: tests/plugins/test_disabling.py; calls that wait: tests/core.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.control import call
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.proxy import until

POINT = "PreCreateContainer"


@pytest.mark.slow
async def test_disabled_server_gets_no_call_after_kills_of_the_proxy(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy, path = front.process(tmp_path), str(tmp_path / "hooks.sock")

    async def create() -> None:
        async with front.caller(proxy.socket) as caller:
            await caller.create(await caller.run_pod())

    async def admin(method: str, **params: str) -> Any:
        return await asyncio.to_thread(call, proxy.admin, method, **params)

    proxy.register("hangs.json", path, [POINT], policy="Fail", timeout="10s")
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        held = asyncio.ensure_future(create())
        await hooks.wait_for_calls(POINT)
        answer = await admin("disable", name="hangs", reason="it hangs")
        await held
        assert (answer["state"], answer["disabled"]["reason"]) == ("disabled", "it hangs")
        files = tmp_path / "state"
        await until(lambda: any(files.glob("*.json")), "the state is written, which may be after the answer")
        for number in range(1, 3):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number
            proxy.register("hangs.json", path, [POINT], policy="Fail", timeout=f"{number}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {POINT}; it is disabled"
            await until(lambda: proxy.output().count(changed) == number, "it is read", proxy.output)  # noqa: B023
            await create()
        disabled = {"name": "disabled_plugins", "state": "degraded", "reason": "disabled by hand: hangs"}
        assert disabled in (await admin("readyz"))["checks"]
        assert len(hooks.calls) == 1
        assert (await admin("enable", name="hangs"))["disabled"] is None
        hooks.default = hookanswers.empty()
        await create()
        assert len(hooks.calls) == 2
