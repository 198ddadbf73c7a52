"""rdt: a pod's group and its limits, and moves of threads. No fault prevents a pod from starting.

The kernel is simulated by tests/fakes/resctrl.py; scripts/demo starts real containers.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy_hooks.lib.koordinator import RESCTRL
from runtimeproxy_hooks.lib.resctrl import Resctrl
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, HookTester
from runtimeproxy_hooks.servers import rdt
from runtimeproxy_hooks.servers.rdt import RDT_CLASS, ROUNDS, Rdt
from tests.fakes.resctrl import Hardware, StandIn, wait_until_ended
from tests.hooks.nodes import annotation, on_node, qos, tree

Log, Patch = pytest.LogCaptureFixture, pytest.MonkeyPatch
POD_GROUP = f"koordlet-{UID}"
EVERY_CLASS = "rdt: {LSR: {enable: true}, LS: {enable: true}, BE: {enable: true}}"
SMALL = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}}
OWN_LIMITS: dict[str, Any] = {"annotations": annotation(RESCTRL, SMALL)}
SMALL_LINES, MB_FULL = "L3:0=00f;1=00f\nMB:0= 20;1= 20\n", "MB:0=100;1=100\n"


class Node:
    """A hook on a node with its settings, cgroups and resctrl in a directory of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "resctrl"
        self.resctrl = StandIn(self.root)
        tree(folder, {"cgroup.controllers": ""})  # version 2

    def hook(self, *flags: str, classes: str = "", resctrl: Resctrl | None = None) -> HookTester:
        return on_node(self.folder, Rdt(resctrl or self.resctrl), classes, *flags)

    def schemata(self, group: str) -> str:
        return (self.root / group / "schemata").read_text()

    def groups(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if (path / "tasks").exists())

    def container(self, *tids: int) -> None:
        """Create the container's cgroup and list threads in it."""
        name = f"kubepods/pod{UID}/{CONTAINER_ID}/cgroup.threads"
        tree(self.folder, {name: "".join(f"{tid}\n" for tid in tids)})


class Watched(StandIn):
    """A stand-in that records writes and calls a function before each of the first moves."""

    def __init__(self, root: Path, *acts: Callable[[], object]) -> None:
        super().__init__(root)
        self._acts = iter(acts)
        self.limited: list[str] = []
        self.moved: list[int] = []

    def limit(self, group: str, schemata: str) -> None:
        super().limit(group, schemata)
        self.limited.append(group)

    def move(self, group: str, tid: int) -> None:
        next(self._acts, lambda: None)()
        self.moved.append(tid)
        super().move(group, tid)


@contextmanager
def threads(count: int) -> Iterator[list[int]]:
    """Yield the ids of threads of this process, and end them."""
    ended = threading.Event()
    started = [threading.Thread(target=ended.wait) for _ in range(count)]
    for thread in started:
        thread.start()
    tids = [thread.native_id or 0 for thread in started]
    try:
        yield tids
    finally:
        ended.set()
        wait_until_ended(tids)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


BOTH = {
    "llc": {"schemata": {"range": [20, 80]}, "schemataPerCache": [{"cacheID": 0, "range": [20, 50]}]},
    "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 1, "percent": 40}]},
}
ANY_CASE = {"LLC": {"Schemata": {"Range": [0, 30]}}, "MB": {"schematapercache": [{"cacheid": 0, "Percent": 50}]}}
UNUSED = {"llc": {"schemata": {"percent": 5, "range": [0, 30]}}, "mb": {"schemata": {"range": [5, 6]}}}
NULLS = {"llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": None}, "mb": None, "l2": 1}
ANNOTATIONS = [
    *((BOTH, "L3:0=038;1=1f8\nMB:0= 20;1= 40\n"), (ANY_CASE, "L3:0=00f;1=00f\nMB:0= 50;1=100\n")),
    *((value, f"L3:0=00f;1=00f\n{MB_FULL}") for value in (UNUSED, NULLS)),
]


@pytest.mark.parametrize(("value", "schemata"), ANNOTATIONS)
def test_annotation_creates_group_of_pod(node: Node, value: object, schemata: str) -> None:
    assert not node.hook().pre_run_pod_sandbox(annotations=annotation(RESCTRL, value))
    assert node.groups() == [POD_GROUP]
    assert node.schemata(POD_GROUP) == schemata


NO_LIMITS = ["{}", '{"llc":{}}', '{"llc":{"schemataPerCache":[]},"mb":{"schemata":{}}}']


@pytest.mark.parametrize(("text", "groups"), [*((text, []) for text in NO_LIMITS), ("", ["LS"]), ("null", ["LS"])])
def test_annotation_without_limits_overrides_class(node: Node, text: str, groups: list[str]) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    tester.pre_run_pod_sandbox(annotations={RESCTRL: text})
    assert node.groups() == []
    changed = tester.pre_create_container(annotations={RESCTRL: text}, labels=qos("LS"))
    assert node.groups() == [*changed.annotations.values()] == groups


