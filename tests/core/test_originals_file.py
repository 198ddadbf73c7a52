"""The Store's original values are written to the file and read again; damage is repaired, and failures are counted."""

import asyncio
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from zlib import crc32

import pytest

from runtimeproxy import files
from runtimeproxy.core import originals_file
from runtimeproxy.core.originals_file import BROKEN, FOREIGN, NOT_OURS, Failed, File, Originals, owner, path_of
from runtimeproxy.core.store import Store
from runtimeproxy.model import originals as form
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.originals import OriginalValues
from runtimeproxy.observe.metrics import Metrics
from tests.amounts import Amount
from tests.system.proxy import ROOT, on_tmpfs, rows, until

OURS = owner("Containerd", "/run/containerd.sock")
LIFECYCLES, KILLS = Amount(2_000, 100_000), Amount(5, 500)
Log = pytest.LogCaptureFixture


def some(number: int) -> OriginalValues:
    pairs = {"annotations.note": (None, f"{number}" * 20), "cgroup_parent": ("/kubepods/a", f"/kubepods/{number}")}
    return OriginalValues(("shop", f"web-{number}", "uid", 0), pairs)


SOME = {f"{number:064x}": some(number) for number in range(40)}
SOME |= {"\ud800": some(1), "'; DROP TABLE kept": some(2), "a\0b": some(3)}


@pytest.fixture
def file(tmp_path: Path) -> File:
    tmp_path.chmod(0o700)
    return File(str(tmp_path / "a.original-values"), OURS)


def tried(file: File) -> tuple[str, dict[str, OriginalValues]]:
    """Return the reason why a file cannot be loaded, "" if it can, and the values that can be read."""
    retained: dict[str, bytes] = {}
    reason = ""
    try:
        file.load(retained)
    except Failed as error:
        reason = error.reason
    return reason, {any_id: form.read(text) for any_id, text in retained.items()}


def loaded(file: File) -> dict[str, OriginalValues]:
    reason, retained = tried(file)
    assert reason == ""
    return retained


def test_file_belongs_to_socket_boot_runtime_and_mode(tmp_path: Path) -> None:
    socket, second = "/run/rp/proxy.sock", "/run/rq/proxy.sock"
    assert (path_of(None, socket), path_of("", socket)) == (f"{socket}.original-values", None)
    paths = path_of("/run/kept", socket), path_of("/run/kept/", second)
    assert paths == tuple(f"/run/kept/run-{folder}-proxy.sock.original-values" for folder in ("rp", "rq"))
    (link := tmp_path / "link").symlink_to("/run/containerd.sock")
    assert owner("Containerd", str(link)) == OURS
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in OURS
    assert OURS not in (owner("Docker", "/run/containerd.sock"), owner("Containerd", "/run/other.sock"))


MALFORMED_ROWS = [b"\n", b'00000000 "a"\t[]\n', b"aaaaaaaa 7\t[]\n", b"\xff\t[]\n", b"0 " + b"[" * 100_000 + b"\t\n"]


def test_written_values_are_read(file: File) -> None:
    """A broken row loses no other row."""
    assert loaded(file) == {}
    assert not os.path.exists(file.path)
    file.write(SOME)
    again = File(file.path, OURS)
    assert loaded(again) == SOME
    first, second, *_ = SOME
    again.write({first: None, second: some(0), "more": some(1), "nobody": None})
    remaining = {any_id: retained for any_id, retained in SOME.items() if any_id != first}
    assert loaded(file) == {**remaining, second: some(0), "more": some(1)}
    Path(file.path).write_bytes(b"")
    assert loaded(file) == {}
    for row in MALFORMED_ROWS:
        file.write(SOME)
        with open(file.path, "ab") as opened:
            opened.write(row)
        assert tried(file) == (BROKEN, SOME)
        assert loaded(file) == {}
    file.write({"new": some(7)})
    assert loaded(file) == {"new": some(7)}


