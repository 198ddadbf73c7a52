"""Reading and editing CRI requests (hook-api, "What an answer means"); tests/wire/test_protobuf.py shows that other
bytes stay. Unread fields must not matter: requests are made of the fakes' messages, which have more fields."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, reject
from hypothesis import strategies as st

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import api_pb2, messages
from runtimeproxy.cri.messages import read_container, read_id, read_pod, read_pod_update, read_update
from runtimeproxy.hookapi import api_pb2 as hook_pb2
from runtimeproxy.hookapi import codec
from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, ContainerInfo, Envs, HookRequest, PodInfo, Resources, overlay
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.wire.protobuf import LENGTH_DELIMITED, VARINT, varint
from tests.fakes import cri_pb2 as cri

Read = Callable[[bytes], object]

ALL_RESOURCES: dict[str, fields.ResourceValue] = {
    **{"cpu_period": 50000, "cpu_quota": -1, "cpu_shares": 512, "memory_limit_in_bytes": 2**33, "oom_score_adj": -998},
    **{"cpuset_cpus": "2-3", "cpuset_mems": "1", "memory_swap_limit_in_bytes": -1},
    "hugepage_limits": {"2MB": 2**64 - 1, "1GB": 0},
    "unified": {"cpu.idle": "1", "": ""},
}

RESOURCES: Any = overlay(None, ALL_RESOURCES)
PAGES: list[Any] = [{"page_size": size, "limit": limit} for size, limit in (("2MB", 1), ("2MB", 2**64 - 1), ("1GB", 0))]
LIMITS = cri.LinuxContainerResources(**{**ALL_RESOURCES, "hugepage_limits": PAGES})  # with the limit of a size twice
IN_LINUX: Any = {"cgroup_parent": "/kubepods/pod1", "sysctls": {"net.ipv4.ip_forward": "1"}, "resources": LIMITS}
POD_CONFIG = cri.PodSandboxConfig(
    metadata={"name": "web", "uid": "u-1", "namespace": "shop", "attempt": 3},
    hostname="web-0",
    labels={"qos": "BE"},
    annotations={"note": "é"},
    linux={**IN_LINUX, "overhead": {"cpu_quota": 5}},
)
POD = PodInfo(
    *("", "web", "u-1", "shop", 3, "kata", {"qos": "BE"}, {"note": "é"}),
    *("/kubepods/pod1", Resources(cpu_quota=5), RESOURCES),
)

SHARED = ("LinuxContainerResources", "HugepageLimit")  # messages of the hook protocol that CRI has, too
ONLY_DECLARED = {"Identified", "KeyValue"}
RECEIVED = "WithEntries"  # the suffix of the names of messages that keep the envs encoded


@pytest.mark.parametrize("name", [*sorted({*api_pb2.DESCRIPTOR.message_types_by_name} - ONLY_DECLARED), *SHARED])
def test_declared_fields_equal_those_of_fakes(name: str) -> None:
    wide = getattr(cri, name.removesuffix(RECEIVED)).DESCRIPTOR.fields_by_name
    for field in getattr(hook_pb2 if name in SHARED else api_pb2, name).DESCRIPTOR.fields:
        other, received = wide[field.name], (name, field.name) == (f"ContainerConfig{RECEIVED}", "envs")
        assert (field.number, field.is_repeated) == (other.number, other.is_repeated)
        assert field.type == (FieldDescriptor.TYPE_BYTES if received else other.type)


MAIN: Any = {"metadata": {"name": "main", "attempt": 2}, "labels": {"l": "not read"}, "annotations": {"a": "b"}}
CREATE = cri.CreateContainerRequest(
    pod_sandbox_id="p1", config={**MAIN, "linux": {"resources": LIMITS}}, sandbox_config=POD_CONFIG
)
CREATED = ContainerInfo("", "p1", "main", 2, {"a": "b"}, RESOURCES), replace(POD, runtime_handler="")
UPDATE, UPDATE_POD = cri.UpdateContainerResourcesRequest, cri.UpdatePodSandboxResourcesRequest
REQUESTS = [
    (read_pod, cri.RunPodSandboxRequest(config=POD_CONFIG, runtime_handler="kata"), POD),
    (read_pod, cri.RunPodSandboxRequest(config=cri.PodSandboxConfig()), PodInfo()),
    (read_container, CREATE, CREATED),
    (read_container, cri.CreateContainerRequest(pod_sandbox_id="p1", config={}), (ContainerInfo(pod_id="p1"), None)),
    (read_id, cri.StopContainerRequest(container_id="x1", timeout=30), "x1"),
    (read_id, cri.RunPodSandboxResponse(pod_sandbox_id="x1"), "x1"),
    (read_update, UPDATE(container_id="c1", linux=LIMITS, annotations={"a": "b"}), ("c1", RESOURCES, {"a": "b"})),
    (read_update, UPDATE(container_id="c1"), ("c1", None, {})),
    (read_pod_update, UPDATE_POD(overhead={"cpu_shares": 2}, resources=LIMITS), (Resources(cpu_shares=2), RESOURCES)),
    (read_pod_update, UPDATE_POD(pod_sandbox_id="p1"), (None, None)),
]


@pytest.mark.parametrize(("read", "request_", "expected"), REQUESTS)
def test_requests_are_read(read: Read, request_: Message, expected: object) -> None:
    assert read(request_.SerializeToString()) == expected


def env(payload: bytes) -> bytes:
    return b"\x32" + bytes((len(payload),)) + payload


def created(*envs: bytes) -> ContainerInfo:
    config = b"".join(envs)
    return read_container(b"\x0a\x01p\x12" + bytes((len(config),)) + config)[0]


PLAIN = env(b"\x0a\x01A\x12\x011"), env(b"\x0a\x01B"), env(b"\x12\x02\xc3\xa9\x0a\x01C"), env(b"")
EXPECTED = {"A": "1", "B": "", "C": "é", "": ""}
ODD_ENVS = {
    "a value that is not UTF-8": ([env(b"\x0a\x01Z\x12\x01\xff")], {}),
    "a key that is not UTF-8": ([env(b"\x0a\x01\xff\x12\x00")], {}),
    "a key twice": ([env(b"\x0a\x01A\x12\x012")], {"A": "2"}),
    "a key twice, at last not UTF-8": ([env(b"\x0a\x01Z\x12\x012"), env(b"\x0a\x01Z\x12\x01\xff")], {}),
    "a field that nobody knows": ([env(b"\x0a\x01Z\x12\x01z\x18\x01")], {"Z": "z"}),
    "a number in the place of a text": ([env(b"\x0a\x01Z\x10\x01")], {"Z": ""}),
}
MANY = 300_000
EMPTY_ENVS = b"\x12" + varint(2 * MANY) + b"\x32\x00" * MANY
EMPTY_PAGES = b"\x0a" + varint(2 * MANY) + b"\x42\x00" * MANY
LINUX = b"\x7a" + varint(len(EMPTY_PAGES)) + EMPTY_PAGES  # of a config
UNREADABLE: list[tuple[Read, bytes, str]] = [
    (read_pod, b"", "without a config"),
    (read_container, b"\x12\x00", "without"),
    (read_id, b"", "without an id"),
    (read_update, b"\x12\x00", "without an id"),
    (read_pod, b"\x0a\x05canary", "RunPodSandboxRequest with a broken field"),
    (read_container, b"\x0a\x07canary\xff", "CreateContainerRequest with a broken field"),
    (read_container, b"\x0a\x01p\x12\x07" + env(b"\x0a\x05A\x12\x00"), "with a broken field"),
    (read_id, b"\x0a\x07canary\xff", "Identified with a broken field"),
    (read_update, b"\x12\x02\x08", "UpdateContainerResourcesRequest with a broken field"),
    (read_pod_update, b"\x12\x02\x08", "UpdatePodSandboxResourcesRequest with a broken field"),
]
TOO_MANY: list[tuple[Read, bytes]] = [
    (read_container, b"\x0a\x01p" + EMPTY_ENVS),
    (read_container, b"\x0a\x01p" + b"\x12" + varint(len(LINUX)) + LINUX),
    (read_container, b"\x0a\x01p" + b"\x12\x00" * MANY),
    (read_container, b"\x0a\x01p" + EMPTY_ENVS + b"\x0f"),
    (read_container, b"\x0f" * 2 * MANY),
    (read_pod, b"\x0a" + varint(2 * MANY) + b"\x32\x00" * MANY),
    (read_update, b"\x0a\x01c" + b"\x1a\x00" * MANY),
    (read_pod_update, b"\x0a\x01p\x12" + varint(2 * MANY) + b"\x42\x00" * MANY),
    (read_id, b"\x0a\x01p" * MANY),
]


@pytest.mark.parametrize("entries", [(), PLAIN], ids=["none", "some"])
def test_plain_envs_are_sent_as_received(entries: tuple[bytes, ...]) -> None:
    container = created(*entries)
    assert isinstance(container.envs, Envs)
    assert container.envs == (EXPECTED if entries else {})
    notified = codec.encode(BY_NAME["PreCreateContainer"], HookRequest(PodInfo(), container))
    assert all(b"\x4a" + entry[1:] in notified for entry in entries)


@pytest.mark.parametrize(("odd", "added"), ODD_ENVS.values(), ids=ODD_ENVS)
def test_all_envs_are_parsed_when_any_is_odd(odd: list[bytes], added: dict[str, str]) -> None:
    container = created(*PLAIN, *odd)
    assert type(container.envs) is dict
    assert container.envs == {**EXPECTED, **added}


@pytest.mark.parametrize(("read", "message", "problem"), UNREADABLE)
def test_unreadable_request_raises(read: Read, message: bytes, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as raised:
        read(message)
    assert "canary" not in str(raised.value)


@given(st.binary(max_size=60), st.sampled_from((read_pod, read_container, read_id, read_update, read_pod_update)))
def test_any_bytes_are_read_or_unreadable(message: bytes, read: Read) -> None:
    with suppress(Unreadable):
        read(message)


@pytest.mark.parametrize(("read", "message"), TOO_MANY)
def test_request_of_too_many_fields_raises(read: Read, message: bytes) -> None:
    with pytest.raises(Unreadable, match=r"request with more than 131072 fields|wire type"):
        read(message)


def test_long_request_with_few_fields_is_read() -> None:
    """Those that are not read need no valid text: working_dir and an unknown field."""
    bare, _ = read_container(b"\x0a\x01p\x12\x05\x2a\x01\xff\x70\x01\xf2\x0f\x02\xff\xfe")
    assert bare == ContainerInfo(pod_id="p")
    config = cri.ContainerConfig(envs=[cri.KeyValue(key=b"A", value=b"x" * 500_000)])
    container, _ = read_container(cri.CreateContainerRequest(pod_sandbox_id="p", config=config).SerializeToString())
    assert len(container.envs["A"]) == 500_000


DECLARED = cri.DESCRIPTOR.message_types_by_name
ODD = (  # fields that no message has, or has with another type
    b"\xa2\x06\x02\xff\xfe",  # field 100: not UTF-8
    b"\xab\x06\x08\x01\x0b\x0c\xac\x06",  # a group, and a group in it
    b"\x92\x3f\x81\x80\x00\x7f",  # a length in more bytes than needed
    b"\x88\x80\x00\x00",  # the tag of field 1 in more bytes than needed, of another type than most
    b"\xe5\x07\x01\x02\x03\x04",
    b"\xe1\x07\x01\x02\x03\x04\x05\x06\x07\x08",
    b"\x0d\x0a\x01p\x00",
    b"\xf8\xff\xff\xff\x0f\x01",  # the greatest field number
)
NUMBERS = st.sampled_from((0, 1, 2, 127, 128, 100_000, 2**31, 2**63 - 1, 2**63, 2**64 - 1)).map(varint) | (
    st.sampled_from((b"\x80\x00", b"\x85\x80\x80\x00")) | st.integers(0, 2**64 - 1).map(varint)
)  # also encoded in more bytes than needed
WORDS = (b"", b"a", b"A", b"2MB", b"0-3", b"/kubepods/pod1", "é".encode())
TEXTS = st.sampled_from((*WORDS, *WORDS[1:], b"not UTF-8: \xff")) | st.text(max_size=6).map(str.encode)
KEYS = st.sampled_from((b"a", b"A", b"2MB", b"")) | TEXTS  # few different ones, so that some occur twice
OCTETS = st.sampled_from(WORDS) | st.binary(max_size=6)


def _field(field: FieldDescriptor) -> st.SearchStrategy[bytes]:
    if field.message_type is None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
        return NUMBERS.map(lambda number: varint(field.number << 3 | VARINT) + number)
    if field.message_type is not None:
        values = fields_of(field.message_type)
    elif field.name in ("key", "page_size"):
        values = KEYS
    else:
        values = TEXTS if field.type == field.TYPE_STRING else OCTETS
    tag = varint(field.number << 3 | LENGTH_DELIMITED)
    return values.map(lambda payload: tag + varint(len(payload)) + payload)


@cache
def fields_of(message: Descriptor) -> st.SearchStrategy[bytes]:
    """Return random fields of a message; a message type of few fields has all of them, in order, in half the cases.

    A map's entry gets no unknown fields: parsers do not agree on the meaning of such an entry.
    """
    declared = [_field(field) for field in message.fields]
    odd = [] if message.GetOptions().map_entry else [st.sampled_from(ODD)]
    mixed = st.lists(st.one_of(*declared, *odd), max_size=8).map(b"".join)
    # at most 3: map entries, a create with its two configs
    return mixed | st.tuples(*declared).map(b"".join) if 0 < len(declared) <= 3 else mixed


TIMES = st.sampled_from((*(1,) * 14, 2, 60))
# Unknown fields: bytes that are not UTF-8, a group, and a length in more bytes than needed.
UNKNOWN = b"\xa2\x06\x02\xff\xfe\xab\x06\xac\x06" + b"\x92\x3f\x81\x80\x00\x7f"
IN_RESOURCES: Any = {"cpu_shares": 512, "cpuset_cpus": "0-3", "hugepage_limits": PAGES[:1]}
ENVS: Any = [{"key": "GPU", "value": b"0"}, {"key": "RAW", "value": b"\xff"}]
EDITED = cri.CreateContainerRequest(
    pod_sandbox_id="p1",
    config={"envs": ENVS, "annotations": {"note": "1"}, "linux": {"resources": IN_RESOURCES}},
    sandbox_config={"linux": {"cgroup_parent": "/kube/pod1"}},
)
EDITED_BYTES = EDITED.SerializeToString() + UNKNOWN
NOVEL = Adjustment(  # of each kind: of something that the request does not have, or of one value
    annotations={"new": ""},
    envs={"NEW": "1", "ANOTHER": ""},
    resources={"cpuset_cpus": "0", "cpu_quota": -1, "unified": {"cpu.idle": "1"}, "hugepage_limits": {"1GB": 0}},
)
NEW = {"NEW": "1"}
EDITS: dict[str, tuple[Adjustment, str | None]] = {
    "new values": (NOVEL, "/kube/other"),
    "env that is there": (Adjustment(envs={"GPU": "1"}), None),
    "env whose key is a part of what is there": (Adjustment(envs={"G": "1"}), None),
    "annotation that is there": (Adjustment(annotations={"note": "2"}), None),
    "text that is cleared": (Adjustment(envs=NEW, resources={"cpuset_cpus": ""}), None),
    "number that is cleared": (Adjustment(resources={"cpu_shares": 0}), None),
    "page size that is there": (Adjustment(resources={"hugepage_limits": {"2MB": 2}}), None),
    "cgroup parent that is cleared": (fields.NO_ADJUSTMENT, ""),
    "cgroup parent that is there": (Adjustment(envs=NEW), "/kube/pod1"),
    "number that is there": (Adjustment(envs=NEW, resources={"cpu_shares": 512}), None),
}
STRINGS = st.sampled_from(("", "a", "A", "2MB")) | st.text(max_size=3)
MAPS = st.dictionaries(STRINGS, STRINGS, max_size=2)
INT64 = st.integers(-(2**63), 2**63 - 1)
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {"cpu_quota": INT64, "oom_score_adj": INT64, "cpuset_cpus": STRINGS}
OPTIONAL["hugepage_limits"] = st.dictionaries(STRINGS, st.integers(0, 2**64 - 1), min_size=1, max_size=2)
OPTIONAL["unified"] = st.dictionaries(STRINGS, STRINGS, min_size=1, max_size=2)
CHANGES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional=OPTIONAL)
ADJUSTMENTS = st.builds(
    Adjustment, labels=MAPS, annotations=MAPS, envs=MAPS, cgroup_parent=st.none() | STRINGS, resources=CHANGES
)
MEMORY_AND_SWAP = [
    pytest.param((9, 9), (0, 0), -1, False, (0, None), id="there is no limit but the update's own"),
    pytest.param((0, 0), (9, 9), -1, True, (-1, -1), id="a limit and swap are lifted"),
    pytest.param((0, 0), (9, 9), -1, False, (None, None), id="a runtime that cannot lift it"),
    pytest.param((6, 0), (5, 5), 7, False, (7, 7), id="held next to new"),
    pytest.param((0, 9), (9, 5), 7, False, (7, 7), id="new, memory held"),
    pytest.param((0, 0), (5, 9), 7, False, (7, None), id="another swap limit"),
    pytest.param((0, 0), (0, 0), 7, False, (7, None), id="no limit before"),
    pytest.param((0, 0), (5, 5), 0, True, (0, None), id="0 leaves what is"),
]


def test_update_values() -> None:
    stated: dict[str, Any] = {"cpuset_cpus": "0", "unified": {"a": "1"}}
    for changes, unsupported in ({"oom_score_adj": 3}, ("oom_score_adj",)), ({}, ()):
        found = messages.values_for_update({**stated, **changes}, Resources(cpuset_cpus="0-3", cpu_shares=7))
        assert found == (stated, unsupported)
    cleared = {"cpuset_cpus": ""}
    assert messages.values_for_update(cleared, Resources(cpuset_cpus="0-3")) == (cleared, ("cpuset_cpus",))
    assert messages.values_for_update(cleared, None) == (cleared, ()), "it has none"


def memory_and_swap(memory: int, swap: int) -> Resources:
    return Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)


def test_create_memory_and_swap() -> None:
    """An equal swap limit moves or is lifted with the memory limit, unless the hook sets it."""
    both = {fields.MEMORY: 7, fields.SWAP: 8}
    for changes, made in ({fields.MEMORY: -1}, (0, 0)), ({fields.MEMORY: 3}, (3, 3)), (both, (7, 8)):
        stated = messages.values_for_create(Adjustment(resources=changes), memory_and_swap(5, 5))
        assert overlay(memory_and_swap(5, 5), stated.resources) == memory_and_swap(*made)
    stated = messages.values_for_create(Adjustment(resources={fields.SWAP: -1}), memory_and_swap(5, 5))
    assert overlay(memory_and_swap(5, 5), stated.resources) == memory_and_swap(5, -1)


@pytest.mark.parametrize(("requested", "present", "change", "lifts", "sent"), MEMORY_AND_SWAP)
def test_update_memory_and_swap(requested: Any, present: Any, change: int, lifts: bool, sent: Any) -> None:
    values, unsupported = messages.values_for_update(
        {fields.MEMORY: change}, memory_and_swap(*present), memory_and_swap(*requested), accepts_unlimited_memory=lifts
    )
    assert (values.get(fields.MEMORY), values.get(fields.SWAP)) == sent
    assert unsupported == ((fields.MEMORY,) if sent[0] is None or (change == 0 and present[0]) else ())


def test_update_request_is_partial() -> None:
    base = Resources(cpu_shares=2, cpuset_cpus="0", unified={"a": "1", "b": "1"})
    changes: list[dict[str, Any]] = [{"cpuset_cpus": "1"}, {"unified": {"a": "2"}}, {}, ALL_RESOURCES]
    sent = [messages.update_request("c1", change, base if change in changes[:2] else None) for change in changes]
    expected = [Resources(cpuset_cpus="1"), Resources(unified={"a": "2", "b": "1"}), None, RESOURCES]
    assert [messages.read_update(request) for request in sent] == [("c1", resources, {}) for resources in expected]


@pytest.mark.parametrize(("adjustment", "parent"), EDITS.values(), ids=EDITS)
def test_only_new_values_are_appended(adjustment: Adjustment, parent: str | None) -> None:
    result = messages.edit_container(EDITED_BYTES, adjustment, parent)
    assert result.startswith(EDITED_BYTES) is (adjustment is NOVEL)
    assert UNKNOWN in result
    envs = cri.CreateContainerRequest.FromString(result).config.envs
    assert adjustment.envs.items() <= {entry.key: entry.value.decode("latin-1") for entry in envs}.items()
    assert messages.edit_pod(UNKNOWN, Adjustment(labels=NEW)).startswith(UNKNOWN)
    assert messages.edit_update(UNKNOWN, {}, NEW).startswith(UNKNOWN)


def test_entry_keeps_its_unknown_fields() -> None:
    """As in containerd's parser; protobuf's Python parser does not accept such an entry as one of the map."""
    broken = b"\xff"
    assert all(kind.edit(broken, fields.NO_ADJUSTMENT) is broken for kind in KINDS), "it is not parsed without edits"
    before, after = (b"\x22\x0b\x0a\x01a" + b"\xa2\x06\x02\xff\xfe" + b"\x12\x01" + value for value in (b"1", b"2"))
    request = b"\x0a\x01c" + before
    assert messages.edit_update(request, {}, {"a": "1"}) is request
    assert messages.edit_update(request, {}, {"a": "2"}) == b"\x0a\x01c" + after


class Kind(NamedTuple):
    """A request that can be changed: its type, how it is read and edited, and the places of a change in its fields."""

    type: Any
    read: Callable[[bytes], Any]
    edit: Callable[[bytes, Adjustment], bytes]
    values: Callable[[Adjustment], Mapping[str, Any]]

    def draw(self, data: st.DataObject) -> tuple[bytes, Any]:
        """Draw a message that can be read, with what is read of it; an unreadable message is never edited."""
        message = data.draw(fields_of(DECLARED[self.type.DESCRIPTOR.name])) * data.draw(TIMES)
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
LISTS = {"envs": ("key", "value"), "hugepage_limits": ("page_size", "limit")}  # by list: the names of key and value


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
    echo = Adjustment(
        **texts, resources={name: getattr(resources or Resources(), name) for name in fields.RESOURCE_FIELDS}
    )
    assert kind.edit(message, echo) is message
