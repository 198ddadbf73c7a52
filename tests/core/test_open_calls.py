"""Held calls: properties that are read once, defaults, the limit of held bytes (relay-rules A4), queries about starts
and stops without an answer (relay-rules C3), and the queues of calls (relay-rules C6)."""

import asyncio
import logging
import tracemalloc
from collections.abc import Sequence

import pytest

from runtimeproxy.core import call as module
from runtimeproxy.core.call import DONE, NOT_DONE, REMOVED, UNANSWERED, Reply, Unreadable
from runtimeproxy.core.open_calls import MAX_QUERIES, QUERIED_AFTER_SECONDS, KeyedQueue, OpenCalls
from runtimeproxy.core.store import Store
from runtimeproxy.errors import BackendError
from runtimeproxy.model.fields import NO_ADJUSTMENT
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.eventloop import Deadlines
from tests.fakes.calls import SUBJECT, FakeCall
from tests.fakes.clock import virtual_time

pytestmark = virtual_time

START, STOP = Operation.START_CONTAINER, Operation.STOP_CONTAINER
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture


def now() -> float:
    return asyncio.get_running_loop().time()


class Rig:
    def __init__(self, max_calls: int = 1000) -> None:
        self.metrics = Metrics(now)
        self.finish_seconds = 0.0
        """Seconds until a finished call reaches the head of its queue."""
        self.unsettled = OpenCalls(self.metrics, max_calls)
        self.finished: list[tuple[float, str, Reply]] = []

    def add(self, *outcomes: Reply | Exception, key: str = "c1", read_seconds: float = 0.0) -> FakeCall:
        call = FakeCall(STOP, outcomes=list(outcomes), read_seconds=read_seconds)

        async def finish(reply: Reply) -> None:
            await asyncio.sleep(self.finish_seconds)
            self.finished.append((now(), key, reply))

        self.unsettled.add(key, call, finish)
        return call

    def counted(self, result: str) -> int:
        return self.metrics.counted("unknown_outcomes", operation=STOP.value, result=result)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def queried(call: FakeCall) -> list[float]:
    assert {name for _, name in call.steps} <= {"settle"}
    return [at for at, _ in call.steps]


Outcomes = list[Reply | Exception]
UNKNOWN: list[Outcomes] = [[UNANSWERED], [BackendError("away")], [Unreadable("half a list")]]
QUERIES: list[tuple[Outcomes, float, Sequence[float], str]] = [
    ([UNANSWERED, UNANSWERED, DONE], 0, [0.1, 0.4, 0.9], "agreed"),
    *[([DONE], 0, [0.1], "agreed"), ([REMOVED], 0, [0.1], "agreed"), ([NOT_DONE], 0, [0.1], "failed")],
    *[(outcomes, 0, QUERIED_AFTER_SECONDS, "given_up") for outcomes in UNKNOWN],
    *[([UNANSWERED], 5, [0.1, 10, 30, 60, 125], "given_up"), ([KeyError(CANARY)], 0, [0.1], "failed")],
]


@pytest.mark.parametrize(("outcomes", "read_seconds", "queried_after", "result"), QUERIES)
async def test_runtime_is_queried_until_it_answers(
    rig: Rig, outcomes: Outcomes, read_seconds: float, queried_after: Sequence[float], result: str, caplog: Log
) -> None:
    """Most are finished within a second of their end; a slow runtime is not queried again immediately."""
    caplog.set_level(logging.DEBUG, "runtimeproxy")
    await asyncio.sleep(5)
    call = rig.add(*outcomes, read_seconds=read_seconds)
    assert rig.unsettled.calls() == [call]
    for _ in range(300):
        await asyncio.sleep(1.05)
        assert read_seconds or len(asyncio.all_tasks()) == 1, "no task waits between two queries"
    assert [round(at - 5, 6) for at in queried(call)] == list(queried_after)
    assert [reply for _, _, reply in rig.finished] == (outcomes[-1:] if result == "agreed" else [])
    assert (rig.unsettled.calls(), rig.counted(result)) == ([], 1)
    errors = ["internal error in settling StopContainer"] * isinstance(outcomes[0], KeyError)
    assert (caplog.messages, rig.metrics.total("internal_errors")) == (errors, len(errors))
    assert QUERIED_AFTER_SECONDS[-1] > 119, "dockershim gives a stop up after 119 s"


