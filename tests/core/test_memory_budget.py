"""The count of bytes kept by held requests, and its limit (relay-rules A4)."""

from runtimeproxy.core.memory_budget import PROCESS_LIMIT, MemoryBudget


def test_held_bytes_count_up_to_the_limit_until_they_are_freed() -> None:
    assert MemoryBudget().limit == PROCESS_LIMIT == 64 << 20
    held_bytes = MemoryBudget(limit=30)
    assert [held_bytes.add(20), held_bytes.add(10), held_bytes.add(1)] == [True, True, False]
    held_bytes.free(11)
    assert (held_bytes.count, held_bytes.add(10)) == (20, True)
