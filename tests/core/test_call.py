"""A held call: properties that are read once, defaults, and the limit of held bytes (relay-rules A4)."""

import pytest

from runtimeproxy.core.call import DONE, PROCESS_LIMIT, UNANSWERED, HeldCall, MemoryBudget, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.model.fields import NO_ADJUSTMENT
from tests.fakes.calls import SUBJECT


class Message:
    """A message whose id is read once, successfully or not."""

    reads = 0
    fault: Exception | None = None

    @read_once
    def id(self) -> str:
        """Return the id."""
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        return "c1"


def test_message_is_read_once() -> None:
    message, second, broken = Message(), Message(), Message()
    assert (message.id, message.id, message.reads, second.reads) == ("c1", "c1", 1, 0)
    message.id = "c1-whole"
    assert (message.id, message.reads) == ("c1-whole", 1)
    assert vars(Message)["id"].__doc__ == "Return the id."
    broken.fault = Unreadable("broken")
    for _ in range(3):
        with pytest.raises(Unreadable, match="broken") as caught:
            _ = broken.id
    assert broken.reads == 1
    assert caught.value.__context__ is None, "nothing keeps the frames of the first time"


Plain = type("Plain", (HeldCall,), dict.fromkeys(HeldCall.__abstractmethods__))
"""A front's call with nothing but the abstract methods."""


async def test_call_changes_nothing_by_default() -> None:
    call = Plain()
    assert await call.prepare(SUBJECT, NO_ADJUSTMENT) == {}
    assert call.outcome(SUBJECT, NO_ADJUSTMENT, DONE) is SUBJECT
    assert (call.unedited(Store()), call.may_be_repeated()) == (True, False)
    assert (await call.settle(), await call.read_made(Store(), SUBJECT)) == (UNANSWERED, None)
    assert await call.life("c1") is None


def test_memory_budget_refuses_bytes_above_limit() -> None:
    assert MemoryBudget().limit == PROCESS_LIMIT == 64 << 20
    budget = MemoryBudget(limit=30)
    assert [budget.add(20), budget.add(10), budget.add(1)] == [True, True, False]
    budget.credit(11)
    assert (budget.count, budget.add(10)) == (20, True)
