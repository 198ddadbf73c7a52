"""The original values of a record are found, and restored from a runtime's report, only for their own subject."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources
from runtimeproxy.model.originals import (
    OriginalValues,
    Pair,
    original_values_of,
    read,
    restored_container,
    restored_pod,
    write,
)

POD = PodInfo("p1", "web", "uid", "shop", 2, labels={"app": "web"}, annotations={"a.b/c": "1"}, cgroup_parent="/k/p")
LIMITS = Resources(cpu_quota=200_000, cpu_period=100_000, unified={"memory.high": "1"})
CONTAINER = ContainerInfo("c1", "p1", "main", 3, {"note": "kept"}, resources=LIMITS, envs={"SECRET": "1"})
POD_NAME, CONTAINER_NAME = ("shop", "web", "uid", 2), ("p1", "main", 3)


def resources(**values: Any) -> ContainerInfo:
    return replace(CONTAINER, resources=Resources(**values))


HOOK_LIMITS = Resources(cpu_quota=-1, cpuset_cpus="0-3", unified={"memory.high": "2", "cpu.idle": "1"})
PAIRS: dict[str, Pair] = {
    **{"resources.cpu_period": (100_000, None), "resources.cpu_quota": (200_000, -1)},
    **{"resources.cpuset_cpus": (None, "0-3"), "resources.unified.cpu.idle": (None, "1")},
    "resources.unified.memory.high": ("1", "2"),
}
REPLACED: list[tuple[PodInfo | ContainerInfo, Mapping[str, Any], Mapping[str, Pair] | None]] = [
    (POD, {"labels": {"app": "hooked"}}, {"labels.app": ("web", "hooked")}),
    (POD, {"labels": {"app": "web", "new": ""}}, {"labels.new": (None, "")}),
    (POD, {"labels": {}}, {"labels.app": ("web", None)}),
    (POD, {"annotations": {"a.b/c": "2"}}, {"annotations.a.b/c": ("1", "2")}),
    (POD, {"cgroup_parent": "/k/q"}, {"cgroup_parent": ("/k/p", "/k/q")}),
    (POD, {"cgroup_parent": None}, {"cgroup_parent": ("/k/p", None)}),
    (POD, {"resources": Resources(cpu_shares=2)}, {"resources.cpu_shares": (None, 2)}),
    (POD, {}, None),
    (POD, {"runtime_handler": "kata"}, None),
    (CONTAINER, {"annotations": {"note": "hooked"}}, {"annotations.note": ("kept", "hooked")}),
    (CONTAINER, {"cgroup_parent": "/k/q"}, {"cgroup_parent": (None, "/k/q")}),
    (CONTAINER, {"resources": HOOK_LIMITS}, PAIRS),
    (CONTAINER, {"envs": {"SECRET": "2", "NEW": "3"}}, None),
]


@pytest.mark.parametrize(("info", "hooked", "pairs"), REPLACED)
def test_replaced_values_are_original_values(
    info: Any, hooked: Mapping[str, Any], pairs: Mapping[str, Pair] | None
) -> None:
    record, name = (PodRecord, POD_NAME) if info is POD else (ContainerRecord, CONTAINER_NAME)
    assert original_values_of(record(info, replace(info, **hooked))) == (
        None if pairs is None else OriginalValues(name, pairs)
    )


SET_LIMITS = Resources(cpu_shares=2, hugepage_limits={"2MB": 4})
SET_MAPS: dict[str, Any] = {"labels": {"app": "hooked", "new": "1"}, "annotations": {"a.b/c": "2"}}
HOOKED_POD = replace(POD, **SET_MAPS, cgroup_parent="/k/q", resources=SET_LIMITS)
HOOKED_LIMITS = Resources(cpu_quota=-1, cpuset_cpus="0-3", unified={"memory.high": "2"})
HOOKED_NOTES = {"note": "hooked", "more": "1"}
HOOKED_CONTAINER = replace(CONTAINER, annotations=HOOKED_NOTES, cgroup_parent="/k/q", resources=HOOKED_LIMITS)
OWNERS = (("cpu_quota", "scaler"), ("cpuset_cpus", "pinner"), ("unified.memory.high", "memory"))


def retained(record: PodRecord | ContainerRecord) -> OriginalValues:
    made = original_values_of(record)
    assert made is not None
    return made


POD_VALUES = retained(PodRecord(POD, HOOKED_POD))
CONTAINER_VALUES = retained(ContainerRecord(CONTAINER, HOOKED_CONTAINER, OWNERS))


def test_record_is_restored_if_hook_values_are_reported() -> None:
    pod, again = restored_pod(HOOKED_POD, POD_VALUES), restored_container(HOOKED_CONTAINER, CONTAINER_VALUES)
    assert (pod, pod.read) == (PodRecord(POD, HOOKED_POD), False)
    assert (again, again.owners) == (ContainerRecord(CONTAINER, HOOKED_CONTAINER), OWNERS)
    assert again.read, "its variables are not kept"


def test_unreported_value_is_restored_as_set() -> None:
    notified = replace(HOOKED_POD, cgroup_parent=None, resources=None, annotations={}, labels={})
    assert restored_pod(notified, POD_VALUES) == PodRecord(POD, HOOKED_POD)
    partly = replace(HOOKED_CONTAINER, annotations={"more": "1"}, cgroup_parent="", resources=Resources(cpu_quota=-1))
    assert restored_container(partly, CONTAINER_VALUES) == ContainerRecord(CONTAINER, HOOKED_CONTAINER)


def test_value_changed_by_another_client_is_kept() -> None:
    notified = replace(HOOKED_POD, labels={"app": "other", "new": "1"}, cgroup_parent="/else")
    original = replace(POD, labels={"app": "other"}, cgroup_parent="/else")
    assert restored_pod(notified, POD_VALUES) == PodRecord(original, notified)
    reported = resources(cpu_quota=7, cpuset_cpus="0-3", unified={"memory.high": "3"}, cpu_shares=5)
    hooked = replace(CONTAINER, resources=HOOKED_LIMITS)
    record = restored_container(reported, retained(ContainerRecord(CONTAINER, hooked, OWNERS)))
    queried = resources(cpu_quota=7, cpu_period=100_000, unified={"memory.high": "3"}, cpu_shares=5)
    assert (record, record.owners) == (ContainerRecord(queried, reported), (("cpuset_cpus", "pinner"),))
    unchanged = restored_container(reported, OriginalValues(CONTAINER_NAME, {"resources.cpu_quota": (1, 9)}, OWNERS))
    assert unchanged.original is unchanged.effective is reported
    assert unchanged.owners == ()


LIMITED, REPORTED = Resources(cpu_shares=5, cpu_quota=7), Resources(cpu_shares=2, cpu_quota=7, unified={"a": "1"})
DIFFERENT = Resources(cpu_shares=9, unified={"a": "9"})
UNUSED: list[tuple[Resources | None, Resources | None, Resources | None]]
UNUSED = [(LIMITED, REPORTED, LIMITED), (LIMITED, None, Resources(cpu_shares=5))]
UNUSED += [(None, REPORTED, Resources(cpu_quota=7)), (None, DIFFERENT, DIFFERENT)]
"""The kubelet's resources, those that the runtime reports later, those in force then."""


