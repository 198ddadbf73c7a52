"""The unusual requests that the rules send, and the echo rule by table."""

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
def test_each_field_of_the_example_is_omitted_once(point: Any) -> None:
    kind = MESSAGES[point.subject]
    body = request.encoded(point, request.example())
    whole = {field.name for field, _ in kind.FromString(body).ListFields()}
    omitted = dict(trials._without_each_field(point, body))
    assert omitted.keys() == whole == set(kind.DESCRIPTOR.fields_by_name)
    for name, rest in omitted.items():
        assert {field.name for field, _ in kind.FromString(rest).ListFields()} == whole - {name}
        assert name not in dict(trials._without_each_field(point, rest))


def resources(**fields: Any) -> HookAnswer:
    return HookAnswer(resources=Resources(**fields))


MIXTURES = [
    ("nothing", HookAnswer(), [], []),
    ("an echo", merge.echo(SENT), [], []),
    ("changes only", resources(cpu_quota=-1), [], []),
    ("unsent fields only", resources(cpu_period=1000), [], []),
    ("an echo with a changed number", resources(cpu_quota=-1, cpu_shares=7), [], []),
    ("an echo that clears the cpuset", resources(cpu_quota=5000, cpu_shares=7), [], []),
    ("one entry of two", HookAnswer(labels={"b": "2"}), [], []),
    ("one number of two, and a new one", resources(cpu_shares=7, cpu_period=1000), ["cpu_shares"], ["cpu_quota"]),
]


@pytest.mark.parametrize(("answer", "repeated", "omitted"), rows(MIXTURES))
@pytest.mark.parametrize("container", [None, ContainerInfo(resources=NUMBERS)])
def test_mixture_of_echo_and_changes_is_found(
    answer: Any, repeated: list[str], omitted: list[str], container: Any
) -> None:
    assert trials.mixed(replace(SENT, container=container), answer) == (repeated, omitted)
    without_numbers = HookRequest(PodInfo(), container and ContainerInfo())
    assert trials.mixed(without_numbers, answer) == ([], [])


@pytest.mark.parametrize("number", [1, -1, -1000, 2**63 - 1, -(2**63)])
def test_changed_number_differs_from_the_one_sent(number: int) -> None:
    given = HookRequest(PodInfo(resources=Resources(cpu_quota=number, cpu_shares=3)))
    for each in (given, HookRequest(PodInfo(), ContainerInfo(resources=given.pod.resources))):
        point = BY_NAME["PreStartContainer" if each.container else "PreRunPodSandbox"]
        body = codec.encode(point, trials.with_other_numbers(each, ["cpu_quota"]))
        changed = merge.echo(codec.decode_request(point, body))
        assert changed.resources is not None
        assert changed.resources.cpu_quota not in {0, number}
        assert changed.resources == Resources(cpu_quota=changed.resources.cpu_quota, cpu_shares=3)
