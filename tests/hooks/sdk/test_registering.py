"""The registration file: what the proxy reads in it, and that it stays and goes as it should."""

import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.plugins import registration as proxy
from runtimeproxy_hooks.sdk.registering import POLICIES, Registration, entry, file_name

CONTENT = entry("/run/a.sock", HOOK_POINTS, "Fail", "500ms")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hookserver.d"


@pytest.fixture
def registration(folder: Path) -> Registration:
    made = Registration(str(folder), "a.json", CONTENT)
    made.write()
    return made


@pytest.mark.parametrize(
    ("name", "order", "file"),
    [("gpu", None, "gpu.json"), ("gpu", 0, "00-gpu.json"), ("gpu", 7, "07-gpu.json"), ("a-b", 99, "99-a-b.json")],
)
def test_the_files_name_has_the_order(name: str, order: int | None, file: str) -> None:
    assert file_name(name, order) == file


@given(st.integers(0, 99), st.integers(0, 99))
def test_the_order_of_names_is_the_order_of_numbers(first: int, second: int) -> None:
    assert (file_name("b", first) < file_name("b", second)) == (first < second)


@pytest.mark.parametrize(("timeout", "seconds"), [(None, None), ("500ms", 0.5)])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_proxy_reads_what_is_written(policy: str, timeout: str | None, seconds: float | None) -> None:
    points = (BY_NAME["PreCreateContainer"], BY_NAME["PostStopContainer"])
    assert proxy.parse("a.json", entry("/run/a.sock", points, policy, timeout)) == proxy.Registration(
        name="a.json",
        endpoint="/run/a.sock",
        policy=proxy.FailurePolicy(policy),
        points=frozenset({"PreCreateContainer", "PostStopContainer"}),
        timeout_seconds=seconds,
    )


def test_it_is_written_and_removed_and_nothing_else_is_left(folder: Path, registration: Registration) -> None:
    assert registration.path == str(folder / "a.json")
    assert (folder / "a.json").read_bytes() == CONTENT
    assert os.listdir(folder) == ["a.json"]
    registration.remove()
    assert os.listdir(folder) == []


def test_directories_that_are_made_for_it_can_be_written_by_nobody_else_whatever_the_umask(tmp_path: Path) -> None:
    made = Registration(str(tmp_path / "x" / "hooks.d"), "a.json", CONTENT)
    before = os.umask(0)
    try:
        made.write()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "x/hooks.d")] == [0o755, 0o755]


def test_it_takes_the_place_of_an_old_one_whole(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.json").write_bytes(b"old")
    (folder / ".a.json.new").write_bytes(b"left by a kill")
    with (folder / "a.json").open("rb") as reading:  # the proxy, just now
        Registration(str(folder), "a.json", CONTENT).write()
        assert reading.read() == b"old"
    assert (folder / "a.json").read_bytes() == CONTENT
    assert os.listdir(folder) == ["a.json"]


def test_a_link_beside_it_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "mine").write_text("mine")
    (folder / ".a.json.new").symlink_to(tmp_path / "mine")
    Registration(str(folder), "a.json", CONTENT).write()
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (folder / "a.json").is_symlink()


def test_what_cannot_be_written_is_an_error_that_says_what_to_do(folder: Path) -> None:
    folder.write_text("no directory")
    with pytest.raises(ConfigError, match=r"cannot write .*a\.json: File exists; check the directory or set --reg"):
        Registration(str(folder), "a.json", CONTENT).write()


def test_a_write_that_fails_leaves_nothing(folder: Path) -> None:
    (folder / "a.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        Registration(str(folder), "a.json", CONTENT).write()
    assert os.listdir(folder) == ["a.json"]


# Looking after it.


def test_an_unchanged_file_is_left_alone(folder: Path, registration: Registration) -> None:
    before = (folder / "a.json").stat()
    registration.look_after()
    assert (folder / "a.json").stat() == before


def vanished(path: Path) -> None:
    pass


def with_its_folder(path: Path) -> None:
    path.parent.rmdir()


def cut(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])


def longer(path: Path) -> None:
    path.write_bytes(CONTENT + b" ")


def empty(path: Path) -> None:
    path.touch()


