"""Editing CRI requests (hook-api, "What an answer means"); tests/wire/test_protobuf.py shows that other bytes stay."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest import mock

import pytest
from google.protobuf.message import Message
from hypothesis import given, reject
from hypothesis import strategies as st

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import api_pb2, messages
from runtimeproxy.model.fields import MEMORY, NO_ADJUSTMENT, RESOURCE_FIELDS, SWAP, Adjustment, Resources, overlay
from tests.cri.messages import ALL_RESOURCES, limits, random_messages
from tests.fakes import cri_pb2 as cri

Changes = dict[str, Any]
UNKNOWN = b"\xa2\x06\x02\xff\xfe\xab\x06\xac\x06" + b"\x92\x3f\x81\x80\x00\x7f"
"""Unknown fields: bytes that are not UTF-8, a group, and a length in more bytes than needed."""


def test_update_values() -> None:
    stated: Changes = {"cpuset_cpus": "0", "unified": {"a": "1"}}
    for changes, unsupported in ({"oom_score_adj": 3}, ("oom_score_adj",)), ({}, ()):
        found = messages.values_for_update({**stated, **changes}, Resources(cpuset_cpus="0-3", cpu_shares=7))
        assert found == (stated, unsupported)
    cleared = {"cpuset_cpus": ""}
    assert messages.values_for_update(cleared, Resources(cpuset_cpus="0-3")) == (cleared, ("cpuset_cpus",))
    assert messages.values_for_update(cleared, None) == (cleared, ()), "it has none"


def memory_and_swap(memory: int, swap: int) -> Resources:
    return Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)


@pytest.mark.parametrize(
    ("requested", "changes", "made"),
    [
        pytest.param((5, 5), {"memory": -1}, (0, 0), id="an equal swap limit is lifted with it"),
        pytest.param((5, 5), {"memory": 3}, (3, 3), id="an equal swap limit moves"),
        pytest.param((5, 5), {"memory": 7, "memory_swap": 8}, (7, 8), id="a hook's own"),
        pytest.param((5, 5), {"memory_swap": -1}, (5, -1), id="a hook's swap limit alone"),
    ],
)
def test_create_memory_and_swap(requested: tuple[int, int], changes: dict[str, int], made: tuple[int, int]) -> None:
    adjustment = Adjustment(resources={f"{name}_limit_in_bytes": value for name, value in changes.items()})
    stated = messages.values_for_create(adjustment, memory_and_swap(*requested))
    assert overlay(memory_and_swap(*requested), stated.resources) == memory_and_swap(*made)


@pytest.mark.parametrize(
    ("requested", "present", "change", "lifts", "sent"),
    [
        pytest.param((9, 9), (0, 0), -1, False, (0, None), id="there is no limit but the update's own"),
        pytest.param((0, 0), (9, 9), -1, True, (-1, -1), id="a limit and swap are lifted"),
        pytest.param((0, 0), (9, 9), -1, False, (None, None), id="a runtime that cannot lift it"),
        pytest.param((6, 0), (5, 5), 7, False, (7, 7), id="held next to new"),
        pytest.param((0, 9), (9, 5), 7, False, (7, 7), id="new, memory held"),
        pytest.param((0, 0), (5, 9), 7, False, (7, None), id="another swap limit"),
        pytest.param((0, 0), (0, 0), 7, False, (7, None), id="no limit before"),
        pytest.param((0, 0), (5, 5), 0, True, (0, None), id="0 leaves what is"),
    ],
)
def test_update_memory_and_swap(
    requested: tuple[int, int], present: tuple[int, int], change: int, lifts: bool, sent: tuple[int | None, int | None]
) -> None:
    values, unsupported = messages.values_for_update(
        {MEMORY: change}, memory_and_swap(*present), memory_and_swap(*requested), accepts_unlimited_memory=lifts
    )
    assert (values.get(MEMORY), values.get(SWAP)) == sent
    assert unsupported == ((MEMORY,) if sent[0] is None or (change == 0 and present[0]) else ())


BASE = Resources(cpu_shares=2, cpuset_cpus="0", unified={"a": "1", "b": "1"})


@pytest.mark.parametrize(
    ("changes", "base", "expected"),
    [
        ({}, None, None),
        ({"cpuset_cpus": "1"}, BASE, Resources(cpuset_cpus="1")),
        ({"unified": {"a": "2"}}, BASE, Resources(unified={"a": "2", "b": "1"})),
        (ALL_RESOURCES, None, overlay(None, ALL_RESOURCES)),
    ],
)
def test_update_request_is_partial(changes: Changes, base: Resources | None, expected: Resources | None) -> None:
    assert messages.read_update(messages.update_request("c1", changes, base)) == ("c1", expected, {})


RESOURCES = limits({"cpu_shares": 512, "cpuset_cpus": "0-3", "hugepage_limits": {"2MB": 1}})
CONFIG = cri.ContainerConfig(
    envs=[cri.KeyValue(key="GPU", value=b"0"), cri.KeyValue(key="RAW", value=b"\xff")],
    annotations={"note": "1"},
    linux=cri.LinuxContainerConfig(resources=RESOURCES),
)
POD_CONFIG = cri.PodSandboxConfig(linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kube/pod1"))
CREATE_REQUEST = cri.CreateContainerRequest(pod_sandbox_id="p1", config=CONFIG, sandbox_config=POD_CONFIG)
CREATE = CREATE_REQUEST.SerializeToString() + UNKNOWN
NOVEL = Adjustment(
    annotations={"new": ""},
    envs={"NEW": "1", "ANOTHER": ""},
    resources={"cpuset_cpus": "0", "cpu_quota": -1, "unified": {"cpu.idle": "1"}, "hugepage_limits": {"1GB": 0}},
)
"""Changes of each kind: of something that the request does not have, or of one value."""
NEW = {"NEW": "1"}
NOT_APPENDED: dict[str, tuple[Adjustment, str | None]] = {
    "env that is there": (Adjustment(envs={"GPU": "1"}), None),
    "env whose key is a part of what is there": (Adjustment(envs={"G": "1"}), None),
    "annotation that is there": (Adjustment(annotations={"note": "2"}), None),
    "text that is cleared": (Adjustment(envs=NEW, resources={"cpuset_cpus": ""}), None),
    "number that is cleared": (Adjustment(resources={"cpu_shares": 0}), None),
    "page size that is there": (Adjustment(resources={"hugepage_limits": {"2MB": 2}}), None),
    "cgroup parent that is cleared": (NO_ADJUSTMENT, ""),
    "cgroup parent that is there": (Adjustment(envs=NEW), "/kube/pod1"),
    "number that is there": (Adjustment(envs=NEW, resources={"cpu_shares": 512}), None),
}


@pytest.mark.parametrize(("adjustment", "parent"), [(NOVEL, "/kube/other"), *NOT_APPENDED.values()])
def test_only_new_values_are_appended(adjustment: Adjustment, parent: str | None) -> None:
    result = messages.edit_container(CREATE, adjustment, parent)
    assert result.startswith(CREATE) is (adjustment is NOVEL)
    assert UNKNOWN in result
    envs = cri.CreateContainerRequest.FromString(result).config.envs
    assert adjustment.envs.items() <= {entry.key: entry.value.decode("latin-1") for entry in envs}.items()
    assert messages.edit_pod(UNKNOWN, Adjustment(labels=NEW)).startswith(UNKNOWN)
    assert messages.edit_update(UNKNOWN, {}, NEW).startswith(UNKNOWN)


def test_message_without_edits_is_not_parsed() -> None:
    broken = b"\xff"
    for kind in KINDS:
        assert kind.edit(broken, NO_ADJUSTMENT) is broken


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


class Kind(NamedTuple):
    """A request that can be changed: its type, how it is read and edited, and the places of a change in its fields."""

    type: Any
    read: Callable[[bytes], Any]
    edit: Callable[[bytes, Adjustment], bytes]
    values: Callable[[Adjustment], Mapping[str, Any]]

    def draw(self, data: st.DataObject) -> tuple[bytes, Any]:
        """Draw a message that can be read, with what is read of it; an unreadable message is never edited."""
        message = data.draw(random_messages(self.type.DESCRIPTOR.name))
        try:
            return message, self.read(message)
        except Unreadable:
            reject()


def in_pod(change: Adjustment) -> Mapping[str, Any]:
    linux = {"cgroup_parent": change.cgroup_parent, "resources": change.resources}
    return {"config": {"labels": change.labels, "annotations": change.annotations, "linux": linux}}


def in_create(change: Adjustment) -> Mapping[str, Any]:
    config = {"envs": change.envs, "annotations": change.annotations, "linux": {"resources": change.resources}}
    return {"config": config, "sandbox_config": {"linux": {"cgroup_parent": change.cgroup_parent}}}


KINDS = [
    Kind(api_pb2.RunPodSandboxRequest, messages.read_pod, messages.edit_pod, in_pod),
    Kind(
        api_pb2.CreateContainerRequest,
        messages.read_container,
        lambda message, change: messages.edit_container(message, change, change.cgroup_parent),
        in_create,
    ),
    Kind(
        api_pb2.UpdateContainerResourcesRequest,
        messages.read_update,
        lambda message, change: messages.edit_update(message, change.resources, change.annotations),
        lambda change: {"linux": change.resources, "annotations": change.annotations},
    ),
]
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type.DESCRIPTOR.name)
LISTS = {"envs": ("key", "value"), "hugepage_limits": ("page_size", "limit")}
"""Lists whose messages have a key, with the names of the key and the value."""


def put(message: Any, values: Mapping[str, Any]) -> None:
    """Put values into a parsed message, into the last entry of a key."""
    for name, value in values.items():
        field = getattr(message, name)
        if name in LISTS:
            for key, entry in sorted(value.items()):
                key, entry = (key.encode(), entry.encode()) if name == "envs" else (key, entry)
                of_key, of_value = LISTS[name]
                items = [item for item in field if getattr(item, of_key) == key] or [field.add(**{of_key: key})]
                setattr(items[-1], of_value, entry)
        elif isinstance(field, Message):
            put(field, value)
        elif isinstance(value, Mapping):
            field.update(value)
        elif value is not None and value != field:
            setattr(message, name, value)


@EACH_KIND
@pytest.mark.parametrize("appends", [True, False])
@given(st.data(), ADJUSTMENTS)
def test_edit_changes_only_given_fields(kind: Kind, appends: bool, data: st.DataObject, change: Adjustment) -> None:
    """protobuf's parser (upb) is the oracle; it retains unknown fields."""
    message, _ = kind.draw(data)
    expected = kind.type.FromString(message)
    put(expected, kind.values(change))
    with nullcontext() if appends else mock.patch.object(messages, "_can_append", return_value=False):
        result = kind.edit(message, change)
        assert kind.edit(result, change) is result
    actual = kind.type.FromString(result)
    assert actual.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@EACH_KIND
@given(st.data())
def test_unchanged_message_is_same_object(kind: Kind, data: st.DataObject) -> None:
    message, values = kind.draw(data)
    if kind.values is in_pod:
        texts = {"labels": values.labels, "annotations": values.annotations, "cgroup_parent": values.cgroup_parent}
        resources = values.resources
    elif kind.values is in_create:
        container, pod = values
        parent = "" if pod is None else pod.cgroup_parent
        texts = {"annotations": container.annotations, "envs": container.envs, "cgroup_parent": parent}
        resources = container.resources
    else:
        _, resources, annotations = values
        texts = {"annotations": annotations}
    echo = Adjustment(**texts, resources={name: getattr(resources or Resources(), name) for name in RESOURCE_FIELDS})
    assert kind.edit(message, echo) is message
