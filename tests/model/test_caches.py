"""A cache keeps the latest values, and never more bytes than its limit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.wire.cache import ENTRY_BYTES, Cache
from tests.amounts import examples

ROOM = 16 * ENTRY_BYTES
"""Room for eight values as large as an entry's overhead."""


def test_oldest_value_goes_when_there_is_no_room() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    for number in range(9):
        assert cache.keep(number, f"{number}", ENTRY_BYTES) == cache.get(number) == f"{number}"
    assert (list(cache), cache.bytes) == ([1, 2, 3, 4, 5, 6, 7, 8], ROOM)


def test_value_that_would_drive_out_the_others_is_not_kept() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    cache.keep(1, "small", ENTRY_BYTES)
    assert cache.keep(2, "large", ENTRY_BYTES + 1) == "large"
    assert cache == {1: "small"}


@settings(max_examples=examples())
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2 * ENTRY_BYTES)), max_size=60))
def test_bytes_are_bounded_and_those_of_the_values(values: list[tuple[int, int]]) -> None:
    cache: Cache[int, int] = Cache(ROOM)
    for key, size in values:
        cache.keep(key, size, size)
        assert size > ENTRY_BYTES or cache[key] == size
        assert cache.bytes == sum(size + ENTRY_BYTES for size in cache.values()) <= ROOM


def test_all_caches_together_are_small() -> None:
    """They are a small part of the memory of a proxy with 100 records (45 MiB)."""
    found = [value for value in vars(codec).values() if isinstance(value, Cache)]
    assert len(found) == 3
    assert sum(cache._most for cache in found) <= 2 << 20
