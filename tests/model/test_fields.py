"""The table of the resource fields: its kinds, rules and normal forms, and what is derived from its rows.

A row is all that the model needs for a new field: ``test_new_field_needs_only_a_row`` runs the model with one.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, SWAP, Resources
from tests.merge_cases import BAD_CPUSETS, BAD_FIELDS, GOOD_FIELDS, TIDY

Message = Resources | None
FULL = Resources(100_000, -1, 2, 2**30, -998, "0-3", "0", {"2MB": 4}, {"memory.low": "1"}, 2**31)


def test_every_field_of_resources_is_a_number_a_text_or_a_map() -> None:
    """They are those of the protocol: tests/hookapi/test_codec.py."""
    texts, maps = dict.fromkeys(fields.TEXT_FIELDS, str), dict.fromkeys(fields.MAP_FIELDS, dict)
    kinds = {**dict.fromkeys(fields.NUMBER_FIELDS, int), **texts, **maps}
    assert {name: type(getattr(fields.NO_RESOURCES, name)) for name in fields.RESOURCE_FIELDS} == kinds


def test_resources_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.cpu_shares = 1  # type: ignore[misc]


OVERLAYS: list[tuple[Message, Mapping[str, Any], Message]] = [
    (None, {}, None),
    (FULL, {}, FULL),
    (None, {"cpu_shares": 5}, Resources(cpu_shares=5)),
    (fields.NO_RESOURCES, {"cpuset_cpus": "1", "cpu_quota": -1}, Resources(cpuset_cpus="1", cpu_quota=-1)),
    (Resources(cpuset_cpus="1", cpu_shares=9), {"cpuset_cpus": ""}, Resources(cpu_shares=9)),
    (None, {"unified": {"a": "1"}}, Resources(unified={"a": "1"})),
    (Resources(unified={"a": "1", "b": "2"}), {"unified": {"b": "3"}}, Resources(unified={"a": "1", "b": "3"})),
    (FULL, {"hugepage_limits": {"1GB": 1}}, replace(FULL, hugepage_limits={"2MB": 4, "1GB": 1})),
]


@pytest.mark.parametrize(("base", "changes", "expected"), OVERLAYS)
def test_changes_are_laid_over_a_message(base: Message, changes: Mapping[str, Any], expected: Message) -> None:
    """The base stays as it is: FULL is that of several rows."""
    assert fields.overlay(base, changes) == expected
    assert changes or fields.overlay(base, changes) is base
    known = fields.named(base)
    cleared = {name: value for name, value in changes.items() if not value}
    assert fields.laid_over(known, changes) == {**fields.named(expected), **cleared}
    assert known == fields.named(base)


NAMED: list[tuple[Message, Mapping[str, Any]]] = [
    (None, {}),
    (fields.NO_RESOURCES, {}),
    (Resources(cpu_quota=-1, cpuset_mems="0"), {"cpu_quota": -1, "cpuset_mems": "0"}),
    (Resources(unified={"a": "1"}, hugepage_limits={}), {"unified": {"a": "1"}}),
    (FULL, {name: getattr(FULL, name) for name in fields.RESOURCE_FIELDS}),
]


@pytest.mark.parametrize(("resources", "expected"), NAMED)
def test_named_fields_are_those_that_are_set(resources: Message, expected: Mapping[str, Any]) -> None:
    assert fields.named(resources) == expected
    assert fields.overlay(fields.NO_RESOURCES, expected) == (resources or fields.NO_RESOURCES)


ECHOES = [
    (FULL, FULL, True),
    (Resources(cpu_shares=2, cpuset_cpus="0"), Resources(cpu_shares=3), True),
    (Resources(cpu_shares=2, cpu_quota=-1), Resources(cpu_shares=2, cpu_period=1000), False),
    (Resources(cpuset_cpus="0"), Resources(cpuset_cpus="0", cpu_shares=2), False),
    (fields.NO_RESOURCES, fields.NO_RESOURCES, False),
]


@pytest.mark.parametrize(("sent", "said", "expected"), ECHOES)
def test_echo_has_each_number_that_was_sent(sent: Resources, said: Resources, expected: bool) -> None:
    assert fields.is_echo(sent, said) is expected


PLAIN = [
    *(("cpu_quota", quota) for quota in (-1000, -7, -1, 0, 1000, 2**62)),
    *((name, number) for name in fields.NUMBER_FIELDS if name != "cpu_quota" for number in (-1, 0, 1, 834)),
    *(("cpuset_cpus", text) for text in ("", "0", "0-3,8", "3-1", "all")),
    *((name, normal) for name, _, normal in TIDY),
]


@pytest.mark.parametrize(("name", "odd", "normal"), [*TIDY, *((name, value, value) for name, value in PLAIN)])
def test_value_is_taken_in_its_normal_form(name: str, odd: int | str, normal: int | str) -> None:
    assert fields.tidy(name, odd) == normal


@pytest.mark.parametrize("text", BAD_CPUSETS)
def test_tidying_makes_nothing_good_that_is_bad(text: str) -> None:
    assert fields.tidy("cpuset_cpus", text) == ",".join(text.split(" "))


SWAPS = [(5, 5, 7, 7), (5, 5, 0, 0), (0, 0, 7, 7), (5, 0, 7, 0), (5, -1, 7, -1), (5, -1, 0, -1), (5, 9, 7, 9)]
SWAPS += [(5, 5, -1, -1), (5, 9, -1, -1), (5, 0, -1, 0)]


@pytest.mark.parametrize(("memory", "swap", "new_memory", "new_swap"), [*SWAPS, (5, 9, 10, 10), (5, 9, 0, 0)])
def test_swap_limit_follows_a_new_memory_limit(memory: int, swap: int, new_memory: int, new_swap: int) -> None:
    assert fields.swap_for(memory, swap, new_memory) == new_swap


# -- the table -------------------------------------------------------------------------------------------------------

PLAIN_FIELDS = [*fields.NUMBER_FIELDS, *sorted(fields.TEXT_FIELDS)]


@pytest.mark.parametrize("name", PLAIN_FIELDS)
def test_rule_holds_for_good_values_only(name: str) -> None:
    row = fields.ROWS[name]
    assert [value for value in GOOD_FIELDS[name] if not row.holds(fields.tidy(name, value))] == []
    assert [value for value in BAD_FIELDS[name] if row.holds(fields.tidy(name, value))] == []
    assert row.rule


def test_fields_of_a_group_are_together() -> None:
    groups = {frozenset(fields.together(name)) for name in fields.RESOURCE_FIELDS}
    assert {group for group in groups if len(group) > 1} == {
        frozenset({"cpu_period", "cpu_quota"}),
        frozenset({MEMORY, SWAP}),
    }
    assert set().union(*groups) == set(fields.RESOURCE_FIELDS)


def test_oom_score_is_the_only_field_no_update_changes() -> None:
    assert [name for name, row in fields.ROWS.items() if not row.in_updates] == ["oom_score_adj"]


def test_map_has_the_type_of_its_entries() -> None:
    types = {name: row.kind.type for name, row in fields.ROWS.items() if row.kind.is_map}
    assert types == {"hugepage_limits": int, "unified": str}


ROWS = """\
    cpu_burst: int = _field(Kind.NUMBER, *_SCORE, group="cpu")
    files: Mapping[str, str] = _field(Kind.TEXTS)
