"""Tests of the protobuf wire editor; protobuf's own parser (upb) is the oracle for the meaning of bytes."""

import tracemalloc
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import protobuf
from runtimeproxy.wire.protobuf import Edit, entries_field, message_field, rewrite, string_field, varint, varint_field
from tests.fakes import cri_pb2

Resources = cri_pb2.LinuxContainerResources
UNKNOWN = b"\xa2\x06\x02\xff\xfe" + b"\xa8\x06\x01"
"""Fields 100 and 101 of messages that do not have them: bytes that are not UTF-8, and a number."""
INT64 = st.integers(-(2**63), 2**63 - 1)
MALFORMED = {
    "number out of range": [b"\x00\x01", b"\xf8\xff\xff\xff\x1f\x00"],
    "varint": [b"\x80", b"\x08", b"\x08" + b"\x80" * 10 + b"\x00", b"\x0a", b"\x0b"],
    "cut short": [b"\x0a\x02\x00", b"\x09\x00", b"\x0d\x00", b"\x0b\x12\x05\x0c"],
    "wire type": [b"\x0c", b"\x0e", b"\x0f", b"\x0b\x0f"],
    "another number": [b"\x0b\x14"],
}


@pytest.mark.parametrize(("problem", "messages"), MALFORMED.items())
def test_malformed_message_is_refused(problem: str, messages: list[bytes]) -> None:
    for message in messages:
        with pytest.raises(WireError, match=problem):
            list(protobuf.fields(message))
        with pytest.raises(WireError, match=problem):
            rewrite(UNKNOWN + message, {1: varint_field(7)})


CONFIG: protobuf.Shape = {2: {8: {}}}
"""The shape of a create: its config, and in it the envs, which here have another number."""


def message_of(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | protobuf.LENGTH_DELIMITED) + varint(len(payload)) + payload


COUNTED = [(b"\x08\x00" * 50, 50), (b"\x0a\x00" * 50, 50), (b"\x08\x00" + message_of(2, b"\x42\x00" * 50), 52)]
COUNTED += [(message_of(2, b"\x42\x02\x08\x00" * 50), 101), (message_of(2, message_of(7, b"\x08\x00" * 50)), 2)]
COUNTED += [(message_of(2, b"\x4a\x00" * 50) + message_of(2, b"\x42\x00" * 50), 102)]
COUNTED += [(b"\x10" + b"\x80" * 9 + b"\x00", 1), (b"\x0b" + b"\x08\x00" * 50 + b"\x0c", 51)]


