"""What a hook server cannot do: fill the proxy's memory by an answer, or keep its own pod from coming up.

That is fault matrix H6 and H12.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import POD, Failed, Front, Runtime
from tests.system.hostile import Process

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
CAPS = {"4MiB": 4 << 20, "2MiB": 2 << 20}
"""The longest answer that is taken: by default, and as it is set."""
HUGE_BYTES = 40 << 20


@pytest.mark.parametrize("limit", CAPS)
async def test_a_huge_answer_costs_no_more_than_three_times_the_longest_that_is_taken(
    front: Front, tmp_path: Path, runtime: Runtime, limit: str
) -> None:
    hooks, proxy = HookServer(str(tmp_path / "hooks.sock")), front.process(tmp_path, hook_answer_limit=limit)
    proxy.register("huge.json", hooks.socket_path, [POINT])
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(HUGE_BYTES)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * CAPS[limit]
    assert f"bad_answer: the answer is longer than {CAPS[limit]} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls) == len(runtime.asked("create")) == 4


async def test_a_hook_servers_own_pod_comes_up_while_it_is_down(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    inside = front.inside(tmp_path)
    inside.register("own.json", tmp_path / "not-yet.sock", policy="Fail")
    own = replace(POD, labels={"runtimeproxy.koordinator.sh/skip-hookserver": "true"})
    async with inside as proxy, front.caller(proxy.socket) as caller:
        container_id = await caller.create(await caller.run_pod(own))
        await caller.act("start", container_id)
        with pytest.raises(Failed, match="unreachable"):
            await caller.run_pod()
        assert proxy.recorder.total("hook_failures") == 1
    assert runtime.container_ids() == [container_id]
