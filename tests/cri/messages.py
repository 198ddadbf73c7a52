"""Random CRI messages, with their fields in any order and number, with unknown fields among them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from runtimeproxy.model.fields import ResourceValue
from runtimeproxy.wire.protobuf import LENGTH_DELIMITED, VARINT, varint
from tests.fakes import cri_pb2

DECLARED = cri_pb2.DESCRIPTOR.message_types_by_name

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

NUMBERS = st.sampled_from((0, 1, 2, 127, 128, 100_000, 2**31, 2**63 - 1, 2**63, 2**64 - 1)).map(varint) | (
    st.sampled_from((b"\x80\x00", b"\x85\x80\x80\x00")) | st.integers(0, 2**64 - 1).map(varint)
)
"""Values, also encoded in more bytes than needed."""
WORDS = (b"", b"a", b"A", b"2MB", b"0-3", b"/kubepods/pod1", "é".encode())
TEXTS = st.sampled_from((*WORDS, *WORDS[1:], b"not UTF-8: \xff")) | st.text(max_size=6).map(str.encode)
KEYS = st.sampled_from((b"a", b"A", b"2MB", b"")) | TEXTS
"""Few different keys, so that some occur twice."""
OCTETS = st.sampled_from(WORDS) | st.binary(max_size=6)


def length_delimited(payload: bytes) -> bytes:
    return varint(len(payload)) + payload


def _field(field: FieldDescriptor) -> st.SearchStrategy[bytes]:
    if field.message_type is None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
        return NUMBERS.map(lambda number: varint(field.number << 3 | VARINT) + number)
    if field.message_type is not None:
        values = fields_of(field.message_type)
    elif field.name in ("key", "page_size"):
        values = KEYS
    else:
        values = TEXTS if field.type == field.TYPE_STRING else OCTETS
    return values.map(lambda payload: varint(field.number << 3 | LENGTH_DELIMITED) + length_delimited(payload))


@cache
def fields_of(message: Descriptor) -> st.SearchStrategy[bytes]:
    """Return random fields of a message; a message type of few fields has all of them, in order, in half the cases.

    A map's entry gets no unknown fields: parsers do not agree on the meaning of such an entry.
    """
    fields = [_field(field) for field in message.fields]
    odd = [] if message.GetOptions().map_entry else [st.sampled_from(ODD)]
    mixed = st.lists(st.one_of(*fields, *odd), max_size=8).map(b"".join)
    return mixed | st.tuples(*fields).map(b"".join) if 0 < len(fields) <= SHORT_FIELDS else mixed


SHORT_FIELDS = 3
"""Most fields of a short type: map entries, a create with its two configs."""


def random_messages(name: str) -> st.SearchStrategy[bytes]:
    """Return messages of a type; some of them repeat their fields."""
    times = st.sampled_from((*(1,) * 14, 2, 60))
    return st.builds(lambda found, number: found * number, fields_of(DECLARED[name]), times)


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