def test_group_and_message_are_parsed_up_to_their_ends() -> None:
    """Without recursion."""
    most = protobuf.GROUP_FIELDS
    for inside in (b"\x08\x00" * (most - 1), b"\x0b" * (most // 2 - 1) + b"\x0c" * (most // 2 - 1)):
        assert len(list(protobuf.fields(b"\x0b" + inside + b"\x0c"))) == 1
    with pytest.raises(WireError, match="group with too many fields"):
        list(protobuf.fields(b"\x0b" + b"\x08\x00" * most + b"\x0c"))
    for inside in (b"\x0a\x05a", b"\xa2\x06\x05a", b"\x0d\x01\x02", b"\x10\x80", b"\x10\x01\x80", b"\x13\x08"):
        message = message_of(8, inside) + b"\x48\x01\x14\x50\x01\x58\x01"
        with pytest.raises(WireError):
            rewrite(message, {8: message_field({1: string_field("/x")})})
        with pytest.raises(WireError):
            protobuf.has_more_fields(message, 2, {8: {}})


@pytest.mark.parametrize(("message", "fields"), COUNTED)
def test_fields_are_counted_in_messages_of_shape(message: bytes, fields: int) -> None:
    assert not protobuf.has_more_fields(message, fields, CONFIG)
    assert protobuf.has_more_fields(message, fields - 1, CONFIG) is (len(message) > 2 * (fields - 1))
    assert protobuf.has_more_fields(b"\x08\x00" * 50 + b"\x0f", 49, {}), "later fields are not read"


def number(value: int) -> dict[int, Edit]:
    return {2: varint_field(value)}


def text(value: str) -> dict[int, Edit]:
    return {6: string_field(value)}


def texts(values: Mapping[str, str]) -> dict[int, Edit]:
    return {9: entries_field({key: string_field(value) for key, value in values.items()})}


def entry(key: bytes, value: bytes) -> bytes:
    return message_of(9, message_of(1, key) + message_of(2, value))


A1, K1, K2, KV = entry(b"a", b"1"), entry(b"k", b"1"), entry(b"k", b"2"), entry(b"k", b"v")
Y0, Z0, B2 = entry(b"y", b"0"), entry(b"z", b"\xff"), entry(b"b", b"2")
SEVERAL = {3: varint_field(0), 2: varint_field(4), 9: varint_field(9), 1: varint_field(8)}
PARENT: dict[int, Edit] = {8: message_field({1: string_field("/x")})}
NESTED = {9: varint_field(1), 8: message_field({9: varint_field(2), 8: message_field({9: varint_field(3)})})}
FILLED = message_of(8, message_of(8, b"\x0a\x01a\x48\x03") + b"\x48\x02") + b"\x48\x01"
SCALARS: dict[str, tuple[bytes, dict[int, Edit], bytes]] = {
    "new at the end": (b"", number(5), b"\x10\x05"),
    "last counts": (b"\x10\x01\x18\x02\x10\x03", number(5), b"\x10\x01\x18\x02\x10\x05"),
    "empty text removes": (b"\x32\x01a\x38\x01", text(""), b"\x38\x01"),
    "text over no UTF-8": (b"\x32\x01\xff", text("é"), b"\x32\x02\xc3\xa9"),
    "other wire type is another field": (b"\x30\x01", text("a"), b"\x30\x01\x32\x01a"),
    "several at once": (b"\x10\x01\x18\x02", SEVERAL, b"\x10\x04\x48\x09\x08\x08"),
}
MESSAGES = {
    "filled": (b"\x42\x00\x48\x01", b"\x42\x04\x0a\x02/x\x48\x01"),
    "edited": (b"\x42\x07\xa8\x06\x01\x0a\x02/y\x48\x01", b"\x42\x07\xa8\x06\x01\x0a\x02/x\x48\x01"),
    "two parts joined": (b"\x42\x03\x0a\x01a\x48\x01\x42\x02\x10\x01", b"\x48\x01\x42\x06\x0a\x02/x\x10\x01"),
    "of other wire type": (b"\x40\x01", b"\x40\x01\x42\x04\x0a\x02/x"),
}
ENTRIES = {
    "sorted": (UNKNOWN, {"b": "2", "a": "1"}, UNKNOWN + A1 + B2),
    "after the last one": (Z0 + UNKNOWN + Y0 + UNKNOWN, {"k": "v"}, Z0 + UNKNOWN + Y0 + KV + UNKNOWN),
    "the last of one key": (K1 + Z0 + K2 + Y0, {"k": "v"}, K1 + Z0 + KV + Y0),
    "no key is the empty key": (b"\x4a\x03\x12\x011", {"": "2"}, b"\x4a\x03\x12\x012"),
    "no value is the empty value": (b"\x4a\x03\x0a\x01k", {"k": "2"}, b"\x4a\x06\x0a\x01k\x12\x012"),
    "key twice": (b"\x4a\x06\x0a\x01a\x0a\x01k" + A1, {"k": "2"}, b"\x4a\x09\x0a\x01a\x0a\x01k\x12\x012" + A1),
    "emptied": (K1, {"k": ""}, b"\x4a\x03\x0a\x01k"),
    "other wire type inside": (b"\x4a\x04\x08\x6b\x10\x01", {"": "v"}, b"\x4a\x07\x08\x6b\x10\x01\x12\x01v"),
}
UNCHANGED: dict[str, tuple[bytes, dict[int, Edit]]] = {
    "nothing to set": (b"", {**number(0), **text(""), 8: message_field({}), **texts({})}),
    "empty ones stand": (b"\x10\x00\x32\x00", number(0) | text("")),
    "long encodings": (b"\x10\x85\x00\x32\x81\x00a", number(5) | text("a")),
    "above 63 bits": (b"\x10" + b"\xff" * 9 + b"\x7f", number(2**64 - 1)),
    "empty message is not made": (b"\x48\x01", {8: message_field({1: string_field("")})}),
    "message in parts": (b"\x42\x04\x0a\x02/x\x48\x01\x42\x02\x10\x01", PARENT),
    "message that is not read": (b"\x42\x01\x0a", number(0)),
    "entry of long encoding": (b"\x4a\x08\x0a\x01k\x12\x81\x80\x00v", texts({"k": "v"})),
}
EDITED = SCALARS | {"messages whose ends are one": (message_of(8, message_of(8, b"\x0a\x01a")), NESTED, FILLED)}
EDITED |= {f"message {name}": (before, PARENT, after) for name, (before, after) in MESSAGES.items()}
EDITED |= {f"entries: {name}": (before, texts(values), after) for name, (before, values, after) in ENTRIES.items()}
EDITED |= {f"unchanged: {name}": (message, edits, message) for name, (message, edits) in UNCHANGED.items()}


@pytest.mark.parametrize(("before", "edits", "after"), EDITED.values(), ids=EDITED)
def test_edit_rewrites_message(before: bytes, edits: dict[int, Edit], after: bytes) -> None:
    result = rewrite(before, edits)
    assert rewrite(result, edits) is result
    assert result == after
    assert (result is before) == (after == before)


def test_nested_message_is_copied_once() -> None:
    message = message_of(8, message_of(8, message_of(1, bytes(4 << 20)) + b"\x10\x01"))
    edits = {8: message_field({8: message_field({2: varint_field(2), 9: entries_field({"k": string_field("v")})})})}
    tracemalloc.start()
    try:
        result = rewrite(message, edits)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == len(message) + len(entry(b"k", b"v"))
    assert most < 1.1 * len(message)


TEXTS = st.text(max_size=4)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)
STRANGE = [UNKNOWN, b"\x12\x01a", b"\x30\x01", b"\x9b\x06\x0b\x0c\x9c\x06", b"\x99\x06" + bytes(8)]
PARTS = st.one_of(
    INT64.map(lambda number: Resources(cpu_quota=number).SerializeToString()),
    TEXTS.map(lambda text: Resources(cpuset_cpus=text).SerializeToString()),
    MAPS.map(lambda texts: Resources(unified=texts).SerializeToString()),
    st.sampled_from([*STRANGE, b"\x10\x85\x80\x00", b"\x10\x80\x00"]),  # the last ones are longer than needed
)


@given(st.lists(PARTS, max_size=8).map(b"".join), INT64, TEXTS, MAPS)
def test_edit_is_read_by_protobuf_parser(message: bytes, quota: int, cpus: str, unified: dict[str, str]) -> None:
    edits = number(quota) | text(cpus) | texts(unified)
    result = rewrite(message, edits)
    assert rewrite(result, edits) is result
    expected, actual = Resources.FromString(message), Resources.FromString(result)
    expected.unified.update(unified)
    assert (actual.cpu_quota, actual.cpuset_cpus, dict(actual.unified)) == (quota, cpus, dict(expected.unified))
    before, after = (
        [whole[field.start : field.end] for field in protobuf.fields(whole) if field.number not in edits]
        for whole in (message, result)
    )
    assert before == after
