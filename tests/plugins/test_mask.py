"""The mask's file: what it says, which files are not believed; it is replaced as a whole (fault matrix H13)."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins import mask
from runtimeproxy.plugins.mask import Disabled, MaskError, MaskFile, check_name, check_seconds, parse, written

HOURS = Disabled("hangs since the update", "uid 0, pid 7", 1_000_000_000.25, 1_000_003_600.25)
FOR_GOOD = Disabled("gone", "root", 1_000_000_000.0)
BOTH = {"gpu": HOURS, "koordlet": FOR_GOOD}
SHOWN = {
    "reason": "hangs since the update",
    "by": "uid 0, pid 7",
    "since": "2001-09-09T01:46:40.250Z",
    "until": "2001-09-09T02:46:40.250Z",
}


@pytest.fixture
def file(tmp_path: Path) -> MaskFile:
    """Return a file in a directory that is not there yet; no other user can write there, whatever the umask."""
    tmp_path.chmod(0o700)
    return MaskFile(str(tmp_path / "state" / "proxy" / "a.disabled.json"))


def test_what_was_written_is_read(file: MaskFile) -> None:
    assert file.read() == {}
    assert not Path(file.path).parent.exists(), "only a write makes it"
    for content in (BOTH, {"koordlet": FOR_GOOD}, {}):
        file.write(content)
        assert file.read() == content
    assert json.loads(written(BOTH)) == {
        "schemaVersion": 1,
        "disabled": {"gpu": SHOWN, "koordlet": FOR_GOOD.shown()},
    }
    assert FOR_GOOD.shown()["until"] is None


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_file_and_directory_are_the_users_own(file: MaskFile, umask: int) -> None:
    Path(file.path).parent.parent.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        if umask == 0o777:  # else it could not be entered without root's rights
            Path(file.path).parent.mkdir()
            Path(file.path).parent.chmod(0o700)
        file.write(BOTH)
    finally:
        os.umask(before)
    found = Path(file.path)
    assert [stat.S_IMODE(path.lstat().st_mode) for path in (found, found.parent)] == [0o600, 0o700]
    assert [path.name for path in found.parent.iterdir()] == [found.name]


def test_rest_of_a_write_that_was_killed_is_replaced(file: MaskFile) -> None:
    file.write(BOTH)
    Path(file.path).with_name(".a.disabled.json.new").write_text("half")
    assert file.read() == BOTH
    file.write({})
    assert file.read() == {}


def test_reader_sees_the_old_file_or_the_new_one(file: MaskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on the disk before its name is."""
    file.write(BOTH)
    done: list[str] = []
    for name in ("fsync", "rename"):
        real: Callable[..., None] = getattr(os, name)

        def step(*args: object, real: Callable[..., None] = real, name: str = name, **more: object) -> None:
            done.append(name)
            if len(done) == 1:
                assert file.read() == BOTH
            real(*args, **more)

        monkeypatch.setattr(os, name, step)
    file.write({})
    assert done == ["fsync", "rename", "fsync"]
    assert file.read() == {}


def entry(**changes: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "disabled": {"a": {**SHOWN, **changes}}}).encode()


def of(disabled: object, version: object = 1) -> bytes:
    return json.dumps({"schemaVersion": version, "disabled": disabled}).encode()


NO_JSON, NO_VERSION = "is not JSON", "does not have schemaVersion 1"
NO_FORM = "does not have the form that the proxy writes"
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NO_JSON),
    "half": (written(BOTH)[:50], NO_JSON),
    "binary": (b"\xff\x00", NO_JSON),
    "too deep": (b"[" * 100_000, NO_JSON),
    "a list": (b"[]", NO_FORM),
    "a number": (b"7", NO_FORM),
    "no version": (b'{"disabled": {}}', NO_FORM),
    "a later version": (of({}, 2), NO_VERSION),
    "nothing disabled": (b'{"schemaVersion": 1}', NO_FORM),
    "a list of names": (of(["a"]), NO_FORM),
    "a reason alone": (of({"a": "reason"}), NO_FORM),
    "no reason": (of({"a": {key: SHOWN[key] for key in ("by", "since")}}), NO_FORM),
    "a line feed in the name": (of({"a\nb": SHOWN}), NO_FORM),
    "a line feed in the reason": (entry(reason="a\nERROR b"), NO_FORM),
    "an endless reason": (entry(reason="a" * 201), NO_FORM),
    "a number for a user": (entry(by=0), NO_FORM),
    "a time without a zone": (entry(since="2001-09-09T01:46:40"), NO_FORM),
    "no time": (entry(until="tomorrow"), NO_FORM),
    "seconds for a time": (entry(until=7), NO_FORM),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_content_that_the_proxy_does_not_write_is_refused(file: MaskFile, content: bytes, why: str) -> None:
    file.write({})
    Path(file.path).write_bytes(content)
    with pytest.raises(MaskError) as raised:
        file.read()
    assert str(raised.value) == f"{file.path} {why}"


