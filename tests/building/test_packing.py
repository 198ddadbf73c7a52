"""Archives of equal files are equal, whatever the machine that packs is like."""

import os
import tarfile
from pathlib import Path

import pytest

from scripts.building.packing import pack

EPOCH = 1_700_000_000


def folder_of(path: Path, order: str, mode: int, time: int) -> Path:
    (path / "sub").mkdir(parents=True)
    for name in order:
        (path / name).write_text(f"file {name}")
        (path / name).chmod(mode if name != "b" else mode | 0o100)
    os.link(path / "a", path / "sub/hard")
    (path / "sub/soft").symlink_to("../b")
    for file in [*path.rglob("*"), path]:
        os.utime(file, (time, time), follow_symlinks=False)
    return path


def test_order_mode_and_time_of_the_files_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    pack(folder_of(tmp_path / "one", "abc", 0o644, 1), tmp_path / "one.tar.gz", "top")
    pack(folder_of(tmp_path / "two", "cba", 0o600, 2), tmp_path / "two.tar.gz", "top")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


def test_files_links_and_modes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    pack(folder_of(tmp_path / "one", "abc", 0o640, 1), tmp_path / "one.tar.gz", "top")
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        entries = {entry.name: entry for entry in tar}
        content = tar.extractfile("top/c")
        assert content is not None
        assert content.read() == b"file c"
    assert list(entries) == ["top", "top/a", "top/b", "top/c", "top/sub", "top/sub/hard", "top/sub/soft"]
    assert {name: entry.mode for name, entry in entries.items() if entry.isreg()} == {
        "top/a": 0o644,
        "top/b": 0o755,
        "top/c": 0o644,
    }
    assert (entries["top/sub/hard"].linkname, entries["top/sub/soft"].linkname) == ("top/a", "../b")
    assert {(entry.mtime, entry.uid, entry.uname) for entry in entries.values()} == {(EPOCH, 0, "root")}
