"""groupidentity: the value by class and annotation, where it is written, and what a lacking kernel gives."""

import argparse
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy_hooks.cgroups import Cgroups
from runtimeproxy_hooks.groupidentity import FILE, GroupIdentity
from runtimeproxy_hooks.koordinator import CPU_QOS, QOS_CLASS
from runtimeproxy_hooks.node import Node
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import HookTester

POD = "/kubepods/podx"
BURSTABLE = "/kubepods/burstable/podx"
BESTEFFORT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
TOPS = {"v1": "cpu,cpuacct", "v2": "."}
ON = "group-identity: {enable: true}\n"
OWN = "group-identity: {enable: true, LSR: 1, LS: 0, BE: 2}\n"
OFF = "group-identity: {enable: false, LSR: 1, LS: 1, BE: 1}\n"


@pytest.fixture(params=TOPS)
def top(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The hierarchy of a tree in which the pods' cgroups have the file."""
    for pod in (POD, BURSTABLE, BESTEFFORT):
        directory = tmp_path / TOPS[request.param] / pod.strip("/")
        directory.mkdir(parents=True)
        (directory / FILE).write_text("5\n")
    if request.param == "v2":
        (tmp_path / "cgroup.controllers").write_text("cpu\n")
    return tmp_path / TOPS[request.param]


def hook(root: Path, config: str = ON) -> GroupIdentity:
    file = root / "node.yaml"
    file.write_text(config)
    return GroupIdentity(Node(file), Cgroups(root if (root / "cgroup.controllers").exists() else root.parent))


def labels(qos: str) -> dict[str, str]:
    return {QOS_CLASS: qos} if qos else {}


@pytest.mark.parametrize(
    ("config", "qos", "parent", "value"),
    [
        (ON, "LSE", POD, 2),
        (ON, "LSR", POD, 2),
        (ON, "LS", POD, 2),
        (ON, "BE", POD, -1),
        (ON, "", POD, 2),
        (ON, "", BURSTABLE, 2),
        (ON, "", BESTEFFORT, -1),
        (OWN, "LSE", BESTEFFORT, 1),
        (OWN, "LSR", BESTEFFORT, 1),
        (OWN, "LS", BESTEFFORT, 0),
        (OWN, "BE", POD, 2),
        (OWN, "", POD, 1),
        (OWN, "", BURSTABLE, 0),
        (OWN, "", BESTEFFORT, 2),
        (OWN, "SYSTEM", POD, 1),
        (OWN, "ls", BESTEFFORT, 2),
        (OFF, "LSR", POD, 0),
        (OFF, "LS", POD, 0),
        (OFF, "BE", POD, 0),
        (OFF, "", BURSTABLE, 0),
        ("", "BE", POD, 0),
    ],
)
def test_the_class_decides(top: Path, config: str, qos: str, parent: str, value: int) -> None:
    assert not HookTester(hook(top, config)).pre_run_pod_sandbox(labels=labels(qos), cgroup_parent=parent)
    assert (top / parent.strip("/") / FILE).read_text() == f"{value}\n"


@pytest.mark.parametrize(
    ("config", "qos", "text", "value"),
    [
        (ON, "LS", '{"enable": true, "groupIdentity": -1}', -1),
        (ON, "LS", '{"enable": true, "groupIdentity": 2}', 2),
        (ON, "LS", '{"enable": true, "groupIdentity": 0}', 0),
        (ON, "LS", '{"ENABLE": true, "groupidentity": -1}', -1),
        (ON, "LS", '{"enable": true}', 2),
        (OWN, "LS", '{"enable": true, "groupIdentity": null}', 0),
        (ON, "LS", '{"enable": false, "groupIdentity": -1}', 0),
        (ON, "LS", '{"enable": null, "groupIdentity": -1}', 0),
        (ON, "LS", '{"groupIdentity": -1}', 0),
        (ON, "LS", "{}", 0),
        (ON, "LS", "null", 2),
        (ON, "LS", "", 2),
        (OFF, "LS", '{"enable": true, "groupIdentity": -1}', -1),
        (OFF, "LS", '{"enable": true}', 0),
        (ON, "LSR", '{"enable": true, "groupIdentity": -1}', 2),
        (ON, "BE", '{"enable": true, "groupIdentity": 2}', -1),
        (ON, "", '{"enable": true, "groupIdentity": -1}', 2),
        (ON, "BE", "{", -1),
    ],
)
def test_the_annotation_counts_for_ls_only(top: Path, config: str, qos: str, text: str, value: int) -> None:
    tester = HookTester(hook(top, config))
    tester.pre_run_pod_sandbox(labels=labels(qos), annotations={CPU_QOS: text}, cgroup_parent=POD)
    assert (top / POD.strip("/") / FILE).read_text() == f"{value}\n"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"enable": true, "groupIdentity": 3}',
        '{"enable": true, "groupIdentity": -2}',
        '{"enable": false, "groupIdentity": 3}',
        '{"enable": true, "groupIdentity": "1"}',
        '{"enable": true, "groupIdentity": 1.0}',
        '{"enable": 1}',
    ],
)
def test_an_annotation_that_cannot_be_read_fails_the_call(top: Path, text: str) -> None:
    with pytest.raises(Malformed, match=f"annotation {CPU_QOS}"):
        HookTester(hook(top)).pre_run_pod_sandbox(labels=labels("LS"), annotations={CPU_QOS: text}, cgroup_parent=POD)
    assert (top / POD.strip("/") / FILE).read_text() == "5\n"


