"""The values of the model are frozen, encoded variables equal a dict of them, and memory for texts is bounded.

The original values of a record are found, and restored from a runtime's report, only for their own subject. The fields
that a runtime does not use are found by its name, its version and the call.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.model import fields, no_effect, originals
from runtimeproxy.model import interner as module
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, Resources, changed_envs
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.interner import LONGEST_TEXT, StringInterner
from runtimeproxy.model.originals import original_values_of, read, restored_container, restored_pod, write
from runtimeproxy.wire.cache import ENTRY_BYTES, Cache
from tests.amounts import examples


def test_values_are_frozen() -> None:
    for value in (PodInfo(), ContainerInfo(), Resources(), fields.NO_ADJUSTMENT):
        with pytest.raises(FrozenInstanceError):
            setattr(value, next(iter(type(value).__dataclass_fields__)), None)


SWAPS = [(5, 5, 7, 7), (5, 5, 0, 0), (0, 0, 7, 7), (5, 0, 7, 0), (5, -1, 7, -1), (5, -1, 0, -1), (5, 9, 7, 9)]
SWAPS += [(5, 5, -1, -1), (5, 9, -1, -1), (5, 0, -1, 0), (5, 9, 10, 10), (5, 9, 0, 0)]


@pytest.mark.parametrize(("memory", "swap", "new_memory", "new_swap"), SWAPS)
def test_swap_limit_follows_new_memory_limit(memory: int, swap: int, new_memory: int, new_swap: int) -> None:
    assert fields.swap_for(memory, swap, new_memory) == new_swap


def test_nested_is_inverse_of_flat() -> None:
    maps = {"labels": {"a.b": "1", "": "2"}, "annotations": {"resources.a": ""}}
    limits = {"cpu_quota": 7, "unified": {"a.b": "c"}}
    assert fields.nested(fields.flat(maps, "/x", limits)) == {**maps, "cgroup_parent": "/x", "resources": limits}
    assert fields.nested(fields.flat({}, None, {})) == {}


GIVEN = {"A": "1", "PATH": "/bin", "EMPTY": ""}


def decode(raw: bytes) -> dict[str, str]:
    return dict(json.loads(raw)) if raw else {}


def envs(values: Mapping[str, str] = GIVEN, read: Any = decode, changes: Mapping[str, str] = fields.NO_CHANGES) -> Envs:
    return Envs(json.dumps(dict(values), ensure_ascii=False).encode() if values else b"", read, changes)


def test_envs_are_decoded_once_if_at_all() -> None:
    read = Mock(wraps=decode)
    variables = envs(read=read, changes={"SET": "1"})
    assert (variables.with_all_of(["NEW", "\udcff", "SET"]), read.call_count) == ({"SET": "1"}, 0)
    assert (variables.with_all_of(["NEW", "PATH"]), read.call_count) == ({**GIVEN, "SET": "1"}, 1)
    first, equal, different = (envs(read=read, changes={"NEW": value}) for value in "112")
    assert (first == equal, first != different, read.call_count) == (True, True, 1)
    read = Mock(wraps=decode)
    variables = envs(read=read, changes={"A": "2"})
    expected = {**GIVEN, "A": "2"}
    assert (dict(variables), list(variables), len(variables)) == (expected, list(expected), 3)
    assert list(variables.values()) == list(expected.values())
    assert (variables["PATH"], variables.get("NEW"), "NEW" in variables) == ("/bin", None, False)
    with pytest.raises(KeyError):
        variables["NEW"]
    assert read.call_count == 1
    assert repr(envs({"TOKEN": "s3cr3t"}, changes={"KEY": "canary"})) == "Envs(19 bytes, 1 changes)"


def test_envs_equal_equivalent_dict() -> None:
    """A change leaves the earlier variables as they are."""
    first = envs()
    second = changed_envs(first, {"A": "2", "B": "3"})
    third = changed_envs(second, {"B": ""})
    assert (first, second, third) == (GIVEN, {**GIVEN, "A": "2", "B": "3"}, {**GIVEN, "A": "2", "B": ""})
    assert first == dict(reversed(GIVEN.items()))
    assert isinstance(third, Envs)
    assert third.raw is first.raw
    assert changed_envs({"A": "1"}, {"B": "2"}) == {"A": "1", "B": "2"}
    assert deepcopy(first) is first
    base, different = {"A": "1", "AB": ""}, {"A": "2", "é": "1"}
    first, second = changed_envs(envs(base), {"B": "3"}), changed_envs(envs(different), {"A": "1", "B": "3"})
    assert first == base | {"B": "3"} != second == different | {"A": "1", "B": "3"}
    assert first == changed_envs(envs(base | {"B": "2"}), {"B": "3"})
    assert first != second
    assert (bool(first), bool(envs({})), bool(changed_envs(envs({}), {"A": ""}))) == (True, False, True)
    assert {**first, **second} == {**base, **different, "A": "1", "B": "3"}
    assert [first.with_all_of([key]).get(key) for key in ("A", "B", "AB", "é")] == ["1", "3", "", None]
    number: object = 7
    assert first != number


def test_cache_evicts_oldest_but_not_for_large_value() -> None:
    """It has room for eight values as large as an entry's overhead. A proxy with 100 records takes 45 MiB."""
    cache: Cache[int, str] = Cache(16 * ENTRY_BYTES)
    for number in range(9):
        assert cache.keep(number, f"{number}", ENTRY_BYTES) == cache.get(number) == f"{number}"
    assert cache.keep(9, "large", ENTRY_BYTES + 1) == "large"
    assert (list(cache), cache.bytes) == ([1, 2, 3, 4, 5, 6, 7, 8], 16 * ENTRY_BYTES)
    caches = [value for value in vars(codec).values() if isinstance(value, Cache)]
    assert len(caches) == 3
    assert sum(cache._max_bytes for cache in caches) <= 2 << 20


