"""What the demo looks at: whatever is not as it should be shows in a row, and the machine's own is left alone."""

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.hookpoints import HOOK_POINTS
from runtimeproxy_hooks.resctrl_fs import Resctrl
from runtimeproxy_hooks.sdk.hook import method_name
from runtimeproxy_hooks.sdk.testing import HookTester
from scripts.demonstration import hookservers, processes, rdt, report, scene
from scripts.demonstration.notes import Notes
from scripts.demonstration.pods import Pod, Values, new_pods
from scripts.demonstration.rdt import Groups
from scripts.demonstration.scene import play
from tests.fakes.resctrl import Hardware, StandIn


def notes(log: Path) -> HookTester:
    hook, parser = Notes(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.configure(parser.parse_args([f"--call-log={log}"]))
    return HookTester(hook)


def test_calls_at_every_hook_point_are_noted_without_a_value(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    tester = notes(log)
    for point in HOOK_POINTS:
        call = getattr(tester, method_name(point))
        assert not call(pod="demo", labels={"canary": "canary"}, annotations={"canary": "canary"})
    assert "canary" not in log.read_text()
    noted = [(call.point, call.pod, call.container) for call in report.read_calls(log)]
    assert noted == [
        (point.name, "default/demo", "" if point.name.endswith("PodSandbox") else "main") for point in HOOK_POINTS
    ]


def test_the_servers_are_started_as_a_user_would(tmp_path: Path) -> None:
    servers = hookservers.hook_servers(tmp_path, Groups(Resctrl(), stood_in=False), without_cgroups=False)
    assert [server.shown(tmp_path) for server in servers] == [
        "runtimeproxy-hooks gpu --failure-policy=Fail --order=10",
        "runtimeproxy-hooks batchresource cpunormalization cpuset --node-config=node.yaml --order=20",
        "runtimeproxy-hooks rdt --node-config=node.yaml --order=30",
        f"{Path(sys.executable).name} -m scripts.demonstration.notes --call-log=calls.jsonl --order=90",
    ]
    for server in servers:
        line = server.command_line(tmp_path)
        assert f"--register-dir={processes.registrations(tmp_path)}" in line
        assert f"--endpoint={server.socket(tmp_path)}" in line


def test_on_fakes_the_machines_cgroups_and_resctrl_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = rdt.choose(tmp_path, runtime_is_fake=True)
    assert "RDT:     a STAND-IN of the tests (no container really runs); like the kernel it refuses more than 4" in (
        capsys.readouterr().out
    )
    assert groups.resctrl.root.is_relative_to(tmp_path)
    lines = [
        server.command_line(tmp_path) for server in hookservers.hook_servers(tmp_path, groups, without_cgroups=True)
    ]
    assert [f"--cgroup-root={tmp_path / 'cgroup'}" in line for line in lines] == [False, True, True, False]
    assert lines[2][1:4] == ["-m", "scripts.demonstration.standin", str(groups.resctrl.root)]


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        (Hardware(), ""),
        (Hardware(l3_ids=()), ""),
        (Hardware(mb_ids=()), ""),
        (Hardware(l3_ids=(), mb_ids=()), "offers neither L3 nor MB"),
        (Hardware(mb_ids=(), cbm_mask=0x505), "offers neither L3 nor MB; L3 is not used: its cbm_mask is no unbroken"),
        (Hardware(closids=1), "takes no group: No space left on device"),
    ],
)
def test_the_machines_resctrl_is_shown_where_it_limits_and_takes_groups(
    tmp_path: Path, hardware: Hardware, says: str
) -> None:
    reason = rdt.why_stand_in(StandIn(tmp_path / "resctrl", hardware))
    assert says in reason
    assert bool(says) is bool(reason)
    assert not (tmp_path / "resctrl" / rdt.PROBE).exists()


def test_a_node_without_resctrl_is_shown_a_stand_in(tmp_path: Path) -> None:
    assert "offers neither L3 nor MB" in rdt.why_stand_in(Resctrl(tmp_path / "none"))


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda resctrl, group: resctrl.limit(group, "L3:0=f;1=f\nMB:0=20;1=20\n"), "L3:0=f;1=f MB:0=20;1=20"),
        (lambda resctrl, group: None, "L3:0=7ff;1=7ff MB:0=100;1=100"),
        (lambda resctrl, group: resctrl.remove(group), "-"),
    ],
    ids=["limited", "unlimited", "missing"],
)
def test_a_groups_schemata_are_compared(tmp_path: Path, act: Callable[[StandIn, str], object], found: str) -> None:
    resctrl = StandIn(tmp_path / "resctrl")
    groups = Groups(resctrl, stood_in=True)
    *_, pod = new_pods()
    assert pod.wish
    resctrl.make(pod.group)
    act(resctrl, pod.group)
    assert groups.expected(pod.wish) == "L3:0=f;1=f MB:0=20;1=20"
    assert groups.schemata(pod.group, pod.wish) == found


def test_groups_that_are_left_are_removed(tmp_path: Path) -> None:
    resctrl = StandIn(tmp_path / "resctrl")
    resctrl.make("one")
    resctrl.make("other")
    with pytest.raises(SystemExit), Groups(resctrl, stood_in=True).removed(["one", "none"]):
        raise SystemExit
    assert not resctrl.exists("one")
    assert resctrl.exists("other")


class EmptyKubelet:
    """A kubelet in whose containers no file and no process is there."""

    def run_pod(self, pod: Pod) -> str:
        return pod.name

    def create(self, pod_id: str, pod: Pod) -> str:
        return f"{pod_id}-main"

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        return 1, b""

    def rdt_class(self, container_id: str) -> str:
        return ""

    def cgroup(self, pod: Pod, container_id: str) -> str:
        return f"/no-such-pod/{container_id}"

    def update(self, container_id: str, resources: Values) -> None:
        raise AssertionError("nothing is updated where nothing was read")

    def start(self, container_id: str) -> None: ...

    stop = remove = stop_pod = remove_pod = start


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(StandIn(tmp_path / "resctrl"), stood_in=True)


def test_a_file_that_can_not_be_read_inside_is_a_failure(groups: Groups) -> None:
    with pytest.raises(processes.DemoError, match="cat /proc/1/environ ended with exit code 1"):
        play(EmptyKubelet(), new_pods(), groups)


def test_a_pod_without_its_group_is_not_as_it_should_be(groups: Groups) -> None:
    *_, pod = new_pods()
    effects = play(EmptyKubelet(), [pod], groups)
    assert [(effect.what, effect.inside) for effect in effects if not effect.true] == [
        ("rdt-class in the create", "-"),
        ("schemata of its group (stand-in)", "-"),
        ("threads in its group (stand-in), moved after the start", "0 of 0"),
    ]


def test_a_group_that_outlives_its_pod_is_not_as_it_should_be(groups: Groups) -> None:
    *_, pod = new_pods()
    groups.resctrl.make(pod.group)
    *_, left = play(EmptyKubelet(), [pod], groups)
    assert (left.inside, left.true) == ("still there", False)


def test_some_threads_of_a_container_are_not_enough(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, pod = new_pods()
    groups.resctrl.make(pod.group)
    monkeypatch.setattr(scene.cgroups, "processes", lambda cgroup: {os.getpid()})
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    groups.resctrl.move(pod.group, os.getpid())
    [effect] = [effect for effect in play(EmptyKubelet(), [pod], groups) if effect.what.startswith("threads")]
    over.set()
    other.join()
    assert not effect.true
    assert effect.inside.startswith("1 of ")
