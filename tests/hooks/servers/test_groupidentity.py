"""groupidentity: the value by class and annotation, where it is written, and kernels without the file."""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib.cgroups import Cgroups
from runtimeproxy_hooks.lib.koordinator import CPU_QOS
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import HookTester
from runtimeproxy_hooks.servers.groupidentity import FILE, GroupIdentity
from tests.hooks.nodes import annotation, node, qos, tree

Log = pytest.LogCaptureFixture
POD, BURSTABLE = "/kubepods/podx", "/kubepods/burstable/podx"
BEST_EFFORT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
ON = "group-identity: {enable: true}\n"
CHANGED = "group-identity: {enable: true, LSR: 1, LS: 0, BE: 2}\n"
OFF = "group-identity: {enable: false, LSR: 1, LS: 1, BE: 1}\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a hierarchy in which the pods' cgroups have the file."""
    tree(tmp_path / "cpu,cpuacct", {f"{pod[1:]}/{FILE}": "5\n" for pod in (POD, BURSTABLE, BEST_EFFORT)})
    return tmp_path / "cpu,cpuacct"


def hook(top: Path, settings: str = ON) -> HookTester:
    return HookTester(GroupIdentity(node(top, settings), Cgroups(top.parent)))


def cpu_qos(value: Any, enable: Any = True) -> str:
    return annotation("", {"enable": enable, "groupIdentity": value})[""]


VALUES = [
    *((ON, "", BURSTABLE, "", 2), (ON, "", BEST_EFFORT, "", -1)),
    *((CHANGED, name, BEST_EFFORT, "", value) for name, value in (("LSE", 1), ("LSR", 1), ("LS", 0), ("ls", 2))),
    *((CHANGED, name, POD, "", value) for name, value in (("BE", 2), ("SYSTEM", 1), ("", 1))),
    *((OFF, "BE", POD, "", 0), ("", "BE", POD, "", 0)),
    # The annotation applies to LS only.
    *((ON, "LS", POD, cpu_qos(value), value) for value in (-1, 0, 2)),
    *((ON, "LS", POD, '{"ENABLE": true, "groupidentity": -1}', -1), (ON, "LS", POD, '{"enable": true}', 2)),
    *((ON, "LS", POD, text, 0) for text in (cpu_qos(-1, False), cpu_qos(-1, None), '{"groupIdentity": -1}', "{}")),
    *((CHANGED, "LS", POD, cpu_qos(None), 0), (OFF, "LS", POD, cpu_qos(-1), -1), (ON, "BE", POD, "{", -1)),
    *((ON, "LSR", POD, cpu_qos(-1), 2), (ON, "", POD, cpu_qos(-1), 2)),
]


@pytest.mark.parametrize(("settings", "name", "parent", "text", "value"), VALUES)
def test_value_is_by_annotation_or_class(
    top: Path, settings: str, name: str, parent: str, text: str, value: int
) -> None:
    call = {"labels": qos(name), "annotations": {CPU_QOS: text}, "cgroup_parent": parent}
    assert not hook(top, settings).pre_run_pod_sandbox(**call)
    assert (top / parent[1:] / FILE).read_text() == f"{value}\n"


def test_path_outside_is_malformed_and_an_empty_one_is_ignored(top: Path, caplog: Log) -> None:
    with pytest.raises(Malformed, match="cgroup path"):
        hook(top).pre_run_pod_sandbox(cgroup_parent="/kubepods/../../x")
    assert not hook(top).pre_run_pod_sandbox(cgroup_parent="")
    assert not caplog.records


def test_kernel_without_the_file_is_logged_once(top: Path, caplog: Log) -> None:
    for file in top.rglob(FILE):
        file.unlink()
    for settings, messages in ((OFF, 0), (ON, 1)):  # 0 is what such a kernel does anyway
        tester = hook(top, settings)
        for parent in (POD, BURSTABLE):
            assert not tester.pre_run_pod_sandbox(cgroup_parent=parent)
        assert len(caplog.messages) == messages
    assert f"this kernel's cgroups have no {FILE}" in caplog.text
    assert not list(top.rglob(FILE))


def test_absent_cgroups_are_logged_once_and_pods_run(tmp_path: Path, caplog: Log) -> None:
    tester = HookTester(GroupIdentity(None, Cgroups(tmp_path / "cgroup")))
    for parent in (POD, BURSTABLE):
        assert not tester.pre_run_pod_sandbox(cgroup_parent=parent)
    [message] = caplog.messages
    assert message.startswith(f"pods run without a group identity: {tmp_path}/cgroup holds no cgroups")


ADVICE = "run this server as root, with the node's cgroups mounted to be written"
REFUSED, MISSING = f"{{0}}{POD}/{FILE}: Is a directory; {ADVICE}", "its cgroup {0}/kubepods/y is not there"


@pytest.mark.parametrize(("parent", "words"), [(POD, REFUSED), ("/kubepods/y", MISSING)])
def test_failed_write_is_logged_and_the_pod_runs(top: Path, caplog: Log, parent: str, words: str) -> None:
    file = top / POD[1:] / FILE
    file.unlink()
    file.mkdir()
    assert not hook(top).pre_run_pod_sandbox(cgroup_parent=parent, pod="web")
    assert caplog.messages == [f"default/web gets no {FILE}: {words.format(top)}"]
    assert not (top / "kubepods/y").exists()
