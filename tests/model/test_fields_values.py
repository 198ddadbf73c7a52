"""The shared values: they are frozen, and absent is not empty."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, ContainerInfo, HookRequest, PodInfo, Resources, set_fields


@pytest.mark.parametrize("value", [PodInfo(), ContainerInfo(), fields.NO_ADJUSTMENT])
def test_values_are_frozen(value: Any) -> None:
    name = next(iter(type(value).__dataclass_fields__))
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, getattr(value, name))


def test_adjustment_is_true_if_it_changes_anything() -> None:
    maps = [Adjustment(**{name: {"key": ""}}) for name in ("labels", "annotations", "envs", "resources")]
    assert all([*maps, Adjustment(cgroup_parent="")])
    assert not Adjustment(confirmed=frozenset({"cpu_quota"}), owners={"cgroup_parent": "a"})


def test_people_know_a_pod_and_a_container_by_their_names() -> None:
    pod = PodInfo(id="p1", uid="u-1", namespace="shop", name="web")
    assert HookRequest(pod).name == "shop/web"
    assert HookRequest(pod, ContainerInfo(id="c1", name="main")).name == "shop/web/main"


def test_full_name_differs_by_the_attempt() -> None:
    pods = {PodInfo(name="web", uid="u", namespace="shop", attempt=attempt).full_name for attempt in (0, 1)}
    containers = {ContainerInfo(pod_id="p1", name="main", attempt=attempt).full_name for attempt in (0, 1)}
    assert (pods, containers) == ({"shop/web/u/0", "shop/web/u/1"}, {"p1/main/0", "p1/main/1"})


POD = PodInfo("p1", "web", labels={"app": "web"}, annotations={"a.b": ""}, cgroup_parent="/pod")
LIMITS = Resources(cpu_quota=-1, unified={"memory.high": "1"})
OF_POD = {"labels.app": "web", "annotations.a.b": "", "cgroup_parent": "/pod"}
OF_CONTAINER = {"resources.cpu_quota": -1, "resources.unified.memory.high": "1"}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (PodInfo(), {}),
        (PodInfo(cgroup_parent=None), {}),
        (POD, OF_POD),
        (ContainerInfo("c1", resources=LIMITS, envs={"SECRET": "1"}), OF_CONTAINER),
    ],
)
def test_set_fields_have_no_environment_variables(info: PodInfo | ContainerInfo, expected: object) -> None:
    assert set_fields(info) == expected
