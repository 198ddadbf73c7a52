"""The odd requests that the rules send, and the echo rule by table."""

from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2, codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, SubjectKind
from runtimeproxy_hooks.tools import request, trials
from tests.hooks.nodes import rows

MESSAGES: dict[SubjectKind, Any] = {
    SubjectKind.POD: api_pb2.PodSandboxHookRequest,
    SubjectKind.CONTAINER: api_pb2.ContainerResourceHookRequest,
}
NUMBERS = Resources(cpu_quota=5000, cpu_shares=7, cpuset_cpus="0")
SENT = HookRequest(PodInfo(labels={"a": "1", "b": "2"}, resources=NUMBERS))


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.name)
def test_each_field_of_the_example_is_left_out_once(point: Any) -> None:
    kind = MESSAGES[point.subject]
    body = request.encoded(point, request.example())
    whole = {field.name for field, _ in kind.FromString(body).ListFields()}
    left_out = dict(trials._without_each_field(point, body))
    assert left_out.keys() == whole == set(kind.DESCRIPTOR.fields_by_name)
    for name, rest in left_out.items():
        assert {field.name for field, _ in kind.FromString(rest).ListFields()} == whole - {name}
        assert name not in dict(trials._without_each_field(point, rest))  # what is absent is not left out


def resources(**fields: Any) -> HookAnswer:
    return HookAnswer(resources=Resources(**fields))


MIXTURES = [
    ("nothing", HookAnswer(), [], []),
    ("an echo", merge.echo(SENT), [], []),
    ("changes only", resources(cpu_quota=-1), [], []),
    ("what was not sent only", resources(cpu_period=1000), [], []),
    ("an echo with a changed number", resources(cpu_quota=-1, cpu_shares=7), [], []),
    ("an echo that clears the cpuset", resources(cpu_quota=5000, cpu_shares=7), [], []),
    ("one entry of two", HookAnswer(labels={"b": "2"}), [], []),
    ("one number of two, and another", resources(cpu_shares=7, cpu_period=1000), ["cpu_shares"], ["cpu_quota"]),
]


@pytest.mark.parametrize(("said", "repeated", "left_out"), rows(MIXTURES))
@pytest.mark.parametrize("container", [None, ContainerInfo(resources=NUMBERS)])
def test_mixture_of_echo_and_changes_is_found(
    said: Any, repeated: list[str], left_out: list[str], container: Any
) -> None:
    assert trials.mixed(replace(SENT, container=container), said) == (repeated, left_out)
    without_numbers = HookRequest(PodInfo(), container and ContainerInfo())
    assert trials.mixed(without_numbers, said) == ([], [])


@pytest.mark.parametrize("number", [1, 2, -1, -2, -1000, 100_000, 2**63 - 1, -(2**63)])
def test_another_number_is_sent_and_is_another(number: int) -> None:
    asked = HookRequest(PodInfo(resources=Resources(cpu_quota=number, cpu_shares=3)))
    for each in (asked, HookRequest(PodInfo(), ContainerInfo(resources=asked.pod.resources))):
        point = BY_NAME["PreStartContainer" if each.container else "PreRunPodSandbox"]
        body = codec.encode(point, trials.with_others(each, ["cpu_quota"]))
        changed = merge.echo(codec.decode_request(point, body))
        assert changed.resources is not None
        assert changed.resources.cpu_quota not in {0, number}
        assert changed.resources == Resources(cpu_quota=changed.resources.cpu_quota, cpu_shares=3)


@pytest.mark.parametrize("container", [None, ContainerInfo(name="main", envs={"A": "1"})])
def test_marked_pods_differ_in_all_that_can_be_repeated(container: ContainerInfo | None) -> None:
    asked = HookRequest(PodInfo(labels={"a": "1"}), container)
    first, second = (merge.echo(trials.marked(asked, number)) for number in (1, 31))
    for part in ("annotations", "cgroup_parent", "resources", "labels" if container is None else "envs"):
        assert getattr(first, part) != getattr(second, part)
    kept = first.labels if container is None else first.envs
    assert "1" in kept.values()
