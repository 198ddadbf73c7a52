"""Waiting for changes of a directory, by inotify and without it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from runtimeproxy.plugins.watch import POLL_SECONDS, Watcher
from tests.fakes.descriptors import no_descriptors
from tests.plugins.rig import long_chain

pytestmark = pytest.mark.slow

NEVER_SECONDS = 1000.0
PATIENCE_SECONDS = 10.0
"""How long a busy machine may take to see a change."""
QUIET_SECONDS = 0.15
"""After so long without an event nothing more is taken to come."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "above" / "hooks.d"


@pytest.fixture
async def watcher(folder: Path) -> AsyncIterator[Watcher]:
    made = Watcher(str(folder), NEVER_SECONDS)
    yield made
    made.close()


def test_how_long_a_change_may_stay_unseen_where_inotify_is_silent() -> None:
    assert POLL_SECONDS == 10


async def seen(watcher: Watcher, within_seconds: float = PATIENCE_SECONDS) -> bool:
    """Tell whether a change is seen."""
    try:
        async with asyncio.timeout(within_seconds):
            await watcher.changed()
    except TimeoutError:
        return False
    watcher.arm()
    return True


async def settled(watcher: Watcher) -> None:
    """Wait until nothing more is seen of what was done before."""
    while await seen(watcher, QUIET_SECONDS):
        pass


def _write(folder: Path) -> None:
    (folder / "a.json").write_text("new")


def _append(folder: Path) -> None:
    with (folder / "a.json").open("a") as file:
        file.write("more")
        file.flush()


def _rename_over(folder: Path) -> None:
    (folder / ".a.json.new").write_text("new")
    os.replace(folder / ".a.json.new", folder / "a.json")


def _delete(folder: Path) -> None:
    (folder / "a.json").unlink()


def _move_away(folder: Path) -> None:
    (folder / "a.json").rename(folder.parent / "a.json")


def _permit(folder: Path) -> None:
    (folder / "a.json").chmod(0o600)


def _swap_links(folder: Path) -> None:
    (folder / "..2").mkdir()
    (folder / "..data_tmp").symlink_to("..2")
    os.replace(folder / "..data_tmp", folder / "..data")


def _delete_directory(folder: Path) -> None:
    (folder / "a.json").unlink()
    folder.rmdir()


def _move_directory(folder: Path) -> None:
    folder.rename(folder.with_name("old.d"))


def _replace_directory(folder: Path) -> None:
    new = folder.with_name("new.d")
    new.mkdir()
    (new / "b.json").write_text("b")
    folder.rename(folder.with_name("old.d"))
    new.rename(folder)


def _move_directory_above(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("moved"))


@pytest.mark.parametrize(
    "change",
    [
        _write,
        _append,
        _rename_over,
        _delete,
        _move_away,
        _permit,
        _swap_links,
        _delete_directory,
        _move_directory,
        _replace_directory,
        _move_directory_above,
    ],
)
async def test_a_change_is_seen_soon_and_so_is_the_next_one(
    folder: Path, watcher: Watcher, change: Callable[[Path], None]
) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("old")
    watcher.arm()
    change(folder)
    assert await seen(watcher)
    await settled(watcher)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "last.json").write_text("last")
    assert await seen(watcher)


async def test_a_directory_that_is_missing_is_waited_for(folder: Path, watcher: Watcher) -> None:
    watcher.arm()
    folder.parent.mkdir()
    assert await seen(watcher)
    folder.mkdir()
    assert await seen(watcher)
    (folder / "a.json").write_text("a")
    assert await seen(watcher)


async def test_a_directory_that_comes_and_goes(folder: Path, watcher: Watcher) -> None:
    watcher.arm()
    for _ in range(5):
        folder.mkdir(parents=True)
        assert await seen(watcher)
        await settled(watcher)
        folder.rmdir()
        folder.parent.rmdir()
        assert await seen(watcher)
        await settled(watcher)


async def test_a_directory_behind_links(tmp_path: Path, folder: Path, watcher: Watcher) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    folder.parent.mkdir()
    folder.symlink_to(first)
    watcher.arm()
    (first / "a.json").write_text("a")
    assert await seen(watcher)
    await settled(watcher)
    (folder.parent / "tmp").symlink_to(second)
    os.replace(folder.parent / "tmp", folder)
    assert await seen(watcher)
    await settled(watcher)
    (second / "a.json").write_text("a")
    assert await seen(watcher)
    await settled(watcher)
    second.rename(tmp_path / "gone")
    assert await seen(watcher)
    await settled(watcher)
    second.mkdir()
    assert await seen(watcher)


async def test_a_file_that_a_link_points_to(tmp_path: Path, folder: Path, watcher: Watcher) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir(parents=True)
    (folder / "a.json").symlink_to(elsewhere / "real")
    watcher.arm()
    for _ in range(2):
        (elsewhere / "real").write_text("content")
        assert await seen(watcher)
        await settled(watcher)
    (elsewhere / "other").write_text("content")
    assert not await seen(watcher, QUIET_SECONDS)


