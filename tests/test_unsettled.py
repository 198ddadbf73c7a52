"""Calls without an answer: when the runtime is asked about them, how often, and what comes of it."""

import asyncio
import logging

import pytest

from runtimeproxy import unsettled as module
from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Reply, Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.store import Store
from runtimeproxy.telemetry import Recorder
from runtimeproxy.unsettled import ASKED_AFTER_SECONDS, MOST_QUESTIONS, Unsettled
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time

CREATE, STOP = Operation.CREATE_CONTAINER, Operation.STOP_CONTAINER
UPDATE = Operation.UPDATE_CONTAINER_RESOURCES
CANARY = "canary-4711"


class Rig:
    """Unsettled calls and what was finished, with the time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.recorder = Recorder(self.loop.time)
        self.unknown: list[str] = []
        self.finish_seconds = 0.0
        """How long it takes until a call's turn comes."""
        self.unsettled = Unsettled(Store(), self.recorder, on_unknown=self.unknown.append)
        self.finished: list[tuple[float, str, Reply]] = []

    def add(self, *fates: Reply | Exception, key: str = "c1", operation: Operation = STOP, size: int = 0) -> FakeCall:
        call = FakeCall(operation, fates=list(fates), size=size)

        async def finish(reply: Reply) -> None:
            if self.finish_seconds:
                await asyncio.sleep(self.finish_seconds)
                self.unsettled.answered(key, call)
            self.finished.append((self.loop.time(), key, reply))

        self.unsettled.add(key, call, finish)
        return call

    def counted(self, result: str, operation: Operation = STOP) -> int:
        return self.recorder.counted("unsettled", operation=operation.value, result=result)


def asked(call: FakeCall) -> list[float]:
    assert {name for _, name in call.steps} <= {"settle"}
    return [at for at, _ in call.steps]


@virtual_time
async def test_a_call_that_the_runtime_carried_out_is_finished_within_a_second_of_its_end() -> None:
    rig = Rig()
    await asyncio.sleep(5)
    call = rig.add(UNANSWERED, UNANSWERED, DONE)
    assert len(rig.unsettled) == 1
    await asyncio.sleep(300)
    assert asked(call) == [5.1, 5.4, 5.9]
    assert rig.finished == [(5.9, "c1", DONE)]
    assert (len(rig.unsettled), rig.counted("agreed")) == (0, 1)


@pytest.mark.parametrize(
    ("fate", "finished", "result"), [(DONE, 1, "agreed"), (GONE, 1, "agreed"), (NOT_DONE, 0, "failed")]
)
@virtual_time
async def test_the_first_word_on_it_counts(fate: Reply, finished: int, result: str) -> None:
    rig = Rig()
    call = rig.add(fate)
    await asyncio.sleep(300)
    assert asked(call) == [0.1]
    assert [reply for _, _, reply in rig.finished] == [fate] * finished
    assert rig.counted(result) == 1


@virtual_time
async def test_what_is_asked_for_again_meanwhile_is_left_to_that_call() -> None:
    rig = Rig()
    again = True
    rig.unsettled = Unsettled(Store(), rig.recorder, lambda key, operation: again and (key, operation) == ("c1", STOP))
    call, other = rig.add(DONE), rig.add(DONE, key="c2")
    await asyncio.sleep(0.2)
    assert [key for _, key, _ in rig.finished] == ["c2"]
    again = False  # it failed
    await asyncio.sleep(300)
    assert (asked(call), asked(other)) == ([0.1, 0.4], [0.1])
    assert [key for _, key, _ in rig.finished] == ["c2", "c1"]


@pytest.mark.parametrize("fate", [UNANSWERED, BackendError("away"), Unreadable("half a list")])
@virtual_time
async def test_what_cannot_be_told_is_asked_ever_more_rarely_and_given_up(fate: Reply | Exception) -> None:
    rig = Rig()
    call = rig.add(fate)
    await asyncio.sleep(1000)
    assert asked(call) == list(ASKED_AFTER_SECONDS)
    assert (rig.finished, len(rig.unsettled), rig.counted("given_up")) == ([], 0, 1)
    assert ASKED_AFTER_SECONDS[-1] > 119, "dockershim gives a stop up after 119 s"


@virtual_time
async def test_a_runtime_that_takes_its_time_is_not_asked_again_at_once() -> None:
    rig = Rig()
    call = rig.add(UNANSWERED)
    call.read_seconds = 5
    await asyncio.sleep(1000)
    assert asked(call) == [0.1, 10.0, 30.0, 60.0, 125.0]


