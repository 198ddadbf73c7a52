"""The file of original values: what was written is read, what is damaged is created anew, and nothing else is."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from runtimeproxy.core import originals_file
from runtimeproxy.core.originals_file import (
    BROKEN,
    FOREIGN,
    NOT_OURS,
    UNUSABLE,
    Failed,
    File,
    is_in_memory,
    owner,
    path_of,
)
from runtimeproxy.model import originals as form
from runtimeproxy.model.originals import OriginalValues
from tests.amounts import Amount
from tests.system.keeping import mode_of
from tests.system.proxy import ROOT

OURS = owner("Containerd", "/run/containerd.sock")
LIFECYCLES = Amount(2_000, 100_000)
KILLS = Amount(5, 500)


def some(number: int, uid: str = "uid") -> OriginalValues:
    """Return some values to keep of a pod."""
    pairs = {"annotations.note": (None, f"{number}" * 20), "cgroup_parent": ("/kubepods/a", f"/kubepods/{number}")}
    return OriginalValues(("shop", f"web-{number}", uid, 0), pairs)


SOME = {f"{number:064x}": some(number) for number in range(40)}
SOME |= {"\ud800": some(1), "'; DROP TABLE kept": some(2), "a\0b": some(3)}
"""An id may be any text."""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(str(tmp_path / "a.originals"), OURS)
    yield made
    made.close()


def tried(file: File) -> tuple[str, dict[str, OriginalValues]]:
    """Return the reason why a file cannot be loaded, "" if it can, and what can be read of it."""
    kept: dict[str, bytes] = {}
    reason = ""
    try:
        file.load(kept)
    except Failed as error:
        reason = error.reason
    return reason, {one: form.read(text) for one, text in kept.items()}


def loaded(file: File) -> dict[str, OriginalValues]:
    reason, kept = tried(file)
    assert reason == ""
    return kept


def unwritten(file: File) -> str:
    """Return the reason why nothing can be written."""
    with pytest.raises(Failed) as raised:
        file.write(SOME)
    return raised.value.reason


def check_anew(file: File) -> None:
    """Check that the next try finds nothing, and that what is written then is read."""
    assert loaded(file) == {}
    file.write({"new": some(7)})
    assert loaded(file) == {"new": some(7)}


PATHS = [
    *[(None, "/run/rp/proxy.sock", "/run/rp/proxy.sock.originals"), ("", "/run/rp/proxy.sock", None)],
    ("/run/kept", "/run/rp/proxy.sock", "/run/kept/run-rp-proxy.sock.originals"),
    ("/run/kept/", "/run/rq/proxy.sock", "/run/kept/run-rq-proxy.sock.originals"),
]


@pytest.mark.parametrize(("folder", "socket", "path"), PATHS)
def test_each_socket_has_a_file_of_its_own(folder: str | None, socket: str, path: str | None) -> None:
    assert path_of(folder, socket) == path


def test_tmpfs_is_known() -> None:
    assert is_in_memory("/dev/shm")
    assert not is_in_memory("/proc")
    with pytest.raises(FileNotFoundError):
        is_in_memory("/nowhere")


def test_file_is_of_one_boot_runtime_and_mode(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/run/containerd.sock")
    assert owner("Containerd", str(link)) == OURS
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in OURS
    assert OURS not in (owner("Docker", "/run/containerd.sock"), owner("Containerd", "/run/other.sock"))


def test_file_and_sqlite_are_not_needed_for_nothing(tmp_path: Path) -> None:
    load = f"from runtimeproxy.core.originals_file import File; File({str(tmp_path / 'a')!r}, '').load(kept := {{}})"
    program = f"{load}; import sys; sys.exit(bool(kept) or 'sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    assert list(tmp_path.iterdir()) == []


def test_written_values_are_read(file: File) -> None:
    umask = os.umask(0)
    try:
        file.write(SOME)
    finally:
        os.umask(umask)
    assert mode_of(Path(file.path)) == 0o600
    again = File(file.path, OURS)
    assert loaded(again) == SOME
    first, second, *_ = SOME
    again.write({first: None, second: some(0), "more": some(1), "nobody": None})
    again.close()
    others = {one: kept for one, kept in SOME.items() if one != first}
    assert loaded(file) == {**others, second: some(0), "more": some(1)}


def test_wider_mode_is_made_narrow(file: File) -> None:
    file.write(SOME)
    file.close()
    os.chmod(file.path, 0o666)
    assert loaded(file) == SOME
    assert mode_of(Path(file.path)) == 0o600


def test_empty_file_is_a_new_one(file: File) -> None:
    Path(file.path).touch()
    check_anew(file)


def test_file_does_not_grow_over_lifecycles(file: File) -> None:
    sizes = set()
    for start in range(0, LIFECYCLES.now, 200):
        batch: dict[str, OriginalValues | None] = {
            f"{number:064x}": some(number) for number in range(start, start + 200)
        }
        file.write(batch)
        file.write(dict.fromkeys(batch))
        sizes.add(os.stat(file.path).st_size)
    assert loaded(file) == {}
    assert len(sizes) == 1
    assert max(sizes) <= 4 * 4096


def with_a_second_name(path: Path) -> None:
    path.touch()
    os.link(path, path.parent / "other")


NOT_OURS_BY: dict[str, Callable[[Path], None]] = {
    "a directory": Path.mkdir,
    "a link": lambda path: path.symlink_to("/dev/null"),
    "a file with a second name": with_a_second_name,
    "in a directory of everybody": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("prepare", NOT_OURS_BY.values(), ids=NOT_OURS_BY)
def test_only_a_file_that_nobody_else_can_have_made_is_used(file: File, prepare: Callable[[Path], None]) -> None:
    path = Path(file.path)
    prepare(path)
    before = path.lstat() if path.exists() else None
    assert (tried(file), unwritten(file)) == ((NOT_OURS, {}), NOT_OURS)
    assert before is None or path.lstat().st_ino == before.st_ino
    path.parent.chmod(0o700)


def test_another_users_file_is_not_used(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(SOME)
    file.close()
    me = os.geteuid()
    monkeypatch.setattr(originals_file, "folder_fault", lambda found, group: "")
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert tried(file) == (NOT_OURS, {})


def test_file_cannot_be_used_without_its_directory(tmp_path: Path) -> None:
    file = File(str(tmp_path / "gone" / "a"), OURS)
    assert (tried(file), unwritten(file)) == ((UNUSABLE, {}), UNUSABLE)


def by_another(path: str, owner: str) -> None:
    theirs = File(path, owner)
    theirs.write(SOME)
    theirs.close()


def with_sql(path: str, *statement: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(*statement)  # type: ignore[arg-type]


ROWS = [("id", b"[]", 0), (b"id", None, 0), (b"id", 1.5, 0), (b"\xff", b"[]", 0), (7, b"[]", 0), (b"id", b"[]", "x")]
OTHERS = [(by_another, other, FOREIGN) for other in (owner("Docker", "/run/docker.sock"), f"2 {OURS}", "")]


@pytest.mark.parametrize(("make", "what", "reason"), [*OTHERS, (with_sql, "CREATE TABLE other (a)", BROKEN)])
def test_file_of_something_else_is_made_anew(file: File, make: Callable[..., None], what: str, reason: str) -> None:
    make(file.path, what)
    assert tried(file) == (reason, {})
    assert not os.path.exists(file.path)
    check_anew(file)


@pytest.mark.parametrize("row", ROWS)
def test_broken_row_costs_itself_alone(file: File, row: tuple[object, ...]) -> None:
    file.write(SOME)
    with_sql(file.path, "INSERT INTO kept VALUES (?, ?, ?)", row)
    assert tried(file) == (BROKEN, SOME)
    check_anew(file)


def check_broken(file: File, data: bytes) -> None:
    """Check that damaged bytes give no wrong value, and that the file works afterwards."""
    Path(file.path).write_bytes(data)
    os.chmod(file.path, 0o600)
    reason, kept = tried(file)
    assert reason in ("", BROKEN, FOREIGN)
    assert os.path.exists(file.path) == (not reason)
    assert kept.items() <= SOME.items()
    file.write({"new": some(7)})
    assert loaded(file)["new"] == some(7)
    file.close()
    os.unlink(file.path)


@pytest.mark.slow
def test_file_that_is_cut_anywhere(file: File) -> None:
    """At each of its bytes in a soak."""
    file.write(SOME)
    file.close()
    data = Path(file.path).read_bytes()
    step = Amount(97, 1)
    for length in range(1, len(data), min(step.now, step.usual)):
        check_broken(file, data[:length])


@pytest.mark.slow
def test_file_filled_with_noise(file: File) -> None:
    file.write(SOME)
    file.close()
    data = Path(file.path).read_bytes()
    noise = random.Random(0)
    for _ in range(Amount(200, 20_000).now):
        broken = bytearray(data)
        for _ in range(noise.choice((1, 1, 3, 100))):
            broken[noise.randrange(len(data))] = noise.randrange(256)
        at, length = noise.randrange(len(data)), noise.choice((0, 0, 16, 5000))
        broken[at : at + length] = noise.randbytes(len(broken[at : at + length]))
        check_broken(file, bytes(broken))
    check_broken(file, noise.randbytes(len(data)))
    check_broken(file, bytes(len(data)))


@pytest.mark.parametrize("pragma", ["query_only=ON", "max_page_count=3"])
def test_write_that_fails_changes_nothing(file: File, pragma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write({"first": some(1)})
    file.close()
    monkeypatch.setattr(originals_file, "_PRAGMAS", (*originals_file._PRAGMAS, pragma))
    assert unwritten(file) == UNUSABLE
    monkeypatch.undo()
    assert loaded(file) == {"first": some(1)}
    file.write(SOME)
    assert loaded(file).keys() == {"first", *SOME}


def test_file_cannot_be_used_without_sqlite(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert unwritten(file) == UNUSABLE


WRITER = f"""
import sys
from itertools import count
sys.path.insert(0, {str(ROOT)!r})
from tests.core.test_originals_file_rows import OURS, some, File
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
file = File(path, OURS)
for number in count() if not rounds else range(rounds):
    file.write({{f"{{name}}-{{each}}": some(number) for each in range(50)}} | {{f"{{name}}-gone-{{number}}": None}})
    print(number, flush=True)
"""


def writer(file: File, name: str, rounds: int = 0) -> "subprocess.Popen[bytes]":
    """Start a process that writes some rows repeatedly, each time with one number in all of them."""
    command = [sys.executable, "-c", WRITER, file.path, name, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


@pytest.mark.slow
def test_two_processes_write_in_turn(file: File) -> None:
    rounds = Amount(50, 1_000).now
    both = [writer(file, name, rounds) for name in ("a", "b")]
    for process in both:
        process.communicate()
    assert [process.returncode for process in both] == [0, 0]
    assert loaded(file) == {f"{name}-{each}": some(rounds - 1) for name in ("a", "b") for each in range(50)}


@pytest.mark.slow
def test_writer_that_is_killed_leaves_whole_transactions(file: File) -> None:
    pause = random.Random(0)
    for _ in range(KILLS.now):
        with writer(file, "a") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            written = process.stdout.read().split()
        kept = loaded(file)
        assert len(kept) == 50
        (found,) = {kept_one.name[1] for kept_one in kept.values()}
        last = int(written[-1]) if written else 0
        assert found in (f"web-{last}", f"web-{last + 1}")
        file.close()
    with suppress(FileNotFoundError):
        assert not os.stat(f"{file.path}-journal").st_size