@pytest.mark.parametrize("of", ["file", "directory"])
async def test_a_link_in_the_middle_of_a_chain(tmp_path: Path, folder: Path, of: str, watcher: Watcher) -> None:
    folder.parent.mkdir()
    for version in ("v1", "v2"):
        (tmp_path / "opt" / version).mkdir(parents=True)
        (tmp_path / "opt" / version / "a.json").write_text(version)
    current = tmp_path / "opt" / "current"
    current.symlink_to("v1")
    if of == "file":
        folder.mkdir()
        (folder / "a.json").symlink_to(current / "a.json")
    else:
        folder.symlink_to(current)
    watcher.arm()
    await settled(watcher)
    (tmp_path / "opt" / "new").symlink_to("v2")
    (tmp_path / "opt" / "new").rename(current)
    assert await seen(watcher)
    await settled(watcher)
    (tmp_path / "opt" / "v2" / "a.json").write_text("new")
    assert await seen(watcher)


async def test_links_in_a_ring_are_not_followed_for_ever(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").symlink_to(folder / "b.json")
    (folder / "b.json").symlink_to(folder / "a.json")
    watcher.arm()
    await settled(watcher)
    (folder / "c.json").write_text("content")
    assert await seen(watcher)


async def test_links_are_followed_as_far_as_the_kernel_does(tmp_path: Path, folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real").write_text("old")
    chain = [tmp_path / f"link{number}" for number in range(39)]
    for link, target in zip(chain, [*chain[1:], Path("elsewhere", "real")], strict=True):
        link.symlink_to(target)
    (folder / "a.json").symlink_to(chain[0])
    assert (folder / "a.json").read_text() == "old"
    watcher.arm()
    await settled(watcher)
    (tmp_path / "elsewhere" / "real").write_text("new")
    assert await seen(watcher)


async def test_a_chain_of_links_without_end_is_no_matter(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    long_chain(folder)
    watcher.arm()
    await settled(watcher)
    (folder / "c.json").write_text("content")
    assert await seen(watcher)


async def test_a_link_that_climbs_out_of_what_another_one_leads_to(
    tmp_path: Path, folder: Path, watcher: Watcher
) -> None:
    folder.mkdir(parents=True)
    (tmp_path / "opt" / "releases" / "v1").mkdir(parents=True)
    (tmp_path / "opt" / "current").symlink_to("./releases//v1/")
    (tmp_path / "opt" / "releases" / "shared").write_text("old")
    (folder / "a.json").symlink_to(tmp_path / "opt" / "current" / ".." / "shared")
    watcher.arm()
    await settled(watcher)
    (tmp_path / "opt" / "other").touch()
    (tmp_path / "opt" / "releases" / "other").touch()
    assert not await seen(watcher, QUIET_SECONDS)
    (tmp_path / "opt" / "releases" / "shared").write_text("new")
    assert await seen(watcher)


async def test_what_happens_elsewhere_above_is_not_seen(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    watcher.arm()
    (folder.parent / "other").write_text("x")
    (folder.parent.parent / "another").mkdir()
    assert not await seen(watcher, QUIET_SECONDS)


async def test_reading_is_no_change(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("a")
    watcher.arm()
    assert (folder / "a.json").read_text() == "a"
    assert os.listdir(folder) == ["a.json"]
    assert not await seen(watcher, QUIET_SECONDS)


async def test_a_burst_of_changes_is_seen_once(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    watcher.arm()
    for number in range(50):
        (folder / f"{number}.json").write_text("x")
    assert await seen(watcher)
    assert not await seen(watcher, QUIET_SECONDS)


@pytest.mark.slow
async def test_more_changes_than_the_kernel_keeps_are_seen(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    watcher.arm()
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(min(kept, 50_000) // 2):  # each is more than two events
        (folder / str(number)).touch()
    assert await seen(watcher)
    await settled(watcher)
    (folder / "a.json").touch()
    assert await seen(watcher)


async def test_the_poll_returns_without_any_event(folder: Path) -> None:
    watcher = Watcher(str(folder), poll_seconds=0.05)
    watcher.arm()
    for _ in range(3):
        await watcher.changed()
        watcher.arm()
    watcher.close()


async def test_without_inotify_the_poll_stands_in_with_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = Watcher(str(folder), poll_seconds=0.02)
    with no_descriptors():
        watcher.arm()
        for _ in range(3):
            await watcher.changed()
            watcher.arm()
    watcher.close()
    (record,) = caplog.records
    assert "inotify does not work (Too many open files)" in record.getMessage()
    assert str(folder) in record.getMessage()


async def test_inotify_is_tried_again(folder: Path) -> None:
    folder.mkdir(parents=True)
    watcher = Watcher(str(folder), poll_seconds=0.02)
    with no_descriptors():
        watcher.arm()
    await watcher.changed()  # the poll
    watcher.arm()
    watcher._poll_seconds = NEVER_SECONDS
    (folder / "a.json").write_text("a")
    assert await seen(watcher)
    watcher.close()


async def test_a_watch_that_cannot_be_set_is_made_up_for_by_the_poll(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = Watcher(str(tmp_path / ("n" * 300)), poll_seconds=0.02)
    watcher.arm()
    for _ in range(3):
        await watcher.changed()
        watcher.arm()
    watcher.close()
    (record,) = caplog.records
    assert "inotify does not work (File name too long)" in record.getMessage()


async def test_what_is_written_to_a_file_above_the_directory_is_not_even_heard(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    (folder.parent / "busy.log").touch()
    (folder / "a.json").touch()
    watcher.arm()
    inotify = watcher._inotify
    assert inotify is not None
    (folder.parent / "busy.log").write_text("a line")
    heard = iter(inotify.sync_get, None)  # also of what others make in directories further above
    assert [event for event in heard if event.name == Path("busy.log")] == []
    (folder / "a.json").write_text("new")
    assert inotify.sync_get() is not None