def test_unknown_cache_ids_are_logged_once_per_pod(node: Node, caplog: Log) -> None:
    value = {"llc": {"schemataPerCache": [{"cacheID": cache_id, "range": [20, 50]} for cache_id in (1, 77)]}}
    call: dict[str, Any] = {"annotations": annotation(RESCTRL, value), "namespace": "shop", "pod": "cart"}
    tester = node.hook()
    tester.pre_run_pod_sandbox(**call)
    tester.pre_create_container(**call)
    assert node.schemata(POD_GROUP) == f"L3:0=7ff;1=038\n{MB_FULL}"
    [message] = caplog.messages
    assert message.startswith(f"shop/cart: the annotation {RESCTRL} names cache ids")
    assert "77" not in message


@pytest.mark.parametrize("uid", ["", "a/b", "a\nb", "a\0b"])
def test_uid_unusable_as_group_name_is_error(node: Node, uid: str) -> None:
    with pytest.raises(Malformed, match="pod uid"):
        node.hook().pre_run_pod_sandbox(**OWN_LIMITS, uid=uid)


def test_stopped_sandbox_removes_its_group_only_if_empty(node: Node) -> None:
    def restarted() -> HookTester:
        return node.hook(resctrl=StandIn(node.root))

    with threads(1) as (tid,):
        node.container(tid)
        restarted().pre_run_pod_sandbox(**OWN_LIMITS, attempt=1)
        restarted().post_start_container(**OWN_LIMITS, pod_attempt=1)
        restarted().post_stop_pod_sandbox(**OWN_LIMITS, attempt=0)  # the second stop of a dead sandbox
        assert node.resctrl.tasks(POD_GROUP) == {tid}
    restarted().post_stop_pod_sandbox(**OWN_LIMITS, uid="another")
    assert node.groups() == [POD_GROUP]
    for _ in range(2):
        restarted().post_stop_pod_sandbox(**OWN_LIMITS, attempt=1)
        assert node.groups() == []
    with threads(2) as tids:  # the late stop of an old sandbox, before the new one's container starts
        node.container(*tids)
        restarted().post_start_container(**OWN_LIMITS)
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    assert node.schemata(POD_GROUP) == SMALL_LINES


GUARANTEED, BEST_EFFORT = f"/kubepods/pod{UID}", "/kubepods/besteffort/podu"
CLASSES = [
    *(("LSE", GUARANTEED, "LSR"), ("LS", BEST_EFFORT, "LS"), ("BE", "", "BE"), ("SYSTEM", GUARANTEED, "")),
    *(("", GUARANTEED, "LSR"), ("", BEST_EFFORT, "BE"), ("", "", "")),
]


@pytest.mark.parametrize(("name", "cgroup_parent", "group"), CLASSES)
def test_qos_class_of_pod_is_its_group(node: Node, name: str, cgroup_parent: str, group: str) -> None:
    changed = node.hook(classes=EVERY_CLASS).pre_create_container(labels=qos(name), cgroup_parent=cgroup_parent)
    assert changed.annotations == ({RDT_CLASS: group} if group else {})
    assert node.groups() == ([group] if group else [])


def test_limits_are_written_when_settings_change(node: Node, monkeypatch: Patch) -> None:
    def change(**classes: Any) -> None:
        tree(node.folder, {"node.yaml": yaml.safe_dump({"rdt": classes})})

    resctrl = Watched(node.root)
    tester = node.hook(resctrl=resctrl)
    for times, mb, written in ((1, 50, 50), (2, 70, 70), (2, 90, 70)):
        resctrl.refused = ["schemata"] if mb == 90 else []
        change(LS={"enable": True, "l3": [0, 50], "mb": mb})
        for _ in range(2):
            assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}
        assert resctrl.limited == ["LS"] * times
        assert node.schemata("LS") == f"L3:0=03f;1=03f\nMB:0= {written};1= {written}\n"
    change(LS={"enable": False}, BE={"enable": True})
    assert not tester.pre_create_container(labels=qos("LS"))
    change(LS={"enable": True})
    resctrl.refused = []
    monkeypatch.setattr(rdt, "MAX_WRITTEN", 1)
    for call in 2 * [OWN_LIMITS, {"labels": qos("LS")}]:
        tester.pre_create_container(**call)
    assert resctrl.limited[2:] == [POD_GROUP, "LS"] * 2


def test_annotation_is_omitted_when_flag_is_set(node: Node) -> None:
    tester = node.hook("--no-rdt-class-annotation", classes=EVERY_CLASS)
    assert not tester.pre_create_container(labels=qos("LS"))
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels=qos("LS"))
        assert node.resctrl.tasks("LS") == set(tids)


