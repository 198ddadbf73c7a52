"""The registration directory: which files a read returns and which are unreadable; waiting for changes."""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from runtimeproxy.plugins import directory
from runtimeproxy.plugins.directory import Watcher
from runtimeproxy.plugins.registration import MAX_BYTES, UnreadableFile
from tests.fakes.descriptors import no_descriptors
from tests.relay.test_listener import nobodys_folder


def test_visible_json_files_are_read(tmp_path: Path) -> None:
    contents = {"a.json": b"", "a.b.json": os.urandom(MAX_BYTES), "c.json": b"\0\xff"}
    ignored = ["..json", ".json", ".a.json", ".a.json.swp", "a.json~", "a.JSON", "a.yaml", "ajson"]
    for name, content in (contents | dict.fromkeys(ignored, b"x")).items():
        (tmp_path / name).write_bytes(content)
    assert directory.read(str(tmp_path)) == contents
    # A listing never contains ".a.json": it represents a file that a listing during a rename lacks.
    assert directory.read(str(tmp_path), {".a.json"}) == contents | {".a.json": b"x"}
    assert directory.read(str(tmp_path), {"removed.json"}) == contents
    assert directory.read(str(tmp_path / "none"), {"a.json"}) == {}


NO_FILE = "not a regular file; a registration is one small JSON file"
UNREADABLE = {
    **{f"{kind}.json": NO_FILE for kind in ("folder", "fifo", "link", "device", "socket")},
    "dangling.json": "cannot be read: No such file or directory",
    "circle.json": "cannot be read: Too many levels of symbolic links",
    "long.json": "longer than 1048576 bytes; a registration is one small JSON file",
    "x" * 300 + ".json": "cannot be read: File name too long",
}


def test_links_are_followed_to_regular_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "target").write_bytes(b"x")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "fifo.json")
    with (folder / "long.json").open("wb") as file:
        file.truncate(2**40)  # a sparse file: reading it would take for ever
    targets = {"a": "../target", "dangling": "nothing", "circle": "circle.json", "link": "fifo.json"}
    for name, target in {**targets, "device": "/dev/zero"}.items():
        (folder / f"{name}.json").symlink_to(target)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.json"))
        contents = directory.read(str(tmp_path / "link"), UNREADABLE)
    assert contents.pop("a.json") == b"x"
    assert contents == {name: UnreadableFile(f"{name}: {why}") for name, why in UNREADABLE.items()}


def test_growing_file_is_read_up_to_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file of /proc is longer than its reported size, like one that grows while it is read.
    (tmp_path / "a.json").symlink_to("/proc/self/maps")
    monkeypatch.setattr(directory, "MAX_BYTES", 1000)
    assert len(bytes(directory.read(str(tmp_path))["a.json"])) == 1001  # type: ignore[arg-type]


def test_read_does_not_block_when_fifo_replaces_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"x")
    status = (tmp_path / "a.json").stat()
    (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "a.json")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        content = directory._read_regular(folder, "a.json", status)
    finally:
        os.close(folder)
    assert content == UnreadableFile(f"a.json: {NO_FILE}")


def test_files_without_permission_are_unreadable() -> None:
    with nobodys_folder() as folder:
        (Path(folder) / "a.json").touch(0)
        contents = directory.read(folder)
        Path(folder).chmod(0)
        with pytest.raises(PermissionError):
            directory.read(folder)
        Path(folder).chmod(0o700)
    assert contents == {"a.json": UnreadableFile("a.json: cannot be read: Permission denied")}


MANY = tuple(f"{number}.json" for number in range(100))


@pytest.mark.parametrize("names", [("1.json", "3.json", "2.json"), ("1.json", "2.json"), ("1.json", ".1.json"), MANY])
def test_file_renamed_during_read_has_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """After each listing it gets the next name; a file that is renamed repeatedly does not block the read."""
    remaining, listdir = list(names), os.listdir

    def listed(path: int) -> list[str]:
        listing = listdir(path)
        if len(remaining) > 1:
            (tmp_path / remaining.pop(0)).rename(tmp_path / remaining[0])
        return listing

    (tmp_path / names[0]).write_bytes(b"x")
    (tmp_path / "stays.json").write_bytes(b"y")
    monkeypatch.setattr(os, "listdir", listed)
    contents = directory.read(str(tmp_path), {names[0]})
    assert contents.pop("stays.json") == b"y"
    assert names is MANY or contents == {name: b"x" for name in names[-1:] if name[0] != "."}


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_poll_replaces_inotify_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, why in (("hooks.d", "Too many open files"), ("n" * 300, "File name too long")):
        caplog.clear()
        watcher = Watcher(str(tmp_path / name), poll_seconds=0.02)
        with no_descriptors() if name == "hooks.d" else nullcontext():
            watcher.arm()
            for _ in range(3):
                await watcher.changed()
                watcher.arm()
        watcher.close()
        (record,) = caplog.records
        assert f"inotify does not work ({why}): changes in {tmp_path / name} take" in record.getMessage()
