"""A hook server's socket that somebody else could have made is not dialled: a failure under the policy.

That is fault matrix X6.
"""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime

pytestmark = [pytest.mark.slow, pytest.mark.engine]
"""Only root can give a file to another user."""

POINT = "PreCreateContainer"
NOBODY = 65534


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    (tmp_path / "hooks").mkdir(mode=0o755)
    async with HookServer(str(tmp_path / "hooks" / "hooks.sock")) as server:
        yield server


def everybodys_folder(path: Path) -> None:
    path.parent.chmod(0o1777)


def nobodys_folder(path: Path) -> None:
    os.chown(path.parent, NOBODY, NOBODY)


def nobodys_socket(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def put_right(path: Path) -> None:
    path.parent.chmod(0o755)
    for mine in (path.parent, path):
        os.chown(mine, 0, 0)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("spoil", [everybodys_folder, nobodys_folder, nobodys_socket])
async def test_it_is_refused_until_it_is_put_right(
    front: Front,
    tmp_path: Path,
    runtime: Runtime,
    hooks: HookServer,
    policy: str,
    spoil: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = Path(hooks.socket_path)
    spoil(path)
    inside = front.inside(tmp_path)
    inside.register("theirs.json", path, [POINT], policy=policy)
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for _ in range(10):
            try:
                await caller.create(pod_id)
            except Failed as error:
                refused = error
        failed = {"plugin": "theirs", "hook": POINT, "reason": "untrusted_socket"}
        assert proxy.recorder.counted("hook_failures", **failed) == 10
        assert proxy.recorder.counted("hook_fail_open", **failed) == (10 if policy == "Ignore" else 0)
        assert len(runtime.asked("create")) == (10 if policy == "Ignore" else 0)
        assert not hooks.calls
        if policy == "Fail":
            assert refused.status == front.failed
            assert f"'theirs' at {POINT}: untrusted_socket: {path.parent}" in refused.text
        assert f"untrusted_socket: {path.parent}" in caplog.text
        put_right(path)
        await caller.create(pod_id)
        assert len(hooks.calls) == 1