@pytest.mark.parametrize(("kubelets", "later", "in_force"), UNUSED)
def test_unused_resources_stay_unused_after_restore(
    kubelets: Resources | None, later: Resources | None, in_force: Resources | None
) -> None:
    reported = REPORTED if kubelets else Resources(cpu_shares=2, unified={"a": "1"})
    pod = replace(POD, resources=kubelets)
    text = write(retained(PodRecord(pod, pod, reported=reported)))
    again = restored_pod(replace(POD, resources=later), read(text))
    assert again.original.resources == again.effective.resources == in_force
    assert (again.reported is None) is (in_force == later)
    assert again.reported is None or write(retained(again)) == text


def test_parts_set_only_by_hooks_are_not_original() -> None:
    bare, hooked = replace(CONTAINER, resources=None, annotations={}), resources(cpu_quota=9, unified={"cpu.idle": "1"})
    assert restored_container(hooked, retained(ContainerRecord(bare, hooked))) == ContainerRecord(bare, hooked)


@pytest.mark.parametrize("change", [{"namespace": "b"}, {"name": "b"}, {"uid": "b"}, {"attempt": 9}, {"pod_id": "b"}])
def test_reused_id_gets_no_original_values(change: Mapping[str, Any]) -> None:
    pods, containers = (HOOKED_POD, restored_pod, POD_VALUES), (HOOKED_CONTAINER, restored_container, CONTAINER_VALUES)
    cases: list[Any] = [pods, containers]
    for hooked, restored, values in cases:
        if change.keys() <= type(hooked).__dataclass_fields__.keys():
            info: Any = replace(hooked, **change)
            record: Any = restored(info, values)
            assert (record, record.read) == (type(record)(info, info), True)
            assert not getattr(record, "owners", ())
    assert restored_pod(HOOKED_POD, CONTAINER_VALUES).read


