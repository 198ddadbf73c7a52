"""The sync of a runtime that is away, comes back, or says odd things; and the sync's own end."""

import asyncio
import logging
from itertools import pairwise

import pytest

from runtimeproxy.call import Unreadable
from runtimeproxy.errors import BackendError
from runtimeproxy.sync import PASS_SECONDS, SOONEST_SECONDS
from runtimeproxy.wire import grpc
from tests.fakes.clock import virtual_time
from tests.fakes.state import LIST
from tests.fakes.synced import Synced

AWAY = BackendError("nobody there")
ODD = BackendError("it cannot say", grpc.INTERNAL)
CANARY = "canary-4711"


# -- a runtime that is away, or says odd things ------------------------------------------------------------------------


@virtual_time
async def test_a_runtime_that_is_away_is_tried_ever_more_rarely_down_to_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Synced("p1", "c1")
    rig.state.errors[LIST] = AWAY
    async with rig.running():
        await asyncio.sleep(5)
        waits = [round(later - earlier, 6) for earlier, later in pairwise(rig.state.lists)]
        assert waits[:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        assert caplog.records == []
        rig.state.errors.clear()
        with caplog.at_level(logging.INFO):
            await asyncio.sleep(1)
        assert rig.known == {"p1", "c1"}
        lists = len(rig.state.lists)
        await asyncio.sleep(PASS_SECONDS - 10)
        assert len(rig.state.lists) == lists
    assert rig.recorder.counted("syncs", result="failed") == lists - 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the runtime's state is known: 1 pods, 1 containers (")


@virtual_time
async def test_a_read_that_fails_cancels_nobody_but_the_other_reads() -> None:
    """A cancel that stays behind ends the sync at its next wait (Python 3.11.2), for good and unseen."""
    rig = Synced("p1", "p2")
    rig.state.errors["p1"] = AWAY
    async with rig.running():
        await asyncio.sleep(0.01)
        assert rig.sync._task is not None
        assert rig.sync._task.cancelling() == 0
        assert rig.recorder.counted("syncs", result="failed") == 1


@pytest.mark.parametrize("one", ["p2", "c3"])
@virtual_time
async def test_one_that_is_always_unavailable_keeps_no_other_from_being_known(one: str) -> None:
    """The first time it may be the runtime that went away; the second time its list has come in between."""
    rig = Synced("p1", "p2", *(f"c{number}" for number in range(20)))
    rig.state.read_seconds = 0.01
    rig.state.errors[one] = AWAY
    others = {*rig.state.pods, *rig.state.containers} - {one}
    async with rig.running():
        await asyncio.sleep(5)
        assert rig.known == others
        await asyncio.sleep(10 * PASS_SECONDS)
        assert (len(rig.state.lists), rig.state.reads.count(one)) == (12, 12), "one a minute after the first two"
        assert rig.recorder.counted("syncs", result="failed") == 1
        assert rig.recorder.counted("records_unreadable") == 11
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 2)
        assert rig.known == others | {one}
        assert rig.sync._suspects == set()


@virtual_time
async def test_a_runtime_that_goes_away_while_it_is_read_makes_nothing_be_passed_over() -> None:
    rig = Synced("p1", *(f"c{number}" for number in range(8)))
    rig.state.read_seconds = 1
    async with rig.running():
        await asyncio.sleep(2.5)
        rig.state.errors = dict.fromkeys((LIST, *rig.state.containers), AWAY)
        await asyncio.sleep(5)
        rig.state.errors.clear()
        await asyncio.sleep(5)
        assert rig.known == {"p1", *rig.state.containers}
    assert rig.recorder.counted("records_unreadable") == 0
    assert rig.sync._suspects == set()


@virtual_time
async def test_one_that_hangs_keeps_no_other_from_being_known(caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1", "p2", "c1", "c2")
    rig.state.errors["p1"] = rig.state.errors["c2"] = BackendError("no answer in 10 s", grpc.DEADLINE_EXCEEDED)
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS - 10)
        assert rig.known == {"p1", "p2", "c1"}, "p1 comes with its container"
        assert len(rig.state.lists) == 3
        assert rig.recorder.counted("syncs", result="complete") == 3
        late = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert late[0].startswith("the runtime tells nothing of 2 of its pods and containers in time")
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS + 1)
        assert rig.known == {"p1", "p2", "c1", "c2"}
    assert rig.recorder.counted("records_late") == len(late) + 1


@virtual_time
async def test_a_list_that_does_not_come_in_time_fails_the_pass() -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = BackendError("no answer in 10 s", grpc.DEADLINE_EXCEEDED)
    async with rig.running():
        await asyncio.sleep(1)
    assert rig.recorder.counted("syncs", result="complete") == 0
    assert rig.recorder.counted("syncs", result="failed") > 1


@virtual_time
async def test_the_first_retry_is_soon_again_after_a_pass() -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = AWAY
    async with rig.running():
        await asyncio.sleep(3)
        rig.state.errors.clear()
        await asyncio.sleep(3)
        rig.state.errors[LIST] = AWAY
        lists = len(rig.state.lists)
        rig.sync.soon()
        await asyncio.sleep(0.12)
        assert len(rig.state.lists) == lists + 2


