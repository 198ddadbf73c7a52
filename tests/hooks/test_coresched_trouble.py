"""coresched where the node lacks what it needs: no cgroups to look at."""

from pathlib import Path

import pytest

from runtimeproxy_hooks.cgroups import Cgroups
from runtimeproxy_hooks.coresched import CoreSched
from runtimeproxy_hooks.koordinator import CORE_SCHED_GROUP
from runtimeproxy_hooks.sdk.testing import HookTester

BLUE = {CORE_SCHED_GROUP: "blue"}


class Prctl:
    """Counts its calls and gives one cookie."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, command: int, pid: int, scope: int) -> int:
        self.calls += 1
        return 7


@pytest.fixture
def prctl() -> Prctl:
    return Prctl()


def test_where_no_cgroups_are_mounted_that_is_said_once_and_containers_run(
    tmp_path: Path, prctl: Prctl, caplog: pytest.LogCaptureFixture
) -> None:
    root, state = tmp_path / "cgroup", tmp_path / "state.json"
    tester = HookTester(CoreSched(Cgroups(root), state, prctl))
    for _ in range(2):
        assert not tester.post_start_container(labels=BLUE, cgroup_parent="/podx", container_id="c1")
        assert not tester.post_stop_pod_sandbox(cgroup_parent="/podx")
    absent = f"{root} holds no cgroups: mount the node's there, or set --cgroup-root"
    assert caplog.messages == [f"containers get no cookie: {absent}; said once only"]
    assert prctl.calls == 0


def test_cgroups_that_are_mounted_later_are_seen(tmp_path: Path, prctl: Prctl) -> None:
    root, state = tmp_path / "cgroup", tmp_path / "state.json"
    state.write_text('{"name": {"cookie": 7, "members": ["/podx/c1"]}}')
    tester = HookTester(CoreSched(Cgroups(root), state, prctl))
    tester.post_stop_pod_sandbox(cgroup_parent="/pody")
    assert "/podx/c1" in state.read_text()
    (root / "podx/c1").mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    (root / "podx/c1/cgroup.procs").write_text("11\n")
    tester.post_start_container(labels=BLUE, cgroup_parent="/podx", container_id="c1")
    assert prctl.calls
    assert state.read_text().count("/podx/c1") == 2