def test_file_does_not_grow_over_lifecycles(file: File) -> None:
    sizes = set()
    for start in range(0, LIFECYCLES.now, 200):
        batch = {f"{number:064x}": some(number) for number in range(start, start + 200)}
        file.write(batch)
        file.write(dict.fromkeys(batch))
        sizes.add(os.stat(file.path).st_size)
    assert (loaded(file), len(sizes)) == ({}, 1)
    assert max(sizes) < 200


def test_file_writable_by_others_is_not_used(file: File) -> None:
    """Which files those are: tests/test_files.py."""
    file.write(SOME)
    Path(file.path).parent.chmod(0o777)
    assert tried(File(file.path, OURS)) == (NOT_OURS, {})
    with pytest.raises(Failed) as raised:
        file.write(SOME)
    assert raised.value.reason == NOT_OURS
    Path(file.path).parent.chmod(0o700)
    assert loaded(File(file.path, OURS)) == SOME


def test_values_of_version_0_1_are_read_after_upgrade(file: File) -> None:
    """With any content of that file, which stays for a downgrade."""
    old, text = Path(file.path).with_name("a.originals"), form.write(some(1))
    valid = [(b"good", text, crc32(text, crc32(b"good"))), (b"bad", text, 7)]
    for content in (b"", b"noise", [(b"", b"1 another", 0), *valid], [(b"", f"1 {OURS}".encode(), 0), *valid]):
        old.unlink(missing_ok=True)
        if isinstance(content, bytes):
            old.write_bytes(content)
        else:
            with closing(sqlite3.connect(old, isolation_level=None)) as made:
                made.execute("CREATE TABLE kept (id BLOB PRIMARY KEY, text BLOB, sum INTEGER) WITHOUT ROWID")
                made.executemany("INSERT INTO kept VALUES (?, ?, ?)", content)
        before = old.read_bytes()
        is_ours = content == [(b"", f"1 {OURS}".encode(), 0), *valid]
        assert loaded(file) == ({"good": some(1)} if is_ours else {})
    file.write({"more": some(2)})
    assert loaded(File(file.path, OURS)) == {"good": some(1), "more": some(2)}
    assert old.read_bytes() == before


@pytest.mark.slow
def test_damaged_file_yields_no_wrong_value_and_is_rewritten(file: File) -> None:
    """Truncated (at each byte in a soak), or partly or completely replaced by noise."""
    file.write(SOME)
    data, step, noise = Path(file.path).read_bytes(), Amount(97, 1), random.Random(0)
    contents = [data[:length] for length in range(1, len(data), min(step.now, step.usual))]
    for _ in range(Amount(200, 20_000).now):
        broken = bytearray(data)
        for at in noise.choices(range(len(data)), k=noise.choice((1, 1, 3, 100))):
            broken[at] = noise.randrange(256)
        at, length = noise.randrange(len(data)), noise.choice((0, 0, 16, 5000))
        broken[at : at + length] = noise.randbytes(len(broken[at : at + length]))
        contents.append(bytes(broken))
    for content in (*contents, noise.randbytes(len(data)), bytes(len(data))):
        Path(file.path).write_bytes(content)
        os.chmod(file.path, 0o600)
        reason, retained = tried(file)
        assert reason in ("", BROKEN, FOREIGN)
        assert os.path.exists(file.path) == (not reason)
        assert retained.items() <= SOME.items()
        file.write({"new": some(7)})
        assert loaded(file)["new"] == some(7)
        os.unlink(file.path)


WRITER = """
import sys
from itertools import count
from tests.core.test_originals_file import OURS, some, File
file = File(sys.argv[1], OURS)
for number in count():
    file.write({f"a-{each}": some(number) for each in range(50)} | {f"gone-{number}": None})
    print(number, flush=True)
"""
"""Writes some rows repeatedly, each time with one number in all of them."""


