"""A cache never exceeds its limit. Interned records equal the given ones and share most texts."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.model import interner as module
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, Resources
from runtimeproxy.model.interner import LONGEST_TEXT, StringInterner
from runtimeproxy.wire.cache import ENTRY_BYTES, Cache
from tests.amounts import examples

ROOM = 16 * ENTRY_BYTES
"""Room for eight values as large as an entry's overhead."""


def test_cache_evicts_oldest_but_not_for_large_value() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    for number in range(9):
        assert cache.keep(number, f"{number}", ENTRY_BYTES) == cache.get(number) == f"{number}"
    assert cache.keep(9, "large", ENTRY_BYTES + 1) == "large"
    assert (list(cache), cache.bytes) == ([1, 2, 3, 4, 5, 6, 7, 8], ROOM)


def test_all_caches_together_are_small() -> None:
    """A proxy with 100 records takes 45 MiB."""
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
