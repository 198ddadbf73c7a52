"""No trouble of a node stops a pod, and each is told once."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy_hooks.koordinator import QOS_CLASS
from runtimeproxy_hooks.rdt import RDT_CLASS, Rdt
from runtimeproxy_hooks.resctrl_fs import Resctrl
from tests.fakes.resctrl import Hardware, StandIn
from tests.hooks.rdt_node import EVERY_CLASS, POD_GROUP, SMALL, Node, Refusing, annotated, threads


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: Resctrl(root), "offers neither L3 nor MB"),
        (lambda root: StandIn(root, Hardware(l3_ids=(), mb_ids=())), "offers neither L3 nor MB"),
        (lambda root: StandIn(root, Hardware(cbm_mask=0b1011, mb_ids=())), "cbm_mask is no unbroken row of ones"),
    ],
)
def test_a_node_without_rdt_says_so_at_its_start_and_runs_pods(
    node: Node, tmp_path: Path, make: Callable[[Path], Resctrl], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "none"
    tester = node.hook(classes=EVERY_CLASS, resctrl=make(root))
    assert words in caplog.text
    assert f"mount -t resctrl resctrl {root}" in caplog.text
    caplog.clear()
    for annotations in (annotated(SMALL), annotated("no JSON"), {}):
        assert not tester.pre_run_pod_sandbox(annotations=annotations, labels={QOS_CLASS: "LS"})
        assert not tester.pre_create_container(annotations=annotations, labels={QOS_CLASS: "LS"})
        tester.post_start_container(annotations=annotations, labels={QOS_CLASS: "LS"})
        tester.post_stop_pod_sandbox(annotations=annotations, labels={QOS_CLASS: "LS"})
    assert not caplog.records
    assert not list(root.glob("koordlet-*"))


def test_a_node_that_can_limit_says_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.hook()
    assert not caplog.records


def test_the_root_is_the_flags_where_nothing_is_injected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    hook = Rdt()
    hook.add_arguments(parser)
    hook.configure(parser.parse_args(["--resctrl-root", str(tmp_path / "here")]))
    assert hook.resctrl.root == tmp_path / "here"
    assert str(tmp_path / "here") in caplog.text


def test_resctrl_that_is_mounted_later_is_used(node: Node, tmp_path: Path) -> None:
    root = tmp_path / "later"
    resctrl = StandIn(root)
    hidden = root.rename(tmp_path / "hidden")
    tester = node.hook(resctrl=resctrl)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    hidden.rename(root)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    assert resctrl.exists(POD_GROUP)


def test_classes_that_have_run_out_are_told_once_and_pods_run(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    for number in range(5):
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL), uid=f"pod-{number}")
    changed = [
        tester.pre_create_container(annotations=annotated(SMALL), uid=f"pod-{number}").annotations
        for number in range(5)
    ]
    assert changed == [{RDT_CLASS: f"koordlet-pod-{number}"} for number in range(3)] + [{}, {}]
    assert not tester.pre_create_container(labels={QOS_CLASS: "LS"})
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels={QOS_CLASS: "LS"})
    assert caplog.text.count("no class of service is free") == 1
    assert len(caplog.records) == 1
    tester.post_stop_pod_sandbox(uid="pod-0")
    assert tester.pre_create_container(labels={QOS_CLASS: "LS"}).annotations == {RDT_CLASS: "LS"}


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (("mkdir",), "no group can be made: Operation not permitted"),
        (("schemata",), "limits are refused: Operation not permitted"),
        (("schemata", "rmdir"), "limits are refused: Operation not permitted"),
    ],
)
def test_a_kernel_that_refuses_a_group_is_told_once_and_pods_run(
    node: Node, refused: tuple[str, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    resctrl = Refusing(node.root)
    resctrl.refused = refused
    tester = node.hook(resctrl=resctrl)
    for _ in range(2):
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
        tester.pre_create_container(annotations=annotated(SMALL))
    assert caplog.text.count(words) == 1
    assert len(caplog.records) == 1
    assert node.groups() == ([POD_GROUP] if "rmdir" in refused else []), "no class is wasted on a group without limits"


def test_a_class_keeps_its_limits_where_new_ones_are_refused(node: Node) -> None:
    resctrl = Refusing(node.root)
    tester = node.hook(classes={"LS": {"enable": True, "mb": 50}}, resctrl=resctrl)
    tester.pre_create_container(labels={QOS_CLASS: "LS"})
    resctrl.refused = ("schemata",)
    assert tester.pre_create_container(labels={QOS_CLASS: "LS"}).annotations == {RDT_CLASS: "LS"}
    assert node.schemata("LS") == "L3:0=7ff;1=7ff\nMB:0= 50;1= 50\n"


class Overtaken(Refusing):
    """A stand-in where somebody else makes the group between the look for it and the making."""

    def make(self, group: str) -> bool:
        super().make(group)
        return super().make(group)


@pytest.mark.parametrize("refused", [(), ("schemata",)])
def test_a_group_that_another_thread_made_meanwhile_is_used_and_kept(node: Node, refused: tuple[str, ...]) -> None:
    resctrl = Overtaken(node.root)
    resctrl.refused = refused
    changed = node.hook(resctrl=resctrl).pre_create_container(annotations=annotated(SMALL))
    assert changed.annotations == {RDT_CLASS: POD_GROUP}
    assert node.groups() == [POD_GROUP]


def test_a_kernel_that_refuses_threads_is_told_once_and_pods_run(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    resctrl = Refusing(node.root)
    resctrl.refused = ("tasks",)
    tester = node.hook(resctrl=resctrl)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    with threads(2) as tids:
        node.container(*tids)
        for _ in range(2):
            tester.post_start_container(annotations=annotated(SMALL))
    assert len(caplog.records) == 1
    assert "threads of a container stay where they are: Operation not permitted" in caplog.text


def test_a_group_that_cannot_be_removed_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    resctrl = Refusing(node.root)
    resctrl.refused = ("rmdir",)
    tester = node.hook(resctrl=resctrl)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    for _ in range(2):
        tester.post_stop_pod_sandbox(annotations=annotated(SMALL))
    assert len(caplog.records) == 1
    assert "the group of a pod that has ended stays" in caplog.text


def test_cgroups_that_are_not_there_are_told_once(node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tester = node.hook("--cgroup-root", str(tmp_path / "nothing"))
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    for _ in range(2):
        tester.post_start_container(annotations=annotated(SMALL))
    assert len(caplog.records) == 1
    assert f"{tmp_path}/nothing holds no cgroups: mount the node's there, or set --cgroup-root" in caplog.text
