"""rdt: which group a pod gets and its limits, how a container gets into it, and that no problem stops a pod.

The kernel's part is the stand-in's (tests/fakes/resctrl.py); test_reference_engines.py in tests/system has containers.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy_hooks.lib.koordinator import RESCTRL
from runtimeproxy_hooks.lib.resctrl import Resctrl
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import UID, Difference, HookTester
from runtimeproxy_hooks.servers import rdt
from runtimeproxy_hooks.servers.rdt import RDT_CLASS, ROUNDS, Rdt
from tests.fakes.resctrl import Hardware, StandIn
from tests.hooks.nodes import configured, qos, rows
from tests.hooks.rdt_node import EVERY_CLASS, FULL, POD_GROUP, SMALL, Node, Refusing, Watching, annotated, threads

Log, Patch = pytest.LogCaptureFixture, pytest.MonkeyPatch
ASKED: dict[str, Any] = {"annotations": annotated(SMALL)}
"""The request of a pod with limits of its own."""
SMALL_LINES, MB_100, L3_FULL = "L3:0=00f;1=00f\nMB:0= 20;1= 20\n", "MB:0=100;1=100\n", "L3:0=7ff;1=7ff\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def llc(*ends: Any, **by_cache: Any) -> dict[str, Any]:
    """Return limits of cache ways, common or by cache id."""
    per_cache = [{"cacheID": int(cache[1:]), "range": range_} for cache, range_ in by_cache.items()]
    return {"llc": {"schemata": {"range": list(ends)}} if ends else {"schemataPerCache": per_cache}}


BOTH = {
    "llc": {"schemata": {"range": [20, 80]}, "schemataPerCache": [{"cacheID": 0, "range": [20, 50]}]},
    "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 1, "percent": 40}]},
}
ANY_CASE = {"LLC": {"Schemata": {"Range": [0, 30]}}, "MB": {"schematapercache": [{"cacheid": 0, "Percent": 50}]}}
UNUSED = {"llc": {"schemata": {"percent": 5, "range": [0, 30]}}, "mb": {"schemata": {"range": [5, 6]}}}
NULLS = {"llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": None}, "mb": None, "l2": 1}
ONE_CACHES_MB = {"mb": {"schemataPerCache": [{"cacheID": 1, "percent": 40}]}}
WISHES = [
    ("both", SMALL, SMALL_LINES),
    ("cache", llc(20, 80), f"L3:0=1f8;1=1f8\n{MB_100}"),
    ("last ways", llc(95, 100), f"L3:0=400;1=400\n{MB_100}"),
    ("bandwidth", {"mb": {"schemata": {"percent": 15}}}, f"{L3_FULL}MB:0= 20;1= 20\n"),
    ("one cache", llc(_1=[20, 50]), f"L3:0=7ff;1=038\n{MB_100}"),
    ("one cache's bandwidth", ONE_CACHES_MB, f"{L3_FULL}MB:0=100;1= 40\n"),
    ("common and own", BOTH, "L3:0=038;1=1f8\nMB:0= 20;1= 40\n"),
    ("keys in any case", ANY_CASE, "L3:0=00f;1=00f\nMB:0= 50;1=100\n"),
    ("percent of the cache and range of the bandwidth are unused", UNUSED, f"L3:0=00f;1=00f\n{MB_100}"),
    ("nulls and unknown keys say nothing", NULLS, "L3:0=00f;1=00f\n"),
]


@pytest.mark.parametrize(("said", "schemata"), rows(WISHES))
def test_pods_annotation_makes_its_group(node: Node, said: object, schemata: str) -> None:
    assert not node.hook().pre_run_pod_sandbox(annotations=annotated(said))
    assert node.groups() == [POD_GROUP]
    assert node.schemata(POD_GROUP).startswith(schemata)


NOTHING = ("{}", '{"llc":{}}', '{"llc":{"schemataPerCache":[]},"mb":{"schemata":{}}}')


@pytest.mark.parametrize(("said", "groups"), [*((said, []) for said in NOTHING), ("", ["LS"]), ("null", ["LS"])])
def test_annotation_that_asks_for_nothing_wins_over_the_class(node: Node, said: str, groups: list[str]) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    tester.pre_run_pod_sandbox(annotations=annotated(said))
    assert node.groups() == []
    changed = tester.pre_create_container(annotations=annotated(said), labels=qos("LS"))
    assert node.groups() == [*changed.annotations.values()] == groups


def per_cache(resource: str, entry: Any) -> dict[str, Any]:
    return {resource: {"schemataPerCache": [entry]}}


UNREADABLE = [
    *(("{", "not JSON"), ({"llc": []}, "llc must be a JSON object")),
    *((llc(*ends), "two whole percentages") for ends in ([61], [0, 61.5], [False, True])),
    (llc(61, 61), "from a lower to a higher percentage"),
    (per_cache("llc", 61), "schemataPerCache must be a list of JSON objects"),
    *((per_cache("llc", entry), "needs cacheID") for entry in (None, {"range": [0, 61]})),
    *((per_cache(name, {"cacheID": 0}), "and range (llc) or percent (mb)") for name in ("llc", "mb")),
    ({"mb": {"schemata": {"percent": "61"}}}, "percent must be a whole number"),
    (per_cache("mb", {"cacheID": 0, "percent": 161}), "1 to 100 percent"),
]


@pytest.mark.parametrize(("said", "why"), UNREADABLE)
def test_unreadable_annotation_is_an_error_without_its_value(node: Node, said: object, why: str) -> None:
    tester = node.hook()
    for ask in (tester.pre_run_pod_sandbox, tester.pre_create_container, tester.post_start_container):
        with pytest.raises(Malformed) as caught:
            ask(annotations=annotated(said))
        assert f"annotation {RESCTRL}: " in str(caught.value)
        assert why in str(caught.value)
        assert "61" not in str(caught.value)
    assert node.groups() == []


def test_unknown_cache_ids_are_logged_once_a_pod(node: Node, caplog: Log) -> None:
    call: dict[str, Any] = {"annotations": annotated(llc(_1=[20, 50], _77=[20, 50])), "namespace": "shop"}
    tester = node.hook()
    tester.pre_run_pod_sandbox(**call, pod="cart")
    tester.pre_create_container(**call, pod="cart")
    assert node.schemata(POD_GROUP) == f"L3:0=7ff;1=038\n{MB_100}"
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith(f"shop/cart: the annotation {RESCTRL} names cache ids")
    assert "77" not in record.message


@pytest.mark.parametrize("uid", ["", "a/b", "a\nb", "a\0b"])
def test_uid_that_cannot_name_a_group_is_an_error(node: Node, uid: str) -> None:
    with pytest.raises(Malformed, match="pod uid"):
        node.hook().pre_run_pod_sandbox(**ASKED, uid=uid)


def test_stopped_sandbox_takes_its_group_unless_a_new_one_is_in_it(node: Node) -> None:
    def restarted() -> HookTester:
        return node.hook(resctrl=StandIn(node.root))

    with threads(1) as (tid,):
        node.container(tid)
        restarted().pre_run_pod_sandbox(**ASKED, attempt=1)
        restarted().post_start_container(**ASKED, pod_attempt=1)
        restarted().post_stop_pod_sandbox(**ASKED, attempt=0)  # the second stop of a dead sandbox
        assert node.resctrl.tasks(POD_GROUP) == {tid}
    restarted().post_stop_pod_sandbox(**ASKED, uid="another")
    assert node.groups() == [POD_GROUP]
    for _ in range(2):
        restarted().post_stop_pod_sandbox(**ASKED, attempt=1)
        assert node.groups() == []


GUARANTEED, BURSTABLE, BEST_EFFORT = f"/kubepods/pod{UID}", "/kubepods/burstable/podu", "/kubepods/besteffort/podu"
CLASSES = [
    *(("LSE", GUARANTEED, "LSR"), ("LSR", GUARANTEED, "LSR"), ("LS", BEST_EFFORT, "LS"), ("BE", "", "BE")),
    *(
        ("SYSTEM", GUARANTEED, ""),
        ("", GUARANTEED, "LSR"),
        ("", BURSTABLE, "LS"),
        ("", BEST_EFFORT, "BE"),
        ("", "", ""),
    ),
]


@pytest.mark.parametrize(("name", "cgroup_parent", "group"), CLASSES)
def test_pods_class_is_its_group(node: Node, name: str, cgroup_parent: str, group: str) -> None:
    changed = node.hook(classes=EVERY_CLASS).pre_create_container(labels=qos(name), cgroup_parent=cgroup_parent)
    assert changed.annotations == ({RDT_CLASS: group} if group else {})
    assert node.groups() == ([group] if group else [])


LIMITS = [
    *(("LSR", {}, FULL), ("BE", {}, f"L3:0=00f;1=00f\n{MB_100}")),
    ("LS", {"l3": [20, 100]}, f"L3:0=7f8;1=7f8\n{MB_100}"),
    ("BE", {"l3": [0, 50], "mb": 35}, "L3:0=03f;1=03f\nMB:0= 40;1= 40\n"),
]


@pytest.mark.parametrize(("name", "settings", "schemata"), LIMITS)
def test_class_has_what_the_settings_say(node: Node, name: str, settings: dict[str, Any], schemata: str) -> None:
    node.hook(classes={name: {"enable": True, **settings}}).pre_create_container(labels=qos(name))
    assert node.schemata(name) == schemata


@pytest.mark.parametrize("classes", [{}, {"LS": {"enable": False, "l3": [0, 50]}}, {"BE": {"enable": True}}])
def test_class_that_is_not_enabled_is_not_used(node: Node, classes: dict[str, Any]) -> None:
    tester = node.hook(classes=classes)
    node.resctrl.make("LS")
    with threads(1) as tids:
        node.container(*tids)
        assert not tester.pre_create_container(labels=qos("LS"))
        tester.post_start_container(labels=qos("LS"))
    assert (node.schemata("LS"), (node.root / "LS/tasks").read_text()) == (FULL, "")


def test_class_is_shared_by_its_containers_and_outlives_pods(node: Node) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(tester.pre_create_container, labels=qos("BE")) for _ in range(32)]
        assert all(each.result().annotations == {RDT_CLASS: "BE"} for each in made)
    tester.post_stop_pod_sandbox(labels=qos("BE"))
    assert node.groups() == ["BE"]


def test_limits_of_a_pods_group_are_written_once_a_sandbox(node: Node) -> None:
    resctrl = Watching(node.root)
    tester = node.hook(resctrl=resctrl)
    for sandbox in (1, 2):
        tester.pre_run_pod_sandbox(**ASKED)
        for _ in range(2):
            assert tester.pre_create_container(**ASKED).annotations == {RDT_CLASS: POD_GROUP}
        assert resctrl.limited == [POD_GROUP] * sandbox


def test_limits_of_a_class_are_written_when_its_settings_change(node: Node, tmp_path: Path) -> None:
    resctrl = Watching(node.root)
    tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
    for times, mb in ((1, 50), (2, 70)):
        (tmp_path / "node.yaml").write_text(yaml.safe_dump({"rdt": {"LS": {"enable": True, "mb": mb}}}))
        for _ in range(2):
            tester.pre_create_container(labels=qos("LS"))
        assert resctrl.limited == ["LS"] * times
        assert node.schemata("LS") == f"{L3_FULL}MB:0= {mb};1= {mb}\n"


def test_limits_of_few_groups_are_remembered(node: Node, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rdt, "MOST_WRITTEN", 1)
    resctrl = Watching(node.root)
    tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
    for _ in range(2):
        for name in ("LS", "BE"):
            assert tester.pre_create_container(labels=qos(name)).annotations == {RDT_CLASS: name}
    assert resctrl.limited == ["LS", "BE"] * 2


def test_pods_own_group_wins_over_its_class(node: Node) -> None:
    """A group that was removed in the meantime is created again."""
    tester = node.hook(classes=EVERY_CLASS)
    changed = tester.pre_create_container(**ASKED, labels=qos("BE"), env={"A": "b"}, resources={"cpu_shares": 2})
    assert changed == Difference(annotations={RDT_CLASS: POD_GROUP})
    assert node.groups() == [POD_GROUP]
    assert node.schemata(POD_GROUP) == SMALL_LINES


def test_annotation_is_left_out_where_the_flag_requires_it(node: Node) -> None:
    tester = node.hook("--no-rdt-class-annotation", classes=EVERY_CLASS)
    assert not tester.pre_create_container(labels=qos("LS"))
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels=qos("LS"))
        assert node.resctrl.tasks("LS") == set(tids)


def test_flag_names_the_root() -> None:
    for flags, root in (((), "/sys/fs/resctrl"), (("--resctrl-root=/here",), "/here")):
        assert configured(Rdt(), *flags).resctrl.root == Path(root)


def test_group_is_created_again_after_a_late_stop(node: Node) -> None:
    """The kubelet may stop a sandbox again when the pod's new one has a container that is not started yet."""
    tester = node.hook()
    tester.pre_run_pod_sandbox(**ASKED)
    tester.pre_create_container(**ASKED)
    tester.post_stop_pod_sandbox(**ASKED)
    assert node.groups() == []
    with threads(2) as tids:
        node.container(*tids)
        tester.post_start_container(**ASKED)
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    assert node.schemata(POD_GROUP) == SMALL_LINES


