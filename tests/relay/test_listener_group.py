"""The socket's directory and the group: it is let into one that is made, and told of one that it cannot enter."""

import logging
import os
import stat
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import listen

ANOTHER, THIRD = 12345, 12346
"""Groups that nobody need know; root can give to any."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to any group")


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


@needs_root
@pytest.mark.parametrize(("mode", "group"), [(0o755, 0), (0o711, 0), (0o710, ANOTHER), (0o770, ANOTHER)])
def test_a_directory_that_the_group_can_enter_stays_as_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, group: int
) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    assert listened(folder, ANOTHER) == (mode, group)
    assert caplog.records == []


@needs_root
@pytest.mark.parametrize(
    ("mode", "group"),
    [(0o740, ANOTHER), (0o750, THIRD), (0o700, 0), (0o705, ANOTHER)],
    ids=["no right to enter", "another group's", "nobody else's", "everybody's but the group's"],
)
def test_a_directory_that_is_there_already_is_told_of_and_stays_as_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, group: int
) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    assert listened(folder, ANOTHER) == (mode, group)
    (record,) = caplog.records
    told = f"group {ANOTHER} cannot enter {folder}, so it cannot use the socket: chgrp the directory to the group"
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(told)
