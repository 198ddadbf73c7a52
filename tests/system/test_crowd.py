"""Very many calls at the same time: none fails (fault matrix S3)."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.fronts import Front, Runtime

TOGETHER_SECONDS = 1.0
"""The runtime answers after this time: by then it has all calls."""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_crowd_of_calls_is_answered(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, verb: str
) -> None:
    """1,000 streams of one connection, or in Docker mode 200 connections; a create calls a hook server."""
    count = 1_000 if front is CRI else 200
    proxy = front.process(tmp_path, log_level="info", hook_budget="60s")
    proxy.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        runtime.set_fault(verb, delay_seconds=TOGETHER_SECONDS)
        if verb == "ping":
            await asyncio.gather(*(caller.act("ping") for _ in range(count)))
        else:
            ids = await asyncio.gather(*(caller.create(pod_id) for _ in range(count)))
            assert len(set(ids)) == count
        assert len(runtime.arrived(verb)) >= count
    assert "broke the protocol" not in proxy.output()
