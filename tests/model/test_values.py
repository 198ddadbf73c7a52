"""The shared values: absent is not empty; what a message is, and what ``overlay`` makes of it."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from runtimeproxy.model import values
from runtimeproxy.model.values import Adjustment, ContainerInfo, HookRequest, PodInfo, Resources
from tests.merge_cases import BAD_CPUSETS, TIDY

Message = Resources | None
FULL = Resources(100_000, -1, 2, 2**30, -998, "0-3", "0", {"2MB": 4}, {"memory.low": "1"}, 2**31)


def test_every_field_of_resources_is_a_number_a_text_or_a_map() -> None:
    """They are those of the protocol: tests/hookapi/test_codec.py."""
    texts, maps = dict.fromkeys(values.TEXT_FIELDS, str), dict.fromkeys(values.MAP_FIELDS, dict)
    kinds = {**dict.fromkeys(values.NUMBER_FIELDS, int), **texts, **maps}
    assert {name: type(getattr(values.NO_RESOURCES, name)) for name in values.RESOURCE_FIELDS} == kinds


@pytest.mark.parametrize("value", [FULL, PodInfo(), ContainerInfo(), values.NO_ADJUSTMENT])
def test_values_are_frozen(value: Any) -> None:
    name = next(iter(type(value).__dataclass_fields__))
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, getattr(value, name))


def test_adjustment_is_true_if_it_changes_anything() -> None:
    maps = [Adjustment(**{name: {"key": ""}}) for name in ("labels", "annotations", "envs", "resources")]
    assert all([*maps, Adjustment(cgroup_parent="")])
    assert not Adjustment(confirmed=frozenset({"cpu_quota"}), owners={"cgroup_parent": "a"})


OVERLAYS: list[tuple[Message, Mapping[str, Any], Message]] = [
    (None, {}, None),
    (FULL, {}, FULL),
    (None, {"cpu_shares": 5}, Resources(cpu_shares=5)),
    (values.NO_RESOURCES, {"cpuset_cpus": "1", "cpu_quota": -1}, Resources(cpuset_cpus="1", cpu_quota=-1)),
    (Resources(cpuset_cpus="1", cpu_shares=9), {"cpuset_cpus": ""}, Resources(cpu_shares=9)),
    (None, {"unified": {"a": "1"}}, Resources(unified={"a": "1"})),
    (Resources(unified={"a": "1", "b": "2"}), {"unified": {"b": "3"}}, Resources(unified={"a": "1", "b": "3"})),
    (FULL, {"hugepage_limits": {"1GB": 1}}, replace(FULL, hugepage_limits={"2MB": 4, "1GB": 1})),
]


@pytest.mark.parametrize(("base", "changes", "expected"), OVERLAYS)
def test_changes_are_laid_over_a_message(base: Message, changes: Mapping[str, Any], expected: Message) -> None:
    """The base stays as it is: FULL is that of several rows."""
    assert values.overlay(base, changes) == expected
    assert changes or values.overlay(base, changes) is base
    fields = values.named(base)
    cleared = {name: value for name, value in changes.items() if not value}
    assert values.laid_over(fields, changes) == {**values.named(expected), **cleared}
    assert fields == values.named(base)


NAMED: list[tuple[Message, Mapping[str, Any]]] = [
    (None, {}),
    (values.NO_RESOURCES, {}),
    (Resources(cpu_quota=-1, cpuset_mems="0"), {"cpu_quota": -1, "cpuset_mems": "0"}),
    (Resources(unified={"a": "1"}, hugepage_limits={}), {"unified": {"a": "1"}}),
    (FULL, {name: getattr(FULL, name) for name in values.RESOURCE_FIELDS}),
]


@pytest.mark.parametrize(("resources", "expected"), NAMED)
def test_named_fields_are_those_that_are_set(resources: Message, expected: Mapping[str, Any]) -> None:
    assert values.named(resources) == expected
    assert values.overlay(values.NO_RESOURCES, expected) == (resources or values.NO_RESOURCES)


ECHOES = [
    (FULL, FULL, True),
    (Resources(cpu_shares=2, cpuset_cpus="0"), Resources(cpu_shares=3), True),
    (Resources(cpu_shares=2, cpu_quota=-1), Resources(cpu_shares=2, cpu_period=1000), False),
    (Resources(cpuset_cpus="0"), Resources(cpuset_cpus="0", cpu_shares=2), False),
    (values.NO_RESOURCES, values.NO_RESOURCES, False),
]


@pytest.mark.parametrize(("sent", "said", "expected"), ECHOES)
def test_echo_has_each_number_that_was_sent(sent: Resources, said: Resources, expected: bool) -> None:
    assert values.is_echo(sent, said) is expected


def test_people_know_a_pod_and_a_container_by_their_names() -> None:
    pod = PodInfo(id="p1", uid="u-1", namespace="shop", name="web")
    assert HookRequest(pod).name == "shop/web"
    assert HookRequest(pod, ContainerInfo(id="c1", name="main")).name == "shop/web/main"


PLAIN = [
    *(("cpu_quota", quota) for quota in (-1000, -7, -1, 0, 1000, 2**62)),
    *((name, number) for name in values.NUMBER_FIELDS if name != "cpu_quota" for number in (-1, 0, 1, 834)),
    *(("cpuset_cpus", text) for text in ("", "0", "0-3,8", "3-1", "all")),
    *((name, normal) for name, _, normal in TIDY),
]


@pytest.mark.parametrize(("name", "odd", "normal"), [*TIDY, *((name, value, value) for name, value in PLAIN)])
def test_value_is_taken_in_its_normal_form(name: str, odd: int | str, normal: int | str) -> None:
    assert values.tidy(name, odd) == normal


@pytest.mark.parametrize("text", BAD_CPUSETS)
def test_tidying_makes_nothing_good_that_is_bad(text: str) -> None:
    assert values.tidy("cpuset_cpus", text) == ",".join(text.split(" "))


SWAPS = [(5, 5, 7, 7), (5, 5, 0, 0), (0, 0, 7, 7), (5, 0, 7, 0), (5, -1, 7, -1), (5, -1, 0, -1), (5, 9, 7, 9)]


@pytest.mark.parametrize(("memory", "swap", "new_memory", "new_swap"), [*SWAPS, (5, 9, 10, 10), (5, 9, 0, 0)])
def test_swap_limit_follows_a_new_memory_limit(memory: int, swap: int, new_memory: int, new_swap: int) -> None:
    assert values.swap_beside(memory, swap, new_memory) == new_swap


def test_full_name_differs_by_the_attempt() -> None:
    pods = {PodInfo(name="web", uid="u", namespace="shop", attempt=attempt).full_name for attempt in (0, 1)}
    containers = {ContainerInfo(pod_id="p1", name="main", attempt=attempt).full_name for attempt in (0, 1)}
    assert (pods, containers) == ({"shop/web/u/0", "shop/web/u/1"}, {"p1/main/0", "p1/main/1"})
