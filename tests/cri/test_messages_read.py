"""Parsing CRI requests. They are made from the fakes' messages with more fields: unread fields must not matter."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.messages import read_container, read_id, read_pod, read_pod_update, read_update
from runtimeproxy.hookapi import api_pb2 as hook_pb2
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, Envs, HookRequest, PodInfo, Resources, overlay
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.wire.protobuf import varint
from tests.cri.messages import ALL_RESOURCES, limits
from tests.fakes import cri_pb2 as cri

Read = Callable[[bytes], object]
PRE_CREATE = BY_NAME["PreCreateContainer"]

RESOURCES: Any = overlay(None, ALL_RESOURCES)
LIMITS = limits({"hugepage_limits": {"2MB": 1}})
LIMITS.MergeFrom(limits(ALL_RESOURCES))  # with the limit of a page size twice
POD_CONFIG = cri.PodSandboxConfig(
    metadata=cri.PodSandboxMetadata(name="web", uid="u-1", namespace="shop", attempt=3),
    hostname="web-0",
    labels={"qos": "BE"},
    annotations={"note": "é"},
    linux=cri.LinuxPodSandboxConfig(
        cgroup_parent="/kubepods/burstable/pod1",
        sysctls={"net.ipv4.ip_forward": "1"},
        overhead=cri.LinuxContainerResources(cpu_quota=5),
        resources=LIMITS,
    ),
)
POD = PodInfo(
    *("", "web", "u-1", "shop", 3, "kata", {"qos": "BE"}, {"note": "é"}),
    *("/kubepods/burstable/pod1", Resources(cpu_quota=5), RESOURCES),
)

SHARED = ("LinuxContainerResources", "HugepageLimit")
"""Messages of the hook protocol that CRI has, too."""
DECLARED = {"Identified", "KeyValue"}
RECEIVED = "WithEntries"
"""The suffix of the names of messages that keep the envs encoded."""


@pytest.mark.parametrize("name", [*sorted({*api_pb2.DESCRIPTOR.message_types_by_name} - DECLARED), *SHARED])
def test_declared_fields_equal_those_of_fakes(name: str) -> None:
    wide = getattr(cri, name.removesuffix(RECEIVED)).DESCRIPTOR.fields_by_name
    for field in getattr(hook_pb2 if name in SHARED else api_pb2, name).DESCRIPTOR.fields:
        other, received = wide[field.name], (name, field.name) == (f"ContainerConfig{RECEIVED}", "envs")
        assert (field.number, field.is_repeated) == (other.number, other.is_repeated)
        assert field.type == (FieldDescriptor.TYPE_BYTES if received else other.type)


CONTAINER = cri.ContainerConfig(
    metadata=cri.ContainerMetadata(name="main", attempt=2),
    labels={"l": "not read"},
    annotations={"a": "b"},
    linux=cri.LinuxContainerConfig(resources=LIMITS),
)
CREATE = cri.CreateContainerRequest(pod_sandbox_id="p1", config=CONTAINER, sandbox_config=POD_CONFIG)
BARE_CREATE = cri.CreateContainerRequest(pod_sandbox_id="p1", config=cri.ContainerConfig())
TWO = cri.LinuxContainerResources(cpu_shares=2)
UPDATE, UPDATE_POD = cri.UpdateContainerResourcesRequest, cri.UpdatePodSandboxResourcesRequest


@pytest.mark.parametrize(
    ("read", "request_", "expected"),
    [
        (read_pod, cri.RunPodSandboxRequest(config=POD_CONFIG, runtime_handler="kata"), POD),
        (read_pod, cri.RunPodSandboxRequest(config=cri.PodSandboxConfig()), PodInfo()),
        (
            read_container,
            CREATE,
            (ContainerInfo("", "p1", "main", 2, {"a": "b"}, RESOURCES), replace(POD, runtime_handler="")),
        ),
        (read_container, BARE_CREATE, (ContainerInfo(pod_id="p1"), None)),
        (read_id, cri.StopPodSandboxRequest(pod_sandbox_id="x1"), "x1"),
        (read_id, cri.StopContainerRequest(container_id="x1", timeout=30), "x1"),
        (read_id, cri.RunPodSandboxResponse(pod_sandbox_id="x1"), "x1"),
        (read_id, cri.CreateContainerResponse(container_id="x1"), "x1"),
        (read_update, UPDATE(container_id="c1", linux=LIMITS, annotations={"a": "b"}), ("c1", RESOURCES, {"a": "b"})),
        (read_update, UPDATE(container_id="c1"), ("c1", None, {})),
        (read_pod_update, UPDATE_POD(overhead=TWO, resources=LIMITS), (Resources(cpu_shares=2), RESOURCES)),
        (read_pod_update, UPDATE_POD(pod_sandbox_id="p1"), (None, None)),
    ],
)
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


@pytest.mark.parametrize("entries", [(), PLAIN], ids=["none", "some"])
def test_plain_envs_are_sent_as_received(entries: tuple[bytes, ...]) -> None:
    container = created(*entries)
    assert isinstance(container.envs, Envs)
    assert container.envs == (EXPECTED if entries else {})
    notified = codec.encode(PRE_CREATE, HookRequest(PodInfo(), container))
    assert all(b"\x4a" + entry[1:] in notified for entry in entries)


@pytest.mark.parametrize(("odd", "added"), ODD_ENVS.values(), ids=ODD_ENVS)
def test_all_envs_are_parsed_when_any_is_odd(odd: list[bytes], added: dict[str, str]) -> None:
    container = created(*PLAIN, *odd)
    assert type(container.envs) is dict
    assert container.envs == {**EXPECTED, **added}


@pytest.mark.parametrize(
    ("read", "message", "problem"),
    [
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
    ],
)
def test_unreadable_request_raises(read: Read, message: bytes, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as raised:
        read(message)
    assert "canary" not in str(raised.value)


@given(st.binary(max_size=60), st.sampled_from((read_pod, read_container, read_id, read_update, read_pod_update)))
def test_any_bytes_are_read_or_unreadable(message: bytes, read: Read) -> None:
    with suppress(Unreadable):
        read(message)


MANY = 300_000
EMPTY_ENVS = b"\x12" + varint(2 * MANY) + b"\x32\x00" * MANY
EMPTY_PAGES = b"\x0a" + varint(2 * MANY) + b"\x42\x00" * MANY
IN_LINUX = b"\x7a" + varint(len(EMPTY_PAGES)) + EMPTY_PAGES
"""The field ``linux`` of a config, with empty huge page limits in its resources."""


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (read_container, b"\x0a\x01p" + EMPTY_ENVS),
        (read_container, b"\x0a\x01p" + b"\x12" + varint(len(IN_LINUX)) + IN_LINUX),
        (read_container, b"\x0a\x01p" + b"\x12\x00" * MANY),
        (read_container, b"\x0a\x01p" + EMPTY_ENVS + b"\x0f"),
        (read_container, b"\x0f" * 2 * MANY),
        (read_pod, b"\x0a" + varint(2 * MANY) + b"\x32\x00" * MANY),
        (read_update, b"\x0a\x01c" + b"\x1a\x00" * MANY),
        (read_pod_update, b"\x0a\x01p\x12" + varint(2 * MANY) + b"\x42\x00" * MANY),
        (read_id, b"\x0a\x01p" * MANY),
    ],
)
def test_request_of_too_many_fields_raises(read: Read, message: bytes) -> None:
    with pytest.raises(Unreadable, match=r"request with more than 131072 fields|wire type"):
        read(message)


def test_unread_fields_need_no_valid_text() -> None:
    message = b"\x0a\x01p\x12\x05\x2a\x01\xff\x70\x01\xf2\x0f\x02\xff\xfe"  # working_dir and an unknown field
    assert read_container(message)[0] == ContainerInfo(pod_id="p")


def test_long_request_with_few_fields_is_read() -> None:
    config = cri.ContainerConfig(envs=[cri.KeyValue(key=b"A", value=b"x" * 500_000)])
    container, _ = read_container(cri.CreateContainerRequest(pod_sandbox_id="p", config=config).SerializeToString())
    assert len(container.envs["A"]) == 500_000
