"""Waiting for changes of a directory, with inotify and without it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from runtimeproxy.plugins.directory import Watcher
from tests.fakes.descriptors import no_descriptors

pytestmark = pytest.mark.slow

NEVER_SECONDS = 1000.0
PATIENCE_SECONDS = 10.0
"""Seconds in which a change is seen on a busy machine."""
QUIET_SECONDS = 0.15
"""Seconds without an event after which no more is expected."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "above" / "hooks.d"


@pytest.fixture
async def watcher(folder: Path) -> AsyncIterator[Watcher]:
    made = Watcher(str(folder), NEVER_SECONDS)
    yield made
    made.close()


async def seen(watcher: Watcher, within_seconds: float = PATIENCE_SECONDS) -> bool:
    try:
        async with asyncio.timeout(within_seconds):
            await watcher.changed()
    except TimeoutError:
        return False
    watcher.arm()
    return True


async def settled(watcher: Watcher) -> None:
    """Wait until nothing more is seen of earlier changes."""
    while await seen(watcher, QUIET_SECONDS):
        pass


def do(folder: Path, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=folder, stdout=subprocess.DEVNULL, check=True)


CHANGES = [
    *("echo new > hooks.d/a.json", "echo more >> hooks.d/a.json", "rm hooks.d/a.json", "mv hooks.d/a.json ."),
    *("echo new > hooks.d/.new; mv hooks.d/.new hooks.d/a.json", "chmod 600 hooks.d/a.json"),
    "cd hooks.d; mkdir ..2; ln -s ..2 ..data_tmp; mv -T ..data_tmp ..data",
    *("rm -r hooks.d", "mv hooks.d old.d", "mv ../above ../moved"),
    "mkdir new.d; echo b > new.d/b.json; mv hooks.d old.d; mv new.d hooks.d",
]
"""The watcher sees each change and the next one."""
MADE, A, NEXT = "mkdir -p above/hooks.d", "echo a > above/hooks.d/a.json", "echo next > above/hooks.d/next.json"
AFTER_LINKS = [
    "echo a > first/a.json",
    "ln -s $PWD/second above/tmp; mv -T above/tmp above/hooks.d",
    *("echo a > second/a.json", "mv second gone", "mkdir second"),
]
TO_NOTHING = f"{MADE} elsewhere; ln -s $PWD/elsewhere/real above/hooks.d/a.json"
RING = f"{MADE}; cd above/hooks.d; ln -s $PWD/b.json a.json; ln -s $PWD/a.json b.json"

PLACES: dict[str, tuple[str, list[str], list[str]]] = {
    **{change: (f"{MADE}; {A}", [], [f"cd above; {change}", f"{MADE}; {NEXT}"]) for change in CHANGES},
    "a missing directory": ("", [], ["mkdir above", "mkdir above/hooks.d", A]),
    "a directory that is created and removed": ("", [], [MADE, "rm -r above"] * 5),
    "what happens elsewhere above": (MADE, ["echo x > above/other", "mkdir another"], [A]),
    "reading": (f"{MADE}; {A}", ["cat above/hooks.d/a.json; ls above/hooks.d"], [A]),
    "a directory that links lead to": ("mkdir first second above; ln -s $PWD/first above/hooks.d", [], AFTER_LINKS),
    "a file that a link points to": (TO_NOTHING, ["echo x > elsewhere/other"], ["echo x > elsewhere/real"] * 2),
    "links in a ring": (RING, [], [NEXT]),
}
"""The initial state, the changes that are not seen, and those that are, one after another."""


@pytest.mark.parametrize(("setup", "unseen", "changes"), PLACES.values(), ids=PLACES.keys())
async def test_only_relevant_changes_are_seen(
    tmp_path: Path, watcher: Watcher, setup: str, unseen: list[str], changes: list[str]
) -> None:
    do(tmp_path, setup)
    watcher.arm()
    await settled(watcher)
    for elsewhere in unseen:
        do(tmp_path, elsewhere)
        assert not await seen(watcher, QUIET_SECONDS)
    for change in changes:
        do(tmp_path, change)
        assert await seen(watcher)
        await settled(watcher)


async def test_changes_above_kernel_queue_limit_are_seen(folder: Path, watcher: Watcher) -> None:
    folder.mkdir(parents=True)
    with no_descriptors():
        watcher.arm()
    watcher.arm()  # tries inotify again
    retained = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(min(retained, 50_000) // 2):  # each is more than two events
        (folder / str(number)).touch()
    assert await seen(watcher)
    await settled(watcher)
    (folder / "a.json").touch()
    assert await seen(watcher)


@pytest.mark.parametrize(
    ("name", "limit", "why"),
    [("hooks.d", no_descriptors, "Too many open files"), ("n" * 300, nullcontext, "File name too long")],
    ids=["no inotify", "no watch"],
)
async def test_poll_replaces_inotify_with_one_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    limit: Callable[[], AbstractContextManager[None]],
    why: str,
) -> None:
    watcher = Watcher(str(tmp_path / name), poll_seconds=0.02)
    with limit():
        watcher.arm()
        for _ in range(3):
            await watcher.changed()
            watcher.arm()
    watcher.close()
    (record,) = caplog.records
    assert f"inotify does not work ({why}): changes in {tmp_path / name} take" in record.getMessage()
