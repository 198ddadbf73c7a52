"""Protobuf on the wire: parse a message field by field, and rewrite some fields in place.

Owns the encoding (protobuf.dev, "Encoding") and the effect of a changed field on the bytes.
Must not know: any message of CRI or of the hook protocol; callers give field numbers.
Invariant: every byte outside a changed field is unchanged (unknown fields, order, long encodings, strings that are not
UTF-8, unset messages), and without a change the result is the very same object (docs/architecture.rst).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from runtimeproxy.errors import WireError

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
START_GROUP = 3
END_GROUP = 4
FIXED32 = 5

KEY = 1
VALUE = 2
"""Field numbers of a map entry, and of messages of the same form (KeyValue, HugepageLimit)."""

GROUP_FIELDS = 4096
"""Most fields that are parsed inside a group. CRI has no groups; only an unknown field may be one."""
_FIXED_BYTES = {FIXED32: 4, FIXED64: 8}
_VARINT_BYTES = 10
_UINT64 = 2**64 - 1
_MAX_TAG = 2**32 - 1

_T = TypeVar("_T", int, bytes)

Shape = Mapping[int, "Shape"]
"""The numbers of the fields that are messages, each with the shape of that message."""


class Field(NamedTuple):
    """The position of one field: tag from ``start``, value from ``value_start`` (after a length), up to ``end``."""

    number: int
    wire_type: int
    start: int
    value_start: int
    end: int


Chunk = bytes | memoryview
"""Part of the output. Unchanged parts are views: a long message is copied only once, when all chunks are joined."""

Patch = tuple[int, int, Sequence[Chunk]]
"""Start, end, and the replacement."""


class Occurrences(NamedTuple):
    """All occurrences of a field in a message, in order, and the end of that message."""

    number: int
    fields: Sequence[Field]
    end: int

    def of_type(self, wire_type: int) -> list[Field]:
        """Return the occurrences of a wire type: a parser treats any other type as an unknown field."""
        return [field for field in self.fields if field.wire_type == wire_type]


Edit = Callable[[bytes, Occurrences], Iterator[Patch]]
"""Makes the patches of one field, from the bytes that contain its message and the field's occurrences."""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in order; a group is one field. Raises WireError if the bytes are not protobuf."""
    return (Field(*field) for field in _walk(message))


def has_more_fields(message: bytes, limit: int, shape: Shape) -> bool:
    """Return whether a message has more fields than ``limit``.

    The fields of the nested messages named by ``shape`` count, too.

    Nothing is built, and nothing after the limit is parsed. Raises WireError if the bytes are not protobuf.
    """
    if len(message) <= 2 * limit:
        return False  # no field is shorter than a tag and a length
    return _remaining_limit(limit, message, 0, len(message), shape) < 0


def _remaining_limit(limit: int, message: bytes, at: int, end: int, shape: Shape) -> int:
    """Return the limit less the fields in a part of the message; if it is below 0, parsing stopped early."""
    for number, wire_type, _, value_start, value_end in _walk(message, at, end):
        limit -= 1 + (value_end - value_start) // 2 if wire_type == START_GROUP else 1
        if limit >= 0 and wire_type == LENGTH_DELIMITED and number in shape:
            limit = _remaining_limit(limit, message, value_start, value_end, shape[number])
        if limit < 0:
            break
    return limit


