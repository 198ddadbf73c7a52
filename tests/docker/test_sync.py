"""The daemon's events keep the Store right: what each of them means."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.docker.backend import Backend
from tests.docker.daemon import EVENTS, Daemon, event, until
from tests.docker.following import CONTAINER, LATER, OTHER_POD, PLAIN, POD, Rig, container

CANARY = "canary-4711"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon
        await daemon.left()


@pytest.fixture
async def rig(daemon: Daemon) -> AsyncIterator[Rig]:
    rig = Rig(Backend(daemon.path))
    async with rig.running():
        await until(lambda: rig.missed == 1)
        yield rig


async def said(daemon: Daemon, rig: Rig, *lines: bytes) -> None:
    """Say some events, and one more that shows that they have been taken."""
    before = rig.recorder.counted("backend_events", action="rename")
    own = sum(b'"rename"' in line for line in lines)
    daemon.say(b"".join(lines) + event("rename", "the-end", 10**6))
    await rig.counted("backend_events", before + own + 1, action="rename")
    assert rig.gone.pop() == "the-end"


# -- what events mean --------------------------------------------------------------------------------------------------


async def test_nothing_is_dropped_of_what_the_daemon_has(daemon: Daemon, rig: Rig) -> None:
    await said(daemon, rig)
    assert rig.known == {POD, OTHER_POD, CONTAINER}
    assert rig.gone == []
    (request,) = daemon.asked(EVENTS)
    assert request.query["since"] == "1700000000.000000000"
    assert json.loads(request.query["filters"])["event"] == {"destroy": True, "rename": True, "update": True}


@pytest.mark.parametrize(
    ("destroyed", "left"),
    [
        (CONTAINER, {POD, OTHER_POD}),
        (OTHER_POD, {POD, CONTAINER}),
        (POD, {OTHER_POD, CONTAINER}),
        (PLAIN, {POD, OTHER_POD, CONTAINER}),
    ],
)
async def test_what_is_destroyed_is_forgotten(daemon: Daemon, rig: Rig, destroyed: str, left: set[str]) -> None:
    rig.events.expect_update(destroyed)
    await said(daemon, rig, event("destroy", destroyed))
    assert rig.known == left
    assert rig.gone == [destroyed]
    assert not rig.events.expected_updates
    assert rig.recorder.counted("backend_events", action="destroy") == 1


async def test_a_rename_drops_what_is_remembered_beside_the_store(daemon: Daemon, rig: Rig) -> None:
    await said(daemon, rig, event("rename", CONTAINER), event("rename", PLAIN))
    assert rig.known == {POD, OTHER_POD, CONTAINER}
    assert rig.gone == [CONTAINER, PLAIN]


@pytest.mark.parametrize("action", ["create", "start", "die", "kill", "oom", "restart", "prune", ""])
async def test_what_a_container_lives_through_changes_nothing(daemon: Daemon, rig: Rig, action: str) -> None:
    await said(daemon, rig, event(action, CONTAINER), event(action, POD))
    assert rig.known == {POD, OTHER_POD, CONTAINER}
    assert rig.gone == []


@pytest.mark.parametrize(
    ("updated", "left"),
    [(CONTAINER, {POD, OTHER_POD}), (POD, {OTHER_POD, CONTAINER}), (PLAIN, {POD, OTHER_POD, CONTAINER})],
)
async def test_what_somebody_else_updated_is_forgotten_to_be_read_anew(
    daemon: Daemon, rig: Rig, updated: str, left: set[str]
) -> None:
    await said(daemon, rig, event("update", updated))
    assert rig.known == left
    assert rig.gone == []
    assert rig.recorder.counted("updates_of_others") == 1


async def test_our_own_updates_change_nothing_each_once(daemon: Daemon, rig: Rig) -> None:
    rig.events.expect_update(CONTAINER)
    rig.events.expect_update(CONTAINER)
    await said(daemon, rig, event("update", CONTAINER), event("update", CONTAINER))
    assert CONTAINER in rig.known
    assert not rig.events.expected_updates
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


async def test_an_update_that_the_daemon_refused_is_expected_no_more(daemon: Daemon, rig: Rig) -> None:
    rig.events.expect_update(CONTAINER)
    rig.events.expect_update(CONTAINER)
    for _ in range(3):  # once more than expected: it stays at none
        rig.events.no_update(CONTAINER)
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


async def test_a_count_below_none_expects_nothing(daemon: Daemon, rig: Rig) -> None:
    rig.events.expected_updates[CONTAINER] -= 1
    await said(daemon, rig, event("update", CONTAINER))
    assert CONTAINER not in rig.known


async def test_what_is_destroyed_does_not_come_back_with_a_call_that_is_under_way(daemon: Daemon, rig: Rig) -> None:
    await said(daemon, rig, event("destroy", LATER), event("destroy", CONTAINER))
    rig.store.commit(container(LATER))
    rig.store.commit(container(CONTAINER))
    assert rig.known == {POD, OTHER_POD}


async def test_after_a_line_that_cannot_be_read_something_was_missed(
    daemon: Daemon, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await said(daemon, rig, b'{"Type": "container", "' + CANARY.encode() + b"\n", event("destroy", OTHER_POD))
    assert rig.recorder.counted("backend_events_unreadable") == 1
    assert rig.missed == 2
    assert (rig.known, rig.gone) == ({POD, CONTAINER}, [OTHER_POD])
    assert len(daemon.asked(EVENTS)) == 1
    assert caplog.records == []


async def test_what_a_list_no_longer_has_is_forgotten_beyond_the_store(rig: Rig) -> None:
    rig.events.expect_update(CONTAINER)
    rig.events.gone(CONTAINER)
    assert (rig.gone, dict(rig.events.expected_updates)) == ([CONTAINER], {})
