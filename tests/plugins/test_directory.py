"""The registration directory, read once: which files count, and what cannot be read."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.plugins import directory
from runtimeproxy.plugins.registration import MAX_BYTES
from runtimeproxy.plugins.registry import Unreadable


def reason(folder: Path, name: str) -> str:
    content = directory.read(str(folder))[name]
    assert isinstance(content, Unreadable)
    return content.reason


COUNTING = ["a.json", "a.b.json"]
OTHERS = ["..json", ".json", ".a.json", ".a.json.swp", "a.json~", "a.JSON", "a.yaml", "ajson"]


def test_files_that_end_with_json_and_are_not_hidden_count(tmp_path: Path) -> None:
    for name in COUNTING + OTHERS:
        (tmp_path / name).write_bytes(b"x")
    assert directory.read(str(tmp_path)) == dict.fromkeys(COUNTING, b"x")


def test_contents_are_read_whole(tmp_path: Path) -> None:
    contents = {"a.json": b"", "b.json": os.urandom(MAX_BYTES), "c.json": b"\0\xff"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert directory.read(str(tmp_path)) == contents


@pytest.mark.parametrize("folder", ["", "none"], ids=["file", "directory"])
def test_known_name_that_is_gone_is_left_out(tmp_path: Path, folder: str) -> None:
    assert directory.read(str(tmp_path / folder), {"a.json"}) == {}


def test_known_name_is_looked_up_even_if_no_listing_has_it(tmp_path: Path) -> None:
    # A listing never names ".hidden.json": it stands for a file that a listing during a rename leaves out.
    (tmp_path / ".hidden.json").write_bytes(b"x")
    assert directory.read(str(tmp_path), {".hidden.json"}) == {".hidden.json": b"x"}


def test_file_in_place_of_the_directory_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        directory.read(str(tmp_path / "file"))


def test_links_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "target").write_bytes(b"x")
    (folder / "a.json").symlink_to("../target")
    (tmp_path / "link").symlink_to("d")
    assert directory.read(str(tmp_path / "link")) == {"a.json": b"x"}


def test_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)  # a file of holes: reading it would take for ever
    assert reason(tmp_path, "a.json") == ("a.json: longer than 1048576 bytes; a registration is one small JSON file")


def test_file_that_grows_is_read_up_to_the_limit(tmp_path: Path) -> None:
    # /dev/zero under the reader stands for a file that is longer than its size said.
    file = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert len(directory._read_up_to(file, 1000)) == 1000
    finally:
        os.close(file)


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "link.json").symlink_to("fifo.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.json"))
        contents = directory.read(str(tmp_path))
    assert sorted(contents) == ["device.json", "fifo.json", "folder.json", "link.json", "socket.json"]
    for name, content in contents.items():
        assert content == Unreadable(f"{name}: not a regular file; a registration is one small JSON file")


def test_links_to_nothing_and_in_a_circle_are_unreadable(tmp_path: Path) -> None:
    (tmp_path / "dangling.json").symlink_to("nothing")
    (tmp_path / "circle.json").symlink_to("circle.json")
    assert reason(tmp_path, "dangling.json") == "dangling.json: cannot be read: No such file or directory"
    assert reason(tmp_path, "circle.json") == "circle.json: cannot be read: Too many levels of symbolic links"


def test_name_that_cannot_be_looked_up_is_not_taken_for_gone(tmp_path: Path) -> None:
    name = "x" * 300 + ".json"
    assert directory.read(str(tmp_path), {name}) == {name: Unreadable(f"{name}: cannot be read: File name too long")}


def test_fifo_that_takes_a_files_place_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"x")
    found = (tmp_path / "a.json").stat()
    (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "a.json")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        content = directory._regular(folder, "a.json", found)
    finally:
        os.close(folder)
    assert content == Unreadable("a.json: not a regular file; a registration is one small JSON file")


def test_files_and_directories_without_permission() -> None:
    code = """
import os, sys, tempfile
from runtimeproxy.plugins import directory
from runtimeproxy.plugins.registry import Unreadable
with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    path = os.path.join(folder, "a.json")
    open(path, "w").close()
    os.chmod(path, 0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    print(directory.read(folder))
    os.seteuid(os.getuid())
    os.chmod(folder, 0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        directory.read(folder)
    except PermissionError:
        print("directory refused")
    os.seteuid(os.getuid())
    os.chmod(folder, 0o755)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.splitlines() == [
        "{'a.json': Unreadable(reason='a.json: cannot be read: Permission denied')}",
        "directory refused",
    ]


def renaming(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Rename the first name to the second one behind the first listing, that to the third behind the next, ..."""
    left, listdir = list(names), os.listdir

    def listed(path: int) -> list[str]:
        found = listdir(path)
        if len(left) > 1:
            (folder / left.pop(0)).rename(folder / left[0])
        return found

    monkeypatch.setattr(os, "listdir", listed)


@pytest.mark.parametrize("names", [("10.json", "20.json"), ("10.json", "20.json", "15.json"), ("a.json", ".a.json")])
def test_file_that_is_renamed_meanwhile_is_seen_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    (tmp_path / names[0]).write_bytes(b"x")
    renaming(tmp_path, monkeypatch, *names)
    assert directory.read(str(tmp_path), {names[0]}) == ({} if names[-1].startswith(".") else {names[-1]: b"x"})


def test_file_that_is_renamed_again_and_again_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.json").write_bytes(b"x")
    (tmp_path / "stays.json").write_bytes(b"y")
    renaming(tmp_path, monkeypatch, *(f"{number}.json" for number in range(100)))
    assert directory.read(str(tmp_path))["stays.json"] == b"y"
