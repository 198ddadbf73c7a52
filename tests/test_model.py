"""Tests of the shared values: absent is not empty, and what a message is and what ``overlay`` makes of it."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model import (
    MAP_FIELDS,
    NO_ADJUSTMENT,
    NO_RESOURCES,
    NUMBER_FIELDS,
    RESOURCE_FIELDS,
    TEXT_FIELDS,
    Adjustment,
    ContainerInfo,
    HookRequest,
    PodInfo,
    Resources,
    ResourceValue,
    is_echo,
    laid_over,
    named,
    overlay,
    swap_beside,
    tidy,
)
from tests.merge_cases import BAD_CPUSETS, TIDY

FULL = Resources(100_000, -1, 2, 2**30, -998, "0-3", "0", {"2MB": 4}, {"memory.low": "1"}, 2**31)


def test_the_fields_of_resources_are_those_of_the_protocol() -> None:
    fields = api_pb2.DESCRIPTOR.message_types_by_name["LinuxContainerResources"].fields
    names = tuple(field.name for field in sorted(fields, key=lambda field: field.number))
    assert names == RESOURCE_FIELDS


def test_every_field_of_resources_is_a_number_a_text_or_a_map() -> None:
    kinds = {**dict.fromkeys(NUMBER_FIELDS, int), **dict.fromkeys(TEXT_FIELDS, str), **dict.fromkeys(MAP_FIELDS, dict)}
    assert {name: type(getattr(NO_RESOURCES, name)) for name in RESOURCE_FIELDS} == kinds


def test_values_are_frozen() -> None:
    for value in (FULL, PodInfo(), ContainerInfo(), NO_ADJUSTMENT):
        name = next(iter(type(value).__dataclass_fields__))
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, getattr(value, name))


@pytest.mark.parametrize(
    "change", [{"labels": {"key": ""}}, {"annotations": {"key": ""}}, {"envs": {"NAME": ""}}, {"cgroup_parent": ""}]
)
def test_an_adjustment_is_true_if_it_changes_anything(change: Mapping[str, Any]) -> None:
    assert Adjustment(**change)
    assert Adjustment(resources={"cpuset_cpus": ""})
    assert not Adjustment(confirmed=frozenset({"cpu_quota"}), owners={"cgroup_parent": "a"})


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (None, {}, None),
        (FULL, {}, FULL),
        (None, {"cpu_shares": 5}, Resources(cpu_shares=5)),
        (NO_RESOURCES, {"cpuset_cpus": "1", "cpu_quota": -1}, Resources(cpuset_cpus="1", cpu_quota=-1)),
        (Resources(cpuset_cpus="1", cpu_shares=9), {"cpuset_cpus": ""}, Resources(cpu_shares=9)),
        (None, {"unified": {"a": "1"}}, Resources(unified={"a": "1"})),
        (
            Resources(unified={"a": "1", "b": "2"}, hugepage_limits={"2MB": 4}),
            {"unified": {"b": "3", "c": "4"}, "hugepage_limits": {"1GB": 1}},
            Resources(unified={"a": "1", "b": "3", "c": "4"}, hugepage_limits={"2MB": 4, "1GB": 1}),
        ),
    ],
)
def test_changes_are_laid_over_a_message(
    base: Resources | None, changes: Mapping[str, ResourceValue], expected: Resources | None
) -> None:
    assert overlay(base, changes) == expected


def test_an_overlay_leaves_its_base_as_it_is() -> None:
    base = Resources(unified={"a": "1"})
    overlay(base, {"unified": {"a": "2"}})
    assert base == Resources(unified={"a": "1"})
    assert overlay(base, {}) is base


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, {}),
        (NO_RESOURCES, {}),
        (Resources(cpu_quota=-1, cpuset_mems="0"), {"cpu_quota": -1, "cpuset_mems": "0"}),
        (Resources(unified={"a": "1"}, hugepage_limits={}), {"unified": {"a": "1"}}),
        (FULL, {name: getattr(FULL, name) for name in RESOURCE_FIELDS}),
    ],
)
def test_named_fields_are_those_that_are_set(
    resources: Resources | None, expected: Mapping[str, ResourceValue]
) -> None:
    assert named(resources) == expected


@pytest.mark.parametrize(
    ("sent", "said", "expected"),
    [
        (FULL, FULL, True),
        (Resources(cpu_shares=2, cpuset_cpus="0"), Resources(cpu_shares=3), True),
        (Resources(cpu_shares=2, cpu_quota=-1), Resources(cpu_shares=2, cpu_period=1000), False),
        (Resources(cpuset_cpus="0"), Resources(cpuset_cpus="0", cpu_shares=2), False),
        (NO_RESOURCES, NO_RESOURCES, False),
    ],
)
def test_an_echo_has_each_number_that_was_sent(sent: Resources, said: Resources, expected: bool) -> None:
    assert is_echo(sent, said) is expected


@pytest.mark.parametrize("resources", [NO_RESOURCES, FULL])
def test_naming_and_laying_over_are_inverse(resources: Resources) -> None:
    assert overlay(NO_RESOURCES, named(resources)) == resources


def test_people_know_a_pod_and_a_container_by_their_names() -> None:
    pod = PodInfo(id="p1", uid="u-1", namespace="shop", name="web")
    assert HookRequest(pod).name == "shop/web"
    assert HookRequest(pod, ContainerInfo(id="c1", name="main")).name == "shop/web/main"


@pytest.mark.parametrize(("name", "odd", "normal"), TIDY)
def test_the_normal_form_of_a_value_stays_as_it_is(name: str, odd: int | str, normal: int | str) -> None:
    assert tidy(name, odd) == normal
    assert tidy(name, normal) == normal


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("cpu_quota", quota) for quota in (-1000, -7, -1, 0, 1000, 2**62)),
        *((name, number) for name in NUMBER_FIELDS if name != "cpu_quota" for number in (-1, 0, 1, 834)),
        *(("cpuset_cpus", text) for text in ("", "0", "0-3,8", "3-1", "all")),
    ],
)
def test_a_value_without_another_form_stays_as_it_is(name: str, value: int | str) -> None:
    assert tidy(name, value) == value


@pytest.mark.parametrize("text", BAD_CPUSETS)
def test_tidying_makes_nothing_good_that_is_bad(text: str) -> None:
    assert tidy("cpuset_cpus", text) == ",".join(text.split(" "))


@pytest.mark.parametrize(
    ("memory", "swap", "new_memory", "new_swap"),
    [
        *[(5, 5, 7, 7), (5, 5, 0, 0), (0, 0, 7, 7), (5, 0, 7, 0)],
        *[(5, -1, 7, -1), (5, -1, 0, -1), (5, 9, 7, 9), (5, 9, 10, 10), (5, 9, 0, 0)],
    ],
)
def test_the_swap_limit_beside_a_new_memory_limit(memory: int, swap: int, new_memory: int, new_swap: int) -> None:
    assert swap_beside(memory, swap, new_memory) == new_swap


@pytest.mark.parametrize(
    ("fields", "changes", "expected"),
    [
        ({}, {}, {}),
        ({"cpu_shares": 2}, {}, {"cpu_shares": 2}),
        ({"cpu_shares": 2, "cpuset_cpus": "0"}, {"cpuset_cpus": ""}, {"cpu_shares": 2, "cpuset_cpus": ""}),
        ({}, {"unified": {"a": "1"}}, {"unified": {"a": "1"}}),
        ({"unified": {"a": "1", "b": "1"}}, {"unified": {"a": "2"}}, {"unified": {"a": "2", "b": "1"}}),
    ],
)
def test_fields_laid_over_others(
    fields: dict[str, ResourceValue], changes: dict[str, ResourceValue], expected: dict[str, ResourceValue]
) -> None:
    before = dict(fields)
    assert laid_over(fields, changes) == expected
    assert fields == before