def copied(values: Mapping[str, str]) -> dict[str, str]:
    """Return equal texts that are other objects, as in every decoded message."""
    return dict(json.loads(json.dumps(values)))


def pod(labels: Mapping[str, str] | None = None) -> PodInfo:
    names = "p1", "web", "u-1", "shop", 1, "runc"
    return PodInfo(*names, labels or copied({"app": "web"}), copied({"note": "a pod"}), "/kube", Resources(1))


def container(envs: Mapping[str, str] | None = None) -> ContainerInfo:
    notes, pod_id = copied({"note": "of one"}), "".join(["p", "1"])
    return ContainerInfo("c1", pod_id, "main", 2, notes, Resources(2), envs or copied({"A": "one"}), "/kube")


MAPS = st.dictionaries(st.text(max_size=9), st.text(max_size=LONGEST_TEXT + 9), max_size=4)


@settings(max_examples=examples())
@given(st.lists(MAPS, min_size=4, max_size=4), st.lists(st.text(), min_size=4, max_size=4))
def test_interned_record_equals_given_record(maps: list[dict[str, str]], words: list[str]) -> None:
    texts = StringInterner()
    original = ContainerInfo(words[0], words[1], words[2], 0, maps[0], None, maps[1], words[3])
    effective = replace(original, annotations=maps[2], envs=maps[3])
    given = PodInfo(words[0], words[1], words[2], words[3], 0, "", maps[0], maps[1], words[3])
    for is_read in (False, True):
        container = texts.container(ContainerRecord(original, effective, (), is_read))
        assert (container, container.read) == (ContainerRecord(original, effective), is_read)
        record = PodRecord(given, replace(given, labels=maps[2], overhead=None), is_read, Resources(2))
        made = texts.pod(record)
        assert (made, made.read, made.reported) == (record, is_read, record.reported)


