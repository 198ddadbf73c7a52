"""State files: replaced atomically, refused if another user could have written them; the checks of owners."""

import fcntl
import os
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy import files
from runtimeproxy.files import Changed, NotOurs, StateError, StateFile, is_in_memory

OLD, NEW = b"old", b"new"
Patch = pytest.MonkeyPatch
LONGEST = 1000


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    """Return a file in a directory that does not exist yet. No other user can write there, whatever the umask."""
    tmp_path.chmod(0o700)
    return StateFile(str(tmp_path / "state" / "proxy" / "a"), LONGEST, durable=True)


def test_state_file_has_written_content(file: StateFile) -> None:
    assert file.read() == (b"", None)
    assert not Path(file.path).parent.exists(), "only a write makes it"
    for content in (OLD, NEW, b""):
        version = file.write(content)
        assert file.read() == (content, version) == (content, file.version())
    file.remove()
    file.remove()
    assert file.version() is None
    version = file.write(OLD, over=None)
    StateFile(file.path, LONGEST, durable=False).write(NEW, over=version)
    for expected_version in (version, None):
        with pytest.raises(Changed, match="was replaced by another process"):
            file.write(OLD, over=expected_version)
    assert file.read()[0] == NEW


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_state_file_and_directory_belong_to_user(file: StateFile, umask: int) -> None:
    folder = Path(file.path).parent
    folder.parent.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        if umask == 0o777:  # other users could not enter it
            folder.mkdir()
            folder.chmod(0o700)
        file.write(OLD)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.lstat().st_mode) for each in (folder / "a", folder)] == [0o600, 0o700]
    assert {each.name for each in folder.iterdir()} == {"a", ".a.lock"}


@pytest.mark.parametrize(("durable", "steps"), [(True, ["fsync", "rename", "fsync"]), (False, ["rename"])])
def test_reader_gets_old_or_new_content(tmp_path: Path, durable: bool, steps: list[str], monkeypatch: Patch) -> None:
    """Durable content is on the disk before its directory entry."""
    file = StateFile(str(tmp_path / "a"), LONGEST, durable=durable)
    file.write(OLD)
    done: list[str] = []

    def step(real: Callable[..., None], *args: object, **more: object) -> None:
        done.append(real.__name__)
        assert len(done) > 1 or file.read()[0] == OLD
        real(*args, **more)

    for real in (os.fsync, os.rename):
        monkeypatch.setattr(os, real.__name__, partial(step, real))
    file.write(NEW)
    assert done == steps
    assert file.read()[0] == NEW


def test_write_waits_for_other_process_up_to_limit(file: StateFile, monkeypatch: Patch) -> None:
    file.write(OLD)
    Path(file.path).with_name(".a.new").write_text("the rest of a write that was killed")
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    folder = os.open(Path(file.path).parent, os.O_RDONLY)  # others may open it, but not lock
    fcntl.flock(folder, fcntl.LOCK_EX)
    file.write(OLD)
    os.close(folder)
    folder = os.open(Path(file.path).with_name(".a.lock"), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(StateError, match=r"a cannot be written \(Resource temporarily unavailable\)"):
            file.write(NEW)
    finally:
        os.close(folder)
    file.write(NEW)


FOREIGN: list[Any] = [
    ("chmod 602 a", "can be written by everybody", True),
    ("mv a real; ln -s real a", "cannot be read (Too many levels of symbolic links)", True),
    ("rm a; mkfifo -m 600 a", "is not a regular file", True),
    ("rm a; mkdir -m 700 a", "is not a regular file", False),
    ("ln a other", "has a second name", True),
    (f"truncate -s {LONGEST + 1} a", "is longer than 1000 bytes", True),
    ("chmod 777 .", "is in a directory that can be written by everybody", False),
    ("cd ..; mv proxy elsewhere; ln -s elsewhere proxy", "cannot be read (Not a directory)", False),
]
"""Change of the file -> why it is refused, and whether the next write replaces it."""
AS_ROOT = [("chmod 620 a; chgrp 12345 a", "can be written by group 12345"), ("chown 12345 a", "belongs to user 12345")]
FOREIGN += [pytest.param(*row, True, marks=pytest.mark.engine) for row in AS_ROOT]


@pytest.mark.parametrize(("do", "why", "heals"), FOREIGN)
def test_file_writable_by_others_is_refused(file: StateFile, do: str, why: str, heals: bool) -> None:
    file.write(OLD)
    subprocess.run(["sh", "-ec", do], cwd=Path(file.path).parent, check=True)
    with pytest.raises(StateError) as raised:
        file.read()
    assert str(raised.value) == f"{file.path} {why}"
    assert isinstance(raised.value, NotOurs) is not ("cannot be read" in why or "longer" in why)
    if heals:
        file.write(OLD)
        assert file.read()[0] == OLD
    else:
        with pytest.raises(StateError):
            file.write(NEW)


def test_failed_write_reports_cause(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path / "file" / "a.json", "Not a directory"),
        (Path("/proc/no/a.json"), "No such file or directory"),
        (Path("/dev/full/state/a.json"), "File exists"),
    ):
        with pytest.raises(StateError) as raised:
            StateFile(str(path), LONGEST, durable=False).write(OLD)
        assert str(raised.value) == f"{path} cannot be written ({why})"


def test_full_disk_keeps_old_file(file: StateFile, monkeypatch: Patch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    file.write(OLD)
    with monkeypatch.context() as faulty:
        faulty.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=r"cannot be written \(No space left on device\)"):
            file.write(NEW)
    assert file.read()[0] == OLD
    file.write(NEW)
    assert file.read()[0] == NEW


def test_tmpfs_is_detected() -> None:
    assert is_in_memory("/dev/shm")
    assert not is_in_memory("/proc")
    with pytest.raises(FileNotFoundError):
        is_in_memory("/nowhere")