def test_entry_without_an_end_is_for_good() -> None:
    del (content := json.loads(entry()))["disabled"]["a"]["until"]
    assert parse(json.dumps(content).encode())["a"].until is None


def by_everybody(path: Path) -> None:
    path.chmod(0o602)


def by_a_group(path: Path) -> None:
    path.chmod(0o620)
    os.chown(path, -1, 12345)


def of_somebody(path: Path) -> None:
    os.chown(path, 12345, -1)


def a_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def a_huge_file(path: Path) -> None:
    os.truncate(path, mask.MAX_BYTES + 1)


def in_everybodys_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def behind_a_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


LINK = "(Too many levels of symbolic links)"
FOREIGN: list[tuple[Callable[[Path], None], str, bool]] = [
    (by_everybody, "can be written by everybody", True),
    (a_link, f"cannot be read {LINK}", True),
    (a_pipe, "is not a regular file", True),
    (a_directory, "is not a regular file", False),
    (a_huge_file, "is longer than 1048576 bytes", True),
    (in_everybodys_directory, "is in a directory that can be written by everybody", False),
    (behind_a_link, "cannot be read (Not a directory)", False),
]
"""What is done to the file -> why it is not believed, and whether the next write replaces it."""
ROOTS = [
    pytest.param(by_a_group, "can be written by group 12345", True, marks=pytest.mark.engine),
    pytest.param(of_somebody, "belongs to user 12345", True, marks=pytest.mark.engine),
]


@pytest.mark.parametrize(("do", "why", "heals"), [*FOREIGN, *ROOTS])
def test_file_that_others_could_have_written_is_refused(
    file: MaskFile, do: Callable[[Path], None], why: str, heals: bool
) -> None:
    file.write(BOTH)
    do(Path(file.path))
    with pytest.raises(MaskError) as raised:
        file.read()
    assert str(raised.value) == f"{file.path} {why}"
    if heals:
        file.write(BOTH)
        assert file.read() == BOTH
    else:
        with pytest.raises(MaskError):
            file.write({})


def test_write_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path / "file" / "a.json", "Not a directory"),
        (Path("/proc/no/a.json"), "No such file or directory"),
        (Path("/dev/full/state/a.json"), "File exists"),
    ):
        with pytest.raises(MaskError) as raised:
            MaskFile(str(path)).write(BOTH)
        assert str(raised.value) == f"{path} cannot be written ({why})"


def test_full_disk_keeps_the_old_file(file: MaskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(BOTH)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as faulty:
        faulty.setattr(os, "fsync", full)
        with pytest.raises(MaskError, match=r"cannot be written \(No space left on device\)"):
            file.write({})
    assert file.read() == BOTH
    file.write({})
    assert file.read() == {}


@pytest.mark.parametrize("text", ["", " ", "a" * 201, "two\nlines", "\x1b[31m", "\ud800"])
def test_reason_that_cannot_be_logged_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="reason: write 1 to 200 printable characters"):
        Disabled(text, "root", 0.0)


def test_name_and_time_have_bounds() -> None:
    for name in ("a", "ä b", "a" * 250, "ä" * 125, "a.json", "a..b"):
        check_name(name)
    for name in ("", " ", "a" * 251, "ä" * 126, "a\0", "\udc80", "../x", "/x", "x/", ".", "..", ".x"):
        with pytest.raises(ConfigError, match=r"no hook server can have this name: .* runtimeproxy hook ls shows"):
            check_name(name)
    for seconds in (1, 365 * 86400):
        check_seconds(seconds)
    for seconds in (0.9, -1, 365 * 86400 + 1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"for: .* is not a time from 1 s to 365 days"):
            check_seconds(seconds)
