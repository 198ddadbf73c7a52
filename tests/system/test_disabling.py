"""A hook server under the policy Fail is disabled: calls continue without it, also after kills of the proxy.

Fault matrix H13. The file and the period: tests/plugins/test_disabling.py; calls that wait: tests/core.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.control import call
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Front, Runtime
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
REASON = "it hangs since the update"


def is_written(*notes: str) -> bool:
    """Return whether the state was written, or is late only because the disk is slow."""
    return all(note.endswith(" does not answer") for note in notes)


async def test_disabled_server_gets_no_call_after_kills_of_the_proxy(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy, path = front.process(tmp_path), str(tmp_path / "hooks.sock")

    def register(timeout: str) -> None:
        proxy.register("hangs.json", path, [POINT], policy="Fail", timeout=timeout)

    async def create() -> None:
        async with front.caller(proxy.socket) as caller:
            await caller.create(await caller.run_pod())

    async def admin(method: str, **params: str) -> Any:
        return await asyncio.to_thread(call, proxy.admin, method, **params)

    def written(proxy: ProxyProcess) -> list[Path]:
        return list((proxy.path / "state").glob("*.json"))

    register("10s")
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        held = asyncio.ensure_future(create())
        await hooks.wait_for_calls(POINT)
        answer = await admin("disable", name="hangs", reason=REASON)
        await held
        assert (answer["state"], answer["disabled"]["reason"]) == ("disabled", REASON)
        assert is_written(*answer["notes"])
        await until(lambda: bool(written(proxy)), "the state is written, which may be after the answer")
        (file,) = written(proxy)
        assert list(json.loads(file.read_text())["disabled"]) == ["hangs"]
        for number in range(2):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number + 1
            register(f"{number + 1}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {POINT}; it is disabled"
            await until(lambda: proxy.output().count(changed) == number + 1, "it is read", proxy.output)  # noqa: B023
            await create()
        disabled = {"name": "disabled_plugins", "state": "degraded", "reason": "disabled by hand: hangs"}
        assert disabled in (await admin("readyz"))["checks"]
        assert len(hooks.calls) == 1
        assert (await admin("enable", name="hangs"))["disabled"] is None
        hooks.default = hookanswers.empty()
        await create()
        assert len(hooks.calls) == 2
