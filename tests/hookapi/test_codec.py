"""Hook messages on the wire: the numbers of hook-api, "On the wire", every field filled, both sides of the protocol."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.caches import CONTAINER_PARTS, POD_PARTS
from runtimeproxy.envs import changed
from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import api_pb2, codec, entries_pb2
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, SubjectKind
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources

POD_POINT = BY_NAME["PreRunPodSandbox"]
CONTAINER_POINT = BY_NAME["PreCreateContainer"]
POINTS = pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: str(point.name))

SENT = Resources(
    cpu_period=100_000,
    cpu_quota=-1,
    cpu_shares=512,
    memory_limit_in_bytes=2**40,
    oom_score_adj=-998,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits={"2MB": 2**21, "1GB": 2**63},
    unified={"memory.high": "max"},
    memory_swap_limit_in_bytes=2**41,
)
POD = PodInfo(
    name="web",
    uid="u-1",
    namespace="shop",
    attempt=2,
    runtime_handler="kata",
    labels={"app": "web"},
    annotations={"note": "é", "empty": ""},
    cgroup_parent="/kubepods/podu-1",
    overhead=Resources(cpu_shares=2),
    resources=SENT,
)
CONTAINER = ContainerInfo(
    id="c1", name="main", attempt=3, annotations={"hash": "1"}, resources=SENT, envs={"PATH": "/bin", "EMPTY": ""}
)
ANSWER = HookAnswer(labels={"l": "1"}, annotations={"a": "1"}, envs={"E": "1"}, cgroup_parent="/x", resources=SENT)


def request_at(point: HookPoint) -> HookRequest:
    return HookRequest(POD, CONTAINER if point.subject is SubjectKind.CONTAINER else None)


# -- the protocol ----------------------------------------------------------------------------------------------------

MAP = "map"
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "PodSandboxMetadata": {
        "name": (1, "string"),
        "uid": (2, "string"),
        "namespace": (3, "string"),
        "attempt": (4, "uint32"),
    },
    "PodSandboxHookRequest": {
        "pod_meta": (1, "PodSandboxMetadata"),
        "runtime_handler": (2, "string"),
        "labels": (3, MAP),
        "annotations": (4, MAP),
        "cgroup_parent": (5, "string"),
        "overhead": (6, "LinuxContainerResources"),
        "resources": (7, "LinuxContainerResources"),
    },
    "PodSandboxHookResponse": {
        "labels": (1, MAP),
        "annotations": (2, MAP),
        "cgroup_parent": (3, "string"),
        "resources": (4, "LinuxContainerResources"),
    },
    "LinuxContainerResources": {
        "cpu_period": (1, "int64"),
        "cpu_quota": (2, "int64"),
        "cpu_shares": (3, "int64"),
        "memory_limit_in_bytes": (4, "int64"),
        "oom_score_adj": (5, "int64"),
        "cpuset_cpus": (6, "string"),
        "cpuset_mems": (7, "string"),
        "hugepage_limits": (8, "HugepageLimit"),
        "unified": (9, MAP),
        "memory_swap_limit_in_bytes": (10, "int64"),
    },
    "HugepageLimit": {"page_size": (1, "string"), "limit": (2, "uint64")},
    "ContainerMetadata": {"name": (1, "string"), "attempt": (2, "uint32"), "id": (3, "string")},
    "ContainerResourceHookRequest": {
        "pod_meta": (1, "PodSandboxMetadata"),
        "container_meta": (2, "ContainerMetadata"),
        "container_annotations": (3, MAP),
        "container_resources": (4, "LinuxContainerResources"),
        "pod_resources": (5, "LinuxContainerResources"),
        "pod_annotations": (6, MAP),
        "pod_labels": (7, MAP),
        "pod_cgroup_parent": (8, "string"),
        "container_envs": (9, MAP),
    },
    "ContainerResourceHookResponse": {
        "container_annotations": (1, MAP),
        "container_resources": (2, "LinuxContainerResources"),
        "pod_cgroup_parent": (3, "string"),
        "container_envs": (4, MAP),
    },
}
"""The first table of hook-api: each message's fields with number and type."""