@pytest.mark.slow
def test_killed_writer_leaves_complete_writes(file: File) -> None:
    pause = random.Random(0)
    for _ in range(KILLS.now):
        command = [sys.executable, "-c", WRITER, file.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            written = process.stdout.read().split()
        retained = loaded(file)
        assert len(retained) == 50
        (name,) = {values.name[1] for values in retained.values()}
        last = int(written[-1]) if written else 0
        assert name in (f"web-{last}", f"web-{last + 1}")


POD = PodInfo("p1", "web", "uid", "shop", cgroup_parent="/kube")
CONTAINER = ContainerInfo("c1", "p1", "main", resources=Resources(cpu_quota=200_000))
SCALED = replace(CONTAINER, resources=Resources(cpu_quota=133_334))
QUOTAS = {"c1": {"resources.cpu_quota": [200_000, 133_334]}}


def hooked(container_id: str = "c1", effective: ContainerInfo = SCALED) -> Subject:
    original = replace(CONTAINER, id=container_id)
    return Subject(PodRecord(POD, POD), ContainerRecord(original, replace(effective, id=container_id)))


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(originals_file, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    with on_tmpfs() as folder:
        yield folder / "a.original-values"


class Process:
    def __init__(self, path: Path | None, owner: str = OURS) -> None:
        self.store, self.metrics = Store(), Metrics(asyncio.get_running_loop().time)
        self.originals = Originals(None if path is None else File(str(path), owner), self.store, self.metrics)

    async def __aenter__(self) -> "Process":
        await self.originals.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.originals.stop()

    def commit(self, *ids: str) -> None:
        for any_id in ids:
            self.store.commit(hooked(any_id))

    def failures(self, reason: str) -> int:
        return self.metrics.counted("originals_failures", reason=reason)

    async def failed(self, times: int) -> None:
        await until(lambda: self.failures("unusable") >= times, "it fails")


async def ids_of_originals(path: Path, *ids: str) -> None:
    await until(lambda: rows(path).keys() == {*ids}, "all are kept", lambda: str(rows(path)))


async def test_next_process_reads_replaced_values(path: Path) -> None:
    path = path.parent / "made" / "a"
    async with Process(None) as process:
        assert process.store.read_pod(POD).read
    async with Process(path) as first:
        assert not first.store.read_pod(POD).read, "what is not kept is the kubelet's own"
        first.commit("c1")
        await asyncio.sleep(0)
        assert not path.exists(), "the answer goes first"
        await ids_of_originals(path, "c1")
        assert rows(path) == QUOTAS
        assert path.parent.stat().st_mode & 0o777 == 0o700
        await until(lambda: first.metrics.gauges.get(("originals_kept", ())) == 1, "it is notified")
    async with Process(path) as second:
        assert second.store.ids_of_originals() == {"c1"}
        record = second.store.read_container(SCALED)
        assert record == hooked().container
        second.store.commit(Subject(PodRecord(POD, POD), record))
        assert second.store.ids_of_originals() == set()
        await asyncio.sleep(0.05)
        assert rows(path) == QUOTAS


async def test_only_replaced_values_are_written_all_at_stop(path: Path) -> None:
    async with Process(path) as process:
        for number in range(3):
            process.store.commit(hooked(f"c{number}", effective=replace(CONTAINER, envs={"A": "1"})))
        process.store.tombstone("c1")
        await asyncio.sleep(0.1)
        assert list(path.parent.iterdir()) == []
        process.commit(*(f"c{number}" for number in range(10, 130)))
        await asyncio.sleep(originals_file.COLLECT_SECONDS)
        process.commit(*(f"c{number}" for number in range(130, 250)))
    assert len(rows(path)) == 240


@pytest.mark.parametrize("destroyed", [True, False])
@pytest.mark.parametrize("later", [False, True], ids=["same process", "next process"])
async def test_row_is_removed_with_its_subject(path: Path, destroyed: bool, later: bool) -> None:
    """Or when the kubelet's value is restored."""
    process = Process(path)
    await process.originals.start()
    process.commit("c1")
    await ids_of_originals(path, "c1")
    if later:
        await process.originals.stop()
        process = Process(path)
        await process.originals.start()
        process.store.commit(Subject(PodRecord(POD, POD), process.store.read_container(SCALED)))
    if destroyed:
        process.store.tombstone("c1")
    else:
        process.store.commit(hooked(effective=CONTAINER))
    await ids_of_originals(path)
    await process.originals.stop()
    assert rows(path) == {}


async def test_concurrent_processes_keep_rows_of_each_other(path: Path) -> None:
    async with Process(path) as old:
        old.commit("c1")
        await ids_of_originals(path, "c1")
        async with Process(path) as new:
            new.commit("c2")
            old.commit("c3")
            await ids_of_originals(path, "c1", "c2", "c3")
        old.store.tombstone("c3")
    assert rows(path).keys() == {"c1", "c2"}
    assert not old.metrics.total("originals_failures") + new.metrics.total("originals_failures")


NOT_IN_MEMORY = "original values are lost when this process ends: /proc is not on tmpfs (--originals-dir)"
NO_FOLDER = "/dev/shm/no/such/a: No such file or directory: it is not written; see --originals-dir"


@pytest.mark.parametrize(("path", "text"), [("/proc/a", NOT_IN_MEMORY), ("/dev/shm/no/such/a", NO_FOLDER)])
async def test_unusable_directory_is_logged_once(path: str, text: str, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    async with Process(Path(path)) as process:
        process.commit("c1")
        await asyncio.sleep(0.05)
    assert caplog.messages == [text]
    assert process.failures("unusable") == process.metrics.total("originals_failures") == (text is NO_FOLDER)


def noise(path: Path) -> None:
    path.write_bytes(b"noise" * 4096)


def spoil_first_row(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"[200000,", b"[200001,", 1))


USELESS: list[tuple[Callable[[Path], object], str, str, str, int]] = [
    (noise, OURS, "broken", "it is damaged", 0),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), OURS, "broken", "1 of its rows are broken", 1),
    (spoil_first_row, OURS, "broken", "1 of its rows are broken", 1),
    (lambda path: None, "another's", "foreign", "it is of another runtime, boot or version", 0),
]