def socketed(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def dangling(path: Path) -> None:
    path.symlink_to("nothing")


def endless(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("disturb", "said"),
    [
        (vanished, "had vanished"),
        (with_its_folder, "had vanished"),
        (dangling, "had vanished"),
        (cut, "was changed"),
        (longer, "was changed"),
        (empty, "was changed"),
        (os.mkfifo, "was changed"),
        (socketed, "was changed"),
        (endless, "was changed"),
    ],
)
def test_it_is_written_again(
    folder: Path,
    registration: Registration,
    caplog: pytest.LogCaptureFixture,
    disturb: Callable[[Path], None],
    said: str,
) -> None:
    (folder / "a.json").unlink()
    disturb(folder / "a.json")
    registration.look_after()
    registration.look_after()
    assert (folder / "a.json").read_bytes() == CONTENT
    assert not (folder / "a.json").is_symlink()
    assert os.listdir(folder) == ["a.json"]
    assert [record.getMessage() for record in caplog.records] == [f"{folder}/a.json {said}: written again"]


@given(st.binary(max_size=2 * len(CONTENT)) | st.sampled_from([CONTENT[:-1], CONTENT + b"x"]))
def test_whatever_stands_there_is_made_right(tmp_path_factory: pytest.TempPathFactory, found: bytes) -> None:
    registration = Registration(str(tmp_path_factory.getbasetemp() / "law"), "a.json", CONTENT)
    registration.write()
    Path(registration.path).write_bytes(found)
    registration.look_after()
    assert Path(registration.path).read_bytes() == CONTENT


def test_a_link_to_the_same_content_is_the_users_and_stays(folder: Path, registration: Registration) -> None:
    (folder / "a.json").rename(folder / "real")
    (folder / "a.json").symlink_to("real")
    registration.look_after()
    assert (folder / "a.json").is_symlink()


def test_a_trouble_is_logged_once_and_ended_as_soon_as_it_can_be(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (folder / "a.json").unlink()
    for _ in range(2):  # a second trouble is logged again
        (folder / "a.json").mkdir()
        for _ in range(3):
            registration.look_after()
        (folder / "a.json").rmdir()
        registration.look_after()
        assert (folder / "a.json").read_bytes() == CONTENT
        (folder / "a.json").unlink()
    words = "Is a directory; the proxy may not know this server until it can be"
    trouble, ended = f"cannot write {folder}/a.json again: {words}", f"{folder}/a.json had vanished: written again"
    assert [record.getMessage() for record in caplog.records] == [trouble, ended] * 2


# Another hook server's file.


class Neighbour:
    """Another hook server, with a socket and a registration file like koordlet's."""

    def __init__(self, folder: Path, spelling: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.file, self.path = folder / "a.json", str(folder.parent / "other.sock")
        self.content = json.dumps({"remote-endpoint": spelling + self.path, "runtime-hooks": ["PreRunPodSandbox"]})
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        self.file.write_text(self.content)


@pytest.fixture(params=["", "unix:", "unix://"])
def neighbour(folder: Path, request: pytest.FixtureRequest) -> Iterator[Neighbour]:
    other = Neighbour(folder, request.param)
    with other.socket:
        yield other


def test_a_file_of_a_server_that_listens_is_not_replaced(folder: Path, neighbour: Neighbour) -> None:
    with pytest.raises(ConfigError) as caught:
        Registration(str(folder), "a.json", CONTENT).write()
    assert str(caught.value) == (
        f"{folder}/a.json is the registration of another hook server, which listens on {neighbour.path}; stop that "
        "one, or remove the file if it has ended, or set --order or --register-dir so that this one has a file of its "
        "own"
    )
    assert neighbour.file.read_text() == neighbour.content
    assert os.listdir(folder) == ["a.json"]


def test_a_file_of_a_server_that_is_gone_is_replaced_with_a_warning(
    folder: Path, neighbour: Neighbour, caplog: pytest.LogCaptureFixture
) -> None:
    neighbour.socket.close()
    Registration(str(folder), "a.json", CONTENT).write()
    assert neighbour.file.read_bytes() == CONTENT
    words = f"was the registration of another hook server, at {neighbour.path}: nobody listens there"
    assert caplog.messages == [f"{folder}/a.json {words}"]


def linked(folder: Path) -> Path:
    """Return another path of a folder."""
    other = folder / "link"
    other.symlink_to(folder)
    return other


def test_a_file_of_its_own_last_life_is_replaced_without_a_word(
    folder: Path, neighbour: Neighbour, caplog: pytest.LogCaptureFixture
) -> None:
    content = entry(neighbour.path, HOOK_POINTS, "Fail", None)
    Registration(str(folder), "a.json", content).write()
    assert neighbour.file.read_bytes() == content
    content = entry(str(linked(folder.parent) / "other.sock"), HOOK_POINTS, "Fail", None)
    Registration(str(folder), "a.json", content).write()
    assert neighbour.file.read_bytes() == content, "its socket's path may be spelt otherwise, as /run and /var/run"
    assert not caplog.records


def test_two_servers_with_one_file_do_not_fight_for_it(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    other = Neighbour(folder)
    for _ in range(3):
        registration.look_after()
        assert other.file.read_text() == other.content
    [said] = caplog.messages
    assert said == (
        f"{folder}/a.json is now the registration of another hook server, which listens on {other.path}: the proxy "
        "does not know this one; start one of the two again with another --order"
    )
    other.socket.close()
    registration.look_after()
    assert other.file.read_bytes() == CONTENT
    assert caplog.messages[1:] == [f"{folder}/a.json was changed: written again"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b'{"remote-endpoint": 7}', b"[" * 60_000, b'{"remote-endpoint": "\\ud800"}']
)
def test_a_file_that_names_no_server_is_no_others(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "a.json").write_bytes(content)
    Registration(str(folder), "a.json", CONTENT).write()
    assert (folder / "a.json").read_bytes() == CONTENT


# The end.


@pytest.mark.parametrize("disturb", [vanished, with_its_folder, cut, longer, empty, os.mkfifo, socketed, dangling])
def test_what_is_not_ours_any_more_is_left(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture, disturb: Callable[[Path], None]
) -> None:
    (folder / "a.json").unlink()
    disturb(folder / "a.json")
    before = os.path.lexists(folder / "a.json")
    registration.remove()
    assert os.path.lexists(folder / "a.json") == before
    assert not caplog.records


def test_a_file_that_stays_is_told_of(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    registration.leave()
    assert (folder / "a.json").read_bytes() == CONTENT
    assert caplog.messages == [
        f"{folder}/a.json stays, for its policy is Fail: calls are refused until this server is back; to let them go "
        "on without it remove that file (with --unregister it is removed at the end)"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_file_that_was_removed_already_does_not_stay(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.json").unlink()
    registration.leave()
    assert os.listdir(folder) == []
    assert not caplog.records


def test_a_file_that_cannot_be_removed_is_told_of(
    folder: Path, registration: Registration, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)  # root, who runs the tests, may remove everything
    registration.remove()
    monkeypatch.undo()
    assert f"cannot remove {folder}/a.json: Operation not permitted; remove it by hand" in caplog.text
