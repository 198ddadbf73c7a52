"""Tests of reading CRI requests. They are made from the fakes' wider messages: what is not read must not matter."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2, translate
from runtimeproxy.envs import Envs
from runtimeproxy.hookapi import api_pb2 as hook_pb2
from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.model import RESOURCE_FIELDS, ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy.wire.protobuf import varint
from tests.cri.messages import DECLARED, messages
from tests.fakes import cri_pb2

TYPE_BYTES = FieldDescriptor.TYPE_BYTES
READERS = (
    translate.read_pod,
    translate.read_container,
    translate.read_id,
    translate.read_update,
    translate.read_pod_update,
)

WIRE_RESOURCES = cri_pb2.LinuxContainerResources(
    cpu_period=100000,
    cpu_quota=-1,
    cpu_shares=2,
    memory_limit_in_bytes=2**40,
    oom_score_adj=-997,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits=[
        cri_pb2.HugepageLimit(page_size="2MB", limit=1),
        cri_pb2.HugepageLimit(page_size="1GB"),
        cri_pb2.HugepageLimit(page_size="2MB", limit=2**64 - 1),
    ],
    unified={"memory.high": "max"},
    memory_swap_limit_in_bytes=-1,
)
RESOURCES = Resources(
    cpu_period=100000,
    cpu_quota=-1,
    cpu_shares=2,
    memory_limit_in_bytes=2**40,
    oom_score_adj=-997,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits={"2MB": 2**64 - 1, "1GB": 0},
    unified={"memory.high": "max"},
    memory_swap_limit_in_bytes=-1,
)
POD_CONFIG = cri_pb2.PodSandboxConfig(
    metadata=cri_pb2.PodSandboxMetadata(name="web", uid="u-1", namespace="shop", attempt=3),
    hostname="web-0",
    labels={"qos": "BE"},
    annotations={"note": "é"},
    linux=cri_pb2.LinuxPodSandboxConfig(
        cgroup_parent="/kubepods/burstable/pod1",
        sysctls={"net.ipv4.ip_forward": "1"},
        overhead=cri_pb2.LinuxContainerResources(cpu_quota=5),
        resources=WIRE_RESOURCES,
    ),
)
POD = PodInfo(
    name="web",
    uid="u-1",
    namespace="shop",
    attempt=3,
    runtime_handler="kata",
    labels={"qos": "BE"},
    annotations={"note": "é"},
    cgroup_parent="/kubepods/burstable/pod1",
    overhead=Resources(cpu_quota=5),
    resources=RESOURCES,
)


def test_the_table_is_the_protocols_and_the_models() -> None:
    declared = {field.name: field.number for field in api_pb2.LinuxContainerResources.DESCRIPTOR.fields}
    assert declared == {name: number for name, (number, _) in translate.RESOURCE_TABLE.items()}
    assert tuple(translate.RESOURCE_TABLE) == RESOURCE_FIELDS


OURS = {"Identified", "KeyValue"}
AS_CAME = "WithEntries"
"""The end of the names of messages that have the envs as they came."""


@pytest.mark.parametrize("name", sorted({*api_pb2.DESCRIPTOR.message_types_by_name} - OURS))
def test_declared_fields_have_the_numbers_and_types_of_the_fakes(name: str) -> None:
    wide = getattr(cri_pb2, name.removesuffix(AS_CAME)).DESCRIPTOR.fields_by_name
    for field in getattr(api_pb2, name).DESCRIPTOR.fields:
        other = wide[field.name]
        assert (field.number, field.is_repeated) == (other.number, other.is_repeated)
        assert field.type == (other.type if (name, field.name) != (f"ContainerConfig{AS_CAME}", "envs") else TYPE_BYTES)


def test_an_env_has_the_form_of_an_entry_of_a_hook_message() -> None:
    entry = hook_pb2.ContainerResourceHookRequest.DESCRIPTOR.fields_by_name["container_envs"].message_type
    ours = api_pb2.KeyValue.DESCRIPTOR
    assert [(field.name, field.number) for field in entry.fields] == [(f.name, f.number) for f in ours.fields]


def test_pod() -> None:
    request = cri_pb2.RunPodSandboxRequest(config=POD_CONFIG, runtime_handler="kata")
    assert translate.read_pod(request.SerializeToString()) == POD


def test_pod_with_nothing_set() -> None:
    request = cri_pb2.RunPodSandboxRequest(config=cri_pb2.PodSandboxConfig())
    assert translate.read_pod(request.SerializeToString()) == PodInfo()


def test_container() -> None:
    request = cri_pb2.CreateContainerRequest(
        pod_sandbox_id="p1",
        config=cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="main", attempt=2),
            envs=[
                cri_pb2.KeyValue(key="A", value=b"1"),
                cri_pb2.KeyValue(key="B", value=b"\xff"),
                cri_pb2.KeyValue(key="A", value=b"2"),
                cri_pb2.KeyValue(key="C"),
                cri_pb2.KeyValue(key="B2", value=b"kept"),
                cri_pb2.KeyValue(key="B2", value=b"\xff"),
            ],
            labels={"l": "not read"},
            annotations={"a": "b"},
            linux=cri_pb2.LinuxContainerConfig(resources=WIRE_RESOURCES),
        ),
        sandbox_config=POD_CONFIG,
    )
    container, pod = translate.read_container(request.SerializeToString())
    assert container == ContainerInfo(
        pod_id="p1",
        name="main",
        attempt=2,
        annotations={"a": "b"},
        resources=RESOURCES,
        envs={"A": "2", "C": ""},
    )
    whole = translate.read_pod(cri_pb2.RunPodSandboxRequest(config=POD_CONFIG).SerializeToString())
    assert pod == replace(whole, overhead=None, resources=None)


def test_env_whose_key_is_not_utf8_is_left_out() -> None:
    config = b"\x32\x05\x0a\x01\xff\x12\x00" + b"\x32\x06\x0a\x01A\x12\x011"
    container, _ = translate.read_container(b"\x0a\x01p\x12" + bytes((len(config),)) + config)
    assert container.envs == {"A": "1"}


def env(payload: bytes) -> bytes:
    return b"\x32" + bytes((len(payload),)) + payload


PLAIN = env(b"\x0a\x01A\x12\x011"), env(b"\x0a\x01B"), env(b"\x12\x02\xc3\xa9\x0a\x01C"), env(b"")
ODD_ENVS = {
    "bytes that are not UTF-8": (env(b"\x0a\x01Z\x12\x01\xff"), {}),
    "a key twice": (env(b"\x0a\x01A\x12\x012"), {"A": "2"}),
    "a field that nobody knows": (env(b"\x0a\x01Z\x12\x01z\x18\x01"), {"Z": "z"}),
    "a number in the place of a text": (env(b"\x0a\x01Z\x10\x01"), {"Z": ""}),
}


@pytest.mark.parametrize("entries", [(), PLAIN], ids=["none", "some"])
def test_envs_are_told_as_they_came(entries: tuple[bytes, ...]) -> None:
    """No matter in which order key and value stand, and whether they are there."""
    config = b"".join(entries)
    container, _ = translate.read_container(b"\x0a\x01p\x12" + bytes((len(config),)) + config)
    assert isinstance(container.envs, Envs)
    assert container.envs == ({"A": "1", "B": "", "C": "é", "": ""} if entries else {})
    told = codec.encode(BY_NAME["PreCreateContainer"], HookRequest(PodInfo(), container))
    assert all(b"\x4a" + entry[1:] in told for entry in entries)


@pytest.mark.parametrize(("odd", "means"), ODD_ENVS.values(), ids=ODD_ENVS.keys())
def test_an_odd_env_has_all_of_them_looked_into(odd: bytes, means: dict[str, str]) -> None:
    config = b"".join((*PLAIN, odd))
    container, _ = translate.read_container(b"\x0a\x01p\x12" + bytes((len(config),)) + config)
    assert type(container.envs) is dict
    assert container.envs == {"A": "1", "B": "", "C": "é", "": "", **means}


def test_a_broken_env_makes_the_request_unreadable() -> None:
    config = PLAIN[0] + env(b"\x0a\x05A")
    with pytest.raises(Unreadable, match="CreateContainerRequest with a broken field"):
        translate.read_container(b"\x0a\x01p\x12" + bytes((len(config),)) + config)


@settings(deadline=None)
@given(messages(DECLARED["CreateContainerRequest"]))
def test_a_container_is_the_same_whether_its_envs_are_looked_into_or_not(message: bytes) -> None:
    def read() -> tuple[ContainerInfo, PodInfo | None] | str:
        try:
            return translate.read_container(message)
        except Unreadable as error:
            return str(error)

    as_came = read()
    with mock.patch.object(codec, "envs_of", return_value=None):
        looked_into = read()
    assert as_came == looked_into
    if not isinstance(as_came, str) and not isinstance(looked_into, str):
        point = BY_NAME["PreCreateContainer"]
        told = [codec.encode(point, HookRequest(PodInfo(), read[0])) for read in (as_came, looked_into)]
        assert codec.decode_request(point, told[0]) == codec.decode_request(point, told[1])


def test_container_without_linux_and_without_its_pods_config() -> None:
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="p1", config=cri_pb2.ContainerConfig())
    assert translate.read_container(request.SerializeToString()) == (ContainerInfo(pod_id="p1"), None)


def test_what_is_not_read_need_not_be_text() -> None:
    message = b"\x0a\x01p\x12\x05\x2a\x01\xff\x70\x01\xf2\x0f\x02\xff\xfe"  # working_dir and an unknown field
    assert translate.read_container(message)[0] == ContainerInfo(pod_id="p")


@pytest.mark.parametrize(
    "message",
    [
        cri_pb2.StopPodSandboxRequest(pod_sandbox_id="x1"),
        cri_pb2.StopContainerRequest(container_id="x1", timeout=30),
        cri_pb2.RunPodSandboxResponse(pod_sandbox_id="x1"),
        cri_pb2.CreateContainerResponse(container_id="x1"),
    ],
)
def test_id(message: Message) -> None:
    assert translate.read_id(message.SerializeToString()) == "x1"


def test_update() -> None:
    request = cri_pb2.UpdateContainerResourcesRequest(container_id="c1", linux=WIRE_RESOURCES, annotations={"a": "b"})
    assert translate.read_update(request.SerializeToString()) == ("c1", RESOURCES, {"a": "b"})
    bare = cri_pb2.UpdateContainerResourcesRequest(container_id="c1")
    assert translate.read_update(bare.SerializeToString()) == ("c1", None, {})


def test_pod_update() -> None:
    request = cri_pb2.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id="p1", overhead=cri_pb2.LinuxContainerResources(cpu_shares=2), resources=WIRE_RESOURCES
    )
    expected = (Resources(cpu_shares=2), RESOURCES)
    assert translate.read_pod_update(request.SerializeToString()) == expected
    bare = cri_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p1")
    assert translate.read_pod_update(bare.SerializeToString()) == (None, None)


@pytest.mark.parametrize(
    ("read", "message", "problem"),
    [
        (translate.read_pod, b"", "without a config"),
        (translate.read_pod, b"\x12\x04kata", "without a config"),
        (translate.read_container, b"\x0a\x01p", "without"),
        (translate.read_container, b"\x12\x00", "without"),
        (translate.read_id, b"", "without an id"),
        (translate.read_id, b"\x0a\x00", "without an id"),
        (translate.read_update, b"\x12\x00", "without an id"),
        (translate.read_pod, b"\x0a\x05canary", "RunPodSandboxRequest with a broken field"),
        (translate.read_container, b"\x0a\x07canary\xff", "CreateContainerRequest with a broken field"),
        (translate.read_id, b"\x0a\x07canary\xff", "Identified with a broken field"),
        (translate.read_update, b"\x12\x02\x08", "UpdateContainerResourcesRequest with a broken field"),
        (translate.read_pod_update, b"\x12\x02\x08", "UpdatePodSandboxResourcesRequest with a broken field"),
    ],
)
def test_unreadable(read: Callable[[bytes], object], message: bytes, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as raised:
        read(message)
    assert "canary" not in str(raised.value)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_unreadable(message: bytes) -> None:
    for read in READERS:
        with suppress(Unreadable):
            read(message)


def crowded(number: int, entries: bytes) -> bytes:
    """Put entries into the field of a config, behind what a create and a sandbox need."""
    inside = varint(number << 3 | 2) + varint(len(entries)) + entries
    return b"\x0a\x01p" + b"\x12" + varint(len(inside)) + inside


HUGEPAGES = crowded(15, b"\x0a" + varint(600_000) + b"\x42\x00" * 300_000)
"""Each an empty limit in the resources in the config's linux."""


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (translate.read_container, b"\x0a\x01p\x12" + varint(600_000) + b"\x32\x00" * 300_000),
        (translate.read_container, HUGEPAGES),
        (translate.read_container, b"\x0a\x01p" + b"\x12\x00" * 300_000),
        (translate.read_container, b"\x0f" * 600_000),
        (translate.read_container, b"\x0a\x01p\x12" + varint(600_000) + b"\x32\x00" * 300_000 + b"\x0f"),
        (translate.read_pod, b"\x0a" + varint(600_000) + b"\x32\x00" * 300_000),
        (translate.read_update, b"\x0a\x01c" + b"\x1a\x00" * 300_000),
        (translate.read_pod_update, b"\x0a\x01p\x12" + varint(600_000) + b"\x42\x00" * 300_000),
        (translate.read_id, b"\x0a\x01p" * 300_000),
    ],
)
def test_a_request_of_too_many_fields_is_not_read(read: Callable[[bytes], object], message: bytes) -> None:
    with pytest.raises(Unreadable, match=r"request with more than 131072 fields|wire type"):
        read(message)


def test_a_long_request_of_few_fields_is_read() -> None:
    config = cri_pb2.ContainerConfig(envs=[cri_pb2.KeyValue(key=b"A", value=b"x" * 500_000)])
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="p", config=config)
    container, _ = translate.read_container(request.SerializeToString())
    assert len(container.envs["A"]) == 500_000
