"""The registration directory, read once: which files count, and what cannot be read."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtimeproxy.plugins import directory
from runtimeproxy.plugins.registration import MAX_BYTES
from runtimeproxy.plugins.registry import Unreadable


def test_files_that_end_with_json_and_are_not_hidden_are_read_whole(tmp_path: Path) -> None:
    contents = {"a.json": b"", "a.b.json": os.urandom(MAX_BYTES), "c.json": b"\0\xff"}
    others = ["..json", ".json", ".a.json", ".a.json.swp", "a.json~", "a.JSON", "a.yaml", "ajson"]
    for name, content in (contents | dict.fromkeys(others, b"x")).items():
        (tmp_path / name).write_bytes(content)
    assert directory.read(str(tmp_path)) == contents
    # A listing never names ".a.json": it stands for a file that a listing during a rename leaves out.
    assert directory.read(str(tmp_path), {".a.json"}) == contents | {".a.json": b"x"}


@pytest.mark.parametrize("folder", ["", "none"], ids=["file", "directory"])
def test_known_name_that_is_gone_is_left_out(tmp_path: Path, folder: str) -> None:
    assert directory.read(str(tmp_path / folder), {"a.json"}) == {}


def test_file_in_place_of_the_directory_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        directory.read(str(tmp_path / "file"))


def test_links_are_followed_if_they_lead_to_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to("d")
    for name, target in {"a.json": "../target", "dangling.json": "nothing", "circle.json": "circle.json"}.items():
        (folder / name).symlink_to(target)
    assert directory.read(str(tmp_path / "link")) == {
        "a.json": b"x",
        "dangling.json": Unreadable("dangling.json: cannot be read: No such file or directory"),
        "circle.json": Unreadable("circle.json: cannot be read: Too many levels of symbolic links"),
    }


def test_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)  # a file of holes: reading it would take for ever
    told = Unreadable("a.json: longer than 1048576 bytes; a registration is one small JSON file")
    assert directory.read(str(tmp_path)) == {"a.json": told}


def test_file_that_grows_is_read_up_to_the_limit(tmp_path: Path) -> None:
    # /dev/zero under the reader stands for a file that is longer than its size said.
    file = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert len(directory._read_up_to(file, 1000)) == 1000
    finally:
        os.close(file)


NO_FILE = "{}: not a regular file; a registration is one small JSON file"


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "link.json").symlink_to("fifo.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.json"))
        contents = directory.read(str(tmp_path))
    names = [f"{kind}.json" for kind in ("folder", "fifo", "link", "device", "socket")]
    assert contents == {name: Unreadable(NO_FILE.format(name)) for name in names}


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
    assert content == Unreadable(NO_FILE.format("a.json"))


UNPERMITTED = """
import os, sys
from runtimeproxy.plugins import directory
folder, nobody = sys.argv[1], 65534 if os.geteuid() == 0 else os.geteuid()
for closed in (os.path.join(folder, "a.json"), folder):
    os.chmod(closed, 0)
    os.seteuid(nobody)
    try:
        print(directory.read(folder))
    except PermissionError:
        print("directory refused")
    os.seteuid(os.getuid())
os.chmod(folder, 0o755)
"""


def test_files_and_directories_without_permission() -> None:
    # In the system's own temporary directory: pytest's is closed to the user that the code becomes.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "a.json").touch()
        command = [sys.executable, "-c", UNPERMITTED, folder]
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
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