async def test_settling_waits_for_running_call_of_same_subject(rig: Rig) -> None:
    for under_way in (FakeCall(STOP), FakeCall(STOP, key=Unreadable("cut")), FakeCall(START, key="c2")):
        rig.unsettled.under_way[under_way] = asyncio.get_running_loop().create_future()
    call, second = rig.add(DONE), rig.add(DONE, key="c2")
    await asyncio.sleep(0.2)
    assert [key for _, key, _ in rig.finished] == ["c2"]
    rig.unsettled.under_way.clear()  # it failed
    await asyncio.sleep(300)
    assert (queried(call), queried(second)) == ([0.1, 0.4], [0.1])
    assert [key for _, key, _ in rig.finished] == ["c2", "c1"]


ANSWERED = [("c1", STOP, 0, 0, 0), ("c1", STOP, 0.5, 1, 0), ("c2", STOP, 0, 1, 1), ("c1", START, 0, 1, 1)]


@pytest.mark.parametrize(("key", "operation", "after", "n", "left"), ANSWERED)
async def test_later_reply_settles_call(
    rig: Rig, key: str, operation: Operation, after: float, n: int, left: int
) -> None:
    """Also while the runtime is queried about it."""
    call = rig.add(DONE, read_seconds=1)
    await asyncio.sleep(after)
    rig.unsettled.drop_repeated(key, operation)
    assert len(rig.unsettled.calls()) == left
    await asyncio.sleep(300)
    assert (len(queried(call)), len(rig.finished), rig.counted("repeated")) == (n, left, 1 - left)


async def test_few_queries_run_at_one_time(rig: Rig) -> None:
    calls = {f"c{number}": rig.add(DONE, key=f"c{number}", read_seconds=1) for number in range(11)}
    await asyncio.sleep(1.5)
    settled = next(key for key, call in calls.items() if not queried(call))
    rig.unsettled.drop_repeated(settled, STOP)  # while its query waits
    await asyncio.sleep(300)
    begun = sorted(at for call in calls.values() for at in queried(call))
    assert [round(at, 6) for at in begun] == [0.1] * 4 + [1.1] * 4 + [2.1] * 2
    assert {key for _, key, _ in rig.finished} == calls.keys() - {settled}


async def test_oldest_call_is_abandoned_above_limit() -> None:
    rig = Rig(max_calls=3)
    calls = [rig.add(DONE, key=f"c{number}") for number in range(5)]
    assert (rig.unsettled.calls(), rig.counted("given_up")) == (calls[2:], 2)
    await asyncio.sleep(300)
    assert [len(queried(call)) for call in calls] == [0, 0, 1, 1, 1]
    for number in range(5):
        rig.unsettled.add_create(f"p1/c{number}/0")
    rig.unsettled.drop_repeated("p1/c3/0", Operation.CREATE_CONTAINER)
    assert list(rig.unsettled.creates) == ["p1/c2/0", "p1/c4/0"]
    rig = Rig(max_calls=1)
    rig.finish_seconds, began = 1.0, now()
    rig.add(DONE)
    await asyncio.sleep(0.5)
    rig.add(UNANSWERED, key="c2")
    await asyncio.sleep(1)
    assert rig.finished == [(began + 1.1, "c1", DONE)], "a call that is being finished is not abandoned"
    assert (rig.counted("agreed"), rig.counted("given_up")) == (1, 0)


async def test_abandoned_call_waits_for_no_query() -> None:
    """The task of a query that waits for a slot refers to the call, and the call to its request."""
    rig = Rig(max_calls=2 * MAX_QUERIES)
    for _ in range(10):
        for _ in range(MAX_QUERIES):
            rig.add(UNANSWERED, key="c2", read_seconds=100)
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) <= 2 * MAX_QUERIES + 1
    await rig.unsettled.stop()


async def test_stop_ends_all_queries_and_accepts_no_calls(rig: Rig) -> None:
    rig.finish_seconds = 1.0
    finishing, slow = rig.add(DONE), rig.add(DONE, read_seconds=1)
    await asyncio.sleep(0.2)
    waiting = rig.add(DONE)
    await rig.unsettled.stop()
    assert (len(asyncio.all_tasks()), rig.unsettled.calls()) == (1, [])
    late = rig.add(DONE)
    await asyncio.sleep(300)
    assert [len(queried(call)) for call in (finishing, slow, waiting, late)] == [1, 1, 0, 0]
    assert (rig.finished, rig.counted("given_up")) == ([], 2)


