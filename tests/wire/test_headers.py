"""Tests of header blocks that stand alone (relay-rules A1, A2); the hpack package is the oracle."""

from itertools import product

import pytest
from hpack import Decoder, Encoder, HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import example, given
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import headers
from runtimeproxy.wire.headers import AmbiguousPath, Blocks, Header

CALL = b"/runtime.v1.RuntimeService/RunPodSandbox"
huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode

NAMES = st.one_of(st.sampled_from([name for name, _ in HeaderTable.STATIC_TABLE]), st.binary(min_size=1, max_size=12))
FIELDS = st.one_of(st.sampled_from(HeaderTable.STATIC_TABLE), st.tuples(NAMES, st.binary(max_size=200)))
MARKED = st.lists(st.builds(lambda field, sensitive: (*field, sensitive), FIELDS, st.booleans()), max_size=8)
"""Header fields, each with whether it is sensitive, so that it must never be indexed."""
Marked = list[tuple[bytes, bytes, bool]]


def decode(block: bytes, strict: bool = False) -> list[Header]:
    """Return the fields decoded by a peer whose table is 0; a strict one requires a size update (RFC 7541, 4.2)."""
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    if not strict:
        decoder.header_table_size = 0
    return list(decoder.decode(block, raw=True))


def string(text: bytes, coded: bool = False) -> bytes:
    """Return an encoded short string, plain or as Huffman."""
    raw = huffman(text) if coded else text
    return bytes((len(raw) | coded << 7,)) + raw


def find_path(block: bytes) -> bytes:
    return headers.path(headers.walk(block))


@given(MARKED, st.booleans(), st.booleans())
def test_standalone_block_is_read_like_hpack(fields: Marked, coded: bool, updated: bool) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    block = encoder.encode(fields, huffman=coded)
    block = block if updated else block.removeprefix(b"\x20")
    assert headers.read(block) == decode(block) == [field[:2] for field in fields]
    headers.check(block)


REFUSED = {
    "dynamic table": [b"\x80", b"\xbe", b"\xff\x00", b"\x7f\x00\x01v", b"\x0f\x2f\x01v", b"\x1f\x2f\x01v"],
    "inside a header block": [b"\x82\x20"],
    "above the limit": [b"\x21", b"\x20\x3f\xe1\x1f"],
    "too long": [b"\xff\x80\x80\x80\x80\x00"],
    "ends inside a field": [b"\xff", b"\xff\x80", b"\x3f", b"\x04", b"\x00", b"\x00\x01n", b"\x04\x7f"],
    "runs over the end": [b"\x04\x02v", b"\x00\x05name"],
}


@pytest.mark.parametrize(("problem", "blocks"), REFUSED.items())
def test_block_that_is_not_standalone_is_refused(problem: str, blocks: list[bytes]) -> None:
    for block, reader in product(blocks, (headers.check, headers.read, find_path)):
        with pytest.raises(WireError, match=problem) as caught:
            reader(block)
        assert not isinstance(caught.value, AmbiguousPath)
    broken = b"\x00" + string(b"n") + b"\x81\x00"
    headers.check(broken)
    with pytest.raises(WireError, match="Huffman"):
        headers.read(broken)


NAMED = [b"\x04", b"\x05", b"\x44", b"\x15", b"\x00" + string(b":path"), b"\x40" + string(b":path")]
NAMED += [b"\x00" + string(b":path", coded=True), b"\x10" + string(b":path", coded=True)]
"""The name of a path: index 4 or 5, a literal, as Huffman; not indexed, indexed or never indexed."""
PATHS = [(name + string(CALL, coded), CALL) for name in NAMED for coded in (False, True)]


@pytest.mark.parametrize(("block", "path"), [*PATHS, (b"\x84", b"/"), (b"\x85", b"/index.html")])
def test_path_is_found_in_every_encoding(block: bytes, path: bytes) -> None:
    around = b"\x20\x83" + block + b"\x00" + string(b"path", coded=True) + string(b"/other")
    assert find_path(around) == path
    with pytest.raises(AmbiguousPath, match="2 :path"):
        find_path(around + block)


