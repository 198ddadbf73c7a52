"""Hook messages on the wire: the numbers of hook-api, "On the wire", every field filled, both sides of the protocol."""

from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import api_pb2, codec
from runtimeproxy.hookapi.codec import CONTAINER_PARTS, POD_PARTS
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources, changed_envs
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, SubjectKind
from tests.docs import HOOK_API, table

POINTS = POD_POINT, CONTAINER_POINT = BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"]
NAMES: dict[str, Any] = {"name": "web", "uid": "u-1", "namespace": "shop", "attempt": 2}
NUMBERS: Any = {"cpu_period": 100_000, "cpu_quota": -1, "cpu_shares": 512, "oom_score_adj": -998, "cpuset_mems": "0"}
NUMBERS |= {"memory_limit_in_bytes": 2**40, "memory_swap_limit_in_bytes": 2**41, "cpuset_cpus": "0-3"}
PAGES, UNIFIED = {"2MB": 2**21, "1GB": 2**63}, {"memory.high": "max"}
SENT = Resources(**NUMBERS, hugepage_limits=PAGES, unified=UNIFIED)
SENT_LIMITS = [api_pb2.HugepageLimit(page_size=size, limit=limit) for size, limit in PAGES.items()]
SENT_MESSAGE = api_pb2.LinuxContainerResources(**NUMBERS, hugepage_limits=SENT_LIMITS, unified=UNIFIED)
LABELS, NOTES, ENVS = {"app": "web"}, {"note": "é", "empty": ""}, {"PATH": "/bin", "EMPTY": ""}
PARENT, OVERHEAD = "/kubepods/podu-1", Resources(cpu_shares=2)
POD = PodInfo("", *NAMES.values(), "kata", LABELS, NOTES, PARENT, OVERHEAD, SENT)
CONTAINER = ContainerInfo("c1", name="main", attempt=3, annotations={"hash": "1"}, resources=SENT, envs=ENVS)
ANSWER = HookAnswer(labels={"l": "1"}, annotations={"a": "1"}, envs={"E": "1"}, cgroup_parent="/x", resources=SENT)


def pod_message(pod: PodInfo) -> Any:
    return api_pb2.PodSandboxHookRequest.FromString(codec.encode(POD_POINT, HookRequest(pod)))


def container_message(container: ContainerInfo, pod: PodInfo = POD) -> Any:
    body = codec.encode(CONTAINER_POINT, HookRequest(pod, container))
    return api_pb2.ContainerResourceHookRequest.FromString(body)


def set_fields(message: Any) -> set[str]:
    return {field.name for field, _ in message.ListFields()}


TABLE = table(HOOK_API, "On the wire")
FIELDS = {message: dict(text.split(" ", 1) for text in fields.split("; ")) for message, fields in TABLE}
TYPES = {"TYPE_STRING": "string", "TYPE_INT64": "int64", "TYPE_UINT32": "uint32", "TYPE_UINT64": "uint64"}


def names(message: str) -> list[str]:
    return [text.split()[-1] for text in FIELDS[message].values()]


def words(field: Any) -> str:
    if (kind := field.message_type) is None:
        return f"{next(word for name, word in TYPES.items() if getattr(field, name) == field.type)} {field.name}"
    return f"{'map' if kind.GetOptions().map_entry else 'repeated ' * field.is_repeated + kind.name} {field.name}"


def test_messages_and_service_are_as_documented() -> None:
    kinds = api_pb2.DESCRIPTOR.message_types_by_name.items()
    assert {name: {str(field.number): words(field) for field in kind.fields} for name, kind in kinds} == FIELDS
    assert codec.request_fields(POD_POINT) == dict(enumerate(names("PodSandboxHookRequest"), 1))
    assert codec.request_fields(CONTAINER_POINT) == dict(enumerate(names("ContainerResourceHookRequest"), 1))
    assert names("LinuxContainerResources") == list(Resources.__dataclass_fields__)
    service = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
    methods = {method.name: (method.input_type.name, method.output_type.name) for method in service.methods}
    subjects = {SubjectKind.POD: "PodSandboxHook", SubjectKind.CONTAINER: "ContainerResourceHook"}
    messages = {row: (f"{subjects[row.subject]}Request", f"{subjects[row.subject]}Response") for row in HOOK_POINTS}
    assert methods == {row.method: messages[row] for row in HOOK_POINTS}
    assert {row.name: f"/runtime.v1alpha1.RuntimeHookService/{row.name}Hook" for row in HOOK_POINTS} == codec.PATHS
    assert service.full_name == codec.SERVICE