def test_a_path_that_leads_elsewhere_fails_the_call(top: Path) -> None:
    for path in ("/kubepods/../../x", "kubepods/podx", "/"):
        with pytest.raises(Malformed, match="cgroup path"):
            HookTester(hook(top)).pre_run_pod_sandbox(cgroup_parent=path)


def test_a_kernel_without_the_file_is_said_once(top: Path, caplog: pytest.LogCaptureFixture) -> None:
    for pod in (POD, BURSTABLE, BESTEFFORT):
        (top / pod.strip("/") / FILE).unlink()
    tester = HookTester(hook(top, OFF))
    assert not tester.pre_run_pod_sandbox(cgroup_parent=POD)
    assert not caplog.records  # 0 is what such a kernel does anyway
    tester = HookTester(hook(top, ON))
    for parent in (POD, BURSTABLE, BESTEFFORT):
        assert not tester.pre_run_pod_sandbox(cgroup_parent=parent)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"this kernel's cgroups have no {FILE}" in record.getMessage()
    assert not list(top.rglob(FILE))


def test_a_cgroup_that_is_not_there(top: Path, caplog: pytest.LogCaptureFixture) -> None:
    tester = HookTester(hook(top))
    assert not tester.pre_run_pod_sandbox(cgroup_parent="/kubepods/pody", pod="web")
    assert caplog.messages == [f"default/web gets no {FILE}: its cgroup {top}/kubepods/pody is not there"]
    assert not (top / "kubepods/pody").exists()


@pytest.mark.parametrize("make", [lambda root: None, Path.touch, Path.mkdir])
def test_where_no_cgroups_are_mounted_that_is_said_once_and_pods_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    root = tmp_path / "cgroup"
    make(root)
    tester = HookTester(GroupIdentity(None, Cgroups(root)))
    for parent in (POD, BURSTABLE):
        assert not tester.pre_run_pod_sandbox(cgroup_parent=parent)
    absent = f"{root} holds no cgroups: mount the node's there, or set --cgroup-root"
    assert caplog.messages == [f"pods run without a group identity: {absent}; said once only"]


def test_a_pod_of_no_cgroup(top: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not HookTester(hook(top)).pre_run_pod_sandbox(cgroup_parent="")
    assert not caplog.records


def test_a_refusal_is_logged_and_the_pod_runs(top: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = top / POD.strip("/") / FILE
    file.unlink()
    os.mkdir(file)
    assert not HookTester(hook(top)).pre_run_pod_sandbox(cgroup_parent=POD, pod="web")
    said = f"default/web gets no {FILE}: {file}: Is a directory; run this server as root"
    assert caplog.messages == [f"{said}, with the node's cgroups mounted to be written"]


def test_the_flags(tmp_path: Path) -> None:
    parser, made = argparse.ArgumentParser(), GroupIdentity()
    made.add_arguments(parser)
    made.add_arguments(parser)  # as for another hook with the same flags
    (tmp_path / "node.yaml").write_text(OWN)
    made.configure(parser.parse_args(["--node-config", str(tmp_path / "node.yaml"), "--cgroup-root", str(tmp_path)]))
    assert made.node.settings.group_identity.lsr == 1
    assert made.cgroups.root == tmp_path


def test_the_kernel_of_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    """A pod that no kernel has heard of runs, whatever the kernel."""
    assert not HookTester(GroupIdentity()).pre_run_pod_sandbox(cgroup_parent="/runtimeproxy-test-gone", pod="web")
    assert "/runtimeproxy-test-gone is not there" in caplog.text