def test_path_without_slash_gets_one_and_none_is_ambiguous() -> None:
    """As grpc-go accepted it (CVE-2026-33186)."""
    for path in (CALL[1:], b"", b"*"):
        assert find_path(b"\x04" + string(path)) == b"/" + path
    for block in (b"", b"\x20", b"\x83\x86", b"\x00" + string(b":Path") + string(CALL)):
        with pytest.raises(AmbiguousPath, match="0 :path"):
            find_path(block)


LENGTHS = [0, 126, 127, 128, 254, 255, 127 + 128**2, 127 + 128**2 - 1]
"""Values at which an integer needs one byte more (RFC 7541, 5.1)."""


@given(st.lists(FIELDS, max_size=8))
@example([(b"x" * min(size or 1, 255), b"v" * size) for size in LENGTHS])
def test_built_block_is_read_by_strict_peer(fields: list[Header]) -> None:
    block = headers.build(fields)
    assert decode(block, strict=True) == fields == headers.read(block)


@given(st.lists(st.tuples(MARKED, st.none() | st.integers(0, 4096), st.booleans()), max_size=6))
def test_block_before_ack_is_rebuilt_for_any_encoder(sent: list[tuple[Marked, int | None, bool]]) -> None:
    blocks, encoder, oracle = Blocks(), Encoder(), Decoder()
    for fields, table_size, coded in sent:
        if table_size is not None:
            encoder.header_table_size = table_size
        original = encoder.encode(fields, huffman=coded)
        block = blocks.mark(blocks.translate(original))
        there, here = list(oracle.decode(original, raw=True)), decode(block)
        assert here == there == [field[:2] for field in fields] == headers.read(block)
        assert [*map(type, here)] == [*map(type, there)], "a field that is never to be indexed stays one"
        assert block[:1] == b"" or block[0] < 0x20, "no size update, nothing indexed"
    assert not blocks.standalone


def test_broken_block_before_ack_is_refused() -> None:
    """So is one that repeats a reference too often."""
    broken = [b"\x82\x20", b"\x3f\xe2\x1f", b"\xc0", b"\x00", b"\x04\x81\x00", b"\x00\x05nam"]
    for block in (*broken, b"\x3f", b"\x3f\xe1", b"\x20\x3f"):
        with pytest.raises(WireError, match="cannot be decoded"):
            Blocks().translate(block)
        with pytest.raises(HPACKDecodingError):
            Decoder().decode(block)
    blocks, value = Blocks(), b"v" * 4_000
    blocks.translate(b"\x40\x01k\x7f\xa1\x1e" + value)
    assert len(blocks.translate(b"\xbe" * 16)) > 16 * len(value)
    with pytest.raises(WireError, match="cannot be decoded"):
        blocks.translate(b"\xbe" * 17)


@pytest.mark.parametrize("block", [b"\x83", b"\x20\x83"])
def test_first_block_after_each_ack_starts_with_one_size_update(block: bytes) -> None:
    blocks = Blocks()
    translated = blocks.translate(b"\x83")
    for _ in range(2):
        blocks.acknowledge()
        assert not blocks.standalone
        first = blocks.mark(blocks.translate(block))
        assert (first, blocks.standalone) == (b"\x20\x83", True)
        assert decode(first, strict=True) == [(b":method", b"POST")]
        assert blocks.mark(blocks.translate(block)) is block, "later ones are not touched"
    blocks.acknowledge()
    assert blocks.mark(translated) == b"\x20" + translated, "also one that was translated before"


@pytest.mark.parametrize("field", [b"\x82", b"\x00\x01a\x01b", b"\x20"])
def test_block_with_too_many_fields_is_refused(field: bytes) -> None:
    new, acknowledged = Blocks(), Blocks()
    acknowledged.acknowledge()
    for blocks in (acknowledged,) if field == b"\x20" else (new, acknowledged):
        assert blocks.translate(field * headers.FIELDS_LIMIT)
        with pytest.raises(WireError, match="too many fields"):
            blocks.translate(field * (headers.FIELDS_LIMIT + 1))
    for updates in (b"\x20\x3f\xe1\x1f", b"\x3f\xe1\x1f"):
        assert Blocks().translate(updates + b"\x82") == b"\x02\x03GET"
        with pytest.raises(WireError, match="too many table size updates"):
            Blocks().translate(updates + b"\x20\x20" + b"\x82")