TEXTS = st.text("ab.\ud800\0\n", max_size=4)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)
PAGES = st.dictionaries(TEXTS, st.integers(-(2**63), 2**63 - 1), max_size=2)
QUOTAS = st.integers(-1, 2)
RESOURCES = st.builds(Resources, cpu_quota=QUOTAS, cpuset_cpus=TEXTS, unified=MAPS, hugepage_limits=PAGES)
VALUES = st.fixed_dictionaries({"annotations": MAPS, "cgroup_parent": TEXTS, "resources": RESOURCES})


@given(queried=VALUES, hooked=VALUES, labels=st.tuples(MAPS, MAPS))
def test_any_record_is_restored_from_its_text(queried: Any, hooked: Any, labels: Any) -> None:
    pod = PodRecord(replace(POD, labels=labels[0], **queried), replace(POD, labels=labels[1], **hooked))
    container = ContainerRecord(replace(CONTAINER, **queried), replace(CONTAINER, **hooked))
    cases: list[Any] = [(pod, restored_pod), (container, restored_container)]
    for record, restored in cases:
        retained = original_values_of(record)
        again = record if retained is None else restored(record.effective, read(write(retained)))
        assert again.effective == record.effective
        assert (again.original.resources or Resources()) == queried["resources"]
        assert replace(again.original, resources=None) == replace(record.original, resources=None)


def test_originals_text_has_pairs_and_their_owners() -> None:
    record = ContainerRecord(CONTAINER, resources(cpu_quota=-1, cpu_period=100_000), OWNERS)
    assert write(retained(record)) == (
        b'[["p1","main",3],{"resources.cpu_quota":[200000,-1],"resources.unified.memory.high":["1",null]},'
        b'[["cpu_quota","scaler"],["unified.memory.high","memory"]]]'
    )


WITH = b'[["p","c",1],{%s},[%s]]'
"""A container's kept values: its pairs and their owners."""
BROKEN: dict[str, list[bytes]] = {
    "not a list": [
        *[b"", b"\xff", b"[" * 100_000, b"7", b"null", b"[]", b"[1,{},[]]", b'[["p","c",1],{}]'],
        *[b'[["p","c",1],[],[]]', b'[["p","c",1],{},[],0]', WITH % (b'"cgroup_parent":"/abc"', b"")],
        *[WITH % (b'"cgroup_parent":["/a"]', b""), WITH % (b"", b"1")],
    ],
    "no subject": [b"[[],{},[]]", b'["abc",{},[]]', b'[["p","c","1"],{},[]]', b'[["p","c",true],{},[]]'],
    "cannot have": [
        WITH % (pair, b"")
        for pair in [
            *[b'"envs.SECRET":["a","b"]', b'"resources.other":[1,2]', b'"resources.unified":["a","b"]'],
            *[b'"resources.cpu_quota":["1",2]', b'"resources.cpu_quota":[true,2]', b'"resources.cpu_quota":[1.5,2]'],
            *[b'"resources.cpu_quota":[1,9223372036854775808]', b'"resources.cpuset_cpus":[1,"2"]'],
            *[b'"resources.hugepage_limits.2MB":["1",2]', b'"annotations.a":[[],"b"]', b'"cgroup_parent":[{},"b"]'],
        ]
    ],
    "a label": [WITH % (b'"labels.a":["a","b"]', b"")],
    "owns nothing": [WITH % (b"", b'["cpu_quota","x"]'), WITH % (b'"resources.cpu_quota":[1,2]', b'["cpu_quota",1]')],
}


@pytest.mark.parametrize(("text", "why"), [(text, why) for why, texts in BROKEN.items() for text in texts])
def test_malformed_originals_raise_value_error(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(text)