def _walk(message: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields as plain tuples: callers skip most of them, so no Field is built."""
    size = len(message) if end is None else end
    while at < size:
        tag = message[at]
        if tag & 7 == LENGTH_DELIMITED and 8 <= tag < 0x80 and at + 1 < size and message[at + 1] < 0x80:
            value_start = at + 2  # most fields: a text or message with a tag and a length of one byte
            end = value_start + message[at + 1]
            number, wire_type = tag >> 3, LENGTH_DELIMITED
        else:
            number, wire_type, after_tag = _tag(message, at)
            value_start, end = _span(message, number, wire_type, after_tag)
        if end > size:
            raise WireError("protobuf field that is cut short")
        yield number, wire_type, at, value_start, end
        at = end


def varint(value: int) -> bytes:
    """Return an integer encoded as a varint of 64 bits; a negative one is its two's complement and takes 10 bytes."""
    remaining = value & _UINT64
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def rewrite(message: bytes, edits: Mapping[int, Edit]) -> bytes:
    """Return the message with the edit of each field number applied; the same object if nothing changes. Raises
    WireError if the message, or a nested message that an edit has to parse, is malformed.
    """
    chunks = _rewritten(message, 0, len(message), edits)
    return b"".join(chunks) if chunks else message


def _rewritten(message: bytes, at: int, end: int, edits: Mapping[int, Edit]) -> list[Chunk]:
    """Return the chunks of the edited message in a part of the bytes; an empty list if nothing changes."""
    by_number: dict[int, list[Field]] = {number: [] for number in edits}
    for field in _walk(message, at, end):
        if field[0] in by_number:
            by_number[field[0]].append(Field(*field))
    patches = [
        patch for number, edit in edits.items() for patch in edit(message, Occurrences(number, by_number[number], end))
    ]
    return _patched(memoryview(message), at, end, patches) if patches else []


def varint_field(value: int) -> Edit:
    """Return the edit that sets an int64, uint64 or bool; 0 removes the field, as proto3 does not encode it."""
    return _scalar(VARINT, value & _UINT64, 0, _varint_value, varint(value))


def string_field(value: str) -> Edit:
    """Return the edit that sets a string, or a bytes field to the UTF-8 of a text; an empty text removes the field."""
    encoded = value.encode()
    return _scalar(LENGTH_DELIMITED, encoded, b"", _payload, varint(len(encoded)) + encoded)


def message_field(edits: Mapping[int, Edit]) -> Edit:
    """Return the edit of a singular message. If it occurs twice, its value is the merge of both: they are joined at the
    last one's place.
    """

    def edit(message: bytes, occurrences: Occurrences) -> Iterator[Patch]:
        parts = occurrences.of_type(LENGTH_DELIMITED)
        if len(parts) == 1:
            chunks = _rewritten(message, parts[0].value_start, parts[0].end, edits)
        else:
            payload = b"".join(_payload(message, part) for part in parts)
            chunks = _rewritten(payload, 0, len(payload), edits)
        if chunks:
            yield from ((part.start, part.end, ()) for part in parts[:-1])
            yield _replace_last(occurrences, parts, _length_delimited(occurrences.number, chunks))

    return edit


def entries_field(values: Mapping[str, Edit]) -> Edit:
    """Return the edit of the values of map entries.

    The field may also be a repeated message whose field 1 is a text that names the element.

    Of entries with the same key the last one is effective and is edited. New entries go after the last one of the
    field, in the order of their keys.
    """

    def edit(message: bytes, occurrences: Occurrences) -> Iterator[Patch]:
        entries = occurrences.of_type(LENGTH_DELIMITED)
        added: list[Chunk] = []
        for key in sorted(values):
            entry = _last_of(message, entries, key.encode())
            if entry is None:
                new_entry = _rewritten(b"", 0, 0, {KEY: string_field(key), VALUE: values[key]})
                added += _length_delimited(occurrences.number, new_entry)
            elif chunks := _rewritten(message, entry.value_start, entry.end, {VALUE: values[key]}):
                yield entry.start, entry.end, _length_delimited(occurrences.number, chunks)
        if added:
            at = entries[-1].end if entries else occurrences.end
            yield at, at, added

    return edit


def _scalar(wire_type: int, desired: _T, default: _T, read: Callable[[bytes, Field], _T], encoded: bytes) -> Edit:
    """Return the edit of a singular scalar: of several occurrences only the effective last one is replaced."""

    def edit(message: bytes, occurrences: Occurrences) -> Iterator[Patch]:
        same = occurrences.of_type(wire_type)
        current = read(message, same[-1]) if same else default
        if current == desired:
            return
        if desired == default:
            yield from ((field.start, field.end, ()) for field in same)
            return
        yield _replace_last(occurrences, same, (varint(occurrences.number << 3 | wire_type), encoded))

    return edit


def _replace_last(occurrences: Occurrences, same: Sequence[Field], field: Sequence[Chunk]) -> Patch:
    """Return the patch that replaces the last occurrence of a field, or adds it at the end of the message."""
    return (same[-1].start, same[-1].end, field) if same else (occurrences.end, occurrences.end, field)


def _patched(message: memoryview, at: int, end: int, patches: list[Patch]) -> list[Chunk]:
    chunks: list[Chunk] = []
    for start, following, replacement in sorted(patches, key=lambda patch: patch[:2]):
        chunks += message[at:start], *replacement
        at = following
    chunks.append(message[at:end])
    return chunks


def _last_of(message: bytes, entries: Sequence[Field], key: bytes) -> Field | None:
    """Return the last entry with a key; entries whose bytes do not contain the key are not parsed."""
    for entry in reversed(entries):
        if message.find(key, entry.value_start, entry.end) >= 0 and _key(_payload(message, entry)) == key:
            return entry
    return None


def _key(entry: bytes) -> bytes:
    """Return the key of an entry: the last one, or b"" if it has none."""
    key = b""
    for number, wire_type, _, start, end in _walk(entry):
        if number == KEY and wire_type == LENGTH_DELIMITED:
            key = entry[start:end]
    return key


def _payload(message: bytes, field: Field) -> bytes:
    return message[field.value_start : field.end]


def _varint_value(message: bytes, field: Field) -> int:
    return _varint_at(message, field.value_start)[0]


def _length_delimited(number: int, payload: Sequence[Chunk]) -> list[Chunk]:
    return [varint(number << 3 | LENGTH_DELIMITED), varint(sum(map(len, payload))), *payload]


def _tag(message: bytes, at: int) -> tuple[int, int, int]:
    """Return field number, wire type and the index after a tag."""
    tag, after = _varint_at(message, at)
    if not 8 <= tag <= _MAX_TAG:
        raise WireError("protobuf field number out of range")
    return tag >> 3, tag & 7, after


def _span(message: bytes, number: int, wire_type: int, at: int) -> tuple[int, int]:
    """Return start and end of the value after a tag."""
    if wire_type == VARINT:
        return at, _varint_at(message, at)[1]
    if wire_type == START_GROUP:
        return at, _group_end(message, number, at)
    length = _FIXED_BYTES.get(wire_type)
    if wire_type == LENGTH_DELIMITED:
        length, at = _varint_at(message, at)
    if length is None:
        raise WireError("protobuf field of an unknown wire type, or the end of a group that did not start")
    if at + length > len(message):
        raise WireError("protobuf field that is cut short")
    return at, at + length


def _group_end(message: bytes, number: int, at: int) -> int:
    """Return the index after the end of the group whose start tag is just before ``at``."""
    open_groups, remaining = [number], GROUP_FIELDS
    while open_groups:
        remaining -= 1
        if remaining < 0:
            raise WireError("protobuf group with too many fields")
        inner, wire_type, at = _tag(message, at)
        if wire_type == START_GROUP:
            open_groups.append(inner)
        elif wire_type != END_GROUP:
            at = _span(message, inner, wire_type, at)[1]
        elif open_groups.pop() != inner:
            raise WireError("protobuf group that ends under another number")
    return at


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    """Return the value of the varint at an index, and the index after it; bits above 64 are dropped."""
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1  # most varints
    value = 0
    for index, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64, at + index + 1
    raise WireError("protobuf varint that is cut short or longer than 10 bytes")
