"""Records share their texts: the result equals the input, and most texts exist once."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.model import interner as module
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, Resources
from runtimeproxy.model.interner import LONGEST_TEXT, StringInterner
from tests.amounts import examples


def anew(values: Mapping[str, str]) -> dict[str, str]:
    """Return equal texts that are other objects, as in every decoded message."""
    return dict(json.loads(json.dumps(values)))


def pod(labels: Mapping[str, str] | None = None) -> PodInfo:
    names = "p1", "web", "u-1", "shop", 1, "runc"
    return PodInfo(*names, labels or anew({"app": "web"}), anew({"note": "a pod"}), "/kube", Resources(1))


def container(envs: Mapping[str, str] | None = None) -> ContainerInfo:
    notes, pod_id = anew({"note": "of one"}), "".join(["p", "1"])
    return ContainerInfo("c1", pod_id, "main", 2, notes, Resources(2), envs or anew({"A": "one"}), "/kube")


MAPS = st.dictionaries(st.text(max_size=9), st.text(max_size=LONGEST_TEXT + 9), max_size=4)


@settings(max_examples=examples())
@given(st.lists(MAPS, min_size=4, max_size=4), st.lists(st.text(), min_size=4, max_size=4))
def test_any_record_comes_out_as_it_went_in(maps: list[dict[str, str]], words: list[str]) -> None:
    texts = StringInterner()
    one = ContainerInfo(words[0], words[1], words[2], 0, maps[0], None, maps[1], words[3])
    other = replace(one, annotations=maps[2], envs=maps[3])
    asked = PodInfo(words[0], words[1], words[2], words[3], 0, "", maps[0], maps[1], words[3])
    for read in (False, True):
        container = texts.container(ContainerRecord(one, other, (), read))
        assert (container, container.read) == (ContainerRecord(one, other), read)
        record = PodRecord(asked, replace(asked, labels=maps[2], overhead=None), read, Resources(2))
        made = texts.pod(record)
        assert (made, made.read, made.reported) == (record, read, record.reported)


def test_keys_and_values_of_many_records_are_there_once() -> None:
    texts = StringInterner()
    first, second = (texts.container(ContainerRecord(one, one)).effective for one in (container(), container()))
    for name in ("annotations", "envs"):
        (one,), (other,) = getattr(first, name).items(), getattr(second, name).items()
        assert (one[0] is other[0], one[1] is other[1]) == (True, True)
    assert first.pod_id is second.pod_id


def test_original_and_effective_keep_what_they_share() -> None:
    texts, info, asked = StringInterner(), container(), pod()
    same, alike = texts.container(ContainerRecord(info, info)), texts.pod(PodRecord(asked, asked))
    assert same.original is same.effective
    assert alike.original is alike.effective
    changed = texts.container(ContainerRecord(info, replace(info, resources=None)))
    assert changed.original.envs is changed.effective.envs
    moved = texts.pod(PodRecord(asked, replace(asked, cgroup_parent="/elsewhere")))
    assert moved.original.labels is moved.effective.labels


def test_variables_that_stay_as_they_came_are_kept_so() -> None:
    envs = Envs(b"A=1", lambda raw: dict([raw.decode().split("=")]), {"HOOK": "1"})
    info = container(envs)
    assert StringInterner().container(ContainerRecord(info, info)).original.envs is envs


def test_long_value_is_no_part_of_the_table() -> None:
    texts, long = StringInterner(), "x" * (LONGEST_TEXT + 1)
    assert texts.container(ContainerRecord(container({"A": long}), container())).original.envs["A"] is long
    assert long not in texts._known


def test_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_LIMIT", 20)
    texts = StringInterner()
    for number in range(50):
        info = container({f"KEY_{number}": "x"})
        assert texts.container(ContainerRecord(info, info)).effective == info
        assert len(texts._known) <= 20 + 16
    for number in range(50):
        asked = pod({f"label-{number}": "x"})
        assert texts.pod(PodRecord(asked, asked)).effective == asked
        assert len(texts._known) <= 20 + 16