@pytest.mark.parametrize(("spoil", "owner", "reason", "what", "valid"), USELESS)
async def test_useless_file_is_logged_once_and_replaced(
    path: Path, spoil: Callable[[Path], object], owner: str, reason: str, what: str, valid: int, caplog: Log
) -> None:
    """Its valid rows are written again."""
    async with Process(path, owner) as process:
        process.commit("c1", "c2")
    spoil(path)
    async with Process(path) as process:
        assert process.store.read_pod(POD).read, "what earlier hooks set is unknown"
        ids = process.store.ids_of_originals()
        assert len(ids) == valid
        assert not path.exists()
        if valid:
            await ids_of_originals(path, *ids)
        process.commit("c3")
        await ids_of_originals(path, "c3", *ids)
    assert process.failures(reason) == 1
    assert caplog.messages == [f"{path}: {what}: it is replaced; see --originals-dir"]


async def test_failed_write_is_retried(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Log) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    caplog.set_level(logging.INFO)
    async with Process(path) as process:
        process.commit("c1")
        await ids_of_originals(path, "c1")
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", full)
            process.store.tombstone("c1")
            process.commit("c2")
            await process.failed(2)
            process.commit("c3")
        await ids_of_originals(path, "c2", "c3")
        await until(lambda: len(caplog.messages) == 2, "it is notified")
        for spoil, number in ((Path.unlink, 4), (noise, 5)):
            failures = process.metrics.total("originals_failures")
            spoil(path)
            process.commit(f"c{number}")
            await ids_of_originals(path, *(f"c{each}" for each in range(2, number + 1)))
            assert process.metrics.total("originals_failures") == failures + (spoil is noise)
    failed = f"{path}: cannot be written (No space left on device): it is not written; see --originals-dir"
    assert caplog.messages[:2] == [failed, f"{path} is written again"]


async def test_write_is_retried_when_no_thread_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last write without a thread is lost."""

    def none(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        async with Process(path) as process:
            process.commit("c1")
            await process.failed(2)
        assert not path.exists()
        process = Process(path)
        await process.originals.start()
        process.commit("c1")
        await process.failed(2)
    await ids_of_originals(path, "c1")
    await process.originals.stop()