def test_every_thread_that_is_not_in_the_group_is_moved_once(node: Node, caplog: Log) -> None:
    with threads(1) as ended:
        pass
    with threads(5) as tids:
        appear = [partial(node.container, *ended, *tids[:count]) for count in (3, 4, 5)]
        resctrl = Watching(node.root, *appear[1:])
        resctrl.make(POD_GROUP)
        StandIn(node.root).move(POD_GROUP, tids[0])  # as the runtime does
        appear[0]()
        node.hook(resctrl=resctrl).post_start_container(**ASKED)
        assert resctrl.tasks(POD_GROUP) == set(tids)
        assert sorted(resctrl.moved) == sorted([*ended, *tids[1:]])
    assert not caplog.records


def test_threads_without_end_are_not_waited_for(node: Node, caplog: Log) -> None:
    with threads(ROUNDS + 5) as tids:
        resctrl = Watching(node.root, *(partial(node.container, *tids[:n]) for n in range(2, len(tids) + 1)))
        node.container(tids[0])
        node.hook(resctrl=resctrl).post_start_container(**ASKED)
        assert len(resctrl.moved) == ROUNDS
    assert f"each of {ROUNDS} rounds" in caplog.text


WITHOUT_RDT: list[tuple[Callable[[Path], Resctrl], str]] = [
    (Resctrl, "offers neither L3 nor MB"),
    (lambda root: StandIn(root, Hardware(l3_ids=(), mb_ids=())), "offers neither L3 nor MB"),
    (lambda root: StandIn(root, Hardware(cbm_mask=0b1011, mb_ids=())), "cbm_mask is not an unbroken row of ones"),
]


