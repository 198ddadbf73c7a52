"""The values of the model are frozen, encoded variables equal a dict of them, and memory for texts is bounded.

The fields that a runtime does not use, by its name, its version and the call.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.model import fields, no_effect
from runtimeproxy.model import interner as module
from runtimeproxy.model.fields import (
    NO_CHANGES,
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    Envs,
    PodInfo,
    PodRecord,
    Resources,
    changed_envs,
)
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.interner import LONGEST_TEXT, StringInterner
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


class Reader:
    """Decodes JSON in which each key has its UTF-8, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, raw: bytes) -> dict[str, str]:
        self.times += 1
        return dict(json.loads(raw)) if raw else {}


def envs(
    values: Mapping[str, str] = GIVEN, read: Reader | None = None, changes: Mapping[str, str] = NO_CHANGES
) -> Envs:
    raw = json.dumps(dict(values), ensure_ascii=False).encode() if values else b""
    return Envs(raw, read or Reader(), changes)


def test_envs_are_searched_and_compared_undecoded() -> None:
    read = Reader()
    variables = envs(read=read, changes={"SET": "1"})
    assert (variables.with_all_of(["NEW", "\udcff", "SET"]), read.times) == ({"SET": "1"}, 0)
    assert (variables.with_all_of(["NEW", "PATH"]), read.times) == ({**GIVEN, "SET": "1"}, 1)
    first, equal, different = (envs(read=read, changes={"NEW": value}) for value in "112")
    assert (first == equal, first != different, read.times) == (True, True, 1)


def test_envs_are_decoded_once() -> None:
    read = Reader()
    variables = envs(read=read, changes={"A": "2"})
    expected = {**GIVEN, "A": "2"}
    assert (dict(variables), list(variables), len(variables)) == (expected, list(expected), 3)
    assert list(variables.values()) == list(expected.values())
    assert (variables["PATH"], variables.get("NEW"), "NEW" in variables) == ("/bin", None, False)
    with pytest.raises(KeyError):
        variables["NEW"]
    assert read.times == 1
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


# -- bounded memory ---------------------------------------------------------------------------------------------------


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
    for read in (False, True):
        container = texts.container(ContainerRecord(original, effective, (), read))
        assert (container, container.read) == (ContainerRecord(original, effective), read)
        record = PodRecord(given, replace(given, labels=maps[2], overhead=None), read, Resources(2))
        made = texts.pod(record)
        assert (made, made.read, made.reported) == (record, read, record.reported)


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


def test_encoded_and_long_values_are_not_interned() -> None:
    envs, long = Envs(b"A=1", lambda raw: {}, {"HOOK": "1"}), "x" * (LONGEST_TEXT + 1)
    texts = StringInterner()
    for info in (container(envs), container({"A": long})):
        made = texts.container(ContainerRecord(info, info)).original.envs
        assert made is envs or made["A"] is long
    assert long not in texts._texts


def test_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_LIMIT", 20)
    texts = StringInterner()
    for number in range(100):
        info, owner = container({f"KEY_{number}": "x"}), pod({f"label-{number}": "x"})
        made = texts.container(ContainerRecord(info, info)) if number < 50 else texts.pod(PodRecord(owner, owner))
        assert made.effective == (info if number < 50 else owner)
        assert len(texts._texts) <= 20 + 16


# -- fields without effect --------------------------------------------------------------------------------------------

UPDATE, UNIFIED = Operation.UPDATE_CONTAINER_RESOURCES, "resources.unified"
VERSIONS = [("1.35.9", True), ("v1.9", True), ("1.36.0-dev", False), ("2.0", False), ("", False), ("main", False)]


@pytest.mark.parametrize(("version", "ignored"), VERSIONS)
def test_field_has_effect_from_version(version: str, ignored: bool) -> None:
    """Also in a version or a runtime that is unknown."""
    assert (UNIFIED in no_effect.of_runtime("cri-o", version)[UPDATE]) is ignored
    assert no_effect.of_runtime("fake", version) == {}


MEMORY, SWAP = "memory_limit_in_bytes", "memory_swap_limit_in_bytes"
SENT: dict[str, Any] = {"annotations": {"a": "1"}, "cgroup_parent": "/x", "resources": {"cpu_shares": 2}}
USED: list[tuple[set[str], Mapping[str, Any], Mapping[str, Any]]] = [
    (set(), SENT, {}),
    ({"annotations"}, SENT, {"annotations": {}}),
    ({"cgroup_parent"}, SENT, {"cgroup_parent": None}),
    ({"resources.cpu_shares"}, SENT, {"resources": {}}),
    ({UNIFIED}, {"resources": {"unified": {"a": "1"}, "cpu_shares": 2}}, {"resources": {"cpu_shares": 2}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9}}, {"resources": {}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9, MEMORY: 5}}, {"resources": {SWAP: 5, MEMORY: 5}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 5, MEMORY: 5}}, {}),
]


@pytest.mark.parametrize(("ignored", "sent", "differs"), USED)
def test_used_part_lacks_fields_without_effect(
    ignored: set[str], sent: Mapping[str, Any], differs: Mapping[str, Any]
) -> None:
    used, lost = no_effect.used(Adjustment(**sent), frozenset(ignored))
    assert used == Adjustment(**{**sent, **differs})
    assert lost == (ignored if differs else set())