def test_records_share_texts_and_maps() -> None:
    texts, info, owner = StringInterner(), container(), pod()
    first, second = (texts.container(ContainerRecord(item, item)).effective for item in (container(), container()))
    for name in ("annotations", "envs"):
        (item,), (copy,) = getattr(first, name).items(), getattr(second, name).items()
        assert (item[0] is copy[0], item[1] is copy[1]) == (True, True)
    assert first.pod_id is second.pod_id
    same, alike = texts.container(ContainerRecord(info, info)), texts.pod(PodRecord(owner, owner))
    assert (same.original is same.effective, alike.original is alike.effective) == (True, True)
    changed = texts.container(ContainerRecord(info, replace(info, resources=None)))
    moved = texts.pod(PodRecord(owner, replace(owner, cgroup_parent="/elsewhere")))
    assert changed.original.envs is changed.effective.envs
    assert moved.original.labels is moved.effective.labels


def test_table_is_bounded_and_has_no_encoded_or_long_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_LIMIT", 20)
    texts = StringInterner()
    for number in range(100):
        info, owner = container({f"KEY_{number}": "x"}), pod({f"label-{number}": "x"})
        made = texts.container(ContainerRecord(info, info)) if number < 50 else texts.pod(PodRecord(owner, owner))
        assert made.effective == (info if number < 50 else owner)
        assert len(texts._texts) <= 20 + 16
    variables, long = Envs(b"A=1", lambda raw: {}, {"HOOK": "1"}), "x" * (LONGEST_TEXT + 1)
    for info in (container(variables), container({"A": long})):
        envs = texts.container(ContainerRecord(info, info)).original.envs
        assert envs is variables or envs["A"] is long
    assert long not in texts._texts


UPDATE, UNIFIED = Operation.UPDATE_CONTAINER_RESOURCES, "resources.unified"
VERSIONS = [("1.35.9", True), ("v1.9", True), ("1.36.0-dev", False), ("2.0", False), ("", False), ("main", False)]


def test_field_has_effect_from_version() -> None:
    """Also in a version or a runtime that is unknown."""
    for version, ignored in VERSIONS:
        assert (UNIFIED in no_effect.of_runtime("cri-o", version)[UPDATE]) is ignored, version
        assert no_effect.of_runtime("fake", version) == {}


MEMORY, SWAP = "memory_limit_in_bytes", "memory_swap_limit_in_bytes"
SENT: dict[str, Any] = {"annotations": {"a": "1"}, "cgroup_parent": "/x", "resources": {"cpu_shares": 2}}
USED: list[tuple[set[str], Mapping[str, Any], Mapping[str, Any]]] = [
    *[(set(), SENT, {}), ({"annotations"}, SENT, {"annotations": {}})],
    *[({"cgroup_parent"}, SENT, {"cgroup_parent": None}), ({"resources.cpu_shares"}, SENT, {"resources": {}})],
    ({UNIFIED}, {"resources": {"unified": {"a": "1"}, "cpu_shares": 2}}, {"resources": {"cpu_shares": 2}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9}}, {"resources": {}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9, MEMORY: 5}}, {"resources": {SWAP: 5, MEMORY: 5}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 5, MEMORY: 5}}, {}),
]


@pytest.mark.parametrize(("ignored", "sent", "differs"), USED)
def test_used_part_lacks_unused_fields(ignored: set[str], sent: Mapping[str, Any], differs: Mapping[str, Any]) -> None:
    used, lost = no_effect.used(fields.Adjustment(**sent), frozenset(ignored))
    assert used == fields.Adjustment(**{**sent, **differs})
    assert lost == (ignored if differs else set())


POD = PodInfo("p1", "web", "uid", "shop", 2, labels={"app": "web"}, annotations={"a.b/c": "1"}, cgroup_parent="/k/p")
LIMITS = Resources(cpu_quota=200_000, cpu_period=100_000, unified={"memory.high": "1"})
CONTAINER = ContainerInfo("c1", "p1", "main", 3, {"note": "kept"}, resources=LIMITS, envs={"SECRET": "1"})
POD_NAME, CONTAINER_NAME = ("shop", "web", "uid", 2), ("p1", "main", 3)