@pytest.mark.parametrize(("make", "words"), WITHOUT_RDT)
def test_node_without_rdt_says_so_and_runs_pods(node: Node, tmp_path: Path, caplog: Log, make: Any, words: str) -> None:
    root = tmp_path / "none"
    tester = node.hook(classes=EVERY_CLASS, resctrl=make(root))
    assert words in caplog.text
    assert f"mount -t resctrl resctrl {root}" in caplog.text
    caplog.clear()
    for annotations in (annotated(SMALL), annotated("no JSON"), {}):
        call: dict[str, Any] = {"annotations": annotations, "labels": qos("LS")}
        assert not tester.pre_run_pod_sandbox(**call)
        assert not tester.pre_create_container(**call)
        tester.post_start_container(**call)
        tester.post_stop_pod_sandbox(**call)
    assert not caplog.records
    assert not list(root.glob("koordlet-*"))


def test_resctrl_that_is_mounted_later_is_used(node: Node, tmp_path: Path) -> None:
    root = tmp_path / "later"
    resctrl = StandIn(root)
    hidden = root.rename(tmp_path / "hidden")
    tester = node.hook(resctrl=resctrl)
    tester.pre_run_pod_sandbox(**ASKED)
    hidden.rename(root)
    tester.pre_run_pod_sandbox(**ASKED)
    assert resctrl.exists(POD_GROUP)


