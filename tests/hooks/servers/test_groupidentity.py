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
BESTEFFORT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
ON = "group-identity: {enable: true}\n"
OWN = "group-identity: {enable: true, LSR: 1, LS: 0, BE: 2}\n"
OFF = "group-identity: {enable: false, LSR: 1, LS: 1, BE: 1}\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a hierarchy in which the pods' cgroups have the file."""
    tree(tmp_path / "cpu,cpuacct", {f"{pod[1:]}/{FILE}": "5\n" for pod in (POD, BURSTABLE, BESTEFFORT)})
    return tmp_path / "cpu,cpuacct"


def hook(top: Path, config: str = ON) -> HookTester:
    return HookTester(GroupIdentity(node(top, config), Cgroups(top.parent)))


def written(top: Path, pod: str = POD) -> str:
    return (top / pod[1:] / FILE).read_text()


CLASSES = [
    *((ON, name, POD, 2) for name in ("LSE", "LSR", "LS", "")),
    *((ON, "BE", POD, -1), (ON, "", BURSTABLE, 2), (ON, "", BESTEFFORT, -1)),
    *((OWN, "LSE", BESTEFFORT, 1), (OWN, "LSR", BESTEFFORT, 1), (OWN, "LS", BESTEFFORT, 0), (OWN, "BE", POD, 2)),
    *((OWN, "", POD, 1), (OWN, "", BURSTABLE, 0), (OWN, "", BESTEFFORT, 2)),
    *((OWN, "SYSTEM", POD, 1), (OWN, "ls", BESTEFFORT, 2)),
    *((OFF, name, POD, 0) for name in ("LSR", "LS", "BE")),
    *((OFF, "", BURSTABLE, 0), ("", "BE", POD, 0)),
]


@pytest.mark.parametrize(("config", "name", "parent", "value"), CLASSES)
def test_class_decides(top: Path, config: str, name: str, parent: str, value: int) -> None:
    assert not hook(top, config).pre_run_pod_sandbox(labels=qos(name), cgroup_parent=parent)
    assert written(top, parent) == f"{value}\n"


def own(value: Any, enable: Any = True) -> str:
    return annotation("", {"enable": enable, "groupIdentity": value})[""]


ANNOTATED = [
    *((ON, "LS", own(value), value) for value in (-1, 0, 2)),
    *((ON, "LS", '{"ENABLE": true, "groupidentity": -1}', -1), (ON, "LS", '{"enable": true}', 2)),
    *((ON, "LS", text, 0) for text in (own(-1, False), own(-1, None), '{"groupIdentity": -1}', "{}")),
    *((ON, "LS", "null", 2), (ON, "LS", "", 2), (OWN, "LS", own(None), 0)),
    *((OFF, "LS", own(-1), -1), (OFF, "LS", '{"enable": true}', 0)),
    *((ON, "LSR", own(-1), 2), (ON, "BE", own(2), -1), (ON, "", own(-1), 2), (ON, "BE", "{", -1)),
]


@pytest.mark.parametrize(("config", "name", "text", "value"), ANNOTATED)
def test_annotation_counts_for_ls_only(top: Path, config: str, name: str, text: str, value: int) -> None:
    annotations = {CPU_QOS: text}
    hook(top, config).pre_run_pod_sandbox(labels=qos(name), annotations=annotations, cgroup_parent=POD)
    assert written(top) == f"{value}\n"


@pytest.mark.parametrize("text", ["{", own(3), own(-2), own(3, False), own("1"), '{"enable": 1}'])
def test_unreadable_annotation_fails_the_call(top: Path, text: str) -> None:
    with pytest.raises(Malformed, match=f"annotation {CPU_QOS}"):
        hook(top).pre_run_pod_sandbox(labels=qos("LS"), annotations={CPU_QOS: text}, cgroup_parent=POD)
    assert written(top) == "5\n"


def test_path_that_leads_elsewhere_fails_the_call_and_no_path_does_not(top: Path, caplog: Log) -> None:
    with pytest.raises(Malformed, match="cgroup path"):
        hook(top).pre_run_pod_sandbox(cgroup_parent="/kubepods/../../x")
    assert not hook(top).pre_run_pod_sandbox(cgroup_parent="")
    assert not caplog.records


def test_kernel_without_the_file_is_logged_once(top: Path, caplog: Log) -> None:
    for pod in (POD, BURSTABLE, BESTEFFORT):
        (top / pod[1:] / FILE).unlink()
    assert not hook(top, OFF).pre_run_pod_sandbox(cgroup_parent=POD)
    assert not caplog.records  # 0 is what such a kernel does anyway
    asked = hook(top)
    for parent in (POD, BURSTABLE, BESTEFFORT):
        assert not asked.pre_run_pod_sandbox(cgroup_parent=parent)
    [message] = caplog.messages
    assert f"this kernel's cgroups have no {FILE}" in message
    assert not list(top.rglob(FILE))


def test_absent_cgroups_are_logged_once_and_pods_run(tmp_path: Path, caplog: Log) -> None:
    root = tmp_path / "cgroup"
    asked = HookTester(GroupIdentity(None, Cgroups(root)))
    for parent in (POD, BURSTABLE):
        assert not asked.pre_run_pod_sandbox(cgroup_parent=parent)
    absent = f"{root} holds no cgroups: mount the node's there, or set --cgroup-root"
    assert caplog.messages == [f"pods run without a group identity: {absent}; said once only"]


NEEDED = "run this server as root, with the node's cgroups mounted to be written"
REFUSED, MISSING = f"{{0}}{POD}/{FILE}: Is a directory; {NEEDED}", "its cgroup {0}/kubepods/y is not there"


@pytest.mark.parametrize(("parent", "words"), [(POD, REFUSED), ("/kubepods/y", MISSING)])
def test_value_that_cannot_be_written_stops_no_pod(top: Path, caplog: Log, parent: str, words: str) -> None:
    file = top / POD[1:] / FILE
    file.unlink()
    file.mkdir()
    assert not hook(top).pre_run_pod_sandbox(cgroup_parent=parent, pod="web")
    assert caplog.messages == [f"default/web gets no {FILE}: {words.format(top)}"]
    assert not (top / "kubepods/y").exists()
