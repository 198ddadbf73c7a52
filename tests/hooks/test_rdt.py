"""Which group a pod gets, what is in it, and when it is made and removed.

The kernel's part is the stand-in's: see tests/fakes/resctrl.py for what it can and cannot show.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy_hooks import rdt
from runtimeproxy_hooks.koordinator import QOS_CLASS, RESCTRL
from runtimeproxy_hooks.rdt import RDT_CLASS
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import UID
from tests.fakes.resctrl import AMD, Hardware, StandIn
from tests.hooks.rdt_node import EVERY_CLASS, FULL, POD_GROUP, SMALL, Node, annotated, threads


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- the group of a pod ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "schemata"),
    [
        (SMALL, "L3:0=00f;1=00f\nMB:0= 20;1= 20\n"),
        ({"llc": {"schemata": {"range": [20, 80]}}}, "L3:0=1f8;1=1f8\nMB:0=100;1=100\n"),
        ({"llc": {"schemata": {"range": [95, 100]}}}, "L3:0=400;1=400\nMB:0=100;1=100\n"),
        ({"mb": {"schemata": {"percent": 15}}}, "L3:0=7ff;1=7ff\nMB:0= 20;1= 20\n"),
        ({"llc": {"schemataPerCache": [{"cacheID": 1, "range": [20, 50]}]}}, "L3:0=7ff;1=038\nMB:0=100;1=100\n"),
        ({"mb": {"schemataPerCache": [{"cacheID": 1, "percent": 40}]}}, "L3:0=7ff;1=7ff\nMB:0=100;1= 40\n"),
        (
            {
                "llc": {"schemata": {"range": [20, 80]}, "schemataPerCache": [{"cacheID": 0, "range": [20, 50]}]},
                "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 1, "percent": 40}]},
            },
            "L3:0=038;1=1f8\nMB:0= 20;1= 40\n",
        ),
        # the proposal's spelling; keys match in any case
        (
            {"LLC": {"Schemata": {"Range": [0, 30]}}, "MB": {"schematapercache": [{"cacheid": 0, "Percent": 50}]}},
            "L3:0=00f;1=00f\nMB:0= 50;1=100\n",
        ),
        # a percentage of the cache and a range of the bandwidth are not used
        (
            {"llc": {"schemata": {"percent": 5, "range": [0, 30]}}, "mb": {"schemata": {"range": [5, 6]}}},
            "L3:0=00f;1=00f\nMB:0=100;1=100\n",
        ),
        # nulls and unknown keys say nothing
        ({"llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": None}, "mb": None, "l2": 1}, "L3:0=00f;1=00f\n"),
    ],
)
def test_a_pods_annotation_makes_its_group(node: Node, said: object, schemata: str) -> None:
    tester = node.hook()
    assert not tester.pre_run_pod_sandbox(annotations=annotated(said))
    assert node.groups() == [POD_GROUP]
    assert node.schemata(POD_GROUP).startswith(schemata)


@pytest.mark.parametrize(
    "said", ["", "null", "{}", '{"llc":{}}', '{"llc":{"schemataPerCache":[]},"mb":{"schemata":{}}}']
)
def test_an_annotation_that_asks_for_nothing_makes_no_group(node: Node, said: str) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(said))
    assert not tester.pre_create_container(annotations=annotated(said))
    assert node.groups() == []


def test_an_annotation_that_asks_for_nothing_still_wins_over_the_class(node: Node) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    assert not tester.pre_create_container(annotations=annotated({}), labels={QOS_CLASS: "LS"})
    assert tester.pre_create_container(annotations=annotated("null"), labels={QOS_CLASS: "LS"})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('"x"', "must be a JSON object"),
        ({"llc": []}, "llc must be a JSON object"),
        ({"llc": {"schemata": []}}, "schemata must be a JSON object"),
        ({"llc": {"schemata": {"range": "0-61"}}}, "range must be a list"),
        ({"llc": {"schemata": {"range": [61]}}}, "two whole percentages"),
        ({"llc": {"schemata": {"range": [1, 2, 61]}}}, "two whole percentages"),
        ({"llc": {"schemata": {"range": [0, 61.5]}}}, "two whole percentages"),
        ({"llc": {"schemata": {"range": [False, True]}}}, "two whole percentages"),
        ({"llc": {"schemata": {"range": ["0", "61"]}}}, "two whole percentages"),
        ({"llc": {"schemata": {"range": [61, 61]}}}, "from a lower to a higher percentage"),
        ({"llc": {"schemata": {"range": [0, 161]}}}, "from a lower to a higher percentage"),
        ({"llc": {"schemata": {"range": [-61, 5]}}}, "from a lower to a higher percentage"),
        ({"llc": {"schemataPerCache": {}}}, "schemataPerCache must be a list"),
        ({"llc": {"schemataPerCache": [61]}}, "schemataPerCache must be a list of JSON objects"),
        ({"llc": {"schemataPerCache": [None]}}, "needs cacheID"),
        ({"llc": {"schemataPerCache": [{"range": [0, 61]}]}}, "needs cacheID"),
        ({"llc": {"schemataPerCache": [{"cacheID": 0}]}}, "and range"),
        ({"llc": {"schemataPerCache": [{"cacheID": "61", "range": [0, 61]}]}}, "cacheID must be a whole number"),
        ({"mb": {"schemata": {"percent": "61"}}}, "percent must be a whole number"),
        ({"mb": {"schemata": {"percent": 61.5}}}, "percent must be a whole number"),
        ({"mb": {"schemata": {"percent": 0}}}, "1 to 100 percent"),
        ({"mb": {"schemata": {"percent": 161}}}, "1 to 100 percent"),
        ({"mb": {"schemataPerCache": [{"cacheID": 0, "percent": 161}]}}, "1 to 100 percent"),
        ({"mb": {"schemataPerCache": [{"cacheID": 0}]}}, "or percent"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_an_error_without_its_value(node: Node, said: object, why: str) -> None:
    tester = node.hook()
    for ask in (tester.pre_run_pod_sandbox, tester.pre_create_container, tester.post_start_container):
        with pytest.raises(Malformed) as caught:
            ask(annotations=annotated(said))
        assert why in str(caught.value)
        assert "61" not in str(caught.value)
    assert node.groups() == []


def test_cache_ids_that_the_node_does_not_have_are_told_once_a_pod(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    per_cache = [{"cacheID": 1, "range": [20, 50]}, {"cacheID": 77, "range": [20, 50]}]
    tester, annotations = node.hook(), annotated({"llc": {"schemataPerCache": per_cache}})
    tester.pre_run_pod_sandbox(annotations=annotations, namespace="shop", pod="cart")
    tester.pre_create_container(annotations=annotations, namespace="shop", pod="cart")
    assert node.schemata(POD_GROUP) == "L3:0=7ff;1=038\nMB:0=100;1=100\n"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "shop/cart" in caplog.text
    assert RESCTRL in caplog.text
    assert "77" not in caplog.text.replace(UID, "")


@pytest.mark.parametrize(
    ("hardware", "schemata"),
    [
        (Hardware(mb_ids=()), "L3:0=00f;1=00f\n"),
        (Hardware(l3_ids=()), "MB:0= 20;1= 20\n"),
        (Hardware(cdp=True, mb_ids=()), "L3DATA:0=00f;1=00f\nL3CODE:0=00f;1=00f\n"),
        (Hardware(min_cbm_bits=5, mb_ids=()), "L3:0=01f;1=01f\n"),
        (Hardware(4, (2,), 0xFFFF, 0, False, (2,), 0, 1, AMD), "L3:2=001f\nMB:2=  32\n"),
    ],
)
def test_each_node_limits_what_it_can(node: Node, tmp_path: Path, hardware: Hardware, schemata: str) -> None:
    resctrl = StandIn(tmp_path / "other", hardware)
    node.hook(resctrl=resctrl).pre_run_pod_sandbox(annotations=annotated(SMALL))
    assert (resctrl.root / POD_GROUP / "schemata").read_text() == schemata


@pytest.mark.parametrize("uid", ["", "a/b", "a\nb", "a\0b"])
def test_a_uid_that_cannot_name_a_group_is_an_error(node: Node, uid: str) -> None:
    with pytest.raises(Malformed, match="pod uid"):
        node.hook().pre_run_pod_sandbox(annotations=annotated(SMALL), uid=uid)


def test_a_sandbox_that_ended_takes_its_group_with_it(node: Node) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    tester.post_stop_pod_sandbox(annotations=annotated(SMALL))
    assert node.groups() == []
    tester.post_stop_pod_sandbox(annotations=annotated(SMALL))
    tester.post_stop_pod_sandbox()


def test_a_dead_sandbox_that_is_stopped_again_does_not_take_the_group_of_the_new_one(node: Node) -> None:
    tester = node.hook()
    with threads(1) as (tid,):
        node.container(tid)
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL), attempt=1)
        tester.post_start_container(annotations=annotated(SMALL), pod_attempt=1)
        tester.post_stop_pod_sandbox(annotations=annotated(SMALL), attempt=0)
        assert node.resctrl.tasks(POD_GROUP) == {tid}
    tester.post_stop_pod_sandbox(annotations=annotated(SMALL), attempt=1)
    assert node.groups() == []


def test_another_pods_group_stays(node: Node) -> None:
    tester = node.hook()
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
    tester.post_stop_pod_sandbox(annotations=annotated(SMALL), uid="another")
    assert node.groups() == [POD_GROUP]


# -- the group of a class --------------------------------------------------------------------------------------------

GUARANTEED, BURSTABLE, BEST_EFFORT = (
    f"/kubepods/pod{UID}",
    f"/kubepods/burstable/pod{UID}",
    f"/kubepods/besteffort/p{UID}",
)


@pytest.mark.parametrize(
    ("label", "cgroup_parent", "group"),
    [
        ("LSE", GUARANTEED, "LSR"),
        ("LSR", GUARANTEED, "LSR"),
        ("LS", BURSTABLE, "LS"),
        ("BE", BEST_EFFORT, "BE"),
        ("LS", BEST_EFFORT, "LS"),
        ("SYSTEM", GUARANTEED, None),
        ("SYSTEM", "", None),
        (None, GUARANTEED, "LSR"),
        (None, BURSTABLE, "LS"),
        (None, BEST_EFFORT, "BE"),
        (None, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice", "LS"),
        ("unknown", BURSTABLE, "LS"),
        (None, "", None),
        ("unknown", "", None),
        ("BE", "", "BE"),
    ],
)
def test_a_pods_class_is_its_group(node: Node, label: str | None, cgroup_parent: str, group: str | None) -> None:
    labels = {} if label is None else {QOS_CLASS: label}
    changed = node.hook(classes=EVERY_CLASS).pre_create_container(labels=labels, cgroup_parent=cgroup_parent)
    assert changed.annotations == ({} if group is None else {RDT_CLASS: group})
    assert node.groups() == ([] if group is None else [group])


@pytest.mark.parametrize(
    ("qos", "settings", "schemata"),
    [
        ("LSR", {}, FULL),
        ("BE", {}, "L3:0=00f;1=00f\nMB:0=100;1=100\n"),
        ("BE", {"l3": [0, 50], "mb": 35}, "L3:0=03f;1=03f\nMB:0= 40;1= 40\n"),
        ("LS", {"l3": [20, 100]}, "L3:0=7f8;1=7f8\nMB:0=100;1=100\n"),
        ("LSR", {"l3": [95, 100]}, "L3:0=400;1=400\nMB:0=100;1=100\n"),
    ],
)
def test_a_class_has_what_the_nodes_settings_say(node: Node, qos: str, settings: dict[str, Any], schemata: str) -> None:
    tester = node.hook(classes={qos: {"enable": True, **settings}})
    tester.pre_create_container(labels={QOS_CLASS: qos})
    assert node.schemata(qos) == schemata


@pytest.mark.parametrize("classes", [{}, {"LS": {"enable": False, "l3": [0, 50]}}, {"BE": {"enable": True}}])
def test_a_class_that_is_not_enabled_is_not_used(node: Node, classes: dict[str, Any]) -> None:
    tester = node.hook(classes=classes)
    node.resctrl.make("LS")
    with threads(1) as tids:
        node.container(*tids)
        assert not tester.pre_create_container(labels={QOS_CLASS: "LS"})
        tester.post_start_container(labels={QOS_CLASS: "LS"})
    assert node.schemata("LS") == FULL
    assert (node.root / "LS/tasks").read_text() == ""


def test_the_annotation_wins_over_the_class(node: Node) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    tester.pre_run_pod_sandbox(annotations=annotated(SMALL), labels={QOS_CLASS: "BE"})
    changed = tester.pre_create_container(annotations=annotated(SMALL), labels={QOS_CLASS: "BE"})
    assert changed.annotations == {RDT_CLASS: POD_GROUP}
    assert node.groups() == [POD_GROUP]


def test_containers_that_are_made_at_the_same_time_share_the_class(node: Node) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(tester.pre_create_container, labels={QOS_CLASS: "BE"}) for _ in range(32)]
        assert all(each.result().annotations == {RDT_CLASS: "BE"} for each in made)
    assert node.groups() == ["BE"]
    assert node.schemata("BE") == "L3:0=00f;1=00f\nMB:0=100;1=100\n"


def test_a_class_outlives_its_pods_and_takes_new_settings(node: Node) -> None:
    tester = node.hook(classes=EVERY_CLASS)
    tester.pre_create_container(labels={QOS_CLASS: "LS"})
    tester.post_stop_pod_sandbox(labels={QOS_CLASS: "LS"})
    assert node.groups() == ["LS"]
    assert node.schemata("LS") == FULL
    again = node.hook(classes={"LS": {"enable": True, "l3": [0, 50], "mb": 50}})
    again.pre_create_container(labels={QOS_CLASS: "LS"})
    assert node.schemata("LS") == "L3:0=03f;1=03f\nMB:0= 50;1= 50\n"


class Counting(StandIn):
    """A stand-in that counts how often a group was given limits."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.limited: Counter[str] = Counter()

    def limit(self, group: str, schemata: str) -> None:
        super().limit(group, schemata)
        self.limited[group] += 1