def resources(**values: Any) -> ContainerInfo:
    return replace(CONTAINER, resources=Resources(**values))


HOOK_LIMITS = Resources(cpu_quota=-1, cpuset_cpus="0-3", unified={"memory.high": "2", "cpu.idle": "1"})
PAIRS: dict[str, originals.Pair] = {
    **{"resources.cpu_period": (100_000, None), "resources.cpu_quota": (200_000, -1)},
    **{"resources.cpuset_cpus": (None, "0-3"), "resources.unified.cpu.idle": (None, "1")},
    "resources.unified.memory.high": ("1", "2"),
}
REPLACED: list[tuple[PodInfo | ContainerInfo, Mapping[str, Any], Mapping[str, originals.Pair] | None]] = [
    (POD, {"labels": {"app": "hooked"}}, {"labels.app": ("web", "hooked")}),
    (POD, {"labels": {"app": "web", "new": ""}}, {"labels.new": (None, "")}),
    (POD, {"labels": {}}, {"labels.app": ("web", None)}),
    (POD, {"annotations": {"a.b/c": "2"}}, {"annotations.a.b/c": ("1", "2")}),
    (POD, {"cgroup_parent": "/k/q"}, {"cgroup_parent": ("/k/p", "/k/q")}),
    (POD, {"cgroup_parent": None}, {"cgroup_parent": ("/k/p", None)}),
    (POD, {"resources": Resources(cpu_shares=2)}, {"resources.cpu_shares": (None, 2)}),
    *[(POD, {}, None), (POD, {"runtime_handler": "kata"}, None)],
    (CONTAINER, {"annotations": {"note": "hooked"}}, {"annotations.note": ("kept", "hooked")}),
    (CONTAINER, {"cgroup_parent": "/k/q"}, {"cgroup_parent": (None, "/k/q")}),
    (CONTAINER, {"resources": HOOK_LIMITS}, PAIRS),
    (CONTAINER, {"envs": {"SECRET": "2", "NEW": "3"}}, None),
]


@pytest.mark.parametrize(("info", "hooked", "pairs"), REPLACED)
def test_replaced_values_are_originals(
    info: Any, hooked: Mapping[str, Any], pairs: Mapping[str, originals.Pair] | None
) -> None:
    record, name = (PodRecord, POD_NAME) if info is POD else (ContainerRecord, CONTAINER_NAME)
    assert original_values_of(record(info, replace(info, **hooked))) == (
        None if pairs is None else originals.OriginalValues(name, pairs)
    )


SET_LIMITS = Resources(cpu_shares=2, hugepage_limits={"2MB": 4})
SET_MAPS: dict[str, Any] = {"labels": {"app": "hooked", "new": "1"}, "annotations": {"a.b/c": "2"}}
HOOKED_POD = replace(POD, **SET_MAPS, cgroup_parent="/k/q", resources=SET_LIMITS)
HOOKED_LIMITS = Resources(cpu_quota=-1, cpuset_cpus="0-3", unified={"memory.high": "2"})
HOOKED_NOTES = {"note": "hooked", "more": "1"}
HOOKED_CONTAINER = replace(CONTAINER, annotations=HOOKED_NOTES, cgroup_parent="/k/q", resources=HOOKED_LIMITS)
OWNERS = (("cpu_quota", "scaler"), ("cpuset_cpus", "pinner"), ("unified.memory.high", "memory"))


def retained(record: PodRecord | ContainerRecord) -> originals.OriginalValues:
    made = original_values_of(record)
    assert made is not None
    return made


POD_VALUES = retained(PodRecord(POD, HOOKED_POD))
CONTAINER_VALUES = retained(ContainerRecord(CONTAINER, HOOKED_CONTAINER, OWNERS))


