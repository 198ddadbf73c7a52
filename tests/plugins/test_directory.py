"""A single read of the registration directory: which files are registrations, and which are unreadable."""

import os
import socket
from pathlib import Path

import pytest

from runtimeproxy.plugins import directory
from runtimeproxy.plugins.registration import MAX_BYTES, UnreadableFile
from tests.relay.test_listener import nobodys_folder


def test_visible_json_files_are_read(tmp_path: Path) -> None:
    contents = {"a.json": b"", "a.b.json": os.urandom(MAX_BYTES), "c.json": b"\0\xff"}
    ignored = ["..json", ".json", ".a.json", ".a.json.swp", "a.json~", "a.JSON", "a.yaml", "ajson"]
    for name, content in (contents | dict.fromkeys(ignored, b"x")).items():
        (tmp_path / name).write_bytes(content)
    assert directory.read(str(tmp_path)) == contents
    # A listing never contains ".a.json": it represents a file that a listing during a rename lacks.
    assert directory.read(str(tmp_path), {".a.json"}) == contents | {".a.json": b"x"}


@pytest.mark.parametrize("folder", ["", "none"], ids=["file", "directory"])
def test_removed_name_is_omitted(tmp_path: Path, folder: str) -> None:
    assert directory.read(str(tmp_path / folder), {"a.json"}) == {}


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


def renaming(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Rename the first name to the second one after the first listing, that to the third after the next, and so on."""
    remaining, listdir = list(names), os.listdir

    def listed(path: int) -> list[str]:
        listing = listdir(path)
        if len(remaining) > 1:
            (folder / remaining.pop(0)).rename(folder / remaining[0])
        return listing

    monkeypatch.setattr(os, "listdir", listed)


@pytest.mark.parametrize("names", [("10.json", "20.json"), ("10.json", "20.json", "15.json"), ("a.json", ".a.json")])
def test_file_renamed_during_read_has_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    (tmp_path / names[0]).write_bytes(b"x")
    renaming(tmp_path, monkeypatch, *names)
    assert directory.read(str(tmp_path), {names[0]}) == ({} if names[-1].startswith(".") else {names[-1]: b"x"})


def test_repeatedly_renamed_file_does_not_block_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.json").write_bytes(b"x")
    (tmp_path / "stays.json").write_bytes(b"y")
    renaming(tmp_path, monkeypatch, *(f"{number}.json" for number in range(100)))
    assert directory.read(str(tmp_path))["stays.json"] == b"y"