@virtual_time
async def test_between_two_questions_there_is_no_task() -> None:
    rig = Rig()
    rig.add(UNANSWERED)
    for _ in range(100):
        await asyncio.sleep(1.05)
        assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_a_fault_of_our_own_ends_it_and_tells_no_value(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    call = rig.add(KeyError(CANARY))
    with caplog.at_level(logging.DEBUG):
        await asyncio.sleep(300)
    assert (asked(call), rig.finished, rig.counted("failed")) == ([0.1], [], 1)
    assert rig.recorder.counted("internal_errors", operation=STOP.value) == 1
    assert [record.getMessage() for record in caplog.records] == ["internal error in settling StopContainer"]


@pytest.mark.parametrize(("key", "operation", "left"), [("c1", STOP, 0), ("c2", STOP, 1), ("c1", CREATE, 1)])
@virtual_time
async def test_a_later_answer_to_the_same_settles_it(key: str, operation: Operation, left: int) -> None:
    rig = Rig()
    call = rig.add(DONE)
    rig.unsettled.answered(key, FakeCall(operation))
    assert len(rig.unsettled) == left
    await asyncio.sleep(300)
    assert (len(asked(call)), len(rig.finished), rig.counted("repeated")) == (left, left, 1 - left)


@pytest.mark.parametrize("is_superseded", [True, False])
@virtual_time
async def test_until_its_turn_comes_a_later_one_may_settle_it(is_superseded: bool) -> None:
    """The runtime was asked about it before that one was carried out."""
    rig = Rig()
    rig.finish_seconds = 1.0
    older, later = rig.add(DONE, operation=UPDATE), FakeCall(UPDATE)
    older.is_superseded, later.number = is_superseded, 1
    await asyncio.sleep(0.5)
    rig.unsettled.answered("c1", later)
    assert older.superseded_by is later
    await asyncio.sleep(300)
    assert (len(rig.finished), len(rig.unsettled)) == (int(not is_superseded), 0)
    assert [rig.counted(result, UPDATE) for result in ("repeated", "agreed")] == [is_superseded, not is_superseded]


@virtual_time
async def test_nobody_is_sure_of_a_subject_while_its_calls_turn_comes() -> None:
    rig = Rig()
    rig.finish_seconds = 1.0
    call = rig.add(DONE, operation=UPDATE)
    await asyncio.sleep(0.5)
    rig.unsettled.unsure("c1")
    assert call.unsure


@virtual_time
async def test_who_is_told_of_a_call_is_told_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 1)
    rig = Rig()
    rig.finish_seconds = 1.0
    rig.add(DONE)
    await asyncio.sleep(0.5)
    rig.add(UNANSWERED, key="c2")
    await asyncio.sleep(1)
    assert (rig.finished, rig.counted("agreed"), rig.counted("given_up")) == ([(1.1, "c1", DONE)], 1, 0)


@virtual_time
async def test_an_older_update_settles_no_later_one() -> None:
    rig = Rig()
    later, older = rig.add(DONE, operation=UPDATE), FakeCall(UPDATE)
    later.number = 1
    rig.unsettled.answered("c1", older)
    assert (later.superseded_by, len(rig.unsettled)) == (None, 1)


@virtual_time
async def test_a_later_update_may_be_another_one() -> None:
    rig = Rig()
    older, later = rig.add(DONE, operation=UPDATE), FakeCall(UPDATE)
    older.is_superseded, later.number = False, 1
    rig.unsettled.answered("c1", later)
    assert (older.superseded_by, len(rig.unsettled)) == (later, 1)
    await asyncio.sleep(1)
    assert len(rig.finished) == 1


@pytest.mark.parametrize("operation", [UPDATE, STOP])
@virtual_time
async def test_of_a_container_nobody_knows_once_an_update_is_given_up(operation: Operation) -> None:
    rig = Rig()
    rig.add(UNANSWERED, operation=operation)
    await asyncio.sleep(ASKED_AFTER_SECONDS[-1] - 1)
    assert rig.unknown == []
    await asyncio.sleep(2)
    assert rig.unknown == (["c1"] if operation is UPDATE else [])


