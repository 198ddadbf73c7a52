"""How a container gets into its group: the runtime is told before it starts, and its threads are moved after."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy_hooks.koordinator import QOS_CLASS
from runtimeproxy_hooks.rdt import RDT_CLASS, ROUNDS, Rdt
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference
from tests.engines import cgroups
from tests.fakes.resctrl import StandIn
from tests.hooks.rdt_node import EVERY_CLASS, POD_GROUP, SMALL, Node, Watching, annotated, threads


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_runtime_is_told_before_the_container_starts(node: Node) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    changed = tester.pre_create_container(annotations=annotated(SMALL), env={"A": "b"}, resources={"cpu_shares": 2})
    assert changed == Difference(annotations={RDT_CLASS: POD_GROUP})


def test_the_runtime_is_not_told_where_the_flag_says_so(node: Node) -> None:
    tester = node.hook("--no-rdt-class-annotation", classes=EVERY_CLASS)
    assert not tester.pre_create_container(labels={QOS_CLASS: "LS"})
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels={QOS_CLASS: "LS"})
        assert node.resctrl.tasks("LS") == set(tids)


def test_the_help_says_what_the_annotation_needs() -> None:
    parser = argparse.ArgumentParser()
    Rdt().add_arguments(parser)
    said = " ".join(parser.format_help().split())
    assert "ignore_rdt_not_enabled_errors" in said
    assert "--no-rdt-class-annotation" in said


def test_a_group_that_was_removed_meanwhile_is_made_again(node: Node) -> None:
    """Also one of a pod whose sandbox started while this server did not run."""
    tester = node.hook()
    assert tester.pre_create_container(annotations=annotated(SMALL)).annotations == {RDT_CLASS: POD_GROUP}
    assert node.schemata(POD_GROUP) == "L3:0=00f;1=00f\nMB:0= 20;1= 20\n"


def test_a_restarted_server_finds_groups_on_disk(node: Node) -> None:
    node.hook().pre_run_pod_sandbox(annotations=annotated(SMALL))
    with threads(2) as tids:
        node.container(*tids)
        node.hook(resctrl=StandIn(node.root)).post_start_container(annotations=annotated(SMALL))
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    node.hook(resctrl=StandIn(node.root)).post_stop_pod_sandbox(annotations=annotated(SMALL))
    assert node.groups() == []


def test_a_group_that_a_dead_sandboxs_second_stop_took_is_made_again(node: Node) -> None:
    """The kubelet may stop it once more when the pod's new sandbox has a container that is not started yet."""
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    tester.pre_create_container(annotations=annotated(SMALL))
    tester.post_stop_pod_sandbox(annotations=annotated(SMALL))
    assert node.groups() == []
    with threads(2) as tids:
        node.container(*tids)
        tester.post_start_container(annotations=annotated(SMALL))
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    assert node.schemata(POD_GROUP) == "L3:0=00f;1=00f\nMB:0= 20;1= 20\n"


def test_every_thread_is_moved_also_one_that_appears_meanwhile(node: Node) -> None:
    with threads(4) as tids:
        acts = (lambda: None, lambda: node.container(*tids[:3]), lambda: node.container(*tids))
        resctrl = Watching(node.root, *acts)
        tester = node.hook(resctrl=resctrl)
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
        node.container(*tids[:2])
        tester.post_start_container(annotations=annotated(SMALL))
        assert resctrl.tasks(POD_GROUP) == set(tids)
        assert sorted(resctrl.moved) == sorted(tids), "each once"


def test_what_the_runtime_put_in_already_is_not_moved_again(node: Node) -> None:
    resctrl = Watching(node.root)
    tester = node.hook(resctrl=resctrl)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    with threads(2) as tids:
        node.container(*tids)
        StandIn(node.root).move(POD_GROUP, tids[0])
        tester.post_start_container(annotations=annotated(SMALL))
        assert resctrl.moved == [tids[1]]


def test_a_thread_that_ends_meanwhile_is_no_error(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    with threads(1) as ended:
        pass
    with threads(1) as tids:
        node.container(*ended, *tids)
        tester.post_start_container(annotations=annotated(SMALL))
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    assert not caplog.records


def test_threads_without_end_are_not_waited_for(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with threads(ROUNDS + 5) as tids:
        more = (partial(node.container, *tids[:count]) for count in range(2, len(tids) + 1))
        resctrl = Watching(node.root, *more)
        tester = node.hook(resctrl=resctrl)
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
        node.container(tids[0])
        tester.post_start_container(annotations=annotated(SMALL))
        assert len(resctrl.moved) == ROUNDS
    assert f"each of {ROUNDS} rounds" in caplog.text


@pytest.mark.parametrize("cgroup_parent", [f"/kubepods/pod{UID}", "/elsewhere"])
def test_a_container_that_has_ended_is_no_error(
    node: Node, cgroup_parent: str, caplog: pytest.LogCaptureFixture
) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    for _ in range(2):
        tester.post_start_container(annotations=annotated(SMALL), cgroup_parent=cgroup_parent)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a container has ended already" in caplog.text


# -- a process with threads in a cgroup of the kernel's ----------------------------------------------------------------

PROGRAM = """
import sys, threading
def start():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(threading.active_count(), flush=True)
for _ in range(3):
    start()
for _ in sys.stdin:
    start()
"""


class Process:
    """A process that starts one more thread when it is told to."""

    def __init__(self) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._running.pid
        for _ in range(3):
            self._started()

    def start_thread(self) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write("\n")
        self._running.stdin.flush()
        self._started()

    def _started(self) -> None:
        assert self._running.stdout is not None
        assert self._running.stdout.readline()

    def tids(self) -> set[int]:
        return {int(each.name) for each in Path("/proc", str(self.pid), "task").iterdir()}

    def end(self) -> None:
        self._running.kill()
        self._running.communicate()


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()


@pytest.fixture
def parent(process: Process) -> Iterator[str]:
    """Give the path of a pod's cgroup with the process in a container's below it, both made here."""
    top = cgroups.ROOT if cgroups.is_v2() else cgroups.ROOT / "freezer"
    pod = f"/rdt-test-{os.getpid()}"
    directory = top / pod.lstrip("/") / f"cri-containerd-{CONTAINER_ID}.scope"
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text(f"{process.pid}\n")
    yield pod
    process.end()
    cgroups.remove(pod)


@pytest.mark.engine
def test_every_thread_of_a_real_process_ends_up_in_the_group(node: Node, process: Process, parent: str) -> None:
    resctrl = Watching(node.root, process.start_thread)
    tester = node.hook("--cgroup-root", str(cgroups.ROOT), resctrl=resctrl)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL), cgroup_parent=parent)
    before = process.tids()
    tester.post_start_container(annotations=annotated(SMALL), cgroup_parent=parent)
    tids = process.tids()
    assert (len(before), len(tids)) == (4, 5), "one was started between the first listing and the first move"
    assert {int(tid) for tid in (node.root / POD_GROUP / "tasks").read_text().split()} == tids
