"""Any message, edited and read: what the editor does means what protobuf's own parser (upb) reads."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.wire import protobuf
from runtimeproxy.wire.protobuf import (
    LENGTH_DELIMITED,
    entries_field,
    message_field,
    rewrite,
    string_field,
    varint,
    varint_field,
)
from tests.wire.test_protobuf import INT64, UNKNOWN, Linux, Resources, edited, long_varint, raw_fields, readable

TEXTS = st.text(max_size=4)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)
GARBAGE = st.lists(raw_fields(st.integers(50, 60)), max_size=2).map(b"".join)
"""Valid fields that Resources does not declare."""


@st.composite
def scattered(draw: st.DrawFn) -> bytes:
    """Draw a Resources message: fields in any order and number, unknown ones between them."""
    parts = draw(
        st.lists(
            st.one_of(
                INT64.map(lambda number: Resources(cpu_quota=number).SerializeToString()),
                INT64.map(lambda number: b"\x10" + long_varint(number, 2)),
                TEXTS.map(lambda text: Resources(cpuset_cpus=text).SerializeToString()),
                MAPS.map(lambda texts: Resources(unified=texts).SerializeToString()),
                raw_fields(st.sampled_from([2, 6, 9])).filter(comparable),
                GARBAGE,
            ),
            max_size=8,
        )
    )
    return b"".join(parts)


def comparable(field: bytes) -> bool:
    """Leave out a map entry with an unknown field in it: upb takes all of it for unknown, Go takes it for an entry."""
    if not readable(field):
        return False
    [found] = protobuf.fields(field)
    return (found.number, found.wire_type) != (9, LENGTH_DELIMITED) or bool(Resources.FromString(field).unified)


@settings(deadline=None)
@given(scattered(), INT64, TEXTS, MAPS)
def test_edit_means_what_the_parser_reads(message: bytes, number: int, text: str, texts: dict[str, str]) -> None:
    edits = {
        2: varint_field(number),
        6: string_field(text),
        9: entries_field({key: string_field(value) for key, value in texts.items()}),
    }
    result = edited(message, edits)
    expected = Resources.FromString(message)
    expected.cpu_quota, expected.cpuset_cpus = number, text
    expected.unified.update(texts)
    assert known(Resources.FromString(result)) == known(expected)
    assert without(result, {2, 6, 9}) == without(message, {2, 6, 9})


@settings(deadline=None)
@given(scattered())
def test_setting_what_stands_there_changes_nothing(message: bytes) -> None:
    now = Resources.FromString(message)
    edits = {
        2: varint_field(now.cpu_quota),
        6: string_field(now.cpuset_cpus),
        9: entries_field({key: string_field(value) for key, value in now.unified.items()}),
    }
    assert rewrite(message, edits) is message


@settings(deadline=None)
@given(st.lists(scattered(), max_size=3), INT64)
def test_message_in_parts_means_what_the_parser_reads(parts: list[bytes], number: int) -> None:
    message = UNKNOWN.join(b"\x2a" + varint(len(part)) + part for part in parts)
    expected = Linux.FromString(message)
    if number or expected.resources.cpu_quota:
        expected.resources.cpu_quota = number
    result = Linux.FromString(edited(message, {5: message_field({2: varint_field(number)})}))
    assert known(result.resources) == known(expected.resources)
    assert result.HasField("resources") == expected.HasField("resources")


def known(message: Resources) -> tuple[object, ...]:
    return message.cpu_quota, message.cpuset_cpus, dict(message.unified)


def without(message: bytes, numbers: set[int]) -> bytes:
    return b"".join(
        message[field.start : field.end] for field in protobuf.fields(message) if field.number not in numbers
    )