@virtual_time
async def test_calls_on_what_nobody_is_sure_of_are_unsure() -> None:
    rig = Rig()
    calls = {key: rig.add(DONE, key=key) for key in ("c1", "c2")}
    rig.unsettled.unsure("c1")
    assert [call.unsure for call in calls.values()] == [True, False]


@virtual_time
async def test_a_later_answer_counts_also_while_the_runtime_is_asked() -> None:
    rig = Rig()
    call = rig.add(DONE)
    call.read_seconds = 1
    await asyncio.sleep(0.5)
    rig.unsettled.answered("c1", FakeCall(STOP))
    await asyncio.sleep(300)
    assert (asked(call), rig.finished, rig.counted("repeated")) == ([0.1], [], 1)


@virtual_time
async def test_an_answer_where_nothing_is_unsettled_is_no_news() -> None:
    rig = Rig()
    rig.unsettled.answered("c1", FakeCall(STOP))
    assert rig.recorder.total("unsettled") == 0


@virtual_time
async def test_a_bounded_number_of_questions_is_asked_at_one_time() -> None:
    rig = Rig()
    calls = [rig.add(DONE, key=f"c{number}") for number in range(10)]
    for call in calls:
        call.read_seconds = 1
    await asyncio.sleep(300)
    begun = sorted(at for call in calls for at in asked(call))
    assert [round(at, 6) for at in begun] == [0.1] * 4 + [1.1] * 4 + [2.1] * 2
    assert {key for _, key, _ in rig.finished} == {f"c{number}" for number in range(10)}


@virtual_time
async def test_a_call_that_was_settled_while_it_waited_is_not_asked_about() -> None:
    rig = Rig()
    calls = {f"c{number}": rig.add(DONE, key=f"c{number}") for number in range(5)}
    for call in calls.values():
        call.read_seconds = 1
    await asyncio.sleep(0.5)
    (waiting,) = (key for key, call in calls.items() if not asked(call))
    rig.unsettled.answered(waiting, FakeCall(STOP))
    await asyncio.sleep(300)
    assert (asked(calls[waiting]), len(rig.finished)) == ([], 4)


@virtual_time
async def test_of_too_many_the_oldest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 3)
    rig = Rig()
    calls = [rig.add(DONE, key=f"c{number}") for number in range(5)]
    assert (len(rig.unsettled), rig.counted("given_up")) == (3, 2)
    await asyncio.sleep(300)
    assert [len(asked(call)) for call in calls] == [0, 0, 1, 1, 1]


@virtual_time
async def test_of_requests_that_are_too_long_together_the_oldest_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    rig = Rig()
    first, second = rig.add(DONE, size=30), rig.add(DONE, size=40)
    assert len(rig.unsettled) == 2
    third = rig.add(DONE, size=60)
    assert (len(rig.unsettled), rig.counted("given_up")) == (2, 1)
    await asyncio.sleep(300)
    assert [len(asked(call)) for call in (first, second, third)] == [0, 1, 1]
    assert len(asyncio.all_tasks()) == 1
    alone, last = rig.add(DONE, size=500), rig.add(DONE, size=1)
    await asyncio.sleep(300)
    assert [len(asked(call)) for call in (alone, last)] == [0, 1], "the longest is asked about if no other comes"


@virtual_time
async def test_who_is_given_up_waits_for_no_question_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of a question that waits for its turn has the call, and that its request."""
    monkeypatch.setattr(module, "MOST_CALLS", 2 * MOST_QUESTIONS)
    rig = Rig()
    for _ in range(10):
        for call in [rig.add(UNANSWERED, key="c2") for _ in range(MOST_QUESTIONS)]:
            call.read_seconds = 100
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) <= 2 * MOST_QUESTIONS + 1
    await rig.unsettled.stop()


@virtual_time
async def test_at_the_end_nothing_is_left_and_nothing_is_taken() -> None:
    rig = Rig()
    slow, waiting = rig.add(DONE), rig.add(DONE)
    slow.read_seconds = 1
    await asyncio.sleep(0.2)
    waiting_later = rig.add(DONE)
    await rig.unsettled.stop()
    assert (len(asyncio.all_tasks()), len(rig.unsettled)) == (1, 0)
    late = rig.add(DONE)
    await asyncio.sleep(300)
    assert (asked(slow), asked(waiting_later), asked(late)) == ([0.1], [], [])
    assert len(rig.finished) == len(asked(waiting)) == 1
    assert rig.counted("given_up") == 2