class Queue(KeyedQueue):
    def __init__(self) -> None:
        super().__init__(Deadlines())
        self.lines: list[tuple[float, str]] = []

    def start(self, name: str, wait_seconds: float, hold_seconds: float) -> asyncio.Task[None]:
        return asyncio.create_task(self._hold(name, wait_seconds, hold_seconds))

    async def _hold(self, name: str, wait_seconds: float, hold_seconds: float) -> None:
        ticket = self.enqueue("c1")
        try:
            await self.wait(ticket, wait_seconds)
            self.lines.append((now(), f"{name} in"))
            await asyncio.sleep(hold_seconds)
            self.lines.append((now(), f"{name} out"))
        finally:
            self.leave(ticket)


@pytest.mark.parametrize(("wait_seconds", "begins"), [(2, 2), (0, 0)])
async def test_expired_waiter_proceeds_before_its_position(wait_seconds: float, begins: float) -> None:
    """An abandoned ticket does not let later ones overtake."""
    queue = Queue()
    await asyncio.gather(queue.start("a", 10, 5), queue.start("b", wait_seconds, 4))
    assert queue.lines == sorted([(0, "a in"), (begins, "b in"), (begins + 4, "b out"), (5, "a out")])
    assert not queue.queues, "a key without waiters takes no memory"
    queue, ended = Queue(), now()
    tasks = [queue.start(*each) for each in (("a", 10, 5), ("b", 1, 1), ("c", 10, 1), ("d", 10, 1))]
    await asyncio.sleep(3)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    lines = [(0, "a in"), (1, "b in"), (2, "b out"), (5, "a out"), (5, "d in"), (6, "d out")]
    assert queue.lines == [(ended + after, line) for after, line in lines]


async def test_memory_of_waiters_is_linear() -> None:
    """Ten thousand calls may be about one container; no ticket refers to the others."""
    queue, sizes = KeyedQueue(Deadlines()), []
    tracemalloc.start()
    for _ in range(2):
        before, _ = tracemalloc.get_traced_memory()
        waits = [asyncio.create_task(queue.wait(queue.enqueue("c1"), 10)) for _ in range(1_000)]
        await asyncio.sleep(0)
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert sizes[1] < 1.5 * sizes[0]
    await asyncio.gather(*waits)


def test_message_is_read_once() -> None:
    reads: list[object] = []

    class Message:
        @module.read_once
        def id(self) -> str:
            """Return the id."""
            reads.append(self)
            if self is broken:
                raise Unreadable("broken")
            return "c1"

    message, broken = Message(), Message()
    assert (message.id, message.id, reads) == ("c1", "c1", [message])
    message.id = "c1-whole"
    assert (message.id, len(reads), vars(Message)["id"].__doc__) == ("c1-whole", 1, "Return the id.")
    for _ in range(3):
        with pytest.raises(Unreadable, match="broken") as caught:
            _ = broken.id
    assert reads == [message, broken]
    assert caught.value.__context__ is None, "nothing keeps the frames of the first time"


Plain = type("Plain", (module.HeldCall,), dict.fromkeys(module.HeldCall.__abstractmethods__))


async def test_call_changes_nothing_by_default() -> None:
    call = Plain()
    assert await call.prepare(SUBJECT, NO_ADJUSTMENT) == {}
    assert call.outcome(SUBJECT, NO_ADJUSTMENT, DONE) is SUBJECT
    assert (call.unedited(Store()), call.may_be_repeated(), await call.life("c1")) == (True, False, None)
    assert (await call.settle(), await call.read_made(Store(), SUBJECT)) == (UNANSWERED, None)


def test_memory_budget_refuses_bytes_above_limit() -> None:
    assert module.MemoryBudget().limit == module.PROCESS_LIMIT == 64 << 20
    budget = module.MemoryBudget(limit=30)
    assert [budget.add(20), budget.add(10), budget.add(1)] == [True, True, False]
    budget.credit(11)
    assert (budget.count, budget.add(10)) == (20, True)