def test_request_has_every_given_field() -> None:
    assert set_fields(pod_message(POD)) == set(names("PodSandboxHookRequest"))
    assert set_fields(container_message(CONTAINER)) == set(names("ContainerResourceHookRequest"))
    assert set_fields(SENT_MESSAGE) == set(names("LinuxContainerResources"))
    meta = api_pb2.PodSandboxMetadata(**NAMES)
    pod: dict[str, Any] = {"runtime_handler": "kata", "labels": LABELS, "annotations": NOTES, "cgroup_parent": PARENT}
    pod |= {"overhead": api_pb2.LinuxContainerResources(cpu_shares=2), "resources": SENT_MESSAGE}
    assert pod_message(POD) == api_pb2.PodSandboxHookRequest(pod_meta=meta, **pod)
    of_pod = {"pod_" + name: pod[name] for name in ("labels", "annotations", "cgroup_parent", "resources")}
    own: dict[str, Any] = {"container_meta": api_pb2.ContainerMetadata(name="main", attempt=3, id="c1")}
    own |= {"container_annotations": {"hash": "1"}, "container_envs": ENVS, "container_resources": SENT_MESSAGE}
    assert container_message(CONTAINER) == api_pb2.ContainerResourceHookRequest(pod_meta=meta, **of_pod, **own)
    assert set_fields(pod_message(PodInfo())) == {"pod_meta"}
    assert set_fields(container_message(ContainerInfo(), PodInfo())) == {"pod_meta", "container_meta"}
    assert container_message(ContainerInfo(cgroup_parent="/mine")).pod_cgroup_parent == "/mine"
    with pytest.raises(ValueError, match="has no container"):
        codec.encode(CONTAINER_POINT, HookRequest(POD))


def env(key: bytes, value: bytes) -> bytes:
    return b"\x0a" + bytes((len(key),)) + key + b"\x12" + bytes((len(value),)) + value


def test_envs_are_sent_as_received_unless_ambiguous() -> None:
    encoded = codec.envs_of([env(b"A", b"1"), env(b"B", b"2")])
    assert encoded is not None
    container = replace(CONTAINER, envs=changed_envs(encoded, {"B": "3", "C": "4"}))
    message = container_message(container)
    assert (message.container_envs, message.container_meta.name) == ({"A": "1", "B": "3", "C": "4"}, "main")
    odd = replace(container, envs=changed_envs(encoded, {"B": ODD}), annotations={})
    assert dict(container_message(odd).container_envs) == {"A": "1"}
    for ambiguous in (env(b"Z", b"\xff"), env(b"A", b"2"), env(b"Z", b"") + b"\x18\x01", b"\x08\x01", b"\x0a\x05Z"):
        assert codec.envs_of([env(b"A", b"1"), ambiguous]) is None


def test_message_part_is_encoded_once_per_value() -> None:
    """Again for an equal value: the cache is by identity, not by equality."""
    pod, container = replace(POD), replace(CONTAINER)
    body = codec.encode(CONTAINER_POINT, HookRequest(pod, container))
    retained = POD_PARTS[id(pod)], CONTAINER_PARTS[id(container)]
    assert (retained[0][0] is pod, retained[1][0] is container, retained[0][1] + retained[1][1]) == (True, True, body)
    assert codec.encode(CONTAINER_POINT, HookRequest(pod, container)) == body
    assert (POD_PARTS[id(pod)], CONTAINER_PARTS[id(container)]) == retained
    message = container_message(container, replace(pod, uid="u-2"))
    assert (message.pod_meta.uid, message.container_meta.name) == ("u-2", "main")
    queried = replace(CONTAINER, id="")
    container_message(queried)
    assert id(queried) not in CONTAINER_PARTS, "it is yet to be created, and comes once"


LABEL, CGROUP, QUOTA = b"\x0a\x06\x0a\x01l\x12\x011", b"\x1a\x02/x", b"\x22\x0b\x10" + b"\xff" * 9 + b"\x01"
SHARES, ENV = b"\x12\x02\x18\x02", b"\x22\x06\x0a\x01E\x12\x011"
OF_POD = HookAnswer({"l": "1"}, cgroup_parent="/x", resources=Resources(cpu_quota=-1))
OF_CONTAINER = HookAnswer(envs={"E": "1"}, cgroup_parent="/x", resources=Resources(cpu_shares=2))
PRESENT = HookAnswer(resources=Resources())
BODIES = [
    (POD_POINT, LABEL + CGROUP + QUOTA, OF_POD),
    (CONTAINER_POINT, SHARES + CGROUP + ENV, OF_CONTAINER),
    # equal bytes about a pod and a container are two answers
    *((POD_POINT, LABEL, HookAnswer(labels={"l": "1"})), (CONTAINER_POINT, LABEL, HookAnswer(annotations={"l": "1"}))),
    # empty resources count as present, and unknown fields are skipped
    *((POD_POINT, b"\x22\x00", PRESENT), (CONTAINER_POINT, b"\x12\x00", PRESENT)),
    *[(hook_point, b"\x9a\x06\x03abc", HookAnswer()) for hook_point in HOOK_POINTS],
]