def test_record_is_restored_if_hook_values_are_reported() -> None:
    """Or if they are not reported: a runtime may report only some fields."""
    pod, again = restored_pod(HOOKED_POD, POD_VALUES), restored_container(HOOKED_CONTAINER, CONTAINER_VALUES)
    assert (pod, pod.read) == (PodRecord(POD, HOOKED_POD), False)
    assert (again, again.owners) == (ContainerRecord(CONTAINER, HOOKED_CONTAINER), OWNERS)
    assert again.read, "its variables are not kept"
    notified = replace(HOOKED_POD, cgroup_parent=None, resources=None, annotations={}, labels={})
    assert restored_pod(notified, POD_VALUES) == PodRecord(POD, HOOKED_POD)
    partly = replace(HOOKED_CONTAINER, annotations={"more": "1"}, cgroup_parent="", resources=Resources(cpu_quota=-1))
    assert restored_container(partly, CONTAINER_VALUES) == ContainerRecord(CONTAINER, HOOKED_CONTAINER)
    bare, hooked = replace(CONTAINER, resources=None, annotations={}), resources(cpu_quota=9, unified={"cpu.idle": "1"})
    assert restored_container(hooked, retained(ContainerRecord(bare, hooked))) == ContainerRecord(bare, hooked)


def test_value_changed_by_another_client_is_kept() -> None:
    notified = replace(HOOKED_POD, labels={"app": "other", "new": "1"}, cgroup_parent="/else")
    original = replace(POD, labels={"app": "other"}, cgroup_parent="/else")
    assert restored_pod(notified, POD_VALUES) == PodRecord(original, notified)
    reported = resources(cpu_quota=7, cpuset_cpus="0-3", unified={"memory.high": "3"}, cpu_shares=5)
    hooked = replace(CONTAINER, resources=HOOKED_LIMITS)
    record = restored_container(reported, retained(ContainerRecord(CONTAINER, hooked, OWNERS)))
    queried = resources(cpu_quota=7, cpu_period=100_000, unified={"memory.high": "3"}, cpu_shares=5)
    assert (record, record.owners) == (ContainerRecord(queried, reported), (("cpuset_cpus", "pinner"),))
    unchanged = restored_container(
        reported, originals.OriginalValues(CONTAINER_NAME, {"resources.cpu_quota": (1, 9)}, OWNERS)
    )
    assert unchanged.original is unchanged.effective is reported
    assert unchanged.owners == ()


LIMITED, REPORTED = Resources(cpu_shares=5, cpu_quota=7), Resources(cpu_shares=2, cpu_quota=7, unified={"a": "1"})
DIFFERENT = Resources(cpu_shares=9, unified={"a": "9"})
UNUSED: list[tuple[Resources | None, Resources | None, Resources | None]]
UNUSED = [(LIMITED, REPORTED, LIMITED), (LIMITED, None, Resources(cpu_shares=5))]
UNUSED += [(None, REPORTED, Resources(cpu_quota=7)), (None, DIFFERENT, DIFFERENT)]
"""The kubelet's resources, those that the runtime reports later, those in force then."""


def test_unused_resources_stay_unused_after_restore() -> None:
    for kubelets, later, in_force in UNUSED:
        reported = REPORTED if kubelets else Resources(cpu_shares=2, unified={"a": "1"})
        pod = replace(POD, resources=kubelets)
        text = write(retained(PodRecord(pod, pod, reported=reported)))
        again = restored_pod(replace(POD, resources=later), read(text))
        assert again.original.resources == again.effective.resources == in_force
        assert (again.reported is None) is (in_force == later)
        assert again.reported is None or write(retained(again)) == text


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
ODD_MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)
PAGES = st.dictionaries(TEXTS, st.integers(-(2**63), 2**63 - 1), max_size=2)
RESOURCES = st.builds(
    Resources, cpu_quota=st.integers(-1, 2), cpuset_cpus=TEXTS, unified=ODD_MAPS, hugepage_limits=PAGES
)
VALUES = st.fixed_dictionaries({"annotations": ODD_MAPS, "cgroup_parent": TEXTS, "resources": RESOURCES})


@given(queried=VALUES, hooked=VALUES, labels=st.tuples(ODD_MAPS, ODD_MAPS))
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