def test_exhausted_classes_are_logged_once(node: Node, caplog: Log) -> None:
    tester, uids = node.hook(classes=EVERY_CLASS), [f"pod-{number}" for number in range(5)]
    for uid in uids:
        tester.pre_run_pod_sandbox(**ASKED, uid=uid)
    changed = [tester.pre_create_container(**ASKED, uid=uid).annotations for uid in uids]
    assert changed == [{RDT_CLASS: f"koordlet-{uid}"} for uid in uids[:3]] + [{}, {}]
    assert not tester.pre_create_container(labels=qos("LS"))
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels=qos("LS"))
    [message] = caplog.messages
    assert "no class of service is free" in message
    tester.post_stop_pod_sandbox(uid="pod-0")
    assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}


MADE, STARTED = "pre_run_pod_sandbox pre_create_container", "post_start_container"
STOPPED = "pre_run_pod_sandbox post_stop_pod_sandbox"
REFUSALS = [
    (("mkdir",), MADE, [], "no group can be made: Operation not permitted"),
    (("schemata",), MADE, [], "limits are refused: Operation not permitted"),  # no class is wasted on such a group
    (("schemata", "rmdir"), MADE, [POD_GROUP], "limits are refused: Operation not permitted"),
    (("tasks",), STARTED, [POD_GROUP], "threads of a container stay where they are: Operation not permitted"),
    (("rmdir",), STOPPED, [POD_GROUP], "the group of a pod that has ended stays: Operation not permitted"),
]