"""
MODEL_WITH_IT = """
from runtimeproxy.model import fields, merge, originals
from runtimeproxy.model.fields import *

sent, answered = Resources(cpu_burst=5, files={"a": "1"}), Resources(cpu_burst=7, files={"b": "2"})
request = HookRequest(PodInfo("p1"), ContainerInfo("c1", "p1", resources=sent))
change = merge.difference(request, HookAnswer(resources=answered))
assert change.resources == {"cpu_burst": 7, "files": {"b": "2"}}
added = merge.combine(NO_ADJUSTMENT, "a", change)
assert added.owners == {"resources.cpu_burst": "a", "resources.files.b": "a"}
bad = merge.difference(request, HookAnswer(resources=Resources(cpu_burst=1001, cpu_quota=-1)))
good, rules = merge.judged(bad, request)
assert (good.resources, [rule.field for rule in rules]) == ({}, ["resources.cpu_burst"])
hooked = merge.applied(request, added).container
assert hooked.resources == Resources(cpu_burst=7, files={"a": "1", "b": "2"})
record = ContainerRecord(request.container, hooked)
kept = originals.read(originals.write(originals.original_values_of(record)))
assert kept.pairs == {"resources.cpu_burst": (5, 7), "resources.files.b": (None, "2")}
assert originals.restored_container(hooked, kept) == record
"""


def test_new_field_needs_only_a_row(tmp_path: Path) -> None:
    """A number and a map are added to a copy of the model, which then handles them as any other field."""
    copied = tmp_path / "runtimeproxy"
    shutil.copytree(Path(fields.__file__).parents[1], copied, ignore=shutil.ignore_patterns("__pycache__"))
    table = copied / "model" / "fields.py"
    row = next(line for line in table.read_text().splitlines(keepends=True) if line.startswith("    cpu_shares: int ="))
    table.write_text(table.read_text().replace(row, row + ROWS))
    subprocess.run([sys.executable, "-c", MODEL_WITH_IT], cwd=tmp_path, check=True)


# -- names of single values ------------------------------------------------------------------------------------------

UNIFIED_NAMES = ("resources.unified.memory.high", "resources.unified.")
NAMES: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
    ({}, {}),
    ({"labels": {}, "cgroup_parent": None, "resources": {"unified": {}}}, {}),
    ({"cgroup_parent": "", "resources": {"cpu_quota": 0}}, {"cgroup_parent": "", "resources.cpu_quota": 0}),
    ({"labels": {"a.b": "1", "": ""}}, {"labels.a.b": "1", "labels.": ""}),
    ({"resources": {"unified": {"memory.high": "1", "": "2"}}}, dict(zip(UNIFIED_NAMES, ("1", "2"), strict=True))),
    ({"resources": {"hugepage_limits": {"2MB": 0}}}, {"resources.hugepage_limits.2MB": 0}),
]


def flat(parts: Mapping[str, Any]) -> dict[str, Any]:
    maps = {name: part for name, part in parts.items() if name not in ("cgroup_parent", "resources")}
    return fields.flat(maps, parts.get("cgroup_parent"), parts.get("resources", {}))


@pytest.mark.parametrize(("parts", "values"), NAMES)
def test_single_values_have_the_names_of_their_parts(parts: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    assert flat(parts) == values
    assert flat(fields.nested(values)) == values


KEYS = st.text("a.:", max_size=3)
ENTRIES = st.dictionaries(KEYS, KEYS, min_size=1, max_size=3)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "labels": ENTRIES,
        "annotations": ENTRIES,
        "cgroup_parent": KEYS,
        "resources": st.fixed_dictionaries({"cpu_quota": st.integers()}, optional={"unified": ENTRIES}),
    },
)


@given(PARTS)
def test_nested_is_the_inverse_of_flat(parts: Mapping[str, Any]) -> None:
    assert fields.nested(flat(parts)) == parts


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("envs.A.B", "envs"), ("envs.", "envs"), ("cgroup_parent", "cgroup_parent")),
        *(("resources.cpu_quota", "resources.cpu_quota"), ("resources.unified.a.b", "resources.unified")),
    ],
)
def test_kind_of_a_value_is_its_name_without_a_key(name: str, kind: str) -> None:
    assert fields.kind_of(name) == kind


# -- the values that a request can carry -----------------------------------------------------------------------------


def test_unlimited_memory_is_0_in_a_create() -> None:
    assert fields.in_create({"cpu_quota": -1, MEMORY: -1, SWAP: -1}) == {"cpu_quota": -1, MEMORY: 0, SWAP: -1}
    other = {"cpu_quota": -1, MEMORY: 5}
    assert fields.in_create(other) is other


@pytest.mark.parametrize(("unlimited", "sent"), [(None, {}), (0, {MEMORY: 0}), (-1, {MEMORY: -1})])
def test_unlimited_memory_of_an_update(unlimited: int | None, sent: Mapping[str, int]) -> None:
    assert fields.in_update({MEMORY: -1, "oom_score_adj": 3}, unlimited) == sent
    assert fields.in_update({MEMORY: 5, "oom_score_adj": 3}, unlimited) == {MEMORY: 5}


def test_left_out_is_not_sent_or_cannot_be_cleared() -> None:
    present = Resources(cpuset_cpus="0-3", unified={"a": "1"})
    changes = {"oom_score_adj": 1, "cpuset_cpus": "", "cpuset_mems": "", "cpu_shares": 2}
    sent = {name: value for name, value in changes.items() if name != "oom_score_adj"}
    assert fields.left_out(changes, sent, present) == ("cpuset_cpus", "oom_score_adj")
    assert fields.left_out(changes, changes, fields.NO_RESOURCES) == ()


def test_a_change_with_another_value_in_the_request_is_respelt() -> None:
    changes = {MEMORY: -1, "cpu_shares": 2, "oom_score_adj": 3, "cpu_quota": 0}
    assert fields.respelt(changes, {MEMORY: 0, SWAP: 0, "cpu_shares": 2, "cpu_quota": 9}) == (MEMORY,)


def limits(memory: int, swap: int) -> Resources:
    return Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)


@pytest.mark.parametrize(
    ("requested", "present", "expected"),
    [((0, 0), (5, 9), (5, 9)), ((6, 0), (5, 9), (5, 9)), ((6, 7), (5, 9), (6, 7)), ((0, -1), (5, 9), (5, -1))],
)
def test_limits_before_an_update_are_those_with_a_swap_limit(
    requested: tuple[int, int], present: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert fields.limits_before(limits(*requested), limits(*present)) == expected
