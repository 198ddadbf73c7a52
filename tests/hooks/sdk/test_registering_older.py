"""Files of a hook server's earlier lives, with its socket under other names: a server that starts leaves one only."""

import os
from pathlib import Path

import pytest

from runtimeproxy.hookpoints import HOOK_POINTS
from runtimeproxy_hooks.sdk.registering import Registration, entry

CONTENT = entry("/run/a.sock", HOOK_POINTS, "Fail", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hookserver.d"
    made.mkdir()
    return made


@pytest.mark.parametrize("spelling", ["", "unix:", "unix://", "link"])
def test_other_files_with_its_socket_are_left_over_and_removed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, spelling: str
) -> None:
    socket_path, link = tmp_path / "a.sock", tmp_path / "link"
    link.symlink_to(tmp_path)
    older = str(link / "a.sock") if spelling == "link" else f"{spelling}{socket_path}"
    for name in ("07-a.json", "a.json", "b.json"):
        (folder / name).write_bytes(entry(older, HOOK_POINTS, "Fail", "1s"))
    Registration(str(folder), "a.json", entry(str(socket_path), HOOK_POINTS, "Fail", None)).write()
    assert os.listdir(folder) == ["a.json"]
    words = "named this server's socket, too, and was left over: removed"
    assert caplog.messages == [f"{folder}/07-a.json {words}", f"{folder}/b.json {words}"]


def test_all_that_does_not_name_its_socket_stays(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "other.json").write_bytes(entry("/run/b.sock", HOOK_POINTS, "Fail", None))
    (folder / "empty.json").touch()
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    for unseen in (".a.json", "a.json.bak", "a.yaml"):
        (folder / unseen).write_bytes(CONTENT)
    before = {*os.listdir(folder)}
    Registration(str(folder), "a.json", CONTENT).write()
    assert {*os.listdir(folder)} == before | {"a.json"}
    assert not caplog.records


def test_a_file_that_is_left_over_and_stays_is_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "b.json").write_bytes(CONTENT)
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.endswith("b.json"):
            raise OSError(16, "Device or resource busy")  # a mount of its own
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    Registration(str(folder), "a.json", CONTENT).write()
    assert caplog.messages == [
        f"{folder}/b.json names this server's socket, too, so each call would be asked twice, and cannot be removed: "
        "Device or resource busy; remove it by hand"
    ]
    assert (folder / "a.json").read_bytes() == CONTENT


def test_a_directory_that_cannot_be_listed_is_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)  # root, who runs the tests, may read everything
    Registration(str(folder), "a.json", CONTENT).write()
    assert caplog.messages == [f"cannot look for older registrations of this server in {folder}: Permission denied"]
    assert (folder / "a.json").read_bytes() == CONTENT
