"""The count of what held requests keep."""

from runtimeproxy.heldbytes import PROCESS_LIMIT, HeldBytes


def test_the_limit_is_that_of_the_rules() -> None:
    assert HeldBytes().limit == PROCESS_LIMIT == 64 << 20


def test_held_bytes_count_until_they_are_freed() -> None:
    held_bytes = HeldBytes(limit=30)
    assert [held_bytes.add(20), held_bytes.add(10), held_bytes.add(1)] == [True, True, False]
    held_bytes.free(11)
    assert (held_bytes.count, held_bytes.add(10)) == (20, True)