@pytest.mark.parametrize(("hook_point", "body", "answer"), BODIES)
def test_answer_bytes_are_decoded(hook_point: HookPoint, body: bytes, answer: HookAnswer) -> None:
    assert codec.decode(hook_point, body) == answer


@pytest.mark.parametrize("hook_point", POINTS)
def test_small_answer_is_cached_and_immutable(hook_point: HookPoint) -> None:
    answer = codec.decode(hook_point, codec.encode_answer(hook_point, ANSWER))
    assert codec.decode(hook_point, codec.encode_answer(hook_point, ANSWER)) is answer
    limits: Any = answer.resources
    for entries in (answer.labels, answer.annotations, answer.envs, limits.hugepage_limits, limits.unified):
        with pytest.raises(TypeError, match="does not support item assignment"):
            entries["new"] = "1"  # type: ignore[index]
    body = codec.encode_answer(hook_point, replace(ANSWER, annotations={"long": "x" * 20_000}))
    first, second = codec.decode(hook_point, body), codec.decode(hook_point, body)
    assert (first == second, first is second) == (True, False)


# A cut tag, a cut length, no UTF-8, a group without an end, wire type 7, field number 0, a text.
BROKEN = [b"\x80", b"\x0a\x05ab", b"\x1a\x02\xff\xfe", b"\x0b", b"\x0f", b"\x00\x00", b"HTTP/1.1 400 Bad Request"]


@pytest.mark.parametrize("body", BROKEN)
def test_malformed_bytes_raise_wire_error(body: bytes) -> None:
    for hook_point in POINTS:
        for read in (codec.decode, codec.decode_request):
            with pytest.raises(WireError, match=r"Hook(Request|Response) that is not a well-formed"):
                read(hook_point, body)


ODD = b"\xff\xfe".decode("utf-8", "surrogateescape")
ODD_MAP, VALID_MAP = {"good": "1", "bad": ODD, ODD: "1"}, {"good": "1"}
ODD_RESOURCES = Resources(cpu_shares=2, cpuset_cpus=ODD, hugepage_limits={"2MB": 1, ODD: 1}, unified=ODD_MAP)
ENCODABLE = Resources(cpu_shares=2, hugepage_limits={"2MB": 1}, unified=VALID_MAP)


def back(hook_point: HookPoint, request: HookRequest) -> HookRequest:
    return codec.decode_request(hook_point, codec.encode(hook_point, request))


def answered(hook_point: HookPoint, answer: HookAnswer) -> HookAnswer:
    return codec.decode(hook_point, codec.encode_answer(hook_point, answer))


def test_message_is_decoded_as_encoded_without_invalid_utf8() -> None:
    of_container = replace(POD, runtime_handler="", overhead=None)
    for pod in (POD, replace(POD, resources=None), replace(POD, overhead=None)):
        assert back(POD_POINT, HookRequest(pod)) == HookRequest(pod)
    for container in (CONTAINER, replace(CONTAINER, resources=None)):
        assert back(CONTAINER_POINT, HookRequest(POD, container)) == HookRequest(of_container, container)
    assert answered(POD_POINT, ANSWER) == replace(ANSWER, envs={})
    assert answered(CONTAINER_POINT, ANSWER) == replace(ANSWER, labels={})
    pod = PodInfo(name=ODD, runtime_handler=ODD, labels=ODD_MAP, cgroup_parent=None, overhead=ODD_RESOURCES)
    assert back(POD_POINT, HookRequest(pod)) == HookRequest(PodInfo(labels=VALID_MAP, overhead=ENCODABLE))
    pod = PodInfo(name=ODD, uid="u", namespace="n", labels=ODD_MAP, annotations=ODD_MAP, cgroup_parent=ODD)
    container = ContainerInfo(id="c", name=ODD, annotations=ODD_MAP, envs=ODD_MAP, resources=ODD_RESOURCES)
    expected_pod = PodInfo(uid="u", namespace="n", labels=VALID_MAP, annotations=VALID_MAP)
    expected = ContainerInfo(id="c", annotations=VALID_MAP, envs=VALID_MAP, resources=ENCODABLE)
    assert back(CONTAINER_POINT, HookRequest(pod, container)) == HookRequest(expected_pod, expected)
    answer = HookAnswer(ODD_MAP, ODD_MAP, ODD_MAP, ODD, ODD_RESOURCES)
    assert answered(POD_POINT, answer) == HookAnswer(VALID_MAP, VALID_MAP, {}, "", ENCODABLE)
    assert answered(CONTAINER_POINT, answer) == HookAnswer({}, VALID_MAP, VALID_MAP, "", ENCODABLE)
