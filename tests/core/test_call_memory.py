"""The count of bytes kept by held requests, and its limit (relay-rules A4)."""

from runtimeproxy.core.call import PROCESS_LIMIT, MemoryBudget


def test_held_bytes_count_up_to_the_limit_until_they_are_freed() -> None:
    assert MemoryBudget().limit == PROCESS_LIMIT == 64 << 20
    budget = MemoryBudget(limit=30)
    assert [budget.add(20), budget.add(10), budget.add(1)] == [True, True, False]
    budget.credit(11)
    assert (budget.count, budget.add(10)) == (20, True)