def test_every_thread_outside_group_is_moved_once(node: Node, caplog: Log) -> None:
    with threads(1) as ended:
        pass
    with threads(5) as tids:
        appear = [partial(node.container, *ended, *tids[:count]) for count in (3, 4, 5)]
        resctrl = Watched(node.root, *appear[1:])
        resctrl.make(POD_GROUP)
        StandIn(node.root).move(POD_GROUP, tids[0])  # as the runtime does
        appear[0]()
        node.hook(resctrl=resctrl).post_start_container(**OWN_LIMITS)
        assert resctrl.tasks(POD_GROUP) == set(tids)
        assert sorted(resctrl.moved) == sorted([*ended, *tids[1:]])
    assert not caplog.records


def test_container_that_always_starts_threads_is_abandoned(node: Node, caplog: Log) -> None:
    with threads(ROUNDS + 5) as tids:
        resctrl = Watched(node.root, *(partial(node.container, *tids[:n]) for n in range(2, len(tids) + 1)))
        node.container(tids[0])
        node.hook(resctrl=resctrl).post_start_container(**OWN_LIMITS)
        assert len(resctrl.moved) == ROUNDS
    assert f"each of {ROUNDS} rounds" in caplog.text


CREATED = "pre_run_pod_sandbox pre_create_container"


def test_node_without_rdt_is_logged_and_runs_pods(node: Node, tmp_path: Path, caplog: Log) -> None:
    later = StandIn(tmp_path / "later")
    hidden = later.root.rename(tmp_path / "hidden")
    invalid = StandIn(tmp_path / "invalid", Hardware(cbm_mask=0b1011, mb_ids=()))
    notes = {"cbm_mask is not an unbroken row of ones": invalid, "offers neither L3 nor MB": later}
    for words, resctrl in notes.items():
        tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
        assert words in caplog.text
        assert f"mount -t resctrl resctrl {resctrl.root}" in caplog.text
        caplog.clear()
        for value in (SMALL, "no JSON"):
            for method in (*CREATED.split(), "post_start_container", "post_stop_pod_sandbox"):
                assert not getattr(tester, method)(annotations=annotation(RESCTRL, value), labels=qos("LS"))
        assert not caplog.records
    assert not list(invalid.root.glob("koordlet-*"))
    hidden.rename(later.root)  # mounted later
    tester.pre_run_pod_sandbox(**OWN_LIMITS)
    assert later.exists(POD_GROUP)


def test_exhausted_classes_of_service_are_logged_once(node: Node, caplog: Log) -> None:
    tester, uids = node.hook(classes=EVERY_CLASS), [f"pod-{number}" for number in range(5)]
    for uid in uids:
        tester.pre_run_pod_sandbox(**OWN_LIMITS, uid=uid)
    changed = [tester.pre_create_container(**OWN_LIMITS, uid=uid, labels=qos("LS")).annotations for uid in uids]
    assert changed == [{RDT_CLASS: f"koordlet-{uid}"} for uid in uids[:3]] + [{}, {}]
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels=qos("LS"))
    [message] = caplog.messages
    assert "no class of service is free" in message
    tester.post_stop_pod_sandbox(uid="pod-0")
    assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}


STOPPED = "pre_run_pod_sandbox post_stop_pod_sandbox"
REFUSALS = [
    ("mkdir", CREATED, [], "no group can be made"),
    ("schemata", CREATED, [], "limits are refused"),  # uses no class of service
    ("schemata rmdir", CREATED, [POD_GROUP], "limits are refused"),
    ("tasks", "post_start_container", [POD_GROUP], "threads of a container stay where they are"),
    ("rmdir", STOPPED, [POD_GROUP], "the group of a pod that has ended stays"),
]


@pytest.mark.parametrize(("refused", "methods", "groups", "words"), REFUSALS)
def test_refusal_of_kernel_is_logged_once(
    node: Node, caplog: Log, refused: str, methods: str, groups: list[str], words: str
) -> None:
    tester = node.hook(resctrl=StandIn(node.root, refused=refused.split()))
    with threads(1) as tids:
        node.container(*tids)
        for method in 2 * methods.split():
            getattr(tester, method)(**OWN_LIMITS)
    [message] = caplog.messages
    assert f"{words}: Operation not permitted" in message
    assert node.groups() == groups


@pytest.mark.parametrize("refused", [[], ["schemata"]])
def test_group_that_another_thread_creates_is_used(node: Node, monkeypatch: Patch, refused: list[str]) -> None:
    resctrl = StandIn(node.root, refused=refused)
    make = resctrl.make
    monkeypatch.setattr(resctrl, "make", lambda group: make(group) and make(group))
    changed = node.hook(resctrl=resctrl).pre_create_container(**OWN_LIMITS)
    assert changed.annotations == {RDT_CLASS: POD_GROUP}
    assert node.groups() == [POD_GROUP]


def test_container_without_cgroup_is_logged_once(node: Node, caplog: Log) -> None:
    tester = node.hook()
    for parent in (GUARANTEED, "/elsewhere"):
        tester.post_start_container(**OWN_LIMITS, cgroup_parent=parent)
    [message] = caplog.messages
    assert "a container has ended already" in message