@virtual_time
async def test_a_runtime_that_comes_back_is_listed_at_most_once_a_second() -> None:
    rig = Synced("p1")
    async with rig.running():
        for _ in range(50):
            rig.sync.soon()
            await asyncio.sleep(0.1)
    assert 4 <= len(rig.state.lists) <= 6


@pytest.mark.parametrize("error", [ODD, Unreadable("half a status"), None])
@pytest.mark.parametrize("one", ["p2", "c2"])
@virtual_time
async def test_what_cannot_be_read_is_passed_over_until_the_runtime_comes_back(
    one: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Synced("p1", "p2", "c1", "c2")
    if error is None:
        (rig.state.pods if one == "p2" else rig.state.containers)[one] = None
    else:
        rig.state.errors[one] = error
    async with rig.running():
        await asyncio.sleep(3 * PASS_SECONDS)
        assert rig.known == {"p1", "p2", "c1", "c2"} - {one}
        assert rig.state.reads.count(one) == 1
        rig.state.errors.clear()
        rig.state.has(one)
        rig.sync.soon()
        await asyncio.sleep(1.5)
        assert rig.known == {"p1", "p2", "c1", "c2"}
    assert rig.recorder.counted("records_unreadable") == (error is not None)
    assert caplog.records == []


@virtual_time
async def test_what_is_passed_over_and_gone_is_remembered_no_more() -> None:
    rig = Synced("p1", "c1")
    rig.state.errors["c1"] = ODD
    async with rig.running():
        await asyncio.sleep(1)
        rig.state.lacks("c1")
        await asyncio.sleep(PASS_SECONDS)
        assert rig.sync._passed_over == set()


@virtual_time
async def test_what_is_unavailable_and_gone_is_remembered_no_more() -> None:
    rig = Synced("p1", "c1")
    rig.state.errors["c1"] = AWAY
    async with rig.running():
        await asyncio.sleep(1)
        rig.state.lacks("c1")
        await asyncio.sleep(PASS_SECONDS)
        assert rig.sync._suspects == set()


@pytest.mark.parametrize("error", [ODD, Unreadable("a list that is none")])
@virtual_time
async def test_a_list_that_cannot_be_had_is_told_of_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(20)
        (record,) = caplog.records
        text = f"the runtime's state cannot be read ({error}): trying again, and what a call needs is read then"
        assert (record.levelname, record.getMessage()) == ("WARNING", text)
        rig.state.errors.clear()
        rig.sync.soon()
        await asyncio.sleep(2)
        assert rig.known == {"p1"}
        rig.state.errors[LIST] = error
        rig.sync.soon()
        await asyncio.sleep(5)
        assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [ODD, Unreadable("a list that is none"), KeyError(CANARY)])
@virtual_time
async def test_a_list_that_cannot_be_had_is_asked_for_ever_more_rarely_down_to_once_a_minute(error: Exception) -> None:
    """It may be too long for the runtime or for us, and is work for both."""
    rig = Synced("p1")
    rig.state.errors[LIST] = error
    async with rig.running():
        await asyncio.sleep(10 * PASS_SECONDS)
        waits = [later - earlier for earlier, later in pairwise(rig.state.lists)]
        assert waits[:2] == pytest.approx([0.05, 0.1])
        assert all(later == pytest.approx(min(2 * earlier, PASS_SECONDS)) for earlier, later in pairwise(waits))
        assert waits[-1] == pytest.approx(PASS_SECONDS)
        rig.state.errors.clear()
        await asyncio.sleep(PASS_SECONDS)
        assert rig.known == {"p1"}


@virtual_time
async def test_a_runtime_that_comes_back_is_listed_at_once_whatever_its_list_was_before() -> None:
    rig = Synced("p1")
    rig.state.errors[LIST] = ODD
    async with rig.running():
        await asyncio.sleep(5 * PASS_SECONDS)
        rig.state.errors.clear()
        rig.sync.soon()
        await asyncio.sleep(SOONEST_SECONDS)
        assert rig.known == {"p1"}


@pytest.mark.parametrize("where", [LIST, "c1"])
@virtual_time
async def test_a_fault_of_our_own_is_counted_and_ends_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Synced("p1", "c1", "c2")
    rig.state.errors[where] = KeyError(CANARY)
    async with rig.running():
        await asyncio.sleep(0.01)
        assert rig.recorder.counted("internal_errors", operation="sync") == 1
        rig.state.errors.clear()
        await asyncio.sleep(2)
        rig.sync.soon()
        await asyncio.sleep(1)
        assert rig.known == {"p1", "c1", "c2"}
    assert caplog.records[0].getMessage() == "internal error in reading the runtime's state"


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["", "p1", "c1"])
@virtual_time
async def test_a_stop_at_any_moment_leaves_nothing(missing: str) -> None:
    """Also in that in which the runtime leaves."""
    for steps in range(40):
        rig = Synced("p1", "c1", "c2")
        if missing:
            rig.state.errors[missing] = AWAY
        async with rig.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
    assert missing or rig.known == {"p1", "c1", "c2"}


@virtual_time
async def test_what_was_never_started_can_be_stopped() -> None:
    await Synced().sync.stop()
