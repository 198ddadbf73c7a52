"""Every method of both CRI versions (kubernetes/cri-api: runtime.v1, and the last runtime.v1alpha2); random messages.

A message has its fields in any order and number, with unknown fields among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from runtimeproxy.model.fields import ResourceValue
from tests.fakes import cri_pb2

RUNTIME = """
    Version RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox StreamPodSandboxes
    CreateContainer StartContainer StopContainer RemoveContainer ListContainers StreamContainers ContainerStatus
    UpdateContainerResources ReopenContainerLog ExecSync Exec Attach PortForward ContainerStats ListContainerStats
    StreamContainerStats PodSandboxStats ListPodSandboxStats StreamPodSandboxStats UpdateRuntimeConfig Status
    CheckpointContainer GetContainerEvents ListMetricDescriptors ListPodSandboxMetrics StreamPodSandboxMetrics
    RuntimeConfig UpdatePodSandboxResources CheckpointPod RestorePod
"""
IMAGE = "ListImages StreamImages ImageStatus PullImage RemoveImage ImageFsInfo"
ONLY_IN_V1 = """
    StreamPodSandboxes StreamContainers StreamContainerStats StreamPodSandboxStats CheckpointContainer
    GetContainerEvents ListMetricDescriptors ListPodSandboxMetrics StreamPodSandboxMetrics RuntimeConfig
    UpdatePodSandboxResources StreamImages CheckpointPod RestorePod
"""


@dataclass(frozen=True)
class Method:
    """A CRI method; ``request`` and ``reply`` are None where the fakes do not declare the message: it passes unread."""

    version: str
    service: str
    name: str
    request: Descriptor | None
    reply: Descriptor | None

    @property
    def path(self) -> bytes:
        return f"/runtime.{self.version}.{self.service}/{self.name}".encode()

    @property
    def streams(self) -> bool:
        return self.name == "GetContainerEvents" or self.name.startswith("Stream")

    def __repr__(self) -> str:
        return self.path.decode()


DECLARED = cri_pb2.DESCRIPTOR.message_types_by_name


def _method(version: str, service: str, name: str) -> Method:
    return Method(version, service, name, DECLARED.get(f"{name}Request"), DECLARED.get(f"{name}Response"))


METHODS = tuple(
    _method(version, service, name)
    for version, missing in (("v1", ""), ("v1alpha2", ONLY_IN_V1))
    for service, names in (("RuntimeService", RUNTIME), ("ImageService", IMAGE))
    for name in names.split()
    if name not in missing.split()
)

VARINT, LENGTH_DELIMITED = 0, 2

ODD = (
    b"\xa2\x06\x02\xff\xfe",  # field 100: not UTF-8
    b"\xab\x06\x08\x01\x0b\x0c\xac\x06",  # a group, and a group in it
    b"\x92\x3f\x81\x80\x00\x7f",  # a length in more bytes than needed
    b"\x88\x80\x00\x00",  # the tag of field 1 in more bytes than needed, of another type than most
    b"\xe5\x07\x01\x02\x03\x04",
    b"\xe1\x07\x01\x02\x03\x04\x05\x06\x07\x08",
    b"\x0d\x0a\x01p\x00",
    b"\xf8\xff\xff\xff\x0f\x01",  # the greatest field number
)
"""Fields that no message has, or has with another type."""


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def length_delimited(payload: bytes) -> bytes:
    return varint(len(payload)) + payload


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


NUMBERS = st.sampled_from((0, 1, 2, 127, 128, 100_000, 2**31, 2**63 - 1, 2**63, 2**64 - 1)).map(varint) | (
    st.sampled_from((b"\x80\x00", b"\x85\x80\x80\x00")) | st.integers(0, 2**64 - 1).map(varint)
)
"""Values, also encoded in more bytes than needed."""
IDS = {"pod_sandbox_id": (b"p1", b"p1", b"p2", b""), "container_id": (b"c1", b"c1", b"c2", b"")}
"""A fake node has p1 and c1."""
WORDS = (b"", b"a", b"A", b"B", b"2MB", b"0-3", b"io.kubernetes.pod.uid", b"/kubepods/pod1", "é".encode(), b"app")
TEXTS = st.sampled_from((*WORDS, *WORDS[1:], b"not UTF-8: \xff")) | st.text(max_size=6).map(str.encode)
KEYS = st.sampled_from((b"a", b"A", b"2MB", b"")) | TEXTS
"""Few different keys, so that some occur twice."""
OCTETS = st.sampled_from(WORDS) | st.binary(max_size=6)


def _value(field: FieldDescriptor) -> st.SearchStrategy[bytes]:
    if field.message_type is not None:
        return fields_of(field.message_type)
    if field.name in IDS:
        return st.sampled_from(IDS[field.name])
    if field.name in ("key", "page_size"):
        return KEYS
    return TEXTS if field.type == field.TYPE_STRING else OCTETS


def _field(field: FieldDescriptor) -> st.SearchStrategy[bytes]:
    if field.message_type is None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
        head = tag(field.number, VARINT)
        return NUMBERS.map(lambda number: head + number)
    head = tag(field.number, LENGTH_DELIMITED)
    return _value(field).map(lambda payload: head + length_delimited(payload))


@cache
def fields_of(message: Descriptor) -> st.SearchStrategy[bytes]:
    """Return random fields of a message; a message type of few fields has all of them, in order, in half the cases.

    A map's entry gets no unknown fields: parsers do not agree on the meaning of such an entry.
    """
    known = [_field(field) for field in message.fields]
    odd = [] if message.GetOptions().map_entry else [st.sampled_from(ODD)]
    mixed = st.lists(st.one_of(*known, *odd), max_size=8).map(b"".join)
    return mixed | st.tuples(*known).map(b"".join) if 0 < len(known) <= SHORT_FIELDS else mixed


SHORT_FIELDS = 3
"""Most fields of a short type: map entries, requests with only an id, a create with its two configs."""

BULK = tag(1000, LENGTH_DELIMITED) + length_delimited(bytes(range(251)) * 80)
"""An unknown field, longer than a DATA frame may be."""
TIMES: Sequence[int] = (*(1,) * 14, 2, 60)
"""How often the fields are repeated: lists may be long."""
TAILS = (*(b"",) * 7, BULK)


def random_messages(descriptor: Descriptor | None) -> st.SearchStrategy[bytes]:
    """Return messages of a type, most of them short; for None any bytes."""
    fields = OCTETS if descriptor is None else fields_of(descriptor)
    return st.builds(
        lambda found, times, tail: found * times + tail, fields, st.sampled_from(TIMES), st.sampled_from(TAILS)
    )


ALL_RESOURCES: dict[str, ResourceValue] = {
    "cpu_period": 50000,
    "cpu_quota": -1,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 2**33,
    "oom_score_adj": -998,
    "cpuset_cpus": "2-3",
    "cpuset_mems": "1",
    "hugepage_limits": {"2MB": 2**64 - 1, "1GB": 0},
    "unified": {"cpu.idle": "1", "": ""},
    "memory_swap_limit_in_bytes": -1,
}
"""Every field of LinuxContainerResources."""


def limits(values: Mapping[str, ResourceValue]) -> cri_pb2.LinuxContainerResources:
    sizes = values.get("hugepage_limits", {})
    assert isinstance(sizes, Mapping)
    plain: dict[str, Any] = {name: value for name, value in values.items() if name != "hugepage_limits"}
    entries = [cri_pb2.HugepageLimit(page_size=size, limit=int(limit)) for size, limit in sizes.items()]
    return cri_pb2.LinuxContainerResources(hugepage_limits=entries, **plain)
