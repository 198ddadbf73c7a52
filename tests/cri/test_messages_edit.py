"""Editing CRI requests: parsing shows what changed, comparing bytes that nothing else did."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import api_pb2, messages
from runtimeproxy.errors import WireError
from runtimeproxy.model.fields import NO_ADJUSTMENT, RESOURCE_FIELDS, Adjustment, Resources, ResourceValue, overlay
from tests.cri import rest
from tests.cri.messages import ALL_RESOURCES, DECLARED, limits, random_messages
from tests.fakes import cri_pb2 as cri

Changes = dict[str, ResourceValue]

UNKNOWN = b"\xa2\x06\x02\xff\xfe\xab\x06\xac\x06" + b"\x92\x3f\x81\x80\x00\x7f"
"""Unknown fields: bytes that are not UTF-8, a group, and a length in more bytes than needed."""


def changed(**resources: ResourceValue) -> Adjustment:
    return Adjustment(resources=resources)


@pytest.mark.parametrize(
    ("changes", "stated", "left_out"),
    [
        ({}, {}, ()),
        ({"cpu_shares": 2, "oom_score_adj": 3}, {"cpu_shares": 2}, ("oom_score_adj",)),
        ({"cpuset_cpus": ""}, {"cpuset_cpus": ""}, ("cpuset_cpus",)),
        ({"cpuset_mems": "", "oom_score_adj": 0}, {"cpuset_mems": ""}, ("oom_score_adj",)),
        ({"cpuset_cpus": "0", "unified": {"a": "1"}}, {"cpuset_cpus": "0", "unified": {"a": "1"}}, ()),
    ],
)
def test_values_that_an_update_can_carry(changes: Changes, stated: Changes, left_out: tuple[str, ...]) -> None:
    assert messages.values_for_update(changes, Resources(cpuset_cpus="0-3", cpu_shares=7)) == (stated, left_out)
    assert messages.values_for_update({"cpuset_cpus": ""}, None) == ({"cpuset_cpus": ""}, ()), (
        "there is nothing to clear"
    )


def memory_and_swap(memory: int, swap: int) -> Resources:
    return Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)


@pytest.mark.parametrize(
    ("queried", "changes", "made"),
    [
        pytest.param((0, 0), {"memory": -1}, (0, 0), id="no limit is 0"),
        pytest.param((5, 5), {"memory": -1}, (0, 0), id="an equal swap limit goes with it"),
        pytest.param((5, -1), {"memory": 7}, (7, -1), id="unlimited swap stays with a limit"),
        pytest.param((5, 9), {"memory": -1}, (0, 0), id="a swap limit needs a memory limit"),
        pytest.param((5, -1), {"memory": -1}, (0, -1), id="unlimited swap stays"),
        pytest.param((5, 5), {"memory": 7}, (7, 7), id="an equal swap limit moves up"),
        pytest.param((5, 5), {"memory": 3}, (3, 3), id="an equal swap limit moves down"),
        pytest.param((5, 9), {"memory": 7}, (7, 9), id="another swap limit stays"),
        pytest.param((5, 9), {"memory": 10}, (10, 10), id="none is below the memory limit"),
        pytest.param((5, 0), {"memory": 7}, (7, 0), id="what is not set stays so"),
        pytest.param((0, 0), {"memory": 7}, (7, 0), id="what is not set stays so, without a limit"),
        pytest.param((5, 5), {"memory": 7, "memory_swap": 8}, (7, 8), id="a hook's own"),
        pytest.param((5, 5), {"memory_swap": -1}, (5, -1), id="a hook's swap limit alone"),
    ],
)
def test_memory_and_swap_of_a_create(queried: tuple[int, int], changes: dict[str, int], made: tuple[int, int]) -> None:
    adjustment = Adjustment(resources={f"{name}_limit_in_bytes": value for name, value in changes.items()})
    stated = messages.values_for_create(adjustment, memory_and_swap(*queried))
    assert overlay(memory_and_swap(*queried), stated.resources) == memory_and_swap(*made)


@pytest.mark.parametrize("lifts", [True, False])
@pytest.mark.parametrize(
    ("queried", "present", "change", "lifted", "not_lifted"),
    [
        pytest.param((0, 0), (0, 0), -1, {"memory": 0}, {"memory": 0}, id="there is no limit"),
        pytest.param((9, 9), (0, 0), -1, {"memory": 0}, {"memory": 0}, id="there is none but the update's own"),
        pytest.param((0, 0), (9, 0), -1, {"memory": -1}, {}, id="there is one"),
        pytest.param((0, 0), (9, 9), -1, {"memory": -1, "swap": -1}, {}, id="and an equal swap limit"),
        pytest.param((0, 0), (5, 9), -1, {"memory": -1, "swap": -1}, {}, id="and another swap limit"),
        pytest.param((0, 0), (9, -1), -1, {"memory": -1}, {}, id="and unlimited swap"),
        pytest.param((0, 0), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="held, equal"),
        pytest.param((6, 6), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="new, equal"),
        pytest.param((6, 0), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="held next to new"),
        pytest.param((0, 9), (9, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="new, memory held"),
        pytest.param((0, 0), (5, 9), 7, {"memory": 7}, {"memory": 7}, id="another swap limit"),
        pytest.param((0, 0), (5, 0), 7, {"memory": 7}, {"memory": 7}, id="none set"),
        pytest.param((0, 0), (5, 5), 0, {"memory": 0}, {"memory": 0}, id="0 leaves what is"),
    ],
)
def test_memory_and_swap_of_an_update(
    queried: tuple[int, int], present: tuple[int, int], change: int, lifted: object, not_lifted: object, lifts: bool
) -> None:
    change_of = {"memory_limit_in_bytes": change}
    stated = messages.values_for_update(
        change_of, memory_and_swap(*present), memory_and_swap(*queried), accepts_unlimited_memory=lifts
    )
    short = {
        name.removesuffix("_limit_in_bytes").removeprefix("memory_"): stated.resources[name]
        for name in stated.resources
    }
    assert short == (lifted if lifts else not_lifted)
    left_out = (change == -1 and not short) or (change == 0 and bool(present[0]))
    assert stated.left_out == (("memory_limit_in_bytes",) if left_out else ())


@pytest.mark.parametrize(
    ("changes", "base", "expected"),
    [
        ({}, None, None),
        ({}, Resources(cpu_shares=2), None),
        ({"cpu_quota": -1}, None, Resources(cpu_quota=-1)),
        ({"cpuset_cpus": "1"}, Resources(cpu_shares=2, cpuset_cpus="0"), Resources(cpuset_cpus="1")),
        ({"unified": {"a": "2"}}, Resources(unified={"a": "1", "b": "1"}), Resources(unified={"a": "2", "b": "1"})),
        (ALL_RESOURCES, None, overlay(None, ALL_RESOURCES)),
    ],
)
def test_update_request(changes: Changes, base: Resources | None, expected: Resources | None) -> None:
    assert messages.read_update(messages.update_request("c1", changes, base)) == ("c1", expected, {})


POD_CONFIG = cri.PodSandboxConfig(linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kube/pod1"))
KNOWN = cri.CreateContainerRequest(
    pod_sandbox_id="p1",
    config=cri.ContainerConfig(
        envs=[cri.KeyValue(key="GPU", value=b"0"), cri.KeyValue(key="RAW", value=b"\xff")],
        annotations={"note": "1"},
        linux=cri.LinuxContainerConfig(
            resources=limits({"cpu_shares": 512, "cpuset_cpus": "0-3", "hugepage_limits": {"2MB": 1}})
        ),
    ),
    sandbox_config=POD_CONFIG,
)
CREATE = KNOWN.SerializeToString() + UNKNOWN
POD = cri.RunPodSandboxRequest(config=POD_CONFIG).SerializeToString() + UNKNOWN
NOVEL = Adjustment(
    annotations={"new": ""},
    envs={"NEW": "1", "ANOTHER": ""},
    resources={"cpuset_cpus": "0", "cpu_shares": 2, "cpu_quota": -1, "unified": {"cpu.idle": "1"}}
    | {"hugepage_limits": {"1GB": 0}},
)
"""Changes of each kind: of something that the request does not have, or of one value."""


OF_POD = Adjustment({"new": ""}, {"new": "1"}, {}, "/x", {"cpu_quota": -1})
UPDATE = cri.UpdateContainerResourcesRequest(container_id="c1").SerializeToString() + UNKNOWN


@pytest.mark.parametrize(
    ("result", "message", "more"),
    [
        (messages.edit_container(CREATE, NOVEL, None), CREATE, {"config"}),
        (messages.edit_container(CREATE, NO_ADJUSTMENT, "/kube/other"), CREATE, {"sandbox_config"}),
        (messages.edit_container(CREATE, NOVEL, "/kube/other"), CREATE, {"config", "sandbox_config"}),
        (messages.edit_pod(POD, OF_POD), POD, {"config"}),
        (messages.edit_update(UPDATE, {"cpu_quota": -1}, {"new": "1"}), UPDATE, {"linux", "annotations"}),
    ],
    ids=["create", "parent of a create", "both", "pod", "update"],
)
def test_new_values_are_appended_to_the_message(result: bytes, message: bytes, more: set[str]) -> None:
    """That they mean the same there as within the message is a property below."""
    assert result.startswith(message)
    kinds = {CREATE: cri.CreateContainerRequest, POD: cri.RunPodSandboxRequest}
    appended = kinds.get(message, cri.UpdateContainerResourcesRequest).FromString(result.removeprefix(message))
    assert {field.name for field, _ in appended.ListFields()} == more


@pytest.mark.parametrize(
    ("adjustment", "parent"),
    [
        pytest.param(Adjustment(envs={"GPU": "1"}), None, id="env that is there"),
        pytest.param(Adjustment(envs={"G": "1"}), None, id="env whose key is a part of what is there"),
        pytest.param(Adjustment(annotations={"note": "2"}), None, id="annotation that is there"),
        pytest.param(Adjustment(envs={"NEW": "1"}, resources={"cpuset_cpus": ""}), None, id="text that is cleared"),
        pytest.param(changed(cpu_shares=0), None, id="number that is cleared"),
        pytest.param(changed(hugepage_limits={"2MB": 2}), None, id="huge page size that is there"),
        pytest.param(NO_ADJUSTMENT, "", id="cgroup parent that is cleared"),
        pytest.param(Adjustment(envs={"NEW": "1"}), "/kube/pod1", id="cgroup parent that is there"),
        pytest.param(Adjustment(envs={"NEW": "1"}, resources={"cpu_shares": 512}), None, id="number that is there"),
    ],
)
def test_present_or_cleared_values_are_changed_in_place(adjustment: Adjustment, parent: str | None) -> None:
    result = messages.edit_container(CREATE, adjustment, parent)
    assert not result.startswith(CREATE)
    assert result.endswith(UNKNOWN)


def test_message_without_edits_is_not_parsed() -> None:
    broken = b"\xff"
    assert messages.edit_pod(broken, NO_ADJUSTMENT) is broken
    assert messages.edit_container(broken, NO_ADJUSTMENT, None) is broken
    assert messages.edit_update(broken, {}, {}) is broken


def test_envs_keep_order_duplicates_and_bytes() -> None:
    envs = [("A", b"1"), ("B", b"\xff"), ("A", b"2"), ("C", b"3")]
    config = cri.ContainerConfig(envs=[cri.KeyValue(key=key, value=value) for key, value in envs])
    message = cri.CreateContainerRequest(pod_sandbox_id="p", config=config).SerializeToString()
    adjustment = Adjustment(envs={"Z": "9", "A": "new", "Y": ""}, labels={"no": "no"}, cgroup_parent="/not/this")
    after = cri.CreateContainerRequest.FromString(messages.edit_container(message, adjustment, None))
    assert [(env.key, env.value) for env in after.config.envs] == [
        *(("A", b"1"), ("B", b"\xff"), ("A", b"new"), ("C", b"3")),
        *(("Y", b""), ("Z", b"9")),
    ]
    assert not after.HasField("sandbox_config")
    assert not after.config.HasField("linux")


def test_entry_keeps_its_unknown_fields() -> None:
    """As in containerd's parser; protobuf's Python parser does not accept such an entry as one of the map."""
    before, after = (b"\x22\x0b\x0a\x01a" + b"\xa2\x06\x02\xff\xfe" + b"\x12\x01" + value for value in (b"1", b"2"))
    request = b"\x0a\x01c" + before
    assert messages.edit_update(request, {}, {"a": "1"}) is request
    assert messages.edit_update(request, {}, {"a": "2"}) == b"\x0a\x01c" + after


TEXTS = st.sampled_from(("", "a", "A", "2MB")) | st.text(max_size=3)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=2)
INT64 = st.integers(-(2**63), 2**63 - 1)
CHANGES: st.SearchStrategy[Changes] = st.fixed_dictionaries(
    {},
    optional={
        "cpu_quota": INT64,
        "oom_score_adj": INT64,
        "cpuset_cpus": TEXTS,
        "hugepage_limits": st.dictionaries(TEXTS, st.integers(0, 2**64 - 1), min_size=1, max_size=2),
        "unified": st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=2),
    },
)
ADJUSTMENTS = st.builds(
    Adjustment, labels=MAPS, annotations=MAPS, envs=MAPS, cgroup_parent=st.none() | TEXTS, resources=CHANGES
)


def edit_create(message: bytes, change: Adjustment) -> bytes:
    return messages.edit_container(message, change, change.cgroup_parent)


def edit_update(message: bytes, change: Adjustment) -> bytes:
    return messages.edit_update(message, change.resources, change.annotations)


def as_is(value: str | None, change: str | None) -> str | None:
    return value if change is None else change


def stated(resources: Resources | None, change: Mapping[str, ResourceValue] = {}) -> Resources:
    """Return resources after a change, without a difference between unset and set to nothing."""
    return overlay(resources, change) or Resources()


def pod_with(message: bytes, change: Adjustment) -> object:
    pod = messages.read_pod(message)
    return replace(
        pod,
        labels={**pod.labels, **change.labels},
        annotations={**pod.annotations, **change.annotations},
        cgroup_parent=as_is(pod.cgroup_parent, change.cgroup_parent),
        resources=stated(pod.resources, change.resources),
    )


def create_with(message: bytes, change: Adjustment) -> object:
    container, pod = messages.read_container(message)
    annotations, envs = {**container.annotations, **change.annotations}, {**container.envs, **change.envs}
    resources = stated(container.resources, change.resources)
    parent = as_is("" if pod is None else pod.cgroup_parent, change.cgroup_parent)
    return replace(container, annotations=annotations, envs=envs, resources=resources), parent


def update_with(message: bytes, change: Adjustment) -> object:
    container_id, resources, annotations = messages.read_update(message)
    return container_id, stated(resources, change.resources), {**annotations, **change.annotations}


@dataclass(frozen=True)
class Kind:
    """A request that can be changed: how it is edited, how it reads with a change, which fields a change names."""

    name: str
    edit: Callable[[bytes, Adjustment], bytes]
    with_change: Callable[[bytes, Adjustment], object]
    names: Callable[[Adjustment], rest.Named]

    def reads(self, message: bytes) -> bool:
        """Return whether a message can be read; one that cannot is never edited."""
        try:
            self.with_change(message, NO_ADJUSTMENT)
        except Unreadable:
            return False
        return True


KINDS = [
    Kind("RunPodSandboxRequest", messages.edit_pod, pod_with, rest.in_pod),
    Kind("CreateContainerRequest", edit_create, create_with, rest.in_create),
    Kind("UpdateContainerResourcesRequest", edit_update, update_with, rest.in_update),
]
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@EACH_KIND
@settings(deadline=None)
@given(st.data(), ADJUSTMENTS)
def test_edited_request_means_the_request_with_the_change(kind: Kind, data: st.DataObject, change: Adjustment) -> None:
    message = data.draw(random_messages(DECLARED[kind.name]))
    assume(kind.reads(message))
    result = kind.edit(message, change)
    assert kind.with_change(result, NO_ADJUSTMENT) == kind.with_change(message, change)
    rest.assert_rest_is_untouched(message, result, kind.names(change))
    assert kind.edit(result, change) is result


def parsed(message: bytes, name: str) -> list[bytes]:
    """Return the results of parsing a message with both schemas, serialized for comparison, unknown fields included.

    The runtime's schema rejects more messages: there all text fields must be UTF-8.
    """
    kinds: list[type[Message]] = [getattr(api, name) for api in (api_pb2, cri)]
    with suppress(DecodeError):
        return [kind.FromString(message).SerializeToString(deterministic=True) for kind in kinds]
    return [kinds[0].FromString(message).SerializeToString(deterministic=True)]


@EACH_KIND
@settings(deadline=None)
@given(st.data(), ADJUSTMENTS)
def test_appended_change_means_the_same_as_within(kind: Kind, data: st.DataObject, change: Adjustment) -> None:
    message = data.draw(random_messages(DECLARED[kind.name]))
    assume(kind.reads(message))
    result = kind.edit(message, change)
    with mock.patch.object(messages, "_can_append", return_value=False):
        rewritten = kind.edit(message, change)
    assert parsed(result, kind.name) == parsed(rewritten, kind.name)
    assert result.startswith(message) or result == rewritten


@EACH_KIND
@settings(deadline=None)
@given(st.data())
def test_echo_is_no_change_but_the_same_object(kind: Kind, data: st.DataObject) -> None:
    message = data.draw(random_messages(DECLARED[kind.name]))
    assume(kind.reads(message))
    values: Any = kind.with_change(message, NO_ADJUSTMENT)
    if kind.edit is messages.edit_pod:
        texts = {"labels": values.labels, "annotations": values.annotations, "cgroup_parent": values.cgroup_parent}
        resources = values.resources
    elif kind.edit is edit_create:
        container, parent = values
        texts = {"annotations": container.annotations, "envs": container.envs, "cgroup_parent": parent}
        resources = container.resources
    else:
        _, resources, annotations = values
        texts = {"annotations": annotations}
    echo = Adjustment(**texts, resources={name: getattr(resources, name) for name in RESOURCE_FIELDS})
    assert kind.edit(message, echo) is message


EVERYTHING = Adjustment({"l": "1"}, {"a": "1"}, {"E": "1"}, "/x", ALL_RESOURCES)


@EACH_KIND
@settings(deadline=None)
@given(st.sampled_from([b"", b"\x0a\x01p", b"\x0a\x01p\x12\x00"]), st.binary(max_size=40))
def test_any_bytes_are_edited_or_refused(kind: Kind, head: bytes, tail: bytes) -> None:
    message, refused = head + tail, ""
    if kind.reads(message):
        try:
            result = kind.edit(message, EVERYTHING)
            assert kind.edit(result, EVERYTHING) is result
        except WireError as error:
            refused = str(error)
    assert not refused or "out of range" in refused  # field number 0, which upb accepts and Go rejects