@pytest.mark.parametrize(("refused", "methods", "groups", "words"), REFUSALS)
def test_refusal_of_the_kernel_is_logged_once(
    node: Node, caplog: Log, refused: tuple[str, ...], methods: str, groups: list[str], words: str
) -> None:
    tester = node.hook(resctrl=Refusing(node.root, *refused))
    with threads(1) as tids:
        node.container(*tids)
        for method in 2 * methods.split():
            getattr(tester, method)(**ASKED)
    [message] = caplog.messages
    assert words in message
    assert node.groups() == groups


def test_class_keeps_its_limits_where_new_ones_are_refused(node: Node) -> None:
    node.hook(classes={"LS": {"enable": True, "mb": 50}}).pre_create_container(labels=qos("LS"))
    tester = node.hook(classes={"LS": {"enable": True, "mb": 70}}, resctrl=Refusing(node.root, "schemata"))
    assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}
    assert node.schemata("LS") == f"{L3_FULL}MB:0= 50;1= 50\n"


class Overtaken(Refusing):
    """A stand-in in which another process creates the group between the check and the creation."""

    def make(self, group: str) -> bool:
        super().make(group)
        return super().make(group)


@pytest.mark.parametrize("refused", [(), ("schemata",)])
def test_group_that_another_thread_made_is_used_and_kept(node: Node, refused: tuple[str, ...]) -> None:
    changed = node.hook(resctrl=Overtaken(node.root, *refused)).pre_create_container(**ASKED)
    assert changed.annotations == {RDT_CLASS: POD_GROUP}
    assert node.groups() == [POD_GROUP]


ENDED = "a container has ended already"
NO_CGROUPS = "{0}/nothing holds no cgroups: mount the node's there, or set --cgroup-root"


@pytest.mark.parametrize(("root", "words"), [("cgroup", ENDED), ("nothing", NO_CGROUPS)])
def test_container_without_cgroup_is_logged_once(
    node: Node, tmp_path: Path, caplog: Log, root: str, words: str
) -> None:
    tester = node.hook(f"--cgroup-root={tmp_path}/{root}")
    for parent in (GUARANTEED, "/elsewhere"):
        tester.post_start_container(**ASKED, cgroup_parent=parent)
    [message] = caplog.messages
    assert words.format(tmp_path) in message
