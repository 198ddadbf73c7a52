"""The socket's directory and the group: it is let into one that is made, and told of one that it cannot enter."""

import logging
import os
import stat
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import listen

IS_ROOT = os.geteuid() == 0
GROUP = 12345 if IS_ROOT else os.getegid()
"""The socket's; only root gives to a group that it is not in, and nobody need know of one."""
OTHERS = [12346] if IS_ROOT else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory as an earlier start made it, with the lock that this left."""
    listen(str(tmp_path / "run" / "a.sock")).close()
    return tmp_path / "run"


def access(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_gid


def listened(folder: Path, group: int | None) -> tuple[int, int]:
    """Listen for a group; return mode and group of the directory."""
    listen(str(folder / "a.sock"), mode=0o660, group=None if group is None else str(group)).close()
    return access(folder)


def test_the_directory_is_made_for_the_group(tmp_path: Path) -> None:
    listener = listen(str(tmp_path / "new" / "a.sock"), mode=0o660, group=str(os.getgid()))
    assert access(tmp_path / "new") == (0o750, os.getgid())
    listener.close()


def test_directories_that_are_made_can_be_written_by_nobody_else_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listen(str(tmp_path / "x" / "y" / "z" / "a.sock")).close()
    finally:
        os.umask(before)
    assert [access(tmp_path / name)[0] for name in ("x", "x/y", "x/y/z")] == [0o755, 0o755, 0o700]


@pytest.mark.parametrize(
    ("mode", "group"),
    [(0o710, GROUP), (0o770, GROUP), *((mode, group) for mode in (0o755, 0o711) for group in (GROUP, *OTHERS))],
)
def test_a_directory_that_the_group_can_enter_stays_as_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, group: int
) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    assert listened(folder, GROUP) == (mode, group)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("mode", "group"),
    [(0o740, GROUP), (0o700, GROUP), (0o705, GROUP), *((mode, group) for mode in (0o750, 0o700) for group in OTHERS)],
)
def test_a_directory_that_is_there_already_is_told_of_and_stays_as_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, group: int
) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    assert listened(folder, GROUP) == (mode, group)
    (record,) = caplog.records
    told = f"group {GROUP} cannot enter {folder}, so it cannot use the socket: chgrp the directory to the group"
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(told)
