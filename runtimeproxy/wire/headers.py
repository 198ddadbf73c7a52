"""HPACK header blocks without a dynamic table (RFC 7541), as HEADER_TABLE_SIZE is 0 in both directions (relay-rules A1,
A2).

The ``hpack`` package decodes blocks that still use a dynamic table; otherwise only its Huffman decoder is used.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache, partial, wraps
from typing import TypeVar

from hpack import Decoder, HPACKDecodingError, NeverIndexedHeaderTuple
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from runtimeproxy.errors import WireError

Header = tuple[bytes, bytes]
Field = tuple[int, list[tuple[bool, bytes]]]
"""A field as it is encoded in a block: a static index or 0, and its strings: none, its value, or its name and value.
Each string is a pair: whether it is Huffman-coded, and its bytes."""

T = TypeVar("T")

SIZE_UPDATE_TO_ZERO = b"\x20"
CACHED_BYTES = 512
CACHED_BLOCKS = 256
"""Most blocks whose decoded fields are cached: fields take far more memory than their block."""
FIELDS_LIMIT = 256
"""Most fields of a block: processing a field of one byte costs 10,000 times what sending it costs. Envoy: 100."""
_SIZE_UPDATES = 2  # RFC 7541, 4.2

_STATIC: tuple[Header, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_LAST_STATIC_INDEX = 61
_PATH = frozenset({b":path"})
_STATIC_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC))) if index}


class AmbiguousPath(WireError):
    """A request has no :path, or two."""


def cache_short_inputs(function: Callable[[bytes], T], count: int = 1024) -> Callable[[bytes], T]:
    """Cache the results for the latest short inputs: peers repeat theirs, and computing costs more than a look-up."""
    cached = lru_cache(maxsize=count)(function)

    @wraps(function)
    def call(octets: bytes) -> T:
        return cached(octets) if len(octets) <= CACHED_BYTES else function(octets)

    return call


@cache_short_inputs
def unhuffman(encoded: bytes) -> bytes:
    """Return a decoded Huffman string. Raises WireError."""
    try:
        return decode_huffman(encoded)
    except HPACKDecodingError:
        raise WireError("broken Huffman string in a header block") from None


@cache_short_inputs
def check(block: bytes) -> None:
    """Check that a block needs no dynamic table and its lengths are valid. Raises WireError."""
    walk(block)


def path(fields: Sequence[Field]) -> bytes:
    """Return the :path among a request's fields. A missing first slash is added: grpc-go routed both forms to the same
    method (CVE-2026-33186). Raises AmbiguousPath if there is none or more than one, WireError if it is broken.
    """
    paths = find(fields, _PATH)
    if len(paths) != 1:
        raise AmbiguousPath(f"request with {len(paths)} :path headers")
    value = paths[0][1]
    return value if value.startswith(b"/") else b"/" + value


def find(fields: Sequence[Field], names: Container[bytes] | None = None, limit: int | None = None) -> list[Header]:
    """Return the (name, value) pairs of some names, or of all, in order, each value cut to ``limit`` bytes. Raises
    WireError if one of them is broken.
    """
    headers: list[Header] = []
    for index, strings in fields:
        name, value = _STATIC[index]
        if len(strings) == 2:
            huffman, name = strings[0]
            if huffman:
                name = unhuffman(name)
        if names is None or name in names:
            if strings:
                huffman, value = strings[-1]
                if huffman:
                    value = unhuffman(value)
            headers.append((name, value[:limit]))
    return headers


def read(block: bytes) -> list[Header]:
    """Return the (name, value) pairs of a block in order. Raises WireError if it does not stand alone."""
    return list(_pairs(block))


@partial(cache_short_inputs, count=CACHED_BLOCKS)
def _pairs(block: bytes) -> tuple[Header, ...]:
    return tuple(find(walk(block)))


@partial(cache_short_inputs, count=CACHED_BLOCKS)
def walk(block: bytes) -> Sequence[Field]:
    """Return the encoded fields of a block. Raises WireError if it does not stand alone."""
    fields: list[Field] = []
    at, end, remaining = 0, len(block), FIELDS_LIMIT
    try:
        while at < end:
            byte = block[at]
            remaining -= 1
            if remaining < 0:
                raise WireError("header block has too many fields")
            if byte & 0xE0 == 0x20:
                if fields:
                    raise WireError("table size update inside a header block")
                size, at = _integer(block, at, 0x1F)
                if size:
                    raise WireError("table size update above the limit of 0")
                continue
            mask = 0x7F if byte & 0x80 else 0x3F if byte & 0x40 else 0x0F
            index, at = (byte & mask, at + 1) if byte & mask < mask else _integer(block, at, mask)
            if index > _LAST_STATIC_INDEX or (byte & 0x80 and not index):
                raise WireError("header block refers to a dynamic table that is not there")
            strings: list[tuple[bool, bytes]] = []
            for _ in range(0 if byte & 0x80 else 1 if index else 2):
                byte = block[at]
                length, at = (byte & 0x7F, at + 1) if byte & 0x7F < 0x7F else _integer(block, at, 0x7F)
                if at + length > end:
                    raise WireError("string runs over the end of a header block")
                strings.append((byte >= 0x80, block[at : at + length]))
                at += length
            fields.append((index, strings))
    except IndexError:
        raise WireError("header block ends inside a field") from None
    return fields


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError("integer in a header block is too long")


def build(headers: Iterable[Header]) -> bytes:
    """Return a header block: a size update to 0, then literals that are never put into a table."""
    return SIZE_UPDATE_TO_ZERO + b"".join(literal(name, value) for name, value in headers)


def literal(name: bytes, value: bytes, never_indexed: bool = False) -> bytes:
    """Return one literal field without indexing (RFC 7541, 6.2.2), or never indexed (6.2.3)."""
    mark = 0x10 if never_indexed else 0x00
    index = _STATIC_NAMES.get(name)
    head = _prefixed(index, 0x0F, mark) if index else bytes((mark,)) + _plain(name)
    return head + _plain(value)


def _plain(text: bytes) -> bytes:
    return _prefixed(len(text), 0x7F, 0) + text


def _prefixed(value: int, mask: int, mark: int) -> bytes:
    if value < mask:
        return bytes((mark | value,))
    encoded = bytearray((mark | mask,))
    value -= mask
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Blocks:
    """Translates the header blocks of one direction, so that they need no dynamic table (relay-rules A1).

    Until the sender acknowledged the table size of 0, each block is decoded in full and encoded again without indexing.
    After that, blocks pass unchanged, except for a size update put before the first one after each ACK.
    """

    def __init__(self) -> None:
        self._decoder: Decoder | None = Decoder()
        self.standalone = False
        """True once blocks pass unchanged."""

    def acknowledge(self) -> None:
        """Note that the sender acknowledged a table size of 0: its receiver may have shrunk its table."""
        self._decoder = None
        self.standalone = False

    def translate(self, block: bytes) -> bytes:
        """Return a block that needs no dynamic table: the same object if it needs none already. Raises WireError."""
        if self._decoder is not None:
            return _rebuilt(self._decoder, block)
        check(block)
        return block

    def mark(self, block: bytes) -> bytes:
        """Return a translated block as it is sent on: the first one after an ACK starts with a size update to 0."""
        if self.standalone or self._decoder is not None:
            return block
        self.standalone = True
        return alone(block)


def alone(block: bytes) -> bytes:
    """Return a block that starts with a size update to 0."""
    return block if block[:1] == SIZE_UPDATE_TO_ZERO else SIZE_UPDATE_TO_ZERO + block


def _rebuilt(decoder: Decoder, block: bytes) -> bytes:
    _check_size_updates(block)
    try:
        fields = list(decoder.decode(block, raw=True))
    except HPACKDecodingError:
        raise WireError("header block that cannot be decoded") from None
    if len(fields) > FIELDS_LIMIT:
        raise WireError("header block has too many fields")
    return b"".join(
        literal(bytes(field[0]), bytes(field[1]), isinstance(field, NeverIndexedHeaderTuple)) for field in fields
    )


def _check_size_updates(block: bytes) -> None:
    """Raise WireError if a block has more table size updates than RFC 7541, 4.2 allows."""
    at = count = 0
    while block[at : at + 1] and block[at] & 0xE0 == 0x20:
        count += 1
        if count > _SIZE_UPDATES:
            raise WireError("too many table size updates before a header block")
        try:
            _, at = _integer(block, at, 0x1F)
        except IndexError:
            return  # the decoder raises for it