def type_of(field: Any) -> str:
    names = {field.TYPE_STRING: "string", field.TYPE_INT64: "int64", field.TYPE_UINT32: "uint32"}
    names |= {field.TYPE_UINT64: "uint64"}
    if field.message_type is None:
        return names[field.type]
    return MAP if field.message_type.GetOptions().map_entry else str(field.message_type.name)


def test_the_messages_have_the_names_numbers_and_types_of_the_protocol() -> None:
    found = {
        name: {field.name: (field.number, type_of(field)) for field in message.fields}
        for name, message in api_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == MESSAGES
    assert api_pb2.DESCRIPTOR.package == "runtime.v1alpha1"


def test_envs_that_are_passed_on_stand_where_the_protocol_has_them() -> None:
    [ours] = entries_pb2.ContainerEnvs.DESCRIPTOR.fields
    theirs = api_pb2.ContainerResourceHookRequest.DESCRIPTOR.fields_by_name[ours.name]
    assert (ours.number, ours.is_repeated, ours.type) == (theirs.number, theirs.is_repeated, ours.TYPE_BYTES)


def test_the_service_has_one_method_for_each_hook_point() -> None:
    service = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
    found = {method.name: (method.input_type.name, method.output_type.name) for method in service.methods}
    kinds = {SubjectKind.POD: "PodSandboxHook", SubjectKind.CONTAINER: "ContainerResourceHook"}
    assert found == {
        point.method: (f"{kinds[point.subject]}Request", f"{kinds[point.subject]}Response") for point in HOOK_POINTS
    }
    assert service.full_name == codec.SERVICE


@POINTS
def test_method_path(point: HookPoint) -> None:
    assert codec.method_path(point) == f"/runtime.v1alpha1.RuntimeHookService/{point.name}Hook"


# -- the proxy's side ------------------------------------------------------------------------------------------------


def check_resources(message: Any) -> None:
    """Compare each field with SENT by hand, so that a field the codec forgets is seen."""
    assert {field.name for field, _ in message.ListFields()} == set(MESSAGES["LinuxContainerResources"])
    assert (message.cpu_period, message.cpu_quota, message.cpu_shares) == (100_000, -1, 512)
    assert (message.memory_limit_in_bytes, message.memory_swap_limit_in_bytes) == (2**40, 2**41)
    assert (message.oom_score_adj, message.cpuset_cpus, message.cpuset_mems) == (-998, "0-3", "0")
    assert [(entry.page_size, entry.limit) for entry in message.hugepage_limits] == [("2MB", 2**21), ("1GB", 2**63)]
    assert dict(message.unified) == {"memory.high": "max"}


@POINTS
def test_every_field_of_a_request_is_filled(point: HookPoint) -> None:
    kinds: dict[SubjectKind, Any] = {
        SubjectKind.POD: api_pb2.PodSandboxHookRequest,
        SubjectKind.CONTAINER: api_pb2.ContainerResourceHookRequest,
    }
    message = kinds[point.subject].FromString(codec.encode(point, request_at(point)))
    assert {field.name for field, _ in message.ListFields()} == set(MESSAGES[type(message).__name__])
    meta = message.pod_meta
    assert (meta.name, meta.uid, meta.namespace, meta.attempt) == ("web", "u-1", "shop", 2)


def test_a_pod_request() -> None:
    message = api_pb2.PodSandboxHookRequest.FromString(codec.encode(POD_POINT, HookRequest(POD)))
    assert message.runtime_handler == "kata"
    assert dict(message.labels) == {"app": "web"}
    assert dict(message.annotations) == {"note": "é", "empty": ""}
    assert message.cgroup_parent == "/kubepods/podu-1"
    assert message.overhead == api_pb2.LinuxContainerResources(cpu_shares=2)
    check_resources(message.resources)


def test_a_container_request() -> None:
    message = api_pb2.ContainerResourceHookRequest.FromString(
        codec.encode(CONTAINER_POINT, HookRequest(POD, CONTAINER))
    )
    assert message.container_meta == api_pb2.ContainerMetadata(name="main", attempt=3, id="c1")
    assert dict(message.container_annotations) == {"hash": "1"}
    assert dict(message.pod_annotations) == {"note": "é", "empty": ""}
    assert dict(message.pod_labels) == {"app": "web"}
    assert message.pod_cgroup_parent == "/kubepods/podu-1"
    assert dict(message.container_envs) == {"PATH": "/bin", "EMPTY": ""}
    check_resources(message.container_resources)
    check_resources(message.pod_resources)


def test_a_container_under_a_parent_of_its_own() -> None:
    request = HookRequest(POD, ContainerInfo(cgroup_parent="/mine"))
    message = api_pb2.ContainerResourceHookRequest.FromString(codec.encode(CONTAINER_POINT, request))
    assert message.pod_cgroup_parent == "/mine"


def env(key: bytes, value: bytes) -> bytes:
    return b"\x0a" + bytes((len(key),)) + key + b"\x12" + bytes((len(value),)) + value


def test_envs_are_told_as_they_came_under_what_was_set_since() -> None:
    known = codec.envs_of([env(b"A", b"1"), env(b"B", b"2")])
    assert known is not None
    container = replace(CONTAINER, envs=changed(known, {"B": "3", "C": "4"}))
    body = codec.encode(CONTAINER_POINT, HookRequest(POD, container))
    message = api_pb2.ContainerResourceHookRequest.FromString(body)
    assert dict(message.container_envs) == {"A": "1", "B": "3", "C": "4"}
    assert message.container_meta.name == "main"
    odd = replace(container, envs=changed(known, {"B": ODD}), annotations={})
    message = api_pb2.ContainerResourceHookRequest.FromString(codec.encode(CONTAINER_POINT, HookRequest(POD, odd)))
    assert dict(message.container_envs) == {"A": "1"}


@pytest.mark.parametrize(
    "odd", [env(b"Z", b"\xff"), env(b"A", b"2"), env(b"Z", b"") + b"\x18\x01", b"\x08\x01", b"\x0a\x05Z"]
)
def test_envs_that_parsers_may_take_for_others_are_not_told_as_they_came(odd: bytes) -> None:
    assert codec.envs_of([env(b"A", b"1"), odd]) is None


def test_a_part_is_written_once_for_a_value() -> None:
    """And anew for an equal one: a value is known by what it is, not by what it says."""
    pod, container = replace(POD), replace(CONTAINER)
    body = codec.encode(CONTAINER_POINT, HookRequest(pod, container))
    kept = POD_PARTS[id(pod)], CONTAINER_PARTS[id(container)]
    assert (kept[0][0] is pod, kept[1][0] is container, kept[0][1] + kept[1][1]) == (True, True, body)
    assert codec.encode(CONTAINER_POINT, HookRequest(pod, container)) == body
    assert (POD_PARTS[id(pod)], CONTAINER_PARTS[id(container)]) == kept
    other = replace(pod, uid="u-2")
    message = api_pb2.ContainerResourceHookRequest.FromString(
        codec.encode(CONTAINER_POINT, HookRequest(other, container))
    )
    assert (message.pod_meta.uid, message.container_meta.name) == ("u-2", "main")


def test_a_container_that_is_yet_to_be_created_is_told_once() -> None:
    asked = replace(CONTAINER, id="")
    codec.encode(CONTAINER_POINT, HookRequest(POD, asked))
    assert id(asked) not in CONTAINER_PARTS


def test_messages_that_are_not_known_stay_unset() -> None:
    pod = api_pb2.PodSandboxHookRequest.FromString(codec.encode(POD_POINT, HookRequest(PodInfo())))
    assert {field.name for field, _ in pod.ListFields()} == {"pod_meta"}
    request = HookRequest(PodInfo(), ContainerInfo())
    container = api_pb2.ContainerResourceHookRequest.FromString(codec.encode(CONTAINER_POINT, request))
    assert {field.name for field, _ in container.ListFields()} == {"pod_meta", "container_meta"}


def test_a_container_point_needs_a_container() -> None:
    with pytest.raises(ValueError, match="has no container"):
        codec.encode(CONTAINER_POINT, HookRequest(POD))


def test_bytes_of_an_answer_written_by_hand() -> None:
    body = b"\x0a\x06\x0a\x01l\x12\x011" + b"\x1a\x02/x" + b"\x22\x0b\x10" + b"\xff" * 9 + b"\x01"
    assert codec.decode(POD_POINT, body) == HookAnswer(
        labels={"l": "1"}, cgroup_parent="/x", resources=Resources(cpu_quota=-1)
    )
    body = b"\x12\x02\x18\x02" + b"\x1a\x02/x" + b"\x22\x06\x0a\x01E\x12\x011"
    assert codec.decode(CONTAINER_POINT, body) == HookAnswer(
        envs={"E": "1"}, cgroup_parent="/x", resources=Resources(cpu_shares=2)
    )


@POINTS
def test_an_empty_answer_says_nothing(point: HookPoint) -> None:
    assert codec.decode(point, b"") == HookAnswer()


@POINTS
def test_an_empty_resources_message_is_not_an_absent_one(point: HookPoint) -> None:
    empty = HookAnswer(resources=Resources())
    assert codec.decode(point, codec.encode_answer(point, empty)) == empty


@POINTS
def test_fields_that_are_not_known_are_passed_over(point: HookPoint) -> None:
    assert codec.decode(point, b"\x9a\x06\x03abc") == HookAnswer()


def maps_of(answer: HookAnswer) -> list[Any]:
    assert answer.resources is not None
    resources = answer.resources
    return [answer.labels, answer.annotations, answer.envs, resources.hugepage_limits, resources.unified]


@POINTS
def test_a_small_answer_that_came_before_is_known_and_nobody_can_change_it(point: HookPoint) -> None:
    answer = codec.decode(point, codec.encode_answer(point, ANSWER))
    assert codec.decode(point, codec.encode_answer(point, ANSWER)) is answer
    for entries in maps_of(answer):
        with pytest.raises(TypeError, match="does not support item assignment"):
            entries["new"] = "1"
    long = replace(ANSWER, annotations={"long": "x" * 20_000})
    body = codec.encode_answer(point, long)
    assert codec.decode(point, body) == codec.decode(point, body)
    assert codec.decode(point, body) is not codec.decode(point, body)


def test_equal_bytes_about_a_pod_and_a_container_are_two_answers() -> None:
    body = b"\x1a\x02/x"
    assert codec.decode(POD_POINT, body) == codec.decode(CONTAINER_POINT, body) == HookAnswer(cgroup_parent="/x")
    body = b"\x0a\x06\x0a\x01l\x12\x011"
    assert codec.decode(POD_POINT, body) == HookAnswer(labels={"l": "1"})
    assert codec.decode(CONTAINER_POINT, body) == HookAnswer(annotations={"l": "1"})


BROKEN = {
    "cut tag": b"\x80",
    "cut length": b"\x0a\x05ab",
    "text that is not UTF-8": b"\x1a\x02\xff\xfe",
    "group without an end": b"\x0b",
    "wire type 7": b"\x0f",
    "field number 0": b"\x00\x00",
    "text": b"HTTP/1.1 400 Bad Request",
}


@POINTS
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("read", [codec.decode, codec.decode_request], ids=["answer", "request"])
def test_broken_bytes_are_the_peers_fault(
    read: Callable[[HookPoint, bytes], object], body: bytes, point: HookPoint
) -> None:
    with pytest.raises(WireError, match=r"Hook(Request|Response) that is no well-formed"):
        read(point, body)


# -- the hook server's side ------------------------------------------------------------------------------------------


def test_a_pod_request_comes_back_whole() -> None:
    assert codec.decode_request(POD_POINT, codec.encode(POD_POINT, HookRequest(POD))) == HookRequest(POD)


def test_a_container_request_comes_back_with_what_its_message_has() -> None:
    back = codec.decode_request(CONTAINER_POINT, codec.encode(CONTAINER_POINT, HookRequest(POD, CONTAINER)))
    assert back.container == CONTAINER
    assert back.pod == PodInfo(
        name="web",
        uid="u-1",
        namespace="shop",
        attempt=2,
        labels=POD.labels,
        annotations=POD.annotations,
        cgroup_parent=POD.cgroup_parent,
        resources=SENT,
    )


def test_an_answer_comes_back_with_what_its_message_has() -> None:
    pod = codec.decode(POD_POINT, codec.encode_answer(POD_POINT, ANSWER))
    assert pod == HookAnswer(labels={"l": "1"}, annotations={"a": "1"}, cgroup_parent="/x", resources=SENT)
    container = codec.decode(CONTAINER_POINT, codec.encode_answer(CONTAINER_POINT, ANSWER))
    assert container == HookAnswer(annotations={"a": "1"}, envs={"E": "1"}, cgroup_parent="/x", resources=SENT)


# -- text without a UTF-8 form ---------------------------------------------------------------------------------------

ODD = b"\xff\xfe".decode("utf-8", "surrogateescape")
ODD_MAP = {"good": "1", "bad": ODD, ODD: "1"}


def test_entries_and_texts_that_are_not_utf8_are_left_out() -> None:
    resources = Resources(cpu_shares=2, cpuset_cpus=ODD, hugepage_limits={"2MB": 1, ODD: 1}, unified=ODD_MAP)
    pod = PodInfo(name=ODD, uid="u", namespace="n", labels=ODD_MAP, annotations=ODD_MAP, cgroup_parent=ODD)
    container = ContainerInfo(id="c", name=ODD, annotations=ODD_MAP, envs=ODD_MAP, resources=resources)
    kept = {"good": "1"}
    back = codec.decode_request(CONTAINER_POINT, codec.encode(CONTAINER_POINT, HookRequest(pod, container)))
    assert back == HookRequest(
        PodInfo(uid="u", namespace="n", labels=kept, annotations=kept),
        ContainerInfo(
            id="c",
            annotations=kept,
            envs=kept,
            resources=Resources(cpu_shares=2, hugepage_limits={"2MB": 1}, unified=kept),
        ),
    )


def test_texts_of_a_pod_and_of_an_answer_that_are_not_utf8_are_left_out() -> None:
    resources = Resources(cpu_shares=2, cpuset_mems=ODD, hugepage_limits={ODD: 1}, unified=ODD_MAP)
    kept, left = {"good": "1"}, Resources(cpu_shares=2, unified={"good": "1"})
    pod = PodInfo(name=ODD, runtime_handler=ODD, labels=ODD_MAP, cgroup_parent=None, overhead=resources)
    back = codec.decode_request(POD_POINT, codec.encode(POD_POINT, HookRequest(pod)))
    assert back == HookRequest(PodInfo(labels=kept, overhead=left))
    answer = HookAnswer(ODD_MAP, ODD_MAP, ODD_MAP, ODD, resources)
    assert codec.decode(POD_POINT, codec.encode_answer(POD_POINT, answer)) == HookAnswer(kept, kept, {}, "", left)
    said = codec.decode(CONTAINER_POINT, codec.encode_answer(CONTAINER_POINT, answer))
    assert said == HookAnswer({}, kept, kept, "", left)


# -- for any value ---------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=5)
ENTRIES = st.dictionaries(TEXT, TEXT, max_size=3)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
RESOURCES = st.none() | st.builds(
    Resources,
    cpu_period=INT64,
    cpu_quota=INT64,
    cpu_shares=INT64,
    memory_limit_in_bytes=INT64,
    oom_score_adj=INT64,
    cpuset_cpus=TEXT,
    cpuset_mems=TEXT,
    hugepage_limits=st.dictionaries(TEXT, st.integers(0, 2**64 - 1), max_size=2),
    unified=ENTRIES,
    memory_swap_limit_in_bytes=INT64,
)
PODS = st.builds(
    PodInfo,
    id=st.just(""),
    name=TEXT,
    uid=TEXT,
    namespace=TEXT,
    attempt=UINT32,
    runtime_handler=TEXT,
    labels=ENTRIES,
    annotations=ENTRIES,
    cgroup_parent=TEXT,
    overhead=RESOURCES,
    resources=RESOURCES,
)


@given(PODS)
def test_any_pod_comes_back(pod: PodInfo) -> None:
    assert codec.decode_request(POD_POINT, codec.encode(POD_POINT, HookRequest(pod))) == HookRequest(pod)


@given(st.builds(HookAnswer, annotations=ENTRIES, envs=ENTRIES, cgroup_parent=TEXT, resources=RESOURCES))
def test_any_answer_comes_back(answer: HookAnswer) -> None:
    assert codec.decode(CONTAINER_POINT, codec.encode_answer(CONTAINER_POINT, answer)) == answer


@given(st.sampled_from(HOOK_POINTS), st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_wire_error(point: HookPoint, body: bytes) -> None:
    try:
        answer = codec.decode(point, body)
    except WireError:
        return
    assert codec.decode(point, codec.encode_answer(point, answer)) == answer
