"""A cache holds what it was given last, and never more bytes than it may."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy import caches
from runtimeproxy.caches import ENTRY_BYTES, Cache
from tests.amounts import examples

ROOM = 16 * ENTRY_BYTES
"""For eight values that take as much as an entry does besides."""


def test_a_kept_value_is_found_until_there_is_no_room_for_it() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    assert cache.keep(0, "none", ENTRY_BYTES) == "none"
    for number in range(1, 9):
        cache.keep(number, f"{number}", ENTRY_BYTES)
        assert cache.get(number) == f"{number}"
    assert list(cache) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert cache.bytes == ROOM


def test_a_value_that_would_drive_out_the_others_is_not_kept() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    cache.keep(1, "small", ENTRY_BYTES)
    assert cache.keep(2, "large", ENTRY_BYTES + 1) == "large"
    assert cache == {1: "small"}


def test_a_value_in_the_place_of_another_counts_alone() -> None:
    cache: Cache[int, str] = Cache(ROOM)
    cache.keep(1, "first", 100)
    cache.keep(1, "second", 7)
    assert (cache, cache.bytes) == ({1: "second"}, ENTRY_BYTES + 7)


@settings(max_examples=examples())
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2 * ENTRY_BYTES)), max_size=60))
def test_whatever_comes_the_bytes_are_bounded_and_counted(values: list[tuple[int, int]]) -> None:
    cache: Cache[int, int] = Cache(ROOM)
    for key, size in values:
        cache.keep(key, size, size)
        assert cache.bytes <= ROOM
        assert cache.bytes == sum(size + ENTRY_BYTES for size in cache.values())


def test_all_caches_together_are_small() -> None:
    """Of the memory that a proxy may take with 100 records (45 MiB) they are a small part."""
    found = [value for value in vars(caches).values() if isinstance(value, Cache)]
    assert len(found) == 3
    assert sum(cache._most for cache in found) <= 2 << 20
