"""The file of original values: what was written is read, what is damaged is replaced, and nothing else is."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from runtimeproxy.core.originals_file import (
    BROKEN,
    FOREIGN,
    NOT_OURS,
    Failed,
    File,
    owner,
    path_of,
)
from runtimeproxy.model import originals as form
from runtimeproxy.model.originals import OriginalValues
from tests.amounts import Amount
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
def file(tmp_path: Path) -> File:
    tmp_path.chmod(0o700)
    return File(str(tmp_path / "a.original-values"), OURS)


def tried(file: File) -> tuple[str, dict[str, OriginalValues]]:
    """Return the reason why a file cannot be loaded, "" if it can, and what can be read of it."""
    retained: dict[str, bytes] = {}
    reason = ""
    try:
        file.load(retained)
    except Failed as error:
        reason = error.reason
    return reason, {one: form.read(text) for one, text in retained.items()}


def loaded(file: File) -> dict[str, OriginalValues]:
    reason, retained = tried(file)
    assert reason == ""
    return retained


def unwritten(file: File) -> str:
    """Return the reason why nothing can be written."""
    with pytest.raises(Failed) as raised:
        file.write(SOME)
    return raised.value.reason


def check_again(file: File) -> None:
    """Check that the next try finds nothing, and that what is written then is read."""
    assert loaded(file) == {}
    file.write({"new": some(7)})
    assert loaded(file) == {"new": some(7)}


PATHS = [
    *[(None, "/run/rp/proxy.sock", "/run/rp/proxy.sock.original-values"), ("", "/run/rp/proxy.sock", None)],
    ("/run/kept", "/run/rp/proxy.sock", "/run/kept/run-rp-proxy.sock.original-values"),
    ("/run/kept/", "/run/rq/proxy.sock", "/run/kept/run-rq-proxy.sock.original-values"),
]


@pytest.mark.parametrize(("folder", "socket", "path"), PATHS)
def test_each_socket_has_a_file_of_its_own(folder: str | None, socket: str, path: str | None) -> None:
    assert path_of(folder, socket) == path


def test_file_is_of_one_boot_runtime_and_mode(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/run/containerd.sock")
    assert owner("Containerd", str(link)) == OURS
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in OURS
    assert OURS not in (owner("Docker", "/run/containerd.sock"), owner("Containerd", "/run/other.sock"))


def test_written_values_are_read(file: File) -> None:
    assert loaded(file) == {}
    assert not os.path.exists(file.path)
    file.write(SOME)
    again = File(file.path, OURS)
    assert loaded(again) == SOME
    first, second, *_ = SOME
    again.write({first: None, second: some(0), "more": some(1), "nobody": None})
    others = {one: retained for one, retained in SOME.items() if one != first}
    assert loaded(file) == {**others, second: some(0), "more": some(1)}


def test_empty_file_is_a_new_one(file: File) -> None:
    Path(file.path).touch()
    check_again(file)


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
    assert max(sizes) < 200


def test_file_that_others_could_have_made_is_not_used(file: File) -> None:
    """Which files those are: tests/test_files.py."""
    path = Path(file.path)
    file.write(SOME)
    path.parent.chmod(0o777)
    assert (tried(File(file.path, OURS)), unwritten(file)) == ((NOT_OURS, {}), NOT_OURS)
    path.parent.chmod(0o700)
    assert loaded(File(file.path, OURS)) == SOME


def test_rows_are_written_again_when_the_file_is_removed(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write({"a": some(1)})
    File(file.path, OURS).write({"b": some(2)})
    versions = iter([file._file.version()])
    os.unlink(file.path)
    monkeypatch.setattr(file._file, "version", lambda: next(versions, None))
    file.write({"c": some(3)})
    assert loaded(File(file.path, OURS)) == {"a": some(1), "c": some(3)}


OTHER_FORMS = [
    b"\n",
    b"x",
    b'00000000 "a"\t[]\n',
    b'aaaaaaaa "a" []\n',
    b"aaaaaaaa 7\t[]\n",
    b"00000000 " + b"[" * 100_000 + b"\t\n",
    b"aaaaaaaa \xff\t[]\n",
]


@pytest.mark.parametrize("row", OTHER_FORMS)
def test_broken_row_is_lost_alone(file: File, row: bytes) -> None:
    file.write(SOME)
    with open(file.path, "ab") as opened:
        opened.write(row)
    assert tried(file) == (BROKEN, SOME)
    check_again(file)


def of_sqlite(path: Path, owner: str, *rows: tuple[object, ...]) -> None:
    """Write the file of version 0.1."""
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("CREATE TABLE kept (id BLOB PRIMARY KEY, text BLOB, sum INTEGER) WITHOUT ROWID")
        made.executemany("INSERT INTO kept VALUES (?, ?, ?)", [(b"", owner.encode(), 0), *rows])


def test_values_of_version_0_1_are_read_after_an_upgrade(file: File) -> None:
    old = Path(file.path).with_name("a.originals")
    text = form.write(some(1))
    good = (b"good", text, crc32(text, crc32(b"good")))
    of_sqlite(old, f"1 {OURS}", good, (b"bad", text, 7))
    before = old.read_bytes()
    assert loaded(file) == {"good": some(1)}
    file.write({"more": some(2)})
    assert loaded(File(file.path, OURS)) == {"good": some(1), "more": some(2)}
    assert old.read_bytes() == before, "a downgrade finds it"


@pytest.mark.parametrize("content", [b"", b"noise", None])
def test_values_of_version_0_1_may_be_unusable(file: File, content: bytes | None) -> None:
    old = Path(file.path).with_name("a.originals")
    if content is None:
        of_sqlite(old, "1 another")
    else:
        old.write_bytes(content)
    assert loaded(file) == {}


def check_broken(file: File, data: bytes) -> None:
    """Check that damaged bytes give no wrong value, and that the file works afterwards."""
    Path(file.path).write_bytes(data)
    os.chmod(file.path, 0o600)
    reason, retained = tried(file)
    assert reason in ("", BROKEN, FOREIGN)
    assert os.path.exists(file.path) == (not reason)
    assert retained.items() <= SOME.items()
    file.write({"new": some(7)})
    assert loaded(file)["new"] == some(7)
    os.unlink(file.path)


@pytest.mark.slow
def test_file_that_is_cut_or_filled_with_noise(file: File) -> None:
    """It is cut at each of its bytes in a soak."""
    file.write(SOME)
    data = Path(file.path).read_bytes()
    step = Amount(97, 1)
    for length in range(1, len(data), min(step.now, step.usual)):
        check_broken(file, data[:length])
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
        retained = loaded(file)
        assert len(retained) == 50
        (found,) = {kept_one.name[1] for kept_one in retained.values()}
        last = int(written[-1]) if written else 0
        assert found in (f"web-{last}", f"web-{last + 1}")