def test_the_limits_of_a_pods_group_are_written_once_a_sandbox(node: Node) -> None:
    resctrl = Counting(node.root)
    tester = node.hook(resctrl=resctrl)
    for sandbox in (1, 2):
        tester.pre_run_pod_sandbox(annotations=annotated(SMALL))
        for _ in range(2):
            assert tester.pre_create_container(annotations=annotated(SMALL)).annotations == {RDT_CLASS: POD_GROUP}
        assert resctrl.limited == {POD_GROUP: sandbox}


def test_the_limits_of_a_class_are_written_when_its_settings_change(node: Node, tmp_path: Path) -> None:
    resctrl = Counting(node.root)
    tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
    for times, mb in ((1, 50), (2, 70)):
        (tmp_path / "node.yaml").write_text(yaml.safe_dump({"rdt": {"LS": {"enable": True, "mb": mb}}}))
        for _ in range(2):
            tester.pre_create_container(labels={QOS_CLASS: "LS"})
        assert resctrl.limited == {"LS": times}
        assert node.schemata("LS") == f"L3:0=7ff;1=7ff\nMB:0= {mb};1= {mb}\n"


@pytest.mark.parametrize("most", [1, 2])
def test_what_was_written_is_remembered_of_so_many_groups(
    node: Node, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdt, "MOST_WRITTEN", most)
    resctrl = Counting(node.root)
    tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
    for _ in range(2):
        for qos in ("LS", "BE"):
            assert tester.pre_create_container(labels={QOS_CLASS: qos}).annotations == {RDT_CLASS: qos}
    assert resctrl.limited == dict.fromkeys(("LS", "BE"), 2 if most == 1 else 1)
